// A ReduceCopy of all ranks' buffers: by the switch between them, where that can be.
//
//     if all ranks' buffers are as far into their heaps:   one access to the multicast address for all   (cuda/switch.h)
//     else, and the last bytes:                            operand by operand, as windows are
//
// The operands are windows on all ranks in any case, so that what a switch cannot do (other types,
// odd ends, buffers of other places) is done all the same, and a host, which has no switch, does
// what a GPU does.
#pragma once
#include "resolve.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE bool reads_all(const Instruction& instruction) {
  return instruction.flags & INSTRUCTION_MULTICAST_READ;
}
OXCCL_INLINE bool writes_all(const Instruction& instruction) {
  return instruction.flags & INSTRUCTION_MULTICAST_WRITE;
}

// Whether the multicast address of this rank's buffers is that of all ranks'. What differs once
// differs all through the call.
OXCCL_INLINE bool lie_alike(const Machine& machine, const Operand* operands, uint32_t count,
                            Workspace& workspace) {
  const Multicast& multicast = machine.launch.multicast;
  if (multicast.base == nullptr) return false;
#pragma unroll 1
  for (uint32_t o = lane(); o < count; o += lanes()) {
    const Operand& operand = operands[o];
    if (operand.space != SPACE_WINDOW_INPUT && operand.space != SPACE_WINDOW_OUTPUT) continue;
    const Window& window = window_of(machine, operand);
    if (window.tokens.input - window.heap != multicast.input ||
        window.tokens.output - window.heap != multicast.output)
      workspace.apart = true;
  }
  barrier();
  return !workspace.apart;
}

// Where a switch finds an operand that is this rank's buffer or a window on another's.
OXCCL_INLINE uint8_t* multicast_address(const Launch& launch, const Operand& operand,
                                        uint64_t round_start) {
  const bool is_input = operand.space == SPACE_INPUT || operand.space == SPACE_WINDOW_INPUT;
  const Multicast& multicast = launch.multicast;
  return multicast.base + (is_input ? multicast.input : multicast.output) + operand.offset_bytes + round_start;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
