// LL messages in stretches of bytes, for the host: four lines (a cache line) at a time where the
// instruction set has the vectors for it. Every aligned 8-byte lane of a vector access moves whole
// on x86 processors, though no manual promises it beyond single words; the flags would not save
// data from a lane torn in two. Sanitizers get the line-by-line form, which is atomic by the
// language's rules.
#include "lines.h"

namespace oxccl {
inline namespace OXCCL_ISA {

#if defined(__AVX2__) && !OXCCL_SANITIZED
constexpr uint64_t WIDE_BYTES = 32;  // of data; a cache line of lines

#if defined(__AVX512F__)
OXCCL_INLINE bool load_wide(const uint8_t* at, uint32_t epoch, uint8_t* to) {
  const __m512i words = *reinterpret_cast<const volatile __m512i*>(at);
  const __mmask16 same = _mm512_cmpeq_epi32_mask(words, _mm512_set1_epi32(int32_t(epoch)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi64_epi32(words));
  return (same & 0xaaaa) == 0xaaaa;
}
OXCCL_INLINE void store_wide(uint8_t* at, uint32_t epoch, const uint8_t* from) {
  const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m512i flags = _mm512_set1_epi64(int64_t(uint64_t(epoch) << 32));
  *reinterpret_cast<volatile __m512i*>(at) =
      _mm512_or_si512(_mm512_cvtepu32_epi64(data), flags);
}
#else
OXCCL_INLINE bool load_wide(const uint8_t* at, uint32_t epoch, uint8_t* to) {
  const volatile __m256i* words = reinterpret_cast<const volatile __m256i*>(at);
  const __m256i low = words[0], high = words[1];
  const __m256i expected = _mm256_set1_epi32(int32_t(epoch));
  const __m256i same =
      _mm256_and_si256(_mm256_cmpeq_epi32(low, expected), _mm256_cmpeq_epi32(high, expected));
  const __m256 data = _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permute4x64_epi64(_mm256_castps_si256(data), 0xd8));
  return (uint32_t(_mm256_movemask_epi8(same)) & 0xf0f0f0f0u) == 0xf0f0f0f0u;
}
OXCCL_INLINE void store_wide(uint8_t* at, uint32_t epoch, const uint8_t* from) {
  const __m128i* data = reinterpret_cast<const __m128i*>(from);
  const __m256i flags = _mm256_set1_epi64x(int64_t(uint64_t(epoch) << 32));
  volatile __m256i* words = reinterpret_cast<volatile __m256i*>(at);
  const __m256i low = _mm256_cvtepu32_epi64(_mm_loadu_si128(data));
  const __m256i high = _mm256_cvtepu32_epi64(_mm_loadu_si128(data + 1));
  words[0] = _mm256_or_si256(low, flags);
  words[1] = _mm256_or_si256(high, flags);
}
#endif
#endif

bool receive_bytes(Machine& machine, const View& view, uint64_t position, uint8_t* to,
                   uint64_t len_bytes) {
  const uint8_t* at = view.data + position * 2;
  uint64_t done = 0;
  while (done < len_bytes) {
#if defined(__AVX2__) && !OXCCL_SANITIZED
    while (reinterpret_cast<uintptr_t>(at + done * 2) % 64 == 0 && done + WIDE_BYTES <= len_bytes &&
           load_wide(at + done * 2, view.epoch, to + done))
      done += WIDE_BYTES;
    if (done == len_bytes) break;
#endif
    uint64_t data = 0;
    if (!receive_line(machine, view, at + done * 2, &data)) return false;
    const uint64_t left = len_bytes - done;
    if (left < LINE_DATA_BYTES) {
      memcpy(to + done, &data, left);
      break;
    }
    memcpy(to + done, &data, LINE_DATA_BYTES);
    done += LINE_DATA_BYTES;
  }
  return true;
}

void send_bytes(const View& view, uint64_t position, const uint8_t* from, uint64_t len_bytes) {
  uint8_t* at = view.data + position * 2;
  uint64_t done = 0;
  while (done < len_bytes) {
#if defined(__AVX2__) && !OXCCL_SANITIZED
    while (reinterpret_cast<uintptr_t>(at + done * 2) % 64 == 0 && done + WIDE_BYTES <= len_bytes) {
      store_wide(at + done * 2, view.epoch, from + done);
      done += WIDE_BYTES;
    }
    if (done == len_bytes) break;
#endif
    const uint64_t left = len_bytes - done;
    uint64_t data = 0;
    if (left < LINE_DATA_BYTES) memcpy(&data, from + done, left);
    else memcpy(&data, from + done, LINE_DATA_BYTES);
    store_line(at + done * 2, data, view.epoch);
    done += LINE_DATA_BYTES;
  }
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
