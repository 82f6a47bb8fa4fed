// The reducers of each element type for the host; one object file each (host/type.cpp).
#pragma once
#include "executor.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// A reduce-copy on plain memory, as src/host.rs passes it.
struct Reduction {
  const uint8_t* const* sources;
  uint8_t* const* destinations;
  uint32_t sources_count, destinations_count;
  uint64_t len_bytes, scale_bits;
  uint32_t ranks;
  uint8_t data_type, fold, scale, tree, finish, stream;
};

// By fold; `bulk` is null where the type does not have the fold.
struct Reducers {
  HostReducer folds[FOLDS];
};

extern const Reducers REDUCERS_I8, REDUCERS_U8, REDUCERS_I32, REDUCERS_U32, REDUCERS_I64,
    REDUCERS_U64, REDUCERS_F16, REDUCERS_BF16, REDUCERS_F32, REDUCERS_F64, REDUCERS_F8E4M3,
    REDUCERS_F8E5M2;

}  // namespace OXCCL_ISA
}  // namespace oxccl
