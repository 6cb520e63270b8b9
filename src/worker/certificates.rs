//! Reads certificates of lists from `{prefix}.certificates`, on request.
//!
//! The topic is compacted, may have a certificate for each list of each company, and is read rarely, so this worker does not
//! follow it. A read ends at the end that the topic had when it started, or when its time is up; then the result is truncated.
//!
//! - Read committed: a certificate is visible with the last page of its list or not at all.
//! - The newest of each key counts. Filters on company and list, which are in the key, apply before decoding, and a filter on the
//!   company limits the read to its partition.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use base::retry::ErrorChain;
use kafka::{Admin, ConsumerRecord, Kafka, ReadLimits, ReadToEnd, StartOffset, partition_of};
use model::{Certificate, Key, Partitioning, SchemaKind, Topic, TopicPrefix};

use crate::{
    avro::{self, Decoder},
    connect::herder::{CertificateFilter, FoundCertificates},
};

/// Limit on the keys kept while reading, of some hundred bytes each.
const MAX_KEYS: usize = 100_000;
/// Time reserved for decoding when reading runs out of time.
const DECODING_RESERVE: Duration = Duration::from_millis(1500);
/// Time reserved for the answer when decoding runs out of time.
const ANSWER_RESERVE: Duration = Duration::from_millis(300);
/// Records decoded between two checks of the clock.
const CLOCK_CHECK_INTERVAL: usize = 256;

/// Why certificates cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Error {
    /// Kafka did not answer, or refused.
    #[error("read the topic of certificates")]
    Kafka(#[from] kafka::Error),
    /// The registry did not answer.
    #[error("decode certificates")]
    Registry(#[source] avro::Error),
}

/// Certificates that match; none if the topic does not exist.
///
/// # Errors
/// Kafka or the registry did not answer.
pub(super) async fn read(
    kafka: &Kafka,
    admin: &Admin,
    decoder: &Decoder,
    prefix: &TopicPrefix,
    wanted: &CertificateFilter,
    end: Instant,
) -> Result<FoundCertificates, Error> {
    let topic = Topic::Certificates.name(prefix);
    let counts = admin.partition_counts(&[&topic]).await?;
    let Some(partitions) = counts.get(&topic) else { return Ok(FoundCertificates::default()) };
    let mut values = NewestValues::default();
    let end = end.checked_sub(ANSWER_RESERVE).unwrap_or(end);
    let until = end.checked_sub(DECODING_RESERVE).unwrap_or(end);
    values.truncated = !values.fill(kafka, &topic, *partitions, wanted, until).await? || values.truncated;
    values.decoded(decoder, wanted, end).await
}

/// The newest value of each matching key.
#[derive(Default)]
struct NewestValues {
    values: HashMap<Bytes, Bytes>,
    truncated: bool,
}

impl NewestValues {
    /// Reads the partitions. Returns whether it reached their end.
    async fn fill(
        &mut self,
        kafka: &Kafka,
        topic: &str,
        partitions: i32,
        wanted: &CertificateFilter,
        until: Instant,
    ) -> Result<bool, Error> {
        let starts: BTreeMap<i32, StartOffset> = places(wanted, partitions)
            .into_iter()
            .map(|partition| (partition, StartOffset::Earliest))
            .collect();
        let waits = ReadLimits::up_to(until.saturating_duration_since(Instant::now()));
        let mut reading = ReadToEnd::begin(kafka, topic, &starts, &waits).await?;
        loop {
            match timeout_at(until, reading.next()).await {
                Ok(Ok(Some(record))) => self.take(record, wanted),
                Ok(Ok(None)) => return Ok(true),
                Ok(Err(kafka::Error::Deadline { .. })) | Err(_) => return Ok(false),
                Ok(Err(error)) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self, record: ConsumerRecord, wanted: &CertificateFilter) {
        let Some(key) = record.key else { return };
        if !may_fit(&key, wanted) {
            return;
        }
        match record.value {
            None => drop(self.values.remove(&key)),
            Some(value) if self.values.len() < MAX_KEYS || self.values.contains_key(&key) => {
                self.values.insert(key, value);
            }
            Some(_) => self.truncated = true,
        }
    }

    async fn decoded(
        self,
        decoder: &Decoder,
        wanted: &CertificateFilter,
        end: Instant,
    ) -> Result<FoundCertificates, Error> {
        let mut all = FoundCertificates { found: Vec::new(), truncated: self.truncated };
        for (number, value) in self.values.into_values().enumerate() {
            if number % CLOCK_CHECK_INTERVAL == CLOCK_CHECK_INTERVAL - 1 {
                // Decoding all of them would block this thread for seconds.
                tokio::task::yield_now().await;
                if Instant::now() >= end {
                    all.truncated = true;
                    break;
                }
            }
            match decoder.decode_as::<Certificate>(SchemaKind::Certificate, &value).await {
                Ok((_, certificate)) if wanted.takes(&certificate) => all.found.push(certificate),
                Ok(_) => {}
                Err(error) if error.retry().is_retriable() => return Err(Error::Registry(error)),
                // Written by another program or a later version: the others are still valid.
                Err(error) => {
                    tracing::warn!(error = %ErrorChain(&error), "skipped a certificate that cannot be decoded");
                }
            }
        }
        Ok(all)
    }
}

/// Partitions that may have matching keys.
fn places(wanted: &CertificateFilter, partitions: i32) -> Vec<i32> {
    let Some(company) = &wanted.company else { return (0..partitions).collect() };
    match Key::company(company).partitioning() {
        Partitioning::By(bytes) => vec![partition_of(bytes, partitions)],
        Partitioning::Shard(shard) => vec![shard],
    }
}

/// Whether a key, `company/list` or `~shard/list`, matches.
fn may_fit(key: &[u8], wanted: &CertificateFilter) -> bool {
    let Ok(parts) = std::str::from_utf8(key).map_err(drop).and_then(|key| Key::parts(key).map_err(drop))
    else {
        return false;
    };
    let [owner, list] = &parts[..] else { return false };
    wanted.list.is_none_or(|wanted| wanted.name() == list)
        && wanted.company.as_ref().is_none_or(|company| company.as_str() == owner)
}

#[cfg(test)]
mod tests {
    use model::{CompanyId, List};

    use super::*;

    #[test]
    fn filters_apply_to_keys_before_decoding() {
        let company = |name: &str| Some(CompanyId::new(name).unwrap());
        let all = CertificateFilter::default();
        let customers = CertificateFilter { list: Some(List::Customers), ..all.clone() };
        let of_one = CertificateFilter { company: company("a/b"), ..all.clone() };
        let table = [
            ("a%2Fb/customers", [true, true, true]),
            ("a%2Fb/accounts", [true, false, true]),
            ("c/customers", [true, true, false]),
            ("~3/payroll", [true, false, false]),
            ("nonsense", [false, false, false]),
            ("%zz/customers", [false, false, false]),
        ];

        for (key, expected) in table {
            let fitting = [&all, &customers, &of_one].map(|wanted| may_fit(key.as_bytes(), wanted));
            assert_eq!(fitting, expected, "{key}");
        }
    }

    #[test]
    fn only_the_partition_of_a_company_is_read() {
        let company = CompanyId::new("c").unwrap();
        let one = CertificateFilter { company: Some(company.clone()), ..CertificateFilter::default() };
        let key = Key::company_list(&company, "customers");
        let Partitioning::By(bytes) = key.partitioning() else { panic!("a company has a hash") };

        assert_eq!(places(&one, 8), [partition_of(bytes, 8)]);
        assert_eq!(places(&CertificateFilter::default(), 3), [0, 1, 2]);
    }
}
