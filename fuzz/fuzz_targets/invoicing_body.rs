//! A signed invoicing body, of a hook that is known and of one that is not.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tributary_fuzz::invoicing_body(input));
