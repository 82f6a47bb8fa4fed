// Peers' private memory: windows that this process does not map (OPERAND_CMA).
//
//     for each stretch of the tile, as long as the bounce has room for:
//       have the system copy what each such source has of it into the bounce, by one call a peer
//       move it from there, in the first- or second-level cache
//
// A copy is read to where it belongs. Nothing is ever written to a peer's private memory: a rank
// that gives up frees it at once, whatever the others still do.
#pragma once
#include "segments.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Moves a tile, or as much of one as the buckets of a group have. False: a peer's memory could not
// be read.
bool move_private(Machine& machine, const HostReducer& reducer, uint64_t round_start,
                  Workspace& workspace);

}  // namespace OXCCL_ISA
}  // namespace oxccl
