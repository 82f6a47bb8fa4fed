/* One process, one thread, several devices: every call of all ranks in one group. */
#include <unistd.h>
#include "rank.h"

int main(int argc, char **argv) {
    int ranks = atoi(argv[1]);
    ncclComm_t comms[8];
    stream_t streams[8];
    struct buffers of[8];
    (void)argc;
    use_device(0);
    OK(ncclCommInitAll(comms, ranks, NULL));
    for (int r = 0; r < ranks; r++) {
        int device;
        OK(ncclCommCuDevice(comms[r], &device));
        CHECK(device == (is_host() ? -1 : r));
        use_device(r);
        streams[r] = new_stream();
        of[r] = make_buffers(r, COUNT, COUNT, streams[r]);
    }
    for (int round = 0; round < 3; round++) {
        OK(ncclGroupStart());
        for (int r = 0; r < ranks; r++) {
            use_device(r);
            OK(ncclAllReduce(of[r].in, of[r].out, COUNT, ncclFloat32, ncclSum, comms[r], streams[r]));
        }
        OK(ncclGroupEnd());
    }
    for (int r = 0; r < ranks; r++) {
        use_device(r);
        float *got = results(of[r]);
        for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == sum_at(ranks, i));
    }
    /* The communicators' parts, in one group, too. */
    ncclComm_t parts[8];
    OK(ncclGroupStart());
    for (int r = 0; r < ranks; r++) OK(ncclCommSplit(comms[r], r % 2, r, &parts[r], NULL));
    OK(ncclGroupEnd());
    for (int r = 0; r < ranks; r++) OK(ncclCommDestroy(parts[r]));
    for (int r = 0; r < ranks; r++) OK(ncclCommDestroy(comms[r]));
    puts("done");
    return 0;
}
