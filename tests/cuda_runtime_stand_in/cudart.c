/* The CUDA runtime over the driver, as far as PyTorch's tensors, streams, events, graphs and copies
 * need it: for tests on the stand-in driver. Kernels of programs cannot run there, and say so. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of errors are the same in both interfaces. */
static __thread cudaError_t last = cudaSuccess;
static __thread int device = 0;

static cudaError_t said(CUresult code) {
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY) last = (cudaError_t)code;
    return (cudaError_t)code;
}

/* Makes the thread's device current, as every call of the runtime does. */
static CUresult enter(void) {
    static CUcontext contexts[64];
    CUcontext now = NULL;
    CUdevice found;
    CUresult code = cuInit(0);
    if (code) return code;
    if (device >= 64) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext own = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE);
    if (!own) {
        if ((code = cuDeviceGet(&found, device))) return code;
        if ((code = cuDevicePrimaryCtxRetain(&own, found))) return code;
        __atomic_store_n(&contexts[device], own, __ATOMIC_RELEASE);
    }
    if ((code = cuCtxGetCurrent(&now))) return code;
    return now == own ? CUDA_SUCCESS : cuCtxSetCurrent(own);
}

#define DO(call) do { CUresult code_ = enter(); return said(code_ ? code_ : (call)); } while (0)
#define REFUSED(name, types) cudaError_t name types { \
    fprintf(stderr, "stand-in runtime: %s is not there\n", #name); return last = cudaErrorNotSupported; }

cudaError_t cudaGetDeviceCount(int *count) {
    CUresult code = cuInit(0);
    return said(code ? code : cuDeviceGetCount(count));
}
cudaError_t cudaGetDevice(int *to) { *to = device; return cudaSuccess; }
cudaError_t cudaSetDevice(int to) {
    int count;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code) return code;
    if (to < 0 || to >= count) return last = cudaErrorInvalidDevice;
    device = to;
    return said(enter());
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int of) {
    /* The stand-in knows few; of the others there is nothing. */
    if (cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, of)) *value = 0;
    return cudaSuccess;
}
static int attribute(CUdevice_attribute which, int of, int otherwise) {
    int value;
    return cuDeviceGetAttribute(&value, which, of) ? otherwise : value;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *to, int of) {
    int count;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code) return code;
    if (of < 0 || of >= count) return last = cudaErrorInvalidDevice;
    memset(to, 0, sizeof *to);
    cuDeviceGetName(to->name, sizeof to->name, of);
    cuDeviceTotalMem(&to->totalGlobalMem, of);
    to->major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, of, 9);
    to->minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, of, 0);
    to->multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, of, 1);
    to->maxThreadsPerMultiProcessor = 2048;
    to->maxThreadsPerBlock = 1024;
    to->warpSize = 32;
    to->regsPerBlock = to->regsPerMultiprocessor = 65536;
    to->sharedMemPerBlock = 49152;
    to->unifiedAddressing = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to) { DO(cuDeviceCanAccessPeer(can, from, to)); }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    CUcontext of;
    CUresult code = enter();
    if (!code) code = cuDevicePrimaryCtxRetain(&of, peer);
    return said(code ? code : cuCtxEnablePeerAccess(of, flags));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *to, int len, int of) {
    snprintf(to, (size_t)len, "0000:%02x:00.0", of);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { DO(cuCtxSynchronize()); }
cudaError_t cudaDeviceReset(void) { DO(cuCtxSynchronize()); }
cudaError_t cudaDriverGetVersion(int *version) { return said(cuDriverGetVersion(version)); }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }

cudaError_t cudaGetLastError(void) { cudaError_t was = last; last = cudaSuccess; return was; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorName(cudaError_t code) {
    const char *text;
    return cuGetErrorName((CUresult)code, &text) ? "unrecognized error" : text;
}
const char *cudaGetErrorString(cudaError_t code) {
    const char *text;
    return cuGetErrorString((CUresult)code, &text) ? "unrecognized error" : text;
}

cudaError_t cudaMalloc(void **to, size_t bytes) {
    CUdeviceptr at = 0;
    CUresult code = enter();
    if (!code && bytes) code = cuMemAlloc(&at, bytes);
    if (!code) *to = (void *)at;
    return said(code);
}
cudaError_t cudaFree(void *at) {
    if (!at) return said(enter());
    DO(cuMemFree((CUdeviceptr)at));
}
cudaError_t cudaMallocHost(void **to, size_t bytes) { DO(cuMemHostAlloc(to, bytes, 0)); }
cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned flags) { DO(cuMemHostAlloc(to, bytes, flags)); }
cudaError_t cudaFreeHost(void *at) { DO(cuMemFreeHost(at)); }
cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags) { DO(cuMemHostRegister(at, bytes, flags)); }
cudaError_t cudaHostUnregister(void *at) { DO(cuMemHostUnregister(at)); }
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) { DO(cuMemGetInfo(unused, total)); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    if (!bytes) return cudaSuccess;
    DO(cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    if (code) return code;
    DO(cuStreamSynchronize(NULL));
}
cudaError_t cudaMemcpyPeerAsync(void *to, int dst, const void *from, int src, size_t bytes, cudaStream_t stream) {
    (void)dst, (void)src;
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++) {
        cudaError_t code = cudaMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch,
                                           width, kind, stream);
        if (code) return code;
    }
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    if (!bytes) return cudaSuccess;
    DO(cuMemsetD8Async((CUdeviceptr)to, (unsigned char)value, bytes, stream));
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    cudaError_t code = cudaMemsetAsync(to, value, bytes, NULL);
    if (code) return code;
    DO(cuStreamSynchronize(NULL));
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *to, const void *at) {
    CUmemorytype type = 0;
    int ordinal = 0;
    memset(to, 0, sizeof *to);
    CUresult code = enter();
    if (code) return said(code);
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)at)) {
        to->type = cudaMemoryTypeUnregistered;
        to->hostPointer = (void *)at;
        return cudaSuccess;
    }
    cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)at);
    to->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    to->device = ordinal;
    to->devicePointer = (void *)at;
    to->hostPointer = type == CU_MEMORYTYPE_DEVICE ? NULL : (void *)at;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *to, unsigned flags) { DO(cuStreamCreate(to, flags)); }
cudaError_t cudaStreamCreate(cudaStream_t *to) { return cudaStreamCreateWithFlags(to, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *to, unsigned flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(to, flags);
}
cudaError_t cudaStreamGetPriority(cudaStream_t of, int *priority) { (void)of; *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t of) { DO(cuStreamDestroy(of)); }
cudaError_t cudaStreamQuery(cudaStream_t of) { DO(cuStreamQuery(of)); }
cudaError_t cudaStreamSynchronize(cudaStream_t of) { DO(cuStreamSynchronize(of)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t of, cudaEvent_t event, unsigned flags) { DO(cuStreamWaitEvent(of, event, flags)); }
cudaError_t cudaLaunchHostFunc(cudaStream_t of, cudaHostFn_t act, void *data) { DO(cuLaunchHostFunc(of, act, data)); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *to, unsigned flags) { DO(cuEventCreate(to, flags)); }
cudaError_t cudaEventCreate(cudaEvent_t *to) { return cudaEventCreateWithFlags(to, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t of) { DO(cuEventDestroy(of)); }
cudaError_t cudaEventQuery(cudaEvent_t of) { DO(cuEventQuery(of)); }
cudaError_t cudaEventSynchronize(cudaEvent_t of) { DO(cuEventSynchronize(of)); }
cudaError_t cudaEventRecord(cudaEvent_t of, cudaStream_t in) { DO(cuEventRecord(of, in)); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t of, cudaStream_t in, unsigned flags) { (void)flags; DO(cuEventRecord(of, in)); }
cudaError_t cudaEventElapsedTime(float *to, cudaEvent_t from, cudaEvent_t until) { DO(cuEventElapsedTime(to, from, until)); }

cudaError_t cudaStreamBeginCapture(cudaStream_t of, enum cudaStreamCaptureMode mode) {
    DO(cuStreamBeginCapture(of, (CUstreamCaptureMode)mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t of, cudaGraph_t *to) { DO(cuStreamEndCapture(of, to)); }
cudaError_t cudaStreamIsCapturing(cudaStream_t of, enum cudaStreamCaptureStatus *to) {
    DO(cuStreamIsCapturing(of, (CUstreamCaptureStatus *)to));
}
CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t of, enum cudaStreamCaptureStatus *state, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    cuuint64_t number = 0;
    if (edges) *edges = NULL;
    CUresult code = enter();
    if (!code) code = cuStreamGetCaptureInfo_v2(of, (CUstreamCaptureStatus *)state, &number, graph, nodes, count);
    if (id) *id = number;
    return said(code);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    DO(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *to, cudaGraph_t of, unsigned long long flags) {
    DO(cuGraphInstantiateWithFlags(to, of, flags));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *to, cudaGraph_t of, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(to, of, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t of, cudaStream_t in) { DO(cuGraphLaunch(of, in)); }
cudaError_t cudaGraphDestroy(cudaGraph_t of) { DO(cuGraphDestroy(of)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t of) { DO(cuGraphExecDestroy(of)); }
cudaError_t cudaGraphGetNodes(cudaGraph_t of, cudaGraphNode_t *to, size_t *count) { DO(cuGraphGetNodes(of, to, count)); }
/* What a graph retains lasts as long as the process. */
struct CUuserObject_st { void *of; cudaHostFn_t destroy; unsigned count; };
cudaError_t cudaUserObjectCreate(cudaUserObject_t *to, void *of, cudaHostFn_t destroy, unsigned count, unsigned flags) {
    (void)flags;
    if (!(*to = malloc(sizeof **to))) return last = cudaErrorMemoryAllocation;
    (*to)->of = of, (*to)->destroy = destroy, (*to)->count = count;
    return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t of, unsigned count) {
    if (__atomic_sub_fetch(&of->count, count, __ATOMIC_ACQ_REL) == 0) {
        of->destroy(of->of);
        free(of);
    }
    return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t of, unsigned count, unsigned flags) {
    (void)graph;
    if (!(flags & cudaGraphUserObjectMove)) __atomic_add_fetch(&of->count, count, __ATOMIC_ACQ_REL);
    return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *to, void *at) { DO(cuIpcGetMemHandle((CUipcMemHandle *)to, (CUdeviceptr)at)); }
cudaError_t cudaIpcCloseMemHandle(void *at) { DO(cuIpcCloseMemHandle((CUdeviceptr)at)); }
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* Kernels: programs register theirs when they are loaded, and none can be launched. */
void **__cudaRegisterFatBinary(void *of) { (void)of; static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **of) { (void)of; }
void __cudaUnregisterFatBinary(void **of) { (void)of; }
void __cudaRegisterFunction(void **a, const char *b, char *c, const char *d, int e, void *f, void *g, void *h,
                            void *i, int *j) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h, (void)i, (void)j;
}
void __cudaRegisterVar(void **a, char *b, char *c, const char *d, int e, size_t f, int g, int h) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
}
static __thread struct { dim3 grid, block; size_t shared; void *stream; } configured;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    configured.grid = grid, configured.block = block, configured.shared = shared, configured.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configured.grid, *block = configured.block, *shared = configured.shared;
    *(void **)stream = configured.stream;
    return cudaSuccess;
}
REFUSED(cudaLaunchKernel, (const void *a, dim3 b, dim3 c, void **d, size_t e, cudaStream_t f))
REFUSED(__cudaLaunchKernel, (const void *a, dim3 b, dim3 c, void **d, size_t e, cudaStream_t f))
cudaError_t __cudaGetKernel(cudaKernel_t *to, const void *of) { *to = (cudaKernel_t)of; return cudaSuccess; }
REFUSED(cudaLaunchCooperativeKernel, (const void *a, dim3 b, dim3 c, void **d, size_t e, cudaStream_t f))
REFUSED(cudaLaunchKernelExC, (const cudaLaunchConfig_t *a, const void *b, void **c))
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *to, const void *of) {
    (void)of;
    memset(to, 0, sizeof *to);
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *a, enum cudaFuncAttribute b, int c) { (void)a, (void)b, (void)c; return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **to, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    (void)name, (void)version, (void)flags;
    *to = NULL;
    if (found) *found = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
