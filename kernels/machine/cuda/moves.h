// What a GPU does in a way of its own with a ReduceCopy: those of all ranks' memory, by the switch
// (switch.h).
#pragma once
#include "at_once.h"
#include "multicast.h"
#include "walk.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// They are open: see tables.h.
OXCCL_INLINE void open_tables(const Launch&, uint32_t, Workspace&) {}

// Where a part's tables are in shared memory, it was asked of each of its connections whether slots
// are to be cleared, and of none they are. Then the first round has no epochs to keep: nothing is
// awaited or written there, so that no send has to be behind it, and its barrier orders nothing.
OXCCL_INLINE bool knows_epochs(const Workspace& workspace) { return workspace.epochs_kept; }

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
          writes ? multicast_address(launch, destination, round_start) : own(destination),
          len_bytes, reads, writes, launch.multicast.members,
          reads ? uint32_t(instruction.sources) : uint32_t(instruction.destinations)};
}

// The bytes that the switch has moved.
template <class Reducer>
OXCCL_INLINE uint64_t try_switch(const Machine& machine, const Reducer& reducer, const Instruction& instruction,
                             const Operand* operands, uint64_t round_start, uint64_t len_bytes) {
  return reducer.move_by_switch(machine, switch_move(machine, instruction, operands, round_start, len_bytes));
}

OXCCL_INLINE void point_to_members(const Machine&, const Instruction&, const Operand*, uint64_t, Workspace&) {}

// One way for all lengths: a second would not fit into a kernel's registers.
template <class Reducer>
OXCCL_INLINE bool try_short(Machine&, const Reducer&, const Instruction&, const Operand*, uint64_t, uint64_t, bool*) {
  return false;
}

template <class Reducer>
OXCCL_INLINE bool try_plain_walk(Machine&, const Reducer&, uint64_t, Workspace&, bool*) {
  return false;
}

// All memory is mapped.
template <class Reducer>
OXCCL_INLINE bool try_private(Machine&, const Reducer&, const Instruction&, uint64_t, Workspace&, bool*) {
  return false;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
