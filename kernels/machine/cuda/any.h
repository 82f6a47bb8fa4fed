// A ReduceCopy of any type and fold, chosen at run time: for groups whose parts reduce differently,
// and are one launch all the same.
//
//     for each word that is this thread's, in halves (in one where an element is a word):
//       left: acc = unpack(source[0]);  acc = fold(acc, unpack(source[s]))
//       tree: push unpack(source[s]) as a leaf                                 (cuda/tree.h)
//       store word to every destination
//
// Only unpack, fold and pack know the type: a choice of a few instructions each. So the kernel is
// about as long as one of a single type, which loads wider and more at a time: it stays the one for
// groups that reduce alike.
#pragma once
#include "executor.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// A few elements as accumulators, of a type that is known when it runs.
struct AnyPack {
  uint32_t registers[4];
};

template <class N>
using Piece = Pack<N, sizeof(typename N::Element) == 8 ? 8 : 4>;

template <class N>
OXCCL_INLINE Piece<N> pack_of(const AnyPack& any) {
  static_assert(sizeof(Piece<N>) <= sizeof(AnyPack), "accumulators of four bytes of elements, or of one element");
  Piece<N> pack;
  memcpy(&pack, &any, sizeof(pack));
  return pack;
}

template <class N>
OXCCL_INLINE AnyPack any_of(const Piece<N>& pack) {
  AnyPack any = {};
  memcpy(&any, &pack, sizeof(pack));
  return any;
}

OXCCL_INLINE AnyPack unpack_any(uint32_t type, uint64_t bits, bool scaled, uint64_t factor_bits) {
  switch (type) {
#define OXCCL_UNPACK(N)                                                        \
  case N::TYPE: {                                                              \
    using Bits = typename Piece<N>::Bits;                                       \
    Piece<N> pack;                                                              \
    pack.unpack(bit_cast<typename Piece<N>::Raw>(Bits(bits)), scaled, factor_bits); \
    return any_of<N>(pack);                                                    \
  }
    OXCCL_EACH_DATA_TYPE(OXCCL_UNPACK)
#undef OXCCL_UNPACK
    default: return {};
  }
}

OXCCL_INLINE uint64_t pack_any(uint32_t type, const AnyPack& any, const Scaling& scaling) {
  switch (type) {
#define OXCCL_PACK(N)                                                            \
  case N::TYPE: {                                                                \
    Piece<N> pack = pack_of<N>(any);                                              \
    return bit_cast<typename Piece<N>::Bits>(pack.packed(scaling));               \
  }
    OXCCL_EACH_DATA_TYPE(OXCCL_PACK)
#undef OXCCL_PACK
    default: return 0;
  }
}

OXCCL_INLINE AnyPack fold_any(uint32_t type, uint32_t fold, const AnyPack& earlier, const AnyPack& later) {
  switch (type) {
#define OXCCL_FOLD(N)                                                                              \
  case N::TYPE: {                                                                                  \
    const Piece<N> first = pack_of<N>(earlier), second = pack_of<N>(later);                        \
    return any_of<N>(fold == FOLD_SUM ? folded<N, FOLD_SUM>(first, second)                         \
                                      : OtherFolds(fold).folded(first, second));                   \
  }
    OXCCL_EACH_DATA_TYPE(OXCCL_FOLD)
#undef OXCCL_FOLD
    default: return later;
  }
}

// One thread's subtrees, as cuda/tree.h counts them, but for a single place that folds.
struct AnyCounter {
  OXCCL_INLINE AnyPack& at(uint32_t level) const {
    return *reinterpret_cast<AnyPack*>(&subtrees()[level * WORD_TREE_THREADS + lane()]);
  }
};

// All sources of some bits: from the left, or as a tree. A left fold is a tree whose subtrees are
// folded as soon as there are two.
template <class Load>
OXCCL_INLINE bool reduce_any(uint32_t type, uint32_t fold, const Move& move, bool tree, const Load& load,
                             AnyPack* result) {
  const AnyCounter counter;
  AnyPack carry = {};
#pragma unroll 1
  for (uint32_t source = 0; source < move.sources; ++source) {
    AnyPack next;
    if (!load(source, &next)) return false;
    uint32_t folds = source == 0 ? 0 : 1;
    if (tree) folds = __ffs(~source) - 1;
#pragma unroll 1
    for (uint32_t level = 0; level < folds; ++level) {
      AnyPack earlier = carry;
      if (tree) earlier = counter.at(level);
      next = fold_any(type, fold, earlier, next);
    }
    carry = next;
    if (tree && folds < TREE_LEVELS) counter.at(folds) = carry;
  }
  if (tree && move.sources < MAX_TREE_SOURCES) {
    // What is left, from the smallest subtree up.
    bool gathered = false;
#pragma unroll 1
    for (uint32_t level = 0; move.sources >> level; ++level) {
      if ((move.sources >> level & 1) == 0) continue;
      const AnyPack earlier = counter.at(level);
      carry = gathered ? fold_any(type, fold, earlier, carry) : earlier;
      gathered = true;
    }
  }
  *result = carry;
  return true;
}

// Loads bytes: whatever the elements, the same come.
struct AnyLoad {
  Machine& machine;
  const Move& move;
  uint32_t type, shift;
  uint64_t position, left;

  OXCCL_INLINE bool operator()(uint32_t source, AnyPack* into) const {
    const View& view = move.source(source);
    uint64_t word = 0;
    if (!load_word<uint8_t>(machine, view, position, left, &word)) return false;
    *into = unpack_any(type, word >> shift, move.scaling.premultiply && view.is_raw(), move.scaling.factor_bits);
    return true;
  }
};

OXCCL_INLINE bool reduce_words_any(Machine& machine, const Move& move, uint32_t way) {
  const uint32_t type = way / FOLDS, fold = way % FOLDS;
  const bool is_wide = type == DATA_TYPE_I64 || type == DATA_TYPE_U64 || type == DATA_TYPE_F64;
  const bool is_float = type >= DATA_TYPE_F16;
  const bool brackets_matter = is_float && (fold == FOLD_SUM || OtherFolds(fold).brackets_matter());
  const bool tree = move.tree && move.sources > 2 && brackets_matter;
  // Subtrees lie in shared memory, which has room for so many threads'.
  if (tree && lane() >= WORD_TREE_THREADS) return true;
  const uint32_t threads = tree ? WORD_TREE_THREADS : lanes();
  const Stretches stretches = stretches_of(move);
  const Stretches words = {stretches.head, 0, move.len_bytes, false};
#pragma unroll 1
  for (uint64_t word = lane_of(move); word < words.count(); word += threads) {
    const uint64_t position = words.position(word), left = words.left(word);
    uint64_t result = 0;
#pragma unroll 1
    for (uint32_t shift = 0; shift < 64; shift += is_wide ? 64 : 32) {
      const AnyLoad load = {machine, move, type, shift, position, left};
      AnyPack pack;
      if (!reduce_any(type, fold, move, tree, load, &pack)) return false;
      result |= pack_any(type, pack, move.scaling) << shift;
    }
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      store_word<uint8_t>(move.destination(d), position, left, result);
  }
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
