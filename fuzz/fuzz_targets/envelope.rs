//! A signed accounting body, to an address with a resource and to one without.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tributary_fuzz::envelope(input));
