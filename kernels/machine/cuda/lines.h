// LL128 messages on a GPU: a line is eight threads of a warp.
//
//     thread t has 16 bytes of line t / 8, the last of eight threads a word of data and the flag
//
//     receive:  all load their share, until no thread of the warp sees a flag of another message
//     send:     all store their share at once, the flag with the last
//
// Why all of a warp: a line is whole only as one access of its eight threads, which therefore load
// and store together, and turn back together where a wait is stopped. A warp takes every turn of
// the loops around with all of its threads; those behind the message's end have nothing to load and
// store.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t SHARE_BYTES = sizeof(Share);
constexpr uint32_t LINE_SHARES = LL128_LINE_BYTES / SHARE_BYTES;
constexpr uint32_t WARP_THREADS = 32;
static_assert(WARP_THREADS % LINE_SHARES == 0 && BLOCK_THREADS % WARP_THREADS == 0, "no line is of two warps");

// The shares of a move that has LL128 operands, numbered through; its other operands are divided
// alike.
struct Lines {
  using Bits = Share;
  uint64_t len_bytes;

  OXCCL_INLINE uint32_t lines() const {
    return uint32_t((len_bytes + LL128_DATA_BYTES - 1) / LL128_DATA_BYTES);
  }
  // Of whole warps.
  OXCCL_INLINE uint32_t count() const {
    return (lines() * LINE_SHARES + WARP_THREADS - 1) / WARP_THREADS * WARP_THREADS;
  }
  OXCCL_INLINE bool is_in_line(uint32_t share) const { return share < lines() * LINE_SHARES; }
  OXCCL_INLINE static bool has_flag(uint32_t share) { return share % LINE_SHARES == LINE_SHARES - 1; }
  OXCCL_INLINE static uint64_t position(uint32_t share) {
    return uint64_t(share / LINE_SHARES) * LL128_DATA_BYTES + share % LINE_SHARES * SHARE_BYTES;
  }
  // Bytes of data in the share.
  OXCCL_INLINE uint64_t left(uint32_t share) const {
    const uint64_t at = position(share);
    const uint64_t left = at < len_bytes ? len_bytes - at : 0;
    const uint64_t most = has_flag(share) ? 8 : SHARE_BYTES;
    return left < most ? left : most;
  }

  // Without the flag, but with what may lie behind the message's end. Wherever it is not of a line,
  // nothing.
  OXCCL_INLINE bool receive(Machine& machine, const View& view, uint32_t share, Share* into) const {
    const uint8_t* at = view.data + uint64_t(share) * SHARE_BYTES;
    const bool is_in_line = this->is_in_line(share);
    Patience patience = {};
    // One of them may have been elsewhere, such as at the message's header.
    align_warp();
#pragma unroll 1
    while (true) {
      if (is_in_line) *into = load_share(at);
      const bool late = is_in_line && has_flag(share) && into->high != view.epoch;
      if (!any_of_warp(late)) break;
      const Awaited awaited = {reinterpret_cast<const uint64_t*>(at) + 1, view.epoch, Awaits::FLAG};
      const bool stopped = late && !machine.await(awaited, place_of(machine, view), patience);
      if (any_of_warp(stopped)) return false;
    }
    wait_over(machine.launch, machine.channel, patience);
    return true;
  }

  template <class Unit>
  OXCCL_INLINE bool load(Machine& machine, const View& view, uint32_t share, Share* into) const {
    if (view.is_ll128()) return receive(machine, view, share, into);
    const uint64_t at = position(share), left = this->left(share);
    bool there = true;
#pragma unroll 1
    for (uint32_t byte = 0; byte < left; byte += 8) {
      uint64_t word = 0;
      there &= load_word<Unit>(machine, view, at + byte, left - byte, &word);
      if (byte == 0) into->low = word;
      else into->high = word;
    }
    return !any_of_warp(!there);
  }

  template <class Unit>
  OXCCL_INLINE void store(const View& view, uint32_t share, const Share& from) const {
    if (view.is_ll128()) {
      align_warp();
      if (!is_in_line(share)) return;
      const uint64_t high = has_flag(share) ? view.epoch : from.high;
      return store_share(view.data + uint64_t(share) * SHARE_BYTES, {from.low, high});
    }
    const uint64_t at = position(share), left = this->left(share);
#pragma unroll 1
    for (uint32_t byte = 0; byte < left; byte += 8)
      store_word<Unit>(view, at + byte, left - byte, byte == 0 ? from.low : from.high);
  }
};

}  // namespace OXCCL_ISA
}  // namespace oxccl
