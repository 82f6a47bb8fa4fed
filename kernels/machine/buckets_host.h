// Buckets on the host whose move is from memory to memory: what a group of small buckets spends its time on.
//
//     for each bucket of the tile, with those that lie behind it in every operand's memory:
//       point the views to its places, and move it
//
// Why it is apart from the general walk (segments.h), which does the same: that one goes from piece to piece in steps on which many threads
// agree, minds messages and holes, and takes 40 ns a piece. Here no peer is waited for, a hole is in no memory, and what most
// pieces are, one source or two, takes 10.
#pragma once
#include "segments.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Whether the move is one of buckets in memory alone.
OXCCL_INLINE bool is_memory_walk(const Machine& machine, const Workspace& workspace) {
  if (OXCCL_LIKELY(machine.launch.segments == nullptr)) return false;
  for (uint32_t o = 0; o < workspace.move.sources + workspace.move.destinations; ++o)
    if (!is_memory(workspace.operands[o])) return false;
  return true;
}

// Whether pieces of the move can go by `move_piece`.
OXCCL_INLINE bool has_simple_pieces(const Move& move) {
  if (move.sources > 2 || move.destinations == 0 || move.scaling.premultiply || move.scaling.divide) return false;
  for (uint32_t d = 0; d < move.destinations; ++d)
    if (move.destination(d).is_stream()) return false;
  return true;
}

OXCCL_INLINE void move_piece(const Move& move, const HostReducer& reducer, uint64_t len_bytes) {
  uint8_t* first = move.destination(0).data;
  const uint8_t* source = move.source(0).data;
  if (move.sources == 2) reducer.fold_two(first, source, move.source(1).data, len_bytes / reducer.element_bytes);
  else if (first != source) memcpy(first, source, len_bytes);
  for (uint32_t d = 1; d < move.destinations; ++d) memcpy(move.destination(d).data, first, len_bytes);
}

// Walks through the tile from this position of the virtual buffer on.
OXCCL_NOINLINE inline bool walk_memory(Machine& machine, const HostReducer& reducer,
                                       uint64_t position, Workspace& workspace) {
  const Launch& launch = machine.launch;
  Move& move = workspace.move;
  const uint64_t tile_bytes = move.len_bytes, end = position + tile_bytes;
  // What is copied to a second place is still in the first-level cache then.
  const uint64_t simple_bytes = !has_simple_pieces(move) ? 0 : move.destinations == 1 ? tile_bytes : BLOCK_BYTES;
  find_buckets(machine, workspace);
  uint32_t next = find_segment(launch, position);
  while (next < launch.segments_count && launch.segments[next].start < end) {
    const uint32_t bucket = next, last = last_joined(machine, workspace, bucket);
    next = last + 1;
    const Segment& segment = launch.segments[bucket];
    const uint64_t last_end = launch.segments[last].start + launch.segments[last].len_bytes;
    const uint64_t from = segment.start < position ? position : segment.start;
    const uint64_t to = last_end < end ? last_end : end;
    if (from >= to) continue;
    for (uint32_t o = 0; o < move.sources + move.destinations; ++o)
      workspace.views[o].data = bucket_of(workspace.buckets[o], bucket) +
                                workspace.operands[o].message * segment.len_bytes + (from - segment.start);
    move.len_bytes = to - from;
    if (move.len_bytes <= simple_bytes) move_piece(move, reducer, move.len_bytes);
    else if (!reduce_copy(machine, move, reducer)) return false;
  }
  move.len_bytes = tile_bytes;
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
