// Small moves of a block: side by side, and with few barriers.
//
//     a run of copies:  a team of warps for each destination:
//                         resolve both ends; header; load words, store words
//     a reduction:      a team of warps for each source: resolve it; header; load its words -> gathered
//                       a thread for each destination: resolve it, write its header
//                       barrier
//                       for each word that is this thread's: fold the gathered ones; store to all
//
// Why it is fast: what takes the time of small moves is one thread's instructions, one behind the
// other. Here no thread resolves more than it needs, and messages of all sources are awaited at
// once, each by threads of its own. A header may well be stored before the lines: each line tells
// of itself. Large moves are left to the whole block: see bulk.h.
#pragma once
#include "scaling.h"
#include "segments.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Up to this tile.
constexpr uint64_t AT_ONCE_BYTES = 4096;
constexpr uint32_t WARPS = BLOCK_THREADS / WARP_THREADS;
// Where words of all sources are gathered. Trees that are under way have it else.
constexpr uint32_t GATHERED_BYTES = SMALL_TREE_BYTES;

template <class Bits>
OXCCL_INLINE Bits* gathered() {
  return reinterpret_cast<Bits*>(subtrees());
}

// The thread's place where a block's warps are as many teams as a power of two has, one at least
// for each of `tasks` if there are so many warps.
struct Team {
  uint32_t number, teams;
  uint32_t thread, threads;  // in the team

  OXCCL_INLINE explicit Team(uint32_t tasks) {
    const uint32_t self = lane();
    // log2 of a team's warps: 4 for one task, 0 from nine on.
    const uint32_t warps_log = tasks > WARPS / 2 ? 0 : uint32_t(__clz(int(tasks - 1))) - 28;
    threads = WARP_THREADS << warps_log;
    teams = WARPS >> warps_log;
    thread = self & (threads - 1);
    number = self / WARP_THREADS >> warps_log;
  }
};

OXCCL_INLINE bool is_of_slot(const Operand& operand) {
  return operand.space == SPACE_SLOT || operand.space == SPACE_PEER_SLOT;
}

OXCCL_INLINE uint64_t tile_of(const Instruction& instruction, uint64_t round_start, uint64_t tile_bytes) {
  const uint64_t total = instruction.len_bytes;
  const uint64_t left = total > round_start ? total - round_start : 0;
  return left < tile_bytes ? left : tile_bytes;
}

// A source; its header is looked at later.
OXCCL_INLINE bool resolve_source(Machine& machine, const Operand& operand, uint64_t round_start, uint64_t len_bytes,
                                 View* view) {
  if (operand.space != SPACE_SLOT) return resolve_memory(machine, operand, round_start, view);
  *view = slot_view(machine, operand, len_bytes);
  return true;
}

OXCCL_INLINE bool resolve_destination(Machine& machine, const Operand& operand, uint64_t round_start,
                                      uint64_t len_bytes, View* view) {
  if (operand.space != SPACE_PEER_SLOT) return resolve_memory(machine, operand, round_start, view);
  resolve_peer_slot(machine, operand, len_bytes, view);
  return true;
}

// As accept, out of line: of values, since what is referred to would have to lie in memory.
OXCCL_APART bool accept_apart(const Launch* launch, Fault* fault, uint32_t channel, uint32_t step,
                              const Operand* operand, uint8_t* data, Connection* connection, uint32_t epoch,
                              uint32_t flags, uint64_t len_bytes) {
  Machine machine = {*launch, *fault, channel, step, false};
  const View view = {data, connection, epoch, flags};
  return accept(machine, *operand, view, len_bytes);
}

OXCCL_INLINE void accept_at_once(Machine& machine, const Operand& operand, const View& view, uint64_t len_bytes) {
  accept_apart(&machine.launch, &machine.fault, machine.channel, machine.step, &operand, view.data, view.connection,
               view.epoch, view.flags, len_bytes);
}

// Words or shares of lines from one end to the other, by a team. Who carries words of tokens gives
// what happened before with them, or may access what they open behind them.
template <class Units>
OXCCL_INLINE void copy_of_team(Machine& machine, const Units& units, const View& from, const View& to,
                               uint32_t flags, const Team& team) {
  const uint32_t count = uint32_t(units.count());
#pragma unroll 1
  for (uint32_t unit = team.thread; unit < count; unit += team.threads) {
    typename Units::Bits bits = {};
    if (!units.template load<uint8_t>(machine, from, unit, &bits)) return;
    if (flags & INSTRUCTION_RELEASE) system_fence();
    units.template store<uint8_t>(to, unit, bits);
    if (flags & INSTRUCTION_ACQUIRE) system_fence();
  }
}

// One destination of a copy.
OXCCL_INLINE void copy_at_once(Machine& machine, const Instruction& instruction, const Operand* operands,
                               uint32_t destination, uint64_t round_start, uint64_t len_bytes, const Team& team) {
  const Operand& source = operands[0];
  const Operand& target = operands[1 + destination];
  View from, to;
  if (!resolve_source(machine, source, round_start, len_bytes, &from) ||
      !resolve_destination(machine, target, round_start, len_bytes, &to))
    return;
  // A copy onto itself (buffers in place) writes nothing: peers may be reading there.
  if (destination == 0 && from.is_plain() && from.data == to.data) return;
  // Whoever has no words, if the message is short. The others do not depend on it.
  if (team.thread == team.threads - 1) {
    write_header(machine, target, to, len_bytes);
    if (source.space == SPACE_SLOT) accept_at_once(machine, source, from, len_bytes);
  }
  if (from.is_ll128() || to.is_ll128())
    copy_of_team(machine, Lines{len_bytes}, from, to, 0, team);
  else
    copy_of_team(machine, Stretches{0, 0, len_bytes, false}, from, to, instruction.flags, team);
}

OXCCL_INLINE bool run_copies(Machine& machine, const Tables& tables, const Instruction* first, uint64_t round_start) {
  const uint32_t run = first->run, destinations = first->destinations;
  // Of a run, each has one destination.
  const uint32_t copies = run > 1 ? run : destinations;
  const Team team(copies);
#pragma unroll 1
  for (uint32_t c = team.number; c < copies; c += team.teams) {
    const Instruction& instruction = first[run > 1 ? c : 0];
    const uint64_t len_bytes = tile_of(instruction, round_start, tables.entry->tile_bytes);
    machine.step = instruction.step;
    copy_at_once(machine, instruction, tables.operands + instruction.index, run > 1 ? 0 : c, round_start, len_bytes,
                 team);
  }
  return agreed(machine);
}

// So many units of each source are gathered at a time: those of whole warps.
template <class Bits>
OXCCL_INLINE uint32_t gathered_units(uint32_t sources) {
  return GATHERED_BYTES / sizeof(Bits) >> (32 - __clz(int(sources - 1))) & ~(WARP_THREADS - 1);
}

template <class Units>
OXCCL_INLINE void gather(Machine& machine, const Instruction& instruction, const Operand* operands,
                         uint64_t round_start, const Units& units, uint32_t begin, uint32_t end, uint32_t stride) {
  const uint32_t sources = instruction.sources;
  const Team team(sources);
  typename Units::Bits* const into = gathered<typename Units::Bits>();
#pragma unroll 1
  for (uint32_t s = team.number; s < sources; s += team.teams) {
    View view;
    if (!resolve_source(machine, operands[s], round_start, units.len_bytes, &view)) return;
    if (begin == 0 && operands[s].space == SPACE_SLOT && team.thread == team.threads - 1)
      accept_at_once(machine, operands[s], view, units.len_bytes);
#pragma unroll 1
    for (uint32_t unit = begin + team.thread; unit < end; unit += team.threads) {
      typename Units::Bits bits = {};
      if (!units.template load<uint8_t>(machine, view, unit, &bits)) return;
      into[s * stride + unit - begin] = bits;
    }
  }
}

template <class Reducer, class Units>
OXCCL_INLINE bool run_reduction(Machine& machine, const Reducer& reducer, const Instruction& instruction,
                                const Operand* operands, uint64_t round_start, const Units& units,
                                Workspace& workspace) {
  const uint32_t sources = instruction.sources, count = uint32_t(units.count());
  const uint32_t stride = gathered_units<typename Units::Bits>(sources);
  if (leader()) {
    workspace.operands = operands;
    workspace.move = move_of(machine.launch, instruction, units.len_bytes, workspace.views);
  }
#pragma unroll 1
  for (uint32_t d = lanes() - 1 - lane(); d < instruction.destinations; d += lanes()) {
    View& view = workspace.views[sources + d];
    if (resolve_destination(machine, operands[sources + d], round_start, units.len_bytes, &view))
      write_header(machine, operands[sources + d], view, units.len_bytes);
  }
#pragma unroll 1
  for (uint32_t begin = 0; begin == 0 || begin < count; begin += stride) {
    const uint32_t end = count - begin < stride ? count : begin + stride;
    gather(machine, instruction, operands, round_start, units, begin, end, stride);
    if (!agreed(machine)) return false;
    reducer.fold_gathered(workspace.move, operands, units, begin, end, stride);
    barrier();
  }
  return true;
}

template <class Reducer>
OXCCL_INLINE bool try_at_once(Machine& machine, const Reducer& reducer, const Tables& tables, const Instruction* first,
                              uint64_t round_start, Workspace& workspace, bool* done) {
  const Launch& launch = machine.launch;
  const uint64_t len_bytes = tile_of(*first, round_start, tables.entry->tile_bytes);
  const uint32_t sources = first->sources, destinations = first->destinations, flags = first->flags;
  if (len_bytes > AT_ONCE_BYTES || launch.segments != nullptr ||
      (flags & (INSTRUCTION_MULTICAST_READ | INSTRUCTION_MULTICAST_WRITE)))
    return false;
  if (sources == 1) {
    const uint8_t scale = launch.program->scale;
    if (destinations == 0 || scale == SCALE_PREMULTIPLY || (scale == SCALE_AVERAGE && (flags & INSTRUCTION_FINISH)))
      return false;
    *done = run_copies(machine, tables, first, round_start);
    return true;
  }
  if (sources == 0 || sources > WARP_THREADS || sources + destinations > MAX_OPERANDS || !reducer.gathers() ||
      ((flags & INSTRUCTION_TREE) && sources > 2))
    return false;
  const Operand* operands = tables.operands + first->index;
  bool lines = false;
#pragma unroll 1
  for (uint32_t o = lane() % WARP_THREADS; o < sources + destinations; o += WARP_THREADS)
    lines |= is_of_slot(operands[o]) && operands[o].lane == LANE_LL128;
  if (any_of_warp(lines))
    *done = run_reduction(machine, reducer, *first, operands, round_start, Lines{len_bytes}, workspace);
  else
    *done = run_reduction(machine, reducer, *first, operands, round_start, Stretches{0, 0, len_bytes, false}, workspace);
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
