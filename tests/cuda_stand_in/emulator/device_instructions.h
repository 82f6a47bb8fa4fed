// The instructions of oxccl/device.h, for threads that take turns: see instructions.h.
#pragma once

namespace oxccl {
namespace device {

inline uint64_t load_acquire(const uint64_t* word) {
  emulator::yield();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline void store_release(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline uint32_t load_relaxed(const uint32_t* word) {
  emulator::yield();
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
inline void store_relaxed(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

// Each half has its own flag.
inline Line load_line(const Line* at) {
  emulator::yield();
  const uint64_t low = __atomic_load_n(&at->low, __ATOMIC_RELAXED);
  emulator::yield();
  return {low, __atomic_load_n(&at->high, __ATOMIC_RELAXED)};
}
inline void store_line(Line* at, const Line& line) {
  __atomic_store_n(&at->low, line.low, __ATOMIC_RELAXED);
  emulator::yield();
  __atomic_store_n(&at->high, line.high, __ATOMIC_RELAXED);
}

}  // namespace device
}  // namespace oxccl
