//! What goes wrong with API requests.

use serde::{Deserialize, Serialize};

use super::{Latency, RetryHint, Status};

/// One thing that goes wrong with API requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// Which requests.
    #[serde(default)]
    pub on: Target,
    /// What happens to them.
    pub effect: Effect,
    /// The share of them.
    #[serde(default = "always")]
    pub share: f64,
    /// How often at most; 0 switches the rule off. Counted from when the list of rules was last set: over control by a PUT, or
    /// by a PATCH that names `faults`, whatever it holds; in the same process by `Provider::set_faults`, or by a `turn` after
    /// which the list is another. Turning other knobs leaves the counts alone.
    #[serde(default)]
    pub times: Option<u32>,
    /// Requests that fit and are left alone first.
    #[serde(default)]
    pub skip: u32,
}

const fn always() -> f64 {
    1.0
}

/// Which requests a fault hits: all of what is set must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Target {
    /// `GET`, `POST`, …
    pub method: Option<String>,
    /// What the path begins with: `/accounting/api/customers`.
    pub path: Option<String>,
    /// What the path ends with: a record's id, for one record that always fails.
    pub ending: Option<String>,
    /// Company in `context`.
    pub company: Option<String>,
    /// `pageNumber`, for one page that always fails.
    pub page: Option<u64>,
}

/// What happens to a request. The journal has it by its name in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "camelCase")]
#[strum(serialize_all = "camelCase")]
pub enum Effect {
    /// 429; it tells the seconds in one of three ways, or not at all.
    Throttle {
        /// Seconds told.
        seconds: u32,
        /// Where they are told.
        #[serde(default)]
        tells: RetryHint,
    },
    /// 403 of the gateway: the quota is used up, with `Retry-After`.
    Quota {
        /// Seconds told.
        seconds: u32,
    },
    /// This status, with an API error body (or the gateway's, from 502; or none, with 204 and 304).
    Status(Status),
    /// The gateway's 404.
    UnknownPath,
    /// The connection ends without an answer.
    Drop,
    /// The right answer, cut off in the middle.
    Truncate,
    /// The right status with half the JSON and a length that fits; `{` where there is no body, unless none may be.
    InvalidJson,
    /// The right body under `text/html`.
    WrongContentType,
    /// The right JSON with every value of another type: numbers and flags as text, texts as numbers.
    WrongTypes,
    /// A page for people, as a proxy on the way would send.
    Html {
        /// Its status.
        status: Status,
    },
    /// Far more than anybody asked for: a page for people, or an empty list padded with spaces where the status says that all
    /// went well.
    Oversized {
        /// Length of the body, at most 64 MiB.
        bytes: u32,
        /// Its status.
        status: Status,
    },
    /// The right rows as a member of an object, where a list should be.
    Wrapped,
    /// The right rows without their ids.
    WithoutIds,
    /// The rows of the first page, whatever `pageNumber` says.
    FirstPage,
    /// `X-Pagination` with so many rows too many in the list; nothing where there is none.
    WrongTotal {
        /// Rows.
        surplus: u32,
    },
    /// The right answer, late.
    Delay(Latency),
    /// The right work, but the answer is lost: the connection ends after it.
    LoseAnswer,
}
