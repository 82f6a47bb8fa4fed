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

#define OXCCL_REDUCERS(type) extern const Reducers REDUCERS_##type;
OXCCL_EACH_DATA_TYPE(OXCCL_REDUCERS)
#undef OXCCL_REDUCERS

}  // namespace OXCCL_ISA
}  // namespace oxccl
