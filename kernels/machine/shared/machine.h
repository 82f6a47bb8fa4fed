// The state of one channel while its program runs, and what its parts share.
#pragma once
#include "numeric.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Subtrees that the tree fold holds at a time, at most.
constexpr uint32_t TREE_LEVELS = 8;
static_assert(1u << TREE_LEVELS == MAX_TREE_SOURCES, "one level per doubling");

// Beside the operand's flags: the message is in LL128 lines; each word's bucket is yet to be found
// (cuda/at_once.h).
constexpr uint32_t VIEW_LL128 = 1 << 8;
constexpr uint32_t VIEW_IN_BUCKETS = 1 << 9;

// An operand of the instruction at hand, as an address.
struct View {
  uint8_t* data;           // messages with flags: the first line behind the header
  Connection* connection;  // slots only
  uint32_t epoch;          // messages with flags: the flag; 0 for plain memory
  uint32_t flags;          // OPERAND_*, VIEW_*

  OXCCL_INLINE bool is_plain() const { return epoch == 0; }
  OXCCL_INLINE bool is_ll() const { return epoch != 0 && !is_ll128(); }
  OXCCL_INLINE bool is_ll128() const { return flags & VIEW_LL128; }
  OXCCL_INLINE bool is_in_buckets() const { return flags & VIEW_IN_BUCKETS; }
  OXCCL_INLINE bool is_raw() const { return flags & OPERAND_RAW; }
  OXCCL_INLINE bool is_stream() const { return flags & OPERAND_STREAM; }
};

using Views = BlockPointer<View, MAX_OPERANDS>;

// A `ReduceCopy` with its operands resolved: sources first, destinations behind them.
struct Move {
  Views views;
  uint32_t sources, destinations;
  uint64_t len_bytes;
  Scaling scaling;
  bool tree;
  uint32_t first_lane;  // of a block's threads, the one that moves the first bytes

  OXCCL_INLINE const View& source(uint32_t index) const { return views[index]; }
  OXCCL_INLINE const View& destination(uint32_t index) const { return source(sources + index); }
};

// Where the channel's program is.
struct Tables {
  const ChannelEntry* entry;
  const Instruction* instructions;
  const Operand* operands;
  const Advance* advances;
};

// How much of a reduce-copy a round moves.
OXCCL_INLINE uint64_t tile_of(const Instruction& instruction, uint64_t round_start, uint64_t tile_bytes) {
  const uint64_t total = instruction.len_bytes;
  const uint64_t left = total > round_start ? total - round_start : 0;
  return left < tile_bytes ? left : tile_bytes;
}

// What is one step of a reduce-copy: the instruction's, or several copies one behind the other. A
// GPU's block has no barrier between these: what comes before and behind a copy takes as long as
// moving 64 KiB, and is taken once for all.
struct Together {
  const Instruction* first;
  uint32_t copies;

  OXCCL_INLINE bool several() const { return !ONE_THREAD && copies > 1; }
};

// Which channel of the part's program the launch's is; none from the program's `channels` on.
OXCCL_INLINE uint32_t channel_of_program(const Launch& launch, uint32_t channel) {
  return channel - launch.first_channel;
}

OXCCL_INLINE Tables tables_of(const Header* program, uint32_t channel) {
  const uint8_t* base = reinterpret_cast<const uint8_t*>(program);
  const ChannelEntry* entry =
      reinterpret_cast<const ChannelEntry*>(base + program->channels_offset) + channel;
  return {entry,
          reinterpret_cast<const Instruction*>(base + program->instructions_offset) +
              entry->first_instruction,
          reinterpret_cast<const Operand*>(base + program->operands_offset),
          reinterpret_cast<const Advance*>(base + program->advances_offset) + entry->first_advance};
}

// What the threads of a block share. On a GPU their registers are for the data alone, so the
// instruction at hand is here.
struct Workspace {
  Fault fault;
  Tables tables;
  const Operand* operands;
  BlockTable<Move, 1 + MOST_PIECES> moves;  // the tile's; behind it those of its pieces
  BlockTable<View, MAX_OPERANDS> views;
  bool apart;  // a rank's buffers are at another place of its heap than this one's
  bool epochs_kept;  // of the first round: see knows_epochs
  uint32_t waiter;   // claimed by the thread that waits for a bucket
  BucketTables buckets;

  OXCCL_INLINE Move& move() { return moves[0]; }
  OXCCL_INLINE const Move& move() const { return moves[0]; }
};

// The first thread to fail says why. Out of line on a GPU it would make nvcc take twice as long,
// for kernels of the same length.
OXCCL_INLINE void fail_once(Fault* fault, uint32_t step, uint32_t outcome, uint32_t peer, uint32_t found) {
  if (!claim(&fault->claimed)) return;
  fault->step = step;
  fault->peer = peer;
  fault->found = found;
  publish(&fault->outcome, outcome);
}

struct Machine {
  const Launch& launch;
  Fault& fault;  // the block's
  uint32_t channel;
  uint32_t step;
  bool streamed;  // non-temporal stores are under way

  OXCCL_INLINE bool fail(Outcome outcome, uint32_t peer, uint32_t found) {
    fail_once(&fault, step, outcome, peer, found);
    return false;
  }

  // A message of another call. With the signature that we expect but another length, the programs
  // disagree.
  OXCCL_INLINE bool mismatch(uint32_t expected, uint32_t found, uint32_t peer) {
    return fail(found == expected ? OUTCOME_BAD_PROGRAM : OUTCOME_MISMATCH, peer, found);
  }

  // The slow part of a wait, as one thread: when true comes back, look again, and call `wait_over`
  // once it is there.
  OXCCL_INLINE bool await(const Awaited& awaited, const Place& place, Patience& patience) {
    if (wait_slow(launch, channel, awaited, place, fault, patience)) return true;
    if (fault.outcome != OUTCOME_DONE) return false;
    return fail(OUTCOME_ABORTED, place.peer, 0);
  }

  // Waits until a counter has come to what is awaited, and says where it is then.
  OXCCL_INLINE bool await_counter(const Awaited& awaited, const Place& place, uint64_t* now) {
    *now = load_acquire(awaited.word);
    if (OXCCL_LIKELY(int64_t(*now) >= int64_t(awaited.value))) return true;
    Patience patience = {};
    do {
      if (!await(awaited, place, patience)) return false;
      *now = load_acquire(awaited.word);
    } while (int64_t(*now) < int64_t(awaited.value));
    wait_over(launch, channel, patience);
    return true;
  }
};

// True when the whole block may go on. What each thread knew in front of the barrier counts: behind
// it, one that is ahead may have failed in the next step before the others look.
OXCCL_INLINE bool agreed(Machine& machine) {
  return OXCCL_LIKELY(!barrier_any(machine.fault.outcome != OUTCOME_DONE));
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
