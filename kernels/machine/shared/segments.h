// Buckets: a group's buffers seen as one virtual buffer.
//
//     virtual buffer:   | bucket 0 |..| bucket 1 |.| bucket 2 |    each from a multiple of 64 bytes on
//     memory operand:   (rank's part p, position v)  ->  bucket s that v lies in:
//                       base of s  +  p * length of s  +  v - start of s
//
// A tile of the virtual buffer is moved bucket by bucket, in pieces: one thread steps from piece to piece, then all
// point the views there and move it. On the host, buckets that lie one behind the other are one piece. What lies
// between two buckets, a hole, is in no memory. In a plain message it stays what it was; in an LL message it is sent as
// zeros, so that whoever hands a message on without looking into it finds all its lines. Since buckets begin at cache
// lines, a piece begins at a line of every message, and no word belongs to two buckets.
#pragma once
#include "resolve.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE bool is_memory(const Operand& operand) {
  return operand.space == SPACE_INPUT || operand.space == SPACE_OUTPUT ||
         operand.space == SPACE_WINDOW_INPUT || operand.space == SPACE_WINDOW_OUTPUT;
}

// An operand that says which part of the virtual buffer is moved; all that are memory say the same. Null where there is
// none.
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

#ifndef __CUDACC__
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
  return {first, followers, window ? sizeof(SegmentTokens) : sizeof(Segment), window};
}

// All operands' tables, found once a tile: so that the walk costs little beside small buckets.
OXCCL_INLINE void find_buckets(const Machine& machine, Workspace& workspace) {
  for (uint32_t o = 0; o < workspace.move.sources + workspace.move.destinations; ++o)
    workspace.buckets[o] = table_of(machine, workspace.operands[o]);
}

// How many buckets continue this one in the operand's memory.
OXCCL_INLINE uint64_t followers_of(const BucketTable& table, uint32_t segment) {
  return table.followers[segment * table.stride_bytes / sizeof(uint64_t)];
}

OXCCL_INLINE uint8_t* bucket_of(const BucketTable& table, uint32_t segment) {
  const uint64_t found = table.first[segment * table.stride_bytes / sizeof(uint64_t)];
  return table.window ? behind(*table.window, found) : reinterpret_cast<uint8_t*>(found);
}
#endif

// In front of the first piece of the tile.
OXCCL_INLINE void start_walk(const Machine& machine, uint64_t round_start, Workspace& workspace) {
  if (!leader()) return;
  const uint64_t position = memory_of(workspace)->offset_bytes + round_start;
  const uint64_t end = position + workspace.move.len_bytes;
  workspace.walk = {position, end, position, position, 0, find_segment(machine.launch, position), false};
#ifndef __CUDACC__
  find_buckets(machine, workspace);
#endif
}

// To the next piece, as one thread. Behind the last, and where the block has been stopped, it is empty.
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

#ifdef __CUDACC__
OXCCL_INLINE uint8_t* bucket_of(const Machine& machine, const Operand& operand, uint32_t segment) {
  const Segment& own = machine.launch.segments[segment];
  if (operand.space == SPACE_INPUT) return const_cast<uint8_t*>(own.input);
  if (operand.space == SPACE_OUTPUT) return own.output;
  const Window& window = window_of(machine, operand);
  const SegmentTokens& tokens =
      reinterpret_cast<const SegmentTokens*>(behind(window, window.tokens.input))[segment];
  return behind(window, operand.space == SPACE_WINDOW_INPUT ? tokens.input : tokens.output);
}
#endif

// Points this thread's share of the views to the piece at hand.
OXCCL_INLINE void point_views(const Machine& machine, Workspace& workspace) {
  const Walk& walk = workspace.walk;
  const Segment& segment = machine.launch.segments[walk.segment];
  const uint32_t count = workspace.move.sources + workspace.move.destinations;
  const uint64_t forward = walk.at - walk.start - walk.shift;
#pragma unroll 1
  for (uint32_t o = lane(); o < count; o += lanes()) {
    View& view = workspace.views[o];
    const Operand& operand = workspace.operands[o];
#ifdef __CUDACC__
    if (is_memory(operand)) {
      view.data = bucket_of(machine, operand, walk.segment) + operand.message * segment.len_bytes +
                  (walk.at - segment.start);
#else
    const BucketTable& table = workspace.buckets[o];
    if (table.first) {
      view.data = bucket_of(table, walk.segment) + operand.message * segment.len_bytes +
                  (walk.at - segment.start);
#endif
    } else {
      view.data += view.is_ll() ? forward * 2 : forward;
    }
  }
}

#ifndef __CUDACC__
// The last of the buckets that follow this one without a hole, in every operand's memory as in the virtual buffer: one loop
// moves them all. A buffer of several parts is longer than one, so that no other follows it.
OXCCL_INLINE uint32_t last_joined(const Machine& machine, const Workspace& workspace, uint32_t segment) {
  const uint32_t count = workspace.move.sources + workspace.move.destinations;
  uint64_t followers = machine.launch.segments_count - 1 - segment;
  for (uint32_t o = 0; followers != 0 && o < count; ++o) {
    const BucketTable& table = workspace.buckets[o];
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
#endif

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

// Makes the workspace's move the next piece of its tile, or a hole. False: there is none left, and the move is the tile.
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
#ifndef __CUDACC__
  join_buckets(machine, workspace);
#endif
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
