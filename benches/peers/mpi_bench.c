// One sweep of one collective over MPI, f32, in the loop that every contestant runs:
//
//   for each size: check once; calibrate k so that a repeat takes REPEAT_MS / 2 to REPEAT_MS;
//   repeats x { barrier; t0; k calls; t1 }: (t1 - t0) / k, maximum over ranks;
//   check again; report the median and the minimum of the repeats.
//
// Calls rotate over ROTATE buffers, or as many as have 64 MiB together, and reductions over sum,
// prod, min and max. With ROTATE 1 all are the same: sums on one buffer.
//
// Usage: mpi_bench OP SIZE[,SIZE...] REPEATS REPEAT_MS ROTATE     (OP as oxccl bench names it)
// A size means what it means in nccl-tests: one rank's buffer for all_reduce, broadcast and
// all_to_all; the whole output for all_gather; the whole input for reduce_scatter.
// One JSON object a row on stdout, from rank 0.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int rank, ranks;

// What calls rotate over, and whose turn it is.
enum { LINE = 128 / sizeof(float), ROTATED = (64 << 20) / sizeof(float), OPS = 4 };
static int rotate, places, place, ops, op;
static const MPI_Op operations[OPS] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX};

static size_t stride(size_t count) { return (count + LINE - 1) / LINE * LINE; }

static void turn(void) {
    place = place + 1 < places ? place + 1 : 0;
    op = op + 1 < ops ? op + 1 : 0;
}

typedef struct {
    const char *name;
    void (*call)(const float *in, float *out, int count);
    // The value that belongs at out[i]; count is the number of elements in the nccl-tests size.
    float (*expected)(int i, int count);
    // How many elements of the size a rank sends and receives: all of them, or a rank's share.
    int sends_share, receives_share;
    double bus_factor_per_rank, bus_factor; // busbw = algbw * (per_rank * (n-1)/n + constant)
} Collective;

// Small integers: every sum is exact, whatever the order.
static float input(int r, int i) { return (float)((i * 7 + r * 13) % 64); }

static float sum_at(int i) {
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += input(r, i);
    return sum;
}

static void all_reduce(const float *in, float *out, int count) {
    MPI_Allreduce(in, out, count, MPI_FLOAT, operations[op], MPI_COMM_WORLD);
}
static float all_reduce_expected(int i, int count) { return (void)count, sum_at(i); }

static void reduce_scatter(const float *in, float *out, int count) {
    MPI_Reduce_scatter_block(in, out, count / ranks, MPI_FLOAT, operations[op], MPI_COMM_WORLD);
}
static float reduce_scatter_expected(int i, int count) { return sum_at(rank * (count / ranks) + i); }

static void all_gather(const float *in, float *out, int count) {
    MPI_Allgather(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}
static float all_gather_expected(int i, int count) {
    int share = count / ranks;
    return input(i / share, i % share);
}

static void all_to_all(const float *in, float *out, int count) {
    MPI_Alltoall(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}
static float all_to_all_expected(int i, int count) {
    int share = count / ranks;
    return input(i / share, rank * share + i % share);
}

// MPI has no out-of-place broadcast: the root's buffer is the output buffer too.
static void broadcast(const float *in, float *out, int count) {
    (void)in;
    MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static float broadcast_expected(int i, int count) { return (void)count, input(0, i); }

static const Collective collectives[] = {
    {"all_reduce", all_reduce, all_reduce_expected, 0, 0, 2, 0},
    {"reduce_scatter", reduce_scatter, reduce_scatter_expected, 0, 1, 1, 0},
    {"all_gather", all_gather, all_gather_expected, 1, 0, 1, 0},
    {"all_to_all", all_to_all, all_to_all_expected, 0, 0, 1, 0},
    {"broadcast", broadcast, broadcast_expected, 0, 0, 0, 1},
};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

// As many buffers of this length as calls rotate over.
static float *allocate(size_t count) {
    count = stride(count) * places;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, count * sizeof(float)) != 0) {
        fprintf(stderr, "mpi_bench: no memory for %zu floats\n", count);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(memory, 0, count * sizeof(float));
    return memory;
}

// One call into a poisoned output, a sum: the number of wrong elements on all ranks.
static long check(const Collective *c, const float *in, float *out, int count) {
    int received = c->receives_share ? count / ranks : count;
    int root_of_broadcast = c->call == broadcast && rank == 0;
    op = 0;
    for (int i = 0; i < received; i++) out[i] = root_of_broadcast ? input(0, i) : -1.0f;
    c->call(in, out, count);
    long wrong = 0, total = 0;
    for (int i = 0; i < received; i++) wrong += out[i] != c->expected(i, count);
    MPI_Allreduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return total;
}

// Mean microseconds a call over `calls` calls, the slowest rank's.
static double repeat(const Collective *c, const float *in, float *out, int count, int calls) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_us();
    size_t sent = stride(c->sends_share ? count / ranks : count), received = stride(count);
    for (int i = 0; i < calls; i++) {
        turn();
        c->call(in + place * sent, out + place * received, count);
    }
    double mean = (now_us() - start) / calls, slowest = 0;
    MPI_Allreduce(&mean, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

// Doubles the number of calls until a repeat takes at least half of the wanted time. The faster of
// two repeats counts, so that one hiccup does not end it.
static int calibrate(const Collective *c, const float *in, float *out, int count, double want_us) {
    int calls = 1;
    while (calls < (1 << 20)) {
        double first = repeat(c, in, out, count, calls), second = repeat(c, in, out, count, calls);
        if ((first < second ? first : second) * calls >= want_us / 2) return calls;
        calls *= 2;
    }
    return calls;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const Collective *c, size_t bytes, int repeats, double repeat_ms) {
    int count = (int)(bytes / sizeof(float));
    int sent = c->sends_share ? count / ranks : count;
    size_t fit = ROTATED / stride(count);
    places = fit < 1 ? 1 : fit < (size_t)rotate ? (int)fit : rotate;
    place = 0;
    ops = rotate > 1 && (c->call == all_reduce || c->call == reduce_scatter) ? OPS : 1;
    float *in = allocate(sent), *out = allocate(count);
    for (int at = 0; at < places; at++)
        for (int i = 0; i < sent; i++) in[at * stride(sent) + i] = input(rank, i);
    long wrong = check(c, in, out, count);
    int calls = calibrate(c, in, out, count, repeat_ms * 1000);
    double *times = calloc(repeats, sizeof *times);
    if (!times) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int r = 0; r < repeats; r++) times[r] = repeat(c, in, out, count, calls);
    wrong += check(c, in, out, count);
    qsort(times, repeats, sizeof *times, compare);
    double median = (times[(repeats - 1) / 2] + times[repeats / 2]) / 2;
    double algbw = bytes / median / 1e3;
    double busbw = algbw * (c->bus_factor_per_rank * (ranks - 1) / ranks + c->bus_factor);
    if (rank == 0) {
        printf("{\"op\":\"%s\",\"type\":\"f32\",\"redop\":\"sum\",\"ranks\":%d,\"nodes\":1,"
               "\"bytes\":%zu,\"count\":%d,\"in_place\":%s,\"time_us\":%.4f,\"min_us\":%.4f,"
               "\"algbw_gbps\":%.4f,\"busbw_gbps\":%.4f,\"wrong\":%ld,\"calls\":%d,"
               "\"buffers\":%d,\"ops\":%d}\n",
               c->name, ranks, bytes, count, c->call == broadcast ? "true" : "false", median,
               times[0], algbw, busbw, wrong, calls, places, ops);
        fflush(stdout);
    }
    free(times);
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const Collective *collective = NULL;
    for (size_t i = 0; argc == 6 && i < sizeof collectives / sizeof *collectives; i++)
        if (strcmp(argv[1], collectives[i].name) == 0) collective = &collectives[i];
    if (!collective || atoi(argv[3]) < 1 || atof(argv[4]) <= 0 || atoi(argv[5]) < 1) {
        if (rank == 0) fprintf(stderr, "usage: mpi_bench OP SIZE[,SIZE...] REPEATS REPEAT_MS ROTATE\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
        return 2;
    }
    rotate = atoi(argv[5]);
    for (char *size = strtok(argv[2], ","); size; size = strtok(NULL, ","))
        measure(collective, strtoull(size, NULL, 10), atoi(argv[3]), atof(argv[4]));
    MPI_Finalize();
    return 0;
}
