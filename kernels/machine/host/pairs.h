// Two registers full of bf16 or fp8 elements become one, for x86-64 with AVX2 and F16C. With
// AVX-512 it was not measured: there host/vectors.h and the compiler do it.
//
// All that a byte or a word needs is done in lanes of that width. Only the fold itself, and the way
// to it, is in f32. Bits are those of numeric.h:
//
//     bf16:  the upper half of an f32; the FPU adds, integers round
//     e5m2:  the upper byte of an f16
//     e4m3:  as an f16 seven bits up it is 2^-8 of itself, subnormals too, and what is folded stays
//            in that scale
//     fp8:   the fold's result is rounded to f16, and that to fp8
//
// To round twice is to round once here. Two numbers of p bits have a sum or a product that is
// rounded rightly by way of 2p + 2 bits, and fp8 has 4 bits at most where f16 has 11. (S. A.
// Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30(3), 1995.) Below the normal
// numbers a sum is exact in f16, and a product that is not is no neighbour of a tie. The tests go
// through all pairs of fp8.
//
// Sum of two operands of 64 KiB by AVX2 on an AMD EPYC of 2 cores, instead of by host/vectors.h and
// the compiler: bf16 5.2 us instead of 9.9, e4m3 19 instead of 46, e5m2 17 instead of 28. f16, by
// host/vectors.h, takes 4.2 for half as many elements as fp8.
#pragma once
#include "vectors.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Folds COUNT elements of N. 0: leave it to host/vectors.h, or to the compiler.
template <class N, Fold F>
struct Pairs {
  static constexpr size_t COUNT = 0;
};

#if defined(__AVX2__) && defined(__F16C__) && !defined(__AVX512F__) && !OXCCL_SANITIZED

// Lanes of 32, 16 and 8 bits. What unpacks and packs works on halves of the register: packed, what
// was unpacked is in its old order.
OXCCL_INLINE __m256i load_register(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

OXCCL_INLINE void store_register(void* to, __m256i bits) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), bits);
}

template <Fold F>
struct Pairs<BF16, F> {
  static constexpr size_t COUNT = 16;

  static OXCCL_INLINE __m256i rounded(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values), upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  }

  static OXCCL_INLINE void fold(uint16_t* to, const uint16_t* a_, const uint16_t* b_) {
    const __m256i a = load_register(a_), b = load_register(b_), zero = _mm256_setzero_si256();
    const __m256 low = fold_vector<F>(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a)),
                                      _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b)));
    const __m256 high = fold_vector<F>(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a)),
                                       _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b)));
    const __m256i result = _mm256_packus_epi32(rounded(low), rounded(high));
    const __m256i nan =
        _mm256_packs_epi32(_mm256_castps_si256(_mm256_cmp_ps(low, low, _CMP_UNORD_Q)),
                           _mm256_castps_si256(_mm256_cmp_ps(high, high, _CMP_UNORD_Q)));
    store_register(to, _mm256_or_si256(_mm256_andnot_si256(nan, result), _mm256_srli_epi16(nan, 1)));
  }
};

// Folds eight lanes of f16, by way of f32. SCALE: what a product is multiplied by.
template <Fold F, int SCALE>
OXCCL_INLINE __m128i fold_halves(__m128i a, __m128i b) {
  __m256 values = fold_vector<F>(_mm256_cvtph_ps(a), _mm256_cvtph_ps(b));
  if constexpr (F == FOLD_PROD && SCALE != 1) values *= float(SCALE);
  return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <Fold F, int SCALE>
OXCCL_INLINE __m256i fold_halves(__m256i a, __m256i b) {
  const __m128i low = fold_halves<F, SCALE>(_mm256_castsi256_si128(a), _mm256_castsi256_si128(b));
  const __m128i high =
      fold_halves<F, SCALE>(_mm256_extracti128_si256(a, 1), _mm256_extracti128_si256(b, 1));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

// Lanes of f16 without their last SHIFT bits, rounded, and without their sign.
template <int SHIFT>
OXCCL_INLINE __m256i rounded_halves(__m256i halves) {
  const __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(halves, SHIFT), _mm256_set1_epi16(1));
  const __m256i half = _mm256_add_epi16(odd, _mm256_set1_epi16((1 << (SHIFT - 1)) - 1));
  return _mm256_srli_epi16(_mm256_add_epi16(magnitude, half), SHIFT);
}

// Bytes of all lanes, at most the largest number, with the lanes' signs.
template <class Small, int SHIFT>
OXCCL_INLINE __m256i bytes_of(__m256i low, __m256i high) {
  const __m256i bytes = _mm256_packus_epi16(rounded_halves<SHIFT>(low), rounded_halves<SHIFT>(high));
  const __m256i magnitude = _mm256_min_epu8(bytes, _mm256_set1_epi8(int8_t(Small::LARGEST)));
  const __m256i sign = _mm256_and_si256(_mm256_packs_epi16(low, high), _mm256_set1_epi8(int8_t(0x80)));
  return _mm256_or_si256(magnitude, sign);
}

OXCCL_INLINE __m256i with_nan(__m256i bytes, __m256i nan) {
  return _mm256_blendv_epi8(bytes, _mm256_set1_epi8(0x7f), nan);
}

template <Fold F>
struct Pairs<F8E5M2, F> {
  static constexpr size_t COUNT = 32;

  static OXCCL_INLINE __m256i is_nan(__m256i halves) {
    const __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
    return _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7c00));
  }

  static OXCCL_INLINE void fold(uint8_t* to, const uint8_t* a_, const uint8_t* b_) {
    const __m256i a = load_register(a_), b = load_register(b_), zero = _mm256_setzero_si256();
    const __m256i low =
        fold_halves<F, 1>(_mm256_unpacklo_epi8(zero, a), _mm256_unpacklo_epi8(zero, b));
    const __m256i high =
        fold_halves<F, 1>(_mm256_unpackhi_epi8(zero, a), _mm256_unpackhi_epi8(zero, b));
    const __m256i nan = _mm256_packs_epi16(is_nan(low), is_nan(high));
    store_register(to, with_nan(bytes_of<E5M2, 8>(low, high), nan));
  }
};

// Sums and products. The least and the largest know NaN from a number before they fold.
template <Fold F>
struct Pairs<F8E4M3, F> {
  static constexpr size_t COUNT = F == FOLD_SUM || F == FOLD_PROD ? 32 : 0;

  static OXCCL_INLINE __m256i is_nan(__m256i bytes) {
    const __m256i nan = _mm256_set1_epi8(0x7f);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, nan), nan);
  }

  // The sign comes along to where the exponent of an f16 begins.
  static OXCCL_INLINE __m256i halves(__m256i unpacked) {
    return _mm256_and_si256(_mm256_srai_epi16(unpacked, 1), _mm256_set1_epi16(int16_t(0xbfff)));
  }

  static OXCCL_INLINE void fold(uint8_t* to, const uint8_t* a_, const uint8_t* b_) {
    const __m256i a = load_register(a_), b = load_register(b_), zero = _mm256_setzero_si256();
    const __m256i low = fold_halves<F, 256>(halves(_mm256_unpacklo_epi8(zero, a)),
                                            halves(_mm256_unpacklo_epi8(zero, b)));
    const __m256i high = fold_halves<F, 256>(halves(_mm256_unpackhi_epi8(zero, a)),
                                             halves(_mm256_unpackhi_epi8(zero, b)));
    const __m256i nan = _mm256_or_si256(is_nan(a), is_nan(b));
    store_register(to, with_nan(bytes_of<E4M3, 7>(low, high), nan));
  }
};

#endif

}  // namespace OXCCL_ISA
}  // namespace oxccl
