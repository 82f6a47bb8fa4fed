// The walk through buckets on a GPU: each piece is of one bucket, and each thread looks up where
// its operands have it.
#pragma once
#include "resolve.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE void find_buckets(const Machine&, Workspace&) {}
OXCCL_INLINE void join_buckets(const Machine&, Workspace&) {}

OXCCL_INLINE bool lies_in_buckets(const Workspace& workspace, uint32_t operand) {
  return is_memory(workspace.operands[operand]);
}

OXCCL_INLINE uint8_t* bucket_of(const Machine& machine, const Operand& operand, uint32_t segment) {
  const Segment& own = machine.launch.segments[segment];
  if (operand.space == SPACE_INPUT) return const_cast<uint8_t*>(own.input);
  if (operand.space == SPACE_OUTPUT) return own.output;
  const Window& window = window_of(machine, operand);
  const SegmentTokens& tokens =
      reinterpret_cast<const SegmentTokens*>(behind(window, window.tokens.input))[segment];
  return behind(window, operand.space == SPACE_WINDOW_INPUT ? tokens.input : tokens.output);
}

OXCCL_INLINE uint8_t* bucket_of(const Machine& machine, const Workspace& workspace, uint32_t index, uint32_t segment) {
  return bucket_of(machine, workspace.operands[index], segment);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
