// What a host does in a way of its own with a ReduceCopy: short ones (short.h), those of buckets
// without flags (buckets.h), and those that read peers' private memory (private.h). Each says
// whether it has been taken, and then by `done` whether all went well.
#pragma once
#include "buckets.h"
#include "multicast.h"
#include "private.h"
#include "short.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// The tables are read where they are.
OXCCL_INLINE void open_tables(const Launch& launch, uint32_t channel, Workspace& workspace) {
  workspace.tables = tables_of(launch.program, channel_of_program(launch, channel));
}

OXCCL_INLINE bool knows_epochs(const Workspace&) { return false; }

// There is no switch.
template <class Reducer>
OXCCL_INLINE uint64_t try_switch(const Machine&, const Reducer&, const Instruction&, const Operand*, uint64_t,
                                 uint64_t) {
  return 0;
}

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

// One thread does nothing at once.
template <class Reducer>
OXCCL_INLINE bool try_at_once(Machine&, const Reducer&, const Tables&, const Instruction*, uint64_t, Workspace&,
                              bool*) {
  return false;
}

template <class Reducer>
OXCCL_INLINE bool try_short(Machine& machine, const Reducer& reducer, const Instruction& instruction,
                            const Operand* operands, uint64_t round_start, uint64_t len_bytes, bool* done) {
  if (OXCCL_UNLIKELY(!is_short(machine.launch, instruction, len_bytes))) return false;
  if (OXCCL_LIKELY(machine.launch.segments == nullptr)) {
    *done = run_short(machine, reducer, instruction, operands, round_start, len_bytes);
    return true;
  }
  if (!is_short_walk(instruction, operands)) return false;
  *done = run_short_walk(machine, reducer, instruction, operands, round_start, len_bytes);
  return true;
}

template <class Reducer>
OXCCL_INLINE bool try_plain_walk(Machine& machine, const Reducer& reducer, uint64_t round_start, Workspace& workspace,
                                 bool* done) {
  if (!is_plain_walk(machine, workspace)) return false;
  *done = walk_plain(machine, reducer, round_start, workspace);
  return true;
}

OXCCL_INLINE bool try_private(Machine& machine, const HostReducer& reducer, const Instruction& instruction,
                              uint64_t round_start, Workspace& workspace, bool* done) {
  if (OXCCL_LIKELY((instruction.flags & INSTRUCTION_CMA) == 0)) return false;
  *done = move_private(machine, reducer, round_start, workspace);
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
