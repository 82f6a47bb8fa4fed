// What long stretches on the host need whatever the type: compiled once per instruction set.
#include "bulk.h"
#include "copy.h"

namespace oxccl {
inline namespace OXCCL_ISA {

#if defined(__x86_64__) && !OXCCL_SANITIZED

#if defined(__AVX512F__)
constexpr uint64_t ROW_BYTES = 64;
#elif defined(__AVX__)
constexpr uint64_t ROW_BYTES = 32;
#else
constexpr uint64_t ROW_BYTES = 16;
#endif
typedef uint8_t Row __attribute__((vector_size(ROW_BYTES)));

// At any address.
struct __attribute__((packed, may_alias)) AnyRow {
  Row row;
};

static OXCCL_INLINE Row row_at(const uint8_t* from) {
  return reinterpret_cast<const AnyRow*>(from)->row;
}
static OXCCL_INLINE void put_row(uint8_t* to, Row row) { reinterpret_cast<AnyRow*>(to)->row = row; }

// Four rows are read before they are written. All but the ends' stores are of whole rows.
void copy_long(uint8_t* to, const uint8_t* from, uint64_t len_bytes) {
  constexpr uint64_t STEP_BYTES = 4 * ROW_BYTES;
  const auto step = [&](uint64_t at) {
    const Row a = row_at(from + at), b = row_at(from + at + ROW_BYTES),
              c = row_at(from + at + 2 * ROW_BYTES), d = row_at(from + at + 3 * ROW_BYTES);
    put_row(to + at, a);
    put_row(to + at + ROW_BYTES, b);
    put_row(to + at + 2 * ROW_BYTES, c);
    put_row(to + at + 3 * ROW_BYTES, d);
  };
  step(0);
  const uint64_t head = STEP_BYTES - (reinterpret_cast<uintptr_t>(to) & (ROW_BYTES - 1));
  for (uint64_t at = head; at < len_bytes - STEP_BYTES; at += STEP_BYTES) step(at);
  step(len_bytes - STEP_BYTES);
}

#else

void copy_long(uint8_t* to, const uint8_t* from, uint64_t len_bytes) { memcpy(to, from, len_bytes); }

#endif

// How far it is to the next line.
static OXCCL_INLINE uint64_t line_head(const uint8_t* at) {
  return -reinterpret_cast<uintptr_t>(at) & (CACHE_LINE_BYTES - 1);
}

// Whole lines with streaming stores; stream_fence() orders it.
static OXCCL_INLINE void stream_lines(uint8_t* to, const uint8_t* from, size_t len_bytes) {
#if defined(__x86_64__) && !OXCCL_SANITIZED
  for (size_t i = 0; i < len_bytes; i += CACHE_LINE_BYTES) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
#else
    for (size_t part = i; part < i + CACHE_LINE_BYTES; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
#endif
  }
#else
  memcpy(to, from, len_bytes);
#endif
}

// What is not whole lines goes through the caches.
static void copy_stream(uint8_t* to, const uint8_t* from, size_t len_bytes) {
  const size_t head = line_head(to);
  if (len_bytes < head + CACHE_LINE_BYTES) {
    memcpy(to, from, len_bytes);
    return;
  }
  const size_t lines = (len_bytes - head) / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
  const size_t tail = head + lines;
  memcpy(to, from, head);
  stream_lines(to + head, from + head, lines);
  memcpy(to + tail, from + tail, len_bytes - tail);
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
  const uint64_t before = line_head(around->data);
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
    copy_bytes(to, from, len_bytes);
  }
}

void put_all(Machine& machine, const Move& move, uint64_t position, const uint8_t* from,
             uint64_t len_bytes) {
  const bool ends = position + len_bytes == move.len_bytes;
  for (uint32_t d = 0; d < move.destinations; ++d)
    put(machine, move.destination(d), position, from, len_bytes, ends);
}

bool goes_around(const Move& move, const HostReducer& reducer) {
  if (move.destinations == 0) return false;
  const uint64_t head = line_head(move.destination(0).data);
  for (uint32_t o = 0; o < move.sources + move.destinations; ++o) {
    const View& view = move.source(o);
    if (!view.is_plain()) return false;
    if (o >= move.sources && (!view.is_stream() || line_head(view.data) != head)) return false;
  }
  return head % reducer.element_bytes == 0;
}

void fold_around(Machine& machine, const Move& move, const HostReducer& reducer) {
  alignas(CACHE_LINE_BYTES) uint8_t block[STREAM_BLOCK_BYTES];
  const uint8_t *a = move.source(0).data, *b = move.source(1).data;
  const uint64_t head = line_head(move.destination(0).data);
  uint64_t at = 0;
  while (at < move.len_bytes) {
    const uint64_t most = at == 0 && head != 0 ? head : STREAM_BLOCK_BYTES;
    const uint64_t len_bytes = most < move.len_bytes - at ? most : move.len_bytes - at;
    reducer.fold_two(block, a + at, b + at, len_bytes / reducer.element_bytes);
    for (uint32_t d = 0; d < move.destinations; ++d) {
      uint8_t* to = move.destination(d).data + at;
      if (OXCCL_LIKELY(len_bytes == STREAM_BLOCK_BYTES)) stream_lines(to, block, STREAM_BLOCK_BYTES);
      else copy_stream(to, block, len_bytes);
    }
    at += len_bytes;
  }
  machine.streamed = true;
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
