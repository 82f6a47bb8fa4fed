//! Writes what Rust knows of the layout as C++ assertions.

use oxccl_format::*;
use std::mem::{align_of, offset_of, size_of};

macro_rules! layout {
    ($text:ident, $name:ident { $($field:ident),+ $(,)? }) => {
        $text += &assertion(concat!("sizeof(", stringify!($name), ")"), size_of::<$name>());
        $text += &assertion(concat!("alignof(", stringify!($name), ")"), align_of::<$name>());
        $($text += &assertion(
            concat!("offsetof(", stringify!($name), ", ", stringify!($field), ")"),
            offset_of!($name, $field),
        );)+
        // A field that one side has and this list has not would change the destructuring below.
        let _ = |value: $name| { let $name { $($field: _),+ } = value; };
    };
}

macro_rules! constants {
    ($text:ident, $($name:literal = $value:expr),+ $(,)?) => {
        $($text += &assertion($name, $value as usize);)+
    };
}

fn assertion(what: &str, value: usize) -> String {
    format!("static_assert({what} == {value}, \"{what} differs from oxccl_format\");\n")
}

/// The header's text.
pub(crate) fn header() -> String {
    let mut text = String::from("// Written by build.rs from oxccl_format.\n#pragma once\n");
    structures(&mut text);
    numbers(&mut text);
    text
}

fn structures(text: &mut String) {
    let mut out = String::new();
    layout!(
        out,
        Header {
            magic,
            version,
            data_type,
            fold,
            scale,
            reserved,
            channels,
            channels_offset,
            instructions_offset,
            operands_offset,
            advances_offset,
            len_bytes,
        }
    );
    layout!(
        out,
        ChannelEntry {
            first_instruction,
            instructions,
            first_advance,
            advances,
            rounds,
            tile_bytes,
        }
    );
    layout!(
        out,
        Instruction { opcode, flags, sources, destinations, run, index, step, value, len_bytes }
    );
    layout!(out, Operand { space, flags, lane, reserved, index, message, signature, offset_bytes });
    layout!(out, Advance { connection, sent, received, reserved });
    layout!(out, SlotHeader { tail, signature, len_bytes });
    layout!(out, SlotTail { tail, content_bytes, reserved });
    layout!(out, Segment { start, len_bytes, input, output, followers, bucket, reserved });
    layout!(out, SegmentTokens { input, output, followers });
    layout!(out, Doorbell { rings, sleeping, event });
    layout!(
        out,
        Connection {
            send_slots,
            recv_slots,
            send_head,
            recv_head,
            doorbell,
            sent,
            received,
            head_seen,
            slot_stride_bytes,
            slots,
            peer,
            lane,
            cleared,
            send_tails,
            recv_tails,
        }
    );
    layout!(out, Tokens { input, output });
    layout!(out, Window { base, registered, heap, tokens });
    layout!(out, Multicast { base, input, output, members });
    layout!(out, Progress { call, awaited, step, peer, lane, head });
    layout!(out, Status { outcome, step, peer, found });
    layout!(
        out,
        Launch {
            program,
            connections,
            windows,
            progress,
            statuses,
            doorbells,
            abort,
            poll,
            poll_context,
            input,
            output,
            tokens,
            multicast,
            scale_bits,
            call,
            history,
            signature,
            ranks,
            spins,
            yields,
            next,
            segments,
            ready,
            done,
            segments_count,
            bucket,
            done_stride,
            joined_channels,
            flags,
            reserved,
            ended,
            arrived,
            launched,
        }
    );
    text.push_str(&out);
}

fn numbers(text: &mut String) {
    let mut out = String::new();
    constants!(
        out,
        "MAGIC" = MAGIC,
        "VERSION" = VERSION,
        "MAX_OPERANDS" = MAX_OPERANDS,
        "MAX_TREE_SOURCES" = MAX_TREE_SOURCES,
        "LANES" = LANES,
        "SLOT_HEADER_BYTES" = SLOT_HEADER_BYTES,
        "SEGMENT_ALIGN" = SEGMENT_ALIGN,
        "LANE_READY" = LANE_READY,
        "LAUNCH_AWAITS" = LAUNCH_AWAITS,
        "LAUNCH_COMPLETES" = LAUNCH_COMPLETES,
        "LL_HEADER_BYTES" = LL_HEADER_BYTES,
        "LL128_LINE_BYTES" = LL128_LINE_BYTES,
        "LL128_DATA_BYTES" = LL128_DATA_BYTES,
        "LL_EPOCHS" = LL_EPOCHS,
        "TOKEN_NUMBER_SHIFT" = TOKEN_NUMBER_SHIFT,
        "TYPE_I8" = DataType::I8,
        "TYPE_U8" = DataType::U8,
        "TYPE_I32" = DataType::I32,
        "TYPE_U32" = DataType::U32,
        "TYPE_I64" = DataType::I64,
        "TYPE_U64" = DataType::U64,
        "TYPE_F16" = DataType::F16,
        "TYPE_BF16" = DataType::BF16,
        "TYPE_F32" = DataType::F32,
        "TYPE_F64" = DataType::F64,
        "TYPE_F8E4M3" = DataType::F8E4M3,
        "TYPE_F8E5M2" = DataType::F8E5M2,
        "FOLD_SUM" = Fold::Sum,
        "FOLD_PROD" = Fold::Prod,
        "FOLD_MIN" = Fold::Min,
        "FOLD_MAX" = Fold::Max,
        "FOLD_BIT_AND" = Fold::BitAnd,
        "FOLD_BIT_OR" = Fold::BitOr,
        "FOLD_BIT_XOR" = Fold::BitXor,
        "SCALE_NONE" = Scale::None,
        "SCALE_PREMULTIPLY" = Scale::Premultiply,
        "SCALE_AVERAGE" = Scale::Average,
        "OPCODE_WAIT" = Opcode::Wait,
        "OPCODE_REDUCE_COPY" = Opcode::ReduceCopy,
        "OPCODE_SIGNAL" = Opcode::Signal,
        "INSTRUCTION_HEAD" = INSTRUCTION_HEAD,
        "INSTRUCTION_TREE" = INSTRUCTION_TREE,
        "INSTRUCTION_FINISH" = INSTRUCTION_FINISH,
        "INSTRUCTION_MULTICAST_READ" = INSTRUCTION_MULTICAST_READ,
        "INSTRUCTION_MULTICAST_WRITE" = INSTRUCTION_MULTICAST_WRITE,
        "OPERAND_RAW" = OPERAND_RAW,
        "OPERAND_STREAM" = OPERAND_STREAM,
    );
    constants!(
        out,
        "SPACE_INPUT" = Space::Input,
        "SPACE_OUTPUT" = Space::Output,
        "SPACE_SLOT" = Space::Slot,
        "SPACE_PEER_SLOT" = Space::PeerSlot,
        "SPACE_WINDOW_INPUT" = Space::WindowInput,
        "SPACE_WINDOW_OUTPUT" = Space::WindowOutput,
        "SPACE_TOKENS" = Space::Tokens,
        "SPACE_PEER_TOKENS" = Space::PeerTokens,
        "LANE_LL" = Lane::Ll,
        "LANE_SLOTS" = Lane::Slots,
        "LANE_SYNC" = Lane::Sync,
        "LANE_LL128" = Lane::Ll128,
        "OUTCOME_DONE" = Outcome::Done,
        "OUTCOME_ABORTED" = Outcome::Aborted,
        "OUTCOME_MISMATCH" = Outcome::Mismatch,
        "OUTCOME_BAD_PROGRAM" = Outcome::BadProgram,
    );
    text.push_str(&out);
}
