// The instructions of oxccl/device.h, for threads that take turns: see instructions.h.
#pragma once
#include "memory.h"

namespace oxccl {
namespace device {

inline uint64_t load_acquire(const uint64_t* word) {
  emulator::yield();
  return emulator::load(word, emulator::Order::ACQUIRE);
}
inline void store_release(uint64_t* word, uint64_t value) { emulator::store(word, value, emulator::Order::RELEASE); }
inline uint32_t load_relaxed(const uint32_t* word) {
  emulator::yield();
  return emulator::load(word, emulator::Order::RELAXED);
}
inline void store_relaxed(uint32_t* word, uint32_t value) { emulator::store(word, value, emulator::Order::RELAXED); }

// Each half has its own flag.
inline Line load_line(const Line* at) {
  emulator::yield();
  const uint64_t low = emulator::load(&at->low, emulator::Order::RELAXED);
  emulator::yield();
  return {low, emulator::load(&at->high, emulator::Order::RELAXED)};
}
inline void store_line(Line* at, const Line& line) {
  emulator::store(&at->low, line.low, emulator::Order::RELAXED);
  emulator::yield();
  emulator::store(&at->high, line.high, emulator::Order::RELAXED);
}

#ifdef OXCCL_MEMORY_ORDER
// As in instructions.h.
inline uint64_t weak_load_acquire(const uint64_t* word) {
  emulator::yield();
  return emulator::load(word, emulator::Order::RELAXED);
}
inline void weak_store_release(uint64_t* word, uint64_t value) {
  emulator::store(word, value, emulator::Order::RELAXED);
}
inline uint32_t weak_load_relaxed(const uint32_t* word) {
  emulator::yield();
  return *word;
}
inline void weak_store_relaxed(uint32_t* word, uint32_t value) { *word = value; }
inline Line weak_load_line(const Line* at) {
  emulator::yield();
  return *at;
}
inline void weak_store_line(Line* at, const Line& line) { *at = line; }
#endif

}  // namespace device
}  // namespace oxccl
