// The CUDA target: a block of threads is one channel.
//
// Words shared with other ranks are read and written at system scope, because the other rank may be
// another GPU or a CPU. One thread acquires or releases for the block, and the block barrier makes
// that hold for all of its threads (the memory model is cumulative). A spin looks at the abort word
// every few thousand turns and then also tells the host, through Progress, what it waits for.
#pragma once
#include "contract.h"

#define OXCCL_INLINE __device__ __forceinline__
#define OXCCL_COLD __device__ __forceinline__
#define OXCCL_NOINLINE __device__ __forceinline__
#define OXCCL_APART __device__ __noinline__
#define OXCCL_LIKELY(condition) (condition)
#define OXCCL_UNLIKELY(condition) (condition)

namespace oxccl {
inline namespace OXCCL_ISA {

// 16 bytes of an LL128 line, as one thread has them. In the last 16 the second word is the line's
// flag.
struct Share {
  uint64_t low, high;
};

}  // namespace OXCCL_ISA
}  // namespace oxccl

#ifndef OXCCL_INSTRUCTIONS
#define OXCCL_INSTRUCTIONS "ptx.h"
#endif
#include OXCCL_INSTRUCTIONS

namespace oxccl {
inline namespace OXCCL_ISA {

template <class To, class From>
OXCCL_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

constexpr bool ONE_THREAD = false;
// A number that the compiler knows: what a thread touches next is then a constant away.
constexpr uint32_t BLOCK_THREADS = 512;
OXCCL_INLINE constexpr uint32_t lanes() { return BLOCK_THREADS; }
OXCCL_INLINE bool leader() { return lane() == 0; }
OXCCL_INLINE void barrier() { __syncthreads(); }
OXCCL_INLINE bool barrier_any(bool condition) { return __syncthreads_or(condition); }
// The first of a block's threads to claim a word has it.
OXCCL_INLINE bool claim(uint32_t* word) { return atomicCAS(word, 0u, 1u) == 0; }
// The block's other threads see it, and then what this thread wrote before.
OXCCL_INLINE void publish(uint32_t* word, uint32_t value) {
  __threadfence_block();
  *const_cast<volatile uint32_t*>(word) = value;
}

// What stands behind it in the source is not begun before what stands in front of it.
OXCCL_INLINE void compiler_fence() { asm volatile("" : : : "memory"); }

// Promises the compiler an address in global memory, so that it uses the global instructions.
template <class T>
OXCCL_INLINE T* global_memory(uint8_t* at) {
  T* typed = reinterpret_cast<T*>(at);
  __builtin_assume(__isGlobal(typed));
  return typed;
}

// The one table of its type that a block has, in shared memory. What points into it is an index, so
// that the compiler knows which memory that is: a pointer would take registers and slower loads.
template <class T, uint32_t LEN>
struct BlockTable {
  struct Pointer {
    uint32_t at;
    OXCCL_INLINE T& operator[](uint32_t index) const { return entries()[at + index]; }
    OXCCL_INLINE Pointer operator+(uint32_t distance) const { return {at + distance}; }
  };
  static OXCCL_INLINE T* entries() {
    __shared__ uint64_t memory[LEN * sizeof(T) / sizeof(uint64_t)];
    return reinterpret_cast<T*>(memory);
  }
  OXCCL_INLINE T& operator[](uint32_t index) const { return entries()[index]; }
  OXCCL_INLINE operator Pointer() const { return {0}; }
};
template <class T, uint32_t LEN>
using BlockPointer = typename BlockTable<T, LEN>::Pointer;

// Pieces that are moved with no barrier between them.
constexpr uint32_t MOST_PIECES = 16;
// A batch of them: how many there are, whether more follow; and the tile's first bucket.
struct BucketTables {
  uint32_t count, more, first;
};

typedef uint64_t unaligned_word;
OXCCL_INLINE bool can_access_whole_words(const uint8_t* at) {
  return reinterpret_cast<uintptr_t>(at) % 8 == 0;
}

OXCCL_INLINE bool load_line_end(const uint8_t* at, uint64_t flag, uint64_t* data) {
  const Share end = load_share(at);
  *data = end.low;
  return end.high == flag;
}
OXCCL_INLINE void store_line_end(uint8_t* at, uint64_t data, uint64_t flag) { store_share(at, {data, flag}); }

OXCCL_INLINE void prefetch_write(const void*) {}
OXCCL_INLINE void prefetch_read(const uint8_t*, uint64_t) {}
OXCCL_INLINE void stream_fence() {}
OXCCL_INLINE void ring(Doorbell*) {}

// How long a wait has spun, and whether it has told so.
struct Patience {
  uint32_t spins;
  bool written;
};

OXCCL_INLINE void write_progress(Progress* progress, const Place& place, uint64_t call) {
  store_relaxed(&progress->awaited, place.awaited);
  store_relaxed(&progress->step, place.step);
  store_relaxed(&progress->peer, place.peer);
  store_relaxed(&progress->lane, place.lane);
  store_relaxed(&progress->head, place.head);
  store_release(&progress->call, call);
}

// What a wait that lasts does now and then. Out of line: a kernel has many waits, and what rarely
// runs should not take room among what does. Values, no references: what a reference leads to would
// have to lie in memory.
OXCCL_INLINE bool look(const uint32_t* abort, const uint32_t* outcome, Progress* progress, uint64_t call,
                       const Place& place) {
  if (load_relaxed(abort) != 0) return false;
  if (*const_cast<const volatile uint32_t*>(outcome) != OUTCOME_DONE) return false;
  // Again each time: another thread's wait may have ended meanwhile.
  write_progress(progress, place, call);
  return true;
}
OXCCL_APART bool look_around(const uint32_t* abort, const uint32_t* outcome, Progress* progress, uint64_t call,
                             uint64_t awaited, uint32_t step, uint32_t peer, uint32_t lane, uint32_t head) {
  return look(abort, outcome, progress, call, {awaited, step, peer, lane, head});
}

// One turn of a spin: the caller looks again. Only every few thousandth does anything. `fault` is
// the block's: when one thread gives up, the others that spin must follow.
OXCCL_INLINE bool wait_slow(const Launch& launch, uint32_t channel, const Awaited&,
                            const Place& place, const Fault& fault, Patience& patience) {
  if (++patience.spins % SPINS_A_LOOK != 0) return true;
  patience.written = look_around(launch.abort, &fault.outcome, &launch.progress[channel], launch.call, place.awaited,
                                 place.step, place.peer, place.lane, place.head);
  return patience.written;
}

// What was awaited has come.
OXCCL_INLINE void wait_over(const Launch& launch, uint32_t channel, const Patience& patience) {
  if (patience.written) store_relaxed(&launch.progress[channel].call, uint64_t(0));
}

}  // namespace OXCCL_ISA
}  // namespace oxccl

#include "trace.h"
