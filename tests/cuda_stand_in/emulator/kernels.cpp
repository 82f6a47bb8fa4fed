// All kernels, from their own source.
#include <time.h>

#include "kernels.h"

#define OXCCL_INSTRUCTIONS "instructions.h"
#define OXCCL_MULTIMEM "members.h"
#include "executor.cu"

namespace emulator {
namespace {

static_assert(blockDim.x == oxccl::BLOCK_THREADS, "for guests alike");

OXCCL_EMULATED_KERNELS

#define OXCCL_NAMED(type, name, folds_name, folds) OXCCL_EMULATED(oxccl_##name##_##folds_name),
constexpr Kernel KERNELS[] = {OXCCL_ALL(OXCCL_NAMED) OXCCL_EMULATED(oxccl_any)};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : KERNELS)
    if (strcmp(kernel.name, name) == 0) return &kernel;
  return nullptr;
}

}  // namespace emulator
