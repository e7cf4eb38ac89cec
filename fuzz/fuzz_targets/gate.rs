//! Entry of `cargo fuzz run --features libfuzzer gate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| overmind_fuzz::run("gate", data));
