// What a GPU's memory model promises, kept account of while blocks run: in the library that is made
// with OXCCL_MEMORY_ORDER.
//
//     each thread knows of accesses that happened before where it is: a clock
//       barrier of a block       all know what each of them knew, and what each has done
//       release, or fence and then a store     the word carries what the thread knows and has done
//       acquire, or load and then a fence      the thread knows what the word carries
//       end of a launch          launches that begin later know what it has done
//     plain access               must know every access of others to these bytes that it conflicts with
//     load of a shared word      gives any value that the thread may still see, not only the last one
//
// So a plain access without its order is found wherever it happens, whatever value it would have
// seen in this run; where there is none, plain loads can see one value only, the one they give
// here. Words that are shared on purpose (volatile, relaxed, acquire, release) conflict with plain
// accesses alone, and show old values as often as new ones. The model is PTX's: fences and words
// have a scope, the engine for bulk copies and multicast addresses see memory in ways of their own,
// with fences of their own. Memory is known by where it is, not by its address: it may have
// several.
//
// Plain accesses come from the compiler: the kernels are compiled for a thread sanitizer, and these
// are its functions. What is shared between the threads of a block alone is not looked at.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "memory.h"
#include "order.h"

#define OXCCL_EXPORTED extern "C" __attribute__((visibility("default")))

namespace emulator {
namespace {

using order::Clock;
using order::Known;
using order::View;

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
bool is_of_device(uint64_t key) { return key >> 63; }
uint32_t (*find_ranges)(Range* into, uint32_t room) = nullptr;

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
  const uint32_t* lane;
  std::vector<Range> ranges;
  // What was found last, and where nothing was.
  Range last = {};
  std::array<Gap, 4> gaps = {};
  uint32_t next_gap = 0;
  std::array<Actor, ACTORS> actors;

  // Makes what this actor has done known with what it knows.
  View release(uint32_t actor) {
    Actor& own = actors[actor];
    const View released = with(own.view, {number, 0, {{uint16_t(actor), own.time}}});
    ++own.time;
    return released;
  }
};

thread_local Account* account = nullptr;

constexpr uint8_t WRITE = 1, STRONG = 2;

struct Access {
  uint32_t block, epoch, time;
  uint16_t actor;
  uint8_t bytes;  // of eight, a bit each
  uint8_t kind;
  const void* place;
};

struct Page {
  std::array<std::vector<Access>, 512> granules;
};
constexpr uint64_t PAGE_BYTES = 4096;

struct Shard {
  std::mutex turn;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;  // by number
};
std::array<Shard, 64> shards;
Shard& shard_of(uint64_t page) { return shards[page % shards.size()]; }

struct Store {
  uint64_t number, value;
  View carries;
  uint32_t device;  // of a narrower scope than the system
  bool narrow;
  uint32_t block, epoch, time;
  uint16_t actor;
};

// What is not in the shards, for one thread at a time.
std::mutex turn;
std::unordered_map<uint64_t, std::vector<Store>> words;
uint64_t next_store = 1;
// Of blocks: when their launch had ended; 0: it has not.
constexpr uint32_t MOST_BLOCKS = 1 << 20;
std::array<std::atomic<uint64_t>, MOST_BLOCKS> ends_of_blocks;
uint32_t blocks = 0;
struct Launched {
  std::vector<uint32_t> blocks;
  View begin, end;
};
std::unordered_map<uint64_t, Launched> launches;
uint64_t moment = 1;
// What the host knows: what launches that have ended knew, and all that they have done.
View host = std::make_shared<Clock>();

bool knows(const Clock& clock, uint32_t block, uint32_t epoch, uint16_t actor, uint32_t time) {
  const uint64_t end = ends_of_blocks[block];
  if (end != 0 && end <= clock.ended) return true;
  const Known* known = clock.find(block);
  if (known == nullptr) return false;
  // What acts beside the threads does not come to their barriers.
  if ((actor < THREADS || actor == SEVERAL) && known->epoch > epoch) return true;
  const auto at = std::lower_bound(known->actors.begin(), known->actors.end(), std::make_pair(actor, 0u));
  return at != known->actors.end() && at->first == actor && at->second >= time;
}

uint32_t new_block() {
  if (blocks == MOST_BLOCKS) fail("more blocks than there is room for");
  return blocks++;
}

// The place of an address, if it is memory of the devices.
bool find(Account& own, const void* at, uint64_t* key) {
  const uint64_t address = uint64_t(at);
  if (address - own.last.start < own.last.len_bytes) {
    *key = own.last.key + (address - own.last.start);
    return true;
  }
  for (const Gap& gap : own.gaps)
    if (address - gap.start < gap.len_bytes) return false;
  const auto behind = std::upper_bound(own.ranges.begin(), own.ranges.end(), address,
                                       [](uint64_t address, const Range& range) { return address < range.start; });
  if (behind != own.ranges.begin() && address - behind[-1].start < behind[-1].len_bytes) {
    own.last = behind[-1];
    return find(own, at, key);
  }
  // Stacks and what a block shares lie in gaps.
  const uint64_t start = behind == own.ranges.begin() ? 0 : behind[-1].start + behind[-1].len_bytes;
  const uint64_t end = behind == own.ranges.end() ? ~uint64_t(0) : behind->start;
  own.gaps[own.next_gap++ % own.gaps.size()] = {start, end - start};
  return false;
}

// The line of the source behind an instruction, and what it was inlined into.
std::string line_of(const void* place) {
  Dl_info info;
  if (dladdr(place, &info) == 0) return "?";
  char command[512], text[512];
  snprintf(command, sizeof(command), "addr2line -i -e '%s' 0x%lx 2>/dev/null", info.dli_fname,
           (unsigned long)(uint64_t(place) - uint64_t(info.dli_fbase) - 1));
  FILE* lines = popen(command, "r");
  if (lines == nullptr) return "?";
  std::string all;
  for (int line = 0; line < 5 && fgets(text, sizeof(text), lines) != nullptr; ++line) {
    std::string one(text);
    one = one.substr(0, one.find_first_of("\n ("));
    const size_t folder = one.rfind('/');
    all += (line == 0 ? "" : " < ") + (folder == std::string::npos ? one : one.substr(folder + 1));
  }
  pclose(lines);
  return all;
}

const char* name_of(uint8_t kind) {
  const char* names[] = {"loads", "stores", "loads as a shared word", "stores as a shared word"};
  return names[kind];
}

[[noreturn]] void race(const Access& now, const Access& before, uint64_t key) {
  fprintf(stderr, "emulator: nothing orders two accesses to the same memory, at %llx\n", (unsigned long long)key);
  for (const Access* access : {&before, &now}) {
    const char* const when = access == &now ? "now" : "before";
    if (access->place == nullptr) {
      fprintf(stderr, "emulator:   %s: the host %s\n", when, name_of(access->kind));
      continue;
    }
    const char* const beside[] = {"the engine (loads)", "the engine (stores)", "multicast"};
    const uint32_t actor = access->actor;
    const std::string who = actor < THREADS    ? "thread " + std::to_string(actor)
                            : actor == SEVERAL ? "several threads"
                                               : beside[actor - THREADS];
    fprintf(stderr, "emulator:   %s: %s of block %u %s, in %s\n", when, who.c_str(), access->block,
            name_of(access->kind), line_of(access->place).c_str());
  }
  abort();
}

void note(Account& own, const void* at, uint32_t len_bytes, uint8_t kind, uint32_t actor, const void* place) {
  uint64_t key;
  if (!find(own, at, &key)) return;
  const Clock& view = *own.actors[actor].view;
  for (uint64_t end = key + len_bytes; key < end;) {
    const uint64_t granule = key / 8, here = std::min(end, (granule + 1) * 8) - key;
    const uint8_t bytes = uint8_t(((1u << here) - 1) << key % 8);
    Shard& shard = shard_of(granule / 512);
    std::lock_guard<std::mutex> lock(shard.turn);
    std::unique_ptr<Page>& page = shard.pages[granule / 512];
    if (page == nullptr) page = std::make_unique<Page>();
    std::vector<Access>& accesses = page->granules[granule % 512];
    Access now = {own.number, own.epoch, own.actors[actor].time, uint16_t(actor), bytes, kind, place};
    const auto is_alike = [&](const Access& before) {
      return before.block == now.block && before.epoch == now.epoch && before.kind == kind && before.bytes == bytes;
    };
    key += here;
    if (kind == 0 && actor < THREADS) {
      const size_t alike = std::count_if(accesses.begin(), accesses.end(), is_alike);
      if (alike == 1 && std::find_if(accesses.begin(), accesses.end(), is_alike)->actor == SEVERAL) continue;
      constexpr size_t MANY = 4;
      if (alike >= MANY) {
        accesses.erase(std::remove_if(accesses.begin(), accesses.end(), is_alike), accesses.end());
        now.actor = SEVERAL;
      }
    }
    size_t kept = 0;
    for (const Access& before : accesses) {
      const bool is_own = before.block == own.number && before.actor == actor;
      const bool is_known = is_own || knows(view, before.block, before.epoch, before.actor, before.time);
      const bool conflicts = (before.kind | kind) & WRITE && !(before.kind & kind & STRONG) && before.bytes & bytes;
      if (conflicts && !is_known) race(now, before, granule * 8);
      // Whoever does not know this one does not know the one before it.
      const bool covered = is_known && !(before.bytes & ~bytes) && (kind & WRITE || !(before.kind & WRITE)) &&
                           (before.kind & STRONG) >= (kind & STRONG);
      if (!covered) accesses[kept++] = before;
    }
    accesses.resize(kept);
    accesses.push_back(now);
  }
}

// Not before the lock is held. A word that somebody else has written, the host or a copy, carries
// what the host knows.
std::vector<Store>& word_at(uint64_t key, uint64_t now) {
  std::vector<Store>& stores = words[key];
  if (stores.empty() || stores.back().value != now)
    stores.push_back({next_store++, now, host, 0, false, ~0u, 0, 0, 0});
  constexpr size_t REMEMBERED = 6;
  if (stores.size() > REMEMBERED) stores.erase(stores.begin(), stores.end() - REMEMBERED);
  return stores;
}

uint64_t read_word(const void* word, uint32_t len_bytes) {
  return len_bytes == 8 ? __atomic_load_n(static_cast<const uint64_t*>(word), __ATOMIC_ACQUIRE)
                        : __atomic_load_n(static_cast<const uint32_t*>(word), __ATOMIC_ACQUIRE);
}
void write_word(void* word, uint32_t len_bytes, uint64_t value) {
  if (len_bytes == 8) __atomic_store_n(static_cast<uint64_t*>(word), value, __ATOMIC_RELEASE);
  else __atomic_store_n(static_cast<uint32_t*>(word), uint32_t(value), __ATOMIC_RELEASE);
}

bool reaches(const Store& store) { return !store.narrow || store.device == account->device; }

void remember(std::vector<Store>& stores, uint64_t value, const View& carries, bool narrow, uint32_t actor) {
  const Account& own = *account;
  stores.push_back({next_store++, value, carries, own.device, narrow, own.number, own.epoch,
                    own.actors[actor].time, uint16_t(actor)});
}

}  // namespace

uint64_t ordered_load(const void* word, uint32_t len_bytes, Order order) {
  yield();
  uint64_t key;
  if (!find(*account, word, &key)) return read_word(word, len_bytes);
  note(*account, word, len_bytes, STRONG, lane(), __builtin_return_address(0));
  std::lock_guard<std::mutex> lock(turn);
  Account& own = *account;
  Actor& actor = own.actors[lane()];
  const std::vector<Store>& stores = word_at(key, read_word(word, len_bytes));
  // The oldest that it may see.
  size_t first = 0;
  uint64_t& seen = actor.seen[key];
  for (size_t s = 0; s < stores.size(); ++s) {
    const Store& store = stores[s];
    const bool is_own = store.block == own.number && store.actor == lane();
    const bool is_known =
        store.block != ~0u && (is_own || knows(*actor.view, store.block, store.epoch, store.actor, store.time));
    if (store.number <= seen || is_known) first = s;
  }
  const uint64_t chance = next_random(own.random);
  const Store& store = chance % 2 == 0 ? stores.back() : stores[first + chance / 2 % (stores.size() - first)];
  seen = store.number;
  if (store.carries != nullptr && reaches(store)) {
    View& to = order == Order::ACQUIRE ? actor.view : actor.pending;
    to = joined(to, store.carries);
  }
  return store.value;
}

void ordered_store(void* word, uint32_t len_bytes, uint64_t value, Order order) {
  note(*account, word, len_bytes, WRITE | STRONG, lane(), __builtin_return_address(0));
  std::lock_guard<std::mutex> lock(turn);
  uint64_t key;
  if (find(*account, word, &key)) {
    std::vector<Store>& stores = word_at(key, read_word(word, len_bytes));
    const bool releases = order == Order::RELEASE;
    const View carried = releases ? account->release(lane()) : account->actors[lane()].released;
    remember(stores, value, carried, false, lane());
    // The host may look at its own memory whenever it wants to.
    if (releases && !is_of_device(key)) host = joined(host, carried);
  }
  write_word(word, len_bytes, value);
}

// Relaxed, of one device.
uint32_t exchange(uint32_t* word, uint32_t value) {
  note(*account, word, 4, WRITE | STRONG, lane(), __builtin_return_address(0));
  std::lock_guard<std::mutex> lock(turn);
  uint64_t key;
  const uint32_t before = __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
  if (find(*account, word, &key)) remember(words[key], value, account->actors[lane()].released, true, lane());
  return before;
}

// Of one device.
uint32_t increment(uint32_t* word, bool ordered) {
  note(*account, word, 4, WRITE | STRONG, lane(), __builtin_return_address(0));
  std::lock_guard<std::mutex> lock(turn);
  uint64_t key;
  const uint32_t before = uint32_t(read_word(word, 4));
  if (find(*account, word, &key)) {
    std::vector<Store>& stores = word_at(key, before);
    Actor& actor = account->actors[lane()];
    const View carried = reaches(stores.back()) ? stores.back().carries : nullptr;
    if (ordered) actor.view = joined(actor.view, carried);
    else actor.pending = joined(actor.pending, carried);
    // It carries on what the one before it carries.
    remember(stores, before + 1, joined(ordered ? account->release(lane()) : actor.released, carried), true, lane());
  }
  write_word(word, 4, before + 1);
  return before + 1;
}

void fence() {
  std::lock_guard<std::mutex> lock(turn);
  Actor& actor = account->actors[lane()];
  actor.view = joined(actor.view, actor.pending);
  actor.pending = nullptr;
  actor.released = account->release(lane());
}

// From what the block's threads have done to what `beside` does next, and back from what it has
// done.
static void fence_between(uint32_t beside, uint32_t done) {
  std::lock_guard<std::mutex> lock(turn);
  Account& own = *account;
  Actor& actor = own.actors[lane()];
  own.actors[beside].view = joined(own.actors[beside].view, own.release(lane()));
  actor.view = with(actor.view, {own.number, 0, {{uint16_t(beside), done}}});
}

void fence_of_names() { fence_between(NAMES, account->actors[NAMES].time++); }

// Of stores, those that are known to be over: engine_stored counts them.
void engine_fence() {
  fence_between(ENGINE_STORES, account->actors[ENGINE_STORES].time - 1);
  account->actors[ENGINE_LOADS].view = account->actors[ENGINE_STORES].view;
}

void load_named(void* into, const uint8_t* at, uint32_t len_bytes) {
  note(*account, at, len_bytes, STRONG, NAMES, __builtin_return_address(0));
  memcpy(into, at, len_bytes);
}
void store_named(uint8_t* at, const void* from, uint32_t len_bytes) {
  note(*account, at, len_bytes, WRITE | STRONG, NAMES, __builtin_return_address(0));
  memcpy(at, from, len_bytes);
}

namespace order {

void begins(const uint32_t* lane, uint32_t device, uint64_t launch, uint64_t seed) {
  auto own = std::make_unique<Account>();
  own->lane = lane;
  own->device = device;
  own->random = seed | 1;
  own->ranges.resize(4096);
  const uint32_t count = find_ranges(own->ranges.data(), uint32_t(own->ranges.size()));
  if (count > own->ranges.size()) fail("more ranges of memory than there is room for");
  own->ranges.resize(count);
  std::lock_guard<std::mutex> lock(turn);
  own->number = new_block();
  Launched& of = launches.at(launch);
  of.blocks.push_back(own->number);
  own->launch = launch;
  for (Actor& actor : own->actors) actor.view = of.begin;
  account = own.release();
}

void ends() {
  std::lock_guard<std::mutex> lock(turn);
  View& end = launches.at(account->launch).end;
  for (const Actor& actor : account->actors) end = joined(end, actor.view);
  delete account;
  account = nullptr;
}

void meets() {
  std::lock_guard<std::mutex> lock(turn);
  Account& own = *account;
  std::vector<View> views;
  for (uint32_t t = 0; t < THREADS; ++t)
    if (std::find(views.begin(), views.end(), own.actors[t].view) == views.end()) views.push_back(own.actors[t].view);
  auto all = std::make_shared<Clock>(*views[0]);
  for (size_t v = 1; v < views.size(); ++v) join(*all, *views[v]);
  ++own.epoch;
  Clock met;
  met.blocks.push_back({own.number, own.epoch, {}});
  join(*all, met);
  // The epoch says what all of the block's threads have done.
  for (Known& known : all->blocks)
    if (known.block == own.number)
      known.actors.erase(known.actors.begin(), std::lower_bound(known.actors.begin(), known.actors.end(),
                                                                std::make_pair(uint16_t(THREADS), 0u)));
  for (uint32_t t = 0; t < THREADS; ++t) own.actors[t].view = all;
}

void note_strong(const void* at, uint32_t len_bytes, bool write) {
  note(*account, at, len_bytes, uint8_t(STRONG | (write ? WRITE : 0)), lane(), __builtin_return_address(0));
}
void engine_loads(const void* at, uint32_t len_bytes) {
  note(*account, at, len_bytes, 0, ENGINE_LOADS, __builtin_return_address(0));
}
void engine_stores(const void* at, uint32_t len_bytes) {
  note(*account, at, len_bytes, WRITE, ENGINE_STORES, __builtin_return_address(0));
}
void engine_loaded() {
  std::lock_guard<std::mutex> lock(turn);
  Account& own = *account;
  Actor& actor = own.actors[lane()];
  actor.view = with(actor.view, {own.number, 0, {{uint16_t(ENGINE_LOADS), own.actors[ENGINE_LOADS].time}}});
  ++own.actors[ENGINE_LOADS].time;
}
void engine_stored() { ++account->actors[ENGINE_STORES].time; }

}  // namespace order
}  // namespace emulator

// The stand-in's side.

OXCCL_EXPORTED void oxccl_order_open(uint32_t (*ranges)(emulator::Range*, uint32_t)) { emulator::find_ranges = ranges; }

OXCCL_EXPORTED uint64_t oxccl_order_begin_launch() {
  using namespace emulator;
  static uint64_t count = 0;
  std::lock_guard<std::mutex> lock(turn);
  launches[++count].begin = host;
  return count;
}

OXCCL_EXPORTED void oxccl_order_end_launch(uint64_t launch) {
  using namespace emulator;
  std::lock_guard<std::mutex> lock(turn);
  ++moment;
  const Launched& ended = launches.at(launch);
  for (const uint32_t block : ended.blocks) ends_of_blocks[block] = moment;
  auto known = std::make_shared<Clock>(*joined(host, ended.end));
  known->ended = moment;
  // Those are known by when they ended.
  const auto is_over = [](const Known& one) { return ends_of_blocks[one.block] != 0; };
  known->blocks.erase(std::remove_if(known->blocks.begin(), known->blocks.end(), is_over), known->blocks.end());
  host = known;
  launches.erase(launch);
}

// The host, or a copy, is about to access memory, or it is given back: what blocks that still run
// have done there must be known. Launches that begin later know of what was written.
enum class Host : uint32_t { LOADS, STORES, GIVES_BACK };

OXCCL_EXPORTED void oxccl_order_host(uint64_t key, uint64_t len_bytes, Host what) {
  using namespace emulator;
  std::lock_guard<std::mutex> lock(turn);
  const uint64_t end = key + len_bytes;
  const bool loads = what == Host::LOADS;
  // As a launch of one block, which is over.
  const uint32_t number = what == Host::STORES ? new_block() : 0;
  const auto look_at = [&](uint64_t start, Page& page) {
    for (uint64_t granule = 0; granule < 512; ++granule) {
      const uint64_t at = start + granule * 8;
      if (at >= end || at + 8 <= key) continue;
      const uint64_t from = std::max(at, key) - at, to = std::min(at + 8, end) - at;
      const uint8_t bytes = uint8_t((0xffu << from) & (0xffu >> (8 - to)));
      const auto is_gone = [&](const Access& before) {
        const bool conflicts = (before.kind & WRITE || !loads) && !(before.kind & STRONG) && before.bytes & bytes;
        if (conflicts && !knows(*host, before.block, before.epoch, before.actor, before.time))
          race({0, 0, 0, 0, bytes, uint8_t(loads ? 0 : WRITE), nullptr}, before, at);
        return !loads && !(before.bytes & ~bytes);
      };
      std::vector<Access>& accesses = page.granules[granule];
      accesses.erase(std::remove_if(accesses.begin(), accesses.end(), is_gone), accesses.end());
      if (what == Host::STORES) accesses.push_back({number, 0, 1, 0, bytes, WRITE, nullptr});
    }
  };
  for (uint64_t page_number = key / PAGE_BYTES; page_number * PAGE_BYTES < end; ++page_number) {
    Shard& shard = shard_of(page_number);
    std::lock_guard<std::mutex> lock(shard.turn);
    if (what == Host::STORES && shard.pages[page_number] == nullptr)
      shard.pages[page_number] = std::make_unique<Page>();
    const auto page = shard.pages.find(page_number);
    if (page != shard.pages.end()) look_at(page_number * PAGE_BYTES, *page->second);
  }
  for (auto word = words.begin(); !loads && word != words.end();)
    word = word->first >= key && word->first < end ? words.erase(word) : std::next(word);
  if (what != Host::STORES) return;
  ends_of_blocks[number] = ++moment;
  auto known = std::make_shared<Clock>(*host);
  known->ended = moment;
  host = known;
}

// A stream has waited for the word's value.
OXCCL_EXPORTED void oxccl_order_awaited(uint64_t key) {
  using namespace emulator;
  std::lock_guard<std::mutex> lock(turn);
  const auto found = words.find(key);
  if (found != words.end() && !found->second.empty()) host = joined(host, found->second.back().carries);
}

// It is other memory from now on.
OXCCL_EXPORTED void oxccl_order_forget(uint64_t key, uint64_t len_bytes) {
  using namespace emulator;
  std::lock_guard<std::mutex> lock(turn);
  for (uint64_t number = key / PAGE_BYTES; number * PAGE_BYTES < key + len_bytes; ++number) {
    Shard& shard = shard_of(number);
    std::lock_guard<std::mutex> lock(shard.turn);
    shard.pages.erase(number);
  }
  for (auto word = words.begin(); word != words.end();)
    word = word->first >= key && word->first < key + len_bytes ? words.erase(word) : std::next(word);
}

// The thread sanitizer's functions: they are called in front of each access.
static void note_plain(const void* at, size_t len_bytes, uint8_t kind, const void* place) {
  // What is not a block's thread fills its shared memory.
  emulator::Account* const own = emulator::account;
  if (own != nullptr) emulator::note(*own, at, uint32_t(len_bytes), kind, *own->lane, place);
}

#define OXCCL_PLAIN(name, kind, len_bytes) \
  extern "C" void name##len_bytes(void* at) { note_plain(at, len_bytes, kind, __builtin_return_address(0)); }
#define OXCCL_PLAIN_OF(len_bytes)                              \
  OXCCL_PLAIN(__tsan_read, 0, len_bytes)                       \
  OXCCL_PLAIN(__tsan_write, emulator::WRITE, len_bytes)        \
  OXCCL_PLAIN(__tsan_unaligned_read, 0, len_bytes)             \
  OXCCL_PLAIN(__tsan_unaligned_write, emulator::WRITE, len_bytes) \
  extern "C" void __tsan_volatile_read##len_bytes(void*) {}    \
  extern "C" void __tsan_volatile_write##len_bytes(void*) {}

OXCCL_PLAIN_OF(1)
OXCCL_PLAIN_OF(2)
OXCCL_PLAIN_OF(4)
OXCCL_PLAIN_OF(8)
OXCCL_PLAIN_OF(16)

extern "C" void __tsan_read_range(void* at, size_t len_bytes) {
  note_plain(at, len_bytes, 0, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* at, size_t len_bytes) {
  note_plain(at, len_bytes, emulator::WRITE, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
