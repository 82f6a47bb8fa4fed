// The host target: a block is one operating-system thread.
//
// A wait polls with `pause` in between, then writes what it waits for to Progress, then yields,
// then sleeps:
//
//     sleeping = 1; fence; ready? -> futex_wait(rings, 200 us growing to 1 ms); sleeping = 0
//
// and a signaller, after its store, looks at `sleeping` with a plain load and wakes if it is set.
// No fence orders that load behind the store, because the fence would cost every message 10 ns: a
// wake can be missed, and then costs the sleeper the rest of one nap.
#pragma once
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "contract.h"
#include "trace.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define OXCCL_SANITIZED 1
#else
#define OXCCL_SANITIZED 0
#endif

#define OXCCL_INLINE inline __attribute__((always_inline))
#define OXCCL_COLD __attribute__((noinline, cold))
#define OXCCL_NOINLINE __attribute__((noinline))
#define OXCCL_LIKELY(condition) __builtin_expect(bool(condition), 1)
#define OXCCL_UNLIKELY(condition) __builtin_expect(bool(condition), 0)

namespace oxccl {
inline namespace OXCCL_ISA {

template <class To, class From>
OXCCL_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

constexpr bool ONE_THREAD = true;
OXCCL_INLINE uint32_t lane() { return 0; }
OXCCL_INLINE uint32_t lanes() { return 1; }
OXCCL_INLINE bool leader() { return true; }
OXCCL_INLINE void barrier() {}
OXCCL_INLINE bool barrier_any(bool condition) { return condition; }
OXCCL_INLINE bool claim(uint32_t* word) { return *word == 0 && (*word = 1); }
OXCCL_INLINE void publish(uint32_t* word, uint32_t value) { *word = value; }
OXCCL_INLINE bool arrives_last(uint32_t* arrived, uint32_t channels) {
  if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) != channels) return false;
  __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
  return true;
}

OXCCL_INLINE uint64_t load_acquire(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
OXCCL_INLINE void store_release(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
template <class T>
OXCCL_INLINE T load_relaxed(const T* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
template <class T>
OXCCL_INLINE void store_relaxed(T* word, T value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

template <class T, uint32_t LEN>
using BlockTable = T[LEN];
template <class T, uint32_t LEN>
using BlockPointer = const T*;

// Where an operand's buckets are told: addresses, or tokens of a window. Nowhere if it is no
// memory.
struct BucketTable {
  const uint64_t *first, *followers;
  uint64_t stride_bytes;
  const Window* window;
};

// By operand.
struct BucketTables {
  BucketTable of[MAX_OPERANDS];
};

typedef uint64_t unaligned_word __attribute__((aligned(1), may_alias));
OXCCL_INLINE bool can_access_whole_words(const uint8_t*) { return true; }

// A line as two words, each whole and with its own flag, which is all that the data needs. They are
// released and acquired because a message also says that its sender has entered the call: windows
// open by it. (One 16-byte vector access would not be faster: its halves have to come out of the
// vector register again.)
OXCCL_INLINE Line load_line(const uint8_t* at) {
  const uint64_t* words = reinterpret_cast<const uint64_t*>(at);
  const uint64_t low = load_acquire(words);
  const uint64_t high = load_acquire(words + 1);
  return {(low & 0xffffffffu) | (high << 32), uint32_t(low >> 32), uint32_t(high >> 32)};
}

OXCCL_INLINE void store_line(uint8_t* at, uint64_t data, uint32_t flag) {
  uint64_t* words = reinterpret_cast<uint64_t*>(at);
  store_release(words, (data & 0xffffffffu) | (uint64_t(flag) << 32));
  store_release(words + 1, (data >> 32) | (uint64_t(flag) << 32));
}

// One thread has a whole line of an LL128 slot: whoever has acquired its flag may read all of it.
OXCCL_INLINE bool load_line_end(const uint8_t* at, uint64_t flag, uint64_t* data) {
  const uint64_t* words = reinterpret_cast<const uint64_t*>(at);
  if (OXCCL_UNLIKELY(load_acquire(words + 1) != flag)) return false;
  *data = words[0];
  return true;
}

OXCCL_INLINE void store_line_end(uint8_t* at, uint64_t data, uint64_t flag) {
  uint64_t* words = reinterpret_cast<uint64_t*>(at);
  words[0] = data;
  store_release(words + 1, flag);
}

// Flags are released and acquired, so a line needs no fence, whatever it opens.
OXCCL_INLINE void system_fence() {}

// Asks for the right to write a line before the time, so that the store need not wait for it.
OXCCL_INLINE void prefetch_write(const void* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

// Asks for the first lines of what will be read.
OXCCL_INLINE void prefetch_read(const uint8_t* at, uint64_t len_bytes) {
  for (uint64_t line = 0; line < len_bytes; line += 64) __builtin_prefetch(at + line, 0);
}

OXCCL_INLINE void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// Non-temporal stores are ordered by nothing but this.
OXCCL_INLINE void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#else
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

struct Patience {};
OXCCL_INLINE void wait_over(const Launch&, uint32_t, const Patience&) {}

OXCCL_INLINE bool is_ready(const Awaited& awaited) {
  if (awaited.what == Awaits::COUNTER) return int64_t(load_acquire(awaited.word)) >= int64_t(awaited.value);
  if (awaited.what == Awaits::FLAG) return load_acquire(awaited.word) == awaited.value;
  const Line line = load_line(reinterpret_cast<const uint8_t*>(awaited.word));
  return line.flag == awaited.value && line.flag_behind == awaited.value;
}

inline long futex(uint32_t* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

OXCCL_COLD inline void wake(Doorbell* doorbell) {
  const int32_t event = load_relaxed(&doorbell->event);
  if (event != 0) {
    const uint64_t one = 1;
    // It can fail only where it is readable already.
    if (write(event - 1, &one, sizeof(one)) < 0) return;
    return;
  }
  __atomic_fetch_add(&doorbell->rings, 1, __ATOMIC_RELEASE);
  futex(&doorbell->rings, FUTEX_WAKE, 1, nullptr);
}

OXCCL_INLINE void ring(Doorbell* doorbell) {
  if (OXCCL_UNLIKELY(load_relaxed(&doorbell->sleeping) != 0)) wake(doorbell);
}

// One nap, at most `nap_ns` long, shorter if a peer rings.
inline void nap(Doorbell* doorbell, const Awaited& awaited, long nap_ns) {
  const uint32_t rings = load_relaxed(&doorbell->rings);
  __atomic_exchange_n(&doorbell->sleeping, 1, __ATOMIC_SEQ_CST);  // a fence, too
  if (!is_ready(awaited)) {
    const timespec timeout = {0, nap_ns};
    futex(&doorbell->rings, FUTEX_WAIT, rings, &timeout);
  }
  store_relaxed(&doorbell->sleeping, 0u);
}

inline bool is_stopped(const Launch& launch, uint32_t channel, bool ask) {
  if (load_relaxed(launch.abort) != 0) return true;
  return ask && launch.poll && launch.poll(launch.poll_context, channel) != 0;
}

inline void write_progress(Progress* progress, const Place& place, uint64_t call) {
  store_relaxed(&progress->awaited, place.awaited);
  store_relaxed(&progress->step, place.step);
  store_relaxed(&progress->peer, place.peer);
  store_relaxed(&progress->lane, place.lane);
  store_relaxed(&progress->head, place.head);
  __atomic_store_n(&progress->call, call, __ATOMIC_RELEASE);
}

constexpr long FIRST_NAP_NS = 200000, LONGEST_NAP_NS = 1000000;

inline bool wait_long(const Launch& launch, uint32_t channel, const Awaited& awaited,
                      long longest_nap_ns) {
  for (uint32_t yields = 0; yields < launch.yields; ++yields) {
    if (is_ready(awaited)) return true;
    if (is_stopped(launch, channel, (yields & 63) == 63)) return false;
    sched_yield();
  }
  for (long nap_ns = FIRST_NAP_NS;; nap_ns = nap_ns * 2 < longest_nap_ns ? nap_ns * 2 : longest_nap_ns) {
    if (is_ready(awaited)) return true;
    if (is_stopped(launch, channel, true)) return false;
    nap(&launch.doorbells[channel], awaited, nap_ns);
  }
}

// The first polls of a wait have no `pause` between them, which on some processors lasts longer
// than the exchange of a cache line.
constexpr uint32_t EAGER_SPINS = 512;

// Waits to the end. False: stopped by the abort word or the poll function; Progress then still says
// what was awaited.
OXCCL_COLD inline bool wait_slow(const Launch& launch, uint32_t channel, const Awaited& awaited,
                                 const Place& place, const Fault&, Patience&) {
  // Who computes a bucket needs the processor, and rings nobody's bell when it is ready.
  const bool computes = place.lane == LANE_READY;
  const uint32_t most_spins = computes ? 0 : launch.spins;
  for (uint32_t spins = 0; spins < most_spins; ++spins) {
    if (is_ready(awaited)) return true;
    if (spins < EAGER_SPINS) continue;
    if ((spins & 4095) == 4095 && load_relaxed(launch.abort) != 0) break;
    pause();
  }
  if (is_ready(awaited)) return true;
  Progress* progress = &launch.progress[channel];
  write_progress(progress, place, launch.call);
  if (!wait_long(launch, channel, awaited, computes ? FIRST_NAP_NS : LONGEST_NAP_NS)) return false;
  store_relaxed(&progress->call, uint64_t(0));
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
