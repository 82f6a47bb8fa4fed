// What a thread of a hot kernel knows of a launch.
#pragma once
#include "units.h"

namespace oxccl {
inline namespace OXCCL_ISA {

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

// One thread's view of a launch: of its team's rank.
template <class Schedule>
struct Hot {
  static constexpr Messages MESSAGES = messages_of_lane<Schedule>();
  static constexpr Messages SYNC = messages_of_sync<Schedule>();
  static constexpr bool SYNCS = SYNC.sent + SYNC.received > 0;

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
  uint32_t first_bucket;  // that the channel's part is in

  OXCCL_INLINE Hot(const Launch& launch, HotBlock& block, uint32_t channel)
      : launch(launch),
        block(block),
        machine{launch, block.fault, channel, 0, false},
        team(Schedule::OF_LEAF ? 1 : launch.ranks),
        peer(Schedule::OF_LEAF ? launch.root : team.number),
        is_peer(Schedule::OF_LEAF || (team.number < launch.ranks && team.number != launch.rank)),
        is_own(!Schedule::OF_LEAF && team.number == launch.rank),
        stopped(false),
        first_bucket(0) {
    const uint32_t pair = channel * launch.ranks + peer;
    connection = launch.connections + uint64_t(pair) * LANES + Schedule::LANE;
    sync = launch.connections + uint64_t(pair) * LANES + LANE_SYNC;
    window = launch.windows + pair;
    if (!is_peer) return;
    local = *connection;
    if constexpr (SYNCS) local_sync = *sync;
    constexpr HotStep sends = first_sent<Schedule>();
    if constexpr (sends.own.where == Where::INPUT && !Schedule::IN_BUCKETS) {
      const ChunkPart part = this->part(sends.own.chunk);
      const UnitsOf<Schedule::LANE> units = {part.len_bytes};
      auto input = memory(sends.own, part, peer);
      if (team.thread < units.count()) early = units.load(input, team.thread);
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
    if constexpr (Schedule::OF_LEAF) {
      machine.step = count.once + count.each;
      return;
    }
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
    if constexpr (!Schedule::IN_BUCKETS || !Schedule::OF_RANKS) return part_of_chunk(launch, machine.channel, number);
    ChunkPart part = part_of_chunk(launch, machine.channel, 0);
    part.rank = number;
    return part;
  }

  // A part of a chunk where a rank has it.
  OXCCL_INLINE auto memory(const HotPlace& place, const ChunkPart& part, uint32_t rank) const {
    const bool output = place.where == Where::OUTPUT || place.where == Where::WINDOW_OUTPUT;
    if constexpr (Schedule::IN_BUCKETS) {
      const Buffers* places = is_window(place) ? this->places(rank) : block.buckets.own;
      const uint32_t stride = is_window(place) ? launch.ranks : 1;
      return BucketStretch(block.buckets, launch.segments_count, places, stride, output, part);
    } else {
      uint8_t* const own = output ? launch.output : const_cast<uint8_t*>(launch.input);
      uint8_t* const base = !is_window(place) ? own : output ? block.ranks[rank].output : block.ranks[rank].input;
      return Stretch{base + part.offset, part.len_bytes};
    }
  }

  // Where a rank has the buckets: by bucket, of which each has a place for each rank. Only those
  // that the channel's part is in are known.
  OXCCL_INLINE Buffers* places(uint32_t rank) const {
    return reinterpret_cast<Buffers*>(block.gathered) + rank - first_bucket * launch.ranks;
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

}  // namespace OXCCL_ISA
}  // namespace oxccl
