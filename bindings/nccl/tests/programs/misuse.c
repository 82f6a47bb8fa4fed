/* What is wrong is an answer with a reason, never a crash. */
#include <unistd.h>
#include "rank.h"

#define REFUSED(call, code, text) do { ncclResult_t got_ = (call); \
    if (got_ != (code) || !strstr(ncclGetLastError(NULL), text)) { \
        fprintf(stderr, "%s:%d: %s is %d: %s\n", __FILE__, __LINE__, #call, got_, ncclGetLastError(NULL)); \
        _exit(1); } } while (0)

int main(void) {
    ncclComm_t comms[2], comm, wrong = (ncclComm_t)0x1234;
    ncclUniqueId id;
    ncclConfig_t config = CONFIG;
    void *out;
    int number;
    uint64_t bytes;
    float *buffer, zeros[8] = {0};

    OK(ncclGetVersion(&number));
    CHECK(number == 23007);
    for (int code = -3; code < 20; code++) CHECK(strlen(ncclGetErrorString(code)) > 3);
    use_device(0);
    REFUSED(ncclGetVersion(NULL), ncclInvalidArgument, "ncclGetVersion: version is NULL");
    REFUSED(ncclGroupEnd(), ncclInvalidUsage, "no ncclGroupStart");
    memset(&id, 'x', sizeof id);
    REFUSED(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument, "ncclGetUniqueId");
    OK(ncclGetUniqueId(&id));
    REFUSED(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank 2 is not in 0 to 1");
    REFUSED(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, "nranks is 0");
    REFUSED(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "comm is NULL");
    config.magic = 1;
    REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "magic");
    buffer = device_memory(sizeof zeros);
    to_device(buffer, zeros, sizeof zeros);
    OK(ncclCommInitAll(comms, 2, NULL));
    comm = comms[0];
    REFUSED(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, wrong, NULL), ncclInvalidArgument,
            "0x1234 is no communicator");
    REFUSED(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, NULL, NULL), ncclInvalidArgument,
            "communicator is NULL");
    REFUSED(ncclAllReduce(buffer, buffer, 8, 12, ncclSum, comm, NULL), ncclInvalidArgument,
            "12 is no data type");
    REFUSED(ncclAllReduce(buffer, buffer, 8, ncclFloat32, 5, comm, NULL), ncclInvalidArgument,
            "5 is no operation");
    REFUSED(ncclAllReduce(NULL, buffer, 8, ncclFloat32, ncclSum, comm, NULL), ncclInvalidArgument,
            "sendbuff is NULL");
    REFUSED(ncclAllGather(buffer, buffer, (size_t)-1 / 4, ncclFloat32, comm, NULL),
            ncclInvalidArgument, "more than memory can have");
    REFUSED(ncclBroadcast(buffer, buffer, 8, ncclFloat32, 2, comm, NULL), ncclInvalidArgument,
            "root 2 is not in 0 to 1");
    REFUSED(ncclSend(buffer, 8, ncclFloat32, -1, comm, NULL), ncclInvalidArgument, "peer -1");
    REFUSED(ncclSend(buffer, 8, ncclFloat32, 0, comm, NULL), ncclInvalidUsage, "sends itself");
    REFUSED(ncclDevCommCreate(comm, NULL, NULL), ncclInvalidUsage, "ncclDevCommCreate: oxccl has no");
    REFUSED(ncclCommDeregister(comm, NULL), ncclInvalidArgument, "registration");
    if (!is_host())
        REFUSED(ncclAllReduce(zeros, zeros, 8, ncclFloat32, ncclSum, comm, NULL),
                ncclInvalidArgument, "is host memory, where memory of GPU 0 is needed");
    ncclConfigExt_t own = { NULL, { OXCCL_VENDOR, 99 }, { .i = 1 } };
    ncclCollConfig_t coll = COLL_CONFIG(&own);
#define WITH(coll) ncclAllReduceConfig(buffer, buffer, 8, ncclFloat32, ncclSum, comm, NULL, &coll)
    REFUSED(WITH(coll), ncclInvalidArgument, "oxccl has no option 99");
    own.key.optionId = OXCCL_ORDER, own.val.s = "sorted";
    REFUSED(WITH(coll), ncclInvalidArgument, "sorted");
    own.val.s = NULL;
    REFUSED(WITH(coll), ncclInvalidArgument, "NULL");
    own.key.optionId = OXCCL_CHANNELS, own.val.i = 1, own.next = &own;
    REFUSED(WITH(coll), ncclInvalidArgument, "the channels twice");
    own.key.vendorId = 5;
    REFUSED(WITH(coll), ncclInvalidArgument, "a circle");
    own.next = NULL, coll.magic = 0;
    REFUSED(WITH(coll), ncclInvalidArgument, "COLLCONFIG_INITIALIZER");
    REFUSED(ncclMemFree(buffer), ncclInvalidArgument, "ncclMemAlloc");
    REFUSED(ncclCommSplit(comm, -2, 0, &comm, NULL), ncclInvalidArgument, "color -2");
    /* A wrong call spoils its group, whose others are not made. */
    OK(ncclGroupStart());
    OK(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, comm, NULL));
    REFUSED(ncclAllReduce(buffer, buffer, 8, 99, ncclSum, comm, NULL), ncclInvalidArgument, "99");
    REFUSED(ncclGroupEnd(), ncclInvalidArgument, "99 is no data type");
    REFUSED(ncclCommWindowRegister(comm, buffer, sizeof zeros, NULL, 1), ncclInvalidArgument, "win is");
    REFUSED(ncclCommWindowRegister(comm, NULL, 8, &out, 1), ncclInvalidArgument, "nothing");
    REFUSED(ncclCommWindowRegister(comm, buffer, 8, &out, 64), ncclInvalidArgument, "0x40");
    REFUSED(ncclCommWindowRegister(comm, buffer, 8, &out, 4), ncclInvalidUsage, "one-sided");
    REFUSED(ncclCommWindowDeregister(comm, buffer), ncclInvalidArgument, "no window");
    REFUSED(ncclCommSuspend(comm, 2), ncclInvalidArgument, "flags is 0x2");
    REFUSED(ncclCommMemStats(comm, 4, &bytes), ncclInvalidArgument, "4 is no ncclCommMemStat_t");
    ncclCommProperties_t properties = { sizeof properties, 1, 23203 };
    REFUSED(ncclCommQueryProperties(comm, &properties), ncclInvalidUsage, "INITIALIZER");
    ncclSimInfo_t info = SIM_INFO;
    OK(ncclGroupStart());
    OK(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, comm, NULL));
    REFUSED(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "oxccl tune");
    REFUSED(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "no ncclGroupStart");
    OK(ncclGroupStart());
    info.magic = 0;
    REFUSED(ncclGroupSimulateEnd(&info), ncclInvalidArgument, "SIM_INFO_INITIALIZER");
    OK(ncclCommAbort(comms[1]));
    REFUSED(ncclCommCount(comms[1], &number), ncclInvalidArgument, "was destroyed");
    OK(ncclCommGetAsyncError(comm, &number));
    for (int tries = 0; number == ncclSuccess && tries < 5000; tries++) {
        usleep(1000);
        OK(ncclCommGetAsyncError(comm, &number));
    }
    CHECK(number == ncclRemoteError);
    REFUSED(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, comm, NULL), ncclRemoteError,
            "ncclCommAbort");
    OK(ncclCommAbort(comm));
    OK(ncclCommDestroy(NULL));
    puts("done");
    return 0;
}
