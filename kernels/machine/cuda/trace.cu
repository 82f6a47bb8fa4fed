// The traced kernels: sums of the types that are measured most, and the kernel for all types and
// folds. Each tells of every step: see cuda/trace.h. A program that only copies runs in any of
// them.
//
// They are an image apart, which is loaded when somebody asks for a trace.
#define OXCCL_TRACE 1
#include "executor.cu"

OXCCL_KERNEL(F16, traced_f16, sum, Sums)
OXCCL_KERNEL(BF16, traced_bf16, sum, Sums)
OXCCL_KERNEL(F32, traced_f32, sum, Sums)
OXCCL_KERNEL(F8E4M3, traced_f8e4m3, sum, Sums)
OXCCL_ENTRY(traced_any, Any)
