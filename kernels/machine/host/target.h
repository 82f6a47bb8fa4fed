// The host target: a block is one operating-system thread.
//
// A wait polls with `pause` in between, then writes what it waits for to Progress, then yields,
// then sleeps:
//
//     sleeping = 1; membarrier; ready? -> futex_wait(rings, 200 us growing to 1 ms); sleeping = 0
//
// and a signaller, after its store, looks at `sleeping` with a plain load and wakes if it is set.
// A fence between the two would cost every message 10 ns. So the sleeper has the kernel put one
// there: membarrier runs a fence on every core where a process of a rank is running, and a thread
// that is not running has had one. Either the signaller sees `sleeping`, or the sleeper sees what
// was stored. Where the kernel refuses membarrier a wake can be missed: then it costs the sleeper
// the rest of one nap, and is counted. A thread that sleeps often leaves OFTEN set in `sleeping`:
// then signallers do fence, and its further naps need no membarrier.
//
// How long to poll, and whether to yield, depends on who else wants the core (`Crowd`).
#pragma once
#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
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
#define OXCCL_APART inline __attribute__((noinline, cold))
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
// Behind the loads of the message, whose words are not whole lines.
OXCCL_INLINE void store_credit(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
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
// The tile's move becomes each piece's.
constexpr uint32_t MOST_PIECES = 0;

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

// Polls between a nap's end and the verdict that nobody rang.
constexpr uint32_t LOOKS_FOR_A_RING = 1000;

inline long futex(uint32_t* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

// What `sleeping` holds.
constexpr uint32_t ASLEEP = 1, OFTEN = 2;

OXCCL_COLD inline void wake(Doorbell* doorbell) {
  const int32_t event = load_relaxed(&doorbell->event);
  if (event != 0) {
    const uint64_t one = 1;
    // It can fail only where it is readable already.
    if (write(event - 1, &one, sizeof(one)) < 0) return;
    return;
  }
  if ((load_relaxed(&doorbell->sleeping) & ASLEEP) == 0) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if ((load_relaxed(&doorbell->sleeping) & ASLEEP) == 0) return;
  }
  __atomic_fetch_add(&doorbell->rings, 1, __ATOMIC_RELEASE);
  // One wakes; the others need not enter the kernel.
  if ((__atomic_fetch_and(&doorbell->sleeping, ~ASLEEP, __ATOMIC_ACQ_REL) & ASLEEP) == 0) return;
  futex(&doorbell->rings, FUTEX_WAKE, 1, nullptr);
}

OXCCL_INLINE void ring(Doorbell* doorbell) {
  // The compiler, too, leaves the load behind the store.
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  if (OXCCL_UNLIKELY(load_relaxed(&doorbell->sleeping) != 0)) wake(doorbell);
}

// One nap, at most `nap_ns` long, shorter if a peer rings: true if nobody has. It leaves `sleeping`
// set then, so that a wait of many naps needs one membarrier.
inline bool nap(Doorbell* doorbell, const Awaited& awaited, long nap_ns, bool rung, bool often) {
  const uint32_t rings = load_relaxed(&doorbell->rings);
  const uint32_t announced = often ? ASLEEP | OFTEN : ASLEEP;
  const uint32_t before = __atomic_fetch_or(&doorbell->sleeping, announced, __ATOMIC_SEQ_CST);
  if (before == 0) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
  if (is_ready(awaited)) return false;
  const timespec timeout = {0, nap_ns};
  const bool ended = futex(&doorbell->rings, FUTEX_WAIT, rings, &timeout) < 0 && errno == ETIMEDOUT;
  if (!rung || !ended || !is_ready(awaited)) return ended;
  // Whoever has just stored it may be about to ring.
  for (uint32_t looks = 0; looks < LOOKS_FOR_A_RING; ++looks) {
    if (load_relaxed(&doorbell->rings) != rings) return false;
    pause();
  }
  store_relaxed(&doorbell->missed, load_relaxed(&doorbell->missed) + 1);
  return true;
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

// The first polls of a wait have no `pause` between them, which on some processors lasts longer
// than the exchange of a cache line.
constexpr uint32_t EAGER_SPINS = 512;

// What this thread has found out about who else wants its core, wherever it is bound by now.
//
// Polling pays while nobody else wants the core: each wait that came to yield says whether a yield
// let somebody run, and fewer or more polls come before the next.
//
// Yielding to a rank of the same core pays: it runs for a microsecond and yields back. Yielding to
// a stranger may not: it keeps the core until the scheduler takes it away, and the scheduler counts
// what is left of the yielder's slice as used. So yields have a credit, which grows with each and
// shrinks by its length. Once it is used up, a series of waits sleeps. If calls took longer then,
// the next credit is larger, else the next series is.
struct Crowd {
  uint32_t spins;        // Polls before a yield, at most.
  uint32_t unsampled;    // Waits whose yields were not looked at, since the last.
  uint32_t sleeps;       // Waits of this series that are still to sleep.
  uint32_t series;       // How many the next has.
  int64_t credit_ns, most_credit_ns;
  int64_t since_ns;      // Since when the thread yields, with less than full credit, or sleeps.
  uint64_t since_call;
  int64_t yielding_ns;   // What a call took while it yielded.
  bool short_slice;      // The scheduler has been asked for short slices.
};

// Fewer polls make no wait shorter.
constexpr uint32_t FEWEST_SPINS = 128;
// Of waits that hardly poll, one in so many has its yields looked at.
constexpr uint32_t WAITS_A_SAMPLE = 16;
// Waits of a series that sleep, at first and at most.
constexpr uint32_t FEWEST_SLEEPS = 256, MOST_SLEEPS = 65536;
// What a yield may take: about as long as going to sleep and being woken does.
constexpr int64_t YIELD_NS = 20000;
// The credit: at first, at most, and after a series that was worth it.
constexpr int64_t LEAST_CREDIT_NS = 200000000, MOST_CREDIT_NS = 20000000000;
constexpr int64_t NEXT_CREDIT_NS = 5000000;
// A yield of this length was to no rank that waits.
constexpr int64_t LONG_YIELD_NS = 50000;
// The shortest slice that Linux gives.
constexpr uint64_t SHORT_SLICE_NS = 100000;

inline Crowd& crowd() {
  static thread_local Crowd crowd = {UINT32_MAX,      0, 0, FEWEST_SLEEPS, LEAST_CREDIT_NS,
                                     LEAST_CREDIT_NS, 0, 0, 0,             false};
  return crowd;
}

inline int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// How often somebody else has got the core though this thread could have gone on: in yields, too.
inline long switches() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// As the kernel has it; libraries have it only of late.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

// Asks the scheduler for short slices, which Linux knows from 6.12 on: then a yield gives away no
// more than that. Everything else stays as it is.
OXCCL_COLD inline void ask_for_short_slices() {
  SchedulingAttributes own = {};
  if (syscall(SYS_sched_getattr, 0, &own, sizeof(own), 0) != 0) return;
  const bool fair = own.policy == SCHED_OTHER || own.policy == SCHED_BATCH;
  if (!fair || own.runtime_ns <= SHORT_SLICE_NS) return;
  own.size = sizeof(own);
  own.runtime_ns = SHORT_SLICE_NS;
  syscall(SYS_sched_setattr, 0, &own, 0);
}

// What a call has taken since the thread began to yield or to sleep, which begins anew.
inline int64_t call_ns(Crowd& crowd, uint64_t call, int64_t now_ns) {
  const int64_t calls = call > crowd.since_call ? int64_t(call - crowd.since_call) : 1;
  const int64_t each_ns = (now_ns - crowd.since_ns) / calls;
  crowd.since_ns = now_ns;
  crowd.since_call = call;
  return each_ns;
}

// Takes a yield that has just ended from the credit. False where that is used up.
inline bool afford(Crowd& crowd, uint64_t call, int64_t yield_ns, int64_t now_ns) {
  crowd.credit_ns += YIELD_NS - yield_ns;
  if (crowd.since_ns == 0) call_ns(crowd, call, now_ns);
  if (yield_ns > LONG_YIELD_NS && !crowd.short_slice) {
    crowd.short_slice = true;
    ask_for_short_slices();
  }
  if (crowd.credit_ns >= crowd.most_credit_ns) {
    crowd.credit_ns = crowd.most_credit_ns = LEAST_CREDIT_NS;
    crowd.series = FEWEST_SLEEPS;
    call_ns(crowd, call, now_ns);
  }
  if (crowd.credit_ns >= 0) return true;
  crowd.sleeps = crowd.series;
  crowd.yielding_ns = call_ns(crowd, call, now_ns);
  return false;
}

// One wait of the series less. The last one's end says whether it was worth it.
inline void slept(Crowd& crowd, uint64_t call) {
  if (--crowd.sleeps != 0) return;
  if (call_ns(crowd, call, now_ns()) < crowd.yielding_ns) {
    crowd.series = crowd.series < MOST_SLEEPS ? crowd.series * 4 : MOST_SLEEPS;
    crowd.credit_ns = NEXT_CREDIT_NS;
    return;
  }
  crowd.series = FEWEST_SLEEPS;
  crowd.most_credit_ns = crowd.most_credit_ns < MOST_CREDIT_NS ? crowd.most_credit_ns * 4 : MOST_CREDIT_NS;
  crowd.credit_ns = crowd.most_credit_ns - YIELD_NS;
}

// Whether a wait that polled so often, of at most `most`, is to look at its yields.
inline bool is_sample(Crowd& crowd, uint32_t spins, uint32_t most) {
  if (most <= FEWEST_SPINS) return false;
  if (spins <= FEWEST_SPINS && ++crowd.unsampled < WAITS_A_SAMPLE) return false;
  crowd.unsampled = 0;
  return true;
}

// Fewer polls for the next wait where somebody else wanted the core, more where nobody did.
inline void adapt(Crowd& crowd, uint32_t spins, uint32_t most, bool switched) {
  const uint32_t next = switched ? spins / 4 : spins > most / 4 ? UINT32_MAX : spins * 4;
  crowd.spins = next < FEWEST_SPINS ? FEWEST_SPINS : next;
}

enum class Ended { READY, STOPPED, NOT_YET };

inline Ended wait_yielding(const Launch& launch, uint32_t channel, const Awaited& awaited,
                           Crowd& crowd) {
  int64_t before = now_ns();
  for (uint32_t yields = 0; yields < launch.yields; ++yields) {
    if (is_ready(awaited)) return Ended::READY;
    if (is_stopped(launch, channel, (yields & 63) == 63)) return Ended::STOPPED;
    sched_yield();
    const int64_t now = now_ns();
    if (!afford(crowd, launch.call, now - before, now)) break;
    before = now;
  }
  return Ended::NOT_YET;
}

// Nobody rings this channel's bell for a bucket that the rank itself computes, nor where
// is_own_bell says so (`rung`): short naps then.
inline bool wait_sleeping(const Launch& launch, uint32_t channel, const Awaited& awaited, bool rung,
                          bool often) {
  Doorbell* doorbell = &launch.doorbells[channel];
  const long longest_nap_ns = rung ? LONGEST_NAP_NS : FIRST_NAP_NS;
  long nap_ns = FIRST_NAP_NS;
  bool ready = false, ask = false;
  while (!(ready = is_ready(awaited)) && !is_stopped(launch, channel, ask)) {
    ask = nap(doorbell, awaited, nap_ns, rung, often);
    if (ask) nap_ns = nap_ns * 2 < longest_nap_ns ? nap_ns * 2 : longest_nap_ns;
  }
  store_relaxed(&doorbell->sleeping, often ? OFTEN : 0u);
  return ready;
}

// Whoever stores what is awaited rings the bell that goes with its connection: that of a channel,
// which is this one unless ranks have several lists.
OXCCL_COLD inline bool is_own_bell(const Launch& launch, uint32_t channel, const Place& place) {
  if (launch.program->channels == 1 || place.connection == nullptr) return true;
  return uint64_t(place.connection - launch.connections) / (uint64_t(launch.ranks) * LANES) == channel;
}

// Waits to the end. False: stopped by the abort word or the poll function; Progress then still says
// what was awaited.
OXCCL_COLD inline bool wait_slow(const Launch& launch, uint32_t channel, const Awaited& awaited,
                                 const Place& place, const Fault&, Patience&) {
  // Who computes a bucket needs the processor, and rings nobody's bell when it is ready.
  const bool computes = place.lane == LANE_READY;
  Crowd& crowd = oxccl::crowd();
  const uint32_t most = computes ? 0 : launch.spins;
  const uint32_t own = most < crowd.spins ? most : crowd.spins;
  // To sleep and be woken takes longer than the first polls.
  const uint32_t most_spins = own == 0 && crowd.sleeps > 0 && !computes ? EAGER_SPINS : own;
  for (uint32_t spins = 0; spins < most_spins; ++spins) {
    if (is_ready(awaited)) return true;
    if (spins < EAGER_SPINS) continue;
    if ((spins & 4095) == 4095 && load_relaxed(launch.abort) != 0) break;
    pause();
  }
  if (is_ready(awaited)) return true;

  Progress* progress = &launch.progress[channel];
  write_progress(progress, place, launch.call);
  Ended ended = Ended::NOT_YET;
  uint32_t* sleeping = &launch.doorbells[channel].sleeping;
  const bool sleeps = crowd.sleeps > 0 && !computes;
  if (!sleeps && load_relaxed(sleeping) != 0) store_relaxed(sleeping, 0u);
  if (sleeps) {
    slept(crowd, launch.call);
  } else if (is_sample(crowd, own, most)) {
    const long before = switches();
    ended = wait_yielding(launch, channel, awaited, crowd);
    adapt(crowd, own, most, switches() != before);
  } else {
    ended = wait_yielding(launch, channel, awaited, crowd);
  }
  if (ended == Ended::STOPPED) return false;
  const bool rung = !computes && is_own_bell(launch, channel, place);
  if (ended == Ended::NOT_YET && !wait_sleeping(launch, channel, awaited, rung, sleeps)) return false;
  store_relaxed(&progress->call, uint64_t(0));
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
