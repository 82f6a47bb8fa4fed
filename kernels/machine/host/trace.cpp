// The host executor of one instruction set once more, telling of every step:
//
//     oxccl_trace_<isa>(launch, channel, sink, context)
#define OXCCL_TRACE 1
#include "executor.cpp"

extern "C" uint32_t OXCCL_JOIN(oxccl_trace_, OXCCL_ISA)(const oxccl::Launch* launch,
                                                        uint32_t channel, oxccl::TraceSink sink,
                                                        void* context) {
  oxccl::trace_sink = sink;
  oxccl::trace_context = context;
  return oxccl::execute(*launch, channel);
}
