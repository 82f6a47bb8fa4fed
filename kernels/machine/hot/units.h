// The units of messages, and of what is moved with them, by a thread each.
#pragma once
#include "memory.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// The units of messages, and of what is moved with them: words, or shares of lines.
template <uint8_t LANE>
struct UnitsOf {
  using Bits = uint64_t;
  uint32_t len_bytes;

  OXCCL_INLINE uint32_t count() const { return (len_bytes + 7) / 8; }
  template <class Memory>
  OXCCL_INLINE Bits load(Memory& memory, uint32_t unit) const {
    return memory.spot(unit * 8).load();
  }
  template <class Memory>
  OXCCL_INLINE void store(Memory& memory, uint32_t unit, Bits bits) const {
    memory.spot(unit * 8).store(bits);
  }
  // The first look at units that come, of which those from `end` on are others', and what one is in
  // the end.
  static constexpr uint32_t LOOKS = 2;
  OXCCL_INLINE static void before_looks() {}
  OXCCL_INLINE Line look(const View& view, uint32_t unit, uint32_t end) const {
    Line line;
    if (unit < end) line = load_line(view.data + unit * LINE_BYTES);
    return line;
  }
  OXCCL_INLINE bool receive(Machine& machine, const View& view, uint32_t unit, Line line, Bits* bits) const {
    if (!carries(line, view.epoch) && !await_line(machine, view, view.data + unit * LINE_BYTES, &line)) return false;
    *bits = line.data;
    return true;
  }
  OXCCL_INLINE void send(const View& view, uint32_t unit, Bits bits) const {
    store_line(view.data + unit * LINE_BYTES, bits, view.epoch);
  }
};

// As Lines::receive, from where not all of a warp's lines were there.
OXCCL_APART Share receive_apart(const Launch* launch, Fault* fault, uint32_t channel, uint32_t step, uint8_t* data,
                                Connection* connection, uint32_t epoch, uint64_t len_bytes, uint32_t share) {
  Machine machine = {*launch, *fault, channel, step, false};
  Share into = {};
  Lines{len_bytes}.receive(machine, {data, connection, epoch, VIEW_LL128}, share, &into);
  return into;
}

template <>
struct UnitsOf<LANE_LL128> {
  using Bits = Share;
  uint32_t len_bytes;

  OXCCL_INLINE Lines lines() const { return {len_bytes}; }
  OXCCL_INLINE uint32_t count() const { return lines().count(); }
  OXCCL_INLINE Bits load(const Stretch& memory, uint32_t share) const {
    const uint8_t* const at = memory.base + uint32_t(Lines::position(share));
    const uint32_t left = uint32_t(lines().left(share));
    Share bits = {0, 0};
    if (left > 0) bits.low = load_memory(at, left);
    if (left > 8) bits.high = load_memory(at + 8, left - 8);
    return bits;
  }
  OXCCL_INLINE void store(const Stretch& memory, uint32_t share, const Bits& bits) const {
    uint8_t* const at = memory.base + uint32_t(Lines::position(share));
    const uint32_t left = uint32_t(lines().left(share));
    if (left > 0) store_memory(at, bits.low, left);
    if (left > 8) store_memory(at + 8, bits.high, left - 8);
  }
  static constexpr uint32_t LOOKS = 2;
  // By all of a warp at once, of which one may have been at the message's header.
  OXCCL_INLINE static void before_looks() { align_warp(); }
  OXCCL_INLINE Share look(const View& view, uint32_t share, uint32_t end) const {
    const bool there = share < end && lines().is_in_line(share);
    return there ? load_share(view.data + share * SHARE_BYTES) : Share{0, 0};
  }
  OXCCL_INLINE bool receive(Machine& machine, const View& view, uint32_t share, const Share& looked, Bits* bits) const {
    *bits = looked;
    if (!any_of_warp(lines().is_in_line(share) && Lines::has_flag(share) && looked.high != view.epoch)) return true;
    *bits = receive_apart(&machine.launch, &machine.fault, machine.channel, machine.step, view.data, view.connection,
                          view.epoch, len_bytes, share);
    return true;
  }
  OXCCL_INLINE void send(const View& view, uint32_t share, const Bits& bits) const {
    lines().template store<uint8_t>(view, share, bits);
  }
};

// Units of a message that are this thread's, several under way at once. Threads of a warp come here
// together, and have as many.
template <class Units, class Sink>
OXCCL_INLINE void receive_units(Machine& machine, const Units& units, const View& from, uint32_t first, uint32_t end,
                                uint32_t threads, const Sink& sink) {
#pragma unroll 1
  for (uint32_t unit = first; unit < end; unit += threads * Units::LOOKS) {
    decltype(units.look(from, unit, end)) looked[Units::LOOKS];
    units.before_looks();
#pragma unroll
    for (uint32_t u = 0; u < Units::LOOKS; ++u) looked[u] = units.look(from, unit + u * threads, end);
#pragma unroll
    for (uint32_t u = 0; u < Units::LOOKS; ++u) {
      typename Units::Bits bits;
      if (unit + u * threads >= end) break;
      if (!units.receive(machine, from, unit + u * threads, looked[u], &bits)) return;
      sink(unit + u * threads, bits);
    }
  }
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
