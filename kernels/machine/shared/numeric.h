// Element types, what they accumulate in, and how two values become one.
//
//     widen:  element -> accumulator, exact      (f16, bf16, fp8 -> f32; all others: themselves)
//     narrow: accumulator -> element, one round-to-nearest-even; fp8 saturates; NaN becomes canonical
//
// How a target converts the small floats and divides an f32 is in its numbers.h: with the same bits
// as result.
#pragma once
#include "numbers.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE double exact_quotient(double value, uint32_t ranks) { return value / double(ranks); }

// Integers: the arithmetic is unsigned, so it wraps without undefined behaviour. Wide holds every
// magnitude, Real every magnitude and a half. A is what values are kept in between: T on a host,
// for dense vectors; a whole register on a GPU, always holding a value of T.
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

  // Truncates. Up to 32 bits by a floating-point reciprocal, which vectorises and is exact: half
  // more than the magnitude is never a multiple of `ranks`, and is further from one than any
  // rounding.
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

struct I8 : Integer<int8_t, uint8_t, Byte<int8_t>, int32_t, float> {
  static constexpr DataType TYPE = DATA_TYPE_I8;
};
struct U8 : Integer<uint8_t, uint8_t, Byte<uint8_t>, int32_t, float> {
  static constexpr DataType TYPE = DATA_TYPE_U8;
};
struct I32 : Integer<int32_t, uint32_t, int32_t, int64_t, double> {
  static constexpr DataType TYPE = DATA_TYPE_I32;
};
struct U32 : Integer<uint32_t, uint32_t, uint32_t, int64_t, double> {
  static constexpr DataType TYPE = DATA_TYPE_U32;
};
struct I64 : Integer<int64_t, uint64_t, int64_t, int64_t, double> {
  static constexpr DataType TYPE = DATA_TYPE_I64;
};
struct U64 : Integer<uint64_t, uint64_t, uint64_t, int64_t, double> {
  static constexpr DataType TYPE = DATA_TYPE_U64;
};

struct F32 : Floating<float, float> {
  static constexpr DataType TYPE = DATA_TYPE_F32;
  static OXCCL_INLINE float widen(float value) { return value; }
  static OXCCL_INLINE float narrow(float value) { return value; }
  static OXCCL_INLINE float factor(uint64_t bits) { return float_of(uint32_t(bits)); }
};

struct F64 : Floating<double, double> {
  static constexpr DataType TYPE = DATA_TYPE_F64;
  static OXCCL_INLINE double widen(double value) { return value; }
  static OXCCL_INLINE double narrow(double value) { return value; }
  static OXCCL_INLINE double factor(uint64_t bits) { return bit_cast<double>(bits); }
};

// Bits that are converted to f32 and back.
template <class Bits, class Conversions>
struct Small : Floating<Bits, float> {
  using Conversion = Conversions;
  static OXCCL_INLINE float factor(uint64_t bits) { return float_of(uint32_t(bits)); }
  static OXCCL_INLINE float widen(Bits bits) { return Conversions::widen(bits); }
  static OXCCL_INLINE Bits narrow(float value) { return Bits(Conversions::narrow(value)); }
};

struct F16 : Small<uint16_t, TargetHalf> {
  static constexpr DataType TYPE = DATA_TYPE_F16;
};
struct BF16 : Small<uint16_t, TargetBrain> {
  static constexpr DataType TYPE = DATA_TYPE_BF16;
};
struct F8E4M3 : Small<uint8_t, TargetE4M3> {
  static constexpr DataType TYPE = DATA_TYPE_F8E4M3;
};
struct F8E5M2 : Small<uint8_t, TargetE5M2> {
  static constexpr DataType TYPE = DATA_TYPE_F8E5M2;
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
