// When each step of a channel began and ended, in the traced kernels (cuda/trace.cu). In all others
// nothing is left of it.
//
//     begin:  ns, ticks = the timer's next step                       (one microsecond, or less)
//       each step: record {ticks at its begin, ticks at its end, round, step}
//     end:    ns, ticks = the timer's next step; ticks of all records become nanoseconds
//
// The timer of a GPU is the same for all of its blocks, but its steps may be as long as a short
// call. The clock of a multiprocessor counts single cycles, and is its own. So a block counts
// cycles, and looks at the timer at its begin and end, each time just when that has moved.
#pragma once

#ifdef OXCCL_TRACE

namespace oxccl {
inline namespace OXCCL_ISA {

// A moment by both clocks.
struct Moment {
  uint64_t ns, ticks;
};

// What a block's leader knows of its steps.
struct Tracing {
  StepRecord* records;
  uint64_t* count;
  uint64_t mask;
  // Records of this channel so far, and before this launch.
  uint64_t written, before;
  Moment begin, end;
  // The step at hand.
  const Instruction* instructions;
  uint64_t round, start;
};

OXCCL_INLINE Tracing& tracing() {
  __shared__ Tracing memory;
  return memory;
}

// The moment at which the timer moves.
OXCCL_INLINE Moment next_moment() {
  const uint64_t before = timer_ns();
  uint64_t now = before;
  while (now == before) now = timer_ns();
  return {now, ticks()};
}

OXCCL_INLINE uint64_t ns_of(const Tracing& trace, double ns_a_tick, uint64_t ticks) {
  return trace.begin.ns + uint64_t(double(ticks - trace.begin.ticks) * ns_a_tick);
}

// Lives as long as a block's programs run.
class TracedBlock {
 public:
  OXCCL_INLINE TracedBlock(const Launch& launch, uint32_t channel) {
    if (!leader()) return;
    const StepRing& ring = *static_cast<const StepRing*>(launch.poll_context);
    Tracing& trace = tracing();
    trace.records = ring.records + uint64_t(channel) * ring.capacity;
    trace.count = ring.counts + channel;
    trace.mask = ring.capacity - 1;
    trace.written = trace.before = *trace.count;
    trace.begin = next_moment();
  }

  OXCCL_INLINE ~TracedBlock() {
    if (leader()) tracing().end = next_moment();
    barrier();
    const Tracing& trace = tracing();
    const Moment begin = trace.begin, end = trace.end;
    const double ns_a_tick = double(end.ns - begin.ns) / double(end.ticks - begin.ticks);
    const uint64_t own = trace.written - trace.before;
    const uint64_t kept = own <= trace.mask ? own : trace.mask + 1;
#pragma unroll 1
    for (uint64_t r = lane(); r < kept; r += lanes()) {
      StepRecord& record = trace.records[(trace.written - 1 - r) & trace.mask];
      record.start_ns = ns_of(trace, ns_a_tick, record.start_ns);
      record.end_ns = ns_of(trace, ns_a_tick, record.end_ns);
    }
    if (leader()) *trace.count = trace.written;
  }
};

// Lives as long as the step takes. Steps that the block's threads take at once have a record each,
// and the same times.
class TracedStep {
 public:
  // `taken`: how many instructions it has been, known at its end.
  OXCCL_INLINE TracedStep(uint64_t round, const Instruction& instruction, const uint32_t& taken) : taken_(taken) {
    if (!leader()) return;
    Tracing& trace = tracing();
    trace.instructions = &instruction;
    trace.round = round;
    trace.start = ticks();
  }

  OXCCL_INLINE ~TracedStep() {
    if (!leader()) return;
    Tracing& trace = tracing();
    const uint64_t end = ticks();
#pragma unroll 1
    for (uint32_t i = 0; i < taken_; ++i) {
      trace.records[trace.written & trace.mask] = {trace.start, end, trace.round, trace.instructions[i].step, 0};
      ++trace.written;
    }
  }

 private:
  const uint32_t& taken_;
};

}  // namespace OXCCL_ISA
}  // namespace oxccl

#define OXCCL_TRACED_BLOCK(launch, channel) const TracedBlock traced_block(launch, channel)
#define OXCCL_TRACED_STEP(round, instruction, taken) const TracedStep traced_step(round, instruction, taken)
#else
#define OXCCL_TRACED_BLOCK(launch, channel)
#define OXCCL_TRACED_STEP(round, instruction, taken)
#endif
