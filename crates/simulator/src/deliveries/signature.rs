//! The signature of a delivery, which both families make in the same way.

use aws_lc_rs::hmac;
use axum::http::HeaderValue;

/// The value of the signature header: `sha256=` and the HMAC of the bytes sent, in upper-case hexadecimal digits.
///
/// # Panics
/// Never: digits make a header's value.
pub fn signature(key: &hmac::Key, body: &[u8]) -> HeaderValue {
    let hash = hmac::sign(key, body);
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    HeaderValue::try_from(format!("sha256={digits}")).unwrap_or_else(|error| unreachable!("digits: {error}"))
}
