// The kernels of one compilation, for blocks that do not know them: kernels.cpp has them all but
// for those that are traced (traced.cpp) and hot (hot.cpp), each in a namespace apart. ordered.cpp
// has some for the account of memory order.
#pragma once
#include "cuda.h"

namespace emulator {

struct Kernel {
  const char* name;
  // Runs a thread of it.
  void (*run)(const void* launch);
  // Fills the block's shared memory with a pattern.
  void (*spoil)();
  // Whether that is a block's shared memory.
  bool (*is_shared)(const void* at);
};

constexpr int PATTERN = 0xa5;

// Of all kernels; null if there is none of this name.
const Kernel* find_kernel(const char* name);
// Of the traced kernels; null if there is none of this name.
const Kernel* find_traced(const char* name);
// Of the hot kernels; null if there is none of this name.
const Kernel* find_hot(const char* name);
// Of kernels that are not oxccl's own: guests.cpp.
const Kernel* find_guest(const char* name);

}  // namespace emulator

// In each compilation, behind the kernels' source.
#define OXCCL_EMULATED_KERNELS                                                                         \
  template <void (*KERNEL)(oxccl::Launch)>                                                             \
  void run_thread(const void* launch) {                                                                \
    KERNEL(*static_cast<const oxccl::Launch*>(launch));                                                \
  }                                                                                                    \
  void spoil() {                                                                                       \
    memset(&oxccl::block(), PATTERN, sizeof(oxccl::Block));                                            \
    memset(oxccl::BlockTable<oxccl::View, oxccl::MAX_OPERANDS>::entries(), PATTERN,                    \
           oxccl::MAX_OPERANDS * sizeof(oxccl::View));                                                 \
    memset(oxccl::subtrees(), PATTERN, oxccl::GROUP_LEVELS * oxccl::TREE_THREADS * sizeof(uint4));     \
  }                                                                                                    \
  bool is_shared(const void* at) {                                                                     \
    return uintptr_t(at) - uintptr_t(&oxccl::block()) < sizeof(oxccl::Block) ||                        \
           uintptr_t(at) - uintptr_t(oxccl::subtrees()) < oxccl::SUBTREE_BYTES;                        \
  }
#define OXCCL_EMULATED(name) {#name, &run_thread<name>, &spoil, &is_shared}
