use provider::{AreaLogins, HostPolicy};

use super::*;
use crate::config::samples::{changed, properties};

fn sound() -> BTreeMap<String, String> {
    properties(&[
        ("connector.class", "RecordSource"),
        ("topic.prefix", "acme"),
        ("provider.base.url", "http://localhost:9999"),
        ("provider.auth.url", "https://login.example.com"),
        ("provider.subscription.key", "${env:SECRET}"),
        ("oauth.client.id", "client"),
        ("oauth.client.secret", "${env:SECRET}"),
    ])
}

/// The sound configuration with these changes; an empty value removes the key.
fn parse(changes: &[(&str, &str)]) -> Result<(RecordSource, Vec<Warning>), Problems> {
    let hosts = HostPolicy::listing(&["localhost", "*.example.com"]);
    let providers = Providers::new([("SECRET".to_owned(), "hunter2".to_owned())]).with_hosts(hosts);
    RecordSource::parse("records", &changed(sound(), changes), &providers)
}

#[test]
fn the_smallest_configuration_gives_the_documented_defaults() {
    let (source, warnings) = parse(&[]).unwrap();

    assert_eq!(warnings, []);
    assert_eq!(source.enrich_resources.len(), 19);
    assert_eq!(source.snapshot.lists, BTreeSet::from(List::ALL));
    assert_eq!((source.snapshot.mode, source.snapshot.rows), (SnapshotMode::Initial, Rows::Probe));
    assert_eq!(source.snapshot.companies, None);
    assert_eq!((source.snapshot.schedule, source.snapshot.payroll_schedule), (None, None));
    assert_eq!(source.snapshot.page_size, 100);
    assert_eq!(source.companies_max, 1_000_000);
    assert!(source.provider.oauth.pkce);
    assert_eq!((source.budget_per_second, source.company_budget_per_second), (10.0, 2.0));
    assert_eq!(source.requests_in_flight, 32);
    assert_eq!(source.epoch_confirm, Duration::from_secs(3600));
    assert_eq!((source.brake_count, source.brake_percent), (50, 2.0));
    assert_eq!(source.provider.oauth.logins.accounting.grant, "accounting");
}

#[test]
fn each_word_chooses_what_it_names() {
    for (word, mode) in [
        ("initial", SnapshotMode::Initial),
        ("always", SnapshotMode::Always),
        ("initial_only", SnapshotMode::InitialOnly),
        ("no_data", SnapshotMode::NoData),
        ("when_needed", SnapshotMode::WhenNeeded),
    ] {
        assert_eq!(parse(&[("snapshot.mode", word)]).unwrap().0.snapshot.mode, mode);
    }
    for (word, rows) in [("probe", Rows::Probe), ("full", Rows::Full), ("thin", Rows::Thin)] {
        assert_eq!(parse(&[("snapshot.rows", word)]).unwrap().0.snapshot.rows, rows);
    }
    let (source, _) =
        parse(&[("snapshot.lists", "payroll"), ("snapshot.companies", "acc:1, acc:2")]).unwrap();
    assert_eq!(source.snapshot.lists, BTreeSet::from([List::Payroll]));
    assert_eq!(source.snapshot.companies.map(|companies| companies.len()), Some(2));
}

#[test]
fn only_payroll_alone_needs_no_accounting_login() {
    for (changes, is_payroll_only) in [
        (&[][..], false),
        (&[("snapshot.lists", "payroll")], false),
        (&[("snapshot.lists", "payroll"), ("enrich.resources", " ")], true),
        (&[("snapshot.lists", "payroll,customers"), ("enrich.resources", " ")], false),
        (&[("snapshot.lists", " "), ("enrich.resources", " ")], false),
    ] {
        assert_eq!(parse(changes).unwrap().0.is_payroll_only(), is_payroll_only, "{changes:?}");
    }
}

#[test]
fn area_without_scopes_uses_the_shared_ones() {
    let (own, payroll) = (("accounting.oauth.scopes", "a"), ("payroll.oauth.scopes", "p, q"));
    for (changes, expected) in [
        (&[][..], [&[][..], &[]]),
        (&[("oauth.scopes", "s")], [&["s"], &["s"]]),
        (&[("oauth.scopes", "s"), payroll], [&["s"], &["p", "q"]]),
        (&[own, payroll], [&["a"], &["p", "q"]]),
    ] {
        let oauth = parse(changes).unwrap().0.provider.oauth;

        let AreaLogins { accounting, payroll, .. } = oauth.logins;
        assert_eq!([accounting.scopes, payroll.scopes], expected, "{changes:?}");
    }
}

#[test]
fn each_rule_is_enforced_with_a_remedy() {
    let table: &[(&[(&str, &str)], &str)] = &[
        (&[("provider.base.url", "")], "provider.base.url: is required to read from the provider"),
        (&[("snapshot.lists", "suppliers")], "must be one of companies, customers, accounts, payroll"),
        (&[("snapshot.mode", "sometimes")], "snapshot.mode: must be one of"),
        (&[("snapshot.mode", "no_data"), ("snapshot.schedule", "0 3 * * *")], "contradicts snapshot.mode"),
        (&[("snapshot.schedule", "daily")], "must be a cron expression"),
        (&[("payroll.incremental.schedule", "hourly")], "must be a cron expression"),
        (
            &[("snapshot.mode", "initial_only"), ("payroll.incremental.schedule", "* * * * *")],
            "payroll.incremental.schedule: contradicts snapshot.mode",
        ),
        (
            &[("snapshot.lists", "customers"), ("payroll.incremental.schedule", "* * * * *")],
            "payroll.incremental.schedule: needs payroll in snapshot.lists",
        ),
        (&[("snapshot.companies", "all,acc:1")], "lists all together with ids"),
        (&[("budget.company.requests.per.second", "11")], "must be at most budget.requests.per.second"),
        (&[("budget.requests.per.second", "0")], "must be a number above 0"),
        (&[("budget.requests.in.flight", "0")], "must be a whole number from 1 to 512"),
        (&[("tombstones.brake.percent", "101")], "must be a number from 0 to 100"),
        (&[("page.size", "1001")], "must be a whole number from 1 to 1000"),
        (&[("page.sise", "10")], "did you mean page.size?"),
        (&[("stream.start.timeout.ms", "-1")], "must be a whole number from 0 to 86400000"),
        (&[("stream.begin", "1")], "stream.begin: is not a key of a RecordSource"),
        (&[("enrich.resources", "acounts")], "did you mean accounts?"),
        (&[("accounting.secret", "x")], "move it to a WebhookSource"),
        (
            &[("oauth.client.secret", "${env:NOPE}")],
            "oauth.client.secret: environment variable NOPE is not set",
        ),
    ];

    for (changes, expected) in table {
        let message = parse(changes).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(expected), "{changes:?}\n=> {message}");
    }
}
