// The loops that move and fold long stretches on the host.
//
// They go element by element and leave the vectors to the compiler: that vectorises for every type,
// where loops over 16-byte structs do not for f16 and fp8. `ivdep` says that a destination may be one
// of the sources, but never half overlaps one, so the loops need no overlap test. f16 is the
// exception: the compiler does not find the conversion instructions, so they are written out.
#pragma once
#include "numeric.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// A register full of elements in the accumulator type, where written out by hand.
template <class N>
struct Vector {
  static constexpr size_t COUNT = 0;
};

#if defined(__F16C__) && !OXCCL_SANITIZED
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
template <>
struct Vector<F16> {
  typedef float Values __attribute__((vector_size(64)));
  static constexpr size_t COUNT = 16;
  static OXCCL_INLINE Values load(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static OXCCL_INLINE void store(uint16_t* to, Values values) {
    const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    const __m256i bits = _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i canonical = _mm256_mask_mov_epi16(bits, nan, _mm256_set1_epi16(0x7fff));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), canonical);
  }
};
#else
template <>
struct Vector<F16> {
  typedef float Values __attribute__((vector_size(32)));
  static constexpr size_t COUNT = 8;
  static OXCCL_INLINE Values load(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static OXCCL_INLINE void store(uint16_t* to, Values values) {
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m128i nan16 =
        _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    const __m128i bits = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m128i canonical = _mm_blendv_epi8(bits, _mm_set1_epi16(0x7fff), nan16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), canonical);
  }
};
#endif
#endif

template <Fold F, class V>
OXCCL_INLINE V fold_vector(V a, V b) {
  if constexpr (F == FOLD_SUM) return a + b;
  else if constexpr (F == FOLD_PROD) return a * b;
  else if constexpr (F == FOLD_MIN) return (b < a) | (a != a) ? b : a;
  else return (b > a) | (a != a) ? b : a;
}

// to = narrow(fold(a, b))
template <class N, Fold F>
void fold_two(void* to_, const void* a_, const void* b_, size_t count) {
  using Element = typename N::Element;
  Element* to = static_cast<Element*>(to_);
  const Element *a = static_cast<const Element*>(a_), *b = static_cast<const Element*>(b_);
  size_t i = 0;
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
