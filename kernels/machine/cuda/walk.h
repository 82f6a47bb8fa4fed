// The walk through buckets on a GPU: as many pieces at a time as there is room for, each of one
// bucket.
//
//     find the bucket that the tile begins in: a thread looks at each;  barrier
//     for each batch of pieces:
//       a thread for each piece and operand looks up where its bucket is;  barrier
//       each warp goes from piece to piece, past those that are others';   barrier
//
// Why it is fast: what takes the time of small pieces is the way to where buckets are written down,
// and the way to their data. The first is gone once a batch, by all at once; the second by as many
// warps side by side as there are small pieces, since none waits for another, and pieces begin with
// the warp that would have had them, were the tile one buffer.
#pragma once
#include "bulk.h"
#include "segments.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE uint8_t* bucket_of(const Machine& machine, const Operand& operand, uint32_t segment) {
  const Segment& own = machine.launch.segments[segment];
  if (operand.space == SPACE_INPUT) return const_cast<uint8_t*>(own.input);
  if (operand.space == SPACE_OUTPUT) return own.output;
  const Window& window = window_of(machine, operand);
  const SegmentTokens& tokens =
      reinterpret_cast<const SegmentTokens*>(behind(window, window.tokens.input))[segment];
  return behind(window, operand.space == SPACE_WINDOW_INPUT ? tokens.input : tokens.output);
}

// A ReduceCopy's way through its tile. All threads of the block take it; where none is of buckets,
// it is one piece. The tiles of several copies are one each.
struct Walk {
  Machine& machine;
  Workspace& workspace;
  const Together together;
  bool in_buckets, begun;
  bool more;           // batches follow
  uint32_t at, last;   // of the batch: the piece behind the one at hand, and the last one
  uint32_t segment;    // the first of the batch that follows
  uint64_t position;   // of the tile in the virtual buffer
  uint64_t shift;      // views of messages point so far into the tile

  OXCCL_INLINE Walk(Machine& machine, const Together& together, uint64_t round_start, Workspace& workspace)
      : machine(machine),
        workspace(workspace),
        together(together),
        in_buckets(false),
        begun(false),
        more(false),
        at(0),
        last(0),
        segment(0),
        position(0),
        shift(0) {
    const Operand* memory = machine.launch.segments == nullptr ? nullptr : memory_of(workspace);
    if (memory == nullptr) return;
    in_buckets = true;
    more = workspace.move().len_bytes != 0;
    position = memory->offset_bytes + round_start;
  }

  // The piece at hand, by its place among the workspace's moves.
  OXCCL_INLINE uint32_t piece() const { return at - 1; }

  OXCCL_INLINE bool next() {
    if (!in_buckets) {
      if (at == together.copies) return false;
      machine.step = together.first[at++].step;
      return true;
    }
#pragma unroll 1
    while (true) {
#pragma unroll 1
      while (begun && at <= last)
        if (has_share(workspace.moves[at++])) return true;
      // The others may still be at this batch.
      if ((begun && !agreed(machine)) || !more) break;
      if (!begun) find();
      begun = true;
      look_up();
      barrier();
      // Before anybody looks up the batch that follows.
      at = 1;
      last = workspace.buckets.count;
      more = workspace.buckets.more;
      segment += last;
    }
    put_back();
    return false;
  }

 private:
  OXCCL_INLINE uint32_t operands() const { return workspace.move().sources + workspace.move().destinations; }
  // Where views of pieces do not fit behind the tile's, a piece at a time takes the tile's.
  OXCCL_INLINE bool takes_place() const { return operands() > MAX_OPERANDS / 2; }
  OXCCL_INLINE uint32_t most_pieces() const {
    if (takes_place()) return 1;
    const uint32_t room = MAX_OPERANDS / operands() - 1;
    return room < MOST_PIECES ? room : MOST_PIECES;
  }

  // Whether any of this warp's threads has a word of it.
  OXCCL_INLINE static bool has_share(const Move& move) {
    return move.len_bytes != 0 && lane_of(move) / WARP_THREADS * WARP_THREADS < move.len_bytes / 8 + 2;
  }

  // The last bucket that begins where the tile does, or before.
  OXCCL_INLINE void find() {
    const Launch& launch = machine.launch;
#pragma unroll 1
    for (uint32_t s = lane(); s < launch.segments_count; s += lanes()) {
      if (launch.segments[s].start > position) continue;
      if (s + 1 == launch.segments_count || launch.segments[s + 1].start > position) workspace.buckets.first = s;
    }
    barrier();
    segment = workspace.buckets.first;
  }

  // The next batch of pieces: an operand of a piece for each thread. Of a hole behind a piece the
  // lines of LL messages are sent.
  OXCCL_INLINE void look_up() {
    const Launch& launch = machine.launch;
    const uint32_t operands = this->operands(), most = most_pieces(), number = lane() / operands;
    const uint32_t s = segment + number, o = lane() % operands;
    const uint64_t end = position + workspace.move().len_bytes;
    if (number >= most || s >= launch.segments_count) return;
    const Segment& bucket = launch.segments[s];
    if (bucket.start >= end) return;
    const bool is_last = s + 1 == launch.segments_count;
    const uint64_t following = is_last ? end : launch.segments[s + 1].start;
    const uint64_t from = bucket.start < position ? position : bucket.start, to = bucket.start + bucket.len_bytes;
    const uint64_t piece_end = to < end ? to : end, next = following < end ? following : end;
    const uint64_t forward = from - position;
    const uint32_t place = takes_place() ? 0 : operands;
    const Operand& operand = workspace.operands[o];
    View view = workspace.views[o];
    if (view.is_ll() && o >= workspace.move().sources) {
      const uint64_t begin = to < position ? 0 : to - position;
      uint64_t line = (begin + LINE_DATA_BYTES - 1) / LINE_DATA_BYTES * LINE_DATA_BYTES;
#pragma unroll 1
      for (; line < next - position; line += LINE_DATA_BYTES) store_line(view.data + (line - shift) * 2, 0, view.epoch);
    }
    if (is_memory(operand)) view.data = bucket_of(machine, operand, s) + operand.message * bucket.len_bytes + (from - bucket.start);
    else view.data += (forward - shift) * (view.is_ll() ? 2 : 1);
    workspace.views[place + lane()] = view;
    if (takes_place()) shift = forward;
    if (o != 0) return;
    Move& move = workspace.moves[1 + number];
    move = workspace.move();
    move.views = Views(workspace.views) + (place + number * operands);
    move.len_bytes = from < piece_end ? piece_end - from : 0;
    // Trees lie where threads are counted from the first.
    move.first_lane = move.tree ? 0 : uint32_t(forward / PACK_BYTES) % BLOCK_THREADS / WARP_THREADS * WARP_THREADS;
    if (number + 1 < most && next < end) return;
    workspace.buckets.count = number + 1;
    workspace.buckets.more = next < end;
  }

  // Of what has taken the tile's views, those of messages: other threads write their headers.
  OXCCL_INLINE void put_back() {
    if (!takes_place()) return;
    if (lane() < operands() && !is_memory(workspace.operands[lane()])) {
      View& view = workspace.views[lane()];
      view.data -= shift * (view.is_ll() ? 2 : 1);
    }
    barrier();
  }
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
