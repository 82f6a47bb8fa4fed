// What the CUDA path rests on, asked of a GPU before any of oxccl's own code runs there. Each probe
// is a process of its own, so that one that hangs is ended and the others still run:
//
//     gpu-probe            names the probes, one a line, in the order to ask them
//     gpu-probe NAME       asks one; a JSON object a fact, whose `hazard` says whether it breaks
//                          an assumption
//
// The driver is loaded at run time, and the kernels (kernels.cu) are in the program.
#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace probe {

// What a probe found out about one assumption.
enum class Hazard { NONE, REAL, FIGURE };

// One line of output. `says` is a sentence for a reader without the code; a figure breaks no
// assumption by itself.
void fact(const std::string& what, double value, const char* unit, Hazard hazard, const std::string& says);

inline void figure(const std::string& what, double value, const char* unit) { fact(what, value, unit, Hazard::FIGURE, ""); }
inline void holds(const std::string& what, bool is_so, const std::string& otherwise) {
  fact(what, is_so, "", is_so ? Hazard::NONE : Hazard::REAL, is_so ? "" : otherwise);
}

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
double now_us();

// Ends the probe: a fact that is a hazard says why.
[[noreturn]] void give_up(const std::string& why);

#define PROBE_DRIVER(CALL)                                                                                             \
  CALL(cuInit) CALL(cuDriverGetVersion) CALL(cuDeviceGet) CALL(cuDeviceGetName) CALL(cuDeviceGetAttribute)             \
  CALL(cuDevicePrimaryCtxRetain) CALL(cuCtxSetCurrent) CALL(cuCtxGetCurrent) CALL(cuCtxSynchronize)                    \
  CALL(cuCtxGetStreamPriorityRange) CALL(cuGetErrorName) CALL(cuModuleLoadData) CALL(cuModuleGetFunction)              \
  CALL(cuModuleUnload) CALL(cuFuncLoad) CALL(cuLaunchKernel) CALL(cuLaunchCooperativeKernel) CALL(cuStreamCreate)      \
  CALL(cuStreamCreateWithPriority) CALL(cuStreamDestroy) CALL(cuStreamSynchronize) CALL(cuStreamBeginCapture)          \
  CALL(cuStreamEndCapture) CALL(cuStreamGetCaptureInfo) CALL(cuStreamWriteValue64) CALL(cuStreamWaitValue64)           \
  CALL(cuEventCreate) CALL(cuEventDestroy) CALL(cuEventRecord) CALL(cuEventQuery) CALL(cuEventSynchronize)             \
  CALL(cuEventElapsedTime) CALL(cuGraphInstantiate) CALL(cuGraphUpload) CALL(cuGraphLaunch) CALL(cuGraphDestroy)       \
  CALL(cuGraphExecDestroy) CALL(cuMemAlloc) CALL(cuMemFree) CALL(cuMemHostAlloc) CALL(cuMemFreeHost)                   \
  CALL(cuMemHostRegister) CALL(cuMemHostUnregister) CALL(cuMemHostGetDevicePointer) CALL(cuMemsetD8) CALL(cuMemsetD8Async) \
  CALL(cuMemsetD32Async) CALL(cuMemcpyDtoH) CALL(cuMemcpyHtoD) CALL(cuMemcpyAsync) CALL(cuMemGetAllocationGranularity)  \
  CALL(cuMemCreate) CALL(cuMemRelease) CALL(cuMemMap) CALL(cuMemUnmap) CALL(cuMemSetAccess) CALL(cuMemAddressReserve)  \
  CALL(cuMemAddressFree) CALL(cuMemExportToShareableHandle) CALL(cuMemImportFromShareableHandle)                       \
  CALL(cuIpcGetMemHandle) CALL(cuIpcOpenMemHandle) CALL(cuIpcCloseMemHandle) CALL(cuPointerGetAttributes)              \
  CALL(cuMulticastGetGranularity) CALL(cuMulticastCreate)

// The driver's functions; null where this driver has none of the name.
struct Driver {
#define PROBE_MEMBER(name) decltype(&::name) name = nullptr;
  PROBE_DRIVER(PROBE_MEMBER)
#undef PROBE_MEMBER
};

const Driver& driver();

// The result's name.
std::string name_of(CUresult result);

// A call that the driver may refuse, and one that it must not.
#define ASK(function, ...) (probe::driver().function ? probe::driver().function(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND)
#define CALL(function, ...) probe::must(#function, ASK(function, __VA_ARGS__))
inline void must(const char* function, CUresult result) {
  if (result != CUDA_SUCCESS) give_up(std::string(function) + ": " + name_of(result));
}

// The first GPU and its primary context, current in this thread.
struct Gpu {
  CUdevice device = 0;
  CUcontext context = nullptr;
  Gpu();
  int attribute(CUdevice_attribute which) const;
};

// Kernels of kernels.cu, by name.
struct Kernels {
  CUmodule module = nullptr;
  Kernels();
  CUfunction operator[](const char* name) const;
};

// A launch; the arguments are the kernel's parameters.
template <class... Arguments>
void launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream, Arguments... arguments) {
  void* at[] = {&arguments..., nullptr};
  CALL(cuLaunchKernel, kernel, blocks, 1, 1, threads, 1, 1, 0, stream, at, nullptr);
}

// Device memory with zeros in it, and pinned host memory; never given back: the process ends soon.
CUdeviceptr zeros(size_t bytes);
template <class T>
T* pinned(size_t count) {
  void* at = nullptr;
  CALL(cuMemHostAlloc, &at, count * sizeof(T), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  T* words = static_cast<T*>(at);
  for (size_t i = 0; i < count; ++i) words[i] = T();
  return words;
}
template <class T>
T fetched(CUdeviceptr at) {
  T value;
  CALL(cuMemcpyDtoH, &value, at, sizeof value);
  return value;
}

CUstream new_stream();
std::vector<CUstream> new_streams(int count);
CUevent new_event(unsigned flags = CU_EVENT_DISABLE_TIMING);
// What `put` puts into the stream, as a graph that is ready to launch.
template <class Put>
CUgraphExec captured(CUstream stream, Put put) {
  CUgraph graph = nullptr;
  CUgraphExec made = nullptr;
  CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  put();
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuGraphInstantiate, &made, graph, 0);
  return made;
}

// machine.cpp
void attributes();
void descriptors();
void host_memory();
void multicast();
// streams.cpp
void streams_plain();
void streams_events();
void streams_graphs();
void joint_launch();
void gates();
void beside_a_kernel();
// costs.cpp
void flags();
void fences();
void lines();
void launches();
void threads();
void host_word();
void copies();

}  // namespace probe
