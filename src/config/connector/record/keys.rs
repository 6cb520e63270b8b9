//! The keys that only a `RecordSource` has.

use strum::VariantNames as _;

use crate::config::{
    connector::{Rows, SnapshotMode, provider_names},
    key::{Rule, keys},
    rules,
};

keys! {
    "Enrichment" {
        /// Resources whose events are followed by a read of the full record, such as customers,accounts, or all.
        /// Empty: none.
        ENRICH_RESOURCES = List("enrich.resources").or("all").high().rule(provider_names::RESOURCES);
        /// Milliseconds within which several events of one record become one read.
        ENRICH_WINDOW = Long("enrich.window.ms").or("500").low().rule(Rule::Range(0, 60_000));
        /// First wait before a record is read again after an insufficient read, in milliseconds. It doubles with each try.
        ENRICH_RETRY = Long("enrich.retry.backoff.ms").or("200").low().rule(Rule::Range(1, 600_000));
        /// Longest of these waits, in milliseconds.
        ENRICH_RETRY_MAX = Long("enrich.retry.backoff.max.ms").or("5000").low().rule(Rule::Range(1, 3_600_000));
        /// Milliseconds for which an event may hold back the offset of its partition. Then it is parked in the state topic,
        /// and the partition advances.
        ENRICH_PARK_AFTER = Long("enrich.park.after.ms").or("10000").low().rule(Rule::Range(1, 3_600_000));
        /// First wait before the record of a parked event is read again, in milliseconds. It doubles with each try.
        ENRICH_PARKED = Long("enrich.parked.backoff.ms").or("30000").low().rule(Rule::Range(1, 86_400_000));
        /// Longest of these waits, in milliseconds.
        ENRICH_PARKED_MAX = Long("enrich.parked.backoff.max.ms").or("900000").low().rule(Rule::Range(1, 86_400_000));
        /// Milliseconds for which the read of a record is retried. Then its event becomes a dead letter, and a gap is
        /// opened.
        ENRICH_HORIZON = Long("enrich.horizon.ms").or("86400000").low().rule(Rule::Range(1, 30 * 86_400_000));
        /// Milliseconds between two transactions of a partition while more of its records are being read. A record that has
        /// been read waits at most this long; the last of the records being read is committed at once.
        ENRICH_COMMIT = Long("enrich.commit.interval.ms").or("100").low().rule(Rule::Range(0, 5_000));
        /// Milliseconds between reads of the list of companies. An event of a company that it does not show triggers a read
        /// at once.
        COMPANIES_REFRESH = Long("companies.refresh.interval.ms").or("900000").low().rule(Rule::Range(100, 86_400_000));
        /// Maximum rows of the list of companies that are kept in memory. A longer list fails the task: a host that is not
        /// the provider could otherwise fill the memory of the worker.
        COMPANIES_MAX = Int("companies.rows.max").or("1000000").low().rule(Rule::Range(1, 10_000_000));
    }
    "Snapshot" {
        /// Lists to read in full: companies, customers, accounts, payroll. payroll needs a separate login (`tributary auth
        /// login payroll --connector NAME`). Until it exists payroll waits: the other lists are read and certified without
        /// it, the log and `tributary snapshot status NAME` name the command, and payroll is read once the login exists.
        /// With payroll alone and an empty enrich.resources no login for accounting is needed.
        SNAPSHOT_LISTS = List("snapshot.lists").or("companies,customers,accounts,payroll").high()
            .rule(Rule::OneOf(&["companies", "customers", "accounts", "payroll"]));
        /// When to read them, in Debezium's words: initial once, always at every start, initial_only once and then
        /// stop, no_data never, when_needed the same as initial.
        SNAPSHOT_MODE = String("snapshot.mode").or("initial").rule(Rule::OneOf(SnapshotMode::VARIANTS));
        /// When to read them again: minute, hour, day of month, month, day of week, in UTC. Unset: on request only.
        SNAPSHOT_SCHEDULE = String("snapshot.schedule").rule(rules::CRON);
        /// Correlation ids of the companies to read, or all.
        SNAPSHOT_COMPANIES = List("snapshot.companies").or("all").rule(rules::PLAIN);
        /// Whether rows of a list are full records: probe compares three with their reads by id and decides, full
        /// publishes rows, thin reads each newer one by id.
        SNAPSHOT_ROWS = String("snapshot.rows").or("probe").low().rule(Rule::OneOf(Rows::VARIANTS));
        /// Milliseconds that the first page waits for the WebhookSource with the same topic.prefix to have all its
        /// subscriptions active. Then it is read anyway, and its certificates say stream=unverified.
        STREAM_START = Long("stream.start.timeout.ms").or("600000").low().rule(Rule::Range(0, 86_400_000));
        /// Rows to request in one page. Larger pages mean fewer requests; 100 is known to work everywhere.
        PAGE_SIZE = Int("page.size").or("100").low().rule(Rule::Range(1, 1000));
        /// Filter for the payroll list, as in lastUpdate gt 2024-01-01. Only matching rows are read; if none match, the
        /// list is not certified.
        PAYROLL_FILTER = String("payroll.filter").low().rule(rules::PLAIN);
        /// When to read what has changed in payroll, which has no webhooks: minute, hour, day of month, month, day of week, in
        /// UTC. Such a run proves nothing about the rest of the list; a full run does, by snapshot.schedule or on request. Until
        /// one is certified, the whole list is read; with payroll.filter, all rows that match it. Unset: on request only.
        PAYROLL_SCHEDULE = String("payroll.incremental.schedule").rule(rules::CRON);
        /// Order of the payroll list. No proof depends on it; it is omitted if the provider refuses it.
        PAYROLL_ORDER = String("payroll.order.by").or("companyCode").low().rule(rules::SEGMENT);
    }
    "Budget" {
        /// Requests per second to the provider, over all workers. The rate decreases by itself when the provider throttles.
        BUDGET = Double("budget.requests.per.second").or("10").rule(Rule::Positive);
        /// Requests per second for one company; at most budget.requests.per.second.
        COMPANY_BUDGET = Double("budget.company.requests.per.second").or("2").rule(Rule::Positive);
        /// Maximum requests of one worker that may be in flight to the provider. The snapshot may not use the last quarter.
        IN_FLIGHT = Int("budget.requests.in.flight").or("32").low().rule(Rule::Range(1, 512));
    }
    "Safety" {
        /// Milliseconds for which the provider must answer with older versions before the worker concludes that the
        /// provider went back. Above the largest replica lag.
        EPOCH_CONFIRM = Long("epoch.confirm.ms").or("3600000").low().rule(Rule::Range(100, 7 * 86_400_000));
        /// Least time between two answers that a record is gone before it is deleted here, in milliseconds.
        TOMBSTONE_CONFIRM = Long("tombstones.confirm.ms").or("600000").low().rule(Rule::Range(1, 7 * 86_400_000));
        /// Deletes of a resource in a day and shard that are always published; above this and the percentage, deleting
        /// pauses until an operator has checked and raises one of them.
        BRAKE_COUNT = Int("tombstones.brake.count").or("50").low().rule(Rule::Range(0, 1_000_000));
        /// Share of a shard's records of a resource, in percent, above which deleting pauses.
        BRAKE_PERCENT = Double("tombstones.brake.percent").or("2").low().rule(PERCENT);
    }
}

const PERCENT: Rule = Rule::custom("a number from 0 to 100", |text| match text.parse::<f64>() {
    Ok(share) if (0.0..=100.0).contains(&share) => Ok(()),
    _ => Err("it is not".into()),
});
