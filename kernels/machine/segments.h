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

// A part of a tile that lies in one bucket.
struct Piece {
  uint32_t segment;
  uint64_t in_segment, in_tile, len_bytes;
};

// The view of an operand's piece. `whole` is the message's, where the operand is one.
OXCCL_INLINE View piece_view(const Machine& machine, const Operand& operand, const View& whole,
                             const Piece& piece) {
  View view = whole;
  if (is_memory(operand)) {
    const uint64_t len_bytes = machine.launch.segments[piece.segment].len_bytes;
    view.data = bucket_of(machine, operand, piece.segment) + operand.message * len_bytes +
                piece.in_segment;
  } else {
    view.data += whole.is_ll() ? piece.in_tile * 2 : piece.in_tile;
  }
  return view;
}

// Sends zeros in place of `from` to `to`, which no bucket has.
OXCCL_INLINE void send_hole(const Move& move, uint64_t from, uint64_t to) {
  const uint64_t first = (from + LINE_DATA_BYTES - 1) / LINE_DATA_BYTES * LINE_DATA_BYTES;
#pragma unroll 1
  for (uint32_t d = 0; d < move.destinations; ++d) {
    const View& view = move.destination(d);
    if (!view.is_ll()) continue;
#pragma unroll 1
    for (uint64_t at = first + lane() * LINE_DATA_BYTES; at < to; at += lanes() * LINE_DATA_BYTES)
      store_line(view.data + at * 2, 0, view.epoch);
  }
}

// Moves a tile that begins at `position` of the virtual buffer. `tile` has the views of messages.
template <class Reducer>
OXCCL_INLINE bool move_pieces(Machine& machine, const Reducer& reducer, const Operand* operands,
                              const Move& tile, uint64_t position, View* pieces) {
  const Launch& launch = machine.launch;
  const uint64_t end = position + tile.len_bytes;
  const uint32_t count = tile.sources + tile.destinations;
  uint64_t at = position;
#pragma unroll 1
  for (uint32_t s = find_segment(launch, position); at < end; ++s) {
    const uint64_t start = launch.segments[s].start;
    const uint64_t bucket_end = start + launch.segments[s].len_bytes;
    const uint64_t piece_end = bucket_end < end ? bucket_end : end;
    if (at < piece_end) {
      const Piece piece = {s, at - start, at - position, piece_end - at};
#pragma unroll 1
      for (uint32_t o = lane(); o < count; o += lanes())
        pieces[o] = piece_view(machine, operands[o], tile.views[o], piece);
      barrier();
      Move move = tile;
      move.views = pieces;
      move.len_bytes = piece.len_bytes;
      reduce_copy(machine, move, reducer);
      if (!agreed(machine)) return false;
      at = piece_end;
    }
    const bool last = s + 1 == launch.segments_count;
    const uint64_t next = last ? end : launch.segments[s + 1].start;
    const uint64_t hole_end = next < end ? next : end;
    if (at < hole_end) send_hole(tile, at - position, hole_end - position);
    at = hole_end > at ? hole_end : at;
    if (last) break;
  }
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
