// The low-latency encoding for links that carry 128 bytes whole: one flag a line.
//
//     slot = header line* ;  line = {120 bytes, epoch} ;  header = {112 bytes unused, signature, len_bytes, epoch}
//
//     send:     store each line with its flag, the header last; nothing else
//     receive:  load a line until its flag is the epoch of the awaited message
//
// Why it is fast: as LL, no counter and no fence, but 15 of 16 bytes that cross are data. What it
// rests on: whoever sees a line's flag sees its data. On a host one thread has the line, and
// releases and acquires the flag. On a GPU eight threads of a warp have it, 16 bytes each
// (cuda/lines.h): the line is stored by one instruction of the warp, which memory of the same GPU
// and NVLink carry as one access. PCIe may split it, so communicators have this lane only where no
// rank needs PCIe.
//
// A flag is at the same place of every line, headers among them: whatever the lengths of the
// messages that a slot has held, what was data is never read as a flag.
#pragma once
#include "ll.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// The line's last 16 bytes: a word of data and the flag.
constexpr uint32_t LINE_END = LL128_LINE_BYTES - 16;

// The line that byte `position` of the view's message is in.
OXCCL_INLINE uint8_t* ll128_line(const View& view, uint64_t position) {
  return view.data + position / LL128_DATA_BYTES * LL128_LINE_BYTES;
}

// Waits until the flag of the line that ends at `end` is that of the view's message.
template <class Machine>
OXCCL_COLD bool await_line_end(Machine& machine, const View& view, const uint8_t* end,
                               uint64_t* data) {
  const Awaited awaited = {reinterpret_cast<const uint64_t*>(end) + 1, view.epoch, Awaits::FLAG};
  const Place place = place_of(machine, view);
  Patience patience = {};
  do {
    if (!machine.await(awaited, place, patience)) return false;
  } while (!load_line_end(end, view.epoch, data));
  wait_over(machine.launch, machine.channel, patience);
  return true;
}

// As one thread, which on a GPU then knows the last word of the line alone.
template <class Machine>
OXCCL_INLINE bool receive_line_end(Machine& machine, const View& view, const uint8_t* end,
                                   uint64_t* data) {
  return OXCCL_LIKELY(load_line_end(end, view.epoch, data)) ||
         await_line_end(machine, view, end, data);
}

// The next two are for where one thread has the whole line. `position` is a multiple of 8.
template <class Machine>
OXCCL_INLINE bool receive_ll128_word(Machine& machine, const View& view, uint64_t position,
                                     uint64_t* word) {
  const uint8_t* line = ll128_line(view, position);
  uint64_t last = 0;
  if (!receive_line_end(machine, view, line + LINE_END, &last)) return false;
  *word = *reinterpret_cast<const unaligned_word*>(line + position % LL128_DATA_BYTES);
  return true;
}

// `left` bytes of the message are not sent yet, this word among them; they are sent in order.
OXCCL_INLINE void send_ll128_word(const View& view, uint64_t position, uint64_t left,
                                  uint64_t word) {
  uint8_t* line = ll128_line(view, position);
  const uint64_t at = position % LL128_DATA_BYTES;
  *reinterpret_cast<unaligned_word*>(line + at) = word;
  if (at + 8 == LL128_DATA_BYTES || left <= 8)
    store_release(reinterpret_cast<uint64_t*>(line + LL128_DATA_BYTES), view.epoch);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
