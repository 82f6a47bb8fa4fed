// The traced kernels. What they have of the others' source is compiled once more, so it gets a
// namespace of its own.
#include <time.h>

#include "kernels.h"

#define oxccl oxccl_traced
#define OXCCL_INSTRUCTIONS "instructions.h"
#define OXCCL_MULTIMEM "members.h"
#include "trace.cu"

namespace emulator {
namespace {

OXCCL_EMULATED_KERNELS

constexpr Kernel KERNELS[] = {
    OXCCL_EMULATED(oxccl_traced_f16_sum),    OXCCL_EMULATED(oxccl_traced_bf16_sum),
    OXCCL_EMULATED(oxccl_traced_f32_sum),    OXCCL_EMULATED(oxccl_traced_f8e4m3_sum),
    OXCCL_EMULATED(oxccl_traced_any),
};

}  // namespace

const Kernel* find_traced(const char* name) {
  for (const Kernel& kernel : KERNELS)
    if (strcmp(kernel.name, name) == 0) return &kernel;
  return nullptr;
}

}  // namespace emulator
