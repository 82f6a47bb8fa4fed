/* Lists the kernels that GPUs execute for a process, as CUPTI sees them. The CUDA driver loads this library at its start:
 *
 *     CUDA_INJECTION64_PATH=libprofile.so OXCCL_PROFILE=/tmp/kernels program
 *
 * leaves /tmp/kernels.PID with one JSON object a kernel, and a last one with the number of those that got lost. Concurrent kernels
 * stay concurrent: those of several ranks wait for each other. Profilers that repeat or order kernels cannot show them.
 */
#define _GNU_SOURCE
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BUFFER_BYTES = 4 << 20, ALIGNMENT = 8 };

static FILE *out;
static unsigned long long lost;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static int failed(const char *step, CUptiResult result) {
    const char *text = "unknown";
    if (result == CUPTI_SUCCESS) return 0;
    cuptiGetResultString(result, &text);
    fprintf(stderr, "profile: %s: %s\n", step, text);
    return 1;
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *most_records) {
    void *memory = NULL;
    *bytes = posix_memalign(&memory, ALIGNMENT, BUFFER_BYTES) == 0 ? BUFFER_BYTES : 0;
    *buffer = memory;
    *most_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid) {
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    (void)bytes;
    pthread_mutex_lock(&one_at_a_time);
    while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        const CUpti_ActivityKernel10 *kernel = (const CUpti_ActivityKernel10 *)record;
        if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        fprintf(out, "{\"name\":\"%s\",\"stream\":%u,\"graph\":%u,\"blocks\":%d,\"threads\":%d,\"start_ns\":%llu,\"end_ns\":%llu}\n",
                kernel->name ? kernel->name : "", kernel->streamId, kernel->graphId, kernel->gridX * kernel->gridY * kernel->gridZ,
                kernel->blockX * kernel->blockY * kernel->blockZ, (unsigned long long)kernel->start, (unsigned long long)kernel->end);
    }
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) lost += dropped;
    pthread_mutex_unlock(&one_at_a_time);
    free(buffer);
}

static void finish(void) {
    failed("cuptiActivityFlushAll", cuptiActivityFlushAll(1));
    fprintf(out, "{\"lost\":%llu}\n", lost);
    fclose(out);
}

/* What the driver calls; 1 goes on. */
int InitializeInjection(void) {
    char path[4096];
    const char *prefix = getenv("OXCCL_PROFILE");
    if (!prefix) {
        fprintf(stderr, "profile: OXCCL_PROFILE does not say where kernels are listed\n");
        return 1;
    }
    snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
    out = fopen(path, "we");
    if (!out) {
        perror(path);
        return 1;
    }
    if (failed("cuptiActivityRegisterCallbacks", cuptiActivityRegisterCallbacks(give_buffer, take_buffer)) ||
        failed("cuptiActivityEnable", cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)))
        return 1;
    atexit(finish);
    return 1;
}
