//! Errors of API calls, and whether a retry can help.

use std::{borrow::Cow, fmt, time::Duration};

use base::{
    metrics::{ApiOutcome, ApiWait},
    retry::{ErrorChain, Retry},
};
use model::Quote;

use crate::auth::{self, http::ClientSetupError};

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint}{}{}", answered(*status), quoted(excerpt.as_deref()))]
pub struct Error {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Status of the response, if there was one.
    pub status: Option<u16>,
    /// Why the call failed.
    #[source]
    pub cause: Cause,
    /// Redacted excerpt of the response, short and on one line.
    pub excerpt: Option<Box<str>>,
    /// Whether the provider may have acted. Unless it is [`Acted::No`], read the object to find out.
    pub acted: Acted,
    /// Whether the request had the context of a company.
    pub in_company: bool,
}

/// A method and a path template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Such as `GET`.
    pub method: &'static str,
    /// Such as `accounting/api/accounts/{id}`.
    pub path: Cow<'static, str>,
}

/// Whether the provider acted on a failed request. If it may have, repeating the request could create a second object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acted {
    /// It did not.
    No,
    /// Unknown.
    Unknown,
    /// It reports success, but the response cannot be used.
    Yes,
}

/// Who sent an error response. Only the API itself knows that an object is missing or gone; an answer of the gateway or a proxy,
/// or an empty page, is about the path to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The gateway, before it called an API.
    Gateway,
    /// The API.
    Api,
    /// Neither of their formats.
    Unknown,
}

/// How far a failure reaches: which other requests would fail now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Only this record, list or operation.
    Record,
    /// All requests of its company.
    Company,
    /// All requests with the same login.
    Grant,
    /// All requests.
    Everything,
}

/// Which time limit was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `provider.connect.timeout.ms`.
    Connect,
    /// `provider.read.timeout.ms`.
    Read,
    /// `provider.request.timeout.ms`.
    Request,
    /// The call's deadline.
    Call,
    /// The provider's own: status 408.
    Provider,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// 400, 409, 415, 422 and the like.
    #[error("the provider rejected the request")]
    Refused,
    /// 401 for the subscription key; the token does not matter.
    #[error("the provider rejected the subscription key: check provider.subscription.key")]
    Key,
    /// 401 for the token and its replacement, or for a token that works elsewhere.
    #[error("the provider rejected the token{}", remedy.as_ref().map(|remedy| format!(" of {remedy}")).unwrap_or_default())]
    Token {
        /// Which grant or login, and what to do, if known.
        remedy: Option<Box<str>>,
    },
    /// The token is not a valid header value.
    #[error("the token is not a valid header value")]
    Unsendable,
    /// Mail or password is wrong. Not retried automatically: the provider may lock the user out.
    #[error("the provider rejected the login: check invoicing.login.mail and invoicing.login.password")]
    Credentials,
    /// The user has several companies and no default.
    #[error(
        "the user of the invoicing login has several companies and no default: set invoicing.login.company to one of {offered}"
    )]
    Company {
        /// Ids of the companies.
        offered: String,
    },
    /// The quota of the subscription is used up.
    #[error("the provider's quota is used up")]
    Quota {
        /// Wait that the provider names.
        again: Option<Duration>,
    },
    /// 403 other than a quota.
    #[error("the provider forbids the request")]
    Forbidden {
        /// Who answered.
        by: AnsweredBy,
    },
    /// Status 404.
    #[error("{}", match by {
        AnsweredBy::Gateway => "the gateway does not know the path",
        AnsweredBy::Api => "the record does not exist",
        AnsweredBy::Unknown => "nothing was found, and it is unclear whether the API says so",
    })]
    NotFound {
        /// Who answered.
        by: AnsweredBy,
    },
    /// Status 410.
    #[error("{}", match by {
        AnsweredBy::Gateway => "the gateway no longer serves the path",
        AnsweredBy::Api => "the record is gone",
        AnsweredBy::Unknown => "the record is gone, and it is unclear whether the API says so",
    })]
    Gone {
        /// Who answered.
        by: AnsweredBy,
    },
    /// 3xx. Not followed, so that a token never goes to an address that is not configured.
    #[error(
        "the provider redirects, which is not followed: set provider.base.url to the address that it points to"
    )]
    Redirect,
    /// Status 429.
    #[error("the provider's rate limit is reached")]
    Throttled {
        /// Wait that the provider names.
        again: Option<Duration>,
    },
    /// 5xx.
    #[error("the provider failed")]
    Server {
        /// Wait that the provider names.
        again: Option<Duration>,
    },
    /// Connecting failed, or the connection broke.
    #[error("cannot reach the provider")]
    Unreachable(#[source] reqwest::Error),
    /// A time limit was exceeded.
    #[error("no response {}", match limit {
        Limit::Connect => "to the connection attempt within provider.connect.timeout.ms",
        Limit::Read => "within provider.read.timeout.ms",
        Limit::Request => "within provider.request.timeout.ms",
        Limit::Call => "before the deadline of the call",
        Limit::Provider => "before the provider gave up (status 408)",
    })]
    Timeout {
        /// Which one.
        limit: Limit,
    },
    /// The response has another content type than JSON.
    #[error("the response is not JSON")]
    NotJson,
    /// The connection broke while the body was read.
    #[error("the connection broke while the response was read")]
    Truncated(#[source] reqwest::Error),
    /// The body is not what this endpoint documents.
    #[error("the response cannot be used: {what}")]
    Malformed {
        /// What is wrong and where, never with words of the body.
        what: String,
    },
    /// The body exceeds `provider.response.limit.bytes`.
    #[error("the response is longer than provider.response.limit.bytes ({limit})")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// `.`, `..` or empty: URL parsers drop such a segment.
    #[error("the id cannot be part of a URL")]
    Unaddressable,
    /// The deadline came before the request could be sent.
    #[error("the deadline came before the request was sent, while it waited for {}", match what {
        ApiWait::Budget => "the budget",
        ApiWait::Company => "the budget of the company",
        ApiWait::Throttled => "the end of a pause that the provider named",
        ApiWait::Circuit => "the provider to answer again",
        ApiWait::Token => "a token",
    })]
    Waited {
        /// What it waited for.
        what: ApiWait,
        /// How much longer it would have waited, if known.
        left: Option<Duration>,
    },
    /// There is no token.
    #[error(transparent)]
    Access(Box<auth::Error>),
    /// The client cannot be set up.
    #[error(transparent)]
    Setup(#[from] ClientSetupError),
}

impl Error {
    /// Whether and when a retry can help.
    pub fn retry(&self) -> Retry {
        self.cause.verdict().0
    }

    /// The endpoint, the status and the causes on one line, without the excerpt of the response: for record headers, gaps and
    /// the progress of runs.
    pub fn without_excerpt(&self) -> String {
        format!("{}{}: {}", self.endpoint, answered(self.status), ErrorChain(&self.cause))
    }

    /// Whether it is only too early: the provider's rate limit or our own budget is used up.
    pub fn is_rate(&self) -> bool {
        matches!(self.cause, Cause::Throttled { .. } | Cause::Waited { .. })
    }

    /// Who says that the record does not exist: for 404 and 410.
    pub const fn missing(&self) -> Option<AnsweredBy> {
        match self.cause {
            Cause::NotFound { by } | Cause::Gone { by } => Some(by),
            _ => None,
        }
    }

    /// The same error, once the API is known to say that the record does not exist.
    pub fn by_api(mut self) -> Self {
        if let Cause::NotFound { by } | Cause::Gone { by } = &mut self.cause {
            *by = AnsweredBy::Api;
        }
        self
    }

    /// Whether the failure is about this request or about the whole provider is unclear. If other requests succeed
    /// meanwhile, it is this request. A rate limit is neither.
    pub fn may_be_alone(&self) -> bool {
        use Cause::{NotJson, Server, Timeout, Truncated, Unreachable};
        self.reach() == Reach::Everything
            && matches!(self.cause, Server { .. } | Unreachable(_) | Timeout { .. } | NotJson | Truncated(_))
    }

    /// Which other requests would fail. With [`Self::retry`] it decides whether to skip a record, to postpone a company, or to
    /// fail.
    pub fn reach(&self) -> Reach {
        match (self.status, &self.cause) {
            // A 500 may be about one record. A host that fails entirely answers 502 to 504, or not at all.
            (Some(500), _) => Reach::Record,
            // A rate limit may be the company's own. The budget decides whether it is everybody's.
            (_, Cause::Throttled { .. } | Cause::Waited { what: ApiWait::Throttled, .. })
                if self.in_company =>
            {
                Reach::Company
            }
            (_, cause) => cause.verdict().1,
        }
    }
}

impl Cause {
    /// Whether a retry can help, what else would fail as well, and the outcome in the metrics (`None` if nothing was sent).
    pub(super) fn verdict(&self) -> (Retry, Reach, Option<ApiOutcome>) {
        use ApiOutcome as Counted;
        use Reach::{Company, Everything, Grant, Record};
        use Retry::{Later, Never};
        let after = |wait: &Option<Duration>| wait.map_or(Later, Retry::After);
        match self {
            Self::Refused => (Never, Record, Some(Counted::Refused)),
            Self::Key => (Never, Everything, Some(Counted::Unauthorized)),
            Self::Token { .. } | Self::Credentials => (Never, Grant, Some(Counted::Unauthorized)),
            Self::Unsendable | Self::Company { .. } => (Never, Grant, None),
            Self::Quota { again } => (after(again), Everything, Some(Counted::Quota)),
            Self::Forbidden { by: AnsweredBy::Gateway } => (Never, Everything, Some(Counted::Forbidden)),
            Self::Forbidden { by: AnsweredBy::Api | AnsweredBy::Unknown } => {
                (Never, Company, Some(Counted::Forbidden))
            }
            Self::NotFound { .. } | Self::Gone { .. } => (Never, Record, Some(Counted::NotFound)),
            Self::Redirect => (Never, Everything, Some(Counted::Refused)),
            Self::Throttled { again } => (after(again), Everything, Some(Counted::Throttled)),
            Self::Server { again } => (after(again), Everything, Some(Counted::Server)),
            Self::Unreachable(_) => (Later, Everything, Some(Counted::Unreachable)),
            Self::Timeout { .. } => (Later, Everything, Some(Counted::Timeout)),
            // A proxy's page instead of a response affects every request, and passes.
            Self::NotJson | Self::Truncated(_) => (Later, Everything, Some(Counted::Malformed)),
            Self::Malformed { .. } => (Later, Record, Some(Counted::Malformed)),
            Self::TooLarge { .. } => (Never, Record, Some(Counted::Oversized)),
            Self::Unaddressable => (Never, Record, None),
            Self::Waited { what, left } => match what {
                ApiWait::Company => (after(left), Company, None),
                ApiWait::Token => (after(left), Grant, None),
                ApiWait::Budget | ApiWait::Throttled | ApiWait::Circuit => (after(left), Everything, None),
            },
            Self::Access(error) => (error.retry(), Grant, None),
            Self::Setup { .. } => (Never, Everything, None),
        }
    }
}

impl From<auth::Error> for Cause {
    fn from(error: auth::Error) -> Self {
        Self::Access(Box::new(error))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

fn answered(status: Option<u16>) -> String {
    status.map(|status| format!(" answered {status}")).unwrap_or_default()
}

fn quoted(excerpt: Option<&str>) -> String {
    excerpt.map(|words| format!(" ({})", Quote(words))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: Option<u16>, cause: Cause, in_company: bool) -> Error {
        let endpoint = Endpoint { method: "GET", path: "x".into() };
        Error { endpoint, status, cause, excerpt: None, acted: Acted::No, in_company }
    }

    #[test]
    fn a_rate_limit_reaches_the_company_of_the_call_or_everything() {
        for (status, cause) in [
            (Some(429), (|| Cause::Throttled { again: None }) as fn() -> Cause),
            (None, || Cause::Waited { what: ApiWait::Throttled, left: None }),
        ] {
            assert_eq!(error(status, cause(), true).reach(), Reach::Company, "{status:?}");
            assert_eq!(error(status, cause(), false).reach(), Reach::Everything, "{status:?}");
        }
    }

    #[test]
    fn only_failures_of_the_host_may_be_alone() {
        for (status, cause, may_be_alone) in [
            (Some(503), Cause::Server { again: None }, true),
            (None, Cause::Timeout { limit: Limit::Read }, true),
            (Some(200), Cause::NotJson, true),
            (Some(500), Cause::Server { again: None }, false),
            (Some(429), Cause::Throttled { again: None }, false),
            (Some(403), Cause::Quota { again: None }, false),
            (None, Cause::Waited { what: ApiWait::Budget, left: None }, false),
            (None, Cause::Waited { what: ApiWait::Circuit, left: None }, false),
        ] {
            let error = error(status, cause, false);

            assert_eq!(error.may_be_alone(), may_be_alone, "{error:?}");
        }
    }

    #[test]
    fn other_failures_reach_as_far_with_a_company_as_without() {
        let waited = |what| Cause::Waited { what, left: None };
        for in_company in [true, false] {
            for (status, cause, reach) in [
                (Some(400), Cause::Refused, Reach::Record),
                (Some(500), Cause::Server { again: None }, Reach::Record),
                (Some(403), Cause::Forbidden { by: AnsweredBy::Api }, Reach::Company),
                (None, waited(ApiWait::Company), Reach::Company),
                (Some(401), Cause::Token { remedy: None }, Reach::Grant),
                (None, waited(ApiWait::Token), Reach::Grant),
                (Some(401), Cause::Key, Reach::Everything),
                (Some(403), Cause::Quota { again: None }, Reach::Everything),
                (Some(503), Cause::Server { again: None }, Reach::Everything),
                (None, waited(ApiWait::Budget), Reach::Everything),
                (None, waited(ApiWait::Circuit), Reach::Everything),
            ] {
                let error = error(status, cause, in_company);

                assert_eq!(error.reach(), reach, "{error:?}");
            }
        }
    }
}
