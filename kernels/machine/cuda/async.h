// Long copies by the engine for bulk asynchronous copies, which GPUs have from 9.0 on: memory to
// memory through stages in shared memory, whatever the number of destinations, with one thread that
// gives orders.
//
//     load the first stages
//     for each stage: wait until it is loaded; store it to every destination;
//                     once the stage before it has been read, load that one again
//
// What it can bring: the bytes in flight are as many as a block has stages, twice what its threads'
// registers hold, and no thread computes addresses. Whether that is faster has to be measured, so
// it is the launch's choice: the stages are the dynamic shared memory that it gives to a block, and
// without any the threads copy.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t STAGE_BYTES = 8192;
constexpr uint32_t MAX_STAGES = 16;
// Up to here starting and draining the stages costs more than it saves.
constexpr uint64_t ASYNC_BYTES = 8 * STAGE_BYTES;

#if OXCCL_HAS_ENGINE

// None where one could not be filled while another is emptied.
OXCCL_INLINE uint32_t stages() {
  const uint32_t len_bytes = stage_memory_bytes();
  const uint32_t count = len_bytes / STAGE_BYTES < MAX_STAGES ? len_bytes / STAGE_BYTES : MAX_STAGES;
  return count > 1 ? count : 0;
}

// The stages of one copy, and a barrier for each that counts the bytes that have come. One
// thread's.
struct Stages {
  const uint8_t* from;
  uint64_t len_bytes;
  uint32_t count, memory, barriers;

  OXCCL_INLINE uint32_t chunks() const { return uint32_t((len_bytes + STAGE_BYTES - 1) / STAGE_BYTES); }
  OXCCL_INLINE uint32_t stage(uint32_t chunk) const { return memory + chunk % count * STAGE_BYTES; }
  OXCCL_INLINE uint32_t barrier(uint32_t chunk) const { return barriers + chunk % count * 8; }
  OXCCL_INLINE uint64_t position(uint32_t chunk) const { return uint64_t(chunk) * STAGE_BYTES; }
  OXCCL_INLINE uint32_t chunk_bytes(uint32_t chunk) const {
    const uint64_t left = len_bytes - position(chunk);
    return left < STAGE_BYTES ? uint32_t(left) : STAGE_BYTES;
  }

  OXCCL_INLINE void load(uint32_t chunk) const {
    stage_expect(barrier(chunk), chunk_bytes(chunk));
    stage_load(stage(chunk), from + position(chunk), chunk_bytes(chunk), barrier(chunk));
  }

  // A stage's barrier turns once for each chunk that it has held.
  OXCCL_INLINE void await(uint32_t chunk) const {
    while (!stage_is_there(barrier(chunk), chunk / count & 1)) {
    }
  }

  OXCCL_INLINE void store(uint32_t chunk, uint8_t* to) const {
    stage_store(to + position(chunk), stage(chunk), chunk_bytes(chunk));
  }
};

OXCCL_INLINE Stages open_stages(const uint8_t* from, uint64_t len_bytes) {
  __shared__ uint64_t stage_barriers[MAX_STAGES];
  const Stages s = {from, len_bytes, stages(), stage_memory(), shared_address(stage_barriers)};
#pragma unroll 1
  for (uint32_t i = 0; i < s.count; ++i) stage_barrier_init(s.barrier(i));
  engine_fence();
  return s;
}

OXCCL_INLINE void close_stages(const Stages& s) {
  stage_stores_done();
  engine_fence();
#pragma unroll 1
  for (uint32_t i = 0; i < s.count; ++i) stage_barrier_inval(s.barrier(i));
}

// Bytes [position, position + len_bytes) of a copy, at 16-byte boundaries of global memory. False:
// the block's threads have to.
OXCCL_INLINE bool copy_async(const Move& move, uint64_t position, uint64_t len_bytes) {
  if (len_bytes < ASYNC_BYTES || stages() == 0) return false;
  if (!leader()) return true;
  const Stages s = open_stages(move.source(0).data + position, len_bytes);
  const uint32_t chunks = s.chunks();
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < s.count && chunk < chunks; ++chunk) s.load(chunk);
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    s.await(chunk);
#pragma unroll 1
    for (uint32_t d = 0; d < move.destinations; ++d) s.store(chunk, move.destination(d).data + position);
    stage_stores_commit();
    const uint32_t again = chunk + s.count - 1;
    if (chunk == 0 || again >= chunks) continue;
    stage_stores_read_but_last();
    s.load(again);
  }
  close_stages(s);
  return true;
}

#else
OXCCL_INLINE bool copy_async(const Move&, uint64_t, uint64_t) { return false; }
#endif

}  // namespace OXCCL_ISA
}  // namespace oxccl
