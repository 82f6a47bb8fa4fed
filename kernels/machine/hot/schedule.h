// A schedule as constants: what a rank does for each of its peers. The build writes those that
// there are kernels of (schedules.h), from plans/src/hot.
#pragma once
#include "executor.h"

namespace oxccl {
inline namespace OXCCL_ISA {

enum class Act : uint8_t { WAIT, SIGNAL, MOVE };
enum class Where : uint8_t { NOWHERE, INPUT, OUTPUT, MESSAGE, WINDOW_INPUT, WINDOW_OUTPUT, ALL_INPUTS, ALL_OUTPUTS, TOKENS };
enum class Chunk : uint8_t { ONLY, OWN, PEERS };

struct HotPlace {
  Where where;
  Chunk chunk;
  uint8_t message;
};

// In words: plans/src/hot/mod.rs.
struct HotStep {
  Act act;
  bool each, ranked;  // an instruction for each peer, from the next rank on or from rank 0 on
  bool finish;        // moves: the result is final
  bool head;          // counters: of which kind, of which connection, and their value
  uint8_t lane;
  int32_t value;
  HotPlace own, peers, to_own, to_peers;
};

// The same schedule over a group's buckets.
template <class Schedule>
struct InBuckets : Schedule {
  static constexpr bool IN_BUCKETS = true;
};

OXCCL_INLINE constexpr bool is_message(const HotPlace& place) { return place.where == Where::MESSAGE; }
OXCCL_INLINE constexpr bool is_window(const HotPlace& place) {
  return place.where == Where::WINDOW_INPUT || place.where == Where::WINDOW_OUTPUT;
}
OXCCL_INLINE constexpr bool is_own_memory(const HotPlace& place) { return place.where == Where::INPUT || place.where == Where::OUTPUT; }
OXCCL_INLINE constexpr bool is_there(const HotPlace& place) { return place.where != Where::NOWHERE; }
// Of all ranks' buffers, by the switch between them.
OXCCL_INLINE constexpr bool is_switched(const HotStep& step) { return step.own.where == Where::ALL_INPUTS; }
OXCCL_INLINE constexpr bool is_reduction(const HotStep& step) {
  return is_switched(step) || (is_there(step.own) && is_there(step.peers));
}

// A copy in this rank's memory, behind which windows are read, is made with what is read: the own
// rank's team has no peer there.
template <class Schedule>
OXCCL_INLINE constexpr bool is_joined(uint32_t number) {
  if (number + 1 >= sizeof(Schedule::STEPS) / sizeof(HotStep)) return false;
  const HotStep &step = Schedule::STEPS[number], &behind = Schedule::STEPS[number + 1];
  const bool own = is_own_memory(step.own) && is_own_memory(step.to_own);
  return own && !is_there(step.peers) && !is_there(step.to_peers) && is_window(behind.peers) && !is_reduction(behind);
}

// What a round moves the cursors of a connection by.
struct Messages {
  uint32_t sent, received;
};

template <class Schedule>
OXCCL_INLINE constexpr Messages messages_of_lane() {
  Messages count = {0, 0};
  for (const HotStep& step : Schedule::STEPS) {
    if (step.act == Act::MOVE && is_message(step.to_peers)) ++count.sent;
    if (step.act == Act::MOVE && is_message(step.peers)) ++count.received;
  }
  return count;
}

template <class Schedule>
OXCCL_INLINE constexpr Messages messages_of_sync() {
  Messages count = {0, 0};
  for (const HotStep& step : Schedule::STEPS) {
    if (step.act == Act::SIGNAL && step.lane == LANE_SYNC) ++count.sent;
    if (step.act == Act::WAIT && step.lane == LANE_SYNC) ++count.received;
  }
  return count;
}

// The chunk of which windows are read or written.
template <class Schedule>
OXCCL_INLINE constexpr Chunk chunk_of_windows() {
  for (const HotStep& step : Schedule::STEPS)
    if (is_window(step.peers) && step.peers.chunk == Chunk::ONLY) return Chunk::ONLY;
  return Chunk::OWN;
}

template <class Schedule>
OXCCL_INLINE constexpr bool has_switch() {
  for (const HotStep& step : Schedule::STEPS)
    if (is_switched(step)) return true;
  return false;
}

template <class Schedule>
OXCCL_INLINE constexpr uint32_t message_reductions() {
  uint32_t count = 0;
  for (const HotStep& step : Schedule::STEPS) count += is_reduction(step) && is_message(step.peers);
  return count;
}

// The first move, and what it reads.
template <class Schedule>
OXCCL_INLINE constexpr uint32_t first_move() {
  uint32_t number = 0;
  while (Schedule::STEPS[number].act != Act::MOVE) ++number;
  return number;
}
template <class Schedule>
OXCCL_INLINE constexpr HotStep first_sent() {
  return Schedule::STEPS[first_move<Schedule>()];
}

// How many instructions stand in front of a step: `once` and as many as there are peers, so many
// times.
struct Before {
  uint32_t once, each;
};

template <class Schedule>
OXCCL_INLINE constexpr Before before(uint32_t number) {
  Before count = {0, 0};
  for (uint32_t s = 0; s < number; ++s) {
    const HotStep& step = Schedule::STEPS[s];
    if (step.act == Act::MOVE && !step.each) ++count.once;
    else ++count.each;
  }
  return count;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
