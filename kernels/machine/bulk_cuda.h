// Long stretches of a ReduceCopy on a GPU.
//
//     head and tail up to 16-byte boundaries, mixed alignments, LL:   word by word
//     left fold: for each group of UNROLL 16-byte packs that is this thread's:
//       for each source: load its packs, fold them into the accumulators
//     tree fold: for each pack:
//       for each eight sources: load all eight, fold them as a tree      (tree_cuda.h)
//     round, store to every destination
//
// Why it is fast: neighbouring threads touch neighbouring packs, every access of the left fold is 16
// bytes wide, and four (left) or eight (tree) loads are in flight per thread. What is irregular takes
// the word path, which is kept small, since every type and fold has one.
#pragma once
#include "tree_cuda.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint64_t SHORT_BYTES = 0;
constexpr uint32_t PACK_BYTES = 16;

// The bytes of a move: packs of 16 in the middle, words in front and behind.
struct Stretches {
  uint64_t head, packs, tail, len_bytes;

  // The words are numbered through, and a word never reaches over an end of its stretch.
  OXCCL_INLINE uint64_t head_words() const { return (head + 7) / 8; }
  OXCCL_INLINE uint64_t words() const { return head_words() + (len_bytes - tail + 7) / 8; }
  OXCCL_INLINE uint64_t position(uint64_t word) const {
    return word < head_words() ? word * 8 : tail + (word - head_words()) * 8;
  }
  OXCCL_INLINE uint64_t left(uint64_t word) const {
    return (word < head_words() ? head : len_bytes) - position(word);
  }
};

// Packs need operands in plain global memory that are misaligned alike; else everything is head.
OXCCL_INLINE Stretches stretches_of(const Move& move) {
  const uint32_t misaligned = uint32_t(reinterpret_cast<uintptr_t>(move.views[0].data)) % PACK_BYTES;
  bool alike = true;
#pragma unroll 1
  for (uint32_t o = 0; o < move.sources + move.destinations; ++o) {
    const View& view = move.views[o];
    const uint32_t own = uint32_t(reinterpret_cast<uintptr_t>(view.data)) % PACK_BYTES;
    alike &= !view.is_ll() && own == misaligned && __isGlobal(view.data);
  }
  const uint64_t to_boundary = (PACK_BYTES - misaligned) % PACK_BYTES;
  const uint64_t head = alike && to_boundary < move.len_bytes ? to_boundary : move.len_bytes;
  const uint64_t packs = (move.len_bytes - head) / PACK_BYTES;
  return {head, packs, head + packs * PACK_BYTES, move.len_bytes};
}

// Packs of 16 bytes, UNROLL at a time, folded from the left.
template <class N, Fold F>
OXCCL_INLINE void reduce_packs(const Move& move, const Stretches& stretches) {
  using P = Pack<N, PACK_BYTES>;
  // 16 elements a pack widen to 16 registers, of which there are not enough for four.
  constexpr uint32_t UNROLL = P::COUNT > 8 ? 2 : 4;
  const uint64_t stride = uint64_t(lanes()) * UNROLL;
#pragma unroll 1
  for (uint64_t base = lane(); base < stretches.packs; base += stride) {
    P acc[UNROLL];
#pragma unroll 1
    for (uint32_t source = 0; source < move.sources; ++source) {
      const View& view = move.source(source);
      const auto* from = global_memory<const typename P::Raw>(view.data + stretches.head);
      typename P::Raw raws[UNROLL];
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        const uint64_t pack = base + uint64_t(u) * lanes();
        raws[u] = from[pack < stretches.packs ? pack : base];
      }
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        P next;
        next.unpack(raws[u], move.scaling.premultiply && view.is_raw(), move.scaling.factor_bits);
        acc[u] = source == 0 ? next : folded<N, F>(acc[u], next);
      }
    }
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) {
      const uint64_t pack = base + uint64_t(u) * lanes();
      const typename P::Raw raw = acc[u].packed(move.scaling);
      if (pack >= stretches.packs) continue;
#pragma unroll 1
      for (uint32_t d = 0; d < move.destinations; ++d)
        global_memory<typename P::Raw>(move.destination(d).data + stretches.head)[pack] = raw;
    }
  }
}

template <class N, Fold F>
OXCCL_INLINE bool reduce_words(Machine& machine, const Move& move, const Stretches& stretches) {
#pragma unroll 1
  for (uint64_t word = lane(); word < stretches.words(); word += lanes()) {
    const WordLoad<N> load = {machine, move, stretches.position(word), stretches.left(word)};
    if (!reduce_left<N, F>(move, load)) return false;
  }
  return true;
}

template <class N, Fold F>
struct CudaReducer {
  OXCCL_INLINE bool reduce(Machine& machine, const Move& move) const {
    const Stretches stretches = stretches_of(move);
    if (move.tree && move.sources > 2) {
      reduce_packs_tree<N, F>(move, stretches.head, stretches.tail);
      return reduce_words_tree<N, F>(machine, move, stretches);
    }
    reduce_packs<N, F>(move, stretches);
    return reduce_words<N, F>(machine, move, stretches);
  }
};

// One source, unchanged.
OXCCL_INLINE bool copy_bulk(Machine& machine, const Move& move) {
  constexpr uint32_t UNROLL = 8;
  const Stretches stretches = stretches_of(move);
  const uint64_t stride = uint64_t(lanes()) * UNROLL;
#pragma unroll 1
  for (uint64_t base = lane(); base < stretches.packs; base += stride) {
    // Not before the loop: where there are no packs, the source need not be global memory (tokens are a parameter).
    const uint4* from = global_memory<const uint4>(move.source(0).data + stretches.head);
    uint4 raws[UNROLL];
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) {
      const uint64_t pack = base + uint64_t(u) * lanes();
      raws[u] = from[pack < stretches.packs ? pack : base];
    }
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d) {
      uint4* to = global_memory<uint4>(move.destination(d).data + stretches.head);
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        const uint64_t pack = base + uint64_t(u) * lanes();
        if (pack < stretches.packs) to[pack] = raws[u];
      }
    }
  }
#pragma unroll 1
  for (uint64_t word = lane(); word < stretches.words(); word += lanes())
    if (!copy_word(machine, move, stretches.position(word), stretches.left(word))) return false;
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
