// The kernels whose accesses order.cpp keeps account of: compiled for a thread sanitizer. What they
// do with memory is the same for all types and folds; these are as many as the tests have.
#include <time.h>

#include "kernels.h"

#define OXCCL_INSTRUCTIONS "instructions.h"
#define OXCCL_MULTIMEM "members.h"
#include "any.h"
#undef OXCCL_ALL
#define OXCCL_ALL(KERNEL)      \
  KERNEL(F32, f32, sum, Sums)  \
  KERNEL(I32, i32, sum, Sums)  \
  KERNEL(U8, u8, sum, Sums)
#include "executor.cu"

namespace emulator {
namespace {

OXCCL_EMULATED_KERNELS

#define OXCCL_NAMED(type, name, folds_name, folds) OXCCL_EMULATED(oxccl_##name##_##folds_name),
constexpr Kernel KERNELS[] = {OXCCL_ALL(OXCCL_NAMED) OXCCL_EMULATED(oxccl_any)};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : KERNELS)
    if (strcmp(kernel.name, name) == 0) return &kernel;
  return nullptr;
}
const Kernel* find_traced(const char*) { return nullptr; }

}  // namespace emulator
