// How hot kernels move data: copies, each by its rank's team, and reductions, by the whole block.
#pragma once
#include "view.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Which of a step's places says how much is moved.
OXCCL_INLINE constexpr Chunk chunk_of(const HotStep& step) {
  if (is_own_memory(step.own)) return step.own.chunk;
  if (is_own_memory(step.to_own)) return step.to_own.chunk;
  if (is_window(step.peers)) return step.peers.chunk;
  return step.to_peers.chunk;
}

// A copy: each team's, of its own rank.
template <uint32_t NUMBER, class Schedule>
OXCCL_INLINE void hot_copy(Hot<Schedule>& hot) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  const ChunkPart part = hot.part(chunk_of(step));
  const UnitsOf<Schedule::LANE> units = {part.len_bytes};
  const uint32_t first = hot.team.thread, threads = hot.team.threads;
  // A window's chunk is where this rank's is, of buffers that are divided alike.
  const auto memory = [&](const HotPlace& place) {
    ChunkPart there = place.chunk == chunk_of(step) ? part : hot.part(place.chunk);
    there.len_bytes = part.len_bytes;
    return hot.memory(place, there, hot.peer);
  };
  if constexpr (is_window(step.to_peers) || is_window(step.peers)) {
    // Where this rank copies its own, too, its team does as if its rank were a peer.
    constexpr HotStep own = Schedule::STEPS[NUMBER - is_joined<Schedule>(NUMBER - 1)];
    constexpr bool COPIES_OWN = is_there(own.own) && is_there(own.to_own);
    static_assert(!COPIES_OWN || !is_window(step.to_peers) || own.to_own.chunk == step.to_peers.chunk);
    static_assert(!COPIES_OWN || !is_window(step.peers) || own.own.chunk == step.peers.chunk);
    static_assert(!COPIES_OWN || !is_window(step.peers) || own.to_own.chunk == Chunk::OWN);
    if (!(COPIES_OWN && hot.is_own) && (!hot.is_peer || hot.stopped)) return;
    if constexpr (is_window(step.to_peers)) copy_memory(memory(step.own), memory(step.to_peers), hot.team);
    else copy_memory(memory(step.peers), memory(step.to_own), hot.team);
    return;
  }
  if constexpr (is_there(step.to_own) && is_there(step.own))
    if (hot.is_own) copy_memory(memory(step.own), memory(step.to_own), hot.team);
  if (!hot.is_peer || hot.stopped) return;
  if constexpr (is_message(step.to_peers)) {
    static_assert(NUMBER == first_move<Schedule>() && step.own.where == Where::INPUT, "nothing is written before");
    auto from = memory(step.own);
    const View to = hot.outgoing(step.to_peers);
    if (hot.is_last()) announce(to, hot.signature(), part.len_bytes);
    constexpr bool EARLY = !Schedule::IN_BUCKETS;
    if (EARLY && first < units.count()) units.send(to, first, hot.early);
#pragma unroll 1
    for (uint32_t unit = EARLY ? first + threads : first; unit < units.count(); unit += threads)
      units.send(to, unit, units.load(from, unit));
  } else if constexpr (is_message(step.peers)) {
    const View from = hot.incoming(step.peers);
    auto to = memory(step.to_own);
    hot.accept(from, part.len_bytes);
    receive_units(hot.machine, units, from, first, units.count(), threads,
                  [&](uint32_t unit, const auto& bits) { units.store(to, unit, bits); });
  }
}

template <class N>
OXCCL_APART typename N::Accumulator divide_apart(typename N::Accumulator value, uint32_t ranks) {
  return N::divide(value, ranks);
}

// The result of a reduction, of which averages are divided by the ranks.
template <class N, uint32_t BYTES>
OXCCL_INLINE typename Pack<N, BYTES>::Raw finished(Pack<N, BYTES>& result, uint32_t divisor) {
  if (divisor != 0) {
#pragma unroll
    for (uint32_t i = 0; i < Pack<N, BYTES>::COUNT; ++i) result.values[i] = divide_apart<N>(result.values[i], divisor);
  }
  return result.packed({0, 0, false, false});
}

// Folds units that have been gathered, and gives the result to as many as `store` knows.
template <class N, Fold F, class Units, class Store>
OXCCL_INLINE void fold_units(const HotBlock& block, uint32_t ranks, uint32_t begin, uint32_t end, uint32_t stride,
                             uint32_t thread, uint32_t threads, uint32_t divisor, const Store& store) {
  using Bits = typename Units::Bits;
  using P = Pack<N, sizeof(Bits)>;
  const Bits* const from = reinterpret_cast<const Bits*>(block.gathered);
#pragma unroll 1
  for (uint32_t unit = begin + thread; unit < end; unit += threads) {
    P result;
    result.unpack(bit_cast<typename P::Raw>(from[unit - begin]), false, 0);
#pragma unroll 4
    for (uint32_t s = 1; s < ranks; ++s) {
      P next;
      next.unpack(bit_cast<typename P::Raw>(from[s * stride + unit - begin]), false, 0);
      result = folded<N, F>(result, next);
    }
    store(unit, bit_cast<Bits>(finished<N>(result, divisor)));
  }
}

// A reduction of messages: gathered in the order of ranks.
template <uint32_t NUMBER, class N, Fold F, class Schedule>
OXCCL_INLINE bool reduce_messages(Hot<Schedule>& hot) {
  constexpr HotStep step = Schedule::STEPS[NUMBER];
  static_assert(message_reductions<Schedule>() == 1, "another one would gather where this one folds");
  using Units = UnitsOf<Schedule::LANE>;
  using Bits = typename Units::Bits;
  const Launch& launch = hot.launch;
  const ChunkPart part = hot.part(step.own.chunk);
  const Units units = {part.len_bytes};
  const uint32_t count = units.count(), first = hot.team.thread, threads = hot.team.threads;
  // As many for each team as it has threads, so many times.
  const uint32_t stride = HOT_GATHERED_BYTES / sizeof(Bits) / BLOCK_THREADS * threads;
  ChunkPart to_part = step.to_own.chunk == step.own.chunk ? part : hot.part(step.to_own.chunk);
  to_part.len_bytes = part.len_bytes;
  const uint32_t divisor = hot.template divisor<NUMBER>();
  auto own = hot.memory(step.own, part, 0), output = hot.memory(step.to_own, to_part, 0);
  View from = {}, to = {};
  if (hot.is_peer) {
    from = hot.incoming(step.peers);
    hot.accept(from, part.len_bytes);
    if constexpr (is_there(step.to_peers)) {
      to = hot.outgoing(step.to_peers);
      if (hot.is_last() && !hot.stopped) announce(to, hot.signature(), part.len_bytes);
    }
  }
  Bits* const into = reinterpret_cast<Bits*>(hot.block.gathered) + hot.peer * stride;
#pragma unroll 1
  for (uint32_t begin = 0; begin == 0 || begin < count; begin += stride) {
    const uint32_t end = count - begin < stride ? count : begin + stride;
    if (hot.is_own) {
#pragma unroll 1
      for (uint32_t unit = begin + first; unit < end; unit += threads)
        into[unit - begin] = units.load(own, unit);
    } else if (hot.is_peer && !hot.stopped) {
      receive_units(hot.machine, units, from, begin + first, end, threads,
                    [&](uint32_t unit, const Bits& bits) { into[unit - begin] = bits; });
    }
    if (!agreed(hot.machine)) return false;
    if constexpr (is_there(step.to_peers)) {
      // Each team folds for its own rank: that takes less than telling the others.
      fold_units<N, F, Units>(hot.block, launch.ranks, begin, end, stride, first, threads, divisor,
                              [&](uint32_t unit, const Bits& bits) {
                                if (hot.is_peer) units.send(to, unit, bits);
                                else if (hot.is_own) units.store(output, unit, bits);
                              });
    } else {
      fold_units<N, F, Units>(hot.block, launch.ranks, begin, end, stride, lane(), lanes(), divisor,
                              [&](uint32_t unit, const Bits& bits) { units.store(output, unit, bits); });
    }
    // What has been gathered makes room for what follows.
    if (end < count) barrier();
  }
  return true;
}

// A pack of each rank, folded in the order of ranks: all loads of eight are under way at once.
template <class N, Fold F, class Place>
OXCCL_INLINE typename Pack<N, PACK_BYTES>::Raw fold_packs(uint32_t ranks, uint32_t divisor, const Place& place) {
  constexpr uint32_t LOOKS = 8;
  using P = Pack<N, PACK_BYTES>;
  using Raw = typename P::Raw;
  P result = {};
#pragma unroll 1
  for (uint32_t first = 0; first < ranks; first += LOOKS) {
    Raw raws[LOOKS] = {};
#pragma unroll
    for (uint32_t i = 0; i < LOOKS; ++i)
      if (first + i < ranks) raws[i] = *global_memory<const Raw>(place(first + i));
#pragma unroll
    for (uint32_t i = 0; i < LOOKS; ++i) {
      if (first + i >= ranks) break;
      P next;
      next.unpack(raws[i], false, 0);
      result = first + i == 0 ? next : folded<N, F>(result, next);
    }
  }
  return finished<N>(result, divisor);
}

// As fold_packs, a word, of which so many bytes are there.
template <class N, Fold F, class Place>
OXCCL_INLINE uint64_t fold_words(uint32_t ranks, uint32_t divisor, uint32_t left, const Place& place) {
  using Word = Pack<N, 8>;
  Word result = {};
#pragma unroll 1
  for (uint32_t s = 0; s < ranks; ++s) {
    Word next;
    next.unpack(bit_cast<typename Word::Raw>(load_memory(place(s), left)), false, 0);
    result = s == 0 ? next : folded<N, F>(result, next);
  }
  return bit_cast<uint64_t>(finished<N>(result, divisor));
}

// Whether a step's result goes to all ranks.
OXCCL_INLINE constexpr bool is_to_all(const HotStep& step) { return is_there(step.to_peers) || is_switched(step); }

// A reduction of windows: of as many packs as there are, then of words. Where a switch does it, it
// leaves what are no whole packs, or all.
template <uint32_t NUMBER, class N, Fold F, class Schedule>
OXCCL_INLINE void reduce_windows(Hot<Schedule>& hot, const ChunkPart& part, uint32_t to_offset) {
  constexpr bool TO_ALL = is_to_all(Schedule::STEPS[NUMBER]);
  using Raw = typename Pack<N, PACK_BYTES>::Raw;
  const uint32_t ranks = hot.launch.ranks, divisor = hot.template divisor<NUMBER>();
  const HotBlock& block = hot.block;
  const bool regular = !block.irregular && (part.offset | to_offset) % PACK_BYTES == 0;
  const uint32_t packs = regular ? part.len_bytes / PACK_BYTES : 0;
#pragma unroll 1
  for (uint32_t pack = lane(); pack < packs; pack += lanes()) {
    const uint32_t at = pack * PACK_BYTES;
    const Raw raw = fold_packs<N, F>(ranks, divisor, [&](uint32_t s) { return block.ranks[s].input + part.offset + at; });
    if constexpr (TO_ALL) {
#pragma unroll 4
      for (uint32_t d = 0; d < ranks; ++d) *global_memory<Raw>(block.ranks[d].output + to_offset + at) = raw;
    } else {
      *global_memory<Raw>(block.ranks[hot.launch.rank].output + to_offset + at) = raw;
    }
  }
#pragma unroll 1
  for (uint32_t at = packs * PACK_BYTES + lane() * 8; at < part.len_bytes; at += lanes() * 8) {
    const uint32_t left = part.len_bytes - at;
    const uint64_t word =
        fold_words<N, F>(ranks, divisor, left, [&](uint32_t s) { return block.ranks[s].input + part.offset + at; });
#pragma unroll 1
    for (uint32_t d = 0; d < ranks; ++d) {
      if (!TO_ALL && d != hot.launch.rank) continue;
      store_memory(block.ranks[d].output + to_offset + at, word, left);
    }
  }
}

// The same in buckets: the packs of the virtual buffer, of which none is in two of them.
template <uint32_t NUMBER, class N, Fold F, class Schedule>
OXCCL_INLINE void reduce_buckets(Hot<Schedule>& hot, const ChunkPart& part, const ChunkPart& to_part) {
  constexpr bool TO_ALL = is_to_all(Schedule::STEPS[NUMBER]);
  using Raw = typename Pack<N, PACK_BYTES>::Raw;
  const uint32_t ranks = hot.launch.ranks, divisor = hot.template divisor<NUMBER>();
  Bucket bucket = {};
  const Buffers* places = nullptr;
#pragma unroll 1
  for (uint32_t at = lane() * PACK_BYTES; at < part.len_bytes; at += lanes() * PACK_BYTES) {
    const uint32_t position = part.offset + at;
    if (!bucket.holds(position)) {
      bucket = find_bucket(hot.block.buckets, hot.launch.segments_count, position);
      places = hot.places(0) + bucket.number * ranks;
    }
    const uint32_t inside = position - bucket.start, left = less_of(bucket.left(position), part.len_bytes - at);
    const uint32_t from = part.rank * bucket.len_bytes + inside, to = to_part.rank * bucket.len_bytes + inside;
    if (left >= PACK_BYTES && !hot.block.buckets.irregular[bucket.number]) {
      const Raw raw = fold_packs<N, F>(ranks, divisor, [&](uint32_t s) { return places[s].input + from; });
      if constexpr (TO_ALL) {
#pragma unroll 4
        for (uint32_t d = 0; d < ranks; ++d) *global_memory<Raw>(places[d].output + to) = raw;
      } else {
        *global_memory<Raw>(places[hot.launch.rank].output + to) = raw;
      }
      continue;
    }
#pragma unroll 1
    for (uint32_t word_at = 0; word_at < PACK_BYTES && word_at < left; word_at += 8) {
      const uint64_t word = fold_words<N, F>(ranks, divisor, left - word_at,
                                             [&](uint32_t s) { return places[s].input + from + word_at; });
#pragma unroll 1
      for (uint32_t d = 0; d < ranks; ++d) {
        if (!TO_ALL && d != hot.launch.rank) continue;
        store_memory(places[d].output + to + word_at, word, left - word_at);
      }
    }
  }
}

// By the switch, as much as it does.
template <class N, Fold F, class Schedule>
OXCCL_INLINE uint32_t reduce_by_switch(const Hot<Schedule>& hot, const ChunkPart& part) {
  const Multicast& multicast = hot.launch.multicast;
  if (multicast.base == nullptr || hot.block.apart || (hot.launch.flags & LAUNCH_AVERAGES)) return 0;
  return uint32_t(move_by_switch<N, F>({multicast.base + multicast.input + part.offset,
                                        multicast.base + multicast.output + part.offset, part.len_bytes, true, true,
                                        multicast.members, hot.launch.ranks}));
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
