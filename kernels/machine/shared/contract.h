// What the machine needs of a target, with one implementation per target under the same names.
//
//     OXCCL_INLINE, OXCCL_NOINLINE, OXCCL_COLD  what stands in front of a function
//     OXCCL_APART                               the same of one that is out of line everywhere, and takes values
//     OXCCL_LIKELY, OXCCL_UNLIKELY              around a condition
//     OXCCL_TRACED_STEP                         a step is traced while the scope lasts, if steps are
//     lane(), lanes(), leader(), barrier()      the threads of a block; on a host ONE_THREAD
//     barrier_any                               a barrier that tells all whether any says so
//     arrives_last                              counts channels, and says which one is the last
//     claim, publish                            a word for the first of them, a word for the others
//     BlockTable, BlockPointer                  a table that a block's threads share, a place in it
//     load_acquire, store_release, load_relaxed, store_relaxed    words shared with other ranks
//     store_credit                              the head of a lane whose messages have flags: nothing else hangs on it
//     load_line, store_line                     16 bytes of an LL slot
//     load_line_end, store_line_end             the last 16 bytes of a line of an LL128 slot
//     system_fence                              what makes such a store a release, such a load an acquire
//     wait_slow, wait_over                      the part of a wait that has lasted: until what is
//                                               awaited is there (host), or one turn (CUDA)
//     ring                                      wake a peer that sleeps
//     BucketTables, MOST_PIECES                 what a block remembers of buckets, and room for moves of pieces
//
// Behind target.h, each target has five more headers of the same names:
//
//     late.h       await_line: the rest of a wait for an LL line that is not there yet
//     numbers.h    conversions of the small floats, the division of an f32
//     bulk.h       long stretches of a ReduceCopy, and the reducers
//     walk.h       Walk: the way of a ReduceCopy through its tile, which may be one of buckets
//     moves.h      open_tables: where the channel's program is, told by one thread;
//                  try_at_once: small moves, side by side;
//                  try_switch, point_to_members, try_short, try_plain_walk, try_private: ways of its own for
//                  a whole move
//
// host/target.h and cuda/target.h include this and have all that; the folder that is compiled with
// shared/ decides which of them is meant. The build writes format.h from the tables in
// kernels/format.
#pragma once
#include "format.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Two flagged words of an LL slot: {data, flag, data, flag}.
struct Line {
  uint64_t data;
  uint32_t flag, flag_behind;
};

enum class Awaits { COUNTER, LINE, FLAG };

// What somebody waits for: a counter that has to reach `value` (signed, so that the first credits,
// which lie below zero, are there from the start), an LL line that has to carry a flag, or an LL128
// line's flag.
struct Awaited {
  const uint64_t* word;
  uint64_t value;
  Awaits what = Awaits::COUNTER;
};

// Where in the schedule a wait happens, for Progress.
struct Place {
  uint64_t awaited;
  uint32_t step, peer, lane, head;
  const Connection* connection = nullptr;  // null for a bucket
};

// A block that ended early; the first to write it wins.
struct Fault {
  uint32_t outcome, step, peer, found, claimed;
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
