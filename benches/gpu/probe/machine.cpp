// What the driver says it has, and memory as oxccl makes and shares it. No kernel of ours runs
// here.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "probe.h"

namespace probe {

void attributes() {
  const Gpu gpu;
  int version = 0;
  CALL(cuDriverGetVersion, &version);
  char name[128] = "";
  CALL(cuDeviceGetName, name, sizeof name, gpu.device);
  fact("the GPU", 0, "", Hazard::FIGURE, name);
  fact("version of the driver", version, "", version >= 13000 ? Hazard::NONE : Hazard::REAL,
       version >= 13000 ? "" : text("the driver is one of CUDA %d.%d, and the kernels were built by 13.0", version / 1000, version % 1000 / 10));
  static const struct {
    CUdevice_attribute which;
    const char* what;
    const char* without;  // what oxccl cannot do then; none: a figure
  } ATTRIBUTES[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute capability, major", nullptr},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "compute capability, minor", nullptr},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors", nullptr},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "bytes of L2", nullptr},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, "top clock, kHz", nullptr},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing", "ranks cannot share addresses"},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management", "staging goes by legacy IPC only"},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "memory by descriptors", "staging goes by legacy IPC only"},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit stream memory operations", "groups that wait for buckets do not run"},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, "cooperative launch", "ranks cannot share a launch"},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, "registered memory by the host's address", nullptr},
      {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, "GPUDirect RDMA", nullptr},
      {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, "GPUDirect RDMA with virtual memory management", nullptr},
      {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, "order of GPUDirect writes (100: owner, 200: all)", nullptr},
      {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, "waits that flush", nullptr},
      {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, "dmabufs", nullptr},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "memory by fabric handles", nullptr},
      {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, "multicast", nullptr},
      {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, "memory synchronisation domains", nullptr},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, "preemption", nullptr},
  };
  for (const auto& one : ATTRIBUTES) {
    const int value = gpu.attribute(one.which);
    if (!one.without) figure(one.what, value, "");
    else fact(one.what, value, "", value ? Hazard::NONE : Hazard::REAL, value ? "" : text("no %s: %s", one.what, one.without));
  }
}

// --- memory that another process maps

// What the first process sends the other.
struct Offer {
  CUipcMemHandle legacy;
  uint64_t bytes;
};

static bool send_offer(int socket, const Offer& offer, int descriptor) {
  iovec part = {const_cast<Offer*>(&offer), sizeof offer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  return sendmsg(socket, &message, 0) == sizeof offer;
}

static int received_offer(int socket, Offer& offer) {
  iovec part = {&offer, sizeof offer};
  int descriptor = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, 0) != sizeof offer || !CMSG_FIRSTHDR(&message)) return -1;
  memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

static CUresult mapped(const Gpu& gpu, CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr* at) {
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {gpu.device}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = ASK(cuMemAddressReserve, at, bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = ASK(cuMemMap, *at, bytes, 0, memory, 0);
  return result == CUDA_SUCCESS ? ASK(cuMemSetAccess, *at, bytes, &access, 1) : result;
}

static const uint64_t WRITTEN = 77, ANSWERED = 78;

// Reads what the other has written, and writes its answer beside it.
static CUresult answered(CUdeviceptr at) {
  uint64_t value = 0;
  CUresult result = ASK(cuMemcpyDtoH, &value, at, sizeof value);
  if (result == CUDA_SUCCESS && value != WRITTEN) return CUDA_ERROR_INVALID_VALUE;
  value = ANSWERED;
  return result == CUDA_SUCCESS ? ASK(cuMemcpyHtoD, at + 8, &value, sizeof value) : result;
}

// The other process: what each of the two ways came to.
[[noreturn]] static void other_process(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Offer offer;
  const int descriptor = received_offer(socket, offer);
  const Gpu gpu;
  CUresult results[2] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN};
  CUmemGenericAllocationHandle memory;
  CUdeviceptr at = 0;
  results[0] = ASK(cuMemImportFromShareableHandle, &memory, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)),
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (results[0] == CUDA_SUCCESS) results[0] = mapped(gpu, memory, offer.bytes, &at);
  if (results[0] == CUDA_SUCCESS) results[0] = answered(at);
  results[1] = ASK(cuIpcOpenMemHandle, &at, offer.legacy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (results[1] == CUDA_SUCCESS) results[1] = answered(at);
  _exit(write(socket, results, sizeof results) == sizeof results ? 0 : 1);
}

static void is_shared(const char* way, CUresult there, CUdeviceptr at) {
  const bool is_so = there == CUDA_SUCCESS && fetched<uint64_t>(at + 8) == ANSWERED;
  holds(text("another process writes memory that came by %s", way), is_so,
        text("processes cannot share memory by %s: %s", way, name_of(there).c_str()));
}

// Memory as staging and heaps are made of, with and without GPUDirect; the last that could be made.
static size_t created(const Gpu& gpu, CUmemGenericAllocationHandle* memory) {
  size_t made = 0;
  for (int direct = gpu.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0; direct >= 0; --direct) {
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {gpu.device}};
    wanted.allocFlags.gpuDirectRDMACapable = direct != 0;
    size_t granularity = 0;
    CALL(cuMemGetAllocationGranularity, &granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    figure(direct ? "granularity with GPUDirect" : "granularity", static_cast<double>(granularity), "bytes");
    const CUresult result = ASK(cuMemCreate, memory, granularity, &wanted, 0);
    if (result == CUDA_SUCCESS) made = granularity;
    holds(direct ? "memory that adapters may reach" : "memory that is exported by a descriptor", result == CUDA_SUCCESS,
          text("cuMemCreate%s: %s", direct ? " with gpuDirectRDMACapable" : "", name_of(result).c_str()));
  }
  return made;
}

void descriptors() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) give_up("no sockets");
  // Before there is a driver: its state does not outlive a fork.
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    other_process(sockets[1]);
  }
  close(sockets[1]);
  const Gpu gpu;
  CUmemGenericAllocationHandle memory = 0;
  const size_t bytes = created(gpu, &memory);
  if (bytes == 0) give_up("no memory can be made that another process maps");
  CUdeviceptr at = 0;
  must("mapping memory", mapped(gpu, memory, bytes, &at));
  Offer offer = {};
  offer.bytes = bytes;
  int descriptor = -1;
  CALL(cuMemExportToShareableHandle, &descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  const CUdeviceptr legacy = zeros(4096);
  CALL(cuIpcGetMemHandle, &offer.legacy, legacy);
  for (CUdeviceptr one : {at, legacy}) CALL(cuMemcpyHtoD, one, &WRITTEN, sizeof WRITTEN);
  CUresult results[2];
  if (!send_offer(sockets[0], offer, descriptor) || read(sockets[0], results, sizeof results) != sizeof results)
    give_up("the other process has ended without an answer");
  is_shared("descriptors", results[0], at);
  is_shared("legacy IPC", results[1], legacy);
  waitpid(child, nullptr, 0);
}

// --- a memory file of the host, as the control region is

void host_memory() {
  const Gpu gpu;
  const size_t bytes = 1 << 20;
  const int file = memfd_create("probe", 0);
  if (file < 0 || ftruncate(file, bytes) != 0) give_up("no memory file");
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) give_up("a memory file cannot be mapped");
  const CUresult result = ASK(cuMemHostRegister, at, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  holds("a memory file is registered for the GPU", result == CUDA_SUCCESS, "cuMemHostRegister of a memory file: " + name_of(result));
  if (result != CUDA_SUCCESS) return;
  CUdeviceptr device = 0;
  CALL(cuMemHostGetDevicePointer, &device, at, 0);
  holds("it has one address for host and GPU", device == reinterpret_cast<CUdeviceptr>(at), "a registered file has another address on the GPU");
  const CUstream stream = new_stream();
  const CUresult set = ASK(cuMemsetD32Async, device, 77, 1, stream);
  const CUresult wrote = ASK(cuStreamWriteValue64, stream, device + 64, 78, 0);
  CALL(cuStreamSynchronize, stream);
  const volatile uint32_t* words = static_cast<const volatile uint32_t*>(at);
  holds("the GPU sets words of it", set == CUDA_SUCCESS && words[0] == 77, "a memset of a registered file: " + name_of(set));
  holds("a stream writes values to it", wrote == CUDA_SUCCESS && words[16] == 78, "a stream's write to a registered file: " + name_of(wrote));
}

void multicast() {
  const Gpu gpu;
  if (!gpu.attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)) {
    figure("multicast, which this GPU says it has not", 0, "");
    return;
  }
  for (const size_t size : {size_t(0), size_t(32) << 20}) {
    CUmulticastObjectProp team = {};
    team.numDevices = 1;
    team.size = size;
    team.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t granularity = 0;
    const CUresult result = ASK(cuMulticastGetGranularity, &granularity, &team, CU_MULTICAST_GRANULARITY_RECOMMENDED);
    fact(size ? "granularity of a team with a size" : "granularity of a team without a size", static_cast<double>(granularity), "bytes",
         result == CUDA_SUCCESS ? Hazard::NONE : Hazard::REAL, result == CUDA_SUCCESS ? "" : "cuMulticastGetGranularity: " + name_of(result));
    if (result != CUDA_SUCCESS || size == 0) continue;
    CUmemGenericAllocationHandle made = 0;
    team.size = (size + granularity - 1) / granularity * granularity;
    const CUresult created = ASK(cuMulticastCreate, &made, &team);
    fact("a team of one GPU is made", created == CUDA_SUCCESS, "", Hazard::FIGURE, created == CUDA_SUCCESS ? "" : name_of(created));
  }
}

}  // namespace probe
