// Runs a schedule that is known when the kernel is compiled.
//
//     a team of warps for each rank, which has its connection in registers
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
// cursors, errors and traces of waits: a communicator's calls may run in either.
#pragma once
#include "schedule.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t MOST_HOT_RANKS = 16;
constexpr uint32_t HOT_GATHERED_BYTES = 16 << 10;

// What a block's threads share.
struct HotBlock {
  Fault fault;
  bool beside;     // another launch of this rank is under way
  bool irregular;  // buffers do not begin at multiples of 16 bytes
  bool apart;      // a rank's buffers are at another place of its heap than this one's
  uint8_t* inputs[MOST_HOT_RANKS];
  uint8_t* outputs[MOST_HOT_RANKS];
  alignas(16) uint8_t gathered[HOT_GATHERED_BYTES];
};

OXCCL_INLINE HotBlock& hot_block() {
  __shared__ HotBlock memory;
  return memory;
}

constexpr uint32_t HOT_BEGINNER = 66;

// A channel's share of a chunk. Buffers of hot kernels have up to 2 GiB.
struct ChunkPart {
  uint32_t offset, len_bytes;
};

OXCCL_INLINE uint32_t less_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

OXCCL_INLINE ChunkPart part_of_chunk(const Launch& launch, uint32_t channel, uint32_t chunk) {
  const uint32_t total = uint32_t(launch.extents.total_bytes), whole = uint32_t(launch.extents.chunk_bytes);
  const uint32_t start = less_of(chunk * whole, total), len = less_of(total - start, whole);
  const uint32_t part = uint32_t(len == whole ? launch.extents.part_bytes : launch.extents.shorter_part_bytes);
  const uint32_t first = less_of(channel * part, len);
  return {start + first, less_of(len - first, part)};
}

// What rarely runs is out of line, of values: see look_around.
OXCCL_APART uint64_t await_apart(const Launch* launch, Fault* fault, uint32_t channel, const uint64_t* word,
                                 uint64_t value, uint32_t step, uint32_t peer, uint32_t lane, uint32_t head,
                                 const Connection* connection) {
  Machine machine = {*launch, *fault, channel, step, false};
  uint64_t now = 0;
  machine.await_counter({word, value}, {value, step, peer, lane, head, connection}, &now);
  return now;
}

// As clear_slots.
OXCCL_APART void clear_apart(const Launch* launch, Fault* fault, uint32_t channel, Connection* connection) {
  const uint64_t sent = connection->sent;
  const uint64_t consumed = await_apart(launch, fault, channel, connection->send_head, sent, 0, connection->peer,
                                        connection->lane, 1, connection);
  if (int64_t(consumed) < int64_t(sent)) return;
  const uint32_t len_bytes = connection->slots * connection->slot_stride_bytes;
#pragma unroll 1
  for (uint32_t at = 0; at < len_bytes; at += LINE_BYTES) store_line(connection->send_slots + at, 0, 0);
  connection->cleared = sent;
}

// The header of a message, which comes whenever it comes: nobody of the team waits for it.
OXCCL_APART void accept_message(const Launch* launch, Fault* fault, uint32_t channel, uint32_t step, uint8_t* data,
                                Connection* connection, uint32_t epoch, uint32_t flags, uint32_t signature,
                                uint64_t len_bytes) {
  Machine machine = {*launch, *fault, channel, step, false};
  receive_header(machine, {data, connection, epoch, flags}, signature, len_bytes);
}

// The last word of memory, or one at an odd place.
OXCCL_APART uint64_t load_apart(const uint8_t* at, uint32_t left) {
  const bool halves = (uint32_t(reinterpret_cast<uintptr_t>(at)) | left) % 4 == 0;
  return halves ? load_units<uint32_t>(at, left) : load_units<uint8_t>(at, left);
}
OXCCL_APART void store_apart(uint8_t* at, uint64_t word, uint32_t left) {
  const bool halves = (uint32_t(reinterpret_cast<uintptr_t>(at)) | left) % 4 == 0;
  if (halves) store_units<uint32_t>(at, word, left);
  else store_units<uint8_t>(at, word, left);
}

OXCCL_INLINE uint64_t load_memory(const uint8_t* at, uint32_t left) {
  if (can_access_whole_words(at) && left >= 8) return *global_memory<const uint64_t>(const_cast<uint8_t*>(at));
  return load_apart(at, left);
}
OXCCL_INLINE void store_memory(uint8_t* at, uint64_t word, uint32_t left) {
  if (can_access_whole_words(at) && left >= 8) *global_memory<uint64_t>(at) = word;
  else store_apart(at, word, left);
}

// The units of messages, and of what is moved with them: words, or shares of lines.
template <uint8_t LANE>
struct UnitsOf {
  using Bits = uint64_t;
  uint32_t len_bytes;

  OXCCL_INLINE uint32_t count() const { return (len_bytes + 7) / 8; }
  OXCCL_INLINE Bits load(const uint8_t* memory, uint32_t unit) const {
    return load_memory(memory + unit * 8, len_bytes - unit * 8);
  }
  OXCCL_INLINE void store(uint8_t* memory, uint32_t unit, Bits bits) const {
    store_memory(memory + unit * 8, bits, len_bytes - unit * 8);
  }
  // The first look at a unit that comes, and what it is in the end.
  static constexpr uint32_t LOOKS = 2;
  OXCCL_INLINE Line look(const View& view, uint32_t unit) const { return load_line(view.data + unit * LINE_BYTES); }
  OXCCL_INLINE bool receive(Machine& machine, const View& view, uint32_t unit, Line line, Bits* bits) const {
    if (!carries(line, view.epoch) && !await_line(machine, view, view.data + unit * LINE_BYTES, &line)) return false;
    *bits = line.data;
    return true;
  }
  OXCCL_INLINE void send(const View& view, uint32_t unit, Bits bits) const {
    store_line(view.data + unit * LINE_BYTES, bits, view.epoch);
  }
};

// As Lines::receive, from where not all of a warp's lines were there.
OXCCL_APART Share receive_apart(const Launch* launch, Fault* fault, uint32_t channel, uint32_t step, uint8_t* data,
                                Connection* connection, uint32_t epoch, uint64_t len_bytes, uint32_t share) {
  Machine machine = {*launch, *fault, channel, step, false};
  Share into = {};
  Lines{len_bytes}.receive(machine, {data, connection, epoch, VIEW_LL128}, share, &into);
  return into;
}

template <>
struct UnitsOf<LANE_LL128> {
  using Bits = Share;
  uint32_t len_bytes;

  OXCCL_INLINE Lines lines() const { return {len_bytes}; }
  OXCCL_INLINE uint32_t count() const { return lines().count(); }
  OXCCL_INLINE Bits load(const uint8_t* memory, uint32_t share) const {
    const uint32_t at = uint32_t(Lines::position(share)), left = uint32_t(lines().left(share));
    Share bits = {0, 0};
    if (left > 0) bits.low = load_memory(memory + at, left);
    if (left > 8) bits.high = load_memory(memory + at + 8, left - 8);
    return bits;
  }
  OXCCL_INLINE void store(uint8_t* memory, uint32_t share, const Bits& bits) const {
    const uint32_t at = uint32_t(Lines::position(share)), left = uint32_t(lines().left(share));
    if (left > 0) store_memory(memory + at, bits.low, left);
    if (left > 8) store_memory(memory + at + 8, bits.high, left - 8);
  }
  static constexpr uint32_t LOOKS = 2;
  // By all of a warp at once, of which one may have been at the message's header.
  OXCCL_INLINE Share look(const View& view, uint32_t share) const {
    align_warp();
    return lines().is_in_line(share) ? load_share(view.data + share * SHARE_BYTES) : Share{0, 0};
  }
  OXCCL_INLINE bool receive(Machine& machine, const View& view, uint32_t share, const Share& looked, Bits* bits) const {
    *bits = looked;
    if (!any_of_warp(lines().is_in_line(share) && Lines::has_flag(share) && looked.high != view.epoch)) return true;
    *bits = receive_apart(&machine.launch, &machine.fault, machine.channel, machine.step, view.data, view.connection,
                          view.epoch, len_bytes, share);
    return true;
  }
  OXCCL_INLINE void send(const View& view, uint32_t share, const Bits& bits) const {
    lines().template store<uint8_t>(view, share, bits);
  }
};

// One thread's view of a launch: of its team's rank.
template <class Schedule>
struct Hot {
  static constexpr Messages MESSAGES = messages_of_lane<Schedule>();
  static constexpr Messages SYNC = messages_of_sync<Schedule>();
  static constexpr bool WINDOWS = has_windows<Schedule>();

  const Launch& launch;
  HotBlock& block;
  Machine machine;
  Team team;
  uint32_t peer;           // the team's rank
  bool is_peer, is_own;    // or it has none
  bool stopped;            // a wait of this thread's was
  Connection* connection;  // in memory, as the next two
  Connection* sync;
  const Window* window;
  Connection local, local_sync;  // as they were at the begin
  typename UnitsOf<Schedule::LANE>::Bits early;  // this thread's first unit of what is sent first

  OXCCL_INLINE Hot(const Launch& launch, HotBlock& block, uint32_t channel)
      : launch(launch),
        block(block),
        machine{launch, block.fault, channel, 0, false},
        team(launch.ranks),
        peer(team.number),
        is_peer(team.number < launch.ranks && team.number != launch.rank),
        is_own(team.number == launch.rank),
        stopped(false) {
    const uint32_t pair = channel * launch.ranks + peer;
    connection = launch.connections + uint64_t(pair) * LANES + Schedule::LANE;
    sync = launch.connections + uint64_t(pair) * LANES + LANE_SYNC;
    window = launch.windows + pair;
    if (!is_peer) return;
    local = *connection;
    if constexpr (WINDOWS) local_sync = *sync;
    constexpr HotStep sends = first_sent<Schedule>();
    if constexpr (sends.own.where == Where::INPUT) {
      const ChunkPart part = this->part(sends.own.chunk);
      const UnitsOf<Schedule::LANE> units = {part.len_bytes};
      if (team.thread < units.count()) early = units.load(launch.input + part.offset, team.thread);
    }
  }

  OXCCL_INLINE bool is_first() const { return team.thread == 0; }
  OXCCL_INLINE bool is_last() const { return team.thread == team.threads - 1; }
  OXCCL_INLINE uint32_t signature() const { return launch.signature ^ uint32_t(launch.history); }

  // The number of the instruction for this team's peer.
  template <uint32_t NUMBER>
  OXCCL_INLINE void at_step() {
    constexpr HotStep step = Schedule::STEPS[NUMBER];
    constexpr Before count = before<Schedule>(NUMBER);
    uint32_t number = count.once + count.each * (launch.ranks - 1);
    if constexpr (step.act != Act::MOVE || step.each) {
      const uint32_t distance = peer > launch.rank ? peer - launch.rank : peer + launch.ranks - launch.rank;
      if constexpr (step.ranked) number += peer < launch.rank ? peer : peer - 1;
      else number += distance - 1;
    }
    machine.step = number;
  }

  OXCCL_INLINE ChunkPart part(Chunk chunk) const {
    const uint32_t number = chunk == Chunk::ONLY ? 0 : chunk == Chunk::OWN ? launch.rank : peer;
    return part_of_chunk(launch, machine.channel, number);
  }

  OXCCL_INLINE View memory(const HotPlace& place, uint32_t offset, uint32_t rank) const {
    uint8_t* at = nullptr;
    if (place.where == Where::INPUT) at = const_cast<uint8_t*>(launch.input);
    else if (place.where == Where::OUTPUT) at = launch.output;
    else if (place.where == Where::WINDOW_INPUT) at = block.inputs[rank];
    else at = block.outputs[rank];
    return {at + offset, nullptr, 0, 0};
  }

  OXCCL_INLINE View message(uint8_t* slots, uint64_t number) const {
    uint8_t* at = slot(slots, local, number);
    if constexpr (Schedule::LANE == LANE_LL128) return {at + LL128_LINE_BYTES, connection, epoch_of(number), VIEW_LL128};
    else return {at + LL_HEADER_BYTES, connection, epoch_of(number), 0};
  }
  OXCCL_INLINE View incoming(const HotPlace& place) const {
    return message(local.recv_slots, local.received + place.message);
  }
  // Of an average what its result is divided by, else 0.
  template <uint32_t NUMBER>
  OXCCL_INLINE uint32_t divisor() const {
    constexpr bool FINISH = Schedule::STEPS[NUMBER].finish;
    return FINISH && (launch.flags & LAUNCH_AVERAGES) ? launch.ranks : 0;
  }

  // By a thread that has no unit of a short message.
  OXCCL_INLINE void accept(const View& view, uint64_t len_bytes) {
    if (is_last())
      accept_message(&launch, &block.fault, machine.channel, machine.step, view.data, connection, view.epoch, view.flags,
                     signature(), len_bytes);
  }
  OXCCL_INLINE View outgoing(const HotPlace& place) const { return message(local.send_slots, local.sent + place.message); }
};

// Units of a message that are this thread's, several under way at once. Threads of a warp come here
// together, and have as many.
template <class Units, class Sink>
OXCCL_INLINE void receive_units(Machine& machine, const Units& units, const View& from, uint32_t first, uint32_t end,
                                uint32_t threads, const Sink& sink) {
#pragma unroll 1
  for (uint32_t unit = first; unit < end; unit += threads * Units::LOOKS) {
    decltype(units.look(from, unit)) looked[Units::LOOKS];
#pragma unroll
    for (uint32_t u = 0; u < Units::LOOKS; ++u)
      if (unit + u * threads < end) looked[u] = units.look(from, unit + u * threads);
#pragma unroll
    for (uint32_t u = 0; u < Units::LOOKS; ++u) {
      typename Units::Bits bits;
      if (unit + u * threads >= end) break;
      if (!units.receive(machine, from, unit + u * threads, looked[u], &bits)) return;
      sink(unit + u * threads, bits);
    }
  }
}

// Which of a step's places says how much is moved.
OXCCL_INLINE constexpr Chunk chunk_of(const HotStep& step) {
  if (is_own_memory(step.own)) return step.own.chunk;
  if (is_own_memory(step.to_own)) return step.to_own.chunk;
  if (is_window(step.peers)) return step.peers.chunk;
  return step.to_peers.chunk;
}

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
  hot.block.inputs[hot.peer] = input;
  hot.block.outputs[hot.peer] = output;
  if ((reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(output)) % PACK_BYTES != 0)
    hot.block.irregular = true;
}

// Memory to memory, by a team.
OXCCL_INLINE void copy_memory(const View& from, const View& to, uint32_t len_bytes, const Team& team) {
  // A copy onto itself (buffers in place) writes nothing: peers may be reading there.
  if (from.data == to.data) return;
  constexpr uint32_t UNROLL = 4;
  const uintptr_t both = reinterpret_cast<uintptr_t>(from.data) | reinterpret_cast<uintptr_t>(to.data);
  const uint32_t packs = both % PACK_BYTES == 0 ? len_bytes / PACK_BYTES : 0;
#pragma unroll 1
  for (uint32_t first = team.thread; first < packs; first += team.threads * UNROLL) {
    uint4 raws[UNROLL];
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) {
      const uint32_t pack = first + u * team.threads;
      if (pack < packs) raws[u] = *global_memory<const uint4>(from.data + pack * PACK_BYTES);
    }
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) {
      const uint32_t pack = first + u * team.threads;
      if (pack < packs) *global_memory<uint4>(to.data + pack * PACK_BYTES) = raws[u];
    }
  }
  const uint32_t done = packs * PACK_BYTES;
#pragma unroll 1
  for (uint32_t at = done + team.thread * 8; at < len_bytes; at += team.threads * 8)
    store_memory(to.data + at, load_memory(from.data + at, len_bytes - at), len_bytes - at);
}

// A copy: each team's, of its own rank.
template <uint32_t NUMBER, class Schedule>
OXCCL_INLINE void hot_copy(Hot<Schedule>& hot) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  const ChunkPart part = hot.part(chunk_of(step));
  const UnitsOf<Schedule::LANE> units = {part.len_bytes};
  const uint32_t first = hot.team.thread, threads = hot.team.threads;
  // A window's chunk is where this rank's is, of buffers that are divided alike.
  const auto memory = [&](const HotPlace& place) {
    return hot.memory(place, place.chunk == chunk_of(step) ? part.offset : hot.part(place.chunk).offset, hot.peer);
  };
  if (is_there(step.to_own) && is_there(step.own) && hot.is_own)
    copy_memory(memory(step.own), memory(step.to_own), part.len_bytes, hot.team);
  if (!hot.is_peer || hot.stopped) return;
  if constexpr (is_message(step.to_peers)) {
    static_assert(NUMBER == first_move<Schedule>() && step.own.where == Where::INPUT, "nothing is written before");
    const View from = memory(step.own), to = hot.outgoing(step.to_peers);
    if (hot.is_last()) announce(to, hot.signature(), part.len_bytes);
    if (first < units.count()) units.send(to, first, hot.early);
#pragma unroll 1
    for (uint32_t unit = first + threads; unit < units.count(); unit += threads)
      units.send(to, unit, units.load(from.data, unit));
  } else if constexpr (is_message(step.peers)) {
    const View from = hot.incoming(step.peers), to = memory(step.to_own);
    hot.accept(from, part.len_bytes);
    receive_units(hot.machine, units, from, first, units.count(), threads,
                  [&](uint32_t unit, const auto& bits) { units.store(to.data, unit, bits); });
  } else if constexpr (is_window(step.to_peers)) {
    copy_memory(memory(step.own), memory(step.to_peers), part.len_bytes, hot.team);
  } else if constexpr (is_window(step.peers)) {
    copy_memory(memory(step.peers), memory(step.to_own), part.len_bytes, hot.team);
  }
}

template <class N>
OXCCL_APART typename N::Accumulator divide_apart(typename N::Accumulator value, uint32_t ranks) {
  return N::divide(value, ranks);
}

// The result of a reduction, of which averages are divided by the ranks.
template <class N, uint32_t BYTES>
OXCCL_INLINE typename Pack<N, BYTES>::Raw finished(Pack<N, BYTES>& result, uint32_t divisor) {
  if (divisor != 0) {
#pragma unroll
    for (uint32_t i = 0; i < Pack<N, BYTES>::COUNT; ++i) result.values[i] = divide_apart<N>(result.values[i], divisor);
  }
  return result.packed({0, 0, false, false});
}

// Folds units that have been gathered, and gives the result to as many as `store` knows.
template <class N, Fold F, class Units, class Store>
OXCCL_INLINE void fold_units(const HotBlock& block, uint32_t ranks, uint32_t begin, uint32_t end, uint32_t stride,
                             uint32_t thread, uint32_t threads, uint32_t divisor, const Store& store) {
  using Bits = typename Units::Bits;
  using P = Pack<N, sizeof(Bits)>;
  const Bits* const from = reinterpret_cast<const Bits*>(block.gathered);
#pragma unroll 1
  for (uint32_t unit = begin + thread; unit < end; unit += threads) {
    P result;
    result.unpack(bit_cast<typename P::Raw>(from[unit - begin]), false, 0);
#pragma unroll 4
    for (uint32_t s = 1; s < ranks; ++s) {
      P next;
      next.unpack(bit_cast<typename P::Raw>(from[s * stride + unit - begin]), false, 0);
      result = folded<N, F>(result, next);
    }
    store(unit, bit_cast<Bits>(finished<N>(result, divisor)));
  }
}

// A reduction of messages: gathered in the order of ranks.
template <uint32_t NUMBER, class N, Fold F, class Schedule>
OXCCL_INLINE bool reduce_messages(Hot<Schedule>& hot) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  static_assert(message_reductions<Schedule>() == 1, "another one would gather where this one folds");
  using Units = UnitsOf<Schedule::LANE>;
  using Bits = typename Units::Bits;
  const Launch& launch = hot.launch;
  const ChunkPart part = hot.part(step.own.chunk);
  const Units units = {part.len_bytes};
  const uint32_t count = units.count(), first = hot.team.thread, threads = hot.team.threads;
  // As many for each team as it has threads, so many times.
  const uint32_t stride = HOT_GATHERED_BYTES / sizeof(Bits) / BLOCK_THREADS * threads;
  const uint32_t to_offset = step.to_own.chunk == step.own.chunk ? part.offset : hot.part(step.to_own.chunk).offset;
  const uint32_t divisor = hot.template divisor<NUMBER>();
  const uint8_t* const own = hot.memory(step.own, part.offset, 0).data;
  uint8_t* const output = hot.memory(step.to_own, to_offset, 0).data;
  View from = {}, to = {};
  if (hot.is_peer) {
    from = hot.incoming(step.peers);
    hot.accept(from, part.len_bytes);
    if constexpr (is_there(step.to_peers)) {
      to = hot.outgoing(step.to_peers);
      if (hot.is_last() && !hot.stopped) announce(to, hot.signature(), part.len_bytes);
    }
  }
  Bits* const into = reinterpret_cast<Bits*>(hot.block.gathered) + hot.peer * stride;
#pragma unroll 1
  for (uint32_t begin = 0; begin == 0 || begin < count; begin += stride) {
    const uint32_t end = count - begin < stride ? count : begin + stride;
    if (hot.is_own) {
#pragma unroll 1
      for (uint32_t unit = begin + first; unit < end; unit += threads)
        into[unit - begin] = units.load(own, unit);
    } else if (hot.is_peer && !hot.stopped) {
      receive_units(hot.machine, units, from, begin + first, end, threads,
                    [&](uint32_t unit, const Bits& bits) { into[unit - begin] = bits; });
    }
    if (!agreed(hot.machine)) return false;
    if constexpr (is_there(step.to_peers)) {
      // Each team folds for its own rank: that takes less than telling the others.
      fold_units<N, F, Units>(hot.block, launch.ranks, begin, end, stride, first, threads, divisor,
                              [&](uint32_t unit, const Bits& bits) {
                                if (hot.is_peer) units.send(to, unit, bits);
                                else if (hot.is_own) units.store(output, unit, bits);
                              });
    } else {
      fold_units<N, F, Units>(hot.block, launch.ranks, begin, end, stride, lane(), lanes(), divisor,
                              [&](uint32_t unit, const Bits& bits) { units.store(output, unit, bits); });
    }
    // What has been gathered makes room for what follows.
    if (end < count) barrier();
  }
  return true;
}

// A reduction of windows: of as many packs as there are, then of words. Where a switch does it, it
// leaves what are no whole packs, or all.
template <uint32_t NUMBER, class N, Fold F, class Schedule>
OXCCL_INLINE void reduce_windows(Hot<Schedule>& hot, ChunkPart part) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  constexpr bool TO_ALL = is_there(step.to_peers) || is_switched(step);
  constexpr uint32_t LOOKS = 8;
  using P = Pack<N, PACK_BYTES>;
  using Raw = typename P::Raw;
  using Word = Pack<N, 8>;
  const uint32_t ranks = hot.launch.ranks;
  const HotBlock& block = hot.block;
  const uint32_t to_offset = step.to_own.chunk == step.own.chunk ? part.offset : hot.part(step.to_own.chunk).offset;
  const bool regular = !block.irregular && (part.offset | to_offset) % PACK_BYTES == 0;
  const uint32_t packs = regular ? part.len_bytes / PACK_BYTES : 0;
  const uint32_t divisor = hot.template divisor<NUMBER>();
#pragma unroll 1
  for (uint32_t pack = lane(); pack < packs; pack += lanes()) {
    const uint32_t at = pack * PACK_BYTES;
    P result = {};
#pragma unroll 1
    for (uint32_t first = 0; first < ranks; first += LOOKS) {
      Raw raws[LOOKS] = {};
#pragma unroll
      for (uint32_t i = 0; i < LOOKS; ++i)
        if (first + i < ranks) raws[i] = *global_memory<const Raw>(block.inputs[first + i] + part.offset + at);
#pragma unroll
      for (uint32_t i = 0; i < LOOKS; ++i) {
        if (first + i >= ranks) break;
        P next;
        next.unpack(raws[i], false, 0);
        result = first + i == 0 ? next : folded<N, F>(result, next);
      }
    }
    const Raw raw = finished<N>(result, divisor);
    if constexpr (TO_ALL) {
#pragma unroll 4
      for (uint32_t d = 0; d < ranks; ++d) *global_memory<Raw>(block.outputs[d] + to_offset + at) = raw;
    } else {
      *global_memory<Raw>(block.outputs[hot.launch.rank] + to_offset + at) = raw;
    }
  }
  const uint32_t done = packs * PACK_BYTES;
#pragma unroll 1
  for (uint32_t at = lane() * 8; at < part.len_bytes - done; at += lanes() * 8) {
    const uint32_t left = part.len_bytes - done - at;
    Word result = {};
#pragma unroll 1
    for (uint32_t s = 0; s < ranks; ++s) {
      const uint64_t word = load_memory(block.inputs[s] + part.offset + done + at, left);
      Word next;
      next.unpack(bit_cast<typename Word::Raw>(word), false, 0);
      result = s == 0 ? next : folded<N, F>(result, next);
    }
    const uint64_t word = bit_cast<uint64_t>(finished<N>(result, divisor));
#pragma unroll 1
    for (uint32_t d = 0; d < ranks; ++d) {
      if (!TO_ALL && d != hot.launch.rank) continue;
      store_memory(block.outputs[d] + to_offset + done + at, word, left);
    }
  }
}

// By the switch, as much as it does.
template <class N, Fold F, class Schedule>
OXCCL_INLINE uint32_t reduce_by_switch(const Hot<Schedule>& hot, const ChunkPart& part) {
  const Multicast& multicast = hot.launch.multicast;
  if (multicast.base == nullptr || hot.block.apart || (hot.launch.flags & LAUNCH_AVERAGES)) return 0;
  return uint32_t(move_by_switch<N, F>({multicast.base + multicast.input + part.offset,
                                        multicast.base + multicast.output + part.offset, part.len_bytes, true, true,
                                        multicast.members, hot.launch.ranks}));
}

struct NoReducer {};
template <class Numbers, Fold F>
struct HotReducer {
  using N = Numbers;
  static constexpr Fold FOLD = F;
};

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
    return agreed(hot.machine);
  } else if constexpr (!is_reduction(step)) {
    hot_copy<NUMBER>(hot);
    return is_message(step.to_peers) || agreed(hot.machine);
  } else if constexpr (is_message(step.peers)) {
    return reduce_messages<NUMBER, typename Reducer::N, Reducer::FOLD>(hot);
  } else {
    ChunkPart part = hot.part(step.own.chunk);
    // Which divides by no number.
    if constexpr (is_switched(step)) {
      const uint32_t switched = reduce_by_switch<typename Reducer::N, Reducer::FOLD>(hot, part);
      part = {part.offset + switched, part.len_bytes - switched};
    }
    reduce_windows<NUMBER, typename Reducer::N, Reducer::FOLD>(hot, part);
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
  if constexpr (hot.WINDOWS) {
    hot.sync->sent = hot.local_sync.sent + hot.SYNC.sent;
    hot.sync->received = hot.local_sync.received + hot.SYNC.received;
  }
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
  if (lane() == HOT_BEGINNER) block.beside = channel == 0 && exchange(&launch.doorbells->sleeping, 1) != 0;
  const bool clears = barrier_any(hot.is_peer && hot.local.sent - hot.local.cleared >= LL_EPOCHS);
  if (block.beside) {
    if (leader()) launch.statuses[channel] = {OUTCOME_BESIDE, 0, 0, 0};
  } else if ((!clears || clear_hot_slots(hot)) && run_steps<0, Reducer>(hot)) {
    advance_hot_cursors(hot);
  } else if (leader()) {
    launch.statuses[channel] = {block.fault.outcome, block.fault.step, block.fault.peer, block.fault.found};
  }
  barrier();
  if (leader() && channel == 0 && !block.beside) store_relaxed(&launch.doorbells->sleeping, 0);
  tell_end(launch);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
