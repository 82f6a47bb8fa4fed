// LL messages in stretches of bytes, for the host.
#pragma once
#include "ll.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Decodes [position, position + len_bytes) of the view's message; `position` is a multiple of 8.
bool receive_bytes(Machine& machine, const View& view, uint64_t position, uint8_t* to,
                   uint64_t len_bytes);
void send_bytes(const View& view, uint64_t position, const uint8_t* from, uint64_t len_bytes);

}  // namespace OXCCL_ISA
}  // namespace oxccl
