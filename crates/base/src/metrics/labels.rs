//! What labels say: each of these has all the values of one.

/// The step of the publish path at which something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Understanding what was read.
    Read,
    /// Turning a record into bytes.
    Convert,
    /// Handing bytes to Kafka.
    Produce,
}

impl Stage {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Convert => "convert",
            Self::Produce => "produce",
        }
    }
}

/// How a shard transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// All of it is visible.
    Committed,
    /// None of it is visible; the producer goes on.
    Aborted,
    /// Another owner took the shard.
    Fenced,
    /// The producer failed for good and a new one took its place.
    Rebuilt,
    /// None of it was meant to be visible: it ended what an earlier owner had left hanging.
    Settled,
    /// It made the rest of a batch visible that some partitions had never been told of.
    Completed,
}

/// What the registry said about one of our schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// The idempotent producer.
    Producer,
    /// A consumer.
    Consumer,
    /// A shard's transactional producer.
    Transactional,
    /// The topic admin.
    Admin,
}

impl Client {
    /// The label value, also used as the client's role name in logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Consumer => "consumer",
            Self::Transactional => "transactional",
            Self::Admin => "admin",
        }
    }
}

/// The API a delivery is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryFamily {
    /// Accounting.
    Accounting,
    /// Invoicing.
    Invoicing,
}

impl DeliveryFamily {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Accounting => "accounting",
            Self::Invoicing => "invoicing",
        }
    }
}

/// How a verified delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
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

impl Refusal {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Unknown => "unknown",
            Self::Starting => "starting",
            Self::Faulty => "faulty",
            Self::Stopped => "stopped",
            Self::Shed => "shed",
            Self::Throttled => "throttled",
            Self::Source => "source",
            Self::Unsigned => "unsigned",
            Self::Signature => "signature",
            Self::Echo => "echo",
            Self::Slow => "slow",
            Self::Broken => "broken",
            Self::Oversized => "oversized",
            Self::OversizedVerified => "oversized_verified",
        }
    }
}
