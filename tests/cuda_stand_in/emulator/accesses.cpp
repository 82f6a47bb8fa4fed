// All accesses to memory of the devices, by its bytes: each must know those of others that it
// conflicts with.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <bitset>
#include <string>

#include "account.h"
#include "order.h"

namespace emulator {
namespace order {
namespace {

// Copies and fills of the host cover whole pages, most of which no block ever touches: such a store
// stands once for all granules that nothing else has been noted of.
class Page {
 public:
  std::vector<Access>& granule(uint64_t number) {
    if (granules == nullptr) granules = std::make_unique<std::array<std::vector<Access>, 512>>();
    std::vector<Access>& found = (*granules)[number];
    if (filled[number]) found.push_back(fill);
    filled[number] = false;
    return found;
  }
  // Whether nothing but the host's last store of the whole page is noted here.
  bool is_only_filled(uint64_t number) const { return filled[number]; }
  // Of a page of which nothing is noted.
  void fill_all(const Access& store) {
    fill = store;
    filled.set();
  }

 private:
  Access fill{};
  std::bitset<512> filled;
  std::unique_ptr<std::array<std::vector<Access>, 512>> granules;
};
constexpr uint64_t PAGE_BYTES = 4096;

struct Shard {
  std::mutex turn;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;  // by number
};
std::array<Shard, 64> shards;
Shard& shard_of(uint64_t page) { return shards[page % shards.size()]; }

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

}  // namespace

void note(Account& own, const void* at, uint32_t len_bytes, uint8_t kind, uint32_t actor, const void* place) {
  uint64_t key;
  if (!own.find(at, &key)) return;
  const Clock& view = *own.actors[actor].view;
  for (uint64_t end = key + len_bytes; key < end;) {
    const uint64_t granule = key / 8, here = std::min(end, (granule + 1) * 8) - key;
    const uint8_t bytes = uint8_t(((1u << here) - 1) << key % 8);
    Shard& shard = shard_of(granule / 512);
    std::lock_guard<std::mutex> lock(shard.turn);
    std::unique_ptr<Page>& page = shard.pages[granule / 512];
    if (page == nullptr) page = std::make_unique<Page>();
    std::vector<Access>& accesses = page->granule(granule % 512);
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

void note_host(const Clock& host, uint64_t key, uint64_t len_bytes, Host what, uint32_t number) {
  const uint64_t end = key + len_bytes;
  const bool loads = what == Host::LOADS;
  const Access store{number, 0, 1, 0, 0xff, WRITE, nullptr};
  const auto look_at = [&](uint64_t start, Page& page) {
    const bool whole = key <= start && start + PAGE_BYTES <= end;
    for (uint64_t granule = 0; granule < 512; ++granule) {
      const uint64_t at = start + granule * 8;
      if (at >= end || at + 8 <= key) continue;
      // The host knows what it did itself.
      if (page.is_only_filled(granule) && (loads || whole)) continue;
      const uint64_t from = std::max(at, key) - at, to = std::min(at + 8, end) - at;
      const uint8_t bytes = uint8_t((0xffu << from) & (0xffu >> (8 - to)));
      const auto is_gone = [&](const Access& before) {
        // The host may look at words that threads share with it.
        const bool is_word = before.kind & STRONG && before.actor < THREADS;
        const bool conflicts = (before.kind & WRITE || !loads) && !is_word && before.bytes & bytes;
        if (conflicts && !knows(host, before.block, before.epoch, before.actor, before.time))
          race({0, 0, 0, 0, bytes, uint8_t(loads ? 0 : WRITE), nullptr}, before, at);
        return !loads && !(before.bytes & ~bytes);
      };
      std::vector<Access>& accesses = page.granule(granule);
      accesses.erase(std::remove_if(accesses.begin(), accesses.end(), is_gone), accesses.end());
      if (what == Host::STORES && !whole) accesses.push_back({number, 0, 1, 0, bytes, WRITE, nullptr});
    }
    if (loads || !whole) return;
    page = Page();
    if (what == Host::STORES) page.fill_all(store);
  };
  for (uint64_t page_number = key / PAGE_BYTES; page_number * PAGE_BYTES < end; ++page_number) {
    Shard& shard = shard_of(page_number);
    std::lock_guard<std::mutex> lock(shard.turn);
    if (what == Host::STORES && shard.pages[page_number] == nullptr)
      shard.pages[page_number] = std::make_unique<Page>();
    const auto page = shard.pages.find(page_number);
    if (page != shard.pages.end()) look_at(page_number * PAGE_BYTES, *page->second);
  }
}

void forget_accesses(uint64_t key, uint64_t len_bytes) {
  for (uint64_t number = key / PAGE_BYTES; number * PAGE_BYTES < key + len_bytes; ++number) {
    Shard& shard = shard_of(number);
    std::lock_guard<std::mutex> lock(shard.turn);
    shard.pages.erase(number);
  }
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

}  // namespace order
}  // namespace emulator

// The thread sanitizer's functions: they are called in front of each access.
static void note_plain(const void* at, size_t len_bytes, uint8_t kind, const void* place) {
  // What is not a block's thread fills its shared memory.
  emulator::order::Account* const own = emulator::order::account;
  if (own != nullptr) emulator::order::note(*own, at, uint32_t(len_bytes), kind, *own->lane, place);
}

#define OXCCL_PLAIN(name, kind, len_bytes) \
  extern "C" void name##len_bytes(void* at) { note_plain(at, len_bytes, kind, __builtin_return_address(0)); }
#define OXCCL_PLAIN_OF(len_bytes)                              \
  OXCCL_PLAIN(__tsan_read, 0, len_bytes)                       \
  OXCCL_PLAIN(__tsan_write, emulator::order::WRITE, len_bytes)        \
  OXCCL_PLAIN(__tsan_unaligned_read, 0, len_bytes)             \
  OXCCL_PLAIN(__tsan_unaligned_write, emulator::order::WRITE, len_bytes) \
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
  note_plain(at, len_bytes, emulator::order::WRITE, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
