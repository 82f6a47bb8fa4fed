// A matrix product and the reduce-scatter of its output in one kernel, as tensor parallelism has
// it: each rank multiplies its columns of A by its rows of B, and of the sum of all ranks' products
// it keeps its share of the rows.
//
//     nvcc -std=c++17 -arch=sm_90 -I kernels/include -ptx examples/device/matmul_reduce_scatter.cu
//
//     for each of this block's tiles of a share:
//       for each rank, the next one first and this one last:
//         multiply this rank's part of the tile of that rank's share
//         write it into that rank's inbox, and give it a notice
//       wait for the notices of all others, and add up the inbox in rank order
//
// Tiles that are multiplied later hide the way of those before. The order of the sum is that of the
// ranks, whatever comes first.
#include <oxccl/device.h>

// As the host lays it out.
struct MatmulArguments {
  oxccl::device::Communicator comm;
  // This rank's columns of A, `m * k`, and rows of B, `k * n`, by rows.
  const float* a;
  const float* b;
  // `ranks` parts of `m / ranks * n`, in the heap, at the same place on all ranks.
  float* inbox;
  // `m / ranks * n`.
  float* output;
  // m is a multiple of the ranks.
  uint32_t m, n, k;
  // Blocks of the launch.
  uint32_t blocks;
};

namespace {

constexpr uint32_t TILE_ROWS = 16, TILE_COLUMNS = 32, DEPTH = 16;
constexpr uint32_t TILE = TILE_ROWS * TILE_COLUMNS;  // as many threads as a block has

// A thread's element of the product of a row of A and a column of B, by pieces in shared memory.
__device__ float multiply(const MatmulArguments& arguments, uint32_t first_row, uint32_t end_row, uint32_t first_column) {
  __shared__ float a[TILE_ROWS][DEPTH], b[DEPTH][TILE_COLUMNS];
  const uint32_t row = threadIdx.x / TILE_COLUMNS, column = threadIdx.x % TILE_COLUMNS;
  float sum = 0;
  for (uint32_t from = 0; from < arguments.k; from += DEPTH) {
    for (uint32_t at = threadIdx.x; at < TILE_ROWS * DEPTH; at += TILE) {
      const uint32_t r = first_row + at / DEPTH, c = from + at % DEPTH;
      a[at / DEPTH][at % DEPTH] = r < end_row && c < arguments.k ? arguments.a[uint64_t(r) * arguments.k + c] : 0.0f;
    }
    for (uint32_t at = threadIdx.x; at < DEPTH * TILE_COLUMNS; at += TILE) {
      const uint32_t r = from + at / TILE_COLUMNS, c = first_column + at % TILE_COLUMNS;
      b[at / TILE_COLUMNS][at % TILE_COLUMNS] =
          r < arguments.k && c < arguments.n ? arguments.b[uint64_t(r) * arguments.n + c] : 0.0f;
    }
    __syncthreads();
    for (uint32_t at = 0; at < DEPTH; ++at) sum += a[row][at] * b[at][column];
    __syncthreads();
  }
  return sum;
}

}  // namespace

// Blocks of 512 threads, all of which run at once.
extern "C" __global__ void __launch_bounds__(512) matmul_reduce_scatter(const __grid_constant__ MatmulArguments arguments) {
  oxccl::device::Block block(arguments.comm, blockIdx.x);
  const uint32_t rank = block.rank(), ranks = block.ranks();
  const uint32_t rows = arguments.m / ranks;
  const uint32_t across = (arguments.n + TILE_COLUMNS - 1) / TILE_COLUMNS;
  const uint32_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS * across;
  const uint64_t share = uint64_t(rows) * arguments.n;
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += arguments.blocks) {
    const uint32_t first_row = tile / across * TILE_ROWS, first_column = tile % across * TILE_COLUMNS;
    const uint32_t row = first_row + threadIdx.x / TILE_COLUMNS, column = first_column + threadIdx.x % TILE_COLUMNS;
    const bool is_there = row < rows && column < arguments.n;
    const uint64_t at = uint64_t(row) * arguments.n + column;
    for (uint32_t step = 1; step <= ranks; ++step) {
      const uint32_t owner = (rank + step) % ranks;
      const float sum = multiply(arguments, owner * rows + first_row, (owner + 1) * rows, first_column);
      if (is_there) block.peer(owner, arguments.inbox)[rank * share + at] = sum;
      if (owner != rank) block.signal(owner);
    }
    for (uint32_t peer = 0; peer < ranks; ++peer)
      if (peer != rank && !block.wait(peer)) return;
    if (is_there) {
      float sum = arguments.inbox[at];
      for (uint32_t peer = 1; peer < ranks; ++peer) sum += arguments.inbox[peer * share + at];
      arguments.output[at] = sum;
    }
  }
  // Nobody writes to the inbox for the next product before this one was read.
  block.barrier();
}
