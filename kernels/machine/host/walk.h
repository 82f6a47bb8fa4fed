// The walk through buckets on a host: where operands' buckets are is found once a tile, and buckets
// that lie one behind the other are one piece.
#pragma once
#include "resolve.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Where an operand's buckets are told; nowhere if it is no memory.
OXCCL_INLINE BucketTable table_of(const Machine& machine, const Operand& operand) {
  const Segment* own = machine.launch.segments;
  const uint64_t *first = nullptr, *followers = &own->followers;
  const Window* window = nullptr;
  if (operand.space == SPACE_INPUT) {
    first = reinterpret_cast<const uint64_t*>(&own->input);
  } else if (operand.space == SPACE_OUTPUT) {
    first = reinterpret_cast<const uint64_t*>(&own->output);
  } else if (is_memory(operand)) {
    window = &window_of(machine, operand);
    const uint8_t* table = behind(*window, window->tokens.input);
    const SegmentTokens* tokens = reinterpret_cast<const SegmentTokens*>(table);
    first = operand.space == SPACE_WINDOW_INPUT ? &tokens->input : &tokens->output;
    followers = &tokens->followers;
  }
  const uint64_t stride_bytes = window ? sizeof(SegmentTokens) : sizeof(Segment);
  // Addresses of the peer's process count from nothing.
  const bool is_private = operand.flags & OPERAND_CMA;
  return {first, followers, stride_bytes, is_private ? nullptr : window};
}

// All operands' tables, found once a tile: so that the walk costs little beside small buckets.
OXCCL_INLINE void find_buckets(const Machine& machine, Workspace& workspace) {
  for (uint32_t o = 0; o < workspace.move.sources + workspace.move.destinations; ++o)
    workspace.buckets.of[o] = table_of(machine, workspace.operands[o]);
}

// How many buckets continue this one in the operand's memory.
OXCCL_INLINE uint64_t followers_of(const BucketTable& table, uint32_t segment) {
  return table.followers[segment * table.stride_bytes / sizeof(uint64_t)];
}

OXCCL_INLINE uint8_t* bucket_of(const BucketTable& table, uint32_t segment) {
  const uint64_t found = table.first[segment * table.stride_bytes / sizeof(uint64_t)];
  return table.window ? behind(*table.window, found) : reinterpret_cast<uint8_t*>(found);
}

OXCCL_INLINE bool lies_in_buckets(const Workspace& workspace, uint32_t operand) {
  return workspace.buckets.of[operand].first != nullptr;
}

OXCCL_INLINE uint8_t* bucket_of(const Machine&, const Workspace& workspace, uint32_t operand, uint32_t segment) {
  return bucket_of(workspace.buckets.of[operand], segment);
}

// The last of the buckets that follow this one without a hole, in every operand's memory as in the
// virtual buffer: one loop moves them all. A buffer of several parts is longer than one, so that no
// other follows it.
OXCCL_INLINE uint32_t last_joined(const Machine& machine, const Workspace& workspace, uint32_t segment) {
  const uint32_t count = workspace.move.sources + workspace.move.destinations;
  uint64_t followers = machine.launch.segments_count - 1 - segment;
  for (uint32_t o = 0; followers != 0 && o < count; ++o) {
    const BucketTable& table = workspace.buckets.of[o];
    if (!table.first) continue;
    const uint64_t of_operand = followers_of(table, segment);
    if (of_operand < followers) followers = of_operand;
  }
  return segment + uint32_t(followers);
}

// Adds these buckets to the piece at hand.
OXCCL_INLINE void join_buckets(const Machine& machine, Workspace& workspace) {
  Walk& walk = workspace.walk;
  walk.segment = last_joined(machine, workspace, walk.segment);
  const Segment& last = machine.launch.segments[walk.segment];
  const uint64_t to = last.start + last.len_bytes;
  walk.to = to < walk.end ? to : walk.end;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
