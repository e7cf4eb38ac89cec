//! Entry of `cargo fuzz run --features libfuzzer redact`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| overmind_fuzz::run("redact", data));
