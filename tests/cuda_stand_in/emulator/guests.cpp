// Kernels that are not oxccl's own, over oxccl/device.h: the examples', and some that do whatever
// the header has.
#include "kernels.h"

#define OXCCL_DEVICE_INSTRUCTIONS "device_instructions.h"
#include "../../../examples/device/matmul_reduce_scatter.cu"
#include "../../../examples/device/overlap.cu"
#include "guests/everything.cu"
#include "guests/gradients.cu"

namespace emulator {
namespace {

template <class Arguments, void (*KERNEL)(Arguments)>
void run_thread(const void* arguments) {
  KERNEL(*static_cast<const Arguments*>(arguments));
}
void spoil() {}
bool is_shared(const void*) { return false; }

struct Guest {
  Kernel kernel;
  uint32_t arguments_bytes;
};

#define OXCCL_GUEST(name, Arguments) \
  {{#name, &run_thread<const Arguments, name>, &spoil, &is_shared}, sizeof(Arguments)}

constexpr Guest GUESTS[] = {
    OXCCL_GUEST(matmul_reduce_scatter, MatmulArguments),
    OXCCL_GUEST(everything, EverythingArguments),
    OXCCL_GUEST(gradients, GradientsArguments),
    OXCCL_GUEST(overlap_gradient, GradientArguments),
    OXCCL_GUEST(overlap_mark, MarkArguments),
    OXCCL_GUEST(overlap_descend, DescentArguments),
    OXCCL_GUEST(overlap_descend_gated, GatedDescentArguments),
};

const Guest* find(const char* name) {
  for (const Guest& guest : GUESTS)
    if (strcmp(guest.kernel.name, name) == 0) return &guest;
  return nullptr;
}

}  // namespace

const Kernel* find_guest(const char* name) {
  const Guest* guest = find(name);
  return guest == nullptr ? nullptr : &guest->kernel;
}

}  // namespace emulator

// The length of the one parameter of a guest's kernel; 0: there is none of this name.
extern "C" __attribute__((visibility("hidden"))) uint32_t oxccl_emulator_guest(const char* name) {
  const emulator::Guest* guest = emulator::find(name);
  return guest == nullptr ? 0 : guest->arguments_bytes;
}
