// The kernels: one per element type and fold, named oxccl_<type>_<fold>, one block per channel.
//
// 512 threads a block: enough 16-byte loads in flight to fill a multiprocessor's share of the memory
// bandwidth, and 128 registers for each.
#include "executor.h"

namespace oxccl {

constexpr uint32_t BLOCK_THREADS = 512;

template <class N, Fold F>
__device__ __forceinline__ void run_block(const Launch& launch) {
  const uint32_t channel = blockIdx.x;
#pragma unroll 1
  for (const Launch* part = &launch; part != nullptr; part = part->next) {
    const Header* program = part->program;
    if (!is_runnable(program, channel) || program->data_type != N::TYPE || program->fold != F) {
      if (leader()) part->statuses[channel] = {OUTCOME_BAD_PROGRAM, 0, 0, 0};
      return;
    }
    if (run_channel(*part, channel, CudaReducer<N, F>{}) != OUTCOME_DONE) return;
    barrier();
  }
}

}  // namespace oxccl

#define OXCCL_KERNEL(type, name, fold_name, fold)                            \
  extern "C" __global__ void __launch_bounds__(oxccl::BLOCK_THREADS, 1)      \
      oxccl_##name##_##fold_name(const __grid_constant__ oxccl::Launch launch) { \
    oxccl::run_block<oxccl::type, oxccl::fold>(launch);                      \
  }

#define OXCCL_KERNELS(type, name)         \
  OXCCL_KERNEL(type, name, sum, FOLD_SUM)   \
  OXCCL_KERNEL(type, name, prod, FOLD_PROD) \
  OXCCL_KERNEL(type, name, min, FOLD_MIN)   \
  OXCCL_KERNEL(type, name, max, FOLD_MAX)

#define OXCCL_INTEGER_KERNELS(type, name)      \
  OXCCL_KERNELS(type, name)                    \
  OXCCL_KERNEL(type, name, band, FOLD_BIT_AND) \
  OXCCL_KERNEL(type, name, bor, FOLD_BIT_OR)   \
  OXCCL_KERNEL(type, name, bxor, FOLD_BIT_XOR)

OXCCL_INTEGER_KERNELS(I8, i8)
OXCCL_INTEGER_KERNELS(U8, u8)
OXCCL_INTEGER_KERNELS(I32, i32)
OXCCL_INTEGER_KERNELS(U32, u32)
OXCCL_INTEGER_KERNELS(I64, i64)
OXCCL_INTEGER_KERNELS(U64, u64)
OXCCL_KERNELS(F16, f16)
OXCCL_KERNELS(BF16, bf16)
OXCCL_KERNELS(F32, f32)
OXCCL_KERNELS(F64, f64)
OXCCL_KERNELS(F8E4M3, f8e4m3)
OXCCL_KERNELS(F8E5M2, f8e5m2)
