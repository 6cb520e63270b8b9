//! The text of a signature header.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tributary_fuzz::signature_header(input));
