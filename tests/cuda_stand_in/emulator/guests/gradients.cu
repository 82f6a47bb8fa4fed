// Block b computes bucket b, marks it ready, and goes on with it once it was reduced: in one
// kernel.
#include <oxccl/device.h>

struct GradientsArguments {
  oxccl::device::Communicator comm;
  // Of each bucket: where it is, its words, and where twice its sum goes.
  struct Bucket {
    uint32_t* values;
    uint32_t* doubled;
    oxccl::device::ReadyWord ready;
    oxccl::device::DoneWords done;
  } buckets[2];
  uint32_t len, base;
};

extern "C" __global__ void __launch_bounds__(512) gradients(const __grid_constant__ GradientsArguments arguments) {
  oxccl::device::Block block(arguments.comm, blockIdx.x);
  const GradientsArguments::Bucket& bucket = arguments.buckets[blockIdx.x];
  for (uint32_t at = threadIdx.x; at < arguments.len; at += blockDim.x)
    bucket.values[at] = arguments.base + block.rank() + at * (1 + uint32_t(blockIdx.x));
  block.mark_ready(bucket.ready);
  if (!block.await_done(bucket.done)) return;
  for (uint32_t at = threadIdx.x; at < arguments.len; at += blockDim.x) bucket.doubled[at] = 2 * bucket.values[at];
}
