// Floats of 8 and 16 bits, converted from and to f32 by integer arithmetic.
//
//     widen:  element -> f32, exact
//     narrow: f32 -> element, one round-to-nearest-even; fp8 saturates; NaN becomes canonical
//
// The conversions have no branches, so the compiler vectorises a loop over them for any instruction
// set, and they do not rely on f32 denormals, so a caller's flush-to-zero mode changes no bit:
//
//   narrow, normal:    add half an ulp (ties to even) to the bits, rebias, shift
//   narrow, subnormal: |x| + 2^(emin - mantissa + 23): the FPU's own rounding leaves the result in
//                      the low bits of the sum
//   widen, normal:     shift, rebias
//   widen, subnormal:  put the mantissa behind an implicit one and subtract that one
//
// Canonical NaNs (0x7fff, fp8 0x7f) are what the conversion instructions of GPUs produce.
#pragma once
#include "target.h"

namespace oxccl {
inline namespace OXCCL_ISA {

OXCCL_INLINE uint32_t bits_of(float value) { return bit_cast<uint32_t>(value); }
OXCCL_INLINE float float_of(uint32_t bits) { return bit_cast<float>(bits); }

// An IEEE-like format with EXPONENT and MANTISSA bits. FINITE: the highest exponent holds ordinary
// numbers and one NaN (e4m3), and there is no infinity. SATURATE: overflow gives the largest
// number.
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

// Half of an f32: the upper 16 bits.
struct Brain {
  static OXCCL_INLINE float widen(uint16_t bits) { return float_of(uint32_t(bits) << 16); }
  static OXCCL_INLINE uint16_t narrow(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
  }
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
