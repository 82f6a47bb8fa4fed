// Lines that are not there at the first look.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

// Waits until the flags of the line at `at` are those of the view's message.
template <class Machine>
OXCCL_COLD bool await_line(Machine& machine, const View& view, const uint8_t* at, Line* line) {
  const Awaited awaited = {reinterpret_cast<const uint64_t*>(at), view.epoch, Awaits::LINE};
  const Place place = place_of(machine, view);
  Patience patience = {};
  do {
    if (!machine.await(awaited, place, patience)) return false;
    *line = load_line(at);
  } while (!carries(*line, view.epoch));
  wait_over(machine.launch, machine.channel, patience);
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
