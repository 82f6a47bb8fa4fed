// Short messages on the host: what a small collective spends its time on.
//
//     resolve one or two sources and one destination into registers
//     for each word: load, fold, store;  or copy all at once
//
// Why it is apart from the general path, which does the same: that one keeps its operands in a
// table, because there may be hundreds, and an instruction costs it some 150 machine instructions;
// here it is a third of that. At 8 bytes, the time of a call is the exchange of one cache line and
// these.
#pragma once
#include "copy.h"
#include "resolve.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Copies up to here need none of what the general path prepares.
constexpr uint64_t SHORT_COPY_BYTES = 4096;

OXCCL_INLINE bool is_short(const Launch& launch, const Instruction& instruction,
                           uint64_t len_bytes) {
  const uint64_t limit = instruction.sources == 1 || launch.segments != nullptr ? SHORT_COPY_BYTES : SHORT_BYTES;
  const uint32_t most = instruction.sources == 1 && launch.segments == nullptr ? MAX_OPERANDS : 1;
  // As one comparison: 1 or 2, of memory that is mapped here.
  const uint32_t sources = (uint32_t(instruction.sources) - 1) | (instruction.flags & INSTRUCTION_CMA);
  return len_bytes <= limit && uint32_t(instruction.destinations) - 1 < most && sources < 2 &&
         launch.program->scale == SCALE_NONE;
}

OXCCL_INLINE bool copy_short(Machine& machine, const View& source, const View& destination,
                             uint64_t len_bytes) {
  if (source.is_plain() && source.data == destination.data) return true;
  if (len_bytes > 8 && source.is_plain() && destination.is_plain()) {
    copy_bytes(destination.data, source.data, len_bytes);
    return true;
  }
  for (uint64_t position = 0; position < len_bytes; position += 8) {
    const uint64_t left = len_bytes - position;
    uint64_t word = 0;
    if (!load_word<uint8_t>(machine, source, position, left, &word)) return false;
    store_word<uint8_t>(destination, position, left, word);
  }
  return true;
}

OXCCL_INLINE bool fold_short(Machine& machine, const HostReducer& reducer, const View& first,
                             const View& second, const View& destination, uint64_t len_bytes) {
  for (uint64_t position = 0; position < len_bytes; position += 8) {
    const uint64_t left = len_bytes - position;
    uint64_t a = 0, b = 0;
    if (!load_word<uint8_t>(machine, first, position, left, &a) ||
        !load_word<uint8_t>(machine, second, position, left, &b))
      return false;
    store_word<uint8_t>(destination, position, left, reducer.fold_word(a, b));
  }
  return true;
}

OXCCL_NOINLINE inline bool run_short(Machine& machine, const HostReducer& reducer,
                                     const Instruction& instruction, const Operand* operands,
                                     uint64_t round_start, uint64_t len_bytes) {
  const bool folds = instruction.sources == 2;
  View first, second, destination;
  if (!resolve(machine, operands[0], round_start, len_bytes, &first)) return false;
  if (folds && !resolve(machine, operands[1], round_start, len_bytes, &second)) return false;
  const Operand *to = operands + 1 + folds, *end = to + instruction.destinations;
  do {
    if (!resolve(machine, *to, round_start, len_bytes, &destination)) return false;
    const bool done = folds ? fold_short(machine, reducer, first, second, destination, len_bytes)
                            : copy_short(machine, first, destination, len_bytes);
    write_header(machine, *to, destination, len_bytes);
    if (!done) return false;
  } while (OXCCL_UNLIKELY(++to != end));
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
