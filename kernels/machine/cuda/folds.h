// How the kernels of one type fold: there is one for sums, and one for all other folds of the type.
//
//     Sums:        known when the kernel is compiled; perhaps scaled
//     OtherFolds:  the program's, by which all threads choose for each pack
//
// Nearly all that programs reduce are sums. Most of a kernel is the same whatever it folds: one
// more for each other fold would be more than half of what a GPU loads, and of what is compiled.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

// KERNEL(type, name, name of the folds, folds) for whatever there is a kernel for.
#define OXCCL_BOTH(KERNEL, type, name) \
  KERNEL(type, name, sum, Sums)        \
  KERNEL(type, name, other, OtherFolds)

#define OXCCL_ALL(KERNEL)             \
  OXCCL_BOTH(KERNEL, I8, i8)          \
  OXCCL_BOTH(KERNEL, U8, u8)          \
  OXCCL_BOTH(KERNEL, I32, i32)        \
  OXCCL_BOTH(KERNEL, U32, u32)        \
  OXCCL_BOTH(KERNEL, I64, i64)        \
  OXCCL_BOTH(KERNEL, U64, u64)        \
  OXCCL_BOTH(KERNEL, F16, f16)        \
  OXCCL_BOTH(KERNEL, BF16, bf16)      \
  OXCCL_BOTH(KERNEL, F32, f32)        \
  OXCCL_BOTH(KERNEL, F64, f64)        \
  OXCCL_BOTH(KERNEL, F8E4M3, f8e4m3)  \
  OXCCL_BOTH(KERNEL, F8E5M2, f8e5m2)

struct Sums : Only<FOLD_SUM> {
  static constexpr bool ARE_SUMS = true;
  OXCCL_INLINE explicit Sums(uint32_t) {}

  template <class N>
  static OXCCL_INLINE bool has(const Header& program) {
    return program.fold == FOLD_SUM;
  }

  // Whether other brackets give other bits, of floats.
  OXCCL_INLINE bool brackets_matter() const { return true; }

  template <class N, class Then>
  OXCCL_INLINE auto choose(const Then& then) const {
    return then(Only<FOLD_SUM>());
  }
};

struct OtherFolds {
  static constexpr bool ARE_SUMS = false;
  uint32_t fold;
  OXCCL_INLINE explicit OtherFolds(uint32_t fold) : fold(fold) {}

  // Sums alone are scaled, and integers alone have bits.
  template <class N>
  static OXCCL_INLINE bool has(const Header& program) {
    constexpr uint32_t END = N::INTEGER ? FOLDS : uint32_t(FOLD_BIT_AND);
    return program.fold != FOLD_SUM && program.fold < END && program.scale == SCALE_NONE;
  }

  // Of minima and maxima they don't (tests/numeric.rs).
  OXCCL_INLINE bool brackets_matter() const { return fold == FOLD_PROD; }

  // Gives the fold on, as one that the compiler knows.
  template <class N, class Then>
  OXCCL_INLINE auto choose(const Then& then) const {
    if constexpr (N::INTEGER) {
      if (fold == FOLD_BIT_AND) return then(Only<FOLD_BIT_AND>());
      if (fold == FOLD_BIT_OR) return then(Only<FOLD_BIT_OR>());
      if (fold == FOLD_BIT_XOR) return then(Only<FOLD_BIT_XOR>());
    }
    if (fold == FOLD_PROD) return then(Only<FOLD_PROD>());
    if (fold == FOLD_MIN) return then(Only<FOLD_MIN>());
    return then(Only<FOLD_MAX>());
  }

  template <class N, uint32_t BYTES>
  OXCCL_INLINE Pack<N, BYTES> folded(const Pack<N, BYTES>& earlier, const Pack<N, BYTES>& later) const {
    return choose<N>([&](auto only) { return only.folded(earlier, later); });
  }
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
