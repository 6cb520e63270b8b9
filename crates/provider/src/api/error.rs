//! Why a call gave nothing, and what may be done about it.

use std::{borrow::Cow, fmt, time::Duration};

use base::{
    metrics::{ApiOutcome, ApiWait},
    retry::Retry,
};
use model::Quote;

use crate::auth::{self, http::ClientSetupError};

/// A call that did not give what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint}{}{}", answered(*status), quoted(excerpt.as_deref()))]
pub struct Error {
    /// What was called.
    pub endpoint: Endpoint,
    /// What the provider answered, if it did.
    pub status: Option<u16>,
    /// Why that is not enough.
    #[source]
    pub cause: Cause,
    /// The provider's own words: short, on one line, without secrets.
    pub excerpt: Option<Box<str>>,
    /// Whether the provider may have done what it was asked for. Where that is not [`Acted::No`], whoever wants to know asks
    /// for the thing itself.
    pub acted: Acted,
    /// Whether it was asked for in the context of one company.
    pub in_company: bool,
}

/// A method and a path, with names where a request has ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `GET`.
    pub method: &'static str,
    /// `accounting/api/accounts/{id}`.
    pub path: Cow<'static, str>,
}

/// Whether the provider did what a failed request asks for. A request that may have been acted on is not repeated
/// blindly where repeating it would make a second one of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acted {
    /// Certainly not.
    No,
    /// Nobody knows.
    Unknown,
    /// It says so; only its answer cannot be used.
    Yes,
}

/// Who answered. That a thing is not there, or is gone, is known only where the API itself says so: what the gateway, a proxy
/// or an empty page says is about the way there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The gateway, before any API was asked.
    Gateway,
    /// The API.
    Api,
    /// Neither's way of writing.
    Unknown,
}

/// How far a failure reaches: what else would fail as well, if it were tried now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The one record, list or operation that was asked for.
    Record,
    /// Everything of its company.
    Company,
    /// Everything that is asked with the same login.
    Grant,
    /// Everything.
    Everything,
}

/// Which time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `provider.connect.timeout.ms`.
    Connect,
    /// `provider.read.timeout.ms`.
    Read,
    /// `provider.request.timeout.ms`.
    Request,
    /// The caller's own.
    Call,
    /// The provider's: 408.
    Provider,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The request itself is not taken: 400, 409, 415, 422 and the like.
    #[error("the provider refuses the request")]
    Refused,
    /// The subscription key is not taken. A token has nothing to do with it.
    #[error("the provider refuses the subscription key: check provider.subscription.key")]
    Key,
    /// The token is not taken, and neither was its successor, or it is good everywhere else.
    #[error("the provider refuses the token{}", remedy.as_ref().map(|remedy| format!(" of {remedy}")).unwrap_or_default())]
    Token {
        /// Whose it is and what may be done about it, where that is known.
        remedy: Option<Box<str>>,
    },
    /// The token is none: it cannot be sent.
    #[error("the token cannot stand in a header")]
    Unsendable,
    /// Mail and password are not taken. Not tried again by itself: the provider may lock the user out.
    #[error("the provider refuses the login: check invoicing.login.mail and invoicing.login.password")]
    Credentials,
    /// The login does not tell which company to choose.
    #[error(
        "the user of the invoicing login has several companies and no default: set invoicing.login.company to one of {offered}"
    )]
    Company {
        /// The ids there are.
        offered: String,
    },
    /// The quota of the subscription is used up.
    #[error("the provider's quota is used up")]
    Quota {
        /// When it wants to be asked again.
        again: Option<Duration>,
    },
    /// 403 that is no quota.
    #[error("the provider forbids it")]
    Forbidden {
        /// Who.
        by: AnsweredBy,
    },
    /// 404.
    #[error("{}", match by {
        AnsweredBy::Gateway => "the gateway does not know the path",
        AnsweredBy::Api => "there is no such thing",
        AnsweredBy::Unknown => "nothing was found, and it is not clear who says so",
    })]
    NotFound {
        /// Who.
        by: AnsweredBy,
    },
    /// 410.
    #[error("{}", match by {
        AnsweredBy::Gateway => "the gateway does not serve the path any more",
        AnsweredBy::Api => "it is gone",
        AnsweredBy::Unknown => "it is gone, and it is not clear who says so",
    })]
    Gone {
        /// Who.
        by: AnsweredBy,
    },
    /// 3xx. Not followed: a token goes nowhere that nobody configured.
    #[error("redirects are not followed: set provider.base.url to the address it points to")]
    Redirect,
    /// 429.
    #[error("the provider's rate limit is reached")]
    Throttled {
        /// When it wants to be asked again.
        again: Option<Duration>,
    },
    /// 5xx.
    #[error("the provider fails")]
    Server {
        /// When it wants to be asked again.
        again: Option<Duration>,
    },
    /// It was not reached, or the connection broke.
    #[error("reach the provider")]
    Unreachable(#[source] reqwest::Error),
    /// No answer in time.
    #[error("no answer {}", match limit {
        Limit::Connect => "to the connection within provider.connect.timeout.ms",
        Limit::Read => "within provider.read.timeout.ms",
        Limit::Request => "within provider.request.timeout.ms",
        Limit::Call => "before the call had to end",
        Limit::Provider => "by the provider, which gave up",
    })]
    Timeout {
        /// Which time ran out.
        limit: Limit,
    },
    /// The answer is something else than JSON.
    #[error("the answer is not JSON")]
    NotJson,
    /// The answer broke off.
    #[error("the answer broke off")]
    Truncated(#[source] reqwest::Error),
    /// The answer is not what this endpoint answers.
    #[error("the answer is not usable: {what}")]
    Malformed {
        /// What is wrong with it, and where; never its words.
        what: String,
    },
    /// The answer is longer than `provider.response.limit.bytes`.
    #[error("the answer is longer than provider.response.limit.bytes ({limit})")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The id cannot stand in an address: every parser drops `.` and `..`.
    #[error("the id cannot stand in an address")]
    Unaddressable,
    /// It could not be sent before the call had to end.
    #[error("it could not be sent in time, waiting for {}", match what {
        ApiWait::Budget => "the budget",
        ApiWait::Company => "the budget of the company",
        ApiWait::Throttled => "the end of a pause that the provider named",
        ApiWait::Circuit => "the provider to answer again",
        ApiWait::Token => "a token",
    })]
    Waited {
        /// For what.
        what: ApiWait,
        /// How much longer it would have been, where that is known.
        left: Option<Duration>,
    },
    /// There is no token.
    #[error(transparent)]
    Access(Box<auth::Error>),
    /// What it takes to reach the provider is not usable here.
    #[error(transparent)]
    Setup(#[from] ClientSetupError),
}

impl Error {
    /// What may be done about it.
    pub fn retry(&self) -> Retry {
        self.cause.verdict().0
    }

    /// Whether it is only too early: a rate, or our own share of it, is used up.
    pub fn is_rate(&self) -> bool {
        matches!(self.cause, Cause::Throttled { .. } | Cause::Waited { .. })
    }

    /// Who says that there is no such record, if somebody does: 404 and 410.
    pub const fn missing(&self) -> Option<AnsweredBy> {
        match self.cause {
            Cause::NotFound { by } | Cause::Gone { by } => Some(by),
            _ => None,
        }
    }

    /// The same, where the API itself is known to say that there is no such record.
    pub fn by_api(mut self) -> Self {
        if let Cause::NotFound { by } | Cause::Gone { by } = &mut self.cause {
            *by = AnsweredBy::Api;
        }
        self
    }

    /// Whether it says nothing of who is to blame: what was asked for, or all that is behind it. Where others are answered
    /// meanwhile it is the former; what is only too early is neither.
    pub fn may_be_alone(&self) -> bool {
        use Cause::{NotJson, Server, Timeout, Truncated, Unreachable};
        self.reach() == Reach::Everything
            && matches!(self.cause, Server { .. } | Unreachable(_) | Timeout { .. } | NotJson | Truncated(_))
    }

    /// What else would fail as well. Whoever has to choose between giving up one record, leaving a company for later and
    /// failing as a whole chooses by this and [`Self::retry`].
    pub fn reach(&self) -> Reach {
        match (self.status, &self.cause) {
            // It may be about one record; a host that fails as a whole says so by 502 to 504, or nothing.
            (Some(500), _) => Reach::Record,
            // A rate is refused to a company as well as to all; who else is refused says so itself.
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
            // A proxy's page in the place of an answer stands before everything, and passes.
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
    fn a_rate_is_refused_to_the_company_that_was_asked_for_and_otherwise_to_everything() {
        for (status, cause) in [
            (Some(429), (|| Cause::Throttled { again: None }) as fn() -> Cause),
            (None, || Cause::Waited { what: ApiWait::Throttled, left: None }),
        ] {
            assert_eq!(error(status, cause(), true).reach(), Reach::Company, "{status:?}");
            assert_eq!(error(status, cause(), false).reach(), Reach::Everything, "{status:?}");
        }
    }

    #[test]
    fn what_is_only_too_early_or_is_one_records_own_is_never_taken_for_a_provider_that_is_away() {
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
    fn nothing_else_reaches_less_far_because_a_company_was_asked_for() {
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
