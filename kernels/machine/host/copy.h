// Copies on the host between stretches that do not overlap.
//
// glibc's memcpy takes `rep movsb` from 2 to 8 KiB on. On AMD's Zen 3 and 4 that is 30 times slower
// where the destination, within its page, lies 1 to 31 bytes behind the source, and 2 to 4 times
// where it lies up to 160 bytes behind (glibc's bug 30994). A window begins with a page, and what
// malloc maps 16 bytes behind one, so that is what a copy from a window into a tensor meets. From
// `LONG_COPY_BYTES` on a loop copies instead.
#pragma once
#include "target.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint64_t LONG_COPY_BYTES = 2048;

// At least `LONG_COPY_BYTES`.
void copy_long(uint8_t* to, const uint8_t* from, uint64_t len_bytes);

OXCCL_INLINE void copy_bytes(uint8_t* to, const uint8_t* from, uint64_t len_bytes) {
  if (len_bytes >= LONG_COPY_BYTES) copy_long(to, from, len_bytes);
  else memcpy(to, from, len_bytes);
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
