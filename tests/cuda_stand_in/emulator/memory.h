// Words that threads of several blocks share, and fences: of the processor that runs the blocks,
// or, with OXCCL_MEMORY_ORDER, by the account that order.cpp keeps.
#pragma once
#include "cuda.h"

namespace emulator {

enum class Order : uint8_t { RELAXED, ACQUIRE, RELEASE };

#ifndef OXCCL_MEMORY_ORDER

template <class T>
inline T load(const T* word, Order order) {
  return __atomic_load_n(word, order == Order::ACQUIRE ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED);
}
template <class T>
inline void store(T* word, T value, Order order) {
  __atomic_store_n(word, value, order == Order::RELEASE ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
}
inline uint32_t exchange(uint32_t* word, uint32_t value) { return __atomic_exchange_n(word, value, __ATOMIC_RELAXED); }
// To where it counts then; `ordered`, it acquires and releases.
inline uint32_t increment(uint32_t* word, bool) { return __atomic_add_fetch(word, 1, __ATOMIC_ACQ_REL); }
inline void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void fence_of_names() {}
inline void engine_fence() {}
inline void load_named(void* into, const uint8_t* at, uint32_t len_bytes) { memcpy(into, at, len_bytes); }
inline void store_named(uint8_t* at, const void* from, uint32_t len_bytes) { memcpy(at, from, len_bytes); }

#else

uint64_t ordered_load(const void* word, uint32_t len_bytes, Order order);
void ordered_store(void* word, uint32_t len_bytes, uint64_t value, Order order);

template <class T>
inline T load(const T* word, Order order) {
  return static_cast<T>(ordered_load(word, sizeof(T), order));
}
template <class T>
inline void store(T* word, T value, Order order) {
  ordered_store(word, sizeof(T), value, order);
}
uint32_t exchange(uint32_t* word, uint32_t value);
uint32_t increment(uint32_t* word, bool ordered);
void fence();
void fence_of_names();
void engine_fence();
// Of one member, by the address of all.
void load_named(void* into, const uint8_t* at, uint32_t len_bytes);
void store_named(uint8_t* at, const void* from, uint32_t len_bytes);

#endif

}  // namespace emulator
