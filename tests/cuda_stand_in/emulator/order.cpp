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
#include <atomic>
#include <memory>
#include <mutex>

#include "account.h"
#include "order.h"

#define OXCCL_EXPORTED extern "C" __attribute__((visibility("default")))

namespace emulator {
namespace order {

thread_local Account* account = nullptr;
std::mutex turn;
uint64_t moment = 1;
View host = std::make_shared<Clock>();

namespace {

uint32_t (*find_ranges)(Range* into, uint32_t room) = nullptr;

// Of blocks: when their launch had ended; 0: it has not.
constexpr uint32_t MOST_BLOCKS = 1 << 20;
std::array<std::atomic<uint64_t>, MOST_BLOCKS> ends_of_blocks;
uint32_t blocks = 0;
struct Launched {
  std::vector<uint32_t> blocks;
  View begin, end;
};
std::unordered_map<uint64_t, Launched> launches;

uint32_t new_block() {
  if (blocks == MOST_BLOCKS) fail("more blocks than there is room for");
  return blocks++;
}

}  // namespace

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

bool Account::find(const void* at, uint64_t* key) {
  const uint64_t address = uint64_t(at);
  if (address - last.start < last.len_bytes) {
    *key = last.key + (address - last.start);
    return true;
  }
  for (const Gap& gap : gaps)
    if (address - gap.start < gap.len_bytes) return false;
  const auto behind = std::upper_bound(ranges.begin(), ranges.end(), address,
                                       [](uint64_t address, const Range& range) { return address < range.start; });
  if (behind != ranges.begin() && address - behind[-1].start < behind[-1].len_bytes) {
    last = behind[-1];
    return find(at, key);
  }
  // Stacks and what a block shares lie in gaps.
  const uint64_t start = behind == ranges.begin() ? 0 : behind[-1].start + behind[-1].len_bytes;
  const uint64_t end = behind == ranges.end() ? ~uint64_t(0) : behind->start;
  gaps[next_gap++ % gaps.size()] = {start, end - start};
  return false;
}

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
  own->begun = moment;
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

OXCCL_EXPORTED void oxccl_order_open(uint32_t (*ranges)(emulator::order::Range*, uint32_t)) { emulator::order::find_ranges = ranges; }

OXCCL_EXPORTED uint64_t oxccl_order_begin_launch() {
  using namespace emulator::order;
  static uint64_t count = 0;
  std::lock_guard<std::mutex> lock(turn);
  launches[++count].begin = host;
  return count;
}

OXCCL_EXPORTED void oxccl_order_end_launch(uint64_t launch) {
  using namespace emulator::order;
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
OXCCL_EXPORTED void oxccl_order_host(uint64_t key, uint64_t len_bytes, emulator::order::Host what) {
  using namespace emulator::order;
  std::lock_guard<std::mutex> lock(turn);
  // A store is a launch of one block, which is over.
  const bool stores = what == Host::STORES;
  const uint32_t number = stores ? new_block() : 0;
  note_host(*host, key, len_bytes, what, number);
  if (what != Host::LOADS) forget_words(key, len_bytes);
  if (!stores) return;
  ends_of_blocks[number] = ++moment;
  auto known = std::make_shared<Clock>(*host);
  known->ended = moment;
  host = known;
}

// A stream has waited for the word's value.
OXCCL_EXPORTED void oxccl_order_awaited(uint64_t key) {
  using namespace emulator::order;
  std::lock_guard<std::mutex> lock(turn);
  host = joined(host, carried_by(key));
}

// It is other memory from now on.
OXCCL_EXPORTED void oxccl_order_forget(uint64_t key, uint64_t len_bytes) {
  using namespace emulator::order;
  std::lock_guard<std::mutex> lock(turn);
  forget_accesses(key, len_bytes);
  forget_words(key, len_bytes);
}
