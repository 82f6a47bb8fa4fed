// A ReduceCopy of all ranks' buffers: by the switch between them, where that can be.
//
//     if all ranks' buffers are as far into their heaps:   one access to the multicast address for all   (cuda/switch.h)
//     else:                                                operand by operand, as windows are
//
// The operands are windows on all ranks in any case, so that what a switch cannot do (other types, odd lengths, buffers of other
// places) is done all the same, and a host, which has no switch, does what a GPU does.
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

// Whether the multicast address of this rank's buffers is that of all ranks'. What differs once differs all through the call.
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

#ifdef __CUDACC__
OXCCL_INLINE SwitchMove switch_move(const Machine& machine, const Instruction& instruction,
                                    const Operand* operands, uint64_t round_start, uint64_t len_bytes) {
  const Launch& launch = machine.launch;
  const Operand& source = operands[0];
  const Operand& destination = operands[instruction.sources];
  // What is not all ranks' is this rank's.
  const auto own = [&](const Operand& operand) {
    uint8_t* buffer = operand.space == SPACE_INPUT ? const_cast<uint8_t*>(launch.input) : launch.output;
    return buffer + operand.offset_bytes + round_start;
  };
  const bool reads = reads_all(instruction), writes = writes_all(instruction);
  return {reads ? multicast_address(launch, source, round_start) : own(source),
          writes ? multicast_address(launch, destination, round_start) : own(destination), len_bytes, reads, writes};
}
#else
// Has the views of all ranks' memory lead there by way of the multicast address.
OXCCL_INLINE void point_to_members(const Machine& machine, const Instruction& instruction,
                                   const Operand* operands, uint64_t round_start,
                                   Workspace& workspace) {
  const Launch& launch = machine.launch;
  if (launch.multicast.members == nullptr) return;
  const auto point = [&](uint32_t first, uint32_t count) {
    for (uint32_t member = 0; member < count; ++member) {
      const uint64_t distance = launch.multicast.members[member];
      workspace.views[first + member].data =
          multicast_address(launch, operands[first + member], round_start) + distance;
    }
  };
  if (reads_all(instruction)) point(0, instruction.sources);
  if (writes_all(instruction)) point(instruction.sources, instruction.destinations);
}
#endif

}  // namespace OXCCL_ISA
}  // namespace oxccl
