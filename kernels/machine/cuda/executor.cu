// The kernels, one block per channel: for each element type one of its sums, oxccl_<type>_sum, and
// one of its other folds, oxccl_<type>_other. Each runs any program that only copies, too: parts of
// a group that reduce alike, with all that copy, are one launch. Groups that reduce in several ways
// are one launch of oxccl_any.
//
// 512 threads a block: enough 16-byte loads in flight to fill a multiprocessor's share of the
// memory bandwidth, and 128 registers for each. What all threads of a block know alike is in shared
// memory: registers are for data.
#include "any.h"
#include "tables.h"

namespace oxccl {

struct Block {
  Launch launch;  // the part of the group at hand
  uint32_t way;   // how its program reduces, as the kernel numbers that
  bool beside;    // another launch of this rank is under way
  Opened opened;
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

// Makes a part the one at hand, behind the next barrier.
__device__ __forceinline__ void take(const Launch& part, bool first) {
  constexpr uint32_t WORDS = sizeof(Launch) / sizeof(uint64_t);
  if (lane() < WORDS && (first || !is_inherited(lane())))
    reinterpret_cast<uint64_t*>(&block().launch)[lane()] = reinterpret_cast<const uint64_t*>(&part)[lane()];
}

// The thread that looks whether a launch is alone: one that has no tables to copy.
constexpr uint32_t BEGINNER = 66;

// Launches of a rank follow one another, but for what the host does not see: a captured call that
// is replayed beside another call. Two at once would move the same cursors, so the second one ends.
// Known behind the next barrier; the first channel looks for all.
__device__ __forceinline__ void begin(const Launch& own, uint32_t channel) {
  if (lane() == BEGINNER) block().beside = channel == 0 && exchange(&own.doorbells->sleeping, 1) != 0;
}

__device__ __forceinline__ void end(const Launch& own, uint32_t channel) {
  if (leader() && channel == 0 && !block().beside) store_relaxed(&own.doorbells->sleeping, 0);
}

constexpr uint32_t NO_WAY = DATA_TYPES * FOLDS;

// Reduces one type.
template <class N, class Folds>
struct One {
  static __device__ __forceinline__ uint32_t way(const Header* program) {
    return program->data_type == N::TYPE && Folds::template has<N>(*program) ? program->fold : NO_WAY;
  }
  __device__ __forceinline__ bool reduce(Machine& machine, const Move& move) const {
    if (block().way == NO_WAY) return machine.fail(OUTCOME_BAD_PROGRAM, 0, N::TYPE);
    return CudaReducer<N, Folds>{folds()}.reduce(machine, move);
  }
  __device__ __forceinline__ bool gathers() const { return block().way != NO_WAY; }
  template <class Units>
  __device__ __forceinline__ void fold_gathered(const Move& move, const Operand* operands, const Units& units,
                                                uint32_t begin, uint32_t end, uint32_t stride) const {
    CudaReducer<N, Folds>{folds()}.fold_gathered(move, operands, units, begin, end, stride);
  }
  __device__ __forceinline__ uint64_t move_by_switch(const Machine& machine, const SwitchMove& move) const {
    if (block().way == NO_WAY || machine.launch.program->scale != SCALE_NONE) return 0;
    return folds().template choose<N>([&](auto only) { return oxccl::move_by_switch<N, only.FOLD>(move); });
  }

 private:
  static __device__ __forceinline__ Folds folds() { return Folds(block().way); }
};

// Reduces all of them.
struct Any {
  static __device__ __forceinline__ uint32_t way(const Header* program) {
    return program->data_type * FOLDS + program->fold;
  }
  __device__ __forceinline__ bool reduce(Machine& machine, const Move& move) const {
    return reduce_words_any(machine, move, block().way);
  }
  __device__ __forceinline__ bool gathers() const { return false; }
  template <class Units>
  __device__ __forceinline__ void fold_gathered(const Move&, const Operand*, const Units&, uint32_t, uint32_t,
                                                uint32_t) const {}
  // Groups are not reduced by switches.
  __device__ __forceinline__ uint64_t move_by_switch(const Machine&, const SwitchMove&) const { return 0; }
};

// The part at hand, whose launch block has just been taken.
template <class Reducer>
__device__ __forceinline__ bool run_part(const Part& part, uint32_t channel) {
  // Asked for at once: each of them is far away.
  const Header header = *part.program;
  const Likely likely(part, channel);
  Launch& launch = block().launch;
  Workspace& workspace = block().workspace;
  const uint32_t of_program = channel - part.first_channel;
  if (of_program < header.channels && header.magic == MAGIC && header.version == VERSION) {
    if (leader()) block().way = Reducer::way(&header);
    const ChannelEntry entry = likely.of(part.program, header, of_program);
    open_part(part, header, entry, channel, launch, workspace, block().opened);
    if (block().beside) {
      if (leader()) launch.statuses[channel] = {OUTCOME_BESIDE, 0, 0, 0};
      return false;
    }
    const uint32_t outcome = run_channel(launch, channel, Reducer{}, workspace);
    close_part(launch, workspace, block().opened);
    return outcome == OUTCOME_DONE;
  }
  barrier();
  if (is_without_share(launch, channel)) {
    pass_over(launch, channel);
    return true;
  }
  if (leader()) launch.statuses[channel] = {OUTCOME_BAD_PROGRAM, 0, 0, 0};
  return false;
}

template <class Reducer>
__device__ __forceinline__ void run_block(const Launch& first) {
  uint32_t channel = blockIdx.x;
  const Launch* own = &first;
  Part part;
  // By its name, since a kernel's parameter is nearer than memory.
  if (first.joined_channels == 0) {
    take(first, true);
    begin(first, channel);
    part = part_of(first);
  } else {
    own = &own_launch(first, channel);
    take(*own, true);
    begin(*own, channel);
    part = part_of(*own);
  }
  {
    OXCCL_TRACED_BLOCK(*own, channel);
#pragma unroll 1
    while (run_part<Reducer>(part, channel)) {
      const Launch* next = block().launch.next;
      barrier();
      if (next == nullptr) break;
      take(*next, false);
      part = part_of(*next);
    }
  }
  end(block().launch, channel);
  end_launch(block().launch);
}

}  // namespace oxccl

#define OXCCL_ENTRY(name, ...)                                             \
  extern "C" __global__ void __launch_bounds__(oxccl::BLOCK_THREADS, 1)    \
      oxccl_##name(const __grid_constant__ oxccl::Launch launch) {         \
    oxccl::run_block<oxccl::__VA_ARGS__>(launch);                          \
  }

#define OXCCL_KERNEL(type, name, folds_name, folds) \
  OXCCL_ENTRY(name##_##folds_name, One<oxccl::type, oxccl::folds>)

// The traced ones have entry points of their own (cuda/trace.cu).
#ifndef OXCCL_TRACE
OXCCL_ALL(OXCCL_KERNEL)
OXCCL_ENTRY(any, Any)
#endif
