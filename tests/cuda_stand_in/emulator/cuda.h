// What nvcc knows and a C++ compiler does not, as far as the kernels need it: for the threads of an emulated block.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// No `__CUDA_ARCH__`: what is for certain GPUs only (bulk copies, multimem, conversion instructions) is left out.
#define __CUDACC__ 1
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
// A block is a thread of the operating system.
#define __shared__ static thread_local

namespace emulator {

// Of the block that this thread runs, and of the thread of it whose turn it is.
uint32_t lane();
uint32_t block();
// Lets others have their turn.
void yield();
// Waits for all threads of the block; true if any of them says so.
bool barrier(bool condition);
// Waits for all threads of the warp; true if any of them says so.
bool any_of_warp(bool condition);
// Accesses of 16 bytes, which threads of a warp do at once if they come to them at once.
void load_together(const uint8_t* at, uint64_t* into);
void store_together(uint8_t* at, uint64_t low, uint64_t high);
// Whether it is no memory of the block's own.
bool is_global(const void* at);
[[noreturn]] void fail(const char* what);

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

inline void __syncthreads() { emulator::barrier(false); }
inline int __syncthreads_or(int condition) { return emulator::barrier(condition != 0); }
inline void __threadfence_block() {}
inline bool __isGlobal(const void* at) { return emulator::is_global(at); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
// Threads of a block take turns, so nobody is between the two.
inline uint32_t atomicCAS(uint32_t* word, uint32_t expected, uint32_t wanted) {
  const uint32_t found = *word;
  if (found == expected) *word = wanted;
  return found;
}

// What the compiler would rely on is checked.
#define __builtin_assume(condition) \
  ((condition) ? void() : emulator::fail("what the kernel assumes does not hold: " #condition))
