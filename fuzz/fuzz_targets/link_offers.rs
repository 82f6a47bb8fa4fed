#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxccl_fuzz::run("link_offers", data));
