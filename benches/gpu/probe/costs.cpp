// What the parts of a call cost: flags, fences, launches, words of the host, copies; and whether
// lines of 128 bytes stay whole.
#include <atomic>
#include <thread>

#include "probe.h"

namespace probe {

static const uint64_t LIMIT_NS = 1'000'000'000;
static const int MANY = 1000;

// Runs a kernel three times and reads what it has counted in the last: the first two load code and
// fill caches.
template <class Launch>
static double third(uint64_t* counted, Launch put) {
  for (int i = 0; i < 3; ++i) {
    *counted = 0;
    put();
    CALL(cuCtxSynchronize);
  }
  return static_cast<double>(*counted);
}

void flags() {
  const Gpu gpu;
  const Kernels kernels;
  const CUstream stream = new_stream();
  uint64_t* took = pinned<uint64_t>(1);
  static const struct {
    const char *kernel, *what;
  } KINDS[] = {{"volley_release_system", "one way of a flag, released and acquired at system scope"},
               {"volley_relaxed", "one way of a flag, relaxed"},
               {"volley_line", "one way of an LL line of 16 bytes"},
               {"volley_release_gpu", "one way of a flag, released and acquired at GPU scope"}};
  for (const auto& kind : KINDS) {
    const double all_ns = third(took, [&] { launch(kernels[kind.kernel], 2, 1, stream, zeros(1024), uint64_t(MANY), took, LIMIT_NS); });
    fact(kind.what, all_ns / MANY / 2, "ns", all_ns > 0 ? Hazard::FIGURE : Hazard::REAL, all_ns > 0 ? "" : text("%s: two blocks never meet", kind.what));
  }
}

void fences() {
  const Gpu gpu;
  const Kernels kernels;
  const CUstream stream = new_stream();
  const int khz = gpu.attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  const double ghz = (khz > 0 ? khz : 1'000'000) / 1e6;
  uint64_t* took = pinned<uint64_t>(1);
  const CUdeviceptr device = zeros(1 << 20), host = reinterpret_cast<CUdeviceptr>(pinned<uint64_t>(1 << 16));
  auto system = [&](const char* what, CUdeviceptr memory, unsigned stores) {
    figure(what, third(took, [&] { launch(kernels["fence_system"], 1, 512, stream, memory, stores, took); }) / ghz, "ns at the top clock");
  };
  system("fence.acq_rel.sys, nothing under way", device, 0);
  system("fence.acq_rel.sys behind 32 KiB of stores", device, 8);
  system("fence.acq_rel.sys behind 4 KiB of stores to the host", host, 1);
  for (unsigned threads : {1u, 512u})
    figure(text("fence.proxy.alias by %u of 512 threads", threads),
           third(took, [&] { launch(kernels["fence_alias"], 1, 512, stream, threads, took); }) / ghz, "ns at the top clock");
}

void lines() {
  const Gpu gpu;
  const Kernels kernels;
  const unsigned count = 4096, turns = 2000, blocks = 64;
  const CUdeviceptr torn = zeros(64), ended = zeros(4 * blocks), all = zeros(size_t(blocks) / 2 * count * 128);
  launch(kernels["tear"], blocks, 512, new_stream(), all, count, turns, torn, ended);
  CALL(cuCtxSynchronize);
  const uint64_t whole = fetched<uint64_t>(torn), pairs = fetched<uint64_t>(torn + 8), reads = fetched<uint64_t>(torn + 16);
  figure("words that were read of lines which another block writes", static_cast<double>(reads), "pairs");
  fact("LL128: flags newer than their line", static_cast<double>(whole), "pairs", whole ? Hazard::REAL : Hazard::NONE,
       whole ? "lines of 128 bytes tear between multiprocessors: LL128 on one GPU gives wrong results" : "");
  fact("LL: pairs of words that were torn", static_cast<double>(pairs), "pairs", pairs ? Hazard::REAL : Hazard::NONE,
       pairs ? "stores of 16 bytes tear: an LL line is not whole (its flags tell)" : "");
}

struct Parameters {
  char bytes[224];
};

// Microseconds of the host for each of many calls, the second time.
template <class Call>
static double host_us(int calls, CUstream stream, Call call) {
  double took = 0;
  for (int round = 0; round < 2; ++round) {
    const double begin = now_us();
    for (int i = 0; i < calls; ++i) call();
    took = (now_us() - begin) / calls;
    CALL(cuStreamSynchronize, stream);
  }
  return took;
}

void launches() {
  const Gpu gpu;
  const Kernels kernels;
  const CUstream stream = new_stream();
  const CUfunction nothing = kernels["nothing"];
  const CUevent event = new_event();
  const CUdeviceptr words = zeros(64);
  auto put = [&] { launch(nothing, 8, 512, stream, Parameters{}); };
  figure("host time of a launch", host_us(MANY, stream, put), "us");
  figure("host time of a cooperative launch", host_us(MANY, stream, [&] {
    Parameters parameters = {};
    void* at[] = {&parameters};
    CALL(cuLaunchCooperativeKernel, nothing, 8, 1, 1, 512, 1, 1, 0, stream, at);
  }), "us");
  figure("host time of cuEventRecord", host_us(MANY, stream, [&] { CALL(cuEventRecord, event, stream); }), "us");
  figure("host time of cuEventQuery", host_us(MANY, stream, [&] { ASK(cuEventQuery, event); }), "us");
  figure("host time of cuStreamWriteValue64", host_us(MANY, stream, [&] { CALL(cuStreamWriteValue64, stream, words, 1, 0); }), "us");
  figure("host time of cuStreamGetCaptureInfo", host_us(MANY, stream, [&] {
    CUstreamCaptureStatus status;
    CALL(cuStreamGetCaptureInfo, stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr);
  }), "us");
  figure("host time of cuPointerGetAttributes for two", host_us(MANY, stream, [&] {
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID};
    unsigned type = 0;
    unsigned long long id = 0;
    void* answers[] = {&type, &id};
    CALL(cuPointerGetAttributes, 2, asked, answers, words);
  }), "us");
  figure("host time of cuCtxGetCurrent", host_us(MANY, stream, [&] {
    CUcontext current;
    CALL(cuCtxGetCurrent, &current);
  }), "us");
  const CUgraphExec graph = captured(stream, [&] {
    for (int i = 0; i < 100; ++i) put();
  });
  double begin = 0;
  for (int i = 0; i < 3; ++i) {
    begin = now_us();
    CALL(cuGraphLaunch, graph, stream);
    CALL(cuStreamSynchronize, stream);
  }
  figure("a node of a graph of 100 empty kernels", (now_us() - begin) / 100, "us");
  figure("a launch and the wait for its end", host_us(MANY, stream, [&] {
    put();
    CALL(cuStreamSynchronize, stream);
  }), "us");
}

// Threads of one context that launch at once, with and without others that ask about events: what
// the driver's lock costs.
void threads() {
  const Gpu gpu;
  const Kernels kernels;
  const CUfunction nothing = kernels["nothing"];
  for (int pollers : {0, 8})
    for (int launchers : {1, 2, 8}) {
      const std::vector<CUstream> streams = new_streams(launchers);
      std::atomic<int> ready{0};
      std::atomic<bool> over{false};
      std::vector<double> took(launchers);
      std::vector<std::thread> asking, launching;
      for (int i = 0; i < pollers; ++i)
        asking.emplace_back([&] {
          CALL(cuCtxSetCurrent, gpu.context);
          const CUevent event = new_event();
          while (!over) ASK(cuEventQuery, event);
        });
      for (int i = 0; i < launchers; ++i)
        launching.emplace_back([&, i] {
          CALL(cuCtxSetCurrent, gpu.context);
          for (++ready; ready < launchers;) std::this_thread::yield();
          took[i] = host_us(MANY, streams[i], [&] { launch(nothing, 1, 32, streams[i], Parameters{}); });
        });
      for (std::thread& one : launching) one.join();
      over = true;
      for (std::thread& one : asking) one.join();
      double slowest = 0;
      for (double one : took) slowest = one > slowest ? one : slowest;
      figure(text("host time of a launch, %d threads launch and %d ask about events", launchers, pollers), slowest, "us");
    }
}

void host_word() {
  const Gpu gpu;
  const Kernels kernels;
  volatile uint64_t* words = pinned<uint64_t>(16);
  volatile uint64_t* from_host = words + 8;
  launch(kernels["answer"], 1, 1, new_stream(), words, from_host, uint64_t(MANY), LIMIT_NS);
  double begin = now_us(), first = 0;
  for (uint64_t turn = 1; turn <= MANY; ++turn) {
    while (words[0] < turn)
      if (now_us() - begin > 2e6) give_up(text("word %d of the GPU did not reach the host within 2 s", static_cast<int>(turn)));
    if (turn == 1) first = now_us();
    words[8] = turn;
  }
  const double took = now_us() - first;
  CALL(cuCtxSynchronize);
  figure("a word of the GPU to the host and back", took / (MANY - 1), "us");
}

void copies() {
  const Gpu gpu;
  const Kernels kernels;
  const CUstream stream = new_stream();
  const CUfunction copy = kernels["copy_eight"];
  const size_t bytes = 1 << 30;
  const CUdeviceptr from = zeros(bytes), to = zeros(bytes);
  const CUevent begin = new_event(CU_EVENT_DEFAULT), end = new_event(CU_EVENT_DEFAULT);
  auto timed = [&](const std::string& what, const auto& put) {
    float ms = 0;
    for (int i = 0; i < 2; ++i) {
      CALL(cuEventRecord, begin, stream);
      put();
      CALL(cuEventRecord, end, stream);
      CALL(cuEventSynchronize, end);
      CALL(cuEventElapsedTime, &ms, begin, end);
    }
    figure(what, 2.0 * static_cast<double>(bytes) / ms / 1e6, "GB/s read and written");
  };
  const unsigned all = static_cast<unsigned>(gpu.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  for (unsigned blocks : {1u, 8u, 16u, 32u, 64u, 96u, all})
    timed(text("a copy by %u blocks of 512 threads", blocks), [&] { launch(copy, blocks, 512, stream, from, to, uint64_t(bytes / 16)); });
  timed("cuMemcpyAsync", [&] { CALL(cuMemcpyAsync, to, from, bytes, stream); });
}

}  // namespace probe
