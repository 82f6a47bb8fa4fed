// The walk through buckets on a host: where operands' buckets are is found once a tile, and buckets
// that lie one behind the other are one piece.
#pragma once
#include "segments.h"

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
  for (uint32_t o = 0; o < workspace.move().sources + workspace.move().destinations; ++o)
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
  const uint32_t count = workspace.move().sources + workspace.move().destinations;
  uint64_t followers = machine.launch.segments_count - 1 - segment;
  for (uint32_t o = 0; followers != 0 && o < count; ++o) {
    const BucketTable& table = workspace.buckets.of[o];
    if (!table.first) continue;
    const uint64_t of_operand = followers_of(table, segment);
    if (of_operand < followers) followers = of_operand;
  }
  return segment + uint32_t(followers);
}

// A ReduceCopy's way through its tile. Where none of its operands is of buckets, it is one piece.
struct Walk {
  Machine& machine;
  Workspace& workspace;
  bool in_buckets, begun;
  uint64_t start, end;  // the tile
  uint64_t at, to;      // the piece at hand
  uint64_t shift;       // views of messages point so far into the tile
  uint32_t segment;     // the piece's last bucket, or the one in front of it
  bool hole;            // the piece is of no bucket

  OXCCL_INLINE Walk(Machine& machine, const Together&, uint64_t round_start, Workspace& workspace)
      : machine(machine), workspace(workspace), in_buckets(has_buckets(machine, workspace)), begun(false) {
    if (OXCCL_LIKELY(!in_buckets)) return;
    start = at = to = memory_of(workspace)->offset_bytes + round_start;
    end = start + workspace.move().len_bytes;
    shift = 0;
    segment = find_segment(machine.launch, start);
    hole = false;
    find_buckets(machine, workspace);
  }

  // The piece at hand, by its place among the workspace's moves.
  OXCCL_INLINE uint32_t piece() const { return 0; }

  OXCCL_INLINE bool next() {
    if (OXCCL_LIKELY(!in_buckets)) {
      const bool first = !begun;
      begun = true;
      return first;
    }
    for (step(); at < end; step()) {
      if (!hole) {
        point_views();
        join();
        return true;
      }
      send_hole();
    }
    put_back();
    return false;
  }

 private:
  OXCCL_INLINE uint32_t operands() const { return workspace.move().sources + workspace.move().destinations; }

  // To the next piece. Behind the last, and where the block has been stopped, it is empty.
  OXCCL_INLINE void step() {
    const Launch& launch = machine.launch;
    at = to;
    if (OXCCL_UNLIKELY(machine.fault.outcome != OUTCOME_DONE)) at = to = end;
    for (; at < end; ++segment) {
      const Segment& bucket = launch.segments[segment];
      const uint64_t bucket_end = bucket.start + bucket.len_bytes;
      const bool last = segment + 1 == launch.segments_count;
      const uint64_t following = last ? end : launch.segments[segment + 1].start;
      hole = at >= bucket_end;
      const uint64_t until = hole ? following : bucket_end;
      to = until < end ? until : end;
      if (at < to) return;
    }
  }

  OXCCL_INLINE void point_views() {
    const Segment& bucket = machine.launch.segments[segment];
    const uint64_t forward = at - start - shift;
    for (uint32_t o = 0; o < operands(); ++o) {
      View& view = workspace.views[o];
      if (lies_in_buckets(workspace, o)) {
        view.data = bucket_of(machine, workspace, o, segment) + workspace.operands[o].message * bucket.len_bytes +
                    (at - bucket.start);
      } else {
        view.data += view.is_ll() ? forward * 2 : forward;
      }
    }
    shift = at - start;
  }

  // Adds the buckets that follow to the piece at hand.
  OXCCL_INLINE void join() {
    segment = last_joined(machine, workspace, segment);
    const Segment& last = machine.launch.segments[segment];
    const uint64_t until = last.start + last.len_bytes;
    to = until < end ? until : end;
    workspace.move().len_bytes = to - at;
  }

  // Sends zeros over the LL lane for a piece that no bucket has.
  OXCCL_INLINE void send_hole() {
    const Move& move = workspace.move();
    const uint64_t first = (at - start + LINE_DATA_BYTES - 1) / LINE_DATA_BYTES * LINE_DATA_BYTES;
    for (uint32_t d = 0; d < move.destinations; ++d) {
      const View& view = move.destination(d);
      if (!view.is_ll()) continue;
      for (uint64_t line = first; line < to - start; line += LINE_DATA_BYTES)
        store_line(view.data + (line - shift) * 2, 0, view.epoch);
    }
  }

  // Views of messages back to where they were.
  OXCCL_INLINE void put_back() {
    for (uint32_t o = 0; o < operands(); ++o) {
      View& view = workspace.views[o];
      if (!is_memory(workspace.operands[o])) view.data -= view.is_ll() ? shift * 2 : shift;
    }
    workspace.move().len_bytes = end - start;
  }
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
