//! The format's C++ header: a compiler reads it, and refuses one that is laid out otherwise than
//! Rust has it.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Stdio};

/// What a compiler has to say against this text; empty if nothing.
fn objections(text: &str) -> String {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut compiler = Command::new(compiler)
        .args(["-std=c++17", "-Wall", "-Wextra", "-fsyntax-only", "-x", "c++", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), !said.contains("error:"), "{said}");
    said.replace("warning: #pragma once in main file", "")
}

fn changed(from: &str, to: &str) -> String {
    let header = oxccl_format::header();
    assert_eq!(header.matches(from).count(), 1, "{from}");
    header.replace(from, to)
}

#[test]
fn a_compiler_lays_it_out_as_rust_does() {
    let said = objections(&oxccl_format::header());
    assert!(!said.contains("error:") && !said.contains("warning:"), "{said}");
}

#[test]
fn what_is_laid_out_otherwise_is_refused() {
    let with_a_gap = changed("  int64_t value;", "  uint32_t gap; int64_t value;");
    assert!(objections(&with_a_gap).contains("offsetof(Instruction, value) differs from Rust's"));
    let longer = changed("  uint64_t launched;", "  uint64_t launched, more;");
    assert!(objections(&longer).contains("sizeof(Launch) differs from Rust's"));
    let loose = changed("struct alignas(64) Progress {", "struct Progress {");
    assert!(objections(&loose).contains("alignof(Progress) differs from Rust's"));
}
