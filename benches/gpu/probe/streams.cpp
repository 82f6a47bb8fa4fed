// Which launches run beside each other, and which calls of the driver wait for kernels. Ranks that
// are threads of one process rest on it: their kernels wait for each other.
#include <cstdlib>
#include <functional>

#include "probe.h"

namespace probe {

static const uint64_t MEET_NS = 50'000'000, GATE_NS = 20'000'000, BESIDE_NS = 200'000'000;
// Streams of others in the process, such as a communicator of NCCL has.
static const int OTHERS = 40;

enum class How { PLAIN, EVENTS, GRAPHS };

// Kernels of so many streams wait for each other, three rounds one behind the other.
static void meet_in(const Kernels& kernels, int count, How how) {
  const int rounds = how == How::PLAIN ? 1 : 3;
  const CUfunction meet = kernels["meet"];
  const CUdeviceptr meetings = zeros(64 * rounds);
  const std::vector<CUstream> streams = new_streams(count);
  std::vector<CUevent> events;
  std::vector<CUgraphExec> graphs;
  auto put = [&](int i) {
    for (int round = 0; round < rounds; ++round) {
      launch(meet, 1, 32, streams[i], meetings + 64 * round, static_cast<unsigned>(count), MEET_NS);
      if (how == How::EVENTS) CALL(cuEventRecord, events[i], streams[i]);
    }
  };
  for (int i = 0; i < count; ++i) {
    if (how == How::EVENTS) events.push_back(new_event());
    if (how == How::GRAPHS) {
      graphs.push_back(captured(streams[i], [&] { put(i); }));
      CALL(cuGraphUpload, graphs[i], streams[i]);
    }
  }
  CALL(cuCtxSynchronize);
  for (int i = 0; i < count; ++i) {
    if (how == How::GRAPHS) CALL(cuGraphLaunch, graphs[i], streams[i]);
    else put(i);
  }
  CALL(cuCtxSynchronize);
  uint32_t came = count;
  for (int round = 0; round < rounds; ++round) {
    const uint32_t at_timeout = fetched<uint32_t>(meetings + 64 * round + 8);
    if (at_timeout != 0 && at_timeout - 1 < came) came = at_timeout - 1;
  }
  const char* forms[] = {"", ", events between", ", as graphs"};
  const std::string what = text("%d streams beside %d others%s", count, OTHERS, forms[static_cast<int>(how)]);
  const bool all = came == static_cast<uint32_t>(count);
  fact(what, came, "kernels at once", all ? Hazard::NONE : Hazard::REAL,
       all ? "" : text("%s: only %u kernels that wait for each other run at once; ranks with launches of their own hang", what.c_str(), came));
}

static void meet_in_streams(How how) {
  const Gpu gpu;
  const Kernels kernels;
  const std::vector<CUstream> others = new_streams(OTHERS);
  for (int count : {8, 16, 32}) meet_in(kernels, count, how);
}

void streams_plain() { meet_in_streams(How::PLAIN); }
void streams_events() { meet_in_streams(How::EVENTS); }
void streams_graphs() { meet_in_streams(How::GRAPHS); }

// The blocks of one cooperative launch, as ranks that share a launch are.
void joint_launch() {
  const Gpu gpu;
  const Kernels kernels;
  const CUstream stream = new_stream();
  for (unsigned blocks : {2u, 16u, 64u, 128u}) {
    const CUdeviceptr meeting = zeros(64);
    uint64_t limit = MEET_NS;
    CUdeviceptr at = meeting;
    void* arguments[] = {&at, &blocks, &limit};
    const CUresult result = ASK(cuLaunchCooperativeKernel, kernels["meet"], blocks, 1, 1, 512, 1, 1, 0, stream, arguments);
    CALL(cuStreamSynchronize, stream);
    const bool all = result == CUDA_SUCCESS && fetched<uint32_t>(meeting + 4) == blocks;
    holds(text("%u blocks of one cooperative launch meet", blocks), all,
          text("%u blocks of one cooperative launch do not meet: %s", blocks, name_of(result).c_str()));
  }
}

// --- a kernel that waits for a value which another stream writes, as a group waits for its buckets

enum class Behind { NOTHING, EVENT, EVENT_AND_PRIORITY };

static void gated_by(const Kernels& kernels, Behind behind) {
  const int count = 32;
  const CUfunction await = kernels["await"];
  const CUdeviceptr words = zeros(64 * count);
  int least = 0, greatest = 0;
  CALL(cuCtxGetStreamPriorityRange, &least, &greatest);
  const CUstream held = new_stream();
  const CUevent event = new_event();
  std::vector<CUstream> writers = new_streams(count);
  if (behind == Behind::EVENT_AND_PRIORITY)
    for (CUstream& writer : writers) CALL(cuStreamCreateWithPriority, &writer, CU_STREAM_NON_BLOCKING, greatest);
  int passed = 0;
  for (int i = 0; i < count; ++i) {
    uint64_t* seen = pinned<uint64_t>(2);
    CALL(cuCtxSynchronize);
    launch(await, 1, 1, held, words + 64 * i, uint64_t(1), seen, GATE_NS);
    if (behind != Behind::NOTHING) CALL(cuEventRecord, event, held);
    CALL(cuStreamWriteValue64, writers[i], words + 64 * i, 1, 0);
    CALL(cuCtxSynchronize);
    passed += seen[0] == 1;
  }
  const char* forms[] = {"", ", an event behind the kernel", ", an event behind it, writers of the highest priority"};
  const char* connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const std::string what = text("with %s connections a kernel waits for a value of each of %d streams%s", connections ? connections : "8", count,
                                forms[static_cast<int>(behind)]);
  fact(what, passed, "streams whose value comes", passed == count ? Hazard::NONE : Hazard::REAL,
       passed == count ? "" : text("%s: the value of %d never comes while it waits", what.c_str(), count - passed));
}

void gates() {
  const Gpu gpu;
  const Kernels kernels;
  const std::vector<CUstream> others = new_streams(OTHERS);
  for (Behind behind : {Behind::NOTHING, Behind::EVENT, Behind::EVENT_AND_PRIORITY}) gated_by(kernels, behind);
}

// --- calls of the driver while a kernel runs

// Makes the call while a kernel spins until it is told to end; one that waits for the kernel ends
// with it.
static void beside(const Kernels& kernels, const char* what, const std::function<CUresult()>& call) {
  static const CUstream spinning = new_stream();
  volatile uint64_t* words = pinned<uint64_t>(4);
  const uint64_t* word = const_cast<const uint64_t*>(words);
  volatile uint64_t* seen = words + 2;
  launch(kernels["await"], 1, 1, spinning, word, uint64_t(1), seen, BESIDE_NS);
  const double begin = now_us();
  while (seen[1] == 0)
    if (now_us() - begin > 2e6) give_up("a kernel was launched and did not start within 2 s");
  const double called = now_us();
  const CUresult result = call();
  const double took_us = now_us() - called;
  words[0] = 1;
  CALL(cuStreamSynchronize, spinning);
  const bool waits = seen[0] == 2;
  if (result != CUDA_SUCCESS) fact(text("%s beside a kernel", what), 0, "us", Hazard::FIGURE, name_of(result));
  else fact(text("%s beside a kernel", what), took_us, "us", waits ? Hazard::REAL : Hazard::NONE,
            waits ? text("%s waits until all running kernels end", what) : "");
}

void beside_a_kernel() {
  const Gpu gpu;
  const Kernels kernels;
  const CUstream stream = new_stream();
  const CUdeviceptr memory = zeros(8 << 20);
  const CUevent event = new_event();
  char* host = pinned<char>(1 << 20);
  const CUgraphExec graph = captured(stream, [&] {
    for (int i = 0; i < 20; ++i) launch(kernels["meet"], 1, 32, stream, memory, 0u, uint64_t(0));
  });
  CUdeviceptr taken = 0;
  void* words = nullptr;
  CUstream made = nullptr;
  auto ended = [&](CUresult result) { return result == CUDA_SUCCESS ? ASK(cuStreamSynchronize, stream) : result; };
  // What oxccl does while other ranks' kernels may wait; what gives back comes last.
  beside(kernels, "cuEventRecord and cuEventQuery", [&] {
    const CUresult result = ASK(cuEventRecord, event, stream);
    return result == CUDA_SUCCESS ? ASK(cuEventSynchronize, event) : result;
  });
  beside(kernels, "a launch in another stream", [&] {
    launch(kernels["meet"], 1, 32, stream, memory, 0u, uint64_t(0));
    return ended(CUDA_SUCCESS);
  });
  beside(kernels, "cuMemsetD8Async", [&] { return ended(ASK(cuMemsetD8Async, memory, 0, 4 << 20, stream)); });
  beside(kernels, "cuMemcpyAsync within the GPU", [&] { return ended(ASK(cuMemcpyAsync, memory, memory + (4 << 20), 4 << 20, stream)); });
  beside(kernels, "cuMemcpyAsync to pinned memory", [&] { return ended(ASK(cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(host), memory, 1 << 20, stream)); });
  beside(kernels, "cuMemAlloc of 4 MiB", [&] { return ASK(cuMemAlloc, &taken, 4 << 20); });
  beside(kernels, "cuMemHostAlloc of 1 MiB", [&] { return ASK(cuMemHostAlloc, &words, 1 << 20, CU_MEMHOSTALLOC_DEVICEMAP); });
  beside(kernels, "cuStreamCreate", [&] { return ASK(cuStreamCreate, &made, CU_STREAM_NON_BLOCKING); });
  beside(kernels, "capture and cuGraphInstantiate", [&] {
    captured(stream, [&] { launch(kernels["meet"], 1, 32, stream, memory, 0u, uint64_t(0)); });
    return CUDA_SUCCESS;
  });
  beside(kernels, "cuGraphUpload", [&] { return ended(ASK(cuGraphUpload, graph, stream)); });
  beside(kernels, "cuGraphLaunch in another stream", [&] { return ended(ASK(cuGraphLaunch, graph, stream)); });
  beside(kernels, "loading a module and a kernel", [&] {
    const Kernels again;
    return ASK(cuFuncLoad, again["copy_eight"]);
  });
  beside(kernels, "cuMemFreeHost", [&] { return ASK(cuMemFreeHost, words); });
  beside(kernels, "cuMemFree", [&] { return ASK(cuMemFree, taken); });
  beside(kernels, "cuStreamDestroy", [&] { return ASK(cuStreamDestroy, made); });
}

}  // namespace probe
