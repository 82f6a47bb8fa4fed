// Long stretches of a ReduceCopy on a GPU.
//
//     head and tail up to 16-byte boundaries, mixed alignments, LL: word by word
//     LL128, and whatever is moved with it:                         share by share (cuda/lines.h)
//     left fold: for each group of UNROLL 16-byte packs that is this thread's:
//       for each two sources: load their packs, fold them into the accumulators
//     tree fold, of floats' sums and products: for each pack:
//       for each eight sources: load all eight, fold them as a tree      (cuda/tree.h)
//     round, store to every destination
//
// Why it is fast: neighbouring threads touch neighbouring packs, every access of the left fold is
// 16 bytes wide, and eight loads are in flight per thread (four of the left fold with 8-bit
// floats). The loops hold no predicates and nothing of a factor: packs that are not as many as a
// thread takes at a time come behind, one by one. Sums of bytes are of whole words.
// What is irregular takes the word path, which is kept small, since every kernel has one.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

// Which of a move's threads this one is.
OXCCL_INLINE uint32_t lane_of(const Move& move) { return (lane() - move.first_lane) % BLOCK_THREADS; }

}  // namespace OXCCL_ISA
}  // namespace oxccl

#include "async.h"
#include "folds.h"
#include "lines.h"
#include "switch.h"
#include "tree.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint64_t SHORT_BYTES = 0;

// The bytes of a move: packs of 16, words in front of them up to a boundary, and words behind.
struct Stretches {
  using Bits = uint64_t;
  uint32_t head, packs;
  uint64_t len_bytes;
  bool in_lines;  // instead of all that: it has LL128 operands

  OXCCL_INLINE uint64_t tail() const { return head + uint64_t(packs) * PACK_BYTES; }
  // The words are numbered through, and a word never reaches over an end of its stretch.
  OXCCL_INLINE uint32_t head_words() const { return (head + 7) / 8; }
  OXCCL_INLINE uint64_t count() const { return head_words() + (len_bytes - tail() + 7) / 8; }
  OXCCL_INLINE uint64_t position(uint64_t word) const {
    return word < head_words() ? word * 8 : tail() + (word - head_words()) * 8;
  }
  OXCCL_INLINE uint64_t left(uint64_t word) const {
    return (word < head_words() ? head : len_bytes) - position(word);
  }

  template <class Unit>
  OXCCL_INLINE bool load(Machine& machine, const View& view, uint64_t word, uint64_t* into) const {
    return load_word<Unit>(machine, view, position(word), left(word), into);
  }
  template <class Unit>
  OXCCL_INLINE void store(const View& view, uint64_t word, uint64_t from) const {
    store_word<Unit>(view, position(word), left(word), from);
  }
};

// Packs need operands in plain global memory that are misaligned alike; else there are only words.
// (A move of 64 GiB would have more packs than can be counted; tiles are far smaller.) A warp looks
// at all operands at once, an operand a thread, and comes here with all of its threads.
OXCCL_INLINE Stretches stretches_of(const Move& move) {
  const uint32_t misaligned = uint32_t(reinterpret_cast<uintptr_t>(move.source(0).data)) % PACK_BYTES;
  bool unlike = move.len_bytes >= uint64_t(PACK_BYTES) << 32, has_lines = false;
#pragma unroll 1
  for (uint32_t o = lane() % WARP_THREADS; o < move.sources + move.destinations; o += WARP_THREADS) {
    const View& view = move.source(o);
    const uint32_t own = uint32_t(reinterpret_cast<uintptr_t>(view.data)) % PACK_BYTES;
    unlike |= !view.is_plain() || own != misaligned || !__isGlobal(view.data);
    has_lines |= view.is_ll128();
  }
  const bool in_lines = any_of_warp(has_lines);
  const uint32_t head = (PACK_BYTES - misaligned) % PACK_BYTES;
  if (any_of_warp(unlike) || move.len_bytes < head) return {0, 0, move.len_bytes, in_lines};
  return {head, uint32_t((move.len_bytes - head) / PACK_BYTES), move.len_bytes, false};
}

// Packs of one source: this thread's next UNROLL, as far as there are any. The others become zeros:
// what a register holds where a load is left out would else be kept, through all loops around.
template <class Raw, uint32_t UNROLL>
OXCCL_INLINE void load_packs(Raw (&raws)[UNROLL], const View& view, uint64_t position, uint32_t left) {
  const Raw* from = global_memory<const Raw>(view.data + position);
#pragma unroll
  for (uint32_t u = 0; u < UNROLL; ++u) {
    raws[u] = {};
    if (u * lanes() < left) raws[u] = from[u * lanes()];
  }
}

template <class Raw, uint32_t UNROLL>
OXCCL_INLINE void store_packs(const Raw (&raws)[UNROLL], const View& view, uint64_t position, uint32_t left) {
  Raw* to = global_memory<Raw>(view.data + position);
#pragma unroll
  for (uint32_t u = 0; u < UNROLL; ++u)
    if (u * lanes() < left) to[u * lanes()] = raws[u];
}

// All of them.
template <class Raw, uint32_t UNROLL>
OXCCL_INLINE void load_all(Raw (&raws)[UNROLL], const View& view, uint64_t position) {
  const Raw* from = global_memory<const Raw>(view.data + position);
#pragma unroll
  for (uint32_t u = 0; u < UNROLL; ++u) raws[u] = from[u * lanes()];
}

// What a pack is loaded as: whole words, where elements are widened by pairs out of these.
template <class N, bool PAIRS>
struct LoadedAs {
  using Type = typename Pack<N, PACK_BYTES>::Raw;
};
template <class N>
struct LoadedAs<N, true> {
  using Type = Words<PACK_BYTES / 4>;
};

template <class N, class P>
OXCCL_INLINE void widen_pack(P& pack, const typename P::Raw& raw) {
  pack.unpack(raw, false, 0);
}
template <class N, class P, uint32_t WORDS>
OXCCL_INLINE void widen_pack(P& pack, const Words<WORDS>& raw) {
#pragma unroll
  for (uint32_t w = 0; w < WORDS; ++w) N::Conversion::widen_four(raw.words[w], &pack.values[4 * w]);
}

template <class N, bool SCALED, class Folds, class P, class Loaded, uint32_t UNROLL>
OXCCL_INLINE void fold_packs(const Folds& folds, P (&acc)[UNROLL], const Loaded (&raws)[UNROLL], const View& view,
                             const Scaling& scaling, bool first) {
  const bool scaled = SCALED && view.is_raw();
#pragma unroll
  for (uint32_t u = 0; u < UNROLL; ++u) {
    P next;
    if constexpr (SCALED) next.unpack(bit_cast<typename P::Raw>(raws[u]), scaled, scaling.factor_bits);
    else widen_pack<N>(next, raws[u]);
    acc[u] = first ? next : folds.folded(acc[u], next);
  }
}

// The accumulators of sums of bytes, four to a word: all bytes with what each carries into the
// next, and every second one, which carries into a byte of its own. The difference is the others,
// which do the same. 256 sources carry no further than that.
template <uint32_t BYTES>
struct ByteSums {
  static constexpr uint32_t WORDS = BYTES / 4, MOST_SOURCES = 256, EVEN = 0x00ff00ff;
  uint32_t all[WORDS], even[WORDS];

  OXCCL_INLINE void add(const Words<WORDS>& words) {
#pragma unroll
    for (uint32_t w = 0; w < WORDS; ++w) {
      all[w] += words.words[w];
      even[w] += words.words[w] & EVEN;
    }
  }
  OXCCL_INLINE Words<WORDS> sums() const {
    Words<WORDS> words;
#pragma unroll
    for (uint32_t w = 0; w < WORDS; ++w) words.words[w] = (even[w] & EVEN) | ((all[w] - even[w]) & ~EVEN);
    return words;
  }
};

template <class N, class Folds>
OXCCL_INLINE constexpr bool has_byte_sums() {
  return N::INTEGER && sizeof(typename N::Element) == 1 && Folds::ARE_SUMS;
}

// As long as this thread has UNROLL packs of bytes at a time, from `pack` on; the next behind them.
template <uint32_t UNROLL>
OXCCL_INLINE uint32_t sum_bytes(const Move& move, uint32_t head, uint32_t pack, uint32_t packs) {
  using Raw = Words<PACK_BYTES / 4>;
#pragma unroll 1
  for (; pack + (UNROLL - 1) * lanes() < packs; pack += lanes() * UNROLL) {
    const uint64_t position = head + uint64_t(pack) * PACK_BYTES;
    ByteSums<PACK_BYTES> sums[UNROLL] = {};
#pragma unroll 1
    for (uint32_t source = 0; source < move.sources; source += 2) {
      const bool pair = source + 1 < move.sources;
      Raw first[UNROLL], second[UNROLL];
      load_all(first, move.source(source), position);
      load_packs(second, move.source(source + pair), position, pair ? ~0u : 0);
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        sums[u].add(first[u]);
        sums[u].add(second[u]);
      }
    }
    Raw raws[UNROLL];
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) raws[u] = sums[u].sums();
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      store_packs(raws, move.destination(d), position, ~0u);
  }
  return pack;
}

// As long as this thread has UNROLL packs at a time, from `pack` on; the next behind them.
template <class N, bool SCALED, uint32_t UNROLL, class Folds>
OXCCL_INLINE uint32_t fold_full(const Folds& folds, const Move& move, uint32_t head, uint32_t pack, uint32_t packs) {
  using P = Pack<N, PACK_BYTES>;
  using Raw = typename P::Raw;
#pragma unroll 1
  for (; pack + (UNROLL - 1) * lanes() < packs; pack += lanes() * UNROLL) {
    const uint64_t position = head + uint64_t(pack) * PACK_BYTES;
    P acc[UNROLL];
    typename LoadedAs<N, widens_pairs<N>() && !SCALED>::Type first[UNROLL], second[UNROLL];
    uint32_t source = move.sources & 1;
    // The first one, or two.
    load_all(first, move.source(0), position);
    if (source == 0) {
      load_all(second, move.source(1), position);
      compiler_fence();  // all loads are under way before the first is used
      fold_packs<N, SCALED>(folds, acc, first, move.source(0), move.scaling, true);
      fold_packs<N, SCALED>(folds, acc, second, move.source(1), move.scaling, false);
      source = 2;
    } else {
      fold_packs<N, SCALED>(folds, acc, first, move.source(0), move.scaling, true);
    }
#pragma unroll 1
    for (; source < move.sources; source += 2) {
      load_all(first, move.source(source), position);
      load_all(second, move.source(source + 1), position);
      compiler_fence();  // all loads are under way before the first is used
      fold_packs<N, SCALED>(folds, acc, first, move.source(source), move.scaling, false);
      compiler_fence();  // both sources widened at once would not fit into the registers
      fold_packs<N, SCALED>(folds, acc, second, move.source(source + 1), move.scaling, false);
    }
    Raw raws[UNROLL];
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) raws[u] = acc[u].packed(move.scaling);
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      store_packs(raws, move.destination(d), position, ~0u);
  }
  return pack;
}

// Packs of 16 bytes, UNROLL at a time of two sources each, folded from the left; what is left of
// them one by one. Products with a factor have loops of their own, which are smaller: the others
// hold nothing of it.
template <class N, class Folds>
OXCCL_INLINE void reduce_packs(const Folds& folds, const Move& move, const Stretches& stretches) {
  using P = Pack<N, PACK_BYTES>;
  const uint32_t head = stretches.head, packs = stretches.packs;
  if constexpr (has_byte_sums<N, Folds>()) {
    if (!move.scaling.premultiply && !move.scaling.divide && move.sources <= ByteSums<PACK_BYTES>::MOST_SOURCES) {
      const uint32_t pack = sum_bytes<4>(move, head, lane_of(move), packs);
      sum_bytes<1>(move, head, pack, packs);
      return;
    }
  }
  // 16 elements a pack widen to 16 registers, of which there are not enough for four.
  constexpr uint32_t UNROLL = P::COUNT > 8 ? 2 : 4;
  if (move.scaling.premultiply) {
    fold_full<N, true, 1>(folds, move, head, lane_of(move), packs);
  } else {
    const uint32_t pack = fold_full<N, false, UNROLL>(folds, move, head, lane_of(move), packs);
    fold_full<N, false, 1>(folds, move, head, pack, packs);
  }
}

// Words, or shares of lines: any operand.
template <class N, class Units>
struct UnitLoad {
  using Element = typename N::Element;
  using Bits = typename Units::Bits;
  using P = Pack<N, sizeof(Bits)>;
  Machine& machine;
  const Move& move;
  const Units& units;
  uint64_t unit;

  OXCCL_INLINE P pack() const { return {}; }

  OXCCL_INLINE bool operator()(uint32_t source, P* into) const {
    const View& view = move.source(source);
    Bits bits = {};
    if (!units.template load<Element>(machine, view, unit, &bits)) return false;
    into->unpack(bit_cast<typename P::Raw>(bits), move.scaling.premultiply && view.is_raw(),
                 move.scaling.factor_bits);
    return true;
  }

  OXCCL_INLINE void store(P& result) const {
    const Bits bits = bit_cast<Bits>(result.packed(move.scaling));
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      units.template store<Element>(move.destination(d), unit, bits);
  }
};

template <class N, class Folds, class Units>
OXCCL_INLINE bool reduce_units(const Folds& folds, Machine& machine, const Move& move, const Units& units) {
#pragma unroll 1
  for (uint64_t unit = lane_of(move); unit < units.count(); unit += lanes()) {
    const UnitLoad<N, Units> load = {machine, move, units, unit};
    if (!reduce_left(folds, move, load)) return false;
  }
  return true;
}

// One type's.
template <class N, class Folds>
struct CudaReducer {
  Folds folds;

  OXCCL_INLINE bool reduce(Machine& machine, const Move& given) const {
    const Move& move = known(given);
    const Stretches stretches = stretches_of(move);
    if (stretches.in_lines) return reduce_irregular(machine, move, Lines{move.len_bytes});
    if constexpr (HAS_TREES) {
      if (is_tree(move)) reduce_packs_tree<N>(folds, move, stretches.head, stretches.tail());
      else reduce_packs<N>(folds, move, stretches);
    } else {
      reduce_packs<N>(folds, move, stretches);
    }
    return reduce_irregular(machine, move, stretches);
  }

  // Units [begin, end), of which each source's are in shared memory: see at_once.h.
  template <class Units>
  OXCCL_INLINE void fold_gathered(const Move& given, const Operand* operands, const Units& units, uint32_t begin,
                                  uint32_t end, uint32_t stride) const {
    const Move& move = known(given);
    using Bits = typename Units::Bits;
    using P = Pack<N, sizeof(Bits)>;
    const Bits* const from = reinterpret_cast<const Bits*>(subtrees());
#pragma unroll 1
    for (uint32_t unit = begin + lane(); unit < end; unit += lanes()) {
      P result = {};
#pragma unroll 1
      for (uint32_t s = 0; s < move.sources; ++s) {
        const bool scaled = move.scaling.premultiply && (operands[s].flags & OPERAND_RAW);
        P next;
        next.unpack(bit_cast<typename P::Raw>(from[s * stride + unit - begin]), scaled, move.scaling.factor_bits);
        result = s == 0 ? next : folds.folded(result, next);
      }
      const Bits bits = bit_cast<Bits>(result.packed(move.scaling));
#pragma unroll 1
      for (uint32_t d = 0; d < move.destinations; ++d)
        units.template store<typename N::Element>(move.destination(d), unit, bits);
    }
  }

 private:
  // Integers give the same bits from the left, and the tree is a third of a kernel.
  static constexpr bool HAS_TREES = !N::INTEGER;
  OXCCL_INLINE bool is_tree(const Move& move) const { return move.tree && move.sources > 2 && folds.brackets_matter(); }

  // The move, of which the compiler knows what no program of these folds has.
  OXCCL_INLINE static decltype(auto) known(const Move& move) {
    if constexpr (Folds::ARE_SUMS) return (move);
    else return Move{move.views, move.sources, move.destinations, move.len_bytes, {}, move.tree, move.first_lane};
  }

  template <class Units>
  OXCCL_INLINE bool reduce_irregular(Machine& machine, const Move& move, const Units& units) const {
    if constexpr (HAS_TREES)
      if (is_tree(move)) return reduce_units_tree<N>(folds, machine, move, units);
    return reduce_units<N>(folds, machine, move, units);
  }
};

template <class Units>
OXCCL_INLINE bool copy_units(Machine& machine, const Move& move, const Units& units) {
#pragma unroll 1
  for (uint64_t unit = lane_of(move); unit < units.count(); unit += lanes()) {
    typename Units::Bits bits = {};
    if (!units.template load<uint8_t>(machine, move.source(0), unit, &bits)) return false;
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      units.template store<uint8_t>(move.destination(d), unit, bits);
  }
  return true;
}

// One source, unchanged.
OXCCL_INLINE bool copy_bulk(Machine& machine, const Move& move) {
  constexpr uint32_t UNROLL = 8;
  const Stretches stretches = stretches_of(move);
  if (stretches.in_lines) return copy_units(machine, move, Lines{move.len_bytes});
  const bool taken = copy_async(move, stretches.head, uint64_t(stretches.packs) * PACK_BYTES);
  const uint32_t packs = taken ? 0 : stretches.packs;
#pragma unroll 1
  for (uint32_t pack = lane_of(move); pack < packs; pack += lanes() * UNROLL) {
    const uint64_t position = stretches.head + uint64_t(pack) * PACK_BYTES;
    uint4 raws[UNROLL];
    load_packs(raws, move.source(0), position, packs - pack);
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      store_packs(raws, move.destination(d), position, packs - pack);
  }
  return copy_units(machine, move, stretches);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
