// From operands to addresses. Slots are found through their connection's cursors, and each segment
// of one carries a header that is written and checked here.
#pragma once
#include "reduce_copy.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE uint8_t* slot(uint8_t* slots, const Connection& connection, uint64_t message) {
  return slots + (message & (connection.slots - 1)) * connection.slot_stride_bytes;
}

// The header of a message's first segment.
OXCCL_INLINE SlotHeader* header_of(uint8_t* slots, const Connection& connection,
                                   uint64_t message) {
  return reinterpret_cast<SlotHeader*>(slot(slots, connection, message));
}

// Where a tail of this value is stored: with the last message that it announces, in its slot or
// apart from it.
OXCCL_INLINE uint64_t* tail(uint8_t* slots, SlotTail* tails, const Connection& connection,
                            uint64_t value) {
  if (OXCCL_LIKELY(tails == nullptr)) return &header_of(slots, connection, value - 1)->tail;
  return &tails[(value - 1) & (connection.slots - 1)].tail;
}

// How far behind a plain segment's header its payload is: in the header's line if it fits there, so
// that a small message is one line.
OXCCL_INLINE uint32_t payload_at(uint64_t len_bytes) {
  const bool fits = len_bytes <= SLOT_HEADER_BYTES - sizeof(SlotHeader);
  return fits ? uint32_t(sizeof(SlotHeader)) : SLOT_HEADER_BYTES;
}

// How much of its slot a message to a proxy fills, by the header of its last segment.
OXCCL_INLINE void note_content(const Connection& connection, uint64_t message,
                               uint32_t last_segment) {
  const uint8_t* last = slot(connection.send_slots, connection, message) + last_segment;
  const uint32_t len_bytes = reinterpret_cast<const SlotHeader*>(last)->len_bytes;
  connection.send_tails[message & (connection.slots - 1)].content_bytes =
      last_segment + payload_at(len_bytes) + len_bytes;
}

// What the header of a message says: the call, what was called before it, and what the two ranks
// alone must agree on.
OXCCL_INLINE uint32_t signature_of(const Machine& machine, const Operand& operand) {
  return machine.launch.signature ^ uint32_t(machine.launch.history) ^ operand.signature;
}

// A message's segment, whose header is at `at`, with a payload of this length.
OXCCL_INLINE View segment_view(uint8_t* at, Connection& connection, uint64_t message,
                               const Operand& operand, uint64_t len_bytes) {
  if (operand.lane == LANE_LL)
    return {at + LL_HEADER_BYTES, &connection, epoch_of(message), operand.flags};
  if (operand.lane == LANE_LL128)
    return {at + LL128_LINE_BYTES, &connection, epoch_of(message), operand.flags | VIEW_LL128};
  return {at + payload_at(len_bytes), &connection, 0, operand.flags};
}

// How many messages ahead a receiver asks for lines, and for how many bytes of one.
constexpr uint32_t LATER_MESSAGES = 2;
constexpr uint64_t LATER_BYTES = 1024;

// Where a sender runs ahead, its later messages come while the next is awaited. Where it does not,
// this asks for nothing: the lines are still here from the time before, since a sender asks for its
// next message's and no more.
OXCCL_INLINE void expect_later(const Connection& connection, uint64_t message, const Operand& operand,
                               uint64_t len_bytes) {
  const uint8_t* at = slot(connection.recv_slots, connection, message + LATER_MESSAGES) + operand.offset_bytes;
  prefetch_read(at, len_bytes < LATER_BYTES ? len_bytes : LATER_BYTES);
}

// The next message's segment, whose header is yet to be looked at.
OXCCL_INLINE View slot_view(Machine& machine, const Operand& operand, uint64_t len_bytes) {
  Connection& connection = machine.launch.connections[operand.index];
  const uint64_t message = connection.received + operand.message;
  uint8_t* at = slot(connection.recv_slots, connection, message) + operand.offset_bytes;
  const View view = segment_view(at, connection, message, operand, len_bytes);
  expect_later(connection, message, operand, uint64_t(view.data - at) + len_bytes);
  return view;
}

// The segment's header must be of this call.
OXCCL_INLINE bool accept(Machine& machine, const Operand& operand, const View& view, uint64_t len_bytes) {
  const uint32_t expected = signature_of(machine, operand);
  if (!view.is_plain()) return receive_header(machine, view, expected, len_bytes);
  const SlotHeader& header = *reinterpret_cast<const SlotHeader*>(view.data - payload_at(len_bytes));
  if (OXCCL_LIKELY(header.signature == expected && header.len_bytes == len_bytes)) return true;
  return machine.mismatch(expected, header.signature, view.connection->peer);
}

// A receive slot.
OXCCL_INLINE bool resolve_slot(Machine& machine, const Operand& operand, uint64_t len_bytes,
                               View* view) {
  *view = slot_view(machine, operand, len_bytes);
  return accept(machine, operand, *view, len_bytes);
}

// The slot for the next message. Its header is written behind its payload: see `announce`.
OXCCL_INLINE void resolve_peer_slot(Machine& machine, const Operand& operand, uint64_t len_bytes,
                                    View* view) {
  Connection& connection = machine.launch.connections[operand.index];
  const uint64_t message = connection.sent + operand.message;
  uint8_t* at = slot(connection.send_slots, connection, message) + operand.offset_bytes;
  *view = segment_view(at, connection, message, operand, len_bytes);
}

// What a message's header says, behind its payload. It is sent by that if it has flags, else by the
// signal that follows.
OXCCL_INLINE void write_header(Machine& machine, const Operand& operand, const View& view,
                               uint64_t len_bytes) {
  if (!view.is_plain()) {
    announce(view, signature_of(machine, operand), len_bytes);
  } else if (view.connection) {
    SlotHeader& header = *reinterpret_cast<SlotHeader*>(view.data - payload_at(len_bytes));
    header.signature = signature_of(machine, operand);
    header.len_bytes = uint32_t(len_bytes);
  }
}

OXCCL_INLINE bool is_memory(const Operand& operand) {
  return operand.space == SPACE_INPUT || operand.space == SPACE_OUTPUT ||
         operand.space == SPACE_WINDOW_INPUT || operand.space == SPACE_WINDOW_OUTPUT;
}

OXCCL_INLINE Window& window_of(const Machine& machine, const Operand& operand) {
  const Launch& launch = machine.launch;
  return launch.windows[uint64_t(machine.channel) * launch.ranks + operand.index];
}

// Where a token leads: into the peer's heap, or into an allocation that the peer has registered.
OXCCL_INLINE uint8_t* behind(const Window& window, uint64_t token) {
  const uint64_t number = token >> TOKEN_NUMBER_SHIFT;
  if (OXCCL_LIKELY(number == 0)) return window.base + token;
  return window.registered[number] + (token & ((uint64_t(1) << TOKEN_NUMBER_SHIFT) - 1));
}

// Where a peer's buffer is. What is not mapped here (OPERAND_CMA) is an address of the peer's,
// which only the system reads.
OXCCL_INLINE uint8_t* in_window(const Window& window, const Operand& operand, uint64_t token) {
  if (OXCCL_UNLIKELY(operand.flags & OPERAND_CMA)) return reinterpret_cast<uint8_t*>(token);
  return behind(window, token);
}

// What an operand's flags say of this launch.
OXCCL_INLINE uint32_t memory_flags(const Launch& launch, const Operand& operand) {
  if (!ONE_THREAD || (launch.flags & LAUNCH_STREAM)) return operand.flags;
  return operand.flags & ~uint32_t(OPERAND_STREAM);
}

// Whole buffers: false when the space is none of these.
OXCCL_INLINE bool resolve_memory(Machine& machine, const Operand& operand, uint64_t round_start,
                                 View* view) {
  const Launch& launch = machine.launch;
  const uint64_t offset = operand.offset_bytes + round_start;
  uint8_t* data;
  if (operand.space == SPACE_INPUT) {
    data = const_cast<uint8_t*>(launch.input) + offset;
  } else if (operand.space == SPACE_OUTPUT) {
    data = launch.output + offset;
  } else if (operand.space == SPACE_WINDOW_INPUT) {
    const Window& window = window_of(machine, operand);
    data = in_window(window, operand, window.tokens.input) + offset;
  } else if (operand.space == SPACE_WINDOW_OUTPUT) {
    const Window& window = window_of(machine, operand);
    data = in_window(window, operand, window.tokens.output) + offset;
  } else if (operand.space == SPACE_TOKENS) {
    data = reinterpret_cast<uint8_t*>(const_cast<Tokens*>(&launch.tokens));
  } else if (operand.space == SPACE_PEER_TOKENS) {
    data = reinterpret_cast<uint8_t*>(&window_of(machine, operand).tokens);
  } else if (operand.space == SPACE_SCRATCH) {
    data = launch.program->scratch + operand.offset_bytes;
  } else {
    return machine.fail(OUTCOME_BAD_PROGRAM, operand.index, operand.space);
  }
  *view = {data, nullptr, 0, memory_flags(launch, operand)};
  return true;
}

OXCCL_INLINE bool resolve(Machine& machine, const Operand& operand, uint64_t round_start,
                          uint64_t len_bytes, View* view) {
  const bool is_slot = operand.space == SPACE_SLOT;
  if (!is_slot && operand.space != SPACE_PEER_SLOT)
    return resolve_memory(machine, operand, round_start, view);
  // Buckets begin anywhere in an LL128 line.
  if (OXCCL_UNLIKELY(operand.lane == LANE_LL128 && machine.launch.segments != nullptr))
    return machine.fail(OUTCOME_BAD_PROGRAM, operand.index, operand.lane);
  if (is_slot) return resolve_slot(machine, operand, len_bytes, view);
  resolve_peer_slot(machine, operand, len_bytes, view);
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
