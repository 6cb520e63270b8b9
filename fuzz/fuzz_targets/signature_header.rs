//! The text of a signature header.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tributary::webhooks::signature::{Keys, Presented, Scheme};

fuzz_target!(|text: &[u8]| {
    let required = Presented::parse(text, Scheme::Required);
    let optional = Presented::parse(text, Scheme::Optional);

    let digits = text.strip_prefix(b"sha256=");
    let whole = |digits: &[u8]| digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit);
    assert_eq!(required.is_some(), digits.is_some_and(whole));
    assert_eq!(optional.is_some(), digits.map_or_else(|| whole(text), whole));
    // Nobody guesses it.
    for presented in required.iter().chain(&optional) {
        let mut running = Keys::new([&b"a secret of twenty-four b"[..], b"another secret of length"]).start();
        running.update(text);
        assert_eq!(running.matching(presented), None);
    }
});
