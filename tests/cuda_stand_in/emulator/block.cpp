// Runs blocks of the CUDA kernels on a CPU: from their own source, each of a block's threads with a
// stack of its own.
//
//     a block is a thread of the operating system; its threads take turns, in an order that is drawn anew at each barrier
//     until all are at their end:
//       give each that can go on a turn, until it waits (barrier, warp, access of a warp) or lets others go first
//       where all threads of a warp wait: do the accesses that wait, or tell the votes
//       where all threads of the block are at the barrier: open it
//
// What it shows: results of any order of threads that barriers and votes allow; waits that not all
// threads come to; memory of the block that is read before it is written (it holds a pattern at
// first). What it does not: the order in which a GPU makes stores visible, time, and what is for
// certain GPUs only.
#include <algorithm>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "engine.h"
#include "order.h"

namespace emulator {
namespace {

constexpr uint32_t THREADS = blockDim.x, WARP = 32;
constexpr size_t STACK_BYTES = 64 << 10;

enum class State : uint8_t { READY, AT_BARRIER, AT_VOTE, LOADS, STORES, OVER };

struct Thread {
  void* stack;
  State state;
  bool vote;
  // Of an access that waits.
  uint8_t* at;
  uint64_t words[2];
};

// Stacks of blocks that are at their end, for later ones.
std::mutex kept_mutex;
std::vector<uint8_t*> kept;

uint8_t* take_stacks() {
  {
    std::lock_guard<std::mutex> lock(kept_mutex);
    if (!kept.empty()) {
      uint8_t* memory = kept.back();
      kept.pop_back();
      return memory;
    }
  }
  void* memory = mmap(nullptr, THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for the stacks of a block");
  return static_cast<uint8_t*>(memory);
}

void keep_stacks(uint8_t* memory) {
  std::lock_guard<std::mutex> lock(kept_mutex);
  kept.push_back(memory);
}

struct Block {
  const Kernel& kernel;
  const void* const launch;
  const uint32_t number, count;
  uint64_t random;
  uint32_t lane = 0;
  void* scheduler = nullptr;
  uint8_t* stacks = take_stacks();
  Thread threads[THREADS] = {};
  // In the order of their turns.
  uint16_t order[THREADS];
  uint32_t over = 0;
  Engine engine;

  Block(const Kernel& kernel, const void* launch, uint32_t number, uint32_t count, uint32_t shared_bytes, uint64_t seed)
      : kernel(kernel), launch(launch), number(number), count(count), random(seed | 1), engine(shared_bytes, random) {}
  ~Block() { keep_stacks(stacks); }

  void run();
  void shuffle();
  bool turns();
  bool warps();
  bool open_barrier();
  bool serve(Thread* warp);
  void check_lines(const Thread* warp, State state);
  void pause(State state);
  bool vote(State state, bool condition);
  [[noreturn]] void stuck();
};

thread_local Block* current = nullptr;

// Keeps what a function has to leave as it was, and goes on where another stack was left.
extern "C" void oxccl_emulator_switch(void** left, void* to);
asm(R"(
.pushsection .text
.hidden oxccl_emulator_switch
.globl oxccl_emulator_switch
.type oxccl_emulator_switch, @function
oxccl_emulator_switch:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size oxccl_emulator_switch, .-oxccl_emulator_switch
.popsection
)");

void begin() {
  Block& block = *current;
  block.kernel.run(block.launch);
  ++block.over;
  block.pause(State::OVER);
  __builtin_unreachable();
}

// A stack on which `begin` is about to be called.
void* new_stack(uint8_t* end) {
  void** top = reinterpret_cast<void**>(end);
  *--top = nullptr;  // begin's return address: it does not return, and is aligned as if called
  *--top = reinterpret_cast<void*>(&begin);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  return top;
}

void Block::shuffle() {
  for (uint32_t i = THREADS - 1; i > 0; --i) {
    const uint32_t other = next_random(random) % (i + 1);
    const uint16_t swapped = order[i];
    order[i] = order[other];
    order[other] = swapped;
  }
}

void Block::pause(State state) {
  Thread& thread = threads[lane];
  thread.state = state;
  oxccl_emulator_switch(&thread.stack, scheduler);
}

bool Block::vote(State state, bool condition) {
  Thread& thread = threads[lane];
  thread.vote = condition;
  pause(state);
  return thread.vote;
}

// Gives each thread that can go on a turn. False if all of these only let others go first.
bool Block::turns() {
  bool moved = false;
  for (const uint16_t turn : order) {
    if (threads[turn].state != State::READY) continue;
    lane = turn;
    oxccl_emulator_switch(&scheduler, threads[turn].stack);
    moved |= threads[turn].state != State::READY;
  }
  return moved;
}

// A whole warp waits: loads and stores are done, each as one access of all its threads; else votes
// are told.
bool Block::serve(Thread* warp) {
  bool any = false, voted = false, accessed = false;
  for (uint32_t t = 0; t < WARP; ++t) {
    if (warp[t].state == State::READY) return false;
    voted |= warp[t].state == State::AT_VOTE;
    any |= warp[t].state == State::AT_VOTE && warp[t].vote;
  }
  // A line's flag is in its last share: stored last and loaded first, the line is whole.
  check_lines(warp, State::STORES);
  for (uint32_t t = 0; t < WARP; ++t) {
    if (warp[t].state != State::STORES) continue;
    uint64_t* to = reinterpret_cast<uint64_t*>(warp[t].at);
    __atomic_store_n(to, warp[t].words[0], __ATOMIC_RELEASE);
    __atomic_store_n(to + 1, warp[t].words[1], __ATOMIC_RELEASE);
    warp[t].state = State::READY;
    accessed = true;
  }
  if (accessed) return true;
  check_lines(warp, State::LOADS);
  for (uint32_t t = WARP; t-- > 0;) {
    if (warp[t].state != State::LOADS) continue;
    const uint64_t* from = reinterpret_cast<const uint64_t*>(warp[t].at);
    warp[t].words[1] = __atomic_load_n(from + 1, __ATOMIC_ACQUIRE);
    warp[t].words[0] = __atomic_load_n(from, __ATOMIC_ACQUIRE);
    warp[t].state = State::READY;
    accessed = true;
  }
  if (accessed || !voted) return accessed;
  for (uint32_t t = 0; t < WARP; ++t) {
    if (warp[t].state != State::AT_VOTE) stuck();
    warp[t].vote = any;
    warp[t].state = State::READY;
  }
  return true;
}

// Of eight threads that access a line, all do: else it is no single access, and not whole. One that
// accesses a share of another line has a header.
void Block::check_lines(const Thread* warp, State state) {
  constexpr uint32_t SHARES = 8, SHARE = 16;
  for (uint32_t first = 0; first < WARP; first += SHARES) {
    uintptr_t lines[SHARES];
    for (uint32_t t = 0; t < SHARES; ++t)
      lines[t] = warp[first + t].state == state ? uintptr_t(warp[first + t].at) - t * SHARE : 0;
    for (const uintptr_t line : lines) {
      const auto together = std::count(lines, lines + SHARES, line);
      if (line != 0 && together > 1 && together < SHARES) fail("threads of a line access it apart");
    }
  }
}

bool Block::warps() {
  bool served = false;
  for (uint32_t first = 0; first < THREADS; first += WARP) served |= serve(&threads[first]);
  return served;
}

bool Block::open_barrier() {
  bool any = false;
  for (const Thread& thread : threads) {
    if (thread.state != State::AT_BARRIER) return false;
    any |= thread.vote;
  }
  for (Thread& thread : threads) {
    thread.vote = any;
    thread.state = State::READY;
  }
  order::meets();
  shuffle();
  return true;
}

void Block::stuck() {
  fprintf(stderr, "emulator: of the threads of block %u\n", number);
  const char* names[] = {"go on", "are at the barrier", "are at a vote", "load", "store", "have ended"};
  for (uint8_t state = 0; state < 6; ++state) {
    uint32_t count = 0, first = THREADS;
    for (uint32_t t = THREADS; t-- > 0;)
      if (threads[t].state == State(state)) ++count, first = t;
    if (count > 0) fprintf(stderr, "emulator:   %u %s, the first is %u\n", count, names[state], first);
  }
  fail("threads wait for others that wait elsewhere");
}

void Block::run() {
  for (uint32_t t = 0; t < THREADS; ++t) {
    threads[t].stack = new_stack(stacks + (t + 1) * STACK_BYTES);
    threads[t].state = State::READY;
    order[t] = uint16_t(t);
  }
  shuffle();
  current = this;
  uint32_t idle = 0;
  while (over < THREADS) {
    const bool moved = turns();
    if (moved | warps() | open_barrier()) {
      idle = 0;
      continue;
    }
    bool waits = false;
    for (const Thread& thread : threads) waits |= thread.state == State::READY;
    if (over < THREADS && !waits) stuck();
    // All wait for other blocks, or for the host.
    const timespec nap = {0, 100000};
    if (++idle < 4) sched_yield();
    else nanosleep(&nap, nullptr);
  }
  if (!engine.is_idle()) fail("a block ends with bulk copies under way");
  current = nullptr;
}

const Kernel* find(const char* name) {
  const Kernel* (*const kinds[])(const char*) = {find_kernel, find_traced, find_hot, find_guest};
  for (const auto find_one : kinds)
    if (const Kernel* kernel = find_one(name)) return kernel;
  return nullptr;
}

}  // namespace

uint32_t lane() { return current->lane; }
uint32_t block() { return current->number; }
uint32_t blocks() { return current->count; }
void yield() { current->pause(State::READY); }
bool barrier(bool condition) { return current->vote(State::AT_BARRIER, condition); }
bool any_of_warp(bool condition) { return current->vote(State::AT_VOTE, condition); }

void load_together(const uint8_t* at, uint64_t* into) {
  order::note_strong(at, 16, false);
  Thread& thread = current->threads[current->lane];
  thread.at = const_cast<uint8_t*>(at);
  current->pause(State::LOADS);
  into[0] = thread.words[0];
  into[1] = thread.words[1];
}

void store_together(uint8_t* at, uint64_t low, uint64_t high) {
  order::note_strong(at, 16, true);
  Thread& thread = current->threads[current->lane];
  thread.at = at;
  thread.words[0] = low;
  thread.words[1] = high;
  current->pause(State::STORES);
}

uint32_t shared_address(const void* at) { return current->engine.address_of(at); }
uint32_t stage_memory() { return Engine::STAGES; }
uint32_t stage_memory_bytes() { return current->engine.len_bytes(); }
void stage_barrier_init(uint32_t barrier) { current->engine.init(barrier); }
void stage_barrier_inval(uint32_t barrier) { current->engine.inval(barrier); }
void stage_expect(uint32_t barrier, uint32_t len_bytes) { current->engine.expect(barrier, len_bytes); }
bool stage_is_there(uint32_t barrier, uint32_t parity) {
  yield();
  const bool there = current->engine.is_there(barrier, parity);
  if (there) order::engine_loaded();
  return there;
}
void stage_load(uint32_t stage, const uint8_t* from, uint32_t len_bytes, uint32_t barrier) {
  order::engine_loads(from, len_bytes);
  current->engine.load(stage, from, len_bytes, barrier);
}
void stage_store(uint8_t* to, uint32_t stage, uint32_t len_bytes) {
  order::engine_stores(to, len_bytes);
  current->engine.store(to, stage, len_bytes);
}
void stage_stores_commit() { current->engine.commit(); }
void stage_stores_read_but_last() { current->engine.read_but_last(); }
void stage_stores_done() {
  current->engine.finish();
  order::engine_stored();
}

static std::atomic<uint64_t> switched_bytes;
void note_switched(uint32_t len_bytes) { switched_bytes += len_bytes; }

bool is_global(const void* at) {
  const auto within = [&](const void* start, size_t len_bytes) {
    return uintptr_t(at) - uintptr_t(start) < len_bytes;
  };
  return !current->kernel.is_shared(at) && !within(current->stacks, THREADS * STACK_BYTES);
}

void fail(const char* what) {
  fprintf(stderr, "emulator: %s\n", what);
  abort();
}

}  // namespace emulator

#ifdef OXCCL_MEMORY_ORDER
#define OXCCL_ENTRY_POINT extern "C" __attribute__((visibility("default")))
#else
#define OXCCL_ENTRY_POINT extern "C" __attribute__((visibility("hidden")))
#endif

// Runs a block of a kernel to its end, on a device, as one of a launch. False: there is no kernel
// of this name.
OXCCL_ENTRY_POINT bool oxccl_emulate(const char* name, const void* parameter, uint32_t number, uint32_t count,
                                     uint32_t shared_bytes, uint64_t seed, uint32_t device, uint64_t launch) {
  const emulator::Kernel* kernel = emulator::find(name);
  if (kernel == nullptr) return false;
  kernel->spoil();
  emulator::Block block(*kernel, parameter, number, count, shared_bytes, seed);
  emulator::order::begins(&block.lane, device, launch, seed);
  block.run();
  emulator::order::ends();
  return true;
}

// The bytes that loads from all members of a team have given so far.
extern "C" __attribute__((visibility("hidden"))) uint64_t oxccl_emulator_switched_bytes() {
  return emulator::switched_bytes;
}
