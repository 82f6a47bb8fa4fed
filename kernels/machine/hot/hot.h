// Runs a schedule that is known when the kernel is compiled.
//
//     a team of warps for each rank, which has its connection in registers (of a leaf, whose only peer is
//     the root, one of all warps)
//     for each step, unrolled:
//       wait:    a credit: each thread looks;  what opens memory: one thread of the team, barrier
//       move:    messages and copies: each team its rank's;  barrier
//       reduce:  of messages: each team gathers its rank's, barrier, folds all for its rank
//                of windows: the block's threads, pack by pack, all sources' loads under way at once
//       signal:  one thread of the team
//     cursors:   one thread of the team
//
// Why it is fast: it reads nothing that says what to do. One trip to memory tells where messages
// are, for all peers at once, and data that this rank has is on its way meanwhile. What is moved,
// and in which order it is reduced, is what the interpreter does with the same schedule, and so are
// cursors, errors and traces of waits: a communicator's calls may run in either. A group's buckets
// are one virtual buffer (InBuckets): where they are, a thread each reads, all at once.
#pragma once
#include "move.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t HOT_BEGINNER = 66;

struct NoReducer {};
template <class Numbers, Fold F>
struct HotReducer {
  using N = Numbers;
  static constexpr Fold FOLD = F;
};

// Credits: nobody else's memory hangs on them, so each thread that is about to send looks by
// itself. Others open memory: one thread acquires for all.
template <uint32_t NUMBER, class Schedule>
OXCCL_INLINE bool hot_wait(Hot<Schedule>& hot) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  hot.template at_step<NUMBER>();
  if constexpr (step.head) {
    static_assert(step.lane == Schedule::LANE, "credits are of messages");
    const uint64_t value = hot.local.sent + uint64_t(int64_t(step.value));
    if (!hot.is_peer || int64_t(hot.local.head_seen) >= int64_t(value)) return true;
    hot.local.head_seen = await_apart(&hot.launch, &hot.block.fault, hot.machine.channel, hot.local.send_head, value,
                                      hot.machine.step, hot.peer, Schedule::LANE, 1, hot.connection);
    hot.stopped |= int64_t(hot.local.head_seen) < int64_t(value);
    return true;
  } else {
    static_assert(step.lane == LANE_SYNC, "messages with flags need no tails");
    if (hot.is_peer && hot.is_first()) {
      const uint64_t value = hot.local_sync.received + uint64_t(int64_t(step.value));
      const uint64_t* word = &header_of(hot.local_sync.recv_slots, hot.local_sync, value - 1)->tail;
      if (int64_t(load_acquire(word)) < int64_t(value))
        await_apart(&hot.launch, &hot.block.fault, hot.machine.channel, word, value, hot.machine.step, hot.peer,
                    LANE_SYNC, 0, hot.sync);
    }
    return agreed(hot.machine);
  }
}

// Behind the barrier of what they tell of.
template <uint32_t NUMBER, class Schedule>
OXCCL_INLINE void hot_signal(Hot<Schedule>& hot) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  if (!hot.is_peer || !hot.is_first()) return;
  if constexpr (step.head) {
    store_credit(hot.local.recv_head, hot.local.received + uint64_t(int64_t(step.value)));
  } else {
    const uint64_t value = hot.local_sync.sent + uint64_t(int64_t(step.value));
    store_release(&header_of(hot.local_sync.send_slots, hot.local_sync, value - 1)->tail, value);
  }
}

// Tokens give what happened before, to whoever takes them: see fence_tokens.
template <class Schedule>
OXCCL_INLINE void send_tokens(Hot<Schedule>& hot, const HotPlace& to) {
  if (!hot.is_peer || hot.stopped) return;
  const View view = hot.outgoing(to);
  if (hot.is_first()) {
    system_fence();
    store_line(view.data, hot.launch.tokens.input, view.epoch);
    store_line(view.data + LINE_BYTES, hot.launch.tokens.output, view.epoch);
  } else if (hot.is_last()) {
    announce(view, hot.signature(), sizeof(Tokens));
  }
}

template <class Schedule>
OXCCL_INLINE void take_tokens(Hot<Schedule>& hot, const HotPlace& from) {
  if (!hot.is_first()) return;
  uint8_t *input = const_cast<uint8_t*>(hot.launch.input), *output = hot.launch.output;
  if (hot.is_peer) {
    const View view = hot.incoming(from);
    const Window window = *hot.window;
    Line lines[3];
#pragma unroll
    for (uint32_t l = 0; l < 3; ++l) lines[l] = load_line(view.data - LL_HEADER_BYTES + l * LINE_BYTES);
#pragma unroll
    for (uint32_t l = 0; l < 3; ++l) {
      const uint8_t* at = view.data - LL_HEADER_BYTES + l * LINE_BYTES;
      if (!carries(lines[l], view.epoch) && !await_line(hot.machine, view, at, &lines[l])) return;
    }
    const uint64_t expected = hot.signature() | uint64_t(sizeof(Tokens)) << 32;
    if (lines[0].data != expected) {
      hot.machine.mismatch(hot.signature(), uint32_t(lines[0].data), hot.peer);
      return;
    }
    system_fence();
    input = behind(window, lines[1].data);
    output = behind(window, lines[2].data);
    if constexpr (has_switch<Schedule>()) {
      const Multicast& multicast = hot.launch.multicast;
      if (lines[1].data - window.heap != multicast.input || lines[2].data - window.heap != multicast.output)
        hot.block.apart = true;
    }
  } else if (!hot.is_own) {
    return;
  }
  hot.block.ranks[hot.peer] = {input, output};
  if (is_irregular({input, output})) hot.block.irregular = true;
}

// The group's buckets, a thread each: no kernel is launched with more of them.
template <class Schedule>
OXCCL_INLINE void read_buckets(const Launch& launch, HotBuckets& buckets) {
#pragma unroll 1
  for (uint32_t b = lane(); b < launch.segments_count; b += lanes()) {
    const Segment& one = launch.segments[b];
    const Buffers own = {const_cast<uint8_t*>(one.input), one.output};
    buckets.starts[b] = uint32_t(one.start);
    buckets.lens[b] = uint32_t(one.len_bytes);
    buckets.own[b] = own;
    buckets.irregular[b] = is_irregular(own) || (Schedule::OF_RANKS && one.len_bytes % PACK_BYTES != 0);
  }
}

// Where the ranks have the buckets that the channel's part is in, each rank's by its team. A peer's
// tokens say where its table of them is.
template <class Schedule>
OXCCL_INLINE void find_places(Hot<Schedule>& hot) {
  HotBuckets& buckets = hot.block.buckets;
  const ChunkPart part = hot.part(chunk_of_windows<Schedule>());
  const uint32_t count = hot.launch.segments_count;
  const uint32_t first = find_bucket(buckets, count, part.offset).number;
  const uint32_t last = find_bucket(buckets, count, part.offset + part.len_bytes).number;
  hot.first_bucket = first;
  if (hot.is_own || hot.is_peer) {
    const auto* table = reinterpret_cast<const SegmentTokens*>(hot.block.ranks[hot.peer].input);
    const Window window = *hot.window;
#pragma unroll 1
    for (uint32_t b = first + hot.team.thread; b <= last; b += hot.team.threads) {
      Buffers place = buckets.own[b];
      if (hot.is_peer) place = {behind(window, table[b].input), behind(window, table[b].output)};
      hot.places(hot.peer)[b * hot.launch.ranks] = place;
      if (is_irregular(place)) buckets.irregular[b] = true;
    }
  }
  barrier();
}

// The barrier behind a move is left out where nothing hangs on it. What is sent, the team's own
// threads have read, each the units that it may write later, when the peer's come to their place.
// Behind the gathering of messages there has been one, and credits are given for what was gathered.
template <uint32_t NUMBER, class Reducer, class Schedule>
OXCCL_INLINE bool hot_move(Hot<Schedule>& hot) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  hot.template at_step<NUMBER>();
  if constexpr (step.own.where == Where::TOKENS) {
    send_tokens(hot, step.to_peers);
    return true;
  } else if constexpr (step.to_peers.where == Where::TOKENS) {
    take_tokens(hot, step.peers);
    if (!agreed(hot.machine)) return false;
    if constexpr (Schedule::IN_BUCKETS) find_places(hot);
    return true;
  } else if constexpr (is_joined<Schedule>(NUMBER)) {
    return true;
  } else if constexpr (!is_reduction(step)) {
    hot_copy<NUMBER>(hot);
    return is_message(step.to_peers) || agreed(hot.machine);
  } else if constexpr (is_message(step.peers)) {
    return reduce_messages<NUMBER, typename Reducer::N, Reducer::FOLD>(hot);
  } else {
    using N = typename Reducer::N;
    ChunkPart part = hot.part(step.own.chunk);
    ChunkPart to_part = step.to_own.chunk == step.own.chunk ? part : hot.part(step.to_own.chunk);
    // Which divides by no number.
    if constexpr (is_switched(step)) {
      const uint32_t switched = reduce_by_switch<N, Reducer::FOLD>(hot, part);
      part = {part.offset + switched, part.len_bytes - switched, 0};
      to_part.offset += switched;
    }
    if constexpr (Schedule::IN_BUCKETS) reduce_buckets<NUMBER, N, Reducer::FOLD>(hot, part, to_part);
    else reduce_windows<NUMBER, N, Reducer::FOLD>(hot, part, to_part.offset);
    return agreed(hot.machine);
  }
}

template <uint32_t NUMBER, class Reducer, class Schedule>
OXCCL_INLINE bool run_steps(Hot<Schedule>& hot) {
  if constexpr (NUMBER == sizeof(Schedule::STEPS) / sizeof(HotStep)) {
    return true;
  } else {
    constexpr Act act = Schedule::STEPS[NUMBER].act;
    bool goes_on = true;
    if constexpr (act == Act::WAIT) goes_on = hot_wait<NUMBER>(hot);
    else if constexpr (act == Act::SIGNAL) hot_signal<NUMBER>(hot);
    else goes_on = hot_move<NUMBER, Reducer>(hot);
    return goes_on && run_steps<NUMBER + 1, Reducer>(hot);
  }
}

// As keep_epochs.
template <class Schedule>
OXCCL_INLINE bool clear_hot_slots(Hot<Schedule>& hot) {
  if (hot.is_peer && hot.is_first() && hot.local.sent - hot.local.cleared >= LL_EPOCHS)
    clear_apart(&hot.launch, &hot.block.fault, hot.machine.channel, hot.connection);
  return agreed(hot.machine);
}

template <class Schedule>
OXCCL_INLINE void advance_hot_cursors(Hot<Schedule>& hot) {
  if (!hot.is_peer || !hot.is_first()) return;
  hot.connection->sent = hot.local.sent + hot.MESSAGES.sent;
  hot.connection->received = hot.local.received + hot.MESSAGES.received;
  hot.connection->head_seen = hot.local.head_seen;
  if constexpr (hot.SYNCS) {
    hot.sync->sent = hot.local_sync.sent + hot.SYNC.sent;
    hot.sync->received = hot.local_sync.received + hot.SYNC.received;
  }
}

template <class Schedule>
OXCCL_INLINE bool hot_ready(Hot<Schedule>& hot) {
  if constexpr (Schedule::IN_BUCKETS) return await_ready(hot.machine, &hot.block.waiter);
  return true;
}

template <class Schedule, class Reducer>
OXCCL_INLINE void run_hot(const Launch& launch) {
  const uint32_t channel = blockIdx.x;
  HotBlock& block = hot_block();
  Hot<Schedule> hot(launch, block, channel);
  if (leader()) {
    block.fault.outcome = OUTCOME_DONE;
    block.fault.claimed = 0;
    block.irregular = false;
    block.apart = false;
  }
  if constexpr (Schedule::IN_BUCKETS) read_buckets<Schedule>(launch, block.buckets);
  if (lane() == HOT_BEGINNER) block.beside = channel == 0 && exchange(&launch.doorbells->sleeping, 1) != 0;
  const bool clears = barrier_any(hot.is_peer && hot.local.sent - hot.local.cleared >= LL_EPOCHS);
  if (block.beside) {
    if (leader()) launch.statuses[channel] = {OUTCOME_BESIDE, 0, 0, 0};
  } else if ((!clears || clear_hot_slots(hot)) && hot_ready(hot) && run_steps<0, Reducer>(hot)) {
    advance_hot_cursors(hot);
    if constexpr (Schedule::IN_BUCKETS) mark_done(hot.machine);
  } else if (leader()) {
    launch.statuses[channel] = {block.fault.outcome, block.fault.step, block.fault.peer, block.fault.found};
  }
  barrier();
  if (leader() && channel == 0 && !block.beside) store_relaxed(&launch.doorbells->sleeping, 0);
  tell_end(launch);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
