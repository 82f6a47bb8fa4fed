// All ranks' memory in one access: the switch between the GPUs reads all and reduces on the way, or
// writes all (NVLink SHARP).
//
//     for each group of UNROLL 16-byte packs that is this thread's:
//       load:  multimem.ld_reduce, if it is a read of all; else a load
//       store: multimem.st, if it is a write to all; else a store
//
// Why it is fast: of what n ranks have a GPU gets one part, instead of n, and gives one, instead of
// n. Which types and folds the switch knows PTX says; here are those that every GPU from 9.0 on
// has, with halves accumulated in 32 bits. A multicast address is another name of memory that has
// one already, and accesses by two names are ordered by a fence of their own.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t PACK_BYTES = 16;

// From a place to a place, of which at least one is all ranks'.
struct SwitchMove {
  const uint8_t* from;
  uint8_t* to;
  uint64_t len_bytes;
  bool reads_all, writes_all;

  OXCCL_INLINE bool is_aligned() const {
    return (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | len_bytes) % PACK_BYTES == 0;
  }
};

// `DataType::has_multicast` in kernels/format.
template <class N, Fold F>
OXCCL_INLINE constexpr bool has_multicast() {
  if (F == FOLD_SUM) return sizeof(typename N::Element) > 1;
  return F != FOLD_PROD && N::INTEGER && sizeof(typename N::Element) >= 4;
}

#if __CUDA_ARCH__ >= 900

#define OXCCL_LD_REDUCE "multimem.ld_reduce.relaxed.sys.global."

#define OXCCL_REDUCED_VECTOR(text)                                            \
  asm volatile(OXCCL_LD_REDUCE text " {%0, %1, %2, %3}, [%4];"                \
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)   \
               : "l"(address) : "memory")

#define OXCCL_REDUCED_WORD(text, word, offset) \
  asm volatile(OXCCL_LD_REDUCE text " %0, [%1];" : "=r"(word) : "l"(address + offset) : "memory")

#define OXCCL_REDUCED_WORDS(text)           \
  do {                                      \
    OXCCL_REDUCED_WORD(text, words.x, 0);   \
    OXCCL_REDUCED_WORD(text, words.y, 4);   \
    OXCCL_REDUCED_WORD(text, words.z, 8);   \
    OXCCL_REDUCED_WORD(text, words.w, 12);  \
  } while (false)

#define OXCCL_REDUCED_PAIR(text, letter, type)                                                          \
  do {                                                                                                  \
    type low, high;                                                                                     \
    asm volatile(OXCCL_LD_REDUCE text " %0, [%1];" : letter(low) : "l"(address) : "memory");            \
    asm volatile(OXCCL_LD_REDUCE text " %0, [%1];" : letter(high) : "l"(address + 8) : "memory");       \
    const uint64_t bits[2] = {bit_cast<uint64_t>(low), bit_cast<uint64_t>(high)};                       \
    words = {uint32_t(bits[0]), uint32_t(bits[0] >> 32), uint32_t(bits[1]), uint32_t(bits[1] >> 32)};   \
  } while (false)

// 16 bytes of elements, reduced over all ranks.
template <class N, Fold F>
OXCCL_INLINE uint4 load_reduced(const uint8_t* at) {
  const uint64_t address = __cvta_generic_to_global(at);
  uint4 words = {};
  if constexpr (N::TYPE == DATA_TYPE_F32) OXCCL_REDUCED_VECTOR("add.v4.f32");
  if constexpr (N::TYPE == DATA_TYPE_F16) OXCCL_REDUCED_VECTOR("add.acc::f32.v4.f16x2");
  if constexpr (N::TYPE == DATA_TYPE_BF16) OXCCL_REDUCED_VECTOR("add.acc::f32.v4.bf16x2");
  if constexpr (N::TYPE == DATA_TYPE_F64) OXCCL_REDUCED_PAIR("add.f64", "=d", double);
  if constexpr (N::INTEGER && sizeof(typename N::Element) == 4) {
    constexpr bool SIGNED = N::TYPE == DATA_TYPE_I32;
    if constexpr (F == FOLD_SUM) OXCCL_REDUCED_WORDS("add.u32");
    if constexpr (F == FOLD_MIN && SIGNED) OXCCL_REDUCED_WORDS("min.s32");
    if constexpr (F == FOLD_MIN && !SIGNED) OXCCL_REDUCED_WORDS("min.u32");
    if constexpr (F == FOLD_MAX && SIGNED) OXCCL_REDUCED_WORDS("max.s32");
    if constexpr (F == FOLD_MAX && !SIGNED) OXCCL_REDUCED_WORDS("max.u32");
    if constexpr (F == FOLD_BIT_AND) OXCCL_REDUCED_WORDS("and.b32");
    if constexpr (F == FOLD_BIT_OR) OXCCL_REDUCED_WORDS("or.b32");
    if constexpr (F == FOLD_BIT_XOR) OXCCL_REDUCED_WORDS("xor.b32");
  }
  if constexpr (N::INTEGER && sizeof(typename N::Element) == 8) {
    constexpr bool SIGNED = N::TYPE == DATA_TYPE_I64;
    if constexpr (F == FOLD_SUM) OXCCL_REDUCED_PAIR("add.u64", "=l", uint64_t);
    if constexpr (F == FOLD_MIN && SIGNED) OXCCL_REDUCED_PAIR("min.s64", "=l", uint64_t);
    if constexpr (F == FOLD_MIN && !SIGNED) OXCCL_REDUCED_PAIR("min.u64", "=l", uint64_t);
    if constexpr (F == FOLD_MAX && SIGNED) OXCCL_REDUCED_PAIR("max.s64", "=l", uint64_t);
    if constexpr (F == FOLD_MAX && !SIGNED) OXCCL_REDUCED_PAIR("max.u64", "=l", uint64_t);
    if constexpr (F == FOLD_BIT_AND) OXCCL_REDUCED_PAIR("and.b64", "=l", uint64_t);
    if constexpr (F == FOLD_BIT_OR) OXCCL_REDUCED_PAIR("or.b64", "=l", uint64_t);
    if constexpr (F == FOLD_BIT_XOR) OXCCL_REDUCED_PAIR("xor.b64", "=l", uint64_t);
  }
  return words;
}

// The bits of 16 bytes, whatever they are, to all ranks.
OXCCL_INLINE void store_to_all(uint8_t* at, const uint4& words) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
               : : "l"(__cvta_generic_to_global(at)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

OXCCL_INLINE void fence_of_names() { asm volatile("fence.proxy.alias;" : : : "memory"); }

// False where the switch does not know how, or what is moved does not begin and end at 16 bytes.
template <class N, Fold F>
OXCCL_INLINE bool move_by_switch(const SwitchMove& move) {
  if constexpr (!has_multicast<N, F>()) {
    return false;
  } else {
    if (!move.is_aligned()) return false;
    constexpr uint32_t UNROLL = 4;
    const uint64_t stride = uint64_t(lanes()) * PACK_BYTES;
    // One thread's, on the way from what was done by one name to what is done by the other: the
    // barriers make it everybody's.
    if (leader()) fence_of_names();
    barrier();
#pragma unroll 1
    for (uint64_t at = uint64_t(lane()) * PACK_BYTES; at < move.len_bytes; at += stride * UNROLL) {
      uint4 packs[UNROLL] = {};
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        const uint64_t position = at + u * stride;
        if (position >= move.len_bytes) continue;
        if (move.reads_all) packs[u] = load_reduced<N, F>(move.from + position);
        else packs[u] = *global_memory<const uint4>(const_cast<uint8_t*>(move.from) + position);
      }
#pragma unroll
      for (uint32_t u = 0; u < UNROLL; ++u) {
        const uint64_t position = at + u * stride;
        if (position >= move.len_bytes) continue;
        if (move.writes_all) store_to_all(move.to + position, packs[u]);
        else *global_memory<uint4>(move.to + position) = packs[u];
      }
    }
    barrier();
    if (leader()) fence_of_names();
    return true;
  }
}

#else
template <class N, Fold F>
OXCCL_INLINE bool move_by_switch(const SwitchMove&) { return false; }
#endif

}  // namespace OXCCL_ISA
}  // namespace oxccl
