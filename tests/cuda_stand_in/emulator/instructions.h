// The instructions of cuda/ptx.h, for threads that take turns. Whoever looks at what others write
// lets these have their turn.
#pragma once

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
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline void store_release(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline void store_credit(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
inline uint32_t load_relaxed(const uint32_t* word) {
  emulator::yield();
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
template <class T, class Value>
inline void store_relaxed(T* word, Value value) {
  __atomic_store_n(word, static_cast<T>(value), __ATOMIC_RELAXED);
}

// Each word of a line has its own flag.
inline Line load_line(const uint8_t* at) {
  emulator::yield();
  const uint64_t* words = reinterpret_cast<const uint64_t*>(at);
  const uint64_t low = __atomic_load_n(words, __ATOMIC_RELAXED);
  emulator::yield();
  const uint64_t high = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
  return {(low & 0xffffffffu) | (high << 32), uint32_t(low >> 32), uint32_t(high >> 32)};
}
inline void store_line(uint8_t* at, uint64_t data, uint32_t flag) {
  uint64_t* words = reinterpret_cast<uint64_t*>(at);
  __atomic_store_n(words, (data & 0xffffffffu) | (uint64_t(flag) << 32), __ATOMIC_RELAXED);
  emulator::yield();
  __atomic_store_n(words + 1, (data >> 32) | (uint64_t(flag) << 32), __ATOMIC_RELAXED);
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
inline void engine_fence() {}

inline uint32_t exchange(uint32_t* word, uint32_t value) {
  return __atomic_exchange_n(word, value, __ATOMIC_RELAXED);
}

inline bool arrives_last(uint32_t* arrived, uint32_t channels) {
  if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) != channels) return false;
  __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
  return true;
}

inline void system_fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

}  // namespace OXCCL_ISA
}  // namespace oxccl
