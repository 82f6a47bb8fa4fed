#![no_main]

//! Calls with hostile counts over guarded memory: the bytes are what `tests/hostile.rs` makes at
//! random.
#[path = "../../tests/hostile_counts/mod.rs"]
mod hostile_counts;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    hostile_counts::run(data);
});
