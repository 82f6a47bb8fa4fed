// The host entry points of one instruction set, with the C ABI that src/host.rs calls:
//
//     oxccl_execute_<isa>(launch, channel)   runs one channel in the calling thread
//     oxccl_reduce_<isa>(reduction)          the reduce-copy loop alone, on plain memory
//     oxccl_convert_<isa>(...)               the small floats' conversions, for tests
#include "table.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Null: no such type, or the type does not have the fold.
OXCCL_INLINE const HostReducer* reducer_of(uint32_t data_type, uint32_t fold) {
#define OXCCL_REDUCERS(type) &REDUCERS_##type,
  static const Reducers* const TABLE[DATA_TYPES] = {OXCCL_EACH_DATA_TYPE(OXCCL_REDUCERS)};
#undef OXCCL_REDUCERS
  if (OXCCL_UNLIKELY(data_type >= DATA_TYPES || fold >= FOLDS)) return nullptr;
  const HostReducer* reducer = &TABLE[data_type]->folds[fold];
  return OXCCL_LIKELY(reducer->bulk != nullptr) ? reducer : nullptr;
}

OXCCL_INLINE uint32_t execute_part(const Launch& launch, uint32_t channel) {
  const Header& program = *launch.program;
  if (OXCCL_UNLIKELY(is_without_share(launch, channel))) {
    pass_over(launch, channel);
    return OUTCOME_DONE;
  }
  const HostReducer* reducer = reducer_of(program.data_type, program.fold);
  Workspace workspace;
  if (OXCCL_LIKELY(reducer && is_runnable(&program, channel_of_program(launch, channel))))
    return run_channel(launch, channel, *reducer, workspace);
  launch.statuses[channel] = {OUTCOME_BAD_PROGRAM, 0, 0, 0};
  return OUTCOME_BAD_PROGRAM;
}

// The parts behind the first.
OXCCL_NOINLINE static uint32_t execute_rest(const Launch& first, uint32_t channel) {
  uint32_t outcome = OUTCOME_DONE;
  for (const Launch* next = first.next; next != nullptr && outcome == OUTCOME_DONE; next = next->next) {
    Launch part = *next;
    inherit(part, first);
    outcome = execute_part(part, channel);
  }
  return outcome;
}

OXCCL_INLINE uint32_t execute(const Launch& first, uint32_t channel) {
  const Launch& launch = own_launch(first, channel);
  uint32_t outcome = execute_part(launch, channel);
  if (OXCCL_UNLIKELY(launch.next != nullptr && outcome == OUTCOME_DONE)) outcome = execute_rest(launch, channel);
  end_launch(launch);
  return outcome;
}

[[maybe_unused]] static uint32_t reduce(const Reduction& reduction) {
  const HostReducer* reducer = reducer_of(reduction.data_type, reduction.fold);
  if (!reducer || reduction.sources_count == 0 ||
      reduction.sources_count + reduction.destinations_count > MAX_OPERANDS ||
      (reduction.tree && reduction.sources_count > MAX_TREE_SOURCES))
    return OUTCOME_BAD_PROGRAM;
  View views[MAX_OPERANDS];
  for (uint32_t s = 0; s < reduction.sources_count; ++s)
    views[s] = {const_cast<uint8_t*>(reduction.sources[s]), nullptr, 0, OPERAND_RAW};
  const uint32_t stream = reduction.stream ? OPERAND_STREAM : 0;
  View* destinations = views + reduction.sources_count;
  for (uint32_t d = 0; d < reduction.destinations_count; ++d)
    destinations[d] = {reduction.destinations[d], nullptr, 0, stream};
  const Scaling scaling = {reduction.scale_bits, reduction.ranks,
                           reduction.scale == SCALE_PREMULTIPLY,
                           reduction.scale == SCALE_AVERAGE && reduction.finish};
  const Move move = {views,   reduction.sources_count, reduction.destinations_count,
                     reduction.len_bytes, scaling, reduction.tree != 0, 0};
  const Launch no_launch = {};
  Fault fault = {};
  Machine machine = {no_launch, fault, 0, 0, false};
  reduce_copy(machine, move, *reducer);
  if (machine.streamed) stream_fence();
  return OUTCOME_DONE;
}

template <class N>
static void convert(bool widen, const void* from, void* to, size_t count) {
  using Element = typename N::Element;
  using Accumulator = typename N::Accumulator;
  if (widen) {
    widen_elements<N>(static_cast<Accumulator*>(to), static_cast<const Element*>(from), count);
  } else {
    narrow_accumulators<N>(static_cast<Element*>(to), static_cast<const Accumulator*>(from), count);
  }
}

[[maybe_unused]] static uint32_t convert_type(uint32_t data_type, bool widen, const void* from, void* to,
                             size_t count) {
  switch (data_type) {
    case DATA_TYPE_F16: convert<F16>(widen, from, to, count); return OUTCOME_DONE;
    case DATA_TYPE_BF16: convert<BF16>(widen, from, to, count); return OUTCOME_DONE;
    case DATA_TYPE_F8E4M3: convert<F8E4M3>(widen, from, to, count); return OUTCOME_DONE;
    case DATA_TYPE_F8E5M2: convert<F8E5M2>(widen, from, to, count); return OUTCOME_DONE;
    default: return OUTCOME_BAD_PROGRAM;
  }
}

}  // namespace OXCCL_ISA
}  // namespace oxccl

#define OXCCL_JOIN_(a, b) a##b
#define OXCCL_JOIN(a, b) OXCCL_JOIN_(a, b)

// The traced build (host/trace.cpp) has an entry point of its own.
#ifndef OXCCL_TRACE
extern "C" uint32_t OXCCL_JOIN(oxccl_execute_, OXCCL_ISA)(const oxccl::Launch* launch,
                                                          uint32_t channel) {
  return oxccl::execute(*launch, channel);
}
extern "C" uint32_t OXCCL_JOIN(oxccl_reduce_, OXCCL_ISA)(const oxccl::Reduction* reduction) {
  return oxccl::reduce(*reduction);
}
extern "C" uint32_t OXCCL_JOIN(oxccl_convert_, OXCCL_ISA)(uint32_t data_type, uint32_t widen,
                                                          const void* from, void* to,
                                                          size_t count) {
  return oxccl::convert_type(data_type, widen != 0, from, to, count);
}
#endif
