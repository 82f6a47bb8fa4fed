// The kernels: one per element type and fold, named oxccl_<type>_<fold>, one block per channel. Where unsigned integers give
// the bits that signed ones do, they have their kernel. Each runs any program that only copies, too: parts of a group that
// reduce alike, with all that copy, are one launch.
//
// 512 threads a block: enough 16-byte loads in flight to fill a multiprocessor's share of the memory
// bandwidth, and 128 registers for each. What all threads of a block know alike is in shared memory: registers are for data.
#include "executor.h"

namespace oxccl {

struct Block {
  Launch launch;  // the part of the group at hand
  bool reduces;   // its program is of the kernel's type and fold
  Workspace workspace;
};

__device__ __forceinline__ Block& block() {
  __shared__ Block memory;
  return memory;
}

__device__ __forceinline__ void take(const Launch& part) {
  constexpr uint32_t WORDS = sizeof(Launch) / sizeof(uint64_t);
  if (lane() < WORDS)
    reinterpret_cast<uint64_t*>(&block().launch)[lane()] = reinterpret_cast<const uint64_t*>(&part)[lane()];
  barrier();
}

// Products and bitwise folds wrap, whatever the sign. (Sums may be divided.)
template <class N, Fold F>
__device__ __forceinline__ bool is_for(const Header* program) {
  constexpr bool BOTH = N::INTEGER && F != FOLD_SUM && F != FOLD_MIN && F != FOLD_MAX;
  const uint32_t type = program->data_type;
  return program->fold == F && (type == N::TYPE || (BOTH && type == N::TYPE + 1));
}

template <class N, Fold F>
struct PartReducer {
  __device__ __forceinline__ bool reduce(Machine& machine, const Move& move) const {
    if (!block().reduces) return machine.fail(OUTCOME_BAD_PROGRAM, 0, N::TYPE);
    return CudaReducer<N, F>{}.reduce(machine, move);
  }
};

// True when there is a part behind it, which is the block's launch then.
template <class N, Fold F>
__device__ __forceinline__ bool run_part(uint32_t channel) {
  const Launch& launch = block().launch;
  const Header* program = launch.program;
  if (is_without_share(launch, channel)) {
    pass_over(launch, channel);
  } else if (!is_runnable(program, channel)) {
    if (leader()) launch.statuses[channel] = {OUTCOME_BAD_PROGRAM, 0, 0, 0};
    return false;
  } else {
    if (leader()) block().reduces = is_for<N, F>(program);
    if (run_channel(launch, channel, PartReducer<N, F>{}, block().workspace) != OUTCOME_DONE) return false;
  }
  const Launch* next = launch.next;
  barrier();
  if (next == nullptr) return false;
  take(*next);
  return true;
}

template <class N, Fold F>
__device__ __forceinline__ void run_block(const Launch& first) {
  uint32_t channel = blockIdx.x;
  take(own_launch(first, channel));
#pragma unroll 1
  while (run_part<N, F>(channel)) {
  }
}

}  // namespace oxccl

#define OXCCL_KERNEL(type, name, fold_name, fold)                            \
  extern "C" __global__ void __launch_bounds__(oxccl::BLOCK_THREADS, 1)      \
      oxccl_##name##_##fold_name(const __grid_constant__ oxccl::Launch launch) { \
    oxccl::run_block<oxccl::type, oxccl::fold>(launch);                      \
  }

#define OXCCL_ORDERED_KERNELS(type, name) \
  OXCCL_KERNEL(type, name, sum, FOLD_SUM) \
  OXCCL_KERNEL(type, name, min, FOLD_MIN) \
  OXCCL_KERNEL(type, name, max, FOLD_MAX)

#define OXCCL_KERNELS(type, name)   \
  OXCCL_ORDERED_KERNELS(type, name) \
  OXCCL_KERNEL(type, name, prod, FOLD_PROD)

#define OXCCL_SIGNED_KERNELS(type, name)       \
  OXCCL_KERNELS(type, name)                    \
  OXCCL_KERNEL(type, name, band, FOLD_BIT_AND) \
  OXCCL_KERNEL(type, name, bor, FOLD_BIT_OR)   \
  OXCCL_KERNEL(type, name, bxor, FOLD_BIT_XOR)

OXCCL_SIGNED_KERNELS(I8, i8)
OXCCL_ORDERED_KERNELS(U8, u8)
OXCCL_SIGNED_KERNELS(I32, i32)
OXCCL_ORDERED_KERNELS(U32, u32)
OXCCL_SIGNED_KERNELS(I64, i64)
OXCCL_ORDERED_KERNELS(U64, u64)
OXCCL_KERNELS(F16, f16)
OXCCL_KERNELS(BF16, bf16)
OXCCL_KERNELS(F32, f32)
OXCCL_KERNELS(F64, f64)
OXCCL_KERNELS(F8E4M3, f8e4m3)
OXCCL_KERNELS(F8E5M2, f8e5m2)
