//! Entry of `cargo fuzz run --features libfuzzer rules`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| overmind_fuzz::run("rules", data));
