// The low-latency encoding: data that announces itself.
//
//     slot = {signature, epoch, len_bytes, epoch} line* ;  line = {4 bytes, epoch, 4 bytes, epoch}
//
//     send:     store each line, the header last; nothing else
//     receive:  load a line until both its flags are the epoch of the awaited message
//
// Why it is fast: an aligned 8-byte word is written whole, so a word with the right flag has the right
// data: no counter, no fence, no second cache line. A message of 8 bytes with its header fills half a
// line, and the exchange costs what moving that line costs. The price is half of the bandwidth. (On a
// GPU a message therefore says nothing of other memory. Tokens do, and have fences: run_reduce_copy.)
//
// Flags of past messages stay in the slots. Epochs count modulo twice LL_EPOCHS, and a sender clears
// its slots (all consumed by then) in the first round after every LL_EPOCHS messages, so no flag is
// ever met again. A round begins there, so the wait for consumption depends on finished rounds only.
#pragma once
#include "machine.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t LINE_BYTES = 16;
constexpr uint32_t LINE_DATA_BYTES = 8;

OXCCL_INLINE uint32_t epoch_of(uint64_t message) {
  return uint32_t(message & (2 * LL_EPOCHS - 1)) + 1;
}

// The message number behind an epoch: the first one from `received` on that has it.
OXCCL_INLINE uint64_t message_of(uint32_t epoch, uint64_t received) {
  return received + ((epoch - 1 - received) & (2 * LL_EPOCHS - 1));
}

OXCCL_INLINE bool carries(const Line& line, uint32_t epoch) {
  return line.flag == epoch && line.flag_behind == epoch;
}

// Waits until the flags of the line at `at` are those of the view's message.
template <class Machine>
OXCCL_COLD bool await_line(Machine& machine, const View& view, const uint8_t* at, Line* line) {
  const Connection& connection = *view.connection;
  const Place place = {message_of(view.epoch, connection.received), machine.step, connection.peer,
                       LANE_LL, 0};
  Patience patience = {};
  do {
    if (!machine.await({reinterpret_cast<const uint64_t*>(at), view.epoch, true}, place, patience)) return false;
    *line = load_line(at);
  } while (!carries(*line, view.epoch));
  wait_over(machine.launch, machine.channel, patience);
  return true;
}

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

// Checks that the message is of this call. `header` is the slot, in front of the payload.
template <class Machine>
OXCCL_INLINE bool receive_header(Machine& machine, const View& view, uint32_t signature,
                                 uint64_t len_bytes) {
  uint64_t header = 0;
  if (!receive_line(machine, view, view.data - LL_HEADER_BYTES, &header)) return false;
  if (OXCCL_LIKELY(header == (signature | (len_bytes << 32)))) return true;
  return machine.mismatch(signature, uint32_t(header), view.connection->peer);
}

// Sends the message: its other lines are stored. The header goes last, although the receiver reads it first: the receiver
// polls it, and a line that was fetched half written has to be won back before the rest can be stored.
OXCCL_INLINE void announce(const View& view, uint32_t signature, uint64_t len_bytes) {
  store_line(view.data - LL_HEADER_BYTES, signature | (len_bytes << 32), view.epoch);
  ring(view.connection->doorbell);
}

// Before the first message of a round, once in LL_EPOCHS messages.
template <class Machine>
OXCCL_COLD bool clear_slots(Machine& machine, Connection& connection) {
  const Place place = {connection.sent, machine.step, connection.peer, LANE_LL, 1};
  uint64_t consumed = 0;
  if (!machine.await_counter({connection.send_head, connection.sent, false}, place, &consumed)) return false;
  const uint64_t len_bytes = uint64_t(connection.slots) * connection.slot_stride_bytes;
#pragma unroll 1
  for (uint64_t at = 0; at < len_bytes; at += LINE_BYTES)
    store_line(connection.send_slots + at, 0, 0);
  connection.cleared = connection.sent;
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
