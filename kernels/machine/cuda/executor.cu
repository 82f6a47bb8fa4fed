// The kernels: one per element type and fold, named oxccl_<type>_<fold>, one block per channel.
// Where unsigned integers give the bits that signed ones do, they have their kernel. Each runs any
// program that only copies, too: parts of a group that reduce alike, with all that copy, are one
// launch. Groups that reduce in several ways are one launch of oxccl_any.
//
// 512 threads a block: enough 16-byte loads in flight to fill a multiprocessor's share of the
// memory bandwidth, and 128 registers for each. What all threads of a block know alike is in shared
// memory: registers are for data.
#include "any.h"

namespace oxccl {

struct Block {
  Launch launch;  // the part of the group at hand
  uint32_t way;   // how its program reduces, as the kernel numbers that
  Workspace workspace;
};

__device__ __forceinline__ Block& block() {
  __shared__ Block memory;
  return memory;
}

// Whether a part behind the first has this word of its launch block from the first: see `inherit`.
__device__ __forceinline__ bool is_inherited(uint32_t word) {
  const uint32_t at = word * sizeof(uint64_t);
  return at == offsetof(Launch, statuses) || at == offsetof(Launch, call) || at == offsetof(Launch, history) ||
         at == offsetof(Launch, ready) || at == offsetof(Launch, done) || at == offsetof(Launch, ended) ||
         at == offsetof(Launch, arrived) || at == offsetof(Launch, launched);
}

// Makes a part the one at hand.
__device__ __forceinline__ void take(const Launch& part, bool first) {
  constexpr uint32_t WORDS = sizeof(Launch) / sizeof(uint64_t);
  if (lane() < WORDS && (first || !is_inherited(lane())))
    reinterpret_cast<uint64_t*>(&block().launch)[lane()] = reinterpret_cast<const uint64_t*>(&part)[lane()];
  barrier();
}

constexpr uint32_t NO_WAY = DATA_TYPES * FOLDS;

// Reduces one type and fold.
template <class N, Fold F>
struct One {
  static __device__ __forceinline__ uint32_t way(const Header* program) {
    const uint32_t type = program->data_type;
    const bool is_it = program->fold == F && (type == N::TYPE || (N::INTEGER && is_signless(F) && type == N::TYPE + 1));
    return is_it ? way_of(N::TYPE, F) : NO_WAY;
  }
  __device__ __forceinline__ bool reduce(Machine& machine, const Move& move) const {
    if (block().way == NO_WAY) return machine.fail(OUTCOME_BAD_PROGRAM, 0, N::TYPE);
    return CudaReducer<N, F>{}.reduce(machine, move);
  }
  __device__ __forceinline__ bool move_by_switch(const Machine& machine, const SwitchMove& move) const {
    if (block().way == NO_WAY || machine.launch.program->scale != SCALE_NONE) return false;
    return oxccl::move_by_switch<N, F>(move);
  }
};

// Reduces all of them.
struct Any {
  static __device__ __forceinline__ uint32_t way(const Header* program) {
    const uint32_t type = program->data_type, fold = program->fold;
    const bool is_unsigned = type == DATA_TYPE_U8 || type == DATA_TYPE_U32 || type == DATA_TYPE_U64;
    return way_of(is_unsigned && is_signless(fold) ? type - 1 : type, fold);
  }
  __device__ __forceinline__ bool reduce(Machine& machine, const Move& move) const {
    return reduce_words_any(machine, move, block().way);
  }
  // Groups are not reduced by switches.
  __device__ __forceinline__ bool move_by_switch(const Machine&, const SwitchMove&) const { return false; }
};

// True when there is a part behind it, which is the block's launch then.
template <class Reducer>
__device__ __forceinline__ bool run_part(uint32_t channel) {
  const Launch& launch = block().launch;
  const Header* program = launch.program;
  if (is_without_share(launch, channel)) {
    pass_over(launch, channel);
  } else if (!is_runnable(program, channel)) {
    if (leader()) launch.statuses[channel] = {OUTCOME_BAD_PROGRAM, 0, 0, 0};
    return false;
  } else {
    if (leader()) block().way = Reducer::way(program);
    if (run_channel(launch, channel, Reducer{}, block().workspace) != OUTCOME_DONE) return false;
  }
  const Launch* next = launch.next;
  barrier();
  if (next == nullptr) return false;
  take(*next, false);
  return true;
}

template <class Reducer>
__device__ __forceinline__ void run_block(const Launch& first) {
  uint32_t channel = blockIdx.x;
  take(own_launch(first, channel), true);
  {
    OXCCL_TRACED_BLOCK(block().launch, channel);
#pragma unroll 1
    while (run_part<Reducer>(channel)) {
    }
  }
  end_launch(block().launch);
}

}  // namespace oxccl

#define OXCCL_ENTRY(name, ...)                                             \
  extern "C" __global__ void __launch_bounds__(oxccl::BLOCK_THREADS, 1)    \
      oxccl_##name(const __grid_constant__ oxccl::Launch launch) {         \
    oxccl::run_block<oxccl::__VA_ARGS__>(launch);                          \
  }

#define OXCCL_KERNEL(type, name, fold_name, fold) \
  OXCCL_ENTRY(name##_##fold_name, One<oxccl::type, oxccl::fold>)

// The traced ones have entry points of their own (cuda/trace.cu).
#ifndef OXCCL_TRACE
OXCCL_ALL(OXCCL_KERNEL)
OXCCL_ENTRY(any, Any)
#endif
