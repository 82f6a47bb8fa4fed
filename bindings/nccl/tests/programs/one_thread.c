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
    /* Windows and suspensions of all ranks, in one group each. */
    void *windows[8][2];
    OK(ncclGroupStart());
    for (int r = 0; r < ranks; r++) {
        OK(ncclCommWindowRegister(comms[r], of[r].in, COUNT * 4, &windows[r][0], 1));
        OK(ncclCommWindowRegister(comms[r], of[r].out, COUNT * 4, &windows[r][1], 1));
        CHECK(windows[r][0] == NULL);
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < ranks; r++) {
        CHECK(windows[r][0] && windows[r][1] && windows[r][0] != windows[r][1]);
        for (int w = 0; w < 2; w++) OK(ncclCommWindowDeregister(comms[r], windows[r][w]));
    }
    OK(ncclGroupStart());
    for (int r = 0; r < ranks; r++) OK(ncclCommSuspend(comms[r], 1));
    OK(ncclGroupEnd());
    CHECK(ncclAllReduce(of[0].in, of[0].out, 1, ncclFloat32, ncclSum, comms[0], streams[0])
          == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(NULL), "ncclAllReduce: the communicator is suspended"));
    OK(ncclGroupStart());
    for (int r = 0; r < ranks; r++) OK(ncclCommResume(comms[r]));
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    for (int r = 0; r < ranks; r++)
        OK(ncclAllReduce(of[r].in, of[r].out, COUNT, ncclFloat32, ncclSum, comms[r], streams[r]));
    OK(ncclGroupEnd());
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
