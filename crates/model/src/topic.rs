//! Every topic of a prefix: its name, cleanup policy and schema.

use std::{fmt, str::FromStr, sync::LazyLock};

use super::{AccountingResource, Error, InvoicingEntity, SchemaKind, error::excerpt};

/// Longest topic name in Kafka.
const MAX_NAME_BYTES: usize = 249;

/// One of our topics, for any prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Notifications of an accounting resource.
    AccountingEvents(AccountingResource),
    /// Notifications of an invoicing entity.
    InvoicingEvents(InvoicingEntity),
    /// Records of an accounting resource.
    AccountingRecords(AccountingResource),
    /// Payroll companies.
    PayrollCompanies,
    /// What could not be processed, as it was received.
    DeadLetters,
    /// Certificates of snapshots.
    Certificates,
    /// Runs, pages, gaps, subscriptions: internal.
    State,
    /// The last published version per key: internal.
    Fences,
}

/// `cleanup.policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cleanup {
    /// The last record of each key is kept forever.
    Compact,
    /// Old records are deleted.
    Delete,
}

impl Cleanup {
    /// The value of `cleanup.policy`.
    #[must_use]
    pub const fn policy(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Delete => "delete",
        }
    }
}

impl Topic {
    /// Every topic a prefix can have.
    pub fn all() -> impl Iterator<Item = Self> {
        AccountingResource::all()
            .map(Self::AccountingEvents)
            .chain(InvoicingEntity::all().map(Self::InvoicingEvents))
            .chain(AccountingResource::all().map(Self::AccountingRecords))
            .chain([Self::PayrollCompanies, Self::DeadLetters, Self::Certificates, Self::State, Self::Fences])
    }

    /// Full name.
    #[must_use]
    pub fn name(self, prefix: &TopicPrefix) -> String {
        format!("{prefix}.{self}")
    }

    /// Name below the prefix: `accounting.customers.events`.
    #[must_use]
    pub fn suffix(self) -> String {
        self.to_string()
    }

    /// The required cleanup policy; any other would lose records or keep all of them.
    #[must_use]
    pub const fn cleanup(self) -> Cleanup {
        match self {
            Self::AccountingEvents(_) | Self::InvoicingEvents(_) | Self::DeadLetters => Cleanup::Delete,
            Self::AccountingRecords(_)
            | Self::PayrollCompanies
            | Self::Certificates
            | Self::State
            | Self::Fences => Cleanup::Compact,
        }
    }

    /// Schema of its values; `None` if they are not Avro.
    #[must_use]
    pub const fn schema(self) -> Option<SchemaKind> {
        match self {
            Self::AccountingEvents(_) => Some(SchemaKind::AccountingEvent),
            Self::InvoicingEvents(_) => Some(SchemaKind::InvoicingEvent),
            Self::AccountingRecords(resource) => Some(resource.schema()),
            Self::PayrollCompanies => Some(SchemaKind::PayrollCompany),
            Self::Certificates => Some(SchemaKind::Certificate),
            Self::DeadLetters | Self::State | Self::Fences => None,
        }
    }
}

/// The name below the prefix.
impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AccountingEvents(resource) => write!(f, "accounting.{resource}.events"),
            Self::InvoicingEvents(entity) => write!(f, "invoicing.{entity}.events"),
            Self::AccountingRecords(resource) => write!(f, "accounting.{resource}"),
            Self::PayrollCompanies => f.write_str("payroll.companies"),
            Self::DeadLetters => f.write_str("dead-letters"),
            Self::Certificates => f.write_str("certificates"),
            Self::State => f.write_str("state"),
            Self::Fences => f.write_str("fences"),
        }
    }
}

/// `topic.prefix`: short enough and of the right characters for every topic name below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPrefix(String);

impl TopicPrefix {
    /// Checks a prefix against Kafka's rules.
    ///
    /// # Errors
    /// It is empty or too long, has a character Kafka refuses, or ends in a dot.
    pub fn new(prefix: impl Into<String>) -> Result<Self, Error> {
        let prefix = prefix.into();
        Self::check(&prefix)?;
        Ok(Self(prefix))
    }

    /// Whether [`TopicPrefix::new`] would take it.
    ///
    /// # Errors
    /// It would not.
    pub fn check(prefix: &str) -> Result<(), Error> {
        static LONGEST: LazyLock<usize> = LazyLock::new(|| {
            let suffix = Topic::all().map(|topic| topic.suffix().len()).max().unwrap_or(0);
            MAX_NAME_BYTES - ".".len() - suffix
        });
        let rule = if prefix.is_empty() {
            "is empty"
        } else if !prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            "has a character that topic names cannot have"
        } else if prefix.len() > *LONGEST {
            "is too long"
        } else if prefix.ends_with('.') {
            "ends in a dot, which would be followed by another one"
        } else {
            return Ok(());
        };
        Err(Error::Prefix { given: excerpt(prefix), rule, longest: *LONGEST })
    }

    /// The prefix, without a dot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicPrefix {
    type Err = Error;

    fn from_str(prefix: &str) -> Result<Self, Error> {
        Self::new(prefix)
    }
}

impl fmt::Display for TopicPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn prefix(text: &str) -> TopicPrefix {
        TopicPrefix::new(text).unwrap()
    }

    #[test]
    fn names_are_as_documented() {
        for (topic, name) in [
            (Topic::AccountingEvents(AccountingResource::Customers), "p.accounting.customers.events"),
            (Topic::AccountingRecords(AccountingResource::InputInvoices), "p.accounting.input-invoices"),
            (Topic::InvoicingEvents(InvoicingEntity::SaleInvoice), "p.invoicing.sale-invoice.events"),
            (Topic::PayrollCompanies, "p.payroll.companies"),
            (Topic::DeadLetters, "p.dead-letters"),
            (Topic::Certificates, "p.certificates"),
            (Topic::State, "p.state"),
            (Topic::Fences, "p.fences"),
        ] {
            assert_eq!(topic.name(&prefix("p")), name);
        }
    }

    #[test]
    fn no_two_topics_share_a_name() {
        let names: BTreeSet<_> = Topic::all().map(Topic::suffix).collect();

        assert_eq!(names.len(), Topic::all().count());
        assert_eq!(names.len(), 19 + 18 + 19 + 5);
    }

    #[test]
    fn only_streams_are_not_compacted() {
        for topic in Topic::all() {
            let stream = topic.suffix().ends_with(".events") || topic == Topic::DeadLetters;

            assert_eq!(topic.cleanup() == Cleanup::Delete, stream, "{topic:?}");
        }
    }

    #[test]
    fn record_topics_have_their_own_schema() {
        use AccountingResource as R;
        for (resource, schema) in [
            (R::Companies, SchemaKind::Company),
            (R::Customers, SchemaKind::Customer),
            (R::Accounts, SchemaKind::Account),
            (R::Suppliers, SchemaKind::Record),
        ] {
            assert_eq!(Topic::AccountingRecords(resource).schema(), Some(schema));
        }
        assert_eq!(Topic::State.schema(), None);
    }

    #[test]
    fn longest_prefix_makes_the_longest_legal_name() {
        let longest = Topic::all().map(|topic| topic.suffix().len()).max().unwrap();
        let fits = "p".repeat(249 - 1 - longest);

        let names = Topic::all().map(|topic| topic.name(&prefix(&fits)).len());

        assert_eq!(names.max(), Some(249));
        let error = TopicPrefix::new(format!("{fits}p")).unwrap_err().to_string();
        assert!(error.contains("is too long") && error.contains(&fits.len().to_string()), "{error}");
    }

    #[test]
    fn illegal_prefix_is_refused_with_the_rule() {
        for (text, rule) in [
            ("", "is empty"),
            ("a b", "has a character"),
            ("a/b", "has a character"),
            ("größe", "has a character"),
            ("a.", "ends in a dot"),
            ("..", "ends in a dot"),
        ] {
            let error = TopicPrefix::new(text).unwrap_err().to_string();

            assert!(error.contains(rule), "{text}: {error}");
        }
        assert_eq!(prefix("acme.prod_1-eu").as_str(), "acme.prod_1-eu");
    }
}
