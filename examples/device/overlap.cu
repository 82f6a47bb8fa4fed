// What a step of training computes (examples/overlap/gpu.rs): gradients, which are matrix products,
// and the descent by them. Kernels mark buckets ready, and wait for those that are reduced.
//
//     nvcc -std=c++17 -arch=sm_90 -I kernels/include -ptx examples/device/overlap.cu
#include <oxccl/device.h>

// As the host lays them out.
struct GradientArguments {
  float* gradient;
  uint32_t rows, columns, batch, seed;
};

struct MarkArguments {
  oxccl::device::Communicator comm;
  oxccl::device::ReadyWord bucket;
};

struct DescentArguments {
  float* parameters;
  const float* gradients;
  uint64_t count;
  float rate;
};

struct GatedDescentArguments {
  oxccl::device::Communicator comm;
  oxccl::device::DoneWords done;
  DescentArguments descent;
};

namespace {

// Some value of this rank's batch.
__device__ float batch_value(uint32_t sample, uint32_t at, uint32_t seed) {
  return float((at * 37 + sample * 11 + seed) % 251) / 251.0f - 0.5f;
}

__device__ void descend(const DescentArguments& arguments) {
  const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
  for (uint64_t at = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; at < arguments.count; at += stride)
    arguments.parameters[at] -= arguments.rate * arguments.gradients[at];
}

}  // namespace

// The gradient of a matrix: the product of a layer's inputs and the gradients of its outputs,
// summed over the batch.
extern "C" __global__ void __launch_bounds__(512) overlap_gradient(const __grid_constant__ GradientArguments arguments) {
  const uint64_t count = uint64_t(arguments.rows) * arguments.columns, stride = uint64_t(gridDim.x) * blockDim.x;
  for (uint64_t at = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += stride) {
    const uint32_t row = uint32_t(at / arguments.columns), column = uint32_t(at % arguments.columns);
    float sum = 0;
    for (uint32_t sample = 0; sample < arguments.batch; ++sample)
      sum += batch_value(sample, row + arguments.rows, arguments.seed) * batch_value(sample, column, arguments.seed);
    arguments.gradient[at] = sum;
  }
}

// Behind the kernels that have written the bucket, in their stream: so it knows of them.
extern "C" __global__ void __launch_bounds__(512) overlap_mark(const __grid_constant__ MarkArguments arguments) {
  const oxccl::device::Block block(arguments.comm, 0);
  block.mark_ready(arguments.bucket);
}

extern "C" __global__ void __launch_bounds__(512) overlap_descend(const __grid_constant__ DescentArguments arguments) {
  descend(arguments);
}

// Once the bucket has been reduced.
extern "C" __global__ void __launch_bounds__(512) overlap_descend_gated(const __grid_constant__ GatedDescentArguments arguments) {
  const oxccl::device::Block block(arguments.comm, blockIdx.x);
  if (block.await_done(arguments.done)) descend(arguments.descent);
}
