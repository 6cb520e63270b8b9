//! Faults of API requests.

use serde::{Deserialize, Serialize};

use super::{HttpStatus, Latency, RetryHint};

/// A fault rule for API requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// Which requests it matches.
    #[serde(default)]
    pub on: FaultTarget,
    /// What happens to them.
    pub effect: Effect,
    /// The share of matching requests it applies to.
    #[serde(default = "always")]
    pub share: f64,
    /// How often it applies at most; 0 disables it. Counts restart when the list of rules is set: by a PUT, by a PATCH that names
    /// `faults`, by `SimulatedProvider::set_faults`, or by a `turn` that changes the list. Other knobs do not affect them.
    #[serde(default)]
    pub times: Option<u32>,
    /// Matching requests to skip first.
    #[serde(default)]
    pub skip: u32,
}

const fn always() -> f64 {
    1.0
}

/// What a request must match; unset members match every request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct FaultTarget {
    /// `GET`, `POST`, …
    pub method: Option<String>,
    /// Beginning of the path: `/accounting/api/customers`.
    pub path: Option<String>,
    /// End of the path, such as a record's id.
    pub ending: Option<String>,
    /// Company in `context`.
    pub company: Option<String>,
    /// `pageNumber`.
    pub page: Option<u64>,
}

/// What happens to a request. The journal has its name in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "camelCase")]
#[strum(serialize_all = "camelCase")]
pub enum Effect {
    /// 429, with a hint when to retry.
    Throttle {
        /// Seconds until the next request.
        seconds: u32,
        /// Where the seconds are given.
        #[serde(default)]
        tells: RetryHint,
    },
    /// 403 of the gateway with `Retry-After`: the quota is used up.
    Quota {
        /// Seconds until the next request.
        seconds: u32,
    },
    /// This status with the API's error body; from 502 on with the gateway's, and with none for 204 and 304.
    Status(HttpStatus),
    /// The gateway's 404.
    UnknownPath,
    /// Ends the connection before any work.
    Drop,
    /// The right answer, cut off halfway.
    Truncate,
    /// The right status with half of the JSON and a matching length; `{` if there was no body but may be one.
    InvalidJson,
    /// The right body as `text/html`.
    WrongContentType,
    /// The right JSON with every value of another type: numbers and booleans as strings, strings as numbers.
    WrongTypes,
    /// An HTML page, as a proxy would send.
    Html {
        /// Its status.
        status: HttpStatus,
    },
    /// A very large body: an HTML page, or for a success status an empty list padded with spaces.
    Oversized {
        /// Length of the body, at most 64 MiB.
        bytes: u32,
        /// Its status.
        status: HttpStatus,
    },
    /// The right rows, wrapped in an object.
    Wrapped,
    /// The right rows without their ids.
    WithoutIds,
    /// The rows of the first page, whatever `pageNumber` says.
    FirstPage,
    /// Raises `totalCount` in `X-Pagination`; nothing where that header is missing.
    WrongTotal {
        /// Rows too many.
        surplus: u32,
    },
    /// The right answer after a delay.
    Delay(Latency),
    /// Does the work, then ends the connection without an answer.
    LoseAnswer,
}
