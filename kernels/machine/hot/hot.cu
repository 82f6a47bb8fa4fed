// The hot kernels: of each schedule that the build has written, and where it reduces, for sums of
// the types that are summed most. Their names: oxccl_hot_<schedule>, of those for a group's buckets
// with _in_buckets behind, and of those that reduce with _<type>_<fold>.
#include "hot.h"
#include "schedules.h"

static_assert(oxccl::SERVED_RANKS == oxccl::MOST_HOT_RANKS, "a place for each rank");
static_assert(oxccl::SERVED_BUCKETS == oxccl::MOST_HOT_BUCKETS, "a place for each bucket");
static_assert(oxccl::SERVED_PLACES == oxccl::MOST_HOT_PLACES, "and for each rank's");

#define OXCCL_HOT_ENTRY(name, ...)                                         \
  extern "C" __global__ void __launch_bounds__(oxccl::BLOCK_THREADS, 1)    \
      oxccl_hot_##name(const __grid_constant__ oxccl::Launch launch) {     \
    oxccl::run_hot<__VA_ARGS__>(launch);                                   \
  }

#define OXCCL_HOT_COPY(schedule, name) OXCCL_HOT_ENTRY(name, oxccl::schedule, oxccl::NoReducer)

#define OXCCL_HOT_SUM(schedule, name, type, type_name) \
  OXCCL_HOT_ENTRY(name##_##type_name##_sum, oxccl::schedule, oxccl::HotReducer<oxccl::type, oxccl::FOLD_SUM>)

OXCCL_HOT_COPIES(OXCCL_HOT_COPY)
OXCCL_HOT_SUMS(OXCCL_HOT_SUM)
