// Long stretches of a ReduceCopy on the host.
//
//     for each block that fits the first-level cache:
//       result = sources folded block-wise, in f32 for the small floats
//       store result to every destination
//
// so that memory sees one read per source and one write per destination, whatever the number of
// either, and messages with flags are decoded into and encoded from the cache. Two plain sources
// and one plain destination need no block: one straight loop. Of what is written with streaming
// stores a block is a few whole lines, so that memory is read and written all the time and not by
// turns.
#pragma once
#include "lines.h"
#include "loops.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Up to here a message is handled word by word, in registers.
constexpr uint64_t SHORT_BYTES = 64;
constexpr uint64_t BLOCK_BYTES = 4096;
// By so many an all-reduce over 2 cores took 69 % (16 MiB) and 78 % (32 MiB) of the time that it
// takes by 4 KiB.
constexpr uint64_t STREAM_BLOCK_BYTES = 256;
constexpr uint64_t CACHE_LINE_BYTES = 64;
// The tree keeps one block per level.
constexpr uint64_t TREE_BLOCK_BYTES = 1024;

struct alignas(64) Block {
  uint8_t bytes[BLOCK_BYTES];
};

// The plain bytes of a source: where they lie, or decoded into `staging`. Null: the wait was
// stopped.
const uint8_t* plain_bytes(Machine& machine, const View& view, uint64_t position,
                           uint64_t len_bytes, Block& staging);
// Writes a block to every destination; one that lies there already is left.
void put_all(Machine& machine, const Move& move, uint64_t position, const uint8_t* from,
             uint64_t len_bytes);
// One source, unchanged.
bool copy_bulk(Machine& machine, const Move& move);

// Where a result block is made: in the first destination if that is plain memory, else in `block`.
OXCCL_INLINE uint8_t* result_place(const Move& move, uint64_t position, Block& block) {
  if (move.destinations == 0) return block.bytes;
  const View& first = move.destination(0);
  return !first.is_plain() || first.is_stream() ? block.bytes : first.data + position;
}

// How much is handled at a time: a first block of its own, so that those behind it are whole lines
// of what is written with streaming stores.
struct Steps {
  uint64_t first_bytes, bytes;
};
// `block_bytes`, or STREAM_BLOCK_BYTES if something is written with streaming stores.
Steps steps_of(const Move& move, uint64_t block_bytes);

struct HostReducer;
// Whether plain memory is reduced into destinations that are all written with streaming stores, and
// begin alike in a line.
bool goes_around(const Move& move, const HostReducer& reducer);
// Two sources of such a move: the loop of large all-reduces.
void fold_around(Machine& machine, const Move& move, const HostReducer& reducer);

// How one element type and fold reduces. Everything else is common to all folds of a type, or to
// all types, and is compiled once: sixty-six copies of the whole machine would take minutes to
// build and push each other out of the instruction cache, for a call through a pointer saved.
struct HostReducer {
  uint64_t element_bytes;
  uint64_t (*fold_word)(uint64_t a, uint64_t b);
  bool (*words)(Machine& machine, const Move& move);
  bool (*bulk)(Machine& machine, const Move& move, const HostReducer& reducer);
  void (*fold_two)(void* to, const void* a, const void* b, size_t count);
  void (*fold_elements)(void* acc, const void* from, size_t count);
  void (*fold_accumulators)(void* to, const void* a, const void* b, size_t count);

  OXCCL_INLINE bool reduce(Machine& machine, const Move& move) const {
    const bool tree = move.tree && move.sources > 2;
    return move.len_bytes <= SHORT_BYTES && !tree ? words(machine, move)
                                                  : bulk(machine, move, *this);
  }
};

// The blocks of one reduction.
template <class N>
struct Blocks {
  using Element = typename N::Element;
  using Accumulator = typename N::Accumulator;
  static constexpr uint64_t SIZE = sizeof(Element);
  // A block of accumulators has so many times the bytes of its elements.
  static constexpr uint64_t GROWTH = sizeof(Accumulator) / SIZE;
  static constexpr uint64_t COUNT = BLOCK_BYTES / sizeof(Accumulator);
  static constexpr uint64_t TREE_COUNT = TREE_BLOCK_BYTES / sizeof(Accumulator);

  Machine& machine;
  const Move& move;
  const HostReducer& reducer;

  OXCCL_INLINE bool is_scaled(uint32_t source) const {
    return move.scaling.premultiply && move.source(source).is_raw();
  }

  const Element* elements(uint32_t source, uint64_t position, uint64_t count, Block& staging) {
    return reinterpret_cast<const Element*>(
        plain_bytes(machine, move.source(source), position, count * SIZE, staging));
  }

  // acc = source, scaled
  bool load(Accumulator* acc, uint32_t source, uint64_t position, uint64_t count, Block& staging) {
    const Element* from = elements(source, position, count, staging);
    if (!from) return false;
    widen_elements<N>(acc, from, count);
    if (is_scaled(source)) scale_accumulators<N>(acc, move.scaling.factor_bits, count);
    return true;
  }

  bool fold_in(Accumulator* acc, uint32_t source, uint64_t position, uint64_t count,
               Block& staging) {
    if (is_scaled(source)) {
      alignas(64) Accumulator scaled[COUNT];
      if (!load(scaled, source, position, count, staging)) return false;
      reducer.fold_accumulators(acc, acc, scaled, count);
      return true;
    }
    const Element* from = elements(source, position, count, staging);
    if (!from) return false;
    reducer.fold_elements(acc, from, count);
    return true;
  }

  void finish(Accumulator* acc, uint64_t position, uint64_t count, Block& block) {
    if (move.scaling.divide) divide_accumulators<N>(acc, move.scaling.ranks, count);
    uint8_t* result = result_place(move, position, block);
    narrow_accumulators<N>(reinterpret_cast<Element*>(result), acc, count);
    put_all(machine, move, position, result, count * SIZE);
  }

  // Two sources without scaling: no accumulators in memory.
  bool pairs(uint64_t position, uint64_t count) {
    Block first, second, block;
    const Element* a = elements(0, position, count, first);
    const Element* b = a ? elements(1, position, count, second) : nullptr;
    if (!b) return false;
    uint8_t* result = result_place(move, position, block);
    reducer.fold_two(result, a, b, count);
    put_all(machine, move, position, result, count * SIZE);
    return true;
  }

  // More of them, of a type that is its own accumulator: what the last one is folded into goes
  // where it belongs, which may be that source's or an earlier one's place.
  bool chain(uint64_t position, uint64_t count) {
    Block first, next, acc;
    const Element* a = elements(0, position, count, first);
    const Element* b = a ? elements(1, position, count, next) : nullptr;
    if (!b) return false;
    reducer.fold_two(acc.bytes, a, b, count);
    for (uint32_t source = 2; source + 1 < move.sources; ++source) {
      if (!(b = elements(source, position, count, next))) return false;
      reducer.fold_two(acc.bytes, acc.bytes, b, count);
    }
    if (!(b = elements(move.sources - 1, position, count, next))) return false;
    uint8_t* result = result_place(move, position, first);
    reducer.fold_two(result, acc.bytes, b, count);
    put_all(machine, move, position, result, count * SIZE);
    return true;
  }

  bool left(uint64_t position, uint64_t count) {
    alignas(64) Accumulator acc[COUNT];
    Block staging;
    if (!load(acc, 0, position, count, staging)) return false;
    for (uint32_t source = 1; source < move.sources; ++source)
      if (!fold_in(acc, source, position, count, staging)) return false;
    finish(acc, position, count, staging);
    return true;
  }

  // A binary counter, as in reduce_copy.h; the leaf is made in the place behind the levels.
  bool tree(uint64_t position, uint64_t count) {
    alignas(64) Accumulator levels[TREE_LEVELS + 1][TREE_COUNT];
    Block staging;
    Accumulator* carry = levels[TREE_LEVELS];
    for (uint32_t source = 0; source < move.sources; ++source) {
      if (!load(carry, source, position, count, staging)) return false;
      uint32_t level = 0;
      for (; source >> level & 1; ++level)
        reducer.fold_accumulators(carry, levels[level], carry, count);
      if (level < TREE_LEVELS) memcpy(levels[level], carry, count * sizeof(Accumulator));
    }
    bool gathered = move.sources == MAX_TREE_SOURCES;
    for (uint32_t level = 0; level < TREE_LEVELS; ++level) {
      if ((move.sources >> level & 1) == 0) continue;
      if (gathered) reducer.fold_accumulators(carry, levels[level], carry, count);
      else memcpy(carry, levels[level], count * sizeof(Accumulator));
      gathered = true;
    }
    finish(carry, position, count, staging);
    return true;
  }
};

template <class N>
bool reduce_bulk(Machine& machine, const Move& move, const HostReducer& reducer) {
  using B = Blocks<N>;
  B blocks = {machine, move, reducer};
  const bool scaled = move.scaling.premultiply || move.scaling.divide;
  const bool pairs = move.sources == 2 && !scaled;
  const bool tree = move.tree && move.sources > 2;
  const bool chain = B::GROWTH == 1 && !scaled && !tree && move.sources > 2;
  if (pairs && goes_around(move, reducer)) {
    fold_around(machine, move, reducer);
    return true;
  }
  const bool straight = pairs && move.destinations == 1 && move.source(0).is_plain() &&
                        move.source(1).is_plain() && move.destination(0).is_plain() &&
                        !move.destination(0).is_stream();
  const uint64_t total = move.len_bytes / B::SIZE;
  const uint64_t block_bytes = (tree ? TREE_BLOCK_BYTES : BLOCK_BYTES) / B::GROWTH;
  const Steps steps = straight ? Steps{move.len_bytes, move.len_bytes}
                               : steps_of(move, block_bytes);
  uint64_t count = steps.first_bytes / B::SIZE;
  for (uint64_t at = 0; at < total; at += count, count = steps.bytes / B::SIZE) {
    if (count > total - at) count = total - at;
    const uint64_t position = at * B::SIZE;
    const bool done = pairs   ? blocks.pairs(position, count)
                      : chain ? blocks.chain(position, count)
                      : tree  ? blocks.tree(position, count)
                              : blocks.left(position, count);
    if (!done) return false;
  }
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
