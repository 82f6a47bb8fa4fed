// What the machine needs of a target, with one implementation per target under the same names.
//
//     lane(), lanes(), leader(), barrier()      the threads of a block; on a host ONE_THREAD
//     barrier_any                               a barrier that tells all whether any of them says so
//     arrives_last                              counts channels, and says which one is the last
//     claim, publish                            a word for the first of them, a word for the others
//     BlockTable, BlockPointer                  a table that the threads of a block share, and a place in it
//     load_acquire, store_release, load_relaxed, store_relaxed    words shared with other ranks
//     load_line, store_line                     16 bytes of an LL slot
//     load_line_end, store_line_end             the last 16 bytes of a line of an LL128 slot
//     system_fence                              what makes such a store a release, such a load an acquire
//     wait_slow, wait_over                      the part of a wait that has lasted: until what is
//                                               awaited is there (host), or one turn (CUDA)
//     ring                                      wake a peer that sleeps
//
// Everything above this header is the same source for GPUs and CPUs.
#pragma once
#include "format.h"

#ifdef __CUDACC__
#define OXCCL_INLINE __device__ __forceinline__
#define OXCCL_FUNCTION __device__
#else
#define OXCCL_INLINE inline __attribute__((always_inline))
#define OXCCL_FUNCTION
#endif

namespace oxccl {
inline namespace OXCCL_ISA {

// Two flagged words of an LL slot: {data, flag, data, flag}.
struct Line {
  uint64_t data;
  uint32_t flag, flag_behind;
};

enum class Awaits { COUNTER, LINE, FLAG };

// What somebody waits for: a counter that has to reach `value` (signed, so that the first credits,
// which lie below zero, are there from the start), an LL line that has to carry a flag, or an LL128 line's flag.
struct Awaited {
  const uint64_t* word;
  uint64_t value;
  Awaits what = Awaits::COUNTER;
};

// Where in the schedule a wait happens, for Progress.
struct Place {
  uint64_t awaited;
  uint32_t step, peer, lane, head;
};

// A block that ended early; the first to write it wins.
struct Fault {
  uint32_t outcome, step, peer, found, claimed;
};

}  // namespace OXCCL_ISA
}  // namespace oxccl

#ifdef __CUDACC__
#include "target_cuda.h"
#else
#include "target_host.h"
#endif
