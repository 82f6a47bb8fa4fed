// The C++ mirror of src/format.rs, which is the definition and explains every field. build.rs writes
// the sizes and offsets that Rust sees into format_check.h, and including it here makes each compiler,
// for every host and GPU target, prove that both sides mean the same bytes.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Host builds for several instruction sets are linked together: each lives in a namespace of its own.
#ifndef OXCCL_ISA
#define OXCCL_ISA device
#endif

namespace oxccl {
inline namespace OXCCL_ISA {

constexpr uint32_t MAGIC = 0x6363786f;
constexpr uint32_t VERSION = 5;
constexpr uint32_t MAX_OPERANDS = 260;
constexpr uint32_t MAX_TREE_SOURCES = 256;
constexpr uint32_t LANES = 4;
constexpr uint32_t SLOT_HEADER_BYTES = 64;
constexpr uint32_t SEGMENT_ALIGN = 64;
constexpr uint32_t LANE_READY = 4;
constexpr uint32_t LAUNCH_AWAITS = 1, LAUNCH_COMPLETES = 2;
constexpr uint32_t LL_HEADER_BYTES = 16;
constexpr uint32_t LL128_LINE_BYTES = 128;
constexpr uint32_t LL128_DATA_BYTES = 120;
constexpr uint64_t LL_EPOCHS = 1u << 30;
constexpr uint32_t TOKEN_NUMBER_SHIFT = 52;

enum DataType : uint8_t {
  TYPE_I8, TYPE_U8, TYPE_I32, TYPE_U32, TYPE_I64, TYPE_U64,
  TYPE_F16, TYPE_BF16, TYPE_F32, TYPE_F64, TYPE_F8E4M3, TYPE_F8E5M2,
  DATA_TYPES
};
static_assert(TYPE_U8 == TYPE_I8 + 1 && TYPE_U32 == TYPE_I32 + 1 && TYPE_U64 == TYPE_I64 + 1, "signed, unsigned");
enum Fold : uint8_t {
  FOLD_SUM, FOLD_PROD, FOLD_MIN, FOLD_MAX, FOLD_BIT_AND, FOLD_BIT_OR, FOLD_BIT_XOR, FOLDS
};
enum Scale : uint8_t { SCALE_NONE, SCALE_PREMULTIPLY, SCALE_AVERAGE };
enum Opcode : uint8_t { OPCODE_WAIT, OPCODE_REDUCE_COPY, OPCODE_SIGNAL };
enum InstructionFlag : uint8_t {
  INSTRUCTION_HEAD = 1, INSTRUCTION_TREE = 2, INSTRUCTION_FINISH = 4,
  INSTRUCTION_MULTICAST_READ = 8, INSTRUCTION_MULTICAST_WRITE = 16,
  INSTRUCTION_RELEASE = 32, INSTRUCTION_ACQUIRE = 64
};
enum OperandFlag : uint8_t { OPERAND_RAW = 1, OPERAND_STREAM = 2 };
enum Space : uint8_t {
  SPACE_INPUT, SPACE_OUTPUT, SPACE_SLOT, SPACE_PEER_SLOT,
  SPACE_WINDOW_INPUT, SPACE_WINDOW_OUTPUT, SPACE_TOKENS, SPACE_PEER_TOKENS
};
enum Lane : uint8_t { LANE_LL, LANE_SLOTS, LANE_SYNC, LANE_LL128 };
enum Outcome : uint32_t { OUTCOME_DONE, OUTCOME_ABORTED, OUTCOME_MISMATCH, OUTCOME_BAD_PROGRAM };

struct Header {
  uint32_t magic, version;
  uint8_t data_type, fold, scale, reserved;
  uint32_t channels;
  uint32_t channels_offset, instructions_offset, operands_offset, advances_offset;
  uint64_t len_bytes;
};

struct ChannelEntry {
  uint32_t first_instruction, instructions, first_advance, advances;
  uint64_t rounds, tile_bytes;
};

struct Instruction {
  uint8_t opcode, flags;
  uint16_t sources, destinations, run;
  uint32_t index, step;
  int64_t value;
  uint64_t len_bytes;
};

struct Operand {
  uint8_t space, flags, lane, reserved;
  uint32_t index;
  uint32_t message, signature;
  uint64_t offset_bytes;
};

struct Advance {
  uint32_t connection, sent, received, reserved;
};

struct SlotHeader {
  uint64_t tail;
  uint32_t signature, len_bytes;
};

struct alignas(64) SlotTail {
  uint64_t tail;
  uint32_t content_bytes, reserved;
};

struct alignas(64) Doorbell {
  uint32_t rings, sleeping;
  int32_t event;
};

struct alignas(64) Connection {
  uint8_t *send_slots, *recv_slots;
  uint64_t *send_head, *recv_head;
  Doorbell* doorbell;
  uint64_t sent, received, head_seen;
  uint32_t slot_stride_bytes, slots, peer, lane;
  uint64_t cleared;
  SlotTail *send_tails, *recv_tails;
};

struct Tokens {
  uint64_t input, output;
};

struct Window {
  uint8_t* base;
  uint8_t* const* registered;
  uint64_t heap;
  Tokens tokens;
};

struct Multicast {
  uint8_t* base;
  uint64_t input, output;
  const uint64_t* members;
};

struct alignas(64) Progress {
  uint64_t call, awaited;
  uint32_t step, peer, lane, head;
};

struct Status {
  uint32_t outcome, step, peer, found;
};

struct Segment {
  uint64_t start, len_bytes;
  const uint8_t* input;
  uint8_t* output;
  uint64_t followers;
  uint32_t bucket, reserved;
};

struct SegmentTokens {
  uint64_t input, output, followers;
};

struct Launch {
  const Header* program;
  Connection* connections;
  Window* windows;
  Progress* progress;
  Status* statuses;
  Doorbell* doorbells;
  const uint32_t* abort;
  uint32_t (*poll)(void* context, uint32_t channel);
  void* poll_context;
  const uint8_t* input;
  uint8_t* output;
  Tokens tokens;
  Multicast multicast;
  uint64_t scale_bits, call, history;
  uint32_t signature, ranks, spins, yields;
  const Launch* next;
  const Segment* segments;
  const uint64_t* ready;
  uint64_t* done;
  uint32_t segments_count, bucket, done_stride, joined_channels, flags, reserved;
  uint64_t* ended;
  uint32_t* arrived;
  uint64_t launched;
};

#include "format_check.h"

}  // namespace OXCCL_ISA
}  // namespace oxccl
