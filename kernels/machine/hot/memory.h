// Memory of hot kernels: a part of a chunk in a call's buffer, or in the buckets of a group.
//
//     Stretch:        an address and a length
//     BucketStretch:  the bucket at hand, in registers; another one is looked up in shared memory
//
// Both tell where a byte of the part is, and how much follows it there: nothing between buckets,
// where zeros are read and nothing is written.
#pragma once
#include "block.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// The last word of memory, or one at an odd place.
OXCCL_APART uint64_t load_apart(const uint8_t* at, uint32_t left) {
  const bool halves = (uint32_t(reinterpret_cast<uintptr_t>(at)) | left) % 4 == 0;
  return halves ? load_units<uint32_t>(at, left) : load_units<uint8_t>(at, left);
}
OXCCL_APART void store_apart(uint8_t* at, uint64_t word, uint32_t left) {
  const bool halves = (uint32_t(reinterpret_cast<uintptr_t>(at)) | left) % 4 == 0;
  if (halves) store_units<uint32_t>(at, word, left);
  else store_units<uint8_t>(at, word, left);
}

OXCCL_INLINE uint64_t load_memory(const uint8_t* at, uint32_t left) {
  if (can_access_whole_words(at) && left >= 8) return *global_memory<const uint64_t>(const_cast<uint8_t*>(at));
  return load_apart(at, left);
}
OXCCL_INLINE void store_memory(uint8_t* at, uint64_t word, uint32_t left) {
  if (can_access_whole_words(at) && left >= 8) *global_memory<uint64_t>(at) = word;
  else store_apart(at, word, left);
}

// So much of a buffer, from here on.
struct Spot {
  uint8_t* at;
  uint32_t left;

  OXCCL_INLINE uint64_t load() const { return load_memory(at, left); }
  OXCCL_INLINE void store(uint64_t word) const { store_memory(at, word, left); }
};

struct Stretch {
  uint8_t* base;
  uint32_t len_bytes;

  OXCCL_INLINE Spot spot(uint32_t at) const { return {base + at, len_bytes - at}; }
};

// A bucket, from where it begins in the virtual buffer to where the next one does.
struct Bucket {
  uint32_t number, start, end, len_bytes;

  OXCCL_INLINE bool holds(uint32_t position) const { return position - start < end - start; }
  OXCCL_INLINE uint32_t left(uint32_t position) const {
    const uint32_t inside = position - start;
    return inside < len_bytes ? len_bytes - inside : 0;
  }
};

OXCCL_INLINE Bucket find_bucket(const HotBuckets& buckets, uint32_t count, uint32_t position) {
  uint32_t low = 0, high = count;
#pragma unroll 1
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (buckets.starts[middle] <= position) low = middle;
    else high = middle;
  }
  return {low, buckets.starts[low], high < count ? buckets.starts[high] : ~0u, buckets.lens[low]};
}

// Out of line, since a long copy asks in several places, and each thread seldom.
OXCCL_APART Bucket find_bucket_apart(const HotBuckets* buckets, uint32_t count, uint32_t position) {
  return find_bucket(*buckets, count, position);
}

struct BucketStretch {
  const HotBuckets& buckets;
  uint32_t count;
  const Buffers* places;  // of one rank, by bucket
  uint32_t stride;
  bool output;
  ChunkPart part;
  Bucket bucket;
  uint8_t* base;  // of the bucket at hand

  OXCCL_INLINE BucketStretch(const HotBuckets& buckets, uint32_t count, const Buffers* places, uint32_t stride,
                             bool output, const ChunkPart& part)
      : buckets(buckets), count(count), places(places), stride(stride), output(output), part(part), bucket(), base() {}

  OXCCL_INLINE uint8_t* base_of(const Bucket& bucket) const {
    const Buffers& place = places[bucket.number * stride];
    return (output ? place.output : place.input) + uint64_t(part.rank) * bucket.len_bytes;
  }

  OXCCL_INLINE Spot spot(uint32_t at) {
    const uint32_t position = part.offset + at;
    if (!bucket.holds(position)) {
      bucket = find_bucket(buckets, count, position);
      base = base_of(bucket);
    }
    return {base + (position - bucket.start), less_of(bucket.left(position), part.len_bytes - at)};
  }
};

// Memory to memory, by a team. What is copied onto itself (buffers in place) is not written: peers
// may be reading there.
OXCCL_INLINE void copy_memory(const Stretch& from, const Stretch& to, const Team& team) {
  if (from.base == to.base) return;
  constexpr uint32_t UNROLL = 4;
  const uint32_t len_bytes = from.len_bytes;
  const uintptr_t both = reinterpret_cast<uintptr_t>(from.base) | reinterpret_cast<uintptr_t>(to.base);
  const uint32_t packs = both % PACK_BYTES == 0 ? len_bytes / PACK_BYTES : 0;
#pragma unroll 1
  for (uint32_t first = team.thread; first < packs; first += team.threads * UNROLL) {
    uint4 raws[UNROLL];
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) {
      const uint32_t pack = first + u * team.threads;
      if (pack < packs) raws[u] = *global_memory<const uint4>(from.base + pack * PACK_BYTES);
    }
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) {
      const uint32_t pack = first + u * team.threads;
      if (pack < packs) *global_memory<uint4>(to.base + pack * PACK_BYTES) = raws[u];
    }
  }
#pragma unroll 1
  for (uint32_t at = packs * PACK_BYTES + team.thread * 8; at < len_bytes; at += team.threads * 8)
    to.spot(at).store(from.spot(at).load());
}

// A pack that is not whole, or at an odd place.
OXCCL_APART void copy_pack_apart(const uint8_t* from, uint8_t* to, uint32_t left) {
#pragma unroll
  for (uint32_t at = 0; at < PACK_BYTES; at += 8)
    if (at < left) store_memory(to + at, load_memory(from + at, left - at), left - at);
}

// Both begin at the same place of the virtual buffer.
OXCCL_INLINE void copy_memory(const BucketStretch& from, const BucketStretch& to, const Team& team) {
  constexpr uint32_t UNROLL = 4;
  const HotBuckets& buckets = from.buckets;
  const uint32_t len_bytes = from.part.len_bytes, stride = team.threads * PACK_BYTES;
  Bucket bucket = {};
  uint8_t *from_base = nullptr, *to_base = nullptr;
#pragma unroll 1
  for (uint32_t first = team.thread * PACK_BYTES; first < len_bytes; first += stride * UNROLL) {
    uint4 raws[UNROLL];
    uint8_t* whole[UNROLL] = {};
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u) {
      const uint32_t at = first + u * stride, position = from.part.offset + at;
      if (at >= len_bytes) break;
      if (!bucket.holds(position)) {
        bucket = find_bucket_apart(&buckets, from.count, position);
        from_base = from.base_of(bucket);
        to_base = to.base_of(bucket);
      }
      const uint32_t inside = position - bucket.start, left = less_of(bucket.left(position), len_bytes - at);
      if (from_base == to_base) continue;
      if (left >= PACK_BYTES && !buckets.irregular[bucket.number]) {
        raws[u] = *global_memory<const uint4>(from_base + inside);
        whole[u] = to_base + inside;
        continue;
      }
      copy_pack_apart(from_base + inside, to_base + inside, left);
    }
#pragma unroll
    for (uint32_t u = 0; u < UNROLL; ++u)
      if (whole[u] != nullptr) *global_memory<uint4>(whole[u]) = raws[u];
  }
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
