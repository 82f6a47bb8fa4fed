// Every block of all ranks: exchanges buffers by peers' memory and barriers, passes a number around
// by notices, and sums by flagged lines, a few times.
#include <oxccl/device.h>

struct EverythingArguments {
  oxccl::device::Communicator comm;
  // `ranks * 512` words for each block, in the heap, at the same place on all ranks.
  uint32_t* inbox;
  // For each block and time: the sum over the inbox, what has gone around, the sum over lines.
  uint64_t* results;
  uint32_t times;
  uint32_t seed;
};

extern "C" __global__ void __launch_bounds__(512) everything(const __grid_constant__ EverythingArguments arguments) {
  using namespace oxccl::device;
  Block block(arguments.comm, blockIdx.x);
  const uint32_t rank = block.rank(), ranks = block.ranks(), thread = threadIdx.x;
  uint32_t* inbox = arguments.inbox + uint64_t(blockIdx.x) * ranks * 512;
  uint64_t* passed = reinterpret_cast<uint64_t*>(inbox);
  for (uint32_t time = 0; time < arguments.times; ++time) {
    uint64_t* result = arguments.results + (uint64_t(blockIdx.x) * arguments.times + time) * 3;
    const uint32_t own = arguments.seed * 7919 + rank * 1009 + time * 31 + blockIdx.x;
    for (uint32_t to = 0; to < ranks; ++to) block.peer(to, inbox)[rank * 512 + thread] = own + thread;
    if (!block.barrier()) return;
    if (thread == 0) {
      result[0] = 0;
      for (uint32_t at = 0; at < ranks * 512; ++at) result[0] += inbox[at];
    }
    // The words are used anew.
    if (!block.barrier()) return;
    const uint32_t next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    if (rank == 0 && thread == 0) *block.peer(next, passed) = own;
    if (rank != 0 && !block.wait(previous)) return;
    if (rank != 0 && thread == 0) *block.peer(next, passed) = *passed * 3 + own;
    block.signal(next);
    if (rank == 0 && !block.wait(previous)) return;
    if (thread == 0) result[1] = *passed;
    block.begin_round();
    const uint64_t word = uint64_t(own) << 33 | own;
    if (thread < ranks && thread != rank) block.put(thread, time % arguments.comm.lines_each, word);
    if (thread == 0) {
      result[2] = word;
      uint64_t found = 0;
      for (uint32_t peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        if (!block.get(peer, time % arguments.comm.lines_each, &found)) break;
        result[2] += found;
      }
    }
    // The words are used anew, and lines order nothing.
    if (!block.barrier()) return;
  }
}
