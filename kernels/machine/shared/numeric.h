// Element types, what they accumulate in, and how two values become one.
//
//     widen:  element -> accumulator, exact      (f16, bf16, fp8 -> f32; all others: themselves)
//     narrow: accumulator -> element, one round-to-nearest-even; fp8 saturates; NaN becomes canonical
//
// The conversions have no branches, so the compiler vectorises a loop over them for any instruction
// set, and they do not rely on f32 denormals, so a caller's flush-to-zero mode changes no bit:
//
//   narrow, normal:    add half an ulp (ties to even) to the bits, rebias, shift
//   narrow, subnormal: |x| + 2^(emin - mantissa + 23): the FPU's own rounding leaves the result in the
//                      low bits of the sum
//   widen, normal:     shift, rebias
//   widen, subnormal:  put the mantissa behind an implicit one and subtract that one
//
// GPUs use the conversion instructions where they give the same bits. Canonical NaNs (0x7fff, fp8
// 0x7f) are what those produce.
#pragma once
#include "target.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE uint32_t bits_of(float value) { return bit_cast<uint32_t>(value); }
OXCCL_INLINE float float_of(uint32_t bits) { return bit_cast<float>(bits); }

// An IEEE-like format with EXPONENT and MANTISSA bits. FINITE: the highest exponent holds ordinary
// numbers and one NaN (e4m3), and there is no infinity. SATURATE: overflow gives the largest number.
template <int EXPONENT, int MANTISSA, bool FINITE, bool SATURATE>
struct SmallFloat {
  static constexpr int BIAS = (1 << (EXPONENT - 1)) - 1;
  static constexpr int SHIFT = 23 - MANTISSA;
  static constexpr uint32_t SIGN = 1u << (EXPONENT + MANTISSA);
  static constexpr uint32_t INFINITE = ((1u << EXPONENT) - 1) << MANTISSA;
  static constexpr uint32_t LARGEST = FINITE ? SIGN - 2 : INFINITE - 1;
  static constexpr uint32_t REBIAS = uint32_t(127 - BIAS) << 23;
  static constexpr uint32_t SMALLEST_NORMAL = uint32_t(128 - BIAS) << 23;
  static constexpr uint32_t MAGIC_SUM = uint32_t(128 - BIAS - MANTISSA + 23) << 23;

  static OXCCL_INLINE float widen(uint32_t bits) {
    const uint32_t sign = (bits & SIGN) << (31 - EXPONENT - MANTISSA);
    const uint32_t magnitude = bits & (SIGN - 1);
    const uint32_t shifted = magnitude << SHIFT;
    const uint32_t normal = shifted + REBIAS;
    const uint32_t subnormal =
        bits_of(float_of(shifted | SMALLEST_NORMAL) - float_of(SMALLEST_NORMAL));
    uint32_t result = magnitude < (1u << MANTISSA) ? subnormal : normal;
    const uint32_t special = FINITE ? 0x7fc00000u : (normal | 0x7f800000u);
    result = magnitude >= (FINITE ? SIGN - 1 : INFINITE) ? special : result;
    return float_of(result | sign);
  }

  static OXCCL_INLINE uint32_t narrow(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> (31 - EXPONENT - MANTISSA)) & SIGN;
    const uint32_t odd = (magnitude >> SHIFT) & 1u;
    const uint32_t rounded = magnitude + ((1u << (SHIFT - 1)) - 1u) + odd;
    const uint32_t normal = (rounded - REBIAS) >> SHIFT;
    const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(MAGIC_SUM)) - MAGIC_SUM;
    uint32_t result = magnitude < SMALLEST_NORMAL ? subnormal : normal;
    const uint32_t overflow = SATURATE ? LARGEST : INFINITE;
    // As a number of the wide format: everything that rounds above the largest one.
    const uint32_t limit = ((LARGEST + 1) << SHIFT) + REBIAS;
    result = rounded >= limit ? overflow : result;
    return magnitude > 0x7f800000u ? SIGN - 1u : (result | sign);
  }
};

using Half = SmallFloat<5, 10, false, false>;
using E4M3 = SmallFloat<4, 3, true, true>;
using E5M2 = SmallFloat<5, 2, false, true>;

OXCCL_INLINE double exact_quotient(double value, uint32_t ranks) { return value / double(ranks); }

// On a GPU a division is a long piece of code with a call in it, too much for every element of every
// pack. Multiplying by the reciprocal in double, with one correction, gives the correctly rounded
// double, and rounding that to float is rounding the quotient.
OXCCL_INLINE float exact_quotient(float value, uint32_t ranks) {
#ifdef __CUDA_ARCH__
  const double divisor = double(ranks), reciprocal = 1.0 / divisor, wide = double(value);
  const double quotient = wide * reciprocal;
  const double corrected = fma(fma(-quotient, divisor, wide), reciprocal, quotient);
  return isinf(value) ? value : float(corrected);
#else
  return value / float(ranks);
#endif
}

// Integers: the arithmetic is unsigned, so it wraps without undefined behaviour. Wide holds every
// magnitude, Real every magnitude and a half. A is what values are kept in between: T on a host, for
// dense vectors; a whole register on a GPU, always holding a value of T.
template <class T, class U, class A, class Wide, class Real>
struct Integer {
  using Element = T;
  using Accumulator = A;
  static constexpr bool INTEGER = true;
  static OXCCL_INLINE A widen(T value) { return value; }
  static OXCCL_INLINE T narrow(A value) { return T(value); }
  static OXCCL_INLINE A factor(uint64_t bits) { return T(U(bits)); }
  static OXCCL_INLINE A sum(A a, A b) { return T(U(U(a) + U(b))); }
  static OXCCL_INLINE A prod(A a, A b) { return T(U(U(a) * U(b))); }
  static OXCCL_INLINE A min(A a, A b) { return b < a ? b : a; }
  static OXCCL_INLINE A max(A a, A b) { return b > a ? b : a; }

  // Truncates. Up to 32 bits by a floating-point reciprocal, which vectorises and is exact: half more
  // than the magnitude is never a multiple of `ranks`, and is further from one than any rounding.
  static OXCCL_INLINE A divide(A value, uint32_t ranks) {
    if constexpr (sizeof(T) == 8) {
      return value / A(ranks);
    } else {
      const Real magnitude = Real(value < 0 ? -Wide(value) : Wide(value));
      const Wide quotient = Wide((magnitude + Real(0.5)) * (Real(1) / Real(ranks)));
      return A(value < 0 ? -quotient : quotient);
    }
  }
};

template <class E, class A>
struct Floating {
  using Element = E;
  using Accumulator = A;
  static constexpr bool INTEGER = false;
  static OXCCL_INLINE A sum(A a, A b) { return a + b; }
  static OXCCL_INLINE A prod(A a, A b) { return a * b; }
  static OXCCL_INLINE A min(A a, A b) { return (b < a) | (a != a) ? b : a; }
  static OXCCL_INLINE A max(A a, A b) { return (b > a) | (a != a) ? b : a; }
  static OXCCL_INLINE A divide(A value, uint32_t ranks) { return exact_quotient(value, ranks); }
};

#ifdef __CUDACC__
template <class T>
using Byte = int32_t;
#else
template <class T>
using Byte = T;
#endif

struct I8 : Integer<int8_t, uint8_t, Byte<int8_t>, int32_t, float> {
  static constexpr DataType TYPE = TYPE_I8;
};
struct U8 : Integer<uint8_t, uint8_t, Byte<uint8_t>, int32_t, float> {
  static constexpr DataType TYPE = TYPE_U8;
};
struct I32 : Integer<int32_t, uint32_t, int32_t, int64_t, double> {
  static constexpr DataType TYPE = TYPE_I32;
};
struct U32 : Integer<uint32_t, uint32_t, uint32_t, int64_t, double> {
  static constexpr DataType TYPE = TYPE_U32;
};
struct I64 : Integer<int64_t, uint64_t, int64_t, int64_t, double> {
  static constexpr DataType TYPE = TYPE_I64;
};
struct U64 : Integer<uint64_t, uint64_t, uint64_t, int64_t, double> {
  static constexpr DataType TYPE = TYPE_U64;
};

struct F32 : Floating<float, float> {
  static constexpr DataType TYPE = TYPE_F32;
  static OXCCL_INLINE float widen(float value) { return value; }
  static OXCCL_INLINE float narrow(float value) { return value; }
  static OXCCL_INLINE float factor(uint64_t bits) { return float_of(uint32_t(bits)); }
};

struct F64 : Floating<double, double> {
  static constexpr DataType TYPE = TYPE_F64;
  static OXCCL_INLINE double widen(double value) { return value; }
  static OXCCL_INLINE double narrow(double value) { return value; }
  static OXCCL_INLINE double factor(uint64_t bits) { return bit_cast<double>(bits); }
};

template <class E>
struct Small : Floating<E, float> {
  static OXCCL_INLINE float factor(uint64_t bits) { return float_of(uint32_t(bits)); }
};

struct F16 : Small<uint16_t> {
  static constexpr DataType TYPE = TYPE_F16;
#ifdef __CUDA_ARCH__
  static OXCCL_INLINE float widen(uint16_t bits) { return cuda_half_to_float(bits); }
  static OXCCL_INLINE uint16_t narrow(float value) { return cuda_float_to_half(value); }
#else
  static OXCCL_INLINE float widen(uint16_t bits) { return Half::widen(bits); }
  static OXCCL_INLINE uint16_t narrow(float value) { return uint16_t(Half::narrow(value)); }
#endif
};

struct BF16 : Small<uint16_t> {
  static constexpr DataType TYPE = TYPE_BF16;
  static OXCCL_INLINE float widen(uint16_t bits) { return float_of(uint32_t(bits) << 16); }
  static OXCCL_INLINE uint16_t narrow(float value) {
#ifdef __CUDA_ARCH__
    return cuda_float_to_bfloat16(value);
#else
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
#endif
  }
};

struct F8E4M3 : Small<uint8_t> {
  static constexpr DataType TYPE = TYPE_F8E4M3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static OXCCL_INLINE float widen(uint8_t bits) { return cuda_e4m3_to_float(bits); }
  static OXCCL_INLINE uint8_t narrow(float value) { return cuda_float_to_e4m3(value); }
#else
  static OXCCL_INLINE float widen(uint8_t bits) { return E4M3::widen(bits); }
  static OXCCL_INLINE uint8_t narrow(float value) { return uint8_t(E4M3::narrow(value)); }
#endif
};

struct F8E5M2 : Small<uint8_t> {
  static constexpr DataType TYPE = TYPE_F8E5M2;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static OXCCL_INLINE float widen(uint8_t bits) { return cuda_e5m2_to_float(bits); }
  static OXCCL_INLINE uint8_t narrow(float value) { return cuda_float_to_e5m2(value); }
#else
  static OXCCL_INLINE float widen(uint8_t bits) { return E5M2::widen(bits); }
  static OXCCL_INLINE uint8_t narrow(float value) { return uint8_t(E5M2::narrow(value)); }
#endif
};

// fold<N, F>(a, b): `a` is the earlier operand.
template <class N, Fold F>
OXCCL_INLINE typename N::Accumulator fold(typename N::Accumulator a, typename N::Accumulator b) {
  using A = typename N::Accumulator;
  if constexpr (F == FOLD_SUM) return N::sum(a, b);
  else if constexpr (F == FOLD_PROD) return N::prod(a, b);
  else if constexpr (F == FOLD_MIN) return N::min(a, b);
  else if constexpr (F == FOLD_MAX) return N::max(a, b);
  else if constexpr (F == FOLD_BIT_AND) return A(a & b);
  else if constexpr (F == FOLD_BIT_OR) return A(a | b);
  else return A(a ^ b);
}

// What an instruction does to values besides the fold.
struct Scaling {
  uint64_t factor_bits;
  uint32_t ranks;
  bool premultiply;  // sources with OPERAND_RAW
  bool divide;       // the result
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
