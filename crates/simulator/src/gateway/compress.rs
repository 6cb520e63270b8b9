//! Compression of answers for clients that accept gzip.

use std::io::Write as _;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use flate2::{Compression, write::GzEncoder};

use server::HangUp;

use crate::{
    answer::{hang_up, may_have_body, then},
    effect::whole,
};

/// Smaller bodies are not compressed.
const MIN_COMPRESSED_BYTES: usize = 1_024;

/// Whether `Accept-Encoding` names gzip with a weight above 0.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let nothing = weight.trim().strip_prefix("q=").is_some_and(|weight| weight.parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !nothing
    })
}

/// Compresses an answer that is large enough.
pub(super) async fn compress(answer: Response) -> Response {
    if answer.extensions().get::<HangUp>().is_some() || !may_have_body(answer.status().as_u16()) {
        return answer;
    }
    let Some((mut parts, body, rest)) = whole(answer).await else { return hang_up() };
    parts.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    let compressed = (body.len() >= MIN_COMPRESSED_BYTES).then(|| gzip(&body)).flatten();
    let body = match compressed {
        Some(compressed) => {
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(compressed.len()));
            compressed
        }
        None => body,
    };
    then(Response::from_parts(parts, Body::from(body)), rest)
}

/// `None` if compression fails, which it cannot in memory.
fn gzip(body: &Bytes) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_wanted_where_it_is_named_with_a_weight() {
        for (value, wanted) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("br,gzip ; q=1", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("identity", false),
            ("x-gzip", false),
            ("", false),
        ] {
            let headers = [(header::ACCEPT_ENCODING, HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(is_wanted(&headers), wanted, "{value}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
