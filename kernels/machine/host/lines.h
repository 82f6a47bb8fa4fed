// LL and LL128 messages in stretches of bytes, for the host.
#pragma once
#include "ll128.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Decodes [position, position + len_bytes) of the view's LL message; `position` is a multiple of 8.
bool receive_bytes(Machine& machine, const View& view, uint64_t position, uint8_t* to,
                   uint64_t len_bytes);
void send_bytes(const View& view, uint64_t position, const uint8_t* from, uint64_t len_bytes);

// What of [position, position + len_bytes) is in the line of its first byte.
OXCCL_INLINE uint64_t part_of_line(uint64_t position, uint64_t len_bytes) {
  const uint64_t left = LL128_DATA_BYTES - position % LL128_DATA_BYTES;
  return left < len_bytes ? left : len_bytes;
}

// Decodes [position, position + len_bytes) of the view's LL128 message.
inline bool receive_ll128_bytes(Machine& machine, const View& view, uint64_t position, uint8_t* to,
                                uint64_t len_bytes) {
  while (len_bytes > 0) {
    const uint8_t* line = ll128_line(view, position);
    const uint64_t part = part_of_line(position, len_bytes);
    uint64_t last = 0;
    if (!receive_line_end(machine, view, line + LINE_END, &last)) return false;
    memcpy(to, line + position % LL128_DATA_BYTES, part);
    position += part;
    to += part;
    len_bytes -= part;
  }
  return true;
}

// Stretches of a message are sent in order; `ends`: this is the last. A line goes with its last
// byte.
inline void send_ll128_bytes(const View& view, uint64_t position, const uint8_t* from,
                             uint64_t len_bytes, bool ends) {
  while (len_bytes > 0) {
    uint8_t* line = ll128_line(view, position);
    const uint64_t part = part_of_line(position, len_bytes);
    memcpy(line + position % LL128_DATA_BYTES, from, part);
    position += part;
    from += part;
    len_bytes -= part;
    if (position % LL128_DATA_BYTES == 0 || (ends && len_bytes == 0))
      store_release(reinterpret_cast<uint64_t*>(line + LL128_DATA_BYTES), view.epoch);
  }
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
