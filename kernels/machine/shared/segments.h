// Buckets: a group's buffers seen as one virtual buffer.
//
//     virtual buffer:   | bucket 0 |..| bucket 1 |.| bucket 2 |    each from a multiple of 64 bytes on
//     memory operand:   (rank's part p, position v)  ->  bucket s that v lies in:
//                       base of s  +  p * length of s  +  v - start of s
//
// A tile of the virtual buffer is moved bucket by bucket, in pieces: one thread steps from piece to
// piece, then all point the views there and move it. On the host, buckets that lie one behind the
// other are one piece. What lies between two buckets, a hole, is in no memory. In a plain message
// it stays what it was; in an LL message it is sent as zeros, so that whoever hands a message on
// without looking into it finds all its lines. Since buckets begin at cache lines, a piece begins
// at a line of every message, and no word belongs to two buckets.
#pragma once
#include "walk.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// An operand that says which part of the virtual buffer is moved; all that are memory say the same.
// Null where there is none.
OXCCL_INLINE const Operand* memory_of(const Workspace& workspace) {
#pragma unroll 1
  for (uint32_t o = 0; o < workspace.move.sources + workspace.move.destinations; ++o)
    if (is_memory(workspace.operands[o])) return &workspace.operands[o];
  return nullptr;
}

// Whether the move at hand is one of buckets.
OXCCL_INLINE bool has_buckets(const Machine& machine, const Workspace& workspace) {
  return machine.launch.segments != nullptr && memory_of(workspace) != nullptr;
}

// The last bucket that begins at or before the position.
OXCCL_INLINE uint32_t find_segment(const Launch& launch, uint64_t position) {
  uint32_t low = 0, high = launch.segments_count;
#pragma unroll 1
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (launch.segments[middle].start <= position) low = middle;
    else high = middle;
  }
  return low;
}

// In front of the first piece of the tile.
OXCCL_INLINE void start_walk(const Machine& machine, uint64_t round_start, Workspace& workspace) {
  if (!leader()) return;
  const uint64_t position = memory_of(workspace)->offset_bytes + round_start;
  const uint64_t end = position + workspace.move.len_bytes;
  workspace.walk = {position, end, position, position, 0, find_segment(machine.launch, position), false};
  find_buckets(machine, workspace);
}

// To the next piece, as one thread. Behind the last, and where the block has been stopped, it is
// empty.
OXCCL_INLINE void step_walk(const Machine& machine, Walk& walk) {
  const Launch& launch = machine.launch;
  walk.at = walk.to;
  if (OXCCL_UNLIKELY(machine.fault.outcome != OUTCOME_DONE)) walk.at = walk.to = walk.end;
#pragma unroll 1
  for (; walk.at < walk.end; ++walk.segment) {
    const Segment& segment = launch.segments[walk.segment];
    const uint64_t bucket_end = segment.start + segment.len_bytes;
    const bool last = walk.segment + 1 == launch.segments_count;
    const uint64_t next = last ? walk.end : launch.segments[walk.segment + 1].start;
    walk.hole = walk.at >= bucket_end;
    const uint64_t to = walk.hole ? next : bucket_end;
    walk.to = to < walk.end ? to : walk.end;
    if (walk.at < walk.to) return;
  }
}

// Points this thread's share of the views to the piece at hand.
OXCCL_INLINE void point_views(const Machine& machine, Workspace& workspace) {
  const Walk& walk = workspace.walk;
  const Segment& segment = machine.launch.segments[walk.segment];
  const uint32_t count = workspace.move.sources + workspace.move.destinations;
  const uint64_t forward = walk.at - walk.start - walk.shift;
#pragma unroll 1
  for (uint32_t o = lane(); o < count; o += lanes()) {
    View& view = workspace.views[o];
    if (lies_in_buckets(workspace, o)) {
      view.data = bucket_of(machine, workspace, o, walk.segment) +
                  workspace.operands[o].message * segment.len_bytes + (walk.at - segment.start);
    } else {
      view.data += view.is_ll() ? forward * 2 : forward;
    }
  }
}

// Sends zeros over the LL lane for a piece that no bucket has.
OXCCL_INLINE void send_hole(const Workspace& workspace) {
  const Move& move = workspace.move;
  const Walk& walk = workspace.walk;
  const uint64_t first = walk.at - walk.start + LINE_DATA_BYTES - 1;
  const uint64_t last = walk.to - walk.start;
#pragma unroll 1
  for (uint32_t d = 0; d < move.destinations; ++d) {
    const View& view = move.destination(d);
    if (!view.is_ll()) continue;
    uint64_t at = first / LINE_DATA_BYTES * LINE_DATA_BYTES + lane() * LINE_DATA_BYTES;
#pragma unroll 1
    for (; at < last; at += lanes() * LINE_DATA_BYTES)
      store_line(view.data + (at - walk.shift) * 2, 0, view.epoch);
  }
}

// Views of messages back to where they were.
OXCCL_INLINE void end_walk(Workspace& workspace) {
  const Walk& walk = workspace.walk;
  const uint32_t count = workspace.move.sources + workspace.move.destinations;
#pragma unroll 1
  for (uint32_t o = lane(); o < count; o += lanes()) {
    View& view = workspace.views[o];
    if (!is_memory(workspace.operands[o])) view.data -= view.is_ll() ? walk.shift * 2 : walk.shift;
  }
  if (leader()) workspace.move.len_bytes = walk.end - walk.start;
  barrier();
}

// Makes the workspace's move the next piece of its tile, or a hole. False: there is none left, and
// the move is the tile.
OXCCL_INLINE bool next_piece(const Machine& machine, Workspace& workspace) {
  Walk& walk = workspace.walk;
  barrier();
  if (leader()) step_walk(machine, walk);
  barrier();
  if (walk.at == walk.end) {
    end_walk(workspace);
    return false;
  }
  if (walk.hole) return true;
  point_views(machine, workspace);
  join_buckets(machine, workspace);
  barrier();
  if (leader()) {
    walk.shift = walk.at - walk.start;
    workspace.move.len_bytes = walk.to - walk.at;
  }
  barrier();
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
