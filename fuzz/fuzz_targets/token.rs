//! A token, the parts of one to sign, or a key set.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tributary_fuzz::token(input);
});
