//! The properties of a worker, or the JSON of a connector.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tributary_fuzz::configuration(input);
});
