// The three-instruction machine: runs the program of one channel.
//
//     for each round:
//       for each instruction:
//         Wait:        until a counter reaches cursor + value                (acquire)
//         ReduceCopy:  resolve operands to addresses; move this round's tile
//         Signal:      a counter = cursor + value                            (release)
//       advance the cursors of the round's connections
//
// Why a short call is fast: nothing is set up or torn down. The tables are read where the lowering
// put them; slots are powers of two, so a slot is found by a mask; credits are remembered in the
// connection, so the peer's counter is read once per ring of slots; a message of up to SHORT_BYTES
// is moved in registers; after a round the line that the next message will be written to is asked
// for in advance, and with each message the lines of a later one are. Everything slow (a wait that
// lasts, a wake, an epoch's end) is out of line.
#pragma once
#include "moves.h"
#include "multicast.h"
#include "scaling.h"
#include "walk.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Waits that follow one another are one to a block, as signals are: each has a thread. One thread
// takes them one by one.
OXCCL_INLINE uint32_t run_of(const Instruction& instruction) {
  return ONE_THREAD ? 1 : instruction.run;
}

OXCCL_INLINE bool wait(Machine& machine, const Instruction& instruction) {
  Connection& connection = machine.launch.connections[instruction.index];
  const bool head = instruction.flags & INSTRUCTION_HEAD;
  const uint64_t value = (head ? connection.sent : connection.received) + uint64_t(instruction.value);
  const uint64_t* word = head ? connection.send_head
                              : tail(connection.recv_slots, connection.recv_tails, connection, value);
  if (head && int64_t(connection.head_seen) >= int64_t(value)) return true;
  const Place place = {value, instruction.step, connection.peer, connection.lane, head, &connection};
  uint64_t now = 0;
  const bool there = machine.await_counter({word, value}, place, &now);
  if (head) connection.head_seen = now;
  return there;
}

OXCCL_INLINE bool run_waits(Machine& machine, const Instruction* instructions) {
  const uint32_t run = run_of(instructions[0]);
#pragma unroll 1
  for (uint32_t w = lane(); w < run; w += lanes())
    if (machine.step = instructions[w].step; !wait(machine, instructions[w])) break;
  return agreed(machine);
}

OXCCL_INLINE void signal(Machine& machine, const Instruction& instruction) {
  Connection& connection = machine.launch.connections[instruction.index];
  const bool head = instruction.flags & INSTRUCTION_HEAD;
  const uint64_t value =
      (head ? connection.received : connection.sent) + uint64_t(instruction.value);
  if (OXCCL_UNLIKELY(machine.streamed)) stream_fence();
  machine.streamed = false;
  if (head && has_flags(connection)) {
    store_credit(connection.recv_head, value);
  } else if (head) {
    store_release(connection.recv_head, value);
  } else {
    if (OXCCL_UNLIKELY(connection.send_tails != nullptr))
      note_content(connection, value - 1, uint32_t(instruction.len_bytes));
    store_release(tail(connection.send_slots, connection.send_tails, connection, value), value);
  }
  ring(connection.doorbell);
}

// The barrier behind what they tell of lets each thread release it.
OXCCL_INLINE void run_signals(Machine& machine, const Instruction* instructions) {
  const uint32_t run = run_of(instructions[0]);
#pragma unroll 1
  for (uint32_t s = lane(); s < run; s += lanes()) signal(machine, instructions[s]);
}

OXCCL_INLINE void write_headers(Machine& machine, const Tables& tables, const Together& together,
                                const Workspace& workspace) {
  const bool several = together.several();
  const uint32_t headers = several ? together.copies : workspace.move().destinations;
#pragma unroll 1
  for (uint32_t h = lane(); h < headers; h += lanes()) {
    const uint32_t number = several ? h : 0, d = several ? 0 : h;
    const Move& move = workspace.moves[number];
    const Operand& operand = tables.operands[together.first[number].index + move.sources + d];
    write_header(machine, operand, move.destination(d), move.len_bytes);
  }
}

// Tokens open windows: whoever has a peer's tokens may read and write its buffers. What happened to
// these before, in this call and in those before it, is released with the tokens and acquired with
// them, by the threads that carry a word of them; the barrier behind the move passes it on to the
// others. Other LL messages give access to nothing but themselves. Where tokens follow tokens, one
// fence does for all.
OXCCL_INLINE void fence_tokens(const Instruction& instruction, uint32_t flag) {
  if ((instruction.flags & flag) && lane() < sizeof(Tokens) / LINE_DATA_BYTES) system_fence();
}

// The tokens of one peer, as one thread.
OXCCL_INLINE bool take_token(Machine& machine, const Operand* operands) {
  View view;
  if (!resolve_slot(machine, operands[0], sizeof(Tokens), &view)) return false;
  uint64_t words[2];
#pragma unroll
  for (uint32_t w = 0; w < 2; ++w)
    if (!receive_line(machine, view, view.data + w * LINE_BYTES, &words[w])) return false;
  window_of(machine, operands[1]).tokens = {words[0], words[1]};
  return true;
}

// The tokens of several peers at once: each peer's by a thread, which acquires them (fence_tokens);
// the barrier passes that on.
OXCCL_INLINE bool run_tokens(Machine& machine, const Instruction* instructions,
                             const Operand* operands) {
  const uint32_t run = run_of(instructions[0]);
#pragma unroll 1
  for (uint32_t t = lane(); t < run; t += lanes())
    if (machine.step = instructions[t].step; !take_token(machine, operands + instructions[t].index))
      break;
  if (lane() < run) system_fence();
  return agreed(machine);
}

// Moves the tile; a group's, bucket by bucket; of several copies, each one's. False only on a host:
// where others of the block may still be waiting, a thread whose wait was stopped goes on to where
// they agree.
template <class Reducer>
OXCCL_INLINE bool move_operands(Machine& machine, const Reducer& reducer, const Together& together,
                                uint64_t round_start, Workspace& workspace) {
  bool done = false;
  if (try_plain_walk(machine, reducer, round_start, workspace, &done)) return done;
  // One place that moves, in a loop: a second copy of that code would not fit into a kernel's
  // registers.
  Walk walk(machine, together, round_start, workspace);
#pragma unroll 1
  while (walk.next()) reduce_copy(machine, workspace.moves[walk.piece()], reducer);
  return machine.fault.outcome == OUTCOME_DONE || !ONE_THREAD;
}

// The moves, and their operands as addresses, a thread for each. `len_bytes` is the first's.
OXCCL_INLINE bool resolve_all(Machine& machine, const Tables& tables, const Together& together, uint64_t round_start,
                              uint64_t len_bytes, Workspace& workspace) {
  const Instruction* const first = together.first;
  const bool several = together.several();
  const uint32_t operands = several ? 2 * together.copies : uint32_t(first->sources) + first->destinations;
  if (leader()) workspace.operands = tables.operands + first->index;
#pragma unroll 1
  for (uint32_t o = lane(); o < operands; o += lanes()) {
    const uint32_t number = several ? o / 2 : 0, own = several ? o % 2 : o;
    const Instruction& instruction = first[number];
    const uint64_t len = several ? tile_of(instruction, round_start, tables.entry->tile_bytes) : len_bytes;
    machine.step = instruction.step;
    if (own == 0) workspace.moves[number] = move_of(machine.launch, instruction, len, Views(workspace.views) + o);
    if (!resolve(machine, tables.operands[instruction.index + own], round_start, len, &workspace.views[o])) break;
  }
  return agreed(machine);
}

template <class Reducer>
OXCCL_NOINLINE bool run_reduce_copy(Machine& machine, const Reducer& reducer, const Tables& tables,
                                    const Together& together, uint64_t round_start, uint64_t len_bytes,
                                    Workspace& workspace) {
  const Instruction& instruction = *together.first;
  const Operand* operands = tables.operands + instruction.index;
  const uint32_t count = uint32_t(instruction.sources) + instruction.destinations;
  const bool tree = instruction.flags & INSTRUCTION_TREE;
  if (OXCCL_UNLIKELY(count > MAX_OPERANDS || instruction.sources == 0 ||
                     (tree && instruction.sources > MAX_TREE_SOURCES))) {
    machine.fail(OUTCOME_BAD_PROGRAM, 0, count);
    return agreed(machine);
  }
  const bool by_switch = OXCCL_UNLIKELY(reads_all(instruction) || writes_all(instruction)) &&
                         lie_alike(machine, operands, count, workspace);
  if (by_switch) {
    const uint64_t switched = try_switch(machine, reducer, instruction, operands, round_start, len_bytes);
    // Less than it moves at once is left.
    round_start += switched;
    len_bytes -= switched;
    if (switched != 0 && len_bytes == 0) return agreed(machine);
  }
  if (!resolve_all(machine, tables, together, round_start, len_bytes, workspace)) return false;
  if (by_switch) point_to_members(machine, instruction, operands, round_start, workspace);
  fence_tokens(instruction, INSTRUCTION_RELEASE);
  bool done = false;
  if (!try_private(machine, reducer, instruction, round_start, workspace, &done))
    done = move_operands(machine, reducer, together, round_start, workspace);
  if (!done) return false;
  write_headers(machine, tables, together, workspace);
  fence_tokens(instruction, INSTRUCTION_ACQUIRE);
  return agreed(machine);
}

template <class Reducer>
OXCCL_INLINE bool move_tile(Machine& machine, const Reducer& reducer, const Tables& tables,
                            const Together& together, uint64_t round_start, Workspace& workspace) {
  const Instruction& first = *together.first;
  const uint64_t len_bytes = tile_of(first, round_start, tables.entry->tile_bytes);
  bool done = false;
  if (try_short(machine, reducer, first, tables.operands + first.index, round_start, len_bytes, &done)) return done;
  return run_reduce_copy(machine, reducer, tables, together, round_start, len_bytes, workspace);
}

// How many instructions from here on are one step. Of buckets one is: each has a walk of its own.
OXCCL_INLINE uint32_t copies_of_step(const Launch& launch, const Instruction& first) {
  if (ONE_THREAD || launch.segments != nullptr) return 1;
  return first.run < MOST_PIECES ? first.run : MOST_PIECES;
}

// One ReduceCopy, or as many of a run as can be done at once: `taken`.
template <class Reducer>
OXCCL_INLINE bool run_moves(Machine& machine, const Reducer& reducer, const Tables& tables,
                            const Instruction* first, uint64_t round_start, Workspace& workspace,
                            uint32_t* taken) {
  if (run_of(*first) > 1 && tables.operands[first->index + 1].space == SPACE_PEER_TOKENS)
    return run_tokens(machine, first, tables.operands);
  bool done = false;
  if (try_at_once(machine, reducer, tables, first, round_start, workspace, &done)) return done;
  *taken = copies_of_step(machine.launch, *first);
  return move_tile(machine, reducer, tables, {first, *taken}, round_start, workspace);
}

// Before the first send of a round; rounds advance past a multiple of LL_EPOCHS once in a long
// while.
OXCCL_INLINE bool keep_epochs(Machine& machine, const ChannelEntry& entry,
                              const Advance* advances) {
#pragma unroll 1
  for (uint32_t a = lane(); a < entry.advances; a += lanes()) {
    if (advances[a].sent == 0) continue;
    Connection& connection = machine.launch.connections[advances[a].connection];
    if (OXCCL_UNLIKELY(connection.sent - connection.cleared >= LL_EPOCHS) &&
        has_flags(connection) && !clear_slots(machine, connection))
      break;
  }
  return agreed(machine);
}

OXCCL_INLINE void advance_cursors(const Launch& launch, const ChannelEntry& entry,
                                  const Advance* advances) {
  barrier();  // other threads may still signal by the cursors
#pragma unroll 1
  for (uint32_t a = lane(); a < entry.advances; a += lanes()) {
    const Advance& advance = advances[a];
    Connection& connection = launch.connections[advance.connection];
    // Two channels of a rank may share one, which sends to the other.
    if (advance.received != 0) connection.received += advance.received;
    if (advance.sent != 0) connection.sent += advance.sent;
    if (advance.sent != 0 && has_flags(connection))
      prefetch_write(slot(connection.send_slots, connection, connection.sent));
  }
  barrier();
}

template <class Reducer>
OXCCL_INLINE bool run_rounds(Machine& machine, const Reducer& reducer, Workspace& workspace) {
  const Tables& tables = workspace.tables;
  const ChannelEntry& entry = *tables.entry;
#pragma unroll 1
  for (uint64_t round = 0; round < entry.rounds; ++round) {
    if (!(round == 0 && knows_epochs(workspace)) && !keep_epochs(machine, entry, tables.advances)) return false;
#pragma unroll 1
    for (uint32_t i = 0; i < entry.instructions;) {
      const Instruction& instruction = tables.instructions[i];
      machine.step = instruction.step;
      uint32_t taken = run_of(instruction);
      OXCCL_TRACED_STEP(round, instruction, taken);
      if (instruction.opcode == OPCODE_WAIT) {
        if (!run_waits(machine, &instruction)) return false;
      } else if (instruction.opcode == OPCODE_SIGNAL) {
        run_signals(machine, &instruction);
      } else if (!run_moves(machine, reducer, tables, &instruction, round * entry.tile_bytes, workspace, &taken)) {
        return false;
      }
      i += taken;
    }
    advance_cursors(machine.launch, entry, tables.advances);
  }
  return true;
}

// The number of a part's bucket in the group.
OXCCL_INLINE uint32_t bucket_number(const Launch& launch, uint32_t segment) {
  return launch.segments ? launch.segments[segment].bucket : launch.bucket;
}

// A group's part begins when this rank's buckets are ready. Peers learn of it by its first
// messages. Words of a GPU's buckets lie in the host's memory, so each trip there takes as long as
// a short call: all threads look at once, and then one waits for a bucket that it misses.
OXCCL_INLINE bool await_ready(Machine& machine, uint32_t* waiter) {
  const Launch& launch = machine.launch;
  if (OXCCL_LIKELY(launch.ready == nullptr || !(launch.flags & LAUNCH_AWAITS))) return true;
  uint32_t s = lane();
  for (;;) {
    Awaited word = {nullptr, launch.call};
    Place place = {0, 0, 0, LANE_READY, 0, nullptr};
    bool misses = false;
    for (; s < launch.segments_count; s += lanes()) {
      place.awaited = bucket_number(launch, s);
      word.word = launch.ready + place.awaited;
      if (misses = int64_t(load_acquire(word.word)) < int64_t(word.value); misses) break;
    }
    if (leader()) *waiter = 0;
    if (!barrier_any(misses)) return true;
    uint64_t now = 0;
    if (misses && claim(waiter)) machine.await_counter(word, place, &now);
    if (!agreed(machine)) return false;
  }
}

// All that the part's rounds have written on this channel is there, and no peer reads or writes the
// buckets any more.
OXCCL_INLINE void mark_done(const Machine& machine) {
  const Launch& launch = machine.launch;
  if (OXCCL_LIKELY(launch.done == nullptr || !(launch.flags & LAUNCH_COMPLETES))) return;
  barrier();
#pragma unroll 1
  for (uint32_t s = lane(); s < launch.segments_count; s += lanes()) {
    const uint64_t first = uint64_t(bucket_number(launch, s)) * launch.done_stride;
    store_release(launch.done + first + machine.channel, launch.call);
  }
}

// One channel, to its end. The caller has checked that `reducer` is for the program's type and
// fold.
template <class Reducer>
OXCCL_INLINE uint32_t run_channel(const Launch& launch, uint32_t channel, const Reducer& reducer,
                                  Workspace& workspace) {
  if (leader()) {
    workspace.fault.outcome = OUTCOME_DONE;
    workspace.fault.claimed = 0;
    workspace.apart = false;
    open_tables(launch, channel, workspace);
  }
  barrier();
  Machine machine = {launch, workspace.fault, channel, 0, false};
  const bool done = await_ready(machine, &workspace.waiter) && run_rounds(machine, reducer, workspace);
  if (machine.streamed) stream_fence();
  if (OXCCL_LIKELY(done)) {
    mark_done(machine);
    return OUTCOME_DONE;
  }
  const Fault& fault = workspace.fault;
  if (leader()) launch.statuses[channel] = {fault.outcome, fault.step, fault.peer, fault.found};
  return fault.outcome;
}

// The last channel to end says so, however it has ended, to the host and to streams. All that the
// channels have done is there then, since each releases it by its arrival, and the last one
// acquires and releases it again; and none touches anything of the launch any more. A channel that
// is the only one need not count: the barrier puts all that it did in front of the release.
OXCCL_INLINE void tell_end(const Launch& launch) {
  if (!leader() || OXCCL_LIKELY(launch.ended == nullptr)) return;
  if (launch.launched == 1 || arrives_last(launch.arrived, uint32_t(launch.launched))) store_release(launch.ended, launch.call);
}

OXCCL_INLINE void end_launch(const Launch& launch) {
  // One thread looks, behind a barrier for all: with a branch of the whole block some kernels for
  // sm_120 do not fit into their registers.
  barrier();
  tell_end(launch);
}

// The launch block of one rank, whose channel is left in `channel`, where a launch is for several
// ranks at once.
OXCCL_INLINE const Launch& own_launch(const Launch& launch, uint32_t& channel) {
  const uint32_t channels = launch.joined_channels;
  if (OXCCL_LIKELY(channels == 0)) return launch;
  const Launch& own = launch.next[channel / channels];
  channel %= channels;
  return own;
}

// Says whether this executor can run the program at all.
OXCCL_INLINE bool is_runnable(const Header* program, uint32_t channel) {
  return program->magic == MAGIC && program->version == VERSION && channel < program->channels;
}

// What a part of a chain has of the first: what differs from launch to launch.
OXCCL_INLINE void inherit(Launch& part, const Launch& first) {
  part.statuses = first.statuses;
  part.call = first.call;
  part.history = first.history;
  part.ready = first.ready;
  part.done = first.done;
  part.ended = first.ended;
  part.arrived = first.arrived;
  part.launched = first.launched;
  part.spins = first.spins;
  part.yields = first.yields;
}

// Whether the channel has no share in a part of a group, of which other parts use other channels.
// It is done with the part's buckets then.
OXCCL_INLINE bool is_without_share(const Launch& launch, uint32_t channel) {
  return launch.done_stride != 0 && channel_of_program(launch, channel) >= launch.program->channels;
}

OXCCL_INLINE void pass_over(const Launch& launch, uint32_t channel) {
  Fault fault = {};
  const Machine machine = {launch, fault, channel, 0, false};
  mark_done(machine);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
