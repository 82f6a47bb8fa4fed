// What a block's threads share, and which parts of buffers are the channel's.
#pragma once
#include "schedule.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t MOST_HOT_RANKS = 16;
constexpr uint32_t MOST_HOT_BUCKETS = 256;
constexpr uint32_t HOT_GATHERED_BYTES = 16 << 10;

// Both buffers of a rank.
struct Buffers {
  uint8_t *input, *output;
};

OXCCL_INLINE bool is_irregular(const Buffers& one) {
  return (reinterpret_cast<uintptr_t>(one.input) | reinterpret_cast<uintptr_t>(one.output)) % PACK_BYTES != 0;
}

// The buckets of a group: where they lie in the virtual buffer, and where this rank has them.
struct HotBuckets {
  uint32_t starts[MOST_HOT_BUCKETS], lens[MOST_HOT_BUCKETS];
  Buffers own[MOST_HOT_BUCKETS];
  bool irregular[MOST_HOT_BUCKETS];  // some rank's does not begin at a multiple of 16 bytes
};

struct HotBlock {
  Fault fault;
  uint32_t waiter;  // claimed by the thread that waits for a bucket
  bool beside;      // another launch of this rank is under way
  bool irregular;   // buffers do not begin at multiples of 16 bytes
  bool apart;       // a rank's buffers are at another place of its heap than this one's
  Buffers ranks[MOST_HOT_RANKS];
  HotBuckets buckets;
  // Messages, in the order of ranks. Of a group by windows: where ranks have the buckets that the
  // channel's part is in.
  alignas(16) uint8_t gathered[HOT_GATHERED_BYTES];
};
constexpr uint32_t MOST_HOT_PLACES = HOT_GATHERED_BYTES / sizeof(Buffers);

OXCCL_INLINE HotBlock& hot_block() {
  __shared__ HotBlock memory;
  return memory;
}

// A channel's share of a chunk. Buffers of hot kernels have up to 2 GiB. In a bucket chunks of
// ranks lie one behind the other: `rank` of them are in front.
struct ChunkPart {
  uint32_t offset, len_bytes, rank;
};

OXCCL_INLINE uint32_t less_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

OXCCL_INLINE ChunkPart part_of_chunk(const Launch& launch, uint32_t channel, uint32_t chunk) {
  const uint32_t total = uint32_t(launch.extents.total_bytes), whole = uint32_t(launch.extents.chunk_bytes);
  const uint32_t start = less_of(chunk * whole, total), len = less_of(total - start, whole);
  const uint32_t part = uint32_t(len == whole ? launch.extents.part_bytes : launch.extents.shorter_part_bytes);
  const uint32_t first = less_of(channel * part, len);
  return {start + first, less_of(len - first, part), 0};
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
