// What the machine itself can do, printed before a comparison, because virtual cores move: the
// one-way latency of a cache line between two cores, and how fast memory is copied. One JSON object
// on stdout. Each number is the best of several tries. Large copies are in huge pages, where there
// are any, and by the better of memcpy and streaming stores.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROUND_TRIPS = 20000, TRIES = 5, SMALL = 256 << 10, LARGE = 64 << 20, HUGE_PAGE = 2 << 20 };

static _Alignas(128) atomic_int ping;
static _Alignas(128) atomic_int pong;
static int cores[2];

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void *answer(void *unused) {
    pin(cores[1]);
    for (int i = 1; i <= ROUND_TRIPS; i++) {
        while (atomic_load_explicit(&ping, memory_order_acquire) != i) {}
        atomic_store_explicit(&pong, i, memory_order_release);
    }
    return unused;
}

static double one_way_latency_ns(void) {
    pthread_t other;
    atomic_store(&ping, 0);
    atomic_store(&pong, 0);
    if (pthread_create(&other, NULL, answer, NULL) != 0) exit(1);
    double start = 0;
    for (int i = 1; i <= ROUND_TRIPS; i++) {
        if (i == ROUND_TRIPS / 10) start = now_ns();
        atomic_store_explicit(&ping, i, memory_order_release);
        while (atomic_load_explicit(&pong, memory_order_acquire) != i) {}
    }
    double elapsed = now_ns() - start;
    pthread_join(other, NULL);
    return elapsed / (ROUND_TRIPS - ROUND_TRIPS / 10) / 2;
}

static char *allocate(size_t len) {
    char *memory = aligned_alloc(HUGE_PAGE, len < HUGE_PAGE ? HUGE_PAGE : len);
    if (!memory) exit(1);
    madvise(memory, len, MADV_HUGEPAGE);
    memset(memory, 1, len);
    return memory;
}

static void copy_around(char *to, const char *from, size_t len) {
#if defined(__x86_64__)
    for (size_t at = 0; at < len; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_load_si128((const __m128i *)(from + at)));
    _mm_sfence();
#else
    memcpy(to, from, len);
#endif
}

// Bytes copied per nanosecond (GB/s of payload: each byte is read once and written once).
static double copy_gbps(size_t len) {
    char *from = allocate(len), *to = allocate(len);
    int copies = len < LARGE ? 2000 : 2;
    double best = 0;
    for (int around = 0; around < 2; around++) {
        double start = now_ns();
        for (int i = 0; i < copies; i++) {
            if (around) copy_around(to, from, len);
            else memcpy(to, from, len);
            __asm__ volatile("" : : "r"(to) : "memory");
        }
        double gbps = (double)len * copies / (now_ns() - start);
        if (gbps > best) best = gbps;
    }
    free(from);
    free(to);
    return best;
}

typedef struct {
    int core;
    double gbps;
} Copier;

static void *copy_large(void *argument) {
    Copier *copier = argument;
    pin(copier->core);
    copier->gbps = copy_gbps(LARGE);
    return NULL;
}

static double both_copy_gbps(void) {
    pthread_t threads[2];
    Copier copiers[2] = {{cores[0], 0}, {cores[1], 0}};
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, copy_large, &copiers[i]) != 0) exit(1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return copiers[0].gbps + copiers[1].gbps;
}

int main(void) {
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    int found = 0;
    for (int core = 0; core < CPU_SETSIZE && found < 2; core++)
        if (CPU_ISSET(core, &allowed)) cores[found++] = core;
    if (found < 2) {
        fprintf(stderr, "machine: two cores are needed, only one is allowed\n");
        return 1;
    }
    double latency = 1e30, small = 0, large = 0, both = 0;
    for (int i = 0; i < TRIES; i++) {
        pin(cores[0]);
        double l = one_way_latency_ns(), s = copy_gbps(SMALL), g = copy_gbps(LARGE);
        double b = both_copy_gbps();
        if (l < latency) latency = l;
        if (s > small) small = s;
        if (g > large) large = g;
        if (b > both) both = b;
    }
    printf("{\"cache_line_one_way_ns\":%.0f,\"copy_256KiB_gbps\":%.1f,\"copy_64MiB_gbps\":%.1f,"
           "\"copy_64MiB_two_cores_gbps\":%.1f}\n", latency, small, large, both);
    return 0;
}
