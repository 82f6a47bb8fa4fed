/* What oxccl reads in the extensions of an ncclCollConfig_t (NCCL 2.32 and later), which other
 * libraries ignore. All ranks say the same for a call.
 *
 *     ncclConfigExt_t order = { NULL, { OXCCL_VENDOR, OXCCL_ORDER }, { .s = "tree" } };
 *     ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
 *     config.ext = &order;
 *     ncclAllReduceConfig(send, recv, count, ncclFloat, ncclSum, comm, stream, &config);
 */
#ifndef OXCCL_NCCL_H
#define OXCCL_NCCL_H

#define OXCCL_VENDOR 0x4f5843

/* val.s: the promised order of reduction, "any", "rank" or "tree". */
#define OXCCL_ORDER 1
/* val.s: an algorithm, such as "ring"; `oxccl explain` lists them. */
#define OXCCL_ALGORITHM 2
/* val.s: "ll", "ll128", "slots" or "windows". */
#define OXCCL_ENCODING 3
/* val.i: most channels. */
#define OXCCL_CHANNELS 4

#endif
