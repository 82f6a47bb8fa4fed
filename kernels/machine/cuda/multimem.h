// The instructions for all ranks' memory: multimem, of PTX. Which types and folds the switch knows
// PTX says; here are those that every GPU from 9.0 on has, with halves accumulated in 32 bits. What
// runs the kernels without a GPU (tests/cuda_stand_in) has others of these names, which go from
// member to member.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t PACK_BYTES = 16;

#if __CUDA_ARCH__ >= 900
// The switch knows where they are.
OXCCL_INLINE bool reaches_members(const uint64_t*) { return true; }

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
OXCCL_INLINE uint4 load_reduced(const uint8_t* at, const uint64_t*, uint32_t) {
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
OXCCL_INLINE void store_to_all(uint8_t* at, const uint4& words, const uint64_t*, uint32_t) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
               : : "l"(__cvta_generic_to_global(at)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

OXCCL_INLINE void fence_of_names() { asm volatile("fence.proxy.alias;" : : : "memory"); }
#else
// There is no switch.
OXCCL_INLINE bool reaches_members(const uint64_t*) { return false; }
template <class N, Fold F>
OXCCL_INLINE uint4 load_reduced(const uint8_t*, const uint64_t*, uint32_t) { return {}; }
OXCCL_INLINE void store_to_all(uint8_t*, const uint4&, const uint64_t*, uint32_t) {}
OXCCL_INLINE void fence_of_names() {}
#endif

}  // namespace OXCCL_ISA
}  // namespace oxccl
