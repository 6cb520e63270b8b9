//! The keys that only a `RecordSource` has.

use strum::VariantNames as _;

use crate::config::{
    connector::{Rows, SnapshotMode, provider_names},
    key::{
        ConfigKey, Rule,
        Type::{Double, Int, List, Long, String},
        keys,
    },
    rules,
};

keys! {
    "Enrichment" {
        ENRICH_RESOURCES = ConfigKey::new(List, "enrich.resources",
            "Resources whose events are followed by a read of the full record, such as customers,accounts, or all. \
             Empty: none.")
            .or("all").high().rule(provider_names::RESOURCES);
        ENRICH_WINDOW = ConfigKey::new(Long, "enrich.window.ms",
            "Time in which several events of one record become one read, in milliseconds.")
            .or("500").low().rule(Rule::Range(0, 60_000));
        ENRICH_RETRY = ConfigKey::new(Long, "enrich.retry.backoff.ms",
            "First wait before a record is read again whose read was not enough, in milliseconds. It doubles with each try.")
            .or("200").low().rule(Rule::Range(1, 600_000));
        ENRICH_RETRY_MAX = ConfigKey::new(Long, "enrich.retry.backoff.max.ms",
            "The longest of these waits, in milliseconds.").or("5000").low().rule(Rule::Range(1, 3_600_000));
        ENRICH_PARK_AFTER = ConfigKey::new(Long, "enrich.park.after.ms",
            "How long an event may hold back the offset of its partition, in milliseconds. Then it waits in the state topic, and \
             others go on.")
            .or("10000").low().rule(Rule::Range(1, 3_600_000));
        ENRICH_PARKED = ConfigKey::new(Long, "enrich.parked.backoff.ms",
            "First wait of an event in the state topic, in milliseconds. It doubles with each try.")
            .or("30000").low().rule(Rule::Range(1, 86_400_000));
        ENRICH_PARKED_MAX = ConfigKey::new(Long, "enrich.parked.backoff.max.ms",
            "The longest of these waits, in milliseconds.").or("900000").low().rule(Rule::Range(1, 86_400_000));
        ENRICH_HORIZON = ConfigKey::new(Long, "enrich.horizon.ms",
            "How long a record is tried to be read, in milliseconds. Then its event goes to the dead letters, and a gap is opened.")
            .or("86400000").low().rule(Rule::Range(1, 30 * 86_400_000));
        ENRICH_COMMIT = ConfigKey::new(Long, "enrich.commit.interval.ms",
            "Time between two transactions of a partition while more of its records are being read, in milliseconds. What was \
             read waits that long at most; the last of what is being read waits for nothing.")
            .or("100").low().rule(Rule::Range(0, 5_000));
        COMPANIES_REFRESH = ConfigKey::new(Long, "companies.refresh.interval.ms",
            "How often the list of companies is read, in milliseconds. It is read at once for an event of a company that it does \
             not show.")
            .or("900000").low().rule(Rule::Range(100, 86_400_000));
        COMPANIES_MAX = ConfigKey::new(Int, "companies.rows.max",
            "Rows of the list of companies that are kept in memory. A longer list fails the task: a host that is not the \
             provider could otherwise fill the memory of the worker.")
            .or("1000000").low().rule(Rule::Range(1, 10_000_000));
    }
    "Snapshot" {
        SNAPSHOT_LISTS = ConfigKey::new(List, "snapshot.lists",
            "Lists to read in full: companies, customers, accounts, payroll. payroll needs a login of its own (`tributary auth login \
             payroll --connector NAME`). Until there is one it waits: the other lists are read and certified without it, the log and \
             `tributary snapshot status NAME` name the command, and payroll is read once the login is there. With payroll alone and \
             an empty enrich.resources no login for accounting is needed.")
            .or("companies,customers,accounts,payroll").high()
            .rule(Rule::OneOf(&["companies", "customers", "accounts", "payroll"]));
        SNAPSHOT_MODE = ConfigKey::new(String, "snapshot.mode",
            "When to read them, in Debezium's words: initial once, always at every start, initial_only once and then \
             stop, no_data never, when_needed the same as initial.")
            .or("initial").rule(Rule::OneOf(SnapshotMode::VARIANTS));
        SNAPSHOT_SCHEDULE = ConfigKey::new(String, "snapshot.schedule",
            "When to read them again: minute, hour, day of month, month, day of week, in UTC. Unset: on request only.")
            .rule(rules::CRON);
        SNAPSHOT_COMPANIES = ConfigKey::new(List, "snapshot.companies",
            "Correlation ids of the companies to read, or all.").or("all").rule(rules::PLAIN);
        SNAPSHOT_ROWS = ConfigKey::new(String, "snapshot.rows",
            "Whether rows of a list are full records: probe compares three with their reads by id and decides, full \
             publishes rows, thin reads each newer one by id.")
            .or("probe").low().rule(Rule::OneOf(Rows::VARIANTS));
        STREAM_START = ConfigKey::new(Long, "stream.start.timeout.ms",
            "How long the first page waits until the WebhookSource with the same topic.prefix has all its subscriptions \
             active, in milliseconds. Then it is read all the same, and what is proved of it says stream=unverified.")
            .or("600000").low().rule(Rule::Range(0, 86_400_000));
        PAGE_SIZE = ConfigKey::new(Int, "page.size",
            "Rows to ask for in one page. Larger ones mean fewer requests; 100 is known to work everywhere.")
            .or("100").low().rule(Rule::Range(1, 1000));
        PAYROLL_FILTER = ConfigKey::new(String, "payroll.filter",
            "Filter for the payroll list, as in lastUpdate gt 2024-01-01. What it lets through is read; if it lets nothing through, the list is \
             not certified.").low().rule(rules::PLAIN);
        PAYROLL_ORDER = ConfigKey::new(String, "payroll.order.by",
            "Order of the payroll list. No proof depends on it; it is left out where the provider refuses it.")
            .or("companyCode").low().rule(rules::SEGMENT);
    }
    "Budget" {
        BUDGET = ConfigKey::new(Double, "budget.requests.per.second",
            "Requests a second to the provider, over all workers. It falls by itself when the provider throttles.")
            .or("10").rule(Rule::Positive);
        COMPANY_BUDGET = ConfigKey::new(Double, "budget.company.requests.per.second",
            "Requests a second for one company; at most budget.requests.per.second.").or("2").rule(Rule::Positive);
        IN_FLIGHT = ConfigKey::new(Int, "budget.requests.in.flight",
            "Requests of one worker that may be on their way to the provider at once. The last quarter is not for the \
             snapshot.")
            .or("32").low().rule(Rule::Range(1, 512));
    }
    "Safety" {
        EPOCH_CONFIRM = ConfigKey::new(Long, "epoch.confirm.ms",
            "How long the provider has to answer with older versions before we believe it went back, in milliseconds. \
             Above the largest replica lag.")
            .or("3600000").low().rule(Rule::Range(100, 7 * 86_400_000));
        TOMBSTONE_CONFIRM = ConfigKey::new(Long, "tombstones.confirm.ms",
            "How far apart two answers that a deleted record is gone must be before it is deleted here, in milliseconds.")
            .or("600000").low().rule(Rule::Range(1, 7 * 86_400_000));
        BRAKE_COUNT = ConfigKey::new(Int, "tombstones.brake.count",
            "Deletes of a resource in a day and shard that are always let through; above this and the percentage deleting pauses \
             until a person has looked and raises one of them.")
            .or("50").low().rule(Rule::Range(0, 1_000_000));
        BRAKE_PERCENT = ConfigKey::new(Double, "tombstones.brake.percent",
            "Share of a shard's records of a resource, in percent, above which deleting pauses.").or("2").low().rule(PERCENT);
    }
}

const PERCENT: Rule = Rule::custom("a number from 0 to 100", |text| match text.parse::<f64>() {
    Ok(share) if (0.0..=100.0).contains(&share) => Ok(()),
    _ => Err("it is not".into()),
});
