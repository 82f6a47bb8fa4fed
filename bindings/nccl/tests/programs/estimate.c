/* How long a group would take, by the tuning table of the environment. */
#include <unistd.h>
#include "rank.h"

/* In microseconds, of calls of so many bytes over two ranks: that many, one after another. */
static float estimate(ncclComm_t *comms, void *memory, size_t bytes, int calls) {
    ncclSimInfo_t info = SIM_INFO;
    OK(ncclGroupStart());
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < calls; i++)
            OK(ncclAllReduce(memory, memory, bytes / 4, ncclFloat32, ncclSum, comms[r], NULL));
    OK(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
}

int main(void) {
    static float memory[1024];
    ncclComm_t comms[2];
    OK(ncclCommInitAll(comms, 2, NULL));
    memory[0] = 7;
    /* On the line between the table's points, and beyond the last of them. */
    CHECK(estimate(comms, memory, 504, 1) == 1.5f);
    CHECK(estimate(comms, memory, 1000, 1) == 2.0f);
    CHECK(estimate(comms, memory, 4000, 1) == 6.0f);
    CHECK(estimate(comms, memory, 504, 3) == 4.5f);
    /* Nothing was called. */
    CHECK(memory[0] == 7);
    for (int r = 0; r < 2; r++) OK(ncclCommDestroy(comms[r]));
    puts("done");
    return 0;
}
