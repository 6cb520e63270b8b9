//! HTTP statuses chosen by knobs.

use serde::{Deserialize, Serialize};

/// A status from 200 to 599; JSON with any other is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16")]
pub struct HttpStatus(u16);

impl HttpStatus {
    /// 200.
    pub const OK: Self = Self(200);
    /// 403.
    pub const FORBIDDEN: Self = Self(403);
    /// 404.
    pub const NOT_FOUND: Self = Self(404);
    /// 410.
    pub const GONE: Self = Self(410);
    /// 422.
    pub const UNPROCESSABLE: Self = Self(422);
    /// 500.
    pub const SERVER_ERROR: Self = Self(500);

    /// `None` outside 200 to 599.
    pub const fn new(status: u16) -> Option<Self> {
        match status {
            200..=599 => Some(Self(status)),
            _ => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for HttpStatus {
    type Error = String;

    fn try_from(status: u16) -> Result<Self, String> {
        Self::new(status).ok_or_else(|| format!("{status} is no status of an answer: give 200 to 599"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_answer_may_end_with_is_a_status() {
        for (text, status) in [
            ("200", Some(200)),
            ("599", Some(599)),
            ("0", None),
            ("101", None),
            ("199", None),
            ("600", None),
            ("65537", None),
            ("-1", None),
            ("\"200\"", None),
        ] {
            let read = serde_json::from_str::<HttpStatus>(text);

            assert_eq!(read.ok().map(HttpStatus::get), status, "{text}");
        }
        assert_eq!(serde_json::to_string(&HttpStatus::OK).unwrap(), "200");
    }
}
