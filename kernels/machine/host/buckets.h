// Buckets on the host whose move is between memory and plain messages: what a group of small
// buckets spends its time on.
//
//     for each bucket of the tile, with those that lie behind it in every operand's memory:
//       point the views to its places, and move it
//
// Why it is apart from the general walk (segments.h), which does the same: that one goes from piece
// to piece in steps on which many threads agree, minds messages with flags and what they carry of
// holes, and takes 40 ns a piece. Here no peer is waited for, a hole is nowhere, and what most
// pieces are, one source or two, takes 10.
//
// Short tiles, which are all of a small group, go from registers, as short messages do
// (host/short.h).
#pragma once
#include "copy.h"
#include "short.h"
#include "walk.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Whether the move is one of buckets, without flags.
OXCCL_INLINE bool is_plain_walk(const Machine& machine, const Workspace& workspace) {
  if (OXCCL_LIKELY(machine.launch.segments == nullptr)) return false;
  for (uint32_t o = 0; o < workspace.move().sources + workspace.move().destinations; ++o)
    if (!workspace.views[o].is_plain()) return false;
  return memory_of(workspace) != nullptr;
}

// Whether pieces of the move can go by `move_piece`.
OXCCL_INLINE bool has_simple_pieces(const Move& move) {
  if (move.sources > 2 || move.destinations == 0 || move.scaling.premultiply || move.scaling.divide) return false;
  for (uint32_t d = 0; d < move.destinations; ++d)
    if (move.destination(d).is_stream()) return false;
  return true;
}

template <uint64_t BYTES>
OXCCL_INLINE void copy_ends(uint8_t* to, const uint8_t* from, uint64_t len_bytes) {
  __builtin_memcpy(to, from, BYTES);
  __builtin_memcpy(to + len_bytes - BYTES, from + len_bytes - BYTES, BYTES);
}

// Of a line or two without a call.
OXCCL_INLINE void copy_piece(uint8_t* to, const uint8_t* from, uint64_t len_bytes) {
  if (to == from) return;
  if (len_bytes - 64 <= 64) copy_ends<64>(to, from, len_bytes);
  else if (len_bytes - 16 < 16) copy_ends<16>(to, from, len_bytes);
  else if (len_bytes - 32 < 32) copy_ends<32>(to, from, len_bytes);
  else copy_bytes(to, from, len_bytes);
}

// One source or two.
OXCCL_INLINE void move_simple(const HostReducer& reducer, uint8_t* to, const uint8_t* first,
                              const uint8_t* second, uint64_t len_bytes) {
  if (second) reducer.fold_two(to, first, second, len_bytes / reducer.element_bytes);
  else copy_piece(to, first, len_bytes);
}

OXCCL_INLINE void move_piece(const Move& move, const HostReducer& reducer, uint64_t len_bytes) {
  uint8_t* first = move.destination(0).data;
  move_simple(reducer, first, move.source(0).data, move.sources == 2 ? move.source(1).data : nullptr, len_bytes);
  for (uint32_t d = 1; d < move.destinations; ++d) copy_bytes(move.destination(d).data, first, len_bytes);
}

// Walks through the tile, which begins at the round's start.
OXCCL_NOINLINE inline bool walk_plain(Machine& machine, const HostReducer& reducer,
                                      uint64_t round_start, Workspace& workspace) {
  const Launch& launch = machine.launch;
  Move& move = workspace.move();
  const uint64_t position = memory_of(workspace)->offset_bytes + round_start;
  const uint64_t tile_bytes = move.len_bytes, end = position + tile_bytes;
  // What is copied to a second place is still in the first-level cache then.
  const uint64_t simple_bytes = !has_simple_pieces(move) ? 0 : move.destinations == 1 ? tile_bytes : BLOCK_BYTES;
  find_buckets(machine, workspace);
  uint32_t next = find_segment(launch, position);
  uint64_t at = position;  // where the messages' views point to
  while (next < launch.segments_count && launch.segments[next].start < end) {
    const uint32_t bucket = next, last = last_joined(machine, workspace, bucket);
    next = last + 1;
    const Segment& segment = launch.segments[bucket];
    const uint64_t last_end = launch.segments[last].start + launch.segments[last].len_bytes;
    const uint64_t from = segment.start < position ? position : segment.start;
    const uint64_t to = last_end < end ? last_end : end;
    if (from >= to) continue;
    for (uint32_t o = 0; o < move.sources + move.destinations; ++o) {
      const BucketTable& table = workspace.buckets.of[o];
      if (table.first) workspace.views[o].data = bucket_of(table, bucket) + workspace.operands[o].message * segment.len_bytes + (from - segment.start);
      else workspace.views[o].data += from - at;
    }
    at = from;
    move.len_bytes = to - from;
    if (move.len_bytes <= simple_bytes) move_piece(move, reducer, move.len_bytes);
    else if (!reduce_copy(machine, move, reducer)) return false;
  }
  // Headers lie in front of where the messages begin.
  for (uint32_t o = 0; o < move.sources + move.destinations; ++o)
    if (!workspace.buckets.of[o].first) workspace.views[o].data -= at - position;
  move.len_bytes = tile_bytes;
  return true;
}

// An operand of a short tile of buckets: memory, or a message.
struct ShortOperand {
  BucketTable table;
  uint32_t part;
  View message;

  // Where it has what lies so far into the bucket and into the tile.
  OXCCL_INLINE uint8_t* place(const Segment& segment, uint32_t bucket, uint64_t in_bucket, uint64_t in_tile) const {
    if (!table.first) return message.data + in_tile;
    return bucket_of(table, bucket) + part * segment.len_bytes + in_bucket;
  }
};

OXCCL_INLINE bool is_plain_message(const Operand& operand) {
  return (operand.space == SPACE_SLOT || operand.space == SPACE_PEER_SLOT) && operand.lane == LANE_SLOTS;
}

// Whether a tile of buckets can go by `run_short_walk`. It is one that could go by `run_short`,
// were it one of a buffer.
OXCCL_INLINE bool is_short_walk(const Instruction& instruction, const Operand* operands) {
  bool any = false;
  for (uint32_t o = 0; o < uint32_t(instruction.sources) + 1; ++o) {
    any |= is_memory(operands[o]);
    if (!is_memory(operands[o]) && !is_plain_message(operands[o])) return false;
  }
  return any;
}

// False if it is a message of another call.
OXCCL_INLINE bool find_operand(Machine& machine, const Operand& operand, uint64_t len_bytes, ShortOperand* found) {
  *found = {table_of(machine, operand), operand.message, {}};
  return found->table.first || resolve(machine, operand, 0, len_bytes, &found->message);
}

OXCCL_NOINLINE inline bool run_short_walk(Machine& machine, const HostReducer& reducer,
                                          const Instruction& instruction, const Operand* operands,
                                          uint64_t round_start, uint64_t len_bytes) {
  const Launch& launch = machine.launch;
  const bool folds = instruction.sources == 2;
  ShortOperand first, second, destination;
  if (!find_operand(machine, operands[0], len_bytes, &first)) return false;
  if (folds && !find_operand(machine, operands[1], len_bytes, &second)) return false;
  if (!find_operand(machine, operands[1 + folds], len_bytes, &destination)) return false;
  const Operand* memory = operands;
  while (!is_memory(*memory)) ++memory;
  const uint64_t position = memory->offset_bytes + round_start, end = position + len_bytes;
  for (uint32_t bucket = find_segment(launch, position); bucket < launch.segments_count; ++bucket) {
    const Segment& segment = launch.segments[bucket];
    if (segment.start >= end) break;
    const uint64_t bucket_end = segment.start + segment.len_bytes;
    const uint64_t from = segment.start < position ? position : segment.start;
    const uint64_t to = bucket_end < end ? bucket_end : end;
    if (from >= to) continue;
    const auto place = [&](const ShortOperand& operand) {
      return operand.place(segment, bucket, from - segment.start, from - position);
    };
    move_simple(reducer, place(destination), place(first), folds ? place(second) : nullptr, to - from);
  }
  write_header(machine, operands[1 + folds], destination.message, len_bytes);
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
