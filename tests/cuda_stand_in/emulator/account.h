// Who knows what of which accesses: see order.cpp.
#pragma once
#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "cuda.h"

namespace emulator {
namespace order {

// Threads of a block, and what acts for it beside them. Where many threads have read the same, they
// are one: known, once all of the block are.
constexpr uint32_t THREADS = blockDim.x, ENGINE_LOADS = THREADS, ENGINE_STORES = THREADS + 1, NAMES = THREADS + 2,
                   ACTORS = THREADS + 3, SEVERAL = ACTORS;

// Where memory of the devices is: `key` is its place, whatever addresses it has.
struct Range {
  uint64_t start, len_bytes, key;
};
struct Gap {
  uint64_t start, len_bytes;
};
// The host's memory is known by its address.
inline bool is_of_device(uint64_t key) { return key >> 63; }

struct Actor {
  View view;      // what it knows
  View released;  // and knew, with what it had done, at its last fence
  View pending;   // what its loads since then would let it know
  uint32_t time = 1;
  // Of words, the newest value that it has seen.
  std::unordered_map<uint64_t, uint64_t> seen;
};

struct Account {
  uint32_t number, device, epoch = 0;
  uint64_t launch, random;
  uint64_t begun;  // the moment
  const uint32_t* lane;
  std::vector<Range> ranges;
  // What was found last, and where nothing was.
  Range last = {};
  std::array<Gap, 4> gaps = {};
  uint32_t next_gap = 0;
  std::array<Actor, ACTORS> actors;

  // The place of an address, if it is memory of the devices.
  bool find(const void* at, uint64_t* key);

  // Makes what this actor has done known with what it knows.
  View release(uint32_t actor) {
    Actor& own = actors[actor];
    const View released = with(own.view, {number, 0, {{uint16_t(actor), own.time}}});
    ++own.time;
    return released;
  }
};

// Of the block that this thread of the system runs; null outside.
extern thread_local Account* account;

// What can be done with memory.
constexpr uint8_t WRITE = 1, STRONG = 2;

// An access, when it happened, and where in the code.
struct Access {
  uint32_t block, epoch, time;
  uint16_t actor;
  uint8_t bytes;  // of eight, a bit each
  uint8_t kind;
  const void* place;
};

// What the host, or a copy, does with memory.
enum class Host : uint32_t { LOADS, STORES, GIVES_BACK };

bool knows(const Clock& clock, uint32_t block, uint32_t epoch, uint16_t actor, uint32_t time);

// accesses.cpp. Ends the process at an access that nothing orders with another.
void note(Account& own, const void* at, uint32_t len_bytes, uint8_t kind, uint32_t actor, const void* place);
// As block `number`, if it stores.
void note_host(const Clock& host, uint64_t key, uint64_t len_bytes, Host what, uint32_t number);
void forget_accesses(uint64_t key, uint64_t len_bytes);

// words.cpp.
// What the stores to a word carry, the last one; null where there was none.
View carried_by(uint64_t key);
void forget_words(uint64_t key, uint64_t len_bytes);

// order.cpp. For one thread at a time: what is neither an account's nor an access.
extern std::mutex turn;
// How many launches have ended so far, and stores by the host.
extern uint64_t moment;
// What the host knows: what launches that have ended knew, and all that they have done.
extern View host;

}  // namespace order
}  // namespace emulator
