// The host's reducers of one element type: compiled once per type (OXCCL_TYPE) and instruction set.
#include "table.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Packs of 8 bytes: any operand.
template <class N>
struct WordLoad {
  Machine& machine;
  const Move& move;
  uint64_t position, left;
  using Element = typename N::Element;

  OXCCL_INLINE Pack<N, 8> pack() const { return {}; }

  OXCCL_INLINE bool operator()(uint32_t source, Pack<N, 8>* into) const {
    const View& view = move.source(source);
    uint64_t word = 0;
    if (!load_word<Element>(machine, view, position, left, &word)) return false;
    into->unpack(bit_cast<typename Pack<N, 8>::Raw>(word), move.scaling.premultiply && view.is_raw(),
                 move.scaling.factor_bits);
    return true;
  }

  OXCCL_INLINE void store(Pack<N, 8>& result) const {
    const uint64_t word = bit_cast<uint64_t>(result.packed(move.scaling));
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d)
      store_word<Element>(move.destination(d), position, left, word);
  }
};

template <class N, Fold F>
static bool reduce_words(Machine& machine, const Move& move) {
  for (uint64_t position = 0; position < move.len_bytes; position += 8)
    if (!reduce_left(Only<F>(), move, WordLoad<N>{machine, move, position, move.len_bytes - position}))
      return false;
  return true;
}

template <class N, Fold F>
static uint64_t fold_word(uint64_t a, uint64_t b) {
  using P = Pack<N, 8>;
  P first, second;
  first.unpack(bit_cast<typename P::Raw>(a), false, 0);
  second.unpack(bit_cast<typename P::Raw>(b), false, 0);
  return bit_cast<uint64_t>(folded<N, F>(first, second).packed({}));
}

// Where elements accumulate in their own type, folding elements in is folding accumulators.
template <class N, Fold F>
static void fold_own(void* acc, const void* from, size_t count) {
  fold_two<N, F>(acc, acc, from, count);
}

template <class N, Fold F>
static constexpr HostReducer reducer_of() {
  constexpr uint64_t SIZE = sizeof(typename N::Element);
  constexpr bool OWN = SIZE == sizeof(typename N::Accumulator);
  if constexpr (!N::INTEGER && F >= FOLD_BIT_AND) {
    return {};
  } else if constexpr (OWN) {
    return {SIZE, fold_word<N, F>, reduce_words<N, F>, reduce_bulk<N>,
            fold_two<N, F>,  fold_own<N, F>,     fold_two<N, F>};
  } else {
    return {SIZE, fold_word<N, F>, reduce_words<N, F>,  reduce_bulk<N>,
            fold_two<N, F>,  fold_elements<N, F>, fold_accumulators<N, F>};
  }
}

#define OXCCL_JOIN_(a, b) a##b
#define OXCCL_JOIN(a, b) OXCCL_JOIN_(a, b)

#define OXCCL_REDUCER(fold) reducer_of<OXCCL_TYPE, FOLD_##fold>(),
extern const Reducers OXCCL_JOIN(REDUCERS_, OXCCL_TYPE) = {{OXCCL_EACH_FOLD(OXCCL_REDUCER)}};
#undef OXCCL_REDUCER

}  // namespace OXCCL_ISA
}  // namespace oxccl
