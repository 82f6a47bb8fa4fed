// Buckets: a group's buffers seen as one virtual buffer.
//
//     virtual buffer:   | bucket 0 |..| bucket 1 |.| bucket 2 |    each from a multiple of 64 bytes on
//     memory operand:   (rank's part p, position v)  ->  bucket s that v lies in:
//                       base of s  +  p * length of s  +  v - start of s
//
// A tile of the virtual buffer is moved bucket by bucket, in pieces. What lies between two buckets is
// in no memory. In a plain message it stays what it was; in an LL message it is sent as zeros, so that
// whoever hands a message on without looking into it finds all its lines. Since buckets begin at cache
// lines, a piece begins at a line of every message, and no word belongs to two buckets.
#pragma once
#include "resolve.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE bool is_memory(const Operand& operand) {
  return operand.space == SPACE_INPUT || operand.space == SPACE_OUTPUT ||
         operand.space == SPACE_WINDOW_INPUT || operand.space == SPACE_WINDOW_OUTPUT;
}

// The last bucket that begins at or before the position.
OXCCL_INLINE uint32_t find_segment(const Launch& launch, uint64_t position) {
  uint32_t low = 0, high = launch.segments_count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (launch.segments[middle].start <= position) low = middle;
    else high = middle;
  }
  return low;
}

OXCCL_INLINE uint8_t* bucket_of(const Machine& machine, const Operand& operand, uint32_t segment) {
  const Segment& own = machine.launch.segments[segment];
  if (operand.space == SPACE_INPUT) return const_cast<uint8_t*>(own.input);
  if (operand.space == SPACE_OUTPUT) return own.output;
  const Window& window = window_of(machine, operand);
  const SegmentTokens& tokens =
      reinterpret_cast<const SegmentTokens*>(window.base + window.tokens.input)[segment];
  return window.base + (operand.space == SPACE_WINDOW_INPUT ? tokens.input : tokens.output);
}

// The walk through a tile, bucket by bucket. The tile begins at `start` of the virtual buffer.
struct Walk {
  uint64_t start, end, at;
  uint64_t shift;  // views of messages point so far into the tile
  uint32_t segment;

  OXCCL_INLINE Walk(const Launch& launch, uint64_t position, uint64_t len_bytes)
      : start(position), end(position + len_bytes), at(position), shift(0),
        segment(find_segment(launch, position)) {}
};

// Points this thread's share of the views to the piece at `walk.at`.
OXCCL_INLINE void point_views(const Machine& machine, const Operand* operands, View* views,
                              uint32_t count, const Walk& walk) {
  const Segment& segment = machine.launch.segments[walk.segment];
  const uint64_t forward = walk.at - walk.start - walk.shift;
#pragma unroll 1
  for (uint32_t o = lane(); o < count; o += lanes()) {
    View& view = views[o];
    if (is_memory(operands[o])) {
      view.data = bucket_of(machine, operands[o], walk.segment) +
                  operands[o].message * segment.len_bytes + (walk.at - segment.start);
    } else {
      view.data += view.is_ll() ? forward * 2 : forward;
    }
  }
}

// Sends zeros over the LL lane from `walk.at` to `to`, which no bucket has.
OXCCL_INLINE void send_hole(const Move& move, const Walk& walk, uint64_t to) {
  const uint64_t first = walk.at - walk.start + LINE_DATA_BYTES - 1;
  const uint64_t last = to - walk.start;
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

// Makes `move` the next piece of its tile. False: there is none left, and views of messages are where they were.
OXCCL_NOINLINE inline bool next_piece(const Machine& machine, const Operand* operands, View* views,
                                      Walk& walk, Move& move) {
  const Launch& launch = machine.launch;
  const uint32_t count = move.sources + move.destinations;
#pragma unroll 1
  while (walk.at < walk.end) {
    const Segment& segment = launch.segments[walk.segment];
    const uint64_t bucket_end = segment.start + segment.len_bytes;
    const uint64_t piece_end = bucket_end < walk.end ? bucket_end : walk.end;
    if (walk.at < piece_end) {
      point_views(machine, operands, views, count, walk);
      barrier();
      walk.shift = walk.at - walk.start;
      move.len_bytes = piece_end - walk.at;
      walk.at = piece_end;
      return true;
    }
    const bool last = walk.segment + 1 == launch.segments_count;
    const uint64_t next = last ? walk.end : launch.segments[walk.segment + 1].start;
    const uint64_t hole_end = next < walk.end ? next : walk.end;
    if (walk.at < hole_end) {
      send_hole(move, walk, hole_end);
      walk.at = hole_end;
    }
    if (!last) ++walk.segment;
  }
  barrier();
#pragma unroll 1
  for (uint32_t o = lane(); o < count; o += lanes())
    if (!is_memory(operands[o])) views[o].data -= views[o].is_ll() ? walk.shift * 2 : walk.shift;
  move.len_bytes = walk.end - walk.start;
  barrier();
  return false;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
