//! Labels with a fixed set of values: the variants' names in snake case.

use strum::{IntoStaticStr, VariantNames};

/// Declares labels: enums whose variants in snake case are the values.
macro_rules! labels {
    ($($(#[$doc:meta])* pub enum $label:ident { $($(#[$about:meta])* $variant:ident,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
        #[strum(serialize_all = "snake_case")]
        pub enum $label {
            $($(#[$about])* $variant,)+
        }

        impl $label {
            /// The label value, also used as the name in logs and errors.
            #[must_use]
            pub fn label(self) -> &'static str {
                self.into()
            }
        }
    )+};
}

labels! {
    /// The step of the publish path at which something failed.
    pub enum PublishStage {
        /// Parsing what was read.
        Read,
        /// Turning a record into bytes.
        Convert,
        /// Sending bytes to Kafka.
        Produce,
    }

    /// How a shard transaction ended.
    pub enum Transaction {
        /// All of it is visible.
        Committed,
        /// None of it is visible; the producer is still usable.
        Aborted,
        /// Another owner took the shard.
        Fenced,
        /// The producer failed fatally and a new one took its place.
        Rebuilt,
        /// It aborted transactions that an earlier owner may have left hanging.
        Settled,
        /// It completed a committed batch on partitions that lacked the marker.
        Completed,
    }

    /// Result of a schema registration.
    pub enum RegistrationOutcome {
        /// It has an id from the registry.
        Registered,
        /// The registry was unreachable; the id comes from disk.
        Cached,
        /// Refused by the compatibility rule.
        Incompatible,
        /// Refused our credentials.
        Unauthorised,
        /// No usable response.
        Unavailable,
    }

    /// The kind of Kafka client a statistic is about.
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

    /// The API that sent a delivery.
    pub enum DeliveryFamily {
        /// Accounting.
        Accounting,
        /// Invoicing.
        Invoicing,
    }

    /// How a verified delivery ended.
    pub enum DeliveryEnd {
        /// Kafka or the spool has it.
        Durable,
        /// It checked whether its address accepts deliveries.
        Acknowledged,
        /// There was no space for it.
        Full,
        /// Neither Kafka nor the disk answered in time.
        Late,
    }

    /// Why a request to a public listener was refused.
    pub enum RefusalReason {
        /// The path is not a receiver address, or the method is wrong.
        Route,
        /// No connector uses this address.
        Unknown,
        /// It is not known yet whether a connector uses this address.
        Starting,
        /// The connector's configuration does not allow receiving.
        Faulty,
        /// The connector is stopped.
        Stopped,
        /// Too many bytes are in flight.
        Shed,
        /// Its address has sent too many bytes without a valid signature.
        Throttled,
        /// The sender's address is not allowed.
        Source,
        /// It lacks the signature header.
        Unsigned,
        /// The signature matches no secret of the connector, or the header holds none.
        Signature,
        /// The requested echo is not a GUID.
        Echo,
        /// The body did not arrive in time.
        Slow,
        /// The body was incomplete.
        Broken,
        /// The body was too long to be verified.
        Oversized,
        /// Verified, but larger than the connector accepts.
        OversizedVerified,
    }

    /// Which API a request goes to.
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

    /// Which host of the provider.
    pub enum ApiHost {
        /// The API host.
        Api,
        /// The identity service.
        Identity,
    }

    /// How a request to the provider ended.
    pub enum ApiOutcome {
        /// With a usable response.
        Ok,
        /// The request itself was refused.
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
        /// A response that cannot be parsed.
        Malformed,
        /// A response that is too large.
        Oversized,
    }

    /// What a request waits for before it is sent.
    pub enum ApiWait {
        /// The application's budget.
        Budget,
        /// The company's budget.
        Company,
        /// The provider requested a pause.
        Throttled,
        /// The host's circuit is open.
        Circuit,
        /// A token is being fetched.
        Token,
    }

    /// Anomalies of a page.
    pub enum PageAnomaly {
        /// Fewer rows than requested, though more pages follow.
        Short,
        /// Short again when it was read a second time.
        Clamped,
        /// A row of an earlier page.
        Duplicate,
        /// The same rows as the page before.
        Repeated,
        /// The reported total changed or does not match.
        Total,
        /// The paging header cannot be read.
        Header,
        /// It came from an intermediate cache.
        Cached,
    }

    /// How a refresh of a grant ended.
    pub enum RefreshLabel {
        /// With new tokens.
        Refreshed,
        /// The token was certainly not sent.
        NotSent,
        /// The client or the request was refused, but not the grant.
        Refused,
        /// The outcome is unknown: the provider may have acted.
        Unknown,
        /// A refresh with an unknown outcome was retried with success.
        Recovered,
        /// A late response was still usable.
        Salvaged,
        /// The grant is lost.
        Lost,
    }

    /// What the check of a token found.
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
}
