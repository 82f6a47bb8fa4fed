// The instructions that the CUDA target is made of. What runs the kernels without a GPU
// (tests/cuda_stand_in) has others of these names.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

// A wait that lasts looks at the abort word once in so many turns.
constexpr uint32_t SPINS_A_LOOK = 4096;

// Read anew each time: kept, and all that is computed from it, it would take registers through the
// loops of a move.
OXCCL_INLINE uint32_t lane() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
  return lane;
}

// The GPU's timer, in nanoseconds, and the multiprocessor's clock, in cycles: for traces.
OXCCL_INLINE uint64_t timer_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
  return now;
}
OXCCL_INLINE uint64_t ticks() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now) : : "memory");
  return now;
}

OXCCL_INLINE uint64_t load_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
OXCCL_INLINE void store_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
// Without a fence. What the peer may overwrite then are lines that have been accepted, each by the
// flag that came with its data in one access, by loads that were over in front of the block's last
// barrier: whatever comes into the slot later, nobody reads it as this message.
OXCCL_INLINE void store_credit(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
OXCCL_INLINE uint32_t load_relaxed(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
OXCCL_INLINE void store_relaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
OXCCL_INLINE void store_relaxed(uint32_t* word, uint32_t value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}

// Volatile accesses are relaxed at system scope, and each element of a vector is whole: a word with
// the right flag has the right data. A line orders nothing but itself, which is what keeps it fast;
// for the lines that do more there is system_fence.
OXCCL_INLINE Line load_line(const uint8_t* at) {
  uint64_t low, high;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
  return {(low & 0xffffffffu) | (high << 32), uint32_t(low >> 32), uint32_t(high >> 32)};
}
OXCCL_INLINE void store_line(uint8_t* at, uint64_t data, uint32_t flag) {
  const uint64_t low = (data & 0xffffffffu) | (uint64_t(flag) << 32);
  const uint64_t high = (data >> 32) | (uint64_t(flag) << 32);
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(at), "l"(low), "l"(high) : "memory");
}

OXCCL_INLINE Share load_share(const uint8_t* at) {
  Share share;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(share.low), "=l"(share.high) : "l"(at) : "memory");
  return share;
}
OXCCL_INLINE void store_share(uint8_t* at, const Share& share) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};"
               : : "l"(at), "l"(share.low), "l"(share.high) : "memory");
}

// Of all threads of a warp, which come here together.
OXCCL_INLINE bool any_of_warp(bool condition) { return __any_sync(0xffffffff, condition); }
// What threads of a warp do behind it at once, they do in one access.
OXCCL_INLINE void align_warp() { __syncwarp(); }

// In front of a relaxed store it makes that a release, behind a relaxed load it makes that an
// acquire, for all that the thread knows of: its own accesses, those that a barrier or the kernel's
// start put before it, and after the next barrier those of the whole block. A microsecond or so, so
// only where a line opens something: see run_reduce_copy.
OXCCL_INLINE void system_fence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }

// Of one GPU's kernels.
OXCCL_INLINE uint32_t exchange(uint32_t* word, uint32_t value) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.exch.b32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
  return before;
}

// Of one GPU's blocks. It counts up to the number of channels, and then from 0 again.
OXCCL_INLINE bool arrives_last(uint32_t* arrived, uint32_t channels) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(channels - 1) : "memory");
  return before == channels - 1;
}

#if __CUDA_ARCH__ >= 900
#define OXCCL_HAS_ENGINE 1
// Of a block: shared memory by its own addresses.
OXCCL_INLINE uint32_t shared_address(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }
OXCCL_INLINE uint32_t stage_memory() {
  extern __shared__ __align__(128) uint8_t memory[];
  return shared_address(memory);
}
OXCCL_INLINE uint32_t stage_memory_bytes() {
  uint32_t len_bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(len_bytes));
  return len_bytes;
}

// A barrier turns when the bytes have come that it was told to expect.
OXCCL_INLINE void stage_barrier_init(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(barrier) : "memory");
}
OXCCL_INLINE void stage_barrier_inval(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}
OXCCL_INLINE void stage_expect(uint32_t barrier, uint32_t len_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(len_bytes) : "memory");
}
OXCCL_INLINE bool stage_is_there(uint32_t barrier, uint32_t parity) {
  uint32_t there;
  asm volatile(
      "{ .reg .pred there;\n"
      "  mbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2;\n"
      "  selp.u32 %0, 1, 0, there; }"
      : "=r"(there) : "r"(barrier), "r"(parity) : "memory");
  return there;
}

// Copies by the engine, at 16-byte boundaries.
OXCCL_INLINE void stage_load(uint32_t stage, const uint8_t* from, uint32_t len_bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               : : "r"(stage), "l"(__cvta_generic_to_global(from)), "r"(len_bytes), "r"(barrier) : "memory");
}
OXCCL_INLINE void stage_store(uint8_t* to, uint32_t stage, uint32_t len_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               : : "l"(__cvta_generic_to_global(to)), "r"(stage), "r"(len_bytes) : "memory");
}
// The stores since the last one are a group.
OXCCL_INLINE void stage_stores_commit() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
// All groups but the last have read their stages.
OXCCL_INLINE void stage_stores_read_but_last() { asm volatile("cp.async.bulk.wait_group.read 1;" : : : "memory"); }
OXCCL_INLINE void stage_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" : : : "memory"); }
// The engine sees memory in a way of its own: in front of it and behind it, this orders its
// accesses with all others.
OXCCL_INLINE void engine_fence() { asm volatile("fence.proxy.async;" : : : "memory"); }
#else
#define OXCCL_HAS_ENGINE 0
#endif

}  // namespace OXCCL_ISA
}  // namespace oxccl
