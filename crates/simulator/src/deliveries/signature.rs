//! The signature of a delivery, which both families make in the same way.

use aws_lc_rs::hmac;
use axum::http::HeaderValue;
use bytes::Bytes;

/// The value of the signature header: `sha256=` and the HMAC of the bytes sent, in upper-case hexadecimal digits.
///
/// # Panics
/// Never: digits make a header's value.
#[must_use]
pub fn signature(key: &hmac::Key, body: &[u8]) -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = Vec::with_capacity(71);
    text.extend_from_slice(b"sha256=");
    for byte in hmac::sign(key, body).as_ref() {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or_else(|error| unreachable!("digits: {error}"))
}
