// When each step of a channel began and ended, in the traced build of the host executor
// (host/trace.cpp). In all other builds nothing is left of it.
#pragma once

#ifdef OXCCL_TRACE
#include <time.h>

namespace oxccl {

// Told of each step, in the thread that runs the channel.
typedef void (*TraceSink)(void* context, uint64_t round, uint32_t step, uint64_t start_ns, uint64_t end_ns);

static thread_local TraceSink trace_sink;
static thread_local void* trace_context;

static inline uint64_t trace_now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

// Lives as long as the step takes.
class TracedStep {
 public:
  TracedStep(uint64_t round, uint32_t step) : round_(round), step_(step), start_(trace_now_ns()) {}
  ~TracedStep() { trace_sink(trace_context, round_, step_, start_, trace_now_ns()); }

 private:
  uint64_t round_;
  uint32_t step_;
  uint64_t start_;
};

}  // namespace oxccl

#define OXCCL_TRACED_STEP(round, instruction, taken) const TracedStep traced_step(round, (instruction).step)
#else
#define OXCCL_TRACED_STEP(round, instruction, taken)
#endif
