/* What one rank of any program does: every call, with fresh input and poisoned output, against what
 * it works out by itself. */
#ifndef RANK_H
#define RANK_H

#include "calls.h"
#include "device.h"

enum { COUNT = 1003 };

/* What rank r has at place i: small whole numbers, whose sums no type rounds. */
static float input_of(int r, size_t i) { return (float)((r * 37 + i * 11) % 64); }

struct buffers { float *in, *out; size_t in_count, out_count; stream_t stream; };

static struct buffers make_buffers(int rank, size_t in_count, size_t out_count, stream_t stream) {
    struct buffers made = { device_memory(in_count * 4), device_memory(out_count * 4), in_count,
                            out_count, stream };
    float *host = malloc((in_count > out_count ? in_count : out_count) * 4 + 4);
    for (size_t i = 0; i < in_count; i++) host[i] = input_of(rank, i);
    to_device(made.in, host, in_count * 4);
    memset(host, 0xff, out_count * 4);
    to_device(made.out, host, out_count * 4);
    free(host);
    return made;
}

static float *results(struct buffers of) {
    synchronize(of.stream);
    float *host = malloc(of.out_count * 4 + 4);
    from_device(host, of.out, of.out_count * 4);
    return host;
}

static float sum_at(int ranks, size_t i) {
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += input_of(r, i);
    return sum;
}

/* A call, and what rank `rank` then has. */
static void all_calls(ncclComm_t comm, int rank, int ranks, stream_t stream) {
    size_t all = (size_t)COUNT * ranks;
    int root = ranks - 1, is_root = rank == root;

    struct buffers b = make_buffers(rank, COUNT, COUNT, stream);
    OK(ncclAllReduce(b.in, b.out, COUNT, ncclFloat32, ncclSum, comm, stream));
    float *got = results(b);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == sum_at(ranks, i));

    OK(ncclAllReduce(b.in, b.in, COUNT, ncclFloat32, ncclMax, comm, stream));
    b.out = b.in;
    got = results(b);
    for (size_t i = 0; i < COUNT; i++) {
        float most = 0;
        for (int r = 0; r < ranks; r++) if (input_of(r, i) > most) most = input_of(r, i);
        CHECK(got[i] == most);
    }

    b = make_buffers(rank, all, COUNT, stream);
    OK(ncclReduceScatter(b.in, b.out, COUNT, ncclFloat32, ncclSum, comm, stream));
    got = results(b);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == sum_at(ranks, (size_t)rank * COUNT + i));

    b = make_buffers(rank, COUNT, all, stream);
    OK(ncclAllGather(b.in, b.out, COUNT, ncclFloat32, comm, stream));
    got = results(b);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < COUNT; i++) CHECK(got[r * COUNT + i] == input_of(r, i));

    b = make_buffers(rank, all, all, stream);
    OK(ncclAlltoAll(b.in, b.out, COUNT, ncclFloat32, comm, stream));
    got = results(b);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < COUNT; i++)
            CHECK(got[r * COUNT + i] == input_of(r, (size_t)rank * COUNT + i));

    b = make_buffers(rank, COUNT, COUNT, stream);
    OK(ncclBroadcast(is_root ? b.in : NULL, b.out, COUNT, ncclFloat32, root, comm, stream));
    got = results(b);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == input_of(root, i));

    b = make_buffers(rank, COUNT, COUNT, stream);
    OK(ncclBcast(b.in, COUNT, ncclFloat32, root, comm, stream));
    b.out = b.in;
    got = results(b);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == input_of(root, i));

    b = make_buffers(rank, COUNT, COUNT, stream);
    OK(ncclReduce(b.in, is_root ? b.out : NULL, COUNT, ncclFloat32, ncclSum, root, comm, stream));
    got = results(b);
    for (size_t i = 0; is_root && i < COUNT; i++) CHECK(got[i] == sum_at(ranks, i));

    b = make_buffers(rank, COUNT, all, stream);
    OK(ncclGather(b.in, b.out, COUNT, ncclFloat32, root, comm, stream));
    got = results(b);
    for (int r = 0; is_root && r < ranks; r++)
        for (size_t i = 0; i < COUNT; i++) CHECK(got[r * COUNT + i] == input_of(r, i));

    b = make_buffers(rank, all, COUNT, stream);
    OK(ncclScatter(b.in, b.out, COUNT, ncclFloat32, root, comm, stream));
    got = results(b);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == input_of(root, (size_t)rank * COUNT + i));

    /* A count of 0 is a success. */
    OK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, stream));
}

/* Messages with every rank, this one among them, and a collective, in one nested group. */
static void one_group(ncclComm_t comm, int rank, int ranks, stream_t stream) {
    size_t all = (size_t)COUNT * ranks;
    struct buffers b = make_buffers(rank, all, all, stream);
    struct buffers sums = make_buffers(rank, COUNT, COUNT, stream);
    OK(ncclGroupStart());
    for (int r = 0; r < ranks; r++) {
        OK(ncclGroupStart());
        OK(ncclSend(b.in + (size_t)r * COUNT, COUNT, ncclFloat32, r, comm, stream));
        OK(ncclRecv(b.out + (size_t)r * COUNT, COUNT, ncclFloat32, r, comm, stream));
        OK(ncclGroupEnd());
    }
    OK(ncclAllReduce(sums.in, sums.out, COUNT, ncclFloat32, ncclSum, comm, stream));
    OK(ncclGroupEnd());
    float *got = results(b);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < COUNT; i++)
            CHECK(got[r * COUNT + i] == input_of(r, (size_t)rank * COUNT + i));
    got = results(sums);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == sum_at(ranks, i));
}

/* Two parts, each of which sums. */
static void parts(ncclComm_t comm, int rank, int ranks, stream_t stream) {
    ncclComm_t part;
    int own, count;
    OK(ncclCommSplit(comm, rank % 2, -rank, &part, NULL));
    OK(ncclCommUserRank(part, &own));
    OK(ncclCommCount(part, &count));
    CHECK(count == (ranks + 1 - rank % 2) / 2 && own == count - 1 - rank / 2);
    struct buffers b = make_buffers(rank, COUNT, COUNT, stream);
    OK(ncclAllReduce(b.in, b.out, COUNT, ncclFloat32, ncclSum, part, stream));
    float *got = results(b);
    for (size_t i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int r = rank % 2; r < ranks; r += 2) sum += input_of(r, i);
        CHECK(got[i] == sum);
    }
    OK(ncclCommDestroy(part));
    /* Rank 0 is in no part. */
    OK(ncclCommSplit(comm, rank == 0 ? -1 : 7, 0, &part, NULL));
    CHECK((rank == 0) == (part == NULL));
    OK(ncclCommDestroy(part));
}

/* Each rank has a factor of its own: `resident`, its value here (1), or memory of the device, which
 * is read when a call is carried out (0). */
static void factors(ncclComm_t comm, int rank, int ranks, stream_t stream, int resident) {
    float own = (float)(rank + 1) / 2, early = 1e9f;
    float *later = device_memory(sizeof own);
    int op;
    to_device(later, is_host() ? &own : &early, sizeof own);
    OK(ncclRedOpCreatePreMulSum(&op, resident ? &own : later, ncclFloat32, resident, comm));
    to_device(later, &own, sizeof own);
    struct buffers b = make_buffers(rank, COUNT, COUNT, stream);
    struct buffers more = make_buffers(rank, 2 * COUNT, 2 * COUNT, stream);
    OK(ncclAllReduce(b.in, b.out, COUNT, ncclFloat32, op, comm, stream));
    OK(ncclGroupStart());
    OK(ncclAllReduce(more.in, more.in, COUNT, ncclFloat32, op, comm, stream));
    OK(ncclAllReduce(more.in + COUNT, more.in + COUNT, COUNT, ncclFloat32, op, comm, stream));
    OK(ncclGroupEnd());
    OK(ncclRedOpDestroy(op, comm));
    CHECK(ncclRedOpDestroy(op, comm) == ncclInvalidArgument);
    more.out = more.in;
    float *got = results(b), *both = results(more);
    for (size_t i = 0; i < 2 * COUNT; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) sum += input_of(r, i) * (float)(r + 1) / 2;
        CHECK((i >= COUNT || got[i] == sum) && both[i] == sum);
    }
}

/* What a call promises by oxccl's options. */
static void options(ncclComm_t comm, int rank, int ranks, stream_t stream) {
    ncclConfigExt_t foreign = { NULL, { 0x123456, OXCCL_ORDER }, { .i = 7 } };
    ncclConfigExt_t channels = { &foreign, { OXCCL_VENDOR, OXCCL_CHANNELS }, { .i = 1 } };
    ncclConfigExt_t order = { &channels, { OXCCL_VENDOR, OXCCL_ORDER }, { .s = "rank" } };
    ncclCollConfig_t config = COLL_CONFIG(&order), other = COLL_CONFIG(&foreign);
    float host[COUNT];
    for (int is_tree = 0; is_tree < 2; is_tree++) {
        struct buffers b = make_buffers(rank, COUNT, COUNT, stream);
        for (size_t i = 0; i < COUNT; i++) host[i] = 0.1f * (float)(rank + 1) * (float)(i + 1);
        to_device(b.in, host, sizeof host);
        order.val.s = is_tree ? "tree" : "rank";
        OK(ncclGroupStart());
        OK(ncclAllReduceConfig(b.in, b.out, COUNT, ncclFloat32, ncclSum, comm, stream, &config));
        OK(ncclAllReduceConfig(b.in, b.in, COUNT, ncclFloat32, ncclMax, comm, stream, &other));
        OK(ncclGroupEnd());
        float *got = results(b);
        for (size_t i = 0; i < COUNT; i++) {
            volatile float sum = 0.1f * (float)(i + 1), pair = 0;
            for (int r = 1; r < ranks; r++) {
                float of = 0.1f * (float)(r + 1) * (float)(i + 1);
                if (!is_tree || r < 2) sum = sum + of;
                else if (r == 2) pair = of;
                else pair = pair + of;
            }
            if (is_tree && ranks > 2) sum = sum + pair;
            CHECK(ranks > 4 || got[i] == sum);
        }
    }
}

/* Memory of ncclMemAlloc behind windows, and what a window says of itself. */
static void windows(ncclComm_t comm, int rank, int ranks, stream_t stream) {
    float *memory, host[COUNT];
    void *window, *found;
    OK(ncclMemAlloc((void **)&memory, 2 << 20));
    OK(ncclCommWindowRegister(comm, memory, 2 << 20, &window, 1));
    CHECK(window != NULL);
    OK(ncclWinGetUserPtr(comm, window, &found));
    CHECK(found == memory);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < COUNT; i++) host[i] = input_of(rank, i);
        to_device(memory, host, sizeof host);
        OK(ncclAllReduce(memory, memory + 4 * COUNT, COUNT, ncclFloat32, ncclSum, comm, stream));
        synchronize(stream);
        from_device(host, memory + 4 * COUNT, sizeof host);
        for (size_t i = 0; i < COUNT; i++) CHECK(host[i] == sum_at(ranks, i));
        /* In place while the window is there. */
        ncclConfigExt_t in_place = { NULL, { OXCCL_VENDOR, OXCCL_ENCODING }, { .s = "windows" } };
        ncclCollConfig_t config = COLL_CONFIG(&in_place);
        ncclResult_t code = is_host() ? ncclSuccess
            : ncclAllReduceConfig(memory, memory + 4 * COUNT, COUNT, ncclFloat32, ncclSum, comm,
                                  stream, &config);
        CHECK(code == (round && !is_host() ? ncclInvalidArgument : ncclSuccess));
        synchronize(stream);
        /* The second time without a window. */
        if (round == 0) OK(ncclCommWindowDeregister(comm, window));
    }
    CHECK(ncclCommWindowDeregister(comm, window) == ncclInvalidArgument);
    CHECK(ncclWinGetUserPtr(comm, window, &found) == ncclInvalidArgument);
    OK(ncclCommWindowDeregister(comm, NULL));
    OK(ncclMemFree(memory));
}

/* A communicator without its memory, for a while. */
static void suspension(ncclComm_t comm, int rank, int ranks, stream_t stream) {
    uint64_t given, is_suspended, kept, all;
    struct buffers b = make_buffers(rank, COUNT, COUNT, stream);
    OK(ncclCommMemStats(comm, 0, &given));
    OK(ncclCommMemStats(comm, 2, &kept));
    OK(ncclCommMemStats(comm, 3, &all));
    CHECK(all == given + kept && (given > 0) == !is_host());
    OK(ncclCommSuspend(comm, 1));
    OK(ncclCommMemStats(comm, 1, &is_suspended));
    CHECK(is_suspended == 1);
    CHECK(ncclAllReduce(b.in, b.out, COUNT, ncclFloat32, ncclSum, comm, stream) == ncclInvalidUsage);
    CHECK(ncclCommSuspend(comm, 1) == ncclInvalidUsage);
    OK(ncclCommResume(comm));
    OK(ncclCommResume(comm));
    OK(ncclCommMemStats(comm, 1, &is_suspended));
    CHECK(is_suspended == 0);
    OK(ncclAllReduce(b.in, b.out, COUNT, ncclFloat32, ncclSum, comm, stream));
    float *got = results(b);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == sum_at(ranks, i));
}

/* What the library says of a communicator. */
static void properties(ncclComm_t comm, int rank, int ranks) {
    struct { ncclCommProperties_t of; char guard[16]; } asked;
    memset(&asked, 0x55, sizeof asked);
    asked.of.size = sizeof asked.of, asked.of.magic = 0xcafebeef, asked.of.version = 23203;
    OK(ncclCommQueryProperties(comm, &asked.of));
    CHECK(asked.of.rank == rank && asked.of.nRanks == ranks && asked.of.nLsaTeams == ranks);
    CHECK(!asked.of.deviceApiSupport && !asked.of.multimemSupport && !asked.of.cftCountedSupport);
    for (size_t i = 0; i < sizeof asked.guard; i++) CHECK(asked.guard[i] == 0x55);
    /* An older caller's is written as far as it goes. */
    uint64_t hash = asked.of.commHash;
    asked.of.size = 48, asked.of.commHash = 7;
    OK(ncclCommQueryProperties(comm, &asked.of));
    CHECK(hash != 7 && asked.of.commHash == 7);
    ncclTeam_t all = ncclTeamWorld(comm), own = ncclTeamLsa(comm), none = ncclTeamWorld(NULL);
    CHECK(all.nRanks == ranks && all.rank == rank && all.stride == 1);
    CHECK(own.nRanks == 1 && own.rank == 0 && none.nRanks == 0);
    CHECK(ncclTeamRankToWorld(comm, all, ranks - 1) == ranks - 1);
    CHECK(ncclTeamRankToWorld(comm, own, 0) == rank);
}

static void whole_rank(ncclComm_t comm, int rank, int ranks) {
    stream_t stream = new_stream();
    ncclResult_t state = -1;
    int number = -1;
    void *memory, *handle;
    OK(ncclCommUserRank(comm, &number));
    CHECK(number == rank);
    OK(ncclCommCount(comm, &number));
    CHECK(number == ranks);
    all_calls(comm, rank, ranks, stream);
    one_group(comm, rank, ranks, stream);
    factors(comm, rank, ranks, stream, 1);
    factors(comm, rank, ranks, stream, 0);
    options(comm, rank, ranks, stream);
    parts(comm, rank, ranks, stream);
    windows(comm, rank, ranks, stream);
    suspension(comm, rank, ranks, stream);
    properties(comm, rank, ranks);
    OK(ncclMemAlloc(&memory, 1 << 20));
    OK(ncclCommRegister(comm, memory, 1 << 20, &handle));
    OK(ncclAllReduce(memory, memory, COUNT, ncclInt32, ncclMin, comm, stream));
    synchronize(stream);
    OK(ncclCommDeregister(comm, handle));
    OK(ncclMemFree(memory));
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess);
    OK(ncclCommFinalize(comm));
}

#endif
