// What messages that announce themselves have in common, in LL lines and in LL128 lines: header,
// announcement, epochs.
//
// Flags of past messages stay in the slots. Epochs count modulo twice LL_EPOCHS, and a sender
// clears its slots (all consumed by then) in the first round after every LL_EPOCHS messages, so no
// flag is ever met again. A round begins there, so the wait for consumption depends on finished
// rounds only.
#pragma once
#include "ll128.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE bool has_flags(const Connection& connection) {
  return connection.lane == LANE_LL || connection.lane == LANE_LL128;
}

static_assert(LL_HEADER_BYTES == LL128_LINE_BYTES - LINE_END, "both headers end in front of the first line");

// Checks that the message is of this call. Its header is in front of the first line.
template <class Machine>
OXCCL_INLINE bool receive_header(Machine& machine, const View& view, uint32_t signature,
                                 uint64_t len_bytes) {
  const uint8_t* at = view.data - LL_HEADER_BYTES;
  uint64_t header = 0;
  if (!(view.is_ll128() ? receive_line_end(machine, view, at, &header)
                        : receive_line(machine, view, at, &header)))
    return false;
  if (OXCCL_LIKELY(header == (signature | (len_bytes << 32)))) return true;
  return machine.mismatch(signature, uint32_t(header), view.connection->peer);
}

// Sends the message: its other lines are stored. The header goes last, although the receiver reads
// it first: the receiver polls it, and a line that was fetched half written has to be won back
// before the rest can be stored.
OXCCL_INLINE void announce(const View& view, uint32_t signature, uint64_t len_bytes) {
  uint8_t* at = view.data - LL_HEADER_BYTES;
  const uint64_t header = signature | (len_bytes << 32);
  if (view.is_ll128()) store_line_end(at, header, view.epoch);
  else store_line(at, header, view.epoch);
  ring(view.connection->doorbell);
}

// Before the first message of a round, once in LL_EPOCHS messages.
template <class Machine>
OXCCL_COLD bool clear_slots(Machine& machine, Connection& connection) {
  const Place place = {connection.sent, machine.step, connection.peer, connection.lane, 1, &connection};
  uint64_t consumed = 0;
  if (!machine.await_counter({connection.send_head, connection.sent}, place, &consumed)) return false;
  const uint64_t len_bytes = uint64_t(connection.slots) * connection.slot_stride_bytes;
#pragma unroll 1
  for (uint64_t at = 0; at < len_bytes; at += LINE_BYTES)
    store_line(connection.send_slots + at, 0, 0);
  connection.cleared = connection.sent;
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
