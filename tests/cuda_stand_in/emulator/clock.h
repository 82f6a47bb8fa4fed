// What has happened before, as somebody knows it: of each block whose launch has not ended, all
// accesses of its threads up to a barrier, and those of single threads since.
#pragma once
#include <stdint.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace emulator {
namespace order {

// All of a block's accesses before an epoch, and those of single actors up to a time.
struct Known {
  uint32_t block, epoch;
  std::vector<std::pair<uint16_t, uint32_t>> actors;
};

struct Clock {
  // Launches that ended before this one are known.
  uint64_t ended = 0;
  std::vector<Known> blocks;  // by number

  const Known* find(uint32_t block) const {
    const auto at = std::lower_bound(blocks.begin(), blocks.end(), block,
                                     [](const Known& known, uint32_t number) { return known.block < number; });
    return at != blocks.end() && at->block == block ? &*at : nullptr;
  }
};
using View = std::shared_ptr<const Clock>;

inline void join(Known& into, const Known& from) {
  std::vector<std::pair<uint16_t, uint32_t>> both;
  auto a = into.actors.cbegin();
  auto b = from.actors.cbegin();
  while (a != into.actors.cend() || b != from.actors.cend()) {
    if (b == from.actors.cend() || (a != into.actors.cend() && a->first < b->first)) both.push_back(*a++);
    else if (a == into.actors.cend() || b->first < a->first) both.push_back(*b++);
    else both.push_back({a->first, std::max(a->second, b->second)}), ++a, ++b;
  }
  into.epoch = std::max(into.epoch, from.epoch);
  into.actors = std::move(both);
}

inline void join(Clock& into, const Clock& from) {
  into.ended = std::max(into.ended, from.ended);
  for (const Known& known : from.blocks) {
    const auto at = std::lower_bound(into.blocks.begin(), into.blocks.end(), known.block,
                                     [](const Known& known, uint32_t number) { return known.block < number; });
    if (at != into.blocks.end() && at->block == known.block) join(*at, known);
    else into.blocks.insert(at, known);
  }
}

inline View joined(const View& a, const View& b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr) return b;
  auto both = std::make_shared<Clock>(*a);
  join(*both, *b);
  return both;
}

inline View with(const View& view, const Known& known) {
  Clock one;
  one.blocks.push_back(known);
  auto both = std::make_shared<Clock>(*view);
  join(*both, one);
  return both;
}

}  // namespace order
}  // namespace emulator
