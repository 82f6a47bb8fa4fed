// Words that blocks share on purpose, with the values that they have had: a load gives one that its
// thread may still see, and what the store of it carries. Not those before one whose store it knows
// of, or of a load of which it knows. Nor those that were replaced some launches ago: flags that
// come again after very many messages rest on that (flagged.h).
#include <memory>

#include "account.h"
#include "memory.h"

namespace emulator {

using namespace order;

namespace {

// When a thread did something.
struct When {
  uint32_t block, epoch, time;
  uint16_t actor;

  bool is_known_to(const Clock& clock) const { return block != NOBODY && knows(clock, block, epoch, actor, time); }
  static constexpr uint32_t NOBODY = ~0u;
};

struct Store {
  uint64_t number, value;
  View carries;
  uint32_t device;  // of a narrower scope than the system
  bool narrow;
  When when;
  // Who has loaded it, each thread's first time.
  std::vector<When> loaded = {};
  uint64_t replaced = 0;  // by the next one, at this moment

  bool is_known_to(const Clock& clock) const {
    const auto is_known = [&](const When& one) { return one.is_known_to(clock); };
    return is_known(when) || std::any_of(loaded.begin(), loaded.end(), is_known);
  }
};

std::unordered_map<uint64_t, std::vector<Store>> words;
uint64_t next_store = 1;

constexpr uint64_t MOMENTS_SEEN_BACK = 4;

void replace(std::vector<Store>& stores, const Store& by) {
  if (!stores.empty()) stores.back().replaced = moment;
  stores.push_back(by);
}

// Not before the lock is held. A word that somebody else has written, the host or a copy, carries
// what the host knows.
std::vector<Store>& word_at(uint64_t key, uint64_t now) {
  std::vector<Store>& stores = words[key];
  if (stores.empty() || stores.back().value != now)
    replace(stores, {next_store++, now, host, 0, false, {When::NOBODY, 0, 0, 0}});
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

When now_of(const Account& own, uint32_t actor) {
  return {own.number, own.epoch, own.actors[actor].time, uint16_t(actor)};
}

bool reaches(const Store& store) { return !store.narrow || store.device == account->device; }

void remember(std::vector<Store>& stores, uint64_t value, const View& carries, bool narrow, uint32_t actor) {
  replace(stores, {next_store++, value, carries, account->device, narrow, now_of(*account, actor)});
}

}  // namespace

uint64_t ordered_load(const void* word, uint32_t len_bytes, Order order) {
  yield();
  uint64_t key;
  if (!account->find(word, &key)) return read_word(word, len_bytes);
  note(*account, word, len_bytes, STRONG, lane(), __builtin_return_address(0));
  std::lock_guard<std::mutex> lock(turn);
  Account& own = *account;
  Actor& actor = own.actors[lane()];
  std::vector<Store>& stores = word_at(key, read_word(word, len_bytes));
  // The oldest that it may see.
  size_t first = 0;
  uint64_t& seen = actor.seen[key];
  for (size_t s = 0; s < stores.size(); ++s) {
    const Store& store = stores[s];
    const bool is_own = store.when.block == own.number && store.when.actor == lane();
    if (store.number <= seen || is_own || store.is_known_to(*actor.view)) first = s;
    if (store.replaced != 0 && store.replaced + MOMENTS_SEEN_BACK <= own.begun) first = s + 1;
  }
  const uint64_t chance = next_random(own.random);
  Store& store = chance % 2 == 0 ? stores.back() : stores[first + chance / 2 % (stores.size() - first)];
  if (seen != store.number) store.loaded.push_back(now_of(own, lane()));
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
  if (account->find(word, &key)) {
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
  const uint32_t before = uint32_t(read_word(word, 4));
  if (account->find(word, &key))
    remember(word_at(key, before), value, account->actors[lane()].released, true, lane());
  write_word(word, 4, value);
  return before;
}

// Of one device.
uint32_t increment(uint32_t* word, bool ordered) {
  note(*account, word, 4, WRITE | STRONG, lane(), __builtin_return_address(0));
  std::lock_guard<std::mutex> lock(turn);
  uint64_t key;
  const uint32_t before = uint32_t(read_word(word, 4));
  if (account->find(word, &key)) {
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

View carried_by(uint64_t key) {
  const auto found = words.find(key);
  return found == words.end() || found->second.empty() ? nullptr : found->second.back().carries;
}

void forget_words(uint64_t key, uint64_t len_bytes) {
  for (auto word = words.begin(); word != words.end();)
    word = word->first >= key && word->first < key + len_bytes ? words.erase(word) : std::next(word);
}

}  // namespace order
}  // namespace emulator
