// What long stretches on the host need whatever the type: compiled once per instruction set.
#include "bulk_host.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Around the caches; stream_fence() orders it.
static void copy_stream(uint8_t* to, const uint8_t* from, size_t len_bytes) {
#if defined(__x86_64__) && !OXCCL_SANITIZED
  const size_t head = -reinterpret_cast<uintptr_t>(to) & 63;
  if (len_bytes < head + 64) {
    memcpy(to, from, len_bytes);
    return;
  }
  memcpy(to, from, head);
  size_t i = head;
  for (; i + 64 <= len_bytes; i += 64) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
#else
    for (size_t part = i; part < i + 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
#endif
  }
  memcpy(to + i, from + i, len_bytes - i);
#else
  memcpy(to, from, len_bytes);
#endif
}

Steps steps_of(const Move& move, uint64_t block_bytes) {
  const View* around = nullptr;
  bool plain = true;
  for (uint32_t o = 0; o < move.sources + move.destinations; ++o) {
    const View& view = move.source(o);
    plain = plain && view.is_plain();
    if (o >= move.sources && view.is_stream()) around = &view;
  }
  if (!around) return {block_bytes, block_bytes};
  // Messages with flags are handled in units of their own.
  const uint64_t before = -reinterpret_cast<uintptr_t>(around->data) & (CACHE_LINE_BYTES - 1);
  return {plain && before ? before : STREAM_BLOCK_BYTES, STREAM_BLOCK_BYTES};
}

const uint8_t* plain_bytes(Machine& machine, const View& view, uint64_t position,
                           uint64_t len_bytes, Block& staging) {
  if (view.is_plain()) return view.data + position;
  const bool there = view.is_ll128()
                         ? receive_ll128_bytes(machine, view, position, staging.bytes, len_bytes)
                         : receive_bytes(machine, view, position, staging.bytes, len_bytes);
  return there ? staging.bytes : nullptr;
}

// `ends`: these are the message's last bytes.
static void put(Machine& machine, const View& view, uint64_t position, const uint8_t* from,
                uint64_t len_bytes, bool ends) {
  uint8_t* to = view.data + position;
  if (view.is_ll()) {
    send_bytes(view, position, from, len_bytes);
  } else if (view.is_ll128()) {
    send_ll128_bytes(view, position, from, len_bytes, ends);
  } else if (view.is_stream()) {
    copy_stream(to, from, len_bytes);
    machine.streamed = true;
  } else if (to != from) {
    memcpy(to, from, len_bytes);
  }
}

void put_all(Machine& machine, const Move& move, uint64_t position, const uint8_t* from,
             uint64_t len_bytes) {
  const bool ends = position + len_bytes == move.len_bytes;
  for (uint32_t d = 0; d < move.destinations; ++d)
    put(machine, move.destination(d), position, from, len_bytes, ends);
}

bool copy_bulk(Machine& machine, const Move& move) {
  Block staging;
  const View& source = move.source(0);
  const bool straight = source.is_plain() && move.destinations == 1;
  const Steps steps = straight ? Steps{move.len_bytes, move.len_bytes}
                               : steps_of(move, BLOCK_BYTES);
  uint64_t len_bytes = steps.first_bytes;
  for (uint64_t position = 0; position < move.len_bytes; position += len_bytes, len_bytes = steps.bytes) {
    if (len_bytes > move.len_bytes - position) len_bytes = move.len_bytes - position;
    const uint8_t* from = plain_bytes(machine, source, position, len_bytes, staging);
    if (!from) return false;
    put_all(machine, move, position, from, len_bytes);
  }
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
