// Numbers on a host: conversions as the compiler vectorises them. (host/vectors.h has faster ones,
// for long stretches.)
#pragma once
#include "small_float.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// What integers of a byte are kept in between: themselves, for dense vectors.
template <class T>
using Byte = T;

OXCCL_INLINE float exact_quotient(float value, uint32_t ranks) { return value / float(ranks); }

using TargetHalf = Half;
using TargetBrain = Brain;
using TargetE4M3 = E4M3;
using TargetE5M2 = E5M2;

}  // namespace OXCCL_ISA
}  // namespace oxccl
