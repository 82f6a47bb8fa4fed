// What nvcc knows and a C++ compiler does not, as far as the kernels need it: for the threads of an
// emulated block.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// No `__CUDA_ARCH__`: conversion instructions, which are for certain GPUs only, are left out.
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
// A block is a thread of the operating system.
#define __shared__ static thread_local

namespace emulator {

// Of the block that this thread runs, and of the thread of it whose turn it is.
uint32_t lane();
uint32_t block();
// Blocks of its launch.
uint32_t blocks();
// Lets others have their turn.
void yield();
// Waits for all threads of the block; true if any of them says so.
bool barrier(bool condition);
// Waits for all threads of the warp; true if any of them says so.
bool any_of_warp(bool condition);
// Accesses of 16 bytes, which threads of a warp do at once if they come to them at once.
void load_together(const uint8_t* at, uint64_t* into);
void store_together(uint8_t* at, uint64_t low, uint64_t high);
// The engine for bulk copies, and the dynamic shared memory that it works on. It does what it is
// told as late as it may, or earlier. Shared memory has addresses of its own.
uint32_t shared_address(const void* at);
uint32_t stage_memory();
uint32_t stage_memory_bytes();
void stage_barrier_init(uint32_t barrier);
void stage_barrier_inval(uint32_t barrier);
void stage_expect(uint32_t barrier, uint32_t len_bytes);
bool stage_is_there(uint32_t barrier, uint32_t parity);
void stage_load(uint32_t stage, const uint8_t* from, uint32_t len_bytes, uint32_t barrier);
void stage_store(uint8_t* to, uint32_t stage, uint32_t len_bytes);
void stage_stores_commit();
void stage_stores_read_but_last();
void stage_stores_done();
// So many bytes have been loaded from all members.
void note_switched(uint32_t len_bytes);
// Whether it is no memory of the block's own.
bool is_global(const void* at);
[[noreturn]] void fail(const char* what);

inline uint64_t next_random(uint64_t& random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

}  // namespace emulator

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

struct BlockIndex {
  struct Number {
    operator uint32_t() const { return emulator::block(); }
  } x;
};
constexpr BlockIndex blockIdx = {};

struct ThreadIndex {
  struct Number {
    operator uint32_t() const { return emulator::lane(); }
  } x;
};
constexpr ThreadIndex threadIdx = {};

struct GridSize {
  struct Number {
    operator uint32_t() const { return emulator::blocks(); }
  } x;
};
constexpr GridSize gridDim = {};

// All kernels have blocks of so many threads.
struct BlockSize {
  uint32_t x;
};
constexpr BlockSize blockDim = {512};

inline void __syncthreads() { emulator::barrier(false); }
inline int __syncthreads_or(int condition) { return emulator::barrier(condition != 0); }
inline void __threadfence_block() {}
inline bool __isGlobal(const void* at) { return emulator::is_global(at); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
// Threads of a block take turns, so nobody is between the two.
inline uint32_t atomicCAS(uint32_t* word, uint32_t expected, uint32_t wanted) {
  const uint32_t found = *word;
  if (found == expected) *word = wanted;
  return found;
}

// What the compiler would rely on is checked.
#define __builtin_assume(condition) \
  ((condition) ? void() : emulator::fail("what the kernel assumes does not hold: " #condition))
