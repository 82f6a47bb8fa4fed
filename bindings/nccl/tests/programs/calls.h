/* What programs need of NCCL's header, declared anew. */
#ifndef CALLS_H
#define CALLS_H

#include <stddef.h>
#include <stdint.h>
#include "../../include/oxccl_nccl.h"

typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef int ncclResult_t;
typedef void *stream_t;

enum { ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument,
       ncclInvalidUsage, ncclRemoteError, ncclInProgress };
enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg };
enum { ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32,
       ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2 };

/* As 2.18 has it. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
} ncclConfig_t;

#define UNDEFINED ((int)0x80000000)
#define CONFIG { sizeof(ncclConfig_t), 0xcafebeef, 21800, UNDEFINED, UNDEFINED, UNDEFINED, UNDEFINED, \
                 NULL, UNDEFINED, UNDEFINED }

/* As 2.32 has them. */
typedef struct ncclConfigExt {
    struct ncclConfigExt *next;
    struct { int vendorId, optionId; } key;
    union { int i; const char *s; void *raw; } val;
} ncclConfigExt_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    ncclConfigExt_t *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char *algSelection;
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag;
    void *launchCompletionEvent;
} ncclCollConfig_t;

#define COLL_CONFIG(ext) { sizeof(ncclCollConfig_t), 0xcafebeef, 23200, ext, UNDEFINED, UNDEFINED, \
                           UNDEFINED, UNDEFINED, NULL, 1, UNDEFINED, 0, NULL }

/* As 2.32 has it. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int rank, nRanks, cudaDev, nvmlDev;
    _Bool deviceApiSupport, multimemSupport;
    int ginType, nLsaTeams;
    _Bool hostRmaSupport;
    int railedGinType;
    uint64_t commHash;
    int ginMinStride, ginConnectionType;
    _Bool ginSupport[64];
    size_t devCommRuntimeVersionSize;
    _Bool cftSupport, cftMulticastSupport, cftCountedSupport;
} ncclCommProperties_t;

typedef struct { int nRanks, rank, stride; } ncclTeam_t;

typedef struct { size_t size; unsigned magic, version; float estimatedTime; } ncclSimInfo_t;

#define SIM_INFO { sizeof(ncclSimInfo_t), 0x74685283, 23007, -1 }

ncclResult_t ncclGetVersion(int *);
ncclResult_t ncclGetUniqueId(ncclUniqueId *);
ncclResult_t pncclGetUniqueId(ncclUniqueId *);
ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
ncclResult_t ncclCommInitAll(ncclComm_t *, int, const int *);
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
ncclResult_t ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
ncclResult_t ncclCommFinalize(ncclComm_t);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
ncclResult_t ncclCommCount(ncclComm_t, int *);
ncclResult_t ncclCommUserRank(ncclComm_t, int *);
ncclResult_t ncclCommCuDevice(ncclComm_t, int *);
ncclResult_t ncclCommRegister(ncclComm_t, void *, size_t, void **);
ncclResult_t ncclCommDeregister(ncclComm_t, void *);
ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, void **, int);
ncclResult_t ncclCommWindowDeregister(ncclComm_t, void *);
ncclResult_t ncclWinGetUserPtr(ncclComm_t, void *, void **);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *);
ncclResult_t ncclCommQueryProperties(ncclComm_t, ncclCommProperties_t *);
ncclTeam_t ncclTeamWorld(ncclComm_t);
ncclTeam_t ncclTeamLsa(ncclComm_t);
int ncclTeamRankToWorld(ncclComm_t, ncclTeam_t, int);
ncclResult_t ncclCommSuspend(ncclComm_t, int);
ncclResult_t ncclCommResume(ncclComm_t);
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *);
ncclResult_t ncclCommMemStats(ncclComm_t, int, uint64_t *);
ncclResult_t ncclDevCommCreate(ncclComm_t, const void *, void *);
ncclResult_t ncclRedOpCreatePreMulSum(int *, void *, int, int, ncclComm_t);
ncclResult_t ncclRedOpDestroy(int, ncclComm_t);
ncclResult_t ncclMemAlloc(void **, size_t);
ncclResult_t ncclMemFree(void *);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
const char *ncclGetErrorString(ncclResult_t);
const char *ncclGetLastError(ncclComm_t);
ncclResult_t ncclAllReduce(const void *, void *, size_t, int, int, ncclComm_t, stream_t);
ncclResult_t ncclAllReduceConfig(const void *, void *, size_t, int, int, ncclComm_t, stream_t,
                                 const ncclCollConfig_t *);
ncclResult_t ncclReduceScatter(const void *, void *, size_t, int, int, ncclComm_t, stream_t);
ncclResult_t ncclAllGather(const void *, void *, size_t, int, ncclComm_t, stream_t);
ncclResult_t ncclAlltoAll(const void *, void *, size_t, int, ncclComm_t, stream_t);
ncclResult_t ncclBroadcast(const void *, void *, size_t, int, int, ncclComm_t, stream_t);
ncclResult_t ncclBcast(void *, size_t, int, int, ncclComm_t, stream_t);
ncclResult_t ncclReduce(const void *, void *, size_t, int, int, int, ncclComm_t, stream_t);
ncclResult_t ncclGather(const void *, void *, size_t, int, int, ncclComm_t, stream_t);
ncclResult_t ncclScatter(const void *, void *, size_t, int, int, ncclComm_t, stream_t);
ncclResult_t ncclSend(const void *, size_t, int, int, ncclComm_t, stream_t);
ncclResult_t ncclRecv(void *, size_t, int, int, ncclComm_t, stream_t);

#endif
