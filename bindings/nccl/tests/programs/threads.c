/* One process, a thread for each device, and starts that do not block. */
#include <pthread.h>
#include <unistd.h>
#include "rank.h"

static ncclUniqueId id;
static int ranks, devices;

static void *run(void *argument) {
    int rank = (int)(intptr_t)argument;
    ncclConfig_t config = CONFIG;
    ncclResult_t state = ncclInProgress;
    ncclComm_t comm;
    config.blocking = 0;
    use_device(rank % devices);
    ncclResult_t begun = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
    CHECK(begun == ncclInProgress || begun == ncclSuccess);
    while (state == ncclInProgress) {
        OK(ncclCommGetAsyncError(comm, &state));
        usleep(1000);
    }
    OK(state);
    whole_rank(comm, rank, ranks);
    OK(ncclCommDestroy(comm));
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[8];
    ranks = atoi(argv[1]);
    devices = argc > 2 ? atoi(argv[2]) : 1;
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < ranks; r++)
        CHECK(pthread_create(&threads[r], NULL, run, (void *)(intptr_t)r) == 0);
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    puts("done");
    return 0;
}
