// The instructions of cuda/ptx.h, for threads that take turns. Whoever looks at what others write
// lets these have their turn.
#pragma once
#include "memory.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t SPINS_A_LOOK = 16;

inline uint32_t lane() { return emulator::lane(); }

// The host's clock; the cycles of one with 2 GHz.
inline uint64_t timer_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}
inline uint64_t ticks() { return 2 * timer_ns(); }

inline uint64_t load_acquire(const uint64_t* word) {
  emulator::yield();
  return emulator::load(word, emulator::Order::ACQUIRE);
}
inline void store_release(uint64_t* word, uint64_t value) { emulator::store(word, value, emulator::Order::RELEASE); }
inline void store_credit(uint64_t* word, uint64_t value) { emulator::store(word, value, emulator::Order::RELAXED); }
inline uint32_t load_relaxed(const uint32_t* word) {
  emulator::yield();
  return emulator::load(word, emulator::Order::RELAXED);
}
template <class T, class Value>
inline void store_relaxed(T* word, Value value) {
  emulator::store(word, static_cast<T>(value), emulator::Order::RELAXED);
}

// Each word of a line has its own flag.
inline Line load_line(const uint8_t* at) {
  emulator::yield();
  const uint64_t* words = reinterpret_cast<const uint64_t*>(at);
  const uint64_t low = emulator::load(words, emulator::Order::RELAXED);
  emulator::yield();
  const uint64_t high = emulator::load(words + 1, emulator::Order::RELAXED);
  return {(low & 0xffffffffu) | (high << 32), uint32_t(low >> 32), uint32_t(high >> 32)};
}
inline void store_line(uint8_t* at, uint64_t data, uint32_t flag) {
  uint64_t* words = reinterpret_cast<uint64_t*>(at);
  emulator::store(words, (data & 0xffffffffu) | (uint64_t(flag) << 32), emulator::Order::RELAXED);
  emulator::yield();
  emulator::store(words + 1, (data >> 32) | (uint64_t(flag) << 32), emulator::Order::RELAXED);
}

inline Share load_share(const uint8_t* at) {
  uint64_t words[2];
  emulator::load_together(at, words);
  return {words[0], words[1]};
}
inline void store_share(uint8_t* at, const Share& share) { emulator::store_together(at, share.low, share.high); }

inline bool any_of_warp(bool condition) { return emulator::any_of_warp(condition); }
inline void align_warp() { emulator::any_of_warp(false); }
#define OXCCL_HAS_ENGINE 1
using emulator::shared_address;
using emulator::stage_barrier_init;
using emulator::stage_barrier_inval;
using emulator::stage_expect;
using emulator::stage_is_there;
using emulator::stage_load;
using emulator::stage_memory;
using emulator::stage_memory_bytes;
using emulator::stage_store;
using emulator::stage_stores_commit;
using emulator::stage_stores_done;
using emulator::stage_stores_read_but_last;
using emulator::engine_fence;
using emulator::exchange;

inline bool arrives_last(uint32_t* arrived, uint32_t channels) {
  if (emulator::increment(arrived, true) != channels) return false;
  emulator::store(arrived, 0u, emulator::Order::RELAXED);
  return true;
}

inline void system_fence() { emulator::fence(); }

#ifdef OXCCL_MEMORY_ORDER
// What tools/memory-order puts in place of one of these at a time: with less order, or plain.
inline uint64_t weak_load_acquire(const uint64_t* word) {
  emulator::yield();
  return emulator::load(word, emulator::Order::RELAXED);
}
inline void weak_store_release(uint64_t* word, uint64_t value) {
  emulator::store(word, value, emulator::Order::RELAXED);
}
inline void weak_store_credit(uint64_t* word, uint64_t value) { *word = value; }
inline uint32_t weak_load_relaxed(const uint32_t* word) {
  emulator::yield();
  return *word;
}
template <class T, class Value>
inline void weak_store_relaxed(T* word, Value value) {
  *word = static_cast<T>(value);
}
inline Line weak_load_line(const uint8_t* at) {
  emulator::yield();
  const uint64_t* words = reinterpret_cast<const uint64_t*>(at);
  const uint64_t low = words[0], high = words[1];
  return {(low & 0xffffffffu) | (high << 32), uint32_t(low >> 32), uint32_t(high >> 32)};
}
inline void weak_store_line(uint8_t* at, uint64_t data, uint32_t flag) {
  uint64_t* words = reinterpret_cast<uint64_t*>(at);
  words[0] = (data & 0xffffffffu) | (uint64_t(flag) << 32);
  words[1] = (data >> 32) | (uint64_t(flag) << 32);
}
inline Share weak_load_share(const uint8_t* at) {
  emulator::yield();
  return *reinterpret_cast<const Share*>(at);
}
inline void weak_store_share(uint8_t* at, const Share& share) { *reinterpret_cast<Share*>(at) = share; }
inline uint32_t weak_exchange(uint32_t* word, uint32_t value) {
  const uint32_t before = *word;
  *word = value;
  return before;
}
inline bool weak_arrives_last(uint32_t* arrived, uint32_t channels) {
  if (emulator::increment(arrived, false) != channels) return false;
  emulator::store(arrived, 0u, emulator::Order::RELAXED);
  return true;
}
inline void weak_system_fence() {}
inline void weak_engine_fence() {}
inline void weak_fence_of_names() {}
#endif

}  // namespace OXCCL_ISA
}  // namespace oxccl
