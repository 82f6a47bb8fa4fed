// Names the probes and runs one; what all of them share.
#include "probe.h"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// The fat binary of kernels.cu, which tools/gpu-probe has made.
asm(".section .rodata\n.balign 64\n.global probe_image\nprobe_image:\n.incbin \"" PROBE_FATBIN "\"\n.byte 0\n.previous\n");
extern "C" const char probe_image[];

namespace probe {

static const char* asked = "";

static std::string quoted(const std::string& plain) {
  std::string made = "\"";
  for (char c : plain) {
    if (c == '"' || c == '\\') made += '\\';
    made += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return made + '"';
}

void fact(const std::string& what, double value, const char* unit, Hazard hazard, const std::string& says) {
  const char* real = hazard == Hazard::FIGURE ? "null" : hazard == Hazard::REAL ? "true" : "false";
  printf("{\"op\":\"probe\",\"probe\":%s,\"what\":%s,\"value\":%.6g,\"unit\":\"%s\",\"hazard\":%s,\"says\":%s}\n",
         quoted(asked).c_str(), quoted(what).c_str(), value, unit, real, quoted(says).c_str());
  fflush(stdout);
}

std::string text(const char* format, ...) {
  char made[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(made, sizeof made, format, arguments);
  va_end(arguments);
  return made;
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void give_up(const std::string& why) {
  fact("the probe ran to its end", 0, "", Hazard::REAL, "the probe " + std::string(asked) + " gave up: " + why);
  // Exit handlers wait for kernels.
  _exit(1);
}

static void* loaded(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) give_up(std::string("there is no driver: ") + dlerror());
  return dlsym(library, name);
}

const Driver& driver() {
  static const Driver all = [] {
    Driver made;
#define PROBE_TEXT(name) #name
#define PROBE_LOAD(name) made.name = reinterpret_cast<decltype(made.name)>(loaded(PROBE_TEXT(name)));
    PROBE_DRIVER(PROBE_LOAD)
    return made;
  }();
  return all;
}

std::string name_of(CUresult result) {
  const char* name = nullptr;
  if (ASK(cuGetErrorName, result, &name) != CUDA_SUCCESS || !name) return text("error %d", static_cast<int>(result));
  return name;
}

Gpu::Gpu() {
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
}

int Gpu::attribute(CUdevice_attribute which) const {
  int value = 0;
  return ASK(cuDeviceGetAttribute, &value, which, device) == CUDA_SUCCESS ? value : 0;
}

Kernels::Kernels() { CALL(cuModuleLoadData, &module, probe_image); }

CUfunction Kernels::operator[](const char* name) const {
  CUfunction found = nullptr;
  const CUresult result = ASK(cuModuleGetFunction, &found, module, name);
  if (result != CUDA_SUCCESS) give_up(std::string("the driver does not find the kernel ") + name + ": " + name_of(result));
  return found;
}

CUdeviceptr zeros(size_t bytes) {
  CUdeviceptr at = 0;
  CALL(cuMemAlloc, &at, bytes);
  CALL(cuMemsetD8, at, 0, bytes);
  CALL(cuCtxSynchronize);
  return at;
}

CUstream new_stream() {
  CUstream made = nullptr;
  CALL(cuStreamCreate, &made, CU_STREAM_NON_BLOCKING);
  return made;
}

std::vector<CUstream> new_streams(int count) {
  std::vector<CUstream> made(count);
  for (CUstream& stream : made) stream = new_stream();
  return made;
}

CUevent new_event(unsigned flags) {
  CUevent made = nullptr;
  CALL(cuEventCreate, &made, flags);
  return made;
}

// From what everything rests on to figures; the ones that may hang come behind the harmless.
static const struct {
  const char* name;
  void (*ask)();
} PROBES[] = {
    {"attributes", attributes},
    {"descriptors", descriptors},
    {"host_memory", host_memory},
    {"multicast", multicast},
    {"lines", lines},
    {"flags", flags},
    {"fences", fences},
    {"host_word", host_word},
    {"joint_launch", joint_launch},
    {"streams_plain", streams_plain},
    {"streams_events", streams_events},
    {"streams_graphs", streams_graphs},
    {"gates", gates},
    {"beside_a_kernel", beside_a_kernel},
    {"launches", launches},
    {"threads", threads},
    {"copies", copies},
};

}  // namespace probe

int main(int count, char** arguments) {
  for (const auto& one : probe::PROBES) {
    if (count < 2) puts(one.name);
    if (count == 2 && strcmp(arguments[1], one.name) == 0) {
      probe::asked = one.name;
      one.ask();
      fflush(stdout);
      // Exit handlers wait for kernels.
      _exit(0);
    }
  }
  if (count < 2) return 0;
  fprintf(stderr, "gpu-probe: no probe is named %s; without an argument it names them all\n", arguments[1]);
  return 2;
}
