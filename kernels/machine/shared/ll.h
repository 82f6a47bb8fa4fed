// The low-latency encoding: data that announces itself.
//
//     slot = {signature, epoch, len_bytes, epoch} line* ;  line = {4 bytes, epoch, 4 bytes, epoch}
//
//     send:     store each line, the header last; nothing else
//     receive:  load a line until both its flags are the epoch of the awaited message
//
// Why it is fast: an aligned 8-byte word is written whole, so a word with the right flag has the
// right data: no counter, no fence, no second cache line. A message of 8 bytes with its header
// fills half a line, and the exchange costs what moving that line costs. The price is half of the
// bandwidth. (On a GPU a message therefore says nothing of other memory. Tokens do, and have
// fences: run_reduce_copy.)
#pragma once
#include "machine.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t LINE_BYTES = 16;
constexpr uint32_t LINE_DATA_BYTES = 8;

// The flag of a message: see flagged.h.
OXCCL_INLINE uint32_t epoch_of(uint64_t message) {
  return uint32_t(message & (2 * LL_EPOCHS - 1)) + 1;
}

// The message number behind an epoch: the first one from `received` on that has it.
OXCCL_INLINE uint64_t message_of(uint32_t epoch, uint64_t received) {
  return received + ((epoch - 1 - received) & (2 * LL_EPOCHS - 1));
}

// What a wait for the view's message tells.
template <class Machine>
OXCCL_INLINE Place place_of(const Machine& machine, const View& view) {
  const Connection& connection = *view.connection;
  return {message_of(view.epoch, connection.received), machine.step, connection.peer, connection.lane, 0, &connection};
}

OXCCL_INLINE bool carries(const Line& line, uint32_t epoch) {
  return line.flag == epoch && line.flag_behind == epoch;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl

#include "late.h"

namespace oxccl {
inline namespace OXCCL_ISA {

template <class Machine>
OXCCL_INLINE bool receive_line(Machine& machine, const View& view, const uint8_t* at,
                               uint64_t* data) {
  Line line = load_line(at);
  if (OXCCL_UNLIKELY(!carries(line, view.epoch))) {
    Line late;
    if (!await_line(machine, view, at, &late)) return false;
    line = late;
  }
  *data = line.data;
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
