// The hot kernels, from their own source: in a namespace apart, as the traced ones are.
#include <time.h>

#include "kernels.h"

#define oxccl oxccl_hot
#define OXCCL_INSTRUCTIONS "instructions.h"
#define OXCCL_MULTIMEM "members.h"
#include "hot.cu"

namespace emulator {
namespace {

template <void (*KERNEL)(oxccl::Launch)>
void run_thread(const void* launch) {
  KERNEL(*static_cast<const oxccl::Launch*>(launch));
}
void spoil() { memset(&oxccl::hot_block(), PATTERN, sizeof(oxccl::HotBlock)); }
bool is_shared(const void* at) {
  return uintptr_t(at) - uintptr_t(&oxccl::hot_block()) < sizeof(oxccl::HotBlock);
}

#define OXCCL_NAMED_COPY(schedule, name) OXCCL_EMULATED(oxccl_hot_##name),
#define OXCCL_NAMED_SUM(schedule, name, type, type_name) OXCCL_EMULATED(oxccl_hot_##name##_##type_name##_sum),
constexpr Kernel KERNELS[] = {OXCCL_HOT_COPIES(OXCCL_NAMED_COPY) OXCCL_HOT_SUMS(OXCCL_NAMED_SUM)};

}  // namespace

const Kernel* find_hot(const char* name) {
  for (const Kernel& kernel : KERNELS)
    if (strcmp(kernel.name, name) == 0) return &kernel;
  return nullptr;
}

}  // namespace emulator
