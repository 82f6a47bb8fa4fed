// From an instruction to a move: with the factor, and whether it is divided.
#pragma once
#include "reduce_copy.h"

namespace oxccl {
inline namespace OXCCL_ISA {

template <class N>
OXCCL_INLINE uint64_t small_factor(const void* at) {
  return bits_of(N::widen(*static_cast<const typename N::Element*>(at)));
}

// A factor in memory, as it is when the launch runs: in its accumulator's bits.
OXCCL_APART uint64_t factor_in_memory(uint32_t data_type, const void* at) {
  switch (DataType(data_type)) {
    case DATA_TYPE_F16: return small_factor<F16>(at);
    case DATA_TYPE_BF16: return small_factor<BF16>(at);
    case DATA_TYPE_F8E4M3: return small_factor<F8E4M3>(at);
    case DATA_TYPE_F8E5M2: return small_factor<F8E5M2>(at);
    case DATA_TYPE_F64:
    case DATA_TYPE_I64:
    case DATA_TYPE_U64: return *static_cast<const uint64_t*>(at);
    case DATA_TYPE_I8:
    case DATA_TYPE_U8: return *static_cast<const uint8_t*>(at);
    default: return *static_cast<const uint32_t*>(at);
  }
}

OXCCL_INLINE Move move_of(const Launch& launch, const Instruction& instruction, uint64_t len_bytes,
                          Views views) {
  const uint8_t scale = launch.program->scale;
  const bool finish = instruction.flags & INSTRUCTION_FINISH;
  const bool in_memory = OXCCL_UNLIKELY(launch.flags & LAUNCH_FACTOR_AT);
  const uint64_t factor = in_memory ? factor_in_memory(launch.program->data_type, reinterpret_cast<const void*>(launch.scale_bits))
                                    : launch.scale_bits;
  const Scaling scaling = {factor, launch.ranks, scale == SCALE_PREMULTIPLY,
                           scale == SCALE_AVERAGE && finish};
  const bool tree = instruction.flags & INSTRUCTION_TREE;
  return {views, instruction.sources, instruction.destinations, len_bytes, scaling, tree, 0};
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
