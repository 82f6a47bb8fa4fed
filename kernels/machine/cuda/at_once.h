// Small moves of a block: side by side, and with few barriers.
//
//     a run of copies:  a team of warps for each destination:
//                         resolve both ends; header; load words, store words
//     a reduction:      a team of warps for each source: resolve it; header; load its words -> gathered
//                       a thread for each destination: resolve it, write its header
//                       barrier
//                       for each word that is this thread's: fold the gathered ones; store to all
//
// A group's buckets, too: each thread looks up the bucket of its word, all at the same time, where
// a walk (segments.h) would take the block from bucket to bucket.
//
// Why it is fast: what takes the time of small moves is one thread's instructions, one behind the
// other. Here no thread resolves more than it needs, and messages of all sources are awaited at
// once, each by threads of its own. A header may well be stored before the lines: each line tells
// of itself. Large moves are left to the whole block (bulk.h), which goes from one to the next
// without a barrier (Together).
#pragma once
#include "scaling.h"
#include "walk.h"

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

// Memory in buckets is where each word is looked up: what is in which part of the virtual buffer.
OXCCL_INLINE bool resolve_else(Machine& machine, const Operand& operand, uint64_t round_start, View* view) {
  if (machine.launch.segments == nullptr || !is_memory(operand)) return resolve_memory(machine, operand, round_start, view);
  uint8_t* const data = reinterpret_cast<uint8_t*>(const_cast<Operand*>(&operand));
  *view = {data, reinterpret_cast<Connection*>(operand.offset_bytes + round_start), 0, operand.flags | VIEW_IN_BUCKETS};
  return true;
}

struct BucketWord {
  uint8_t* at;    // null: it is in no bucket
  uint64_t left;  // of the bucket
};

OXCCL_APART BucketWord word_in_buckets(const Launch* launch, Fault* fault, uint32_t channel, const Operand* operand,
                                       uint64_t position) {
  const Machine machine = {*launch, *fault, channel, 0, false};
  const uint32_t segment = find_segment(*launch, position);
  const Segment& bucket = launch->segments[segment];
  const uint64_t inside = position - bucket.start;
  if (inside >= bucket.len_bytes) return {nullptr, 0};
  return {bucket_of(machine, *operand, segment) + operand->message * bucket.len_bytes + inside,
          bucket.len_bytes - inside};
}

// The words of a small move, of which none lies in two buckets.
struct SmallWords {
  using Bits = uint64_t;
  const Machine& machine;
  uint64_t len_bytes;

  OXCCL_INLINE uint64_t count() const { return (len_bytes + 7) / 8; }

  OXCCL_INLINE BucketWord of_bucket(const View& view, uint64_t word) const {
    const uint64_t start = reinterpret_cast<uint64_t>(view.connection), left = len_bytes - word * 8;
    BucketWord found = word_in_buckets(&machine.launch, &machine.fault, machine.channel,
                                       reinterpret_cast<const Operand*>(view.data), start + word * 8);
    if (left < found.left) found.left = left;
    return found;
  }

  template <class Unit>
  OXCCL_INLINE bool load(Machine& of, const View& view, uint64_t word, uint64_t* into) const {
    if (!view.is_in_buckets()) return load_word<Unit>(of, view, word * 8, len_bytes - word * 8, into);
    const BucketWord found = of_bucket(view, word);
    return found.at == nullptr || load_word<Unit>(of, {found.at, nullptr, 0, 0}, 0, found.left, into);
  }
  template <class Unit>
  OXCCL_INLINE void store(const View& view, uint64_t word, uint64_t from) const {
    if (!view.is_in_buckets()) return store_word<Unit>(view, word * 8, len_bytes - word * 8, from);
    const BucketWord found = of_bucket(view, word);
    if (found.at != nullptr) store_word<Unit>({found.at, nullptr, 0, 0}, 0, found.left, from);
  }
};

// A source; its header is looked at later.
OXCCL_INLINE bool resolve_source(Machine& machine, const Operand& operand, uint64_t round_start, uint64_t len_bytes,
                                 View* view) {
  if (operand.space != SPACE_SLOT) return resolve_else(machine, operand, round_start, view);
  *view = slot_view(machine, operand, len_bytes);
  return true;
}

OXCCL_INLINE bool resolve_destination(Machine& machine, const Operand& operand, uint64_t round_start,
                                      uint64_t len_bytes, View* view) {
  if (operand.space != SPACE_PEER_SLOT) return resolve_else(machine, operand, round_start, view);
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
    if (is_of_slot(target)) write_header(machine, target, to, len_bytes);
    if (source.space == SPACE_SLOT) accept_at_once(machine, source, from, len_bytes);
  }
  if (from.is_ll128() || to.is_ll128())
    copy_of_team(machine, Lines{len_bytes}, from, to, 0, team);
  else
    copy_of_team(machine, SmallWords{machine, len_bytes}, from, to, instruction.flags, team);
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
    workspace.move() = move_of(machine.launch, instruction, units.len_bytes, workspace.views);
  }
#pragma unroll 1
  for (uint32_t d = lanes() - 1 - lane(); d < instruction.destinations; d += lanes()) {
    View& view = workspace.views[sources + d];
    if (resolve_destination(machine, operands[sources + d], round_start, units.len_bytes, &view) &&
        is_of_slot(operands[sources + d]))
      write_header(machine, operands[sources + d], view, units.len_bytes);
  }
#pragma unroll 1
  for (uint32_t begin = 0; begin == 0 || begin < count; begin += stride) {
    const uint32_t end = count - begin < stride ? count : begin + stride;
    gather(machine, instruction, operands, round_start, units, begin, end, stride);
    if (!agreed(machine)) return false;
    reducer.fold_gathered(workspace.move(), operands, units, begin, end, stride);
    barrier();
  }
  return true;
}

// Whether a run of copies may take a bucket of the own memory onto itself, which only a walk sees.
OXCCL_INLINE bool may_lie_in_place(const Launch& launch, const Tables& tables, const Instruction* first) {
  if (launch.segments == nullptr) return false;
  const uint32_t copies = first->run > 1 ? first->run : 1;
#pragma unroll 1
  for (uint32_t c = 0; c < copies; ++c) {
    const Operand* operands = tables.operands + first[c].index;
    if (operands[0].space != SPACE_INPUT) continue;
#pragma unroll 1
    for (uint32_t d = 1; d <= first[c].destinations; ++d)
      if (operands[d].space == SPACE_OUTPUT) return true;
  }
  return false;
}

template <class Reducer>
OXCCL_INLINE bool try_at_once(Machine& machine, const Reducer& reducer, const Tables& tables, const Instruction* first,
                              uint64_t round_start, Workspace& workspace, bool* done) {
  const Launch& launch = machine.launch;
  const uint64_t len_bytes = tile_of(*first, round_start, tables.entry->tile_bytes);
  const uint32_t sources = first->sources, destinations = first->destinations, flags = first->flags;
  if (len_bytes > AT_ONCE_BYTES || (flags & (INSTRUCTION_MULTICAST_READ | INSTRUCTION_MULTICAST_WRITE))) return false;
  if (sources == 1) {
    const uint8_t scale = launch.program->scale;
    if (destinations == 0 || scale == SCALE_PREMULTIPLY || (scale == SCALE_AVERAGE && (flags & INSTRUCTION_FINISH)) ||
        may_lie_in_place(launch, tables, first))
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
    *done = run_reduction(machine, reducer, *first, operands, round_start, SmallWords{machine, len_bytes}, workspace);
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
