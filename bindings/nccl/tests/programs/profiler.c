#define _GNU_SOURCE
/* A tool in front of the library, as profilers of NCCL are: it defines a name itself and calls its
 * `pnccl` twin. The program's calls, and those of a library that the program loads, reach the tool. */
#include <unistd.h>
#include "rank.h"

ncclResult_t pncclAllReduce(const void *, void *, size_t, int, int, ncclComm_t, stream_t);

static int seen;

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                           ncclComm_t comm, stream_t stream) {
    seen++;
    return pncclAllReduce(in, out, count, type, op, comm, stream);
}

int main(void) {
    ncclComm_t comm;
    use_device(0);
    OK(ncclCommInitAll(&comm, 1, NULL));
    stream_t stream = new_stream();
    struct buffers b = make_buffers(0, COUNT, COUNT, stream);
    OK(ncclAllReduce(b.in, b.out, COUNT, ncclFloat32, ncclSum, comm, stream));
    ncclResult_t (*found)(const void *, void *, size_t, int, int, ncclComm_t, stream_t) =
        dlsym(RTLD_DEFAULT, "ncclAllReduce");
    OK(found(b.in, b.out, COUNT, ncclFloat32, ncclSum, comm, stream));
    CHECK(seen == 2);
    float *got = results(b);
    for (size_t i = 0; i < COUNT; i++) CHECK(got[i] == input_of(0, i));
    OK(ncclCommDestroy(comm));
    puts("done");
    return 0;
}
