//! The configuration of a `RecordSource`: what to enrich, what to read in full, and how fast.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use strum::{EnumString, VariantNames};

use model::{AccountingResource, CompanyId, List};
use provider::{Provider, api::Rates};

use super::{Common, access, common, known_keys, provider_names};
use crate::config::{
    cron::Schedule,
    problem::{Problems, Warning},
    providers::Providers,
    reader::SettingsReader,
};

pub(crate) mod keys;

/// Maximum partitions of the topics of a `RecordSource`: each is a shard with its own transactional client, which has threads.
pub(crate) const MAX_SHARDS: i32 = 256;

/// A `RecordSource`, checked.
#[derive(Debug, Clone)]
pub struct RecordSource {
    /// Settings common to all connectors.
    pub common: Common,
    /// Access to the provider.
    pub provider: Provider,
    /// `enrich.resources`; may be empty.
    pub enrich_resources: BTreeSet<AccountingResource>,
    /// How the records of events are read.
    pub enrich: Enrich,
    /// `companies.refresh.interval.ms`.
    pub companies_refresh: Duration,
    /// `companies.rows.max`.
    pub companies_max: usize,
    /// What the snapshot reads, and when.
    pub snapshot: Snapshot,
    /// `budget.requests.per.second`, over all workers.
    pub budget_per_second: f64,
    /// `budget.company.requests.per.second`; at most `budget_per_second`.
    pub company_budget_per_second: f64,
    /// `budget.requests.in.flight`, of one worker.
    pub requests_in_flight: usize,
    /// `epoch.confirm.ms`.
    pub epoch_confirm: Duration,
    /// `tombstones.confirm.ms`.
    pub tombstone_confirm: Duration,
    /// `tombstones.brake.count`.
    pub brake_count: u32,
    /// `tombstones.brake.percent`.
    pub brake_percent: f64,
}

impl From<&RecordSource> for Rates {
    fn from(config: &RecordSource) -> Self {
        Self {
            application: config.budget_per_second,
            company: config.company_budget_per_second,
            in_flight: config.requests_in_flight,
        }
    }
}

/// How the records of events are read.
#[derive(Debug, Clone, Copy)]
pub struct Enrich {
    /// `enrich.window.ms`.
    pub window: Duration,
    /// `enrich.retry.backoff.ms`.
    pub retry: Duration,
    /// `enrich.retry.backoff.max.ms`; at least `retry`.
    pub retry_max: Duration,
    /// `enrich.park.after.ms`.
    pub park_after: Duration,
    /// `enrich.parked.backoff.ms`.
    pub parked: Duration,
    /// `enrich.parked.backoff.max.ms`; at least `parked`.
    pub parked_max: Duration,
    /// `enrich.commit.interval.ms`.
    pub commit: Duration,
    /// `enrich.horizon.ms`.
    pub horizon: Duration,
}

/// What the snapshot reads, and when.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// `snapshot.lists`; may be empty.
    pub lists: BTreeSet<List>,
    /// `snapshot.mode`.
    pub mode: SnapshotMode,
    /// `snapshot.schedule`: a cron expression of five fields, in UTC.
    pub schedule: Option<Schedule>,
    /// `snapshot.companies`; `None` for all.
    pub companies: Option<BTreeSet<CompanyId>>,
    /// `snapshot.rows`.
    pub rows: Rows,
    /// `stream.start.timeout.ms`.
    pub stream_start: Duration,
    /// `page.size`.
    pub page_size: u32,
    /// `payroll.filter`.
    pub payroll_filter: Option<String>,
    /// `payroll.incremental.schedule`, as `schedule`; set only if payroll is in `lists`.
    pub payroll_schedule: Option<Schedule>,
    /// `payroll.order.by`.
    pub payroll_order_by: String,
}

/// When lists are read, in Debezium's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum SnapshotMode {
    /// Once, then events.
    #[default]
    Initial,
    /// At every start, then events.
    Always,
    /// Once, then nothing.
    InitialOnly,
    /// Never.
    NoData,
    /// When offsets were lost.
    WhenNeeded,
}

/// What a row of a list is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Rows {
    /// Unknown: probed.
    #[default]
    Probe,
    /// The whole record.
    Full,
    /// Part of the record.
    Thin,
}

impl RecordSource {
    /// Reads a connector's flat configuration.
    ///
    /// # Errors
    /// All its problems.
    pub fn parse(
        name: &str,
        config: &BTreeMap<String, String>,
        providers: &Providers,
    ) -> Result<(Self, Vec<Warning>), Problems> {
        super::parse(name, config, providers, &known_keys::RECORD, read)
    }

    /// Whether it reads nothing from the accounting API and so needs no login for it.
    #[must_use]
    pub fn is_payroll_only(&self) -> bool {
        self.enrich_resources.is_empty() && self.snapshot.lists.iter().eq([&List::Payroll])
    }

    /// Whether records of a list are published.
    #[must_use]
    pub fn publishes(&self, list: List) -> bool {
        self.snapshot.lists.contains(&list)
            || list.resource().is_some_and(|resource| self.enrich_resources.contains(&resource))
    }
}

fn read(reader: &mut SettingsReader<'_>, name: &str) -> Option<RecordSource> {
    let common = common::read(reader, name);
    let provider = access::read(reader, Some("to read from the provider"));
    let budget_per_second = reader.value(&keys::BUDGET);
    let company_budget_per_second = reader.value(&keys::COMPANY_BUDGET);
    let budgets_sound = reader.are_valid(&[&keys::BUDGET, &keys::COMPANY_BUDGET]);
    if budgets_sound && company_budget_per_second > budget_per_second {
        reader.refuse(
            &keys::COMPANY_BUDGET,
            "must be at most budget.requests.per.second",
            "lower it, or raise budget.requests.per.second",
        );
    }
    let partitions = common.as_ref().and_then(|common| common.topic_creation.partitions);
    if partitions.is_some_and(|count| count > MAX_SHARDS) {
        reader.refuse(
            &super::keys::PARTITIONS,
            "must be at most 256: each is a shard with its own transactional client",
            "lower it; the count is fixed for the life of the topics",
        );
    }
    // `?` comes last, so that every key is read.
    Some(RecordSource {
        enrich_resources: reader.parsed_set(&keys::ENRICH_RESOURCES, provider_names::resources),
        enrich: enrich(reader),
        companies_refresh: reader.milliseconds(&keys::COMPANIES_REFRESH),
        companies_max: reader.value(&keys::COMPANIES_MAX),
        snapshot: snapshot(reader),
        budget_per_second,
        company_budget_per_second,
        requests_in_flight: reader.value(&keys::IN_FLIGHT),
        epoch_confirm: reader.milliseconds(&keys::EPOCH_CONFIRM),
        tombstone_confirm: reader.milliseconds(&keys::TOMBSTONE_CONFIRM),
        brake_count: reader.value(&keys::BRAKE_COUNT),
        brake_percent: reader.value(&keys::BRAKE_PERCENT),
        common: common?,
        provider: provider?,
    })
}

fn enrich(reader: &mut SettingsReader<'_>) -> Enrich {
    let retry = reader.milliseconds(&keys::ENRICH_RETRY);
    let parked = reader.milliseconds(&keys::ENRICH_PARKED);
    Enrich {
        window: reader.milliseconds(&keys::ENRICH_WINDOW),
        commit: reader.milliseconds(&keys::ENRICH_COMMIT),
        retry,
        retry_max: reader.milliseconds(&keys::ENRICH_RETRY_MAX).max(retry),
        park_after: reader.milliseconds(&keys::ENRICH_PARK_AFTER),
        parked,
        parked_max: reader.milliseconds(&keys::ENRICH_PARKED_MAX).max(parked),
        horizon: reader.milliseconds(&keys::ENRICH_HORIZON),
    }
}

fn snapshot(reader: &mut SettingsReader<'_>) -> Snapshot {
    let mode = reader.value(&keys::SNAPSHOT_MODE);
    let schedule = reader.parsed(&keys::SNAPSHOT_SCHEDULE, Schedule::parse);
    let payroll_schedule = reader.parsed(&keys::PAYROLL_SCHEDULE, Schedule::parse);
    for (key, schedule) in
        [(&keys::SNAPSHOT_SCHEDULE, &schedule), (&keys::PAYROLL_SCHEDULE, &payroll_schedule)]
    {
        if schedule.is_some() && matches!(mode, SnapshotMode::NoData | SnapshotMode::InitialOnly) {
            reader.refuse(
                key,
                "contradicts snapshot.mode, which allows no later snapshot",
                "remove it, or change snapshot.mode",
            );
        }
    }
    let lists: BTreeSet<List> =
        reader.list(&keys::SNAPSHOT_LISTS).iter().filter_map(|name| name.parse().ok()).collect();
    let is_without_payroll = reader.are_valid(&[&keys::SNAPSHOT_LISTS]) && !lists.contains(&List::Payroll);
    if payroll_schedule.is_some() && is_without_payroll {
        reader.refuse(
            &keys::PAYROLL_SCHEDULE,
            "needs payroll in snapshot.lists",
            "add payroll to snapshot.lists, or remove this key",
        );
    }
    let companies = reader.list(&keys::SNAPSHOT_COMPANIES);
    let every = companies.iter().any(|company| company == "all");
    if every && companies.len() > 1 {
        reader.refuse(
            &keys::SNAPSHOT_COMPANIES,
            "lists all together with ids",
            "write only all, or only ids",
        );
    }
    Snapshot {
        lists,
        mode,
        schedule,
        companies: (!every).then(|| companies.into_iter().filter_map(|id| CompanyId::new(id).ok()).collect()),
        rows: reader.value(&keys::SNAPSHOT_ROWS),
        stream_start: reader.milliseconds(&keys::STREAM_START),
        page_size: reader.value(&keys::PAGE_SIZE),
        payroll_filter: reader.text(&keys::PAYROLL_FILTER),
        payroll_schedule,
        payroll_order_by: reader.text_or_default(&keys::PAYROLL_ORDER),
    }
}

#[cfg(test)]
mod tests;
