// The instructions of cuda/multimem.h, from member to member. A multicast address is one that only
// the distances to the members' own memory lead anywhere from.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t PACK_BYTES = 16;

inline bool reaches_members(const uint64_t* members) { return members != nullptr; }

template <class N, Fold F>
uint4 load_reduced(const uint8_t* at, const uint64_t* members, uint32_t members_count) {
  using Element = typename N::Element;
  constexpr uint32_t COUNT = PACK_BYTES / sizeof(Element);
  typename N::Accumulator reduced[COUNT];
  for (uint32_t member = 0; member < members_count; ++member) {
    Element elements[COUNT];
    emulator::load_named(elements, at + members[member], PACK_BYTES);
    for (uint32_t e = 0; e < COUNT; ++e) {
      const typename N::Accumulator value = N::widen(elements[e]);
      reduced[e] = member == 0 ? value : fold<N, F>(reduced[e], value);
    }
    emulator::yield();
  }
  Element elements[COUNT];
  for (uint32_t e = 0; e < COUNT; ++e) elements[e] = N::narrow(reduced[e]);
  emulator::note_switched(PACK_BYTES);
  uint4 words;
  memcpy(&words, elements, PACK_BYTES);
  return words;
}

inline void store_to_all(uint8_t* at, const uint4& words, const uint64_t* members, uint32_t members_count) {
  for (uint32_t member = 0; member < members_count; ++member) {
    emulator::store_named(at + members[member], &words, PACK_BYTES);
    emulator::yield();
  }
}

using emulator::fence_of_names;

}  // namespace OXCCL_ISA
}  // namespace oxccl
