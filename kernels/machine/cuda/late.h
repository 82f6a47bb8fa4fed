// Lines that are not there at the first look.
#pragma once

namespace oxccl {
inline namespace OXCCL_ISA {

// The spin itself, out of line: a kernel has many places that may come to it.
OXCCL_APART bool spin_for_line(const Launch* launch, const Fault* fault, uint32_t channel, uint32_t step,
                               const Connection* connection, uint32_t epoch, const uint8_t* at) {
  const uint64_t awaited = message_of(epoch, connection->received);
  Patience patience = {};
  do {
    if (++patience.spins % SPINS_A_LOOK != 0) continue;
    if (!look(launch->abort, &fault->outcome, &launch->progress[channel], launch->call,
              {awaited, step, connection->peer, connection->lane, 0}))
      return false;
    patience.written = true;
  } while (!carries(load_line(at), epoch));
  wait_over(*launch, channel, patience);
  return true;
}

// Waits until the flags of the line at `at` are those of the view's message. They stay, until the
// credit for it is given.
template <class Machine>
OXCCL_INLINE bool await_line(Machine& machine, const View& view, const uint8_t* at, Line* line) {
  if (spin_for_line(&machine.launch, &machine.fault, machine.channel, machine.step, view.connection, view.epoch, at)) {
    *line = load_line(at);
    return true;
  }
  if (machine.fault.outcome == OUTCOME_DONE) machine.fail(OUTCOME_ABORTED, view.connection->peer, 0);
  return false;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
