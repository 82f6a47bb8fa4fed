// Buckets: a group's buffers seen as one virtual buffer.
//
//     virtual buffer:   | bucket 0 |..| bucket 1 |.| bucket 2 |    each from a multiple of 64 bytes on
//     memory operand:   (rank's part p, position v)  ->  bucket s that v lies in:
//                       base of s  +  p * length of s  +  v - start of s
//
// A tile of the virtual buffer is moved in pieces, each of one bucket, or on the host of several
// that lie one behind the other: see each target's walk.h. What lies between two buckets, a hole,
// is in no memory. In a plain message it stays what it was; in an LL message it is sent as zeros,
// so that whoever hands a message on without looking into it finds all its lines. Since buckets
// begin at cache lines, a piece begins at a line of every message, and no word belongs to two
// buckets.
#pragma once
#include "resolve.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// An operand that says which part of the virtual buffer is moved; all that are memory say the same.
// Null where there is none.
OXCCL_INLINE const Operand* memory_of(const Workspace& workspace) {
#pragma unroll 1
  for (uint32_t o = 0; o < workspace.move().sources + workspace.move().destinations; ++o)
    if (is_memory(workspace.operands[o])) return &workspace.operands[o];
  return nullptr;
}

// Whether the move at hand is one of buckets.
OXCCL_INLINE bool has_buckets(const Machine& machine, const Workspace& workspace) {
  return machine.launch.segments != nullptr && memory_of(workspace) != nullptr;
}

// The last bucket that begins at or before the position.
OXCCL_INLINE uint32_t find_segment(const Launch& launch, uint64_t position) {
  uint32_t low = 0, high = launch.segments_count;
#pragma unroll 1
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (launch.segments[middle].start <= position) low = middle;
    else high = middle;
  }
  return low;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
