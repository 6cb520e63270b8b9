//! A framed Avro record and the schema that it was written with.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tributary_fuzz::avro(input);
});
