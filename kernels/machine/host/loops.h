// The loops that move and fold long stretches on the host.
//
// They go element by element and leave the vectors to the compiler: that vectorises for every type,
// where loops over 16-byte structs do not for f16 and fp8. `ivdep` says that a destination may be
// one of the sources, but never half overlaps one, so the loops need no overlap test. The small
// floats are the exception where host/pairs.h and host/vectors.h have them.
#pragma once
#include "pairs.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// to = narrow(fold(a, b))
template <class N, Fold F>
void fold_two(void* to_, const void* a_, const void* b_, size_t count) {
  using Element = typename N::Element;
  Element* to = static_cast<Element*>(to_);
  const Element *a = static_cast<const Element*>(a_), *b = static_cast<const Element*>(b_);
  size_t i = 0;
  if constexpr (Pairs<N, F>::COUNT != 0) {
    using P = Pairs<N, F>;
    for (; i + P::COUNT <= count; i += P::COUNT) P::fold(to + i, a + i, b + i);
  }
  if constexpr (Vector<N>::COUNT != 0) {
    using V = Vector<N>;
    for (; i + V::COUNT <= count; i += V::COUNT)
      V::store(to + i, fold_vector<F>(V::load(a + i), V::load(b + i)));
  }
#pragma GCC ivdep
  for (; i < count; ++i) to[i] = N::narrow(fold<N, F>(N::widen(a[i]), N::widen(b[i])));
}

// acc = fold(acc, from), with elements on the right
template <class N, Fold F>
void fold_elements(void* acc_, const void* from_, size_t count) {
  using Accumulator = typename N::Accumulator;
  Accumulator* acc = static_cast<Accumulator*>(acc_);
  const typename N::Element* from = static_cast<const typename N::Element*>(from_);
  size_t i = 0;
  if constexpr (Vector<N>::COUNT != 0) {
    using V = Vector<N>;
    for (; i + V::COUNT <= count; i += V::COUNT) {
      typename V::Values values;
      memcpy(&values, acc + i, sizeof values);
      values = fold_vector<F>(values, V::load(from + i));
      memcpy(acc + i, &values, sizeof values);
    }
  }
#pragma GCC ivdep
  for (; i < count; ++i) acc[i] = fold<N, F>(acc[i], N::widen(from[i]));
}

// to = fold(a, b), accumulators on both sides
template <class N, Fold F>
void fold_accumulators(void* to_, const void* a_, const void* b_, size_t count) {
  using Accumulator = typename N::Accumulator;
  Accumulator* to = static_cast<Accumulator*>(to_);
  const Accumulator *a = static_cast<const Accumulator*>(a_);
  const Accumulator *b = static_cast<const Accumulator*>(b_);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = fold<N, F>(a[i], b[i]);
}

template <class N>
OXCCL_NOINLINE void widen_elements(typename N::Accumulator* to,
                                   const typename N::Element* from, size_t count) {
  size_t i = 0;
  if constexpr (Vector<N>::COUNT != 0) {
    using V = Vector<N>;
    for (; i + V::COUNT <= count; i += V::COUNT) {
      const typename V::Values values = V::load(from + i);
      memcpy(to + i, &values, sizeof values);
    }
  }
#pragma GCC ivdep
  for (; i < count; ++i) to[i] = N::widen(from[i]);
}

template <class N>
OXCCL_NOINLINE void narrow_accumulators(typename N::Element* to,
                                        const typename N::Accumulator* from, size_t count) {
  size_t i = 0;
  if constexpr (Vector<N>::COUNT != 0) {
    using V = Vector<N>;
    for (; i + V::COUNT <= count; i += V::COUNT) {
      typename V::Values values;
      memcpy(&values, from + i, sizeof values);
      V::store(to + i, values);
    }
  }
#pragma GCC ivdep
  for (; i < count; ++i) to[i] = N::narrow(from[i]);
}

template <class N>
OXCCL_NOINLINE void scale_accumulators(typename N::Accumulator* acc,
                                       uint64_t factor_bits, size_t count) {
  const typename N::Accumulator factor = N::factor(factor_bits);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) acc[i] = N::prod(acc[i], factor);
}

template <class N>
OXCCL_NOINLINE void divide_accumulators(typename N::Accumulator* acc,
                                        uint32_t ranks, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) acc[i] = N::divide(acc[i], ranks);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
