// Numbers on a GPU: conversion instructions where they give the bits of shared/small_float.h, which
// serves where a GPU has none.
#pragma once
#include <math.h>

#include "small_float.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// What integers of a byte are kept in between: a whole register.
template <class T>
using Byte = int32_t;

// A division is a long piece of code with a call in it, too much for every element of every
// pack. Multiplying by the reciprocal in double, with one correction, gives the correctly rounded
// double, and rounding that to float is rounding the quotient. Zeros and infinities, twice which is
// themselves, stay as they are: the correction would take a zero's sign.
OXCCL_INLINE float exact_quotient(float value, uint32_t ranks) {
  const double divisor = double(ranks), reciprocal = 1.0 / divisor, wide = double(value);
  const double quotient = wide * reciprocal;
  const double corrected = fma(fma(-quotient, divisor, wide), reciprocal, quotient);
  return value + value == value ? value : float(corrected);
}

#ifdef __CUDA_ARCH__
struct TargetHalf {
  static OXCCL_INLINE float widen(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static OXCCL_INLINE uint16_t narrow(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

struct TargetBrain {
  static OXCCL_INLINE float widen(uint16_t bits) { return Brain::widen(bits); }
  static OXCCL_INLINE uint16_t narrow(float value) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};
#else
using TargetHalf = Half;
using TargetBrain = Brain;
#endif

#if __CUDA_ARCH__ >= 890
// The instructions convert pairs; for one element the upper half is unused.
constexpr bool HAS_PAIRS = true;
struct TargetE4M3 {
  static OXCCL_INLINE void widen_four(uint32_t word, float* values) {
    uint32_t low, high;
    asm("{ .reg .b16 first, second;\n"
        "  mov.b32 {first, second}, %2;\n"
        "  cvt.rn.f16x2.e4m3x2 %0, first;\n"
        "  cvt.rn.f16x2.e4m3x2 %1, second; }"
        : "=r"(low), "=r"(high) : "r"(word));
    values[0] = TargetHalf::widen(uint16_t(low));
    values[1] = TargetHalf::widen(uint16_t(low >> 16));
    values[2] = TargetHalf::widen(uint16_t(high));
    values[3] = TargetHalf::widen(uint16_t(high >> 16));
  }
  static OXCCL_INLINE float widen(uint8_t bits) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(bits)));
    return TargetHalf::widen(uint16_t(halves));
  }
  static OXCCL_INLINE uint8_t narrow(float value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return uint8_t(pair);
  }
};

struct TargetE5M2 {
  static OXCCL_INLINE void widen_four(uint32_t word, float* values) {
    uint32_t low, high;
    asm("{ .reg .b16 first, second;\n"
        "  mov.b32 {first, second}, %2;\n"
        "  cvt.rn.f16x2.e5m2x2 %0, first;\n"
        "  cvt.rn.f16x2.e5m2x2 %1, second; }"
        : "=r"(low), "=r"(high) : "r"(word));
    values[0] = TargetHalf::widen(uint16_t(low));
    values[1] = TargetHalf::widen(uint16_t(low >> 16));
    values[2] = TargetHalf::widen(uint16_t(high));
    values[3] = TargetHalf::widen(uint16_t(high >> 16));
  }
  static OXCCL_INLINE float widen(uint8_t bits) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(bits)));
    return TargetHalf::widen(uint16_t(halves));
  }
  static OXCCL_INLINE uint8_t narrow(float value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return uint8_t(pair);
  }
};
#else
constexpr bool HAS_PAIRS = false;
using TargetE4M3 = E4M3;
using TargetE5M2 = E5M2;
#endif

// Whether elements are widened by pairs, a word of them at a time.
template <class N>
OXCCL_INLINE constexpr bool widens_pairs() {
  return HAS_PAIRS && !N::INTEGER && sizeof(typename N::Element) == 1;
}

// Bytes as registers have them.
template <uint32_t COUNT>
struct alignas(COUNT * 4) Words {
  uint32_t words[COUNT];
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
