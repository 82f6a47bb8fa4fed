// The kernels of the probes. Each that waits ends by itself after so many nanoseconds.
#include <stdint.h>

static __device__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

template <class T>
static __device__ T acquired(const T* at);
template <>
__device__ uint32_t acquired(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
template <>
__device__ uint64_t acquired(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

// Blocks of several launches wait for each other. meeting[0]: how many have come, [1]: how many
// have met, [2]: how many had come when the first of them gave up, plus one.
extern "C" __global__ void meet(uint32_t* meeting, uint32_t all, uint64_t limit_ns) {
  if (threadIdx.x != 0) return;
  atomicAdd_system(meeting, 1);
  const uint64_t begin = now_ns();
  while (acquired(meeting) < all) {
    if (acquired(meeting + 2) != 0) return;
    if (now_ns() - begin > limit_ns) {
      atomicCAS_system(meeting + 2, 0, acquired(meeting) + 1);
      return;
    }
  }
  atomicAdd_system(meeting + 1, 1);
}

// Waits until a word is set. seen[0]: 1 if it was, 2 if not; seen[1]: 1 from when the kernel runs.
extern "C" __global__ void await(const uint64_t* word, uint64_t wanted, volatile uint64_t* seen, uint64_t limit_ns) {
  seen[1] = 1;
  __threadfence_system();
  const uint64_t begin = now_ns();
  while (acquired(word) < wanted)
    if (now_ns() - begin > limit_ns) {
      seen[0] = 2;
      return;
    }
  seen[0] = 1;
}

// What a flag costs from one block to another and back.
enum { RELEASE_SYSTEM, RELAXED, LINE, RELEASE_GPU };
template <int KIND>
static __device__ void put(uint64_t* at, uint64_t v) {
  if (KIND == RELEASE_SYSTEM) asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
  if (KIND == RELAXED) asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
  if (KIND == LINE) asm volatile("st.volatile.global.v2.u64 [%0], {%1, %1};" ::"l"(at), "l"(v) : "memory");
  if (KIND == RELEASE_GPU) asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
template <int KIND>
static __device__ uint64_t get(uint64_t* at) {
  uint64_t value, other = ~0ull;
  if (KIND == RELEASE_SYSTEM) return acquired(at);
  if (KIND == RELAXED) asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  if (KIND == LINE)
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(value), "=l"(other) : "l"(at) : "memory");
  if (KIND == RELEASE_GPU) asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value < other ? value : other;
}
template <int KIND>
static __device__ void volley(uint64_t* flags, uint64_t turns, uint64_t* took_ns, uint64_t limit_ns) {
  uint64_t *mine = flags + 32 * blockIdx.x, *other = flags + 32 * (1 - blockIdx.x);
  const uint64_t begin = now_ns();
  for (uint64_t turn = 1; turn <= turns; ++turn) {
    if (blockIdx.x == 0) put<KIND>(other, turn);
    while (get<KIND>(mine) < turn)
      if (now_ns() - begin > limit_ns) return;
    if (blockIdx.x == 1) put<KIND>(other, turn);
  }
  if (blockIdx.x == 0) *took_ns = now_ns() - begin;
}
#define VOLLEY(name, kind)                                                                                      \
  extern "C" __global__ void name(uint64_t* flags, uint64_t turns, uint64_t* took_ns, uint64_t limit_ns) {      \
    volley<kind>(flags, turns, took_ns, limit_ns);                                                              \
  }
VOLLEY(volley_release_system, RELEASE_SYSTEM)
VOLLEY(volley_relaxed, RELAXED)
VOLLEY(volley_line, LINE)
VOLLEY(volley_release_gpu, RELEASE_GPU)

// What a fence takes one thread, behind so many stores of each thread of the block.
extern "C" __global__ void fence_system(uint64_t* memory, uint32_t stores, uint64_t* cycles) {
  for (uint32_t i = 0; i < stores; ++i) reinterpret_cast<volatile uint64_t*>(memory)[threadIdx.x + blockDim.x * i] = i;
  __syncthreads();
  const long long begin = clock64();
  if (threadIdx.x == 0) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    *cycles = clock64() - begin;
  }
}

// The same of the fence between two addresses of one memory, by so many threads of the block.
extern "C" __global__ void fence_alias(uint32_t threads, uint64_t* cycles) {
#if __CUDA_ARCH__ >= 700
  __syncthreads();
  const long long begin = clock64();
  if (threadIdx.x < threads) asm volatile("fence.proxy.alias;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - begin;
#endif
}

// Even blocks write lines of 128 bytes turn after turn, a quarter of a warp each; odd ones read
// them. torn[0] counts lines whose last word (the flag) was newer than one before it; torn[1]
// counts pairs of words of which one was newer; torn[2] counts reads.
extern "C" __global__ void tear(uint64_t* all, uint32_t lines, uint32_t turns, unsigned long long* torn, volatile int* ended) {
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 8, step = blockDim.x / 8;
  uint64_t* base = all + static_cast<size_t>(blockIdx.x / 2) * lines * 16 + lane % 8 * 2;
  volatile int* end = ended + blockIdx.x / 2;
  if (blockIdx.x % 2 == 0) {
    for (uint64_t turn = 1; turn <= turns; ++turn)
      for (uint32_t line = first; line < lines; line += step) {
        __syncwarp();
        asm volatile("st.volatile.global.v2.u64 [%0], {%1, %1};" ::"l"(base + line * 16), "l"(turn) : "memory");
      }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *end = 1;
    return;
  }
  unsigned long long lines_torn = 0, pairs_torn = 0, read = 0;
  while (!__any_sync(~0u, *end))
    for (uint32_t line = first; line < lines; line += step) {
      uint64_t a, b;
      __syncwarp();
      asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(base + line * 16) : "memory");
      const uint64_t flag = __shfl_sync(~0u, b, lane | 7);
      lines_torn += a < flag || b < flag;
      pairs_torn += a != b;
      ++read;
    }
  atomicAdd(torn, lines_torn);
  atomicAdd(torn + 1, pairs_torn);
  atomicAdd(torn + 2, read);
}

// Blocks of 512 threads, each with eight vectors of 16 bytes on the way.
extern "C" __global__ void __launch_bounds__(512, 1) copy_eight(const uint4* from, uint4* to, uint64_t vectors) {
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * 512 * 8;
  for (uint64_t at = static_cast<uint64_t>(blockIdx.x) * 512 * 8 + threadIdx.x; at + 512 * 7 < vectors; at += step) {
    uint4 held[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) held[i] = from[at + 512 * i];
#pragma unroll
    for (int i = 0; i < 8; ++i) to[at + 512 * i] = held[i];
  }
}

// A parameter block as long as that of oxccl's kernels.
struct Parameters {
  char bytes[224];
};
extern "C" __global__ void nothing(const __grid_constant__ Parameters parameters) { (void)parameters; }

// Writes a word for the host and waits for its answer, turn after turn.
extern "C" __global__ void answer(volatile uint64_t* to_host, const uint64_t* from_host, uint64_t turns, uint64_t limit_ns) {
  const uint64_t begin = now_ns();
  for (uint64_t turn = 1; turn <= turns; ++turn) {
    *to_host = turn;
    __threadfence_system();
    while (acquired(from_host) < turn)
      if (now_ns() - begin > limit_ns) return;
  }
}
