// The engine for bulk asynchronous copies of a block, as one of its threads sees it.
//
// What it has been told to do it does at some time until it must have: so that a stage that is
// filled again too early, read too early, or given back with copies under way shows itself.
#pragma once
#include <deque>
#include <map>
#include <vector>

#include "cuda.h"

namespace emulator {

class Engine {
 public:
  Engine(uint32_t len_bytes, uint64_t& random) : memory(len_bytes, 0xa5), random(random) {}

  // Shared memory by numbers: what is the block's, from here on, and the stages far behind it.
  static constexpr uint32_t TABLES = 0x1000, STAGES = 0x100000;

  uint32_t len_bytes() const { return uint32_t(memory.size()); }

  uint32_t address_of(const void* at) {
    if (tables == nullptr) tables = at;
    return TABLES + uint32_t(uintptr_t(at) - uintptr_t(tables));
  }

  void init(uint32_t barrier) {
    check(barriers.count(barrier) == 0, "a barrier is made that is there");
    barriers[barrier] = {};
  }

  void inval(uint32_t barrier) {
    check(find(barrier).expected == 0, "a barrier goes before its bytes have come");
    barriers.erase(barrier);
  }

  void expect(uint32_t barrier, uint32_t len_bytes) {
    Barrier& of = find(barrier);
    check(of.expected == 0, "a stage is loaded before its barrier has turned");
    of.expected = len_bytes;
  }

  bool is_there(uint32_t barrier, uint32_t parity) {
    // The first looks are often too early.
    if (chance() && chance())
      while (!loads.empty() && loads.front().barrier != barrier) load_one();
    if (chance() && !loads.empty()) load_one();
    return (find(barrier).turns & 1) != parity;
  }

  void load(uint32_t stage, const uint8_t* from, uint32_t len_bytes, uint32_t barrier) {
    check_copy(stage, from, len_bytes);
    for (const Store& store : stores)
      check(store.stage != stage || store.is_read, "a stage is filled before it has been read");
    loads.push_back({stage, len_bytes, barrier, from});
  }

  void store(uint8_t* to, uint32_t stage, uint32_t len_bytes) {
    check_copy(stage, to, len_bytes);
    for (const Load& load : loads) check(load.stage != stage, "a stage is read before it is filled");
    stores.push_back({stage, len_bytes, groups, to, false, {}});
    if (chance()) read(stores[random % stores.size()]);
  }

  void commit() { ++groups; }

  void read_but_last() {
    for (Store& store : stores) {
      check(store.group < groups, "a store is of no group");
      if (store.group + 1 < groups) read(store);
    }
    while (!stores.empty() && stores.front().is_read && chance()) write_one();
  }

  void finish() {
    for (Store& store : stores) read(store);
    while (!stores.empty()) write_one();
  }

  bool is_idle() const { return barriers.empty() && loads.empty() && stores.empty(); }

 private:
  struct Barrier {
    uint64_t turns;
    uint32_t expected;
  };
  struct Load {
    uint32_t stage, len_bytes, barrier;
    const uint8_t* from;
  };
  struct Store {
    uint32_t stage, len_bytes, group;
    uint8_t* to;
    bool is_read;
    std::vector<uint8_t> bytes;
  };

  std::vector<uint8_t> memory;
  uint64_t& random;
  const void* tables = nullptr;
  std::map<uint32_t, Barrier> barriers;
  std::deque<Load> loads;
  std::deque<Store> stores;
  uint32_t groups = 0;

  static void check(bool holds, const char* what) {
    if (!holds) fail(what);
  }

  bool chance() { return next_random(random) % 2 == 0; }

  Barrier& find(uint32_t barrier) {
    check(barriers.count(barrier) == 1, "there is no such barrier");
    return barriers[barrier];
  }

  void check_copy(uint32_t stage, const void* global, uint32_t len_bytes) const {
    check(stage % 16 == 0 && uintptr_t(global) % 16 == 0 && len_bytes % 16 == 0, "a bulk copy is not at 16 bytes");
    check(stage >= STAGES && stage - STAGES + len_bytes <= memory.size(), "a bulk copy leaves the shared memory");
  }

  uint8_t* at(uint32_t stage) { return memory.data() + (stage - STAGES); }

  void load_one() {
    const Load load = loads.front();
    loads.pop_front();
    memcpy(at(load.stage), load.from, load.len_bytes);
    Barrier& barrier = find(load.barrier);
    check(barrier.expected == load.len_bytes, "other bytes come than a barrier expects");
    barrier.expected = 0;
    ++barrier.turns;
  }

  void read(Store& store) {
    if (store.is_read) return;
    store.bytes.assign(at(store.stage), at(store.stage) + store.len_bytes);
    store.is_read = true;
  }

  void write_one() {
    memcpy(stores.front().to, stores.front().bytes.data(), stores.front().len_bytes);
    stores.pop_front();
  }
};

}  // namespace emulator
