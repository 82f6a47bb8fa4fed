/* One device a process. The communicators are destroyed from a static destructor, as frameworks
 * do. */
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
            OK(ncclCommInitRank(&comm, ranks, id, r));
            whole_rank(comm, r, ranks);
            coalescing(r, ranks);
            return 0;
        }
    }
    while (wait(&status) > 0) failed |= status;
    if (!failed) puts("done");
    return failed != 0;
}
