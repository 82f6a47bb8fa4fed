//! The format in C++: a header with everything that the tables have, and assertions that the
//! compiler that reads it lays it out as Rust does.

use crate::table::{Field, Item, Variant};
use crate::{connection, element, launch, program};

/// What stands in front of the items.
const BEGIN: &str = "\
// Written by the build from the crate oxccl-format, where the format is told.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Host builds for several instruction sets are linked together: each lives in a namespace of its
// own.
#ifndef OXCCL_ISA
#define OXCCL_ISA device
#endif
";

/// The C++ header of the format.
///
/// An enum's values are prefixed by its name, as `DATA_TYPE_F32`, and counted, as `DATA_TYPES`;
/// `OXCCL_EACH_DATA_TYPE(DO)` is `DO(F32)` for each of them.
pub fn header() -> String {
    let tables = [element::items(), program::items(), connection::items(), launch::items()];
    let items: Vec<Item> = tables.into_iter().flatten().collect();
    let mut text = String::from(BEGIN);
    text += "\nnamespace oxccl {\ninline namespace OXCCL_ISA {\n\n";
    for item in &items {
        if let Item::Struct { name, .. } = item {
            text += &format!("struct {name};\n");
        }
    }
    for item in &items {
        text += &written(item);
    }
    text + "\n}  // namespace OXCCL_ISA\n}  // namespace oxccl\n"
}

fn written(item: &Item) -> String {
    match item {
        Item::Constant { name, rust_type, value, docs } => constant(name, rust_type, *value, docs),
        Item::Enum { name, len_bytes, variants, docs } => {
            enumeration(name, *len_bytes, variants, docs)
        }
        Item::Struct { name, len_bytes, align, fields, docs } => {
            structure(name, *len_bytes, *align, fields, docs)
        }
    }
}

fn constant(name: &str, rust_type: &str, value: u64, docs: &[&str]) -> String {
    let cpp_type = match rust_type {
        "u8" => "uint8_t",
        "u64" => "uint64_t",
        // Sizes are small.
        "u32" | "usize" => "uint32_t",
        other => unreachable!("{name} is a {other}, for which there is no type in C++ yet"),
    };
    format!("\n{}constexpr {cpp_type} {name} = {value};\n", comment(docs, ""))
}

fn enumeration(name: &str, len_bytes: usize, variants: &[Variant], docs: &[&str]) -> String {
    let prefix = upper(name);
    let bits = len_bytes * 8;
    let mut text = format!("\n{}enum {name} : uint{bits}_t {{\n", comment(docs, ""));
    for Variant { name, value, docs } in variants {
        text += &format!("{}  {prefix}_{} = {value},\n", comment(docs, "  "), upper(name));
    }
    text += &format!("}};\nconstexpr uint32_t {prefix}S = {};\n", variants.len());
    let each: String =
        variants.iter().map(|variant| format!(" DO({})", upper(variant.name))).collect();
    text + &format!("#define OXCCL_EACH_{prefix}(DO){each}\n")
}

fn structure(
    name: &str,
    len_bytes: usize,
    align: usize,
    fields: &[Field],
    docs: &[&str],
) -> String {
    let natural = align_of::<u64>();
    let aligned = if align > natural { format!("alignas({align}) ") } else { String::new() };
    let mut text = format!("\n{}struct {aligned}{name} {{\n", comment(docs, ""));
    for Field { declaration, docs, .. } in fields {
        text += &format!("{}  {declaration};\n", comment(docs, "  "));
    }
    text += "};\n";
    text += &assertion(&format!("sizeof({name})"), len_bytes);
    text += &assertion(&format!("alignof({name})"), align);
    for Field { name: field, offset, .. } in fields {
        text += &assertion(&format!("offsetof({name}, {field})"), *offset);
    }
    text
}

fn assertion(what: &str, value: usize) -> String {
    format!("static_assert({what} == {value}, \"{what} differs from Rust's\");\n")
}

/// In one line.
fn comment(docs: &[&str], indentation: &str) -> String {
    let text: Vec<&str> = docs.iter().map(|line| line.trim()).collect();
    format!("{indentation}// {}\n", text.join(" ").replace("[`", "`").replace("`]", "`"))
}

/// `ReduceCopy` as `REDUCE_COPY`, `Ll128` as `LL128`.
fn upper(name: &str) -> String {
    let mut text = String::new();
    let mut lower_before = false;
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && lower_before {
            text.push('_');
        }
        lower_before = letter.is_ascii_lowercase();
        text.push(letter.to_ascii_uppercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_constants() {
        let names = ["F8E4M3", "BF16", "ReduceCopy", "Ll128", "PeerSlot", "BitXor"];
        let expected = ["F8E4M3", "BF16", "REDUCE_COPY", "LL128", "PEER_SLOT", "BIT_XOR"];
        assert_eq!(names.map(upper), expected);
    }

    #[test]
    fn everything_is_in_the_header() {
        let header = header();
        let has = |line: &str| assert!(header.contains(line), "no {line:?} in\n{header}");
        has(&format!("constexpr uint32_t VERSION = {};\n", crate::VERSION));
        has("  OUTCOME_BAD_PROGRAM = 3,\n");
        has("constexpr uint32_t LANES = 4;\n");
        has("constexpr uint8_t OPERAND_STREAM = 2;\n");
        has("struct alignas(64) Connection {\n");
        has("static_assert(offsetof(Launch, launched) == ");
    }
}
