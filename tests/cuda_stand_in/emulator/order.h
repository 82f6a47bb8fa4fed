// What of a block's course counts for the order of memory: see order.cpp. Without
// OXCCL_MEMORY_ORDER, nothing does.
#pragma once
#include "cuda.h"

namespace emulator {
namespace order {

#ifdef OXCCL_MEMORY_ORDER

// `lane` is where the number of the thread stands whose turn it is.
void begins(const uint32_t* lane, uint32_t device, uint64_t launch, uint64_t seed);
void ends();
// All threads of the block have come to a barrier.
void meets();
// Lines of 16 bytes, which a warp loads and stores at once.
void note_strong(const void* at, uint32_t len_bytes, bool write);
// Copies by the engine: when they are ordered, and when they are known to be over.
void engine_loads(const void* at, uint32_t len_bytes);
void engine_stores(const void* at, uint32_t len_bytes);
void engine_loaded();
void engine_stored();

#else

inline void begins(const uint32_t*, uint32_t, uint64_t, uint64_t) {}
inline void ends() {}
inline void meets() {}
inline void note_strong(const void*, uint32_t, bool) {}
inline void engine_loads(const void*, uint32_t) {}
inline void engine_stores(const void*, uint32_t) {}
inline void engine_loaded() {}
inline void engine_stored() {}

#endif

}  // namespace order
}  // namespace emulator
