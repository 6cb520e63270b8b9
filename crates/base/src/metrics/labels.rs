//! Labels with a closed set of values: the values are the variants' names in snake case.

use strum::{IntoStaticStr, VariantNames};

/// The label value of a variant.
pub(super) fn value(of: impl Into<&'static str>) -> &'static str {
    of.into()
}

/// The step of the publish path at which something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum PublishStage {
    /// Understanding what was read.
    Read,
    /// Turning a record into bytes.
    Convert,
    /// Handing bytes to Kafka.
    Produce,
}

/// How a shard transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Transaction {
    /// All of it is visible.
    Committed,
    /// None of it is visible; the producer goes on.
    Aborted,
    /// Another owner took the shard.
    Fenced,
    /// The producer failed fatally and a new one took its place.
    Rebuilt,
    /// It ended a transaction that an earlier owner had left hanging; none of it was meant to be visible.
    Settled,
    /// It completed a committed batch on partitions that lacked the marker.
    Completed,
}

/// What the registry said about one of our schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RegistrationOutcome {
    /// It has an id from the registry.
    Registered,
    /// The registry was away; the id comes from disk.
    Cached,
    /// Refused by the compatibility rule.
    Incompatible,
    /// Refused our credentials.
    Unauthorised,
    /// No usable answer.
    Unavailable,
}

/// The kind of Kafka client a statistic is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum KafkaClient {
    /// The idempotent producer.
    Producer,
    /// A consumer.
    Consumer,
    /// A shard's transactional producer.
    Transactional,
    /// The topic admin.
    Admin,
}

impl KafkaClient {
    /// The label value, also used as the client's role name in logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// The API a delivery is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum DeliveryFamily {
    /// Accounting.
    Accounting,
    /// Invoicing.
    Invoicing,
}

/// How a verified delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum DeliveryEnd {
    /// Kafka or the spool has it.
    Durable,
    /// It asked whether its address takes deliveries.
    Acknowledged,
    /// There was no room for it.
    Full,
    /// Neither Kafka nor the disk answered in time.
    Late,
}

/// Why a request to a public listener was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RefusalReason {
    /// It is no address of deliveries, or not by that method.
    Route,
    /// No connector is received there.
    Unknown,
    /// It is not known yet whether a connector is received there.
    Starting,
    /// The connector cannot be received as it is configured.
    Faulty,
    /// The connector is stopped.
    Stopped,
    /// Too many bytes are on their way already.
    Shed,
    /// Its address has sent too many bytes without a valid signature.
    Throttled,
    /// Nothing may be delivered from that address.
    Source,
    /// It lacks the signature header.
    Unsigned,
    /// No secret of the connector made its signature, or its header holds no signature.
    Signature,
    /// It asked for something to be echoed that is no GUID.
    Echo,
    /// The body did not come in time.
    Slow,
    /// The body did not come whole.
    Broken,
    /// The body was too long to find out whose it is.
    Oversized,
    /// The provider's own, and larger than the connector takes.
    OversizedVerified,
}

/// Which API a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ApiArea {
    /// Accounting.
    Accounting,
    /// Payroll.
    Payroll,
    /// Invoicing.
    Invoicing,
    /// The identity service.
    Identity,
}

impl ApiArea {
    /// Its name, as in errors and metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// Which host of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ApiHost {
    /// That of the APIs.
    Api,
    /// The identity service.
    Identity,
}

impl ApiHost {
    /// Its name, as in logs and metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// How a request to the provider ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ApiOutcome {
    /// With an answer that can be used.
    Ok,
    /// The request itself is not taken.
    Refused,
    /// 401.
    Unauthorized,
    /// 403 that is no quota.
    Forbidden,
    /// 404 or 410.
    NotFound,
    /// 429.
    Throttled,
    /// 403 for a quota.
    Quota,
    /// Any 5xx.
    Server,
    /// No connection, or a broken one.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// An answer that is none.
    Malformed,
    /// An answer that is too large.
    Oversized,
}

/// What a request waits for before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ApiWait {
    /// The application's budget.
    Budget,
    /// The company's budget.
    Company,
    /// The provider has named a pause.
    Throttled,
    /// The host fails.
    Circuit,
    /// A token is on its way.
    Token,
}

/// Oddities of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum PageAnomaly {
    /// Fewer rows than asked for, and more behind it.
    Short,
    /// The same when it was read again.
    Clamped,
    /// A row that an earlier page had.
    Duplicate,
    /// The same rows as the page before.
    Repeated,
    /// The reported total changed, or does not fit.
    Total,
    /// The paging header cannot be read.
    Header,
    /// It came from a cache on the way.
    Cached,
}

/// How a refresh of a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RefreshOutcome {
    /// With new tokens that are kept.
    Refreshed,
    /// The token was certainly not presented.
    NotSent,
    /// The client or the request was refused, the grant was not.
    Refused,
    /// The outcome is unknown: the provider may have acted.
    Unknown,
    /// A refresh with an unknown outcome was tried again with success.
    Recovered,
    /// An answer that came late was still of use.
    Salvaged,
    /// The grant is lost.
    Lost,
}

/// What the check of a token found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum TokenCheck {
    /// Nothing wrong.
    Good,
    /// Not signed by a key of the provider.
    Signature,
    /// Another issuer.
    Issuer,
    /// Another audience.
    Audience,
    /// Expired, or not valid yet.
    Time,
    /// No token at all.
    Malformed,
    /// The key is not known.
    NoKey,
}
