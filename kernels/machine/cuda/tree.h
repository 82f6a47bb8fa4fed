// The tree fold on a GPU: a binary counter of subtrees, whose lowest three levels are registers.
//
//     for each eight leaves:
//       load them all; fold neighbours, then pairs, then fours      (a last group may have fewer)
//       while the group's counter bit is set: group = fold(subtree[level], group), next level
//       subtree[level] = group
//     gather what is left, from the smallest subtree up
//
// Subtrees of eight and more leaves lie in shared memory, each thread's own, so that they can be
// indexed at run time: an array in registers could not, and would unroll into code that dwarfs the
// rest. Up to eight sources never touch it. A pack holds 16 bytes of accumulators.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t GROUP_LEAVES = 8;
constexpr uint32_t GROUP_LEVELS = TREE_LEVELS - 3;
constexpr uint32_t TREE_THREADS = 512;
// The word path takes leaves one by one and so needs all levels; half of the threads walk it.
constexpr uint32_t WORD_TREE_THREADS = 256;
static_assert(TREE_LEVELS * WORD_TREE_THREADS <= GROUP_LEVELS * TREE_THREADS, "they share memory");
constexpr uint32_t SUBTREE_BYTES = GROUP_LEVELS * TREE_THREADS * sizeof(uint4);
// Trees of up to so many sources, which have five levels of words and two of packs, leave the rest
// to the part's tables (cuda/tables.h).
constexpr uint32_t SMALL_TREE_SOURCES = 31;
constexpr uint32_t SMALL_TREE_BYTES = 5 * WORD_TREE_THREADS * sizeof(uint4);
static_assert(2 * TREE_THREADS <= 5 * WORD_TREE_THREADS, "packs need no more");

OXCCL_INLINE uint4* subtrees() {
  __shared__ uint4 memory[GROUP_LEVELS * TREE_THREADS];
  return memory;
}

// One thread's subtrees.
template <class P>
struct Counter {
  uint4* memory;
  uint32_t stride;
  static_assert(sizeof(P) <= sizeof(uint4), "a pack's accumulators fill one element");

  OXCCL_INLINE P& at(uint32_t level) const {
    return *reinterpret_cast<P*>(&memory[level * stride + lane()]);
  }

  // `leaves` were counted before `carry`.
  template <class Folds>
  OXCCL_INLINE P push(const Folds& folds, P carry, uint32_t leaves) const {
    uint32_t level = 0;
#pragma unroll 1
    for (; leaves >> level & 1; ++level) carry = folds.folded(at(level), carry);
    return carry;
  }

  template <class Folds>
  OXCCL_INLINE P gather(const Folds& folds, P carry, bool gathered, uint32_t leaves) const {
#pragma unroll 1
    for (uint32_t level = 0; leaves >> level; ++level) {
      if ((leaves >> level & 1) == 0) continue;
      carry = gathered ? folds.folded(at(level), carry) : at(level);
      gathered = true;
    }
    return carry;
  }
};

// Folds up to eight leaves, as many as `count` says.
template <class Folds, class P>
OXCCL_INLINE P fold_group(const Folds& folds, P (&leaves)[GROUP_LEAVES], uint32_t count) {
#pragma unroll
  for (uint32_t size = 1; size < GROUP_LEAVES; size *= 2) {
#pragma unroll
    for (uint32_t at = 0; at < GROUP_LEAVES; at += 2 * size)
      if (at + size < count) leaves[at] = folds.folded(leaves[at], leaves[at + size]);
  }
  return leaves[0];
}

template <class N, class Folds>
OXCCL_INLINE void reduce_packs_tree(const Folds& folds, const Move& move, uint64_t start, uint64_t end) {
  constexpr uint32_t BYTES = 16 / sizeof(typename N::Accumulator) * sizeof(typename N::Element);
  using P = Pack<N, BYTES>;
  const Counter<P> counter = {subtrees(), TREE_THREADS};
  const uint32_t groups = move.sources / GROUP_LEAVES;
#pragma unroll 1
  for (uint64_t position = start + uint64_t(lane()) * BYTES; position < end;
       position += uint64_t(lanes()) * BYTES) {
    P carry = {};
#pragma unroll 1
    for (uint32_t group = 0; group * GROUP_LEAVES < move.sources; ++group) {
      const uint32_t first = group * GROUP_LEAVES;
      const uint32_t count = move.sources - first;
      typename P::Raw raws[GROUP_LEAVES];
#pragma unroll
      for (uint32_t i = 0; i < GROUP_LEAVES; ++i) {
        const View& view = move.source(i < count ? first + i : first);
        raws[i] = *global_memory<const typename P::Raw>(view.data + position);
      }
      P leaves[GROUP_LEAVES];
#pragma unroll
      for (uint32_t i = 0; i < GROUP_LEAVES; ++i) {
        const View& view = move.source(i < count ? first + i : first);
        leaves[i].unpack(raws[i], move.scaling.premultiply && view.is_raw(), move.scaling.factor_bits);
      }
      carry = fold_group(folds, leaves, count);
      if (count < GROUP_LEAVES) break;
      carry = counter.push(folds, carry, group);
      if (const uint32_t level = __ffs(~group) - 1; level < GROUP_LEVELS) counter.at(level) = carry;
    }
    const bool partial = move.sources % GROUP_LEAVES != 0;
    if (groups < 1u << GROUP_LEVELS) carry = counter.gather(folds, carry, partial, groups);
    const typename P::Raw raw = carry.packed(move.scaling);
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      *global_memory<typename P::Raw>(move.destination(d).data + position) = raw;
  }
}

// The unsigned integer of so many bytes at `byte` of a unit.
template <class Bits>
OXCCL_INLINE Bits part_of(uint64_t word, uint32_t byte) {
  return Bits(word >> byte * 8);
}
template <class Bits>
OXCCL_INLINE Bits part_of(const Share& share, uint32_t byte) {
  return Bits((byte < 8 ? share.low : share.high) >> byte % 8 * 8);
}

OXCCL_INLINE void put_part(uint64_t& word, uint32_t byte, uint64_t bits) { word |= bits << byte * 8; }
OXCCL_INLINE void put_part(Share& share, uint32_t byte, uint64_t bits) {
  const uint64_t shifted = bits << byte % 8 * 8;
  if (byte < 8) share.low |= shifted;
  else share.high |= shifted;
}

// Half words (or whole ones, where an element is a word), so that a pack's accumulators fit. Whole
// warps walk.
template <class N, class Folds, class Units>
OXCCL_INLINE bool reduce_units_tree(const Folds& folds, Machine& machine, const Move& move, const Units& units) {
  using Element = typename N::Element;
  constexpr uint32_t BYTES = sizeof(Element) == 8 ? 8 : 4;
  using P = Pack<N, BYTES>;
  using Bits = typename Units::Bits;
  if (lane() >= WORD_TREE_THREADS) return true;
  const Counter<P> counter = {subtrees(), WORD_TREE_THREADS};
  const uint32_t threads = lanes() < WORD_TREE_THREADS ? lanes() : WORD_TREE_THREADS;
#pragma unroll 1
  for (uint64_t unit = lane(); unit < units.count(); unit += threads) {
    Bits result = {};
#pragma unroll 1
    for (uint32_t byte = 0; byte < sizeof(Bits); byte += BYTES) {
      P carry = {};
#pragma unroll 1
      for (uint32_t source = 0; source < move.sources; ++source) {
        const View& view = move.source(source);
        Bits bits = {};
        if (!units.template load<Element>(machine, view, unit, &bits)) return false;
        carry.unpack(bit_cast<typename P::Raw>(part_of<typename P::Bits>(bits, byte)),
                     move.scaling.premultiply && view.is_raw(), move.scaling.factor_bits);
        carry = counter.push(folds, carry, source);
        if (const uint32_t level = __ffs(~source) - 1; level < TREE_LEVELS)
          counter.at(level) = carry;
      }
      if (move.sources < MAX_TREE_SOURCES)
        carry = counter.gather(folds, carry, false, move.sources);
      put_part(result, byte, bit_cast<typename P::Bits>(carry.packed(move.scaling)));
    }
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      units.template store<Element>(move.destination(d), unit, result);
  }
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
