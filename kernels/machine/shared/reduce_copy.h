// ReduceCopy: k sources, reduced in the listed order, to m destinations.
//
//     for each pack of bytes that is this thread's:
//       left: acc = source[0];  acc = fold(acc, source[s]) for s = 1, 2, ...
//       tree: push source[s] as a leaf; two subtrees of equal size become one, as in a binary counter
//       finish, round once, store to every destination
//
// A pack is a vector of elements in registers. Packs of 8 bytes are one LL line each, take any
// operand (LL or plain, aligned or not, the last few bytes) and serve short messages on the host
// and everything irregular on a GPU, but for LL128 lines (cuda/lines.h). Long plain stretches go
// through host/bulk.h (cache-sized blocks) and cuda/bulk.h (16-byte packs, several in flight), with
// the same folds in the same order.
#pragma once
#include "flagged.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// The unsigned integer of a width.
template <uint32_t BYTES>
struct BitsOf {
  using Type = uint64_t;
};
template <>
struct BitsOf<4> {
  using Type = uint32_t;
};
template <>
struct BitsOf<2> {
  using Type = uint16_t;
};
template <>
struct BitsOf<1> {
  using Type = uint8_t;
};

template <class N, uint32_t BYTES>
struct Pack {
  using Element = typename N::Element;
  static constexpr uint32_t COUNT = BYTES / sizeof(Element);
  struct alignas(BYTES) Raw {
    Element elements[COUNT];
  };
  using Bits = typename BitsOf<BYTES>::Type;
  typename N::Accumulator values[COUNT];

  OXCCL_INLINE void unpack(const Raw& raw, bool scale, uint64_t factor_bits) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; ++i) values[i] = N::widen(raw.elements[i]);
    if (!scale) return;
#pragma unroll
    for (uint32_t i = 0; i < COUNT; ++i) values[i] = N::prod(values[i], N::factor(factor_bits));
  }

  OXCCL_INLINE Raw packed(const Scaling& scaling) {
    if (scaling.divide) {
#pragma unroll
      for (uint32_t i = 0; i < COUNT; ++i) values[i] = N::divide(values[i], scaling.ranks);
    }
    Raw raw;
#pragma unroll
    for (uint32_t i = 0; i < COUNT; ++i) raw.elements[i] = N::narrow(values[i]);
    return raw;
  }
};

// `earlier` holds the operands that come first.
template <class N, Fold F, uint32_t BYTES>
OXCCL_INLINE Pack<N, BYTES> folded(const Pack<N, BYTES>& earlier, const Pack<N, BYTES>& later) {
  Pack<N, BYTES> result;
#pragma unroll
  for (uint32_t i = 0; i < Pack<N, BYTES>::COUNT; ++i)
    result.values[i] = fold<N, F>(earlier.values[i], later.values[i]);
  return result;
}

// A fold, for what is given one. (GPUs have others: cuda/folds.h.)
template <Fold F>
struct Only {
  static constexpr Fold FOLD = F;
  template <class N, uint32_t BYTES>
  OXCCL_INLINE Pack<N, BYTES> folded(const Pack<N, BYTES>& earlier, const Pack<N, BYTES>& later) const {
    return oxccl::folded<N, F>(earlier, later);
  }
};

// Reads `left` bytes (8 at most) in accesses of one unit, where 8 at once is impossible.
template <class Unit>
OXCCL_INLINE uint64_t load_units(const uint8_t* at, uint64_t left) {
  using Bits = typename BitsOf<sizeof(Unit)>::Type;
  uint64_t word = 0;
#pragma unroll 1
  for (uint32_t byte = 0; byte < 8 && byte < left; byte += sizeof(Unit))
    word |= uint64_t(*reinterpret_cast<const Bits*>(at + byte)) << (byte * 8);
  return word;
}

template <class Unit>
OXCCL_INLINE void store_units(uint8_t* at, uint64_t word, uint64_t left) {
  using Bits = typename BitsOf<sizeof(Unit)>::Type;
#pragma unroll 1
  for (uint32_t byte = 0; byte < 8 && byte < left; byte += sizeof(Unit))
    *reinterpret_cast<Bits*>(at + byte) = Bits(word >> (byte * 8));
}

template <class Unit>
OXCCL_INLINE bool load_word(Machine& machine, const View& view, uint64_t position, uint64_t left,
                            uint64_t* word) {
  if (view.is_ll()) return receive_line(machine, view, view.data + position * 2, word);
  if constexpr (ONE_THREAD)
    if (OXCCL_UNLIKELY(view.is_ll128())) return receive_ll128_word(machine, view, position, word);
  const uint8_t* at = view.data + position;
  *word = can_access_whole_words(at) && left >= 8 ? *reinterpret_cast<const unaligned_word*>(at)
                                                  : load_units<Unit>(at, left);
  return true;
}

template <class Unit>
OXCCL_INLINE void store_word(const View& view, uint64_t position, uint64_t left, uint64_t word) {
  if (view.is_ll()) return store_line(view.data + position * 2, word, view.epoch);
  if constexpr (ONE_THREAD)
    if (OXCCL_UNLIKELY(view.is_ll128())) return send_ll128_word(view, position, left, word);
  uint8_t* at = view.data + position;
  if (can_access_whole_words(at) && left >= 8) *reinterpret_cast<unaligned_word*>(at) = word;
  else store_units<Unit>(at, word, left);
}

// One word from the only source to every destination: bytes, whatever the type.
OXCCL_INLINE bool copy_word(Machine& machine, const Move& move, uint64_t position, uint64_t left) {
  uint64_t word = 0;
  if (!load_word<uint8_t>(machine, move.source(0), position, left, &word)) return false;
#pragma unroll 1
  for (uint32_t d = 0; d < move.destinations; ++d)
    store_word<uint8_t>(move.destination(d), position, left, word);
  return true;
}

template <class Folds, class Load>
OXCCL_INLINE bool reduce_left(const Folds& folds, const Move& move, const Load& load) {
  auto result = load.pack();
  if (!load(0, &result)) return false;
#pragma unroll 1
  for (uint32_t source = 1; source < move.sources; ++source) {
    auto next = load.pack();
    if (!load(source, &next)) return false;
    result = folds.folded(result, next);
  }
  load.store(result);
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl

#include "bulk.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// A copy onto itself (buffers in place) writes nothing: peers may be reading there.
OXCCL_INLINE bool copy(Machine& machine, const Move& move) {
  const View& source = move.source(0);
  const uint32_t in_place = move.destinations > 0 && source.is_plain() &&
                            move.destination(0).data == source.data;
  // What is read then is the destination, which is the same.
  const Move rest = {move.views + in_place, 1,           move.destinations - in_place,
                     move.len_bytes,        move.scaling, move.tree,
                     move.first_lane};
  if (in_place && rest.destinations == 0) return true;
  if (move.len_bytes > SHORT_BYTES) return copy_bulk(machine, rest);
#pragma unroll 1
  for (uint64_t position = 0; position < move.len_bytes; position += 8)
    if (!copy_word(machine, rest, position, move.len_bytes - position)) return false;
  return true;
}

// `reducer` folds what is not a copy; it is the target's, for one element type.
template <class Reducer>
OXCCL_INLINE bool reduce_copy(Machine& machine, const Move& move, const Reducer& reducer) {
  const bool scaled =
      move.scaling.divide || (move.scaling.premultiply && move.source(0).is_raw());
  if (move.sources > 1 || scaled) return reducer.reduce(machine, move);
  return copy(machine, move);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
