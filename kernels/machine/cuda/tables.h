// A part's tables in the block's shared memory: program, connections and windows of its channel.
//
//     open:   all threads copy instructions, operands, advances, windows;  then connections
//     ...     the machine finds all of it there, through the same pointers
//     close:  the cursors go back to where the next call finds them
//
// Why: from global memory each step of a program would cost several round trips to L2, one behind
// the other, since what a wait acquires makes L1 forget. Only this block uses its channel's
// connections and windows while a launch lasts, so a copy is as good as they are. Tokens need not
// go back: each call brings its own. Tables that do not fit stay where they are.
//
// The memory is that of large trees (tree.h): a program that has one keeps its tables in global
// memory.
#pragma once
#include "executor.h"

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t TABLES_BYTES = SUBTREE_BYTES - SMALL_TREE_BYTES;

// Where the part at hand was, before it was opened.
struct Opened {
  Connection* connections;  // in global memory; null where they stay there
};

// What of a launch block leads to a part's tables.
struct Part {
  const Header* program;
  Connection* connections;
  const Window* windows;
  uint32_t ranks, first_channel;
  bool is_of_group;
};

OXCCL_INLINE Part part_of(const Launch& launch) {
  return {launch.program, launch.connections, launch.windows, launch.ranks, launch.first_channel,
          launch.done_stride != 0};
}

OXCCL_INLINE uint8_t* tables_memory() { return reinterpret_cast<uint8_t*>(subtrees()) + SMALL_TREE_BYTES; }

// The threads from `first` on take it in turns, so that other tables are other threads' meanwhile.
OXCCL_INLINE uint32_t turn_from(uint32_t first) { return (lane() - first) & (BLOCK_THREADS - 1); }

// As many bytes as a multiple of 16 has, from one multiple of 16 on.
OXCCL_INLINE void copy_packs(uint8_t* to, const void* from, uint32_t len_bytes, uint32_t first_thread) {
#pragma unroll 1
  for (uint32_t at = turn_from(first_thread) * 16; at < len_bytes; at += lanes() * 16)
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(from) + at);
}

// The channel's entry: asked for with the header, where all programs that the lowering makes have
// it. In a group a part may have fewer channels than the launch.
struct Likely {
  uint32_t channel;
  ChannelEntry entry;

  OXCCL_INLINE Likely(const Part& part, uint32_t channel)
      : channel(part.is_of_group ? 0 : channel),
        entry(reinterpret_cast<const ChannelEntry*>(part.program + 1)[this->channel]) {}

  OXCCL_INLINE ChannelEntry of(const Header* program, const Header& header, uint32_t wanted) const {
    if (header.channels_offset == sizeof(Header) && channel == wanted) return entry;
    return *tables_of(program, wanted).entry;
  }
};

// Copies the part's tables into the block's memory, of all threads, and points the launch and the
// workspace to them behind the barrier: one thread does, so that it needs another one.
OXCCL_INLINE void open_part(const Part& part, const Header& header, const ChannelEntry& entry, uint32_t channel,
                            Launch& launch, Workspace& workspace, Opened& opened) {
  const uint32_t of_program = channel - part.first_channel;
  const uint8_t* const base = reinterpret_cast<const uint8_t*>(part.program);
  const Tables tables = {reinterpret_cast<const ChannelEntry*>(base + header.channels_offset) + of_program,
                         reinterpret_cast<const Instruction*>(base + header.instructions_offset) + entry.first_instruction,
                         reinterpret_cast<const Operand*>(base + header.operands_offset),
                         reinterpret_cast<const Advance*>(base + header.advances_offset) + entry.first_advance};
  const uint32_t first = entry.first_connection, count = entry.connections;

  // What is here, and where.
  const uint32_t windows = part.windows == nullptr ? 0 : part.ranks;
  const uint32_t instructions_at = sizeof(Header) + sizeof(ChannelEntry);
  const uint32_t advances_at = instructions_at + entry.instructions * sizeof(Instruction);
  const uint32_t windows_at = advances_at + entry.advances * sizeof(Advance);
  const uint32_t connections_at = windows_at + windows * sizeof(Window);
  const uint32_t operands_at = connections_at + count * sizeof(Connection);
  bool fits = entry.instructions <= TABLES_BYTES / sizeof(Instruction) && windows <= TABLES_BYTES / sizeof(Window) &&
              entry.operands <= TABLES_BYTES / sizeof(Operand) && entry.advances <= TABLES_BYTES / sizeof(Advance) &&
              count <= TABLES_BYTES / sizeof(Connection);
  fits = fits && operands_at + entry.operands * uint32_t(sizeof(Operand)) <= TABLES_BYTES;
  uint8_t* const memory = tables_memory();
  bool apart = !fits;
  if (fits) {
    Instruction* const instructions = reinterpret_cast<Instruction*>(memory + instructions_at);
#pragma unroll 1
    for (uint32_t i = lane(); i < entry.instructions; i += lanes()) {
      Instruction one = tables.instructions[i];
      const uint32_t parts = uint32_t(one.sources) + one.destinations;
      const bool moves = one.opcode == OPCODE_REDUCE_COPY;
      one.index -= moves ? entry.first_operand : 0;
      apart |= moves ? one.index > entry.operands || parts > entry.operands - one.index : one.index - first >= count;
      apart |= (one.flags & INSTRUCTION_TREE) && one.sources > SMALL_TREE_SOURCES;
      instructions[i] = one;
    }
    Operand* const operands = reinterpret_cast<Operand*>(memory + operands_at);
#pragma unroll 1
    for (uint32_t o = turn_from(128); o < entry.operands; o += lanes()) {
      const Operand one = tables.operands[entry.first_operand + o];
      apart |= is_of_slot(one) && one.index - first >= count;
      operands[o] = one;
    }
    // Where slots are to be cleared, once in a long while, tables stay apart: see knows_epochs.
#pragma unroll 1
    for (uint32_t c = turn_from(192); c < count; c += lanes()) {
      const Connection& one = part.connections[first + c];
      apart |= one.sent - one.cleared >= LL_EPOCHS;
    }
    copy_packs(memory + connections_at, part.connections + first, count * sizeof(Connection), 256);
    Advance* const advances = reinterpret_cast<Advance*>(memory + advances_at);
#pragma unroll 1
    for (uint32_t a = turn_from(224); a < entry.advances; a += lanes()) advances[a] = tables.advances[a];
    copy_packs(memory + windows_at, part.windows + uint64_t(channel) * part.ranks, windows * sizeof(Window), 96);
    if (lane() == 64) {
      *reinterpret_cast<Header*>(memory) = header;
      *reinterpret_cast<ChannelEntry*>(memory + sizeof(Header)) = entry;
    }
  }
  apart = barrier_any(apart);
  if (!leader()) return;
  workspace.epochs_kept = !apart;
  workspace.tables = tables;
  opened.connections = nullptr;
  if (apart) return;
  workspace.tables = {reinterpret_cast<ChannelEntry*>(memory + sizeof(Header)),
                      reinterpret_cast<Instruction*>(memory + instructions_at),
                      reinterpret_cast<Operand*>(memory + operands_at),
                      reinterpret_cast<Advance*>(memory + advances_at)};
  opened.connections = part.connections;
  // Each is found by its number.
  launch.connections = reinterpret_cast<Connection*>(memory + connections_at) - first;
  launch.windows = reinterpret_cast<Window*>(memory + windows_at) - uint64_t(channel) * part.ranks;
  launch.program = reinterpret_cast<const Header*>(memory);
}

// What the part has changed of its connections.
OXCCL_INLINE void close_part(const Launch& launch, const Workspace& workspace, const Opened& opened) {
  if (opened.connections == nullptr) return;
#pragma unroll 1
  for (uint32_t a = lane(); a < workspace.tables.entry->advances; a += lanes()) {
    const uint32_t number = workspace.tables.advances[a].connection;
    const Connection& own = launch.connections[number];
    Connection& kept = opened.connections[number];
    // The other end may be another block's: see advance_cursors.
    if (workspace.tables.advances[a].received != 0) kept.received = own.received;
    if (workspace.tables.advances[a].sent == 0) continue;
    kept.sent = own.sent;
    kept.head_seen = own.head_seen;
    kept.cleared = own.cleared;
  }
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
