/* One device a process. The communicators are destroyed from a static destructor, as frameworks
 * do. */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "rank.h"

static ncclComm_t comm;

__attribute__((destructor)) static void end(void) {
    if (comm) OK(ncclCommDestroy(comm));
}

/* Twenty calls between ncclGroupStart and ncclGroupEnd are one launch. */
static void coalescing(int rank, int ranks) {
    enum { CALLS = 20 };
    struct buffers of[CALLS];
    stream_t stream = new_stream();
    for (int i = 0; i < CALLS; i++) of[i] = make_buffers(rank, COUNT, COUNT, stream);
    uint64_t before = is_host() ? 0 : ((uint64_t (*)(void))driver("oxccl_stand_in_launches"))();
    OK(ncclGroupStart());
    for (int i = 0; i < CALLS; i++)
        OK(ncclAllReduce(of[i].in, of[i].out, COUNT, ncclFloat32, ncclSum, comm, stream));
    OK(ncclGroupEnd());
    synchronize(stream);
    if (!is_host()) CHECK(((uint64_t (*)(void))driver("oxccl_stand_in_launches"))() == before + 1);
    for (int i = 0; i < CALLS; i++) {
        float *got = results(of[i]);
        for (size_t at = 0; at < COUNT; at++) CHECK(got[at] == sum_at(ranks, at));
    }
}

/* Calls that were captured take nothing of the host when they are replayed: of the driver one call,
 * which launches the graph; of the library none. */
static void replays(int rank, int ranks) {
    enum { ROUNDS = 5 };
    if (is_host()) return;
    uint64_t (*calls)(void) = (uint64_t (*)(void))driver("oxccl_stand_in_calls");
    stream_t stream = new_stream();
    struct buffers one = make_buffers(rank, COUNT, COUNT, stream);
    struct buffers two = make_buffers(rank, COUNT, COUNT * ranks, stream);
    float own = (float)(rank + 1);
    int op;
    void *graph, *ready;
    OK(ncclRedOpCreatePreMulSum(&op, &own, ncclFloat32, 1, comm));
    for (int is_captured = 0; is_captured < 2; is_captured++) {
        if (is_captured) CUDA(cuStreamBeginCapture_v2, (void *, int), stream, 1);
        OK(ncclAllReduce(one.in, one.out, COUNT, ncclFloat32, op, comm, stream));
        OK(ncclGroupStart());
        OK(ncclAllGather(two.in, two.out, COUNT, ncclFloat32, comm, stream));
        OK(ncclAllReduce(one.out, one.out, COUNT, ncclFloat32, ncclMax, comm, stream));
        OK(ncclGroupEnd());
        if (is_captured) CUDA(cuStreamEndCapture, (void *, void **), stream, &graph);
    }
    CUDA(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long), &ready, graph, 0);
    int (*launch)(void *, void *) = (int (*)(void *, void *))driver("cuGraphLaunch");
    /* The library's threads come to the end of the eager calls first. */
    uint64_t before = 0;
    for (int tries = 0; calls() != before; tries++) {
        CHECK(tries < 100);
        before = calls();
        usleep(100000);
    }
    for (int round = 0; round < ROUNDS; round++) CHECK(launch(ready, stream) == 0);
    CHECK(calls() == before + ROUNDS);
    synchronize(stream);
    /* Neither did any thread of the library's make one while the graphs ran. */
    CHECK(calls() == before + ROUNDS + 1);
    float *got = results(one), *all = results(two);
    for (size_t i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) sum += input_of(r, i) * (float)(r + 1);
        CHECK(got[i] == sum && all[i] == input_of(0, i));
    }
    OK(ncclRedOpDestroy(op, comm));
    CUDA(cuGraphExecDestroy, (void *), ready);
    CUDA(cuGraphDestroy, (void *), graph);
}

/* A factor in device memory is read at each replay, in every type. */
static void factors_of_replays(int ranks) {
    /* 1, 2 and 4 in each type; both ranks have 1. */
    static const struct { int type; size_t bytes; uint64_t one, two, four; } TYPES[] = {
        { ncclInt8, 1, 1, 2, 4 }, { ncclUint8, 1, 1, 2, 4 }, { ncclInt32, 4, 1, 2, 4 },
        { ncclUint32, 4, 1, 2, 4 }, { ncclInt64, 8, 1, 2, 4 }, { ncclUint64, 8, 1, 2, 4 },
        { ncclFloat16, 2, 0x3c00, 0x4000, 0x4400 },
        { ncclFloat32, 4, 0x3f800000, 0x40000000, 0x40800000 },
        { ncclFloat64, 8, 0x3ff0000000000000, 0x4000000000000000, 0x4010000000000000 },
        { ncclBfloat16, 2, 0x3f80, 0x4000, 0x4080 },
        { ncclFloat8e4m3, 1, 0x38, 0x40, 0x48 }, { ncclFloat8e5m2, 1, 0x3c, 0x40, 0x44 },
    };
    if (is_host() || ranks != 2) return;
    stream_t stream = new_stream();
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++) {
        char in[COUNT * 8], out[COUNT * 8], *from = device_memory(sizeof in), *to = device_memory(sizeof in);
        size_t bytes = TYPES[t].bytes;
        void *factor = device_memory(8), *graph, *ready;
        int op;
        for (size_t i = 0; i < COUNT; i++) memcpy(in + i * bytes, &TYPES[t].one, bytes);
        to_device(from, in, sizeof in);
        to_device(factor, &TYPES[t].two, 8);
        OK(ncclRedOpCreatePreMulSum(&op, factor, TYPES[t].type, 0, comm));
        for (int is_captured = 0; is_captured < 2; is_captured++) {
            if (is_captured) CUDA(cuStreamBeginCapture_v2, (void *, int), stream, 1);
            OK(ncclAllReduce(from, to, COUNT, TYPES[t].type, op, comm, stream));
            if (is_captured) CUDA(cuStreamEndCapture, (void *, void **), stream, &graph);
            synchronize(stream);
        }
        OK(ncclRedOpDestroy(op, comm));
        CUDA(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long), &ready, graph, 0);
        for (int round = 0; round < 2; round++) {
            to_device(factor, round ? &TYPES[t].one : &TYPES[t].two, 8);
            CUDA(cuGraphLaunch, (void *, void *), ready, stream);
            synchronize(stream);
            from_device(out, to, sizeof out);
            for (size_t i = 0; i < COUNT; i++)
                CHECK(memcmp(out + i * bytes, round ? &TYPES[t].two : &TYPES[t].four, bytes) == 0);
        }
        CUDA(cuGraphExecDestroy, (void *), ready);
        CUDA(cuGraphDestroy, (void *), graph);
    }
}

/* Whether memory is of a file that has no name, which others may map, too. */
static int is_of_a_file(const void *at) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        size_t first, end;
        CHECK(sscanf(line, "%zx-%zx", &first, &end) == 2);
        if (first <= (size_t)at && (size_t)at < end) found = strstr(line, "/memfd:") != NULL;
    }
    fclose(maps);
    return found;
}

/* On the host the others reach a window's memory in place until it ends. */
static void windows_on_the_host(int rank, int ranks) {
    enum { MANY = 100003, BYTES = MANY * 4 };
    if (!is_host()) return;
    struct buffers b = make_buffers(rank, MANY, MANY, NULL);
    void *windows[2], *address, *out;
    /* Of this memory the last page is moved, too. */
    OK(ncclMemAlloc(&out, BYTES));
    b.out = out;
    for (int round = 0; round < 3; round++) {
        if (round == 1) {
            OK(ncclCommWindowRegister(comm, b.in, BYTES, &windows[0], 1));
            OK(ncclCommWindowRegister(comm, b.out, BYTES, &windows[1], 1));
            OK(ncclWinGetUserPtr(comm, windows[1], &address));
            CHECK(windows[0] && windows[1] && address == b.out);
        }
        CHECK(is_of_a_file(b.in + MANY / 2) == (round == 1));
        CHECK(is_of_a_file(b.out + MANY / 2) == (round == 1));
        CHECK(is_of_a_file(b.out + MANY - 1) == (round == 1));
        memset(b.out, 0xff, BYTES);
        OK(ncclAllReduce(b.in, b.out, MANY, ncclFloat32, ncclSum, comm, NULL));
        if (round == 1)
            for (int w = 0; w < 2; w++) OK(ncclCommWindowDeregister(comm, windows[w]));
        for (size_t i = 0; i < MANY; i++) CHECK(b.in[i] == input_of(rank, i) && b.out[i] == sum_at(ranks, i));
    }
    /* Where one rank's memory stays where it is, no rank has a window. */
    void *shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(ncclCommWindowRegister(comm, rank == 1 ? shared : b.in, BYTES, &windows[0], 1));
    CHECK(windows[0] == NULL && !is_of_a_file(b.in + MANY / 2));
    OK(ncclAllReduce(b.in, rank == 1 ? shared : b.out, MANY, ncclFloat32, ncclSum, comm, NULL));
    OK(ncclMemFree(out));
}

int main(int argc, char **argv) {
    int ranks = atoi(argv[1]), devices = argc > 2 ? atoi(argv[2]) : 1, failed = 0, status;
    int pipes[8][2];
    for (int r = 0; r < ranks; r++) {
        CHECK(pipe(pipes[r]) == 0);
        if (fork() == 0) {
            ncclUniqueId id;
            if (r == 0) {
                OK(pncclGetUniqueId(&id));
                for (int to = 1; to < ranks; to++) CHECK(write(pipes[0][1], &id, 128) == 128);
            } else {
                CHECK(read(pipes[0][0], &id, 128) == 128);
            }
            use_device(r % devices);
            OK(ncclCommInitRankScalable(&comm, ranks, r, 1, &id, NULL));
            whole_rank(comm, r, ranks);
            coalescing(r, ranks);
            replays(r, ranks);
            factors_of_replays(ranks);
            windows_on_the_host(r, ranks);
            return 0;
        }
    }
    while (wait(&status) > 0) failed |= status;
    if (!failed) puts("done");
    return failed != 0;
}
