// oxccl in kernels of your own: peers' memory, notices between thread blocks of all ranks, small
// messages in flagged lines, and the switch's reductions. For CUDA C++17, nvcc and NVRTC alike.
//
//     struct Arguments { oxccl::device::Communicator comm; ... };
//
//     __global__ void exchange(const __grid_constant__ Arguments arguments) {
//       oxccl::device::Block block(arguments.comm, blockIdx.x);
//       float* theirs = block.peer(right, arguments.buffer);   // of the heap: Communicator::alloc
//       theirs[threadIdx.x] = ...;
//       if (!block.barrier()) return;                           // the communicator has ended
//       ... arguments.buffer[threadIdx.x] ...
//     }
//
// The host makes a `Communicator` with `oxccl::Communicator::device_communicator(blocks)`, on all
// ranks. Block b of a kernel talks to the blocks b of the other ranks alone, by connections of its
// own: no call of the host's gets between. What the ranks' kernels ask of each other has to fit
// together, as calls do; nobody proves it. All blocks that wait for each other have to run at the
// same time: launch no more of them than fit on the GPU, or cooperatively.
//
// Functions of `Block` are called by all threads of the block, but where they say otherwise. Those
// that wait return false once the communicator has ended, such as by `Handle::abort` or since a
// rank has died; the kernel returns then. A wait has no time-out.
#pragma once

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <stdint.h>
#endif

#define OXCCL_DEVICE __device__ __forceinline__

namespace oxccl {
namespace device {

// 8 bytes of data as a line has them: 4 bytes and a flag, twice. Each half is written whole.
struct Line {
  uint64_t low, high;
};

}  // namespace device
}  // namespace oxccl

// The instructions. What runs kernels without a GPU has others of these names.
#ifdef OXCCL_DEVICE_INSTRUCTIONS
#include OXCCL_DEVICE_INSTRUCTIONS
#else
namespace oxccl {
namespace device {

OXCCL_DEVICE uint64_t load_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
OXCCL_DEVICE void store_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
OXCCL_DEVICE uint32_t load_relaxed(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
OXCCL_DEVICE void store_relaxed(uint32_t* word, uint32_t value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
OXCCL_DEVICE Line load_line(const Line* at) {
  Line line;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(line.low), "=l"(line.high) : "l"(at) : "memory");
  return line;
}
OXCCL_DEVICE void store_line(Line* at, const Line& line) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(at), "l"(line.low), "l"(line.high) : "memory");
}

#if __CUDA_ARCH__ >= 900
#define OXCCL_DEVICE_HAS_SWITCH 1
// 16 bytes of the same place of all ranks' heaps, added up by the switch between the GPUs; `at` is
// an address of `Block::everywhere`, a multiple of 16.
OXCCL_DEVICE float4 load_sum(const float4* at) {
  float4 sum;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(sum.x), "=f"(sum.y), "=f"(sum.z), "=f"(sum.w)
               : "l"(__cvta_generic_to_global(at)) : "memory");
  return sum;
}
// Writes 16 bytes to the same place of all ranks' heaps.
OXCCL_DEVICE void store_everywhere(float4* at, const float4& value) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
               : : "l"(__cvta_generic_to_global(at)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}
// Between accesses to memory under its own address and under that of `Block::everywhere`.
OXCCL_DEVICE void fence_of_names() { asm volatile("fence.proxy.alias;" : : : "memory"); }
#endif

}  // namespace device
}  // namespace oxccl
#endif

namespace oxccl {
namespace device {

// What the host hands over, by value: `DeviceCommunicator::parameter`. Its fields are for `Block`.
struct Communicator {
  // Where the ranks' heaps begin, by rank.
  uint8_t* const* heaps;
  // Where each rank's counters begin, by rank: `block * ranks + writer`, a line of 64 bytes each.
  uint8_t* const* counters;
  // Where each rank's lines begin, by rank: `((block * ranks + writer) * 2 + round % 2) * lines`.
  Line* const* lines;
  // This rank's own, `(block * ranks + peer) * 3`: notices given and taken, rounds of lines.
  uint64_t* cursors;
  // All ranks' heaps behind one address; null where no switch joins the GPUs.
  uint8_t* everywhere;
  // Not 0 once the communicator has ended.
  const uint32_t* abort;
  // Where a block says that it has given up.
  uint32_t* stopped;
  uint32_t rank, ranks;
  // Blocks that there are connections for, and lines of each of them from a peer to another.
  uint32_t blocks, lines_each;
};
static_assert(sizeof(Communicator) == 72, "as the host has it");

// A bucket of a group that was launched before it is ready: `Unready::ready_in_kernel`.
struct ReadyWord {
  uint64_t* word;
  uint64_t value;
};

// A bucket of a group: `Work::done_words`.
struct DoneWords {
  const uint64_t* words;
  uint64_t value, count;
};

// One of a kernel's thread blocks, and its counterparts on all ranks.
class Block {
 public:
  // `number` is smaller than the blocks that the host has asked for.
  OXCCL_DEVICE Block(const Communicator& comm, uint32_t number) : comm_(comm), number_(number) {}

  OXCCL_DEVICE uint32_t rank() const { return comm_.rank; }
  OXCCL_DEVICE uint32_t ranks() const { return comm_.ranks; }

  // By one thread or by all. Where a peer has what this rank has at `own`, an address of its heap:
  // the same place of the peer's. Ranks that allocate alike have the same there.
  template <class T>
  OXCCL_DEVICE T* peer(uint32_t peer, T* own) const {
    return reinterpret_cast<T*>(comm_.heaps[peer] + place(own));
  }

  // By one thread or by all. The address that stands for that place of all ranks' heaps; null where
  // no switch joins the GPUs.
  template <class T>
  OXCCL_DEVICE T* everywhere(T* own) const {
    return comm_.everywhere == nullptr ? nullptr : reinterpret_cast<T*>(comm_.everywhere + place(own));
  }

  // Gives a peer a notice: it sees what this block has written before, anywhere.
  OXCCL_DEVICE void signal(uint32_t peer) {
    __syncthreads();
    if (threadIdx.x == 0) give(peer);
  }

  // Waits for the next notice of a peer.
  OXCCL_DEVICE bool wait(uint32_t peer) {
    const bool stopped = threadIdx.x == 0 && !take(peer);
    return !__syncthreads_or(stopped);
  }

  // Gives all peers a notice, and waits for theirs: what all blocks of this number have written
  // before it, all see behind it, and what they have read may be written.
  OXCCL_DEVICE bool barrier() {
    __syncthreads();
    bool stopped = false;
    for (uint32_t peer = threadIdx.x; peer < comm_.ranks; peer += blockDim.x)
      if (peer != comm_.rank) give(peer);
    for (uint32_t peer = threadIdx.x; peer < comm_.ranks; peer += blockDim.x)
      if (peer != comm_.rank) stopped |= !take(peer);
    return !__syncthreads_or(stopped);
  }

  // Marks a bucket ready: what this block has written before is there. Where several blocks write a
  // bucket, the one marks it that knows of the others.
  OXCCL_DEVICE void mark_ready(const ReadyWord& bucket) const {
    __syncthreads();
    if (threadIdx.x == 0) store_release(bucket.word, bucket.value);
  }

  // Waits until a bucket is done. False also if its group has failed.
  OXCCL_DEVICE bool await_done(const DoneWords& bucket) const {
    bool stopped = false;
    for (uint64_t at = threadIdx.x; at < bucket.count; at += blockDim.x) {
      uint64_t found = load_acquire(bucket.words + at);
      for (uint32_t spins = 1; found < bucket.value && !stopped; ++spins) {
        stopped = spins % SPINS_A_LOOK == 0 && has_ended();
        found = load_acquire(bucket.words + at);
      }
      if (found >= FAILED) stopped = give_up();
    }
    return !__syncthreads_or(stopped);
  }

  // Small messages whose words announce themselves: no notice, and no order with other memory. They
  // go in rounds. In each a block puts lines for peers and gets what these have put for it,
  // numbered from 0 to `Communicator::lines_each` less one. Before it begins the next round but one
  // with a peer, it has to have got a line that the peer put in the next one: so two are never
  // mixed up.
  OXCCL_DEVICE void begin_round() {
    __syncthreads();
    for (uint32_t peer = threadIdx.x; peer < comm_.ranks; peer += blockDim.x) ++*cursor(peer, ROUND);
    __syncthreads();
  }
  // By any thread.
  OXCCL_DEVICE void put(uint32_t peer, uint32_t at, uint64_t data) const {
    const uint64_t flag = flag_of(peer) << 32;
    store_line(line(peer, comm_.rank, at, peer), {(data & 0xffffffffu) | flag, (data >> 32) | flag});
  }
  // By any thread. False once the communicator has ended.
  OXCCL_DEVICE bool get(uint32_t peer, uint32_t at, uint64_t* data) const {
    const Line* from = line(comm_.rank, peer, at, peer);
    const uint64_t flag = flag_of(peer);
    for (uint32_t spins = 1;; ++spins) {
      const Line found = load_line(from);
      if (found.low >> 32 == flag && found.high >> 32 == flag) {
        *data = (found.low & 0xffffffffu) | found.high << 32;
        return true;
      }
      if (spins % SPINS_A_LOOK == 0 && has_ended()) return false;
    }
  }

 private:
  enum Cursor : uint32_t { GIVEN, TAKEN, ROUND, CURSORS };
  static constexpr uint32_t COUNTER_BYTES = 64, SPINS_A_LOOK = 1024;
  // What the words of a group that has failed have got to.
  static constexpr uint64_t FAILED = uint64_t(1) << 62;

  const Communicator& comm_;
  const uint32_t number_;

  template <class T>
  OXCCL_DEVICE uint64_t place(T* own) const {
    return uint64_t(reinterpret_cast<const uint8_t*>(own) - comm_.heaps[comm_.rank]);
  }
  OXCCL_DEVICE uint64_t pair(uint32_t other) const { return uint64_t(number_) * comm_.ranks + other; }
  OXCCL_DEVICE uint64_t* cursor(uint32_t peer, Cursor which) const {
    return comm_.cursors + pair(peer) * CURSORS + which;
  }
  OXCCL_DEVICE uint64_t* counter(uint32_t owner, uint32_t writer) const {
    return reinterpret_cast<uint64_t*>(comm_.counters[owner] + pair(writer) * COUNTER_BYTES);
  }
  OXCCL_DEVICE uint64_t flag_of(uint32_t peer) const {
    // Never 0, which is what lines have at first, and for 2^32 - 1 rounds never the same.
    return *cursor(peer, ROUND) % 0xffffffffu + 1;
  }
  OXCCL_DEVICE Line* line(uint32_t owner, uint32_t writer, uint32_t at, uint32_t peer) const {
    const uint64_t half = *cursor(peer, ROUND) % 2;
    return comm_.lines[owner] + (pair(writer) * 2 + half) * comm_.lines_each + at;
  }

  OXCCL_DEVICE void give(uint32_t peer) { store_release(counter(peer, comm_.rank), ++*cursor(peer, GIVEN)); }

  OXCCL_DEVICE bool take(uint32_t peer) {
    const uint64_t wanted = ++*cursor(peer, TAKEN);
    for (uint32_t spins = 1; load_acquire(counter(comm_.rank, peer)) < wanted; ++spins)
      if (spins % SPINS_A_LOOK == 0 && has_ended()) return false;
    return true;
  }

  OXCCL_DEVICE bool has_ended() const {
    return load_relaxed(comm_.abort) != 0 && give_up();
  }
  OXCCL_DEVICE bool give_up() const {
    store_relaxed(comm_.stopped, 1);
    return true;
  }
};

}  // namespace device
}  // namespace oxccl
