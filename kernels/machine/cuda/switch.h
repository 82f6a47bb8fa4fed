// All ranks' memory in one access: the switch between the GPUs reads all and reduces on the way, or
// writes all (NVLink SHARP).
//
//     for each group of UNROLL 16-byte packs that is this thread's:
//       load:  multimem.ld_reduce, if it is a read of all; else a load
//       store: multimem.st, if it is a write to all; else a store
//
// Why it is fast: of what n ranks have a GPU gets one part, instead of n, and gives one, instead of
// n. A multicast address is another name of memory that has one already, and accesses by two names
// are ordered by a fence of their own.
#pragma once
#ifndef OXCCL_MULTIMEM
#define OXCCL_MULTIMEM "multimem.h"
#endif
#include OXCCL_MULTIMEM

namespace oxccl {
inline namespace OXCCL_ISA {

// From a place to a place, of which at least one is all ranks'.
struct SwitchMove {
  const uint8_t* from;
  uint8_t* to;
  uint64_t len_bytes;
  bool reads_all, writes_all;
  const uint64_t* members;
  uint32_t members_count;

  // What whole packs there are.
  OXCCL_INLINE uint64_t packs_bytes() const {
    const bool begins = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % PACK_BYTES == 0;
    return begins ? len_bytes / PACK_BYTES * PACK_BYTES : 0;
  }
};

// `DataType::has_multicast` in kernels/format.
template <class N, Fold F>
OXCCL_INLINE constexpr bool has_multicast() {
  if (F == FOLD_SUM) return sizeof(typename N::Element) > 1;
  return F != FOLD_PROD && N::INTEGER && sizeof(typename N::Element) >= 4;
}

// The bytes that it has moved, from the begin on: none where the switch does not know how, or where
// what is moved does not begin at 16 bytes; what is behind the last whole 16 is not among them.
template <class N, Fold F>
OXCCL_INLINE uint64_t move_by_switch(const SwitchMove& move) {
  if constexpr (!has_multicast<N, F>()) {
    return 0;
  } else {
    const uint64_t len_bytes = move.packs_bytes();
    if (len_bytes == 0 || !reaches_members(move.members)) return 0;
    constexpr uint32_t UNROLL = 4;
    const uint64_t stride = uint64_t(lanes()) * PACK_BYTES;
    // One thread's, on the way from what was done by one name to what is done by the other: the
    // barriers make it everybody's.
    if (leader()) fence_of_names();
    barrier();
#pragma unroll 1
    for (uint64_t at = uint64_t(lane()) * PACK_BYTES; at < len_bytes; at += stride * UNROLL) {
      uint4 packs[UNROLL] = {};
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        const uint64_t position = at + u * stride;
        if (position >= len_bytes) continue;
        if (move.reads_all) packs[u] = load_reduced<N, F>(move.from + position, move.members, move.members_count);
        else packs[u] = *global_memory<const uint4>(const_cast<uint8_t*>(move.from) + position);
      }
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        const uint64_t position = at + u * stride;
        if (position >= len_bytes) continue;
        if (move.writes_all) store_to_all(move.to + position, packs[u], move.members, move.members_count);
        else *global_memory<uint4>(move.to + position) = packs[u];
      }
    }
    barrier();
    if (leader()) fence_of_names();
    return len_bytes;
  }
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
