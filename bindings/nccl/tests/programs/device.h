/* Memory and streams of a rank: the host's where OXCCL_DEVICE=host, otherwise a GPU's, by the
 * driver. */
#ifndef DEVICE_H
#define DEVICE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is) do { if (!(is)) { \
    fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #is); fflush(NULL); _exit(1); } } while (0)
#define OK(call) do { ncclResult_t code_ = (call); if (code_ != ncclSuccess) { \
    fprintf(stderr, "%s:%d: %s is %d: %s\n", __FILE__, __LINE__, #call, code_, ncclGetLastError(NULL)); \
    fflush(NULL); _exit(1); } } while (0)

static int is_host(void) {
    const char *device = getenv("OXCCL_DEVICE");
    return device && strcmp(device, "host") == 0;
}

static void *driver(const char *name) {
    static void *library;
    if (!library) CHECK((library = dlopen("libcuda.so.1", RTLD_NOW)) != NULL);
    void *function = dlsym(library, name);
    if (!function) { fprintf(stderr, "no %s\n", name); _exit(1); }
    return function;
}

#define CUDA(name, types, ...) CHECK(((int (*)types)driver(#name))(__VA_ARGS__) == 0)

/* Makes a GPU the thread's own. */
static void use_device(int number) {
    if (is_host()) return;
    void *context;
    int device;
    CUDA(cuInit, (unsigned), 0);
    CUDA(cuDeviceGet, (int *, int), &device, number);
    CUDA(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
    CUDA(cuCtxSetCurrent, (void *), context);
}

static stream_t new_stream(void) {
    stream_t stream = NULL;
    if (!is_host()) CUDA(cuStreamCreate, (void **, unsigned), &stream, 1);
    return stream;
}

static void synchronize(stream_t stream) {
    if (!is_host()) CUDA(cuStreamSynchronize, (void *), stream);
}

static void *device_memory(size_t bytes) {
    if (is_host()) return malloc(bytes ? bytes : 1);
    unsigned long long at;
    CUDA(cuMemAlloc_v2, (unsigned long long *, size_t), &at, bytes);
    return (void *)at;
}

static void to_device(void *to, const void *from, size_t bytes) {
    if (is_host()) memcpy(to, from, bytes);
    else CUDA(cuMemcpyHtoD_v2, (unsigned long long, const void *, size_t),
              (unsigned long long)to, from, bytes);
}

static void from_device(void *to, const void *from, size_t bytes) {
    if (is_host()) memcpy(to, from, bytes);
    else CUDA(cuMemcpyDtoH_v2, (void *, unsigned long long, size_t),
              to, (unsigned long long)from, bytes);
}

#endif
