use std::fs;

use super::*;
use crate::plugin::samples::{properties, webhook_config};

/// With these keys over those of a connector that works.
fn one(target: TargetState, changes: &[(&str, &str)]) -> ListedConnector {
    let mut config = webhook_config();
    config.extend(properties(changes));
    ListedConnector { config: Arc::new(config), target }
}

fn all(listed: &[(&str, ListedConnector)]) -> BTreeMap<String, ListedConnector> {
    listed.iter().map(|(name, listed)| ((*name).to_owned(), listed.clone())).collect()
}

/// Who is received, how, and for which prefix.
fn states(table: &ReceiverConfigs) -> Vec<String> {
    let state = |(name, one): (&str, &ReceivedConnector)| {
        format!("{name} {:?} {}", one.receiver.state, one.receiver.prefix)
    };
    table.received().map(state).collect()
}

#[test]
fn a_faulty_connector_keeps_its_receiver_in_its_new_state() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let broken = [("accounting.secret", "${env:SECRET}"), ("topic.prefix", "other")];
    table.apply(
        &all(&[("a", one(TargetState::Running, &[])), ("b", one(TargetState::Running, &[]))]),
        &nothing,
    );
    assert_eq!(states(&table), ["a Running acme", "b Running acme"]);

    let listed = all(&[("a", one(TargetState::Paused, &broken)), ("b", one(TargetState::Stopped, &[]))]);
    table.apply(&listed, &nothing);
    let kept = states(&table);
    let faults = table.faults();
    table.apply(&listed, &Providers::new([("SECRET".to_owned(), "0123456789abcdef".to_owned())]));

    assert_eq!(kept, ["a Paused acme", "b Stopped acme"]);
    assert_eq!(faults.keys().collect::<Vec<_>>(), ["a"]);
    assert!(table.faulty().is_empty(), "it is received as it was before");
    assert!(faults["a"].contains("accounting.secret"), "{faults:?}");
    assert_eq!(states(&table), ["a Paused other", "b Stopped acme"]);
    assert!(table.faults().is_empty(), "what it refers to is there now");
}

#[test]
fn one_that_never_worked_is_not_received() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let broken = one(TargetState::Running, &[("accounting.secret", "short")]);

    table.apply(&all(&[("a", broken), ("b", one(TargetState::Running, &[]))]), &nothing);

    assert_eq!(states(&table), ["b Running acme"]);
    assert_eq!(table.faulty(), [FaultyReceiver { connector: "a".to_owned(), segment: None }]);
    assert!(table.faults().contains_key("a"));
    table.apply(&BTreeMap::new(), &nothing);
    assert!(states(&table).is_empty() && table.faults().is_empty(), "both are gone");
}

/// A connector of the default segment whose invoicing secret begins like this.
fn sharing(secret: &str, changes: &[(&str, &str)]) -> ListedConnector {
    let secret = format!("{secret:0<32}");
    let hooks = [
        ("invoicing.hooks", "Customer:Created"),
        ("invoicing.secret", &*secret),
        ("subscriptions.manage", "false"),
    ];
    one(TargetState::Running, &[&hooks[..], changes].concat())
}

#[test]
fn connectors_with_secrets_of_their_own_share_a_segment() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));

    table.apply(&all(&[("a", sharing("1", &[])), ("b", sharing("2", &[]))]), &nothing);

    assert_eq!(states(&table), ["a Running acme", "b Running acme"]);
    assert!(table.faulty().is_empty() && table.faults().is_empty());
}

#[test]
fn neither_of_two_with_one_secret_is_received() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let (a, b, c) = (sharing("1", &[]), sharing("1", &[]), sharing("3", &[]));
    table.apply(&all(&[("b", b.clone()), ("c", c.clone())]), &nothing);
    assert_eq!(states(&table), ["b Running acme", "c Running acme"]);

    table.apply(&all(&[("a", a), ("b", b.clone()), ("c", c.clone())]), &nothing);

    assert_eq!(states(&table), ["c Running acme"]);
    for (name, other) in [("a", "b"), ("b", "a")] {
        let expected = format!("invoicing.secret is also a secret of {other}");
        assert!(table.faults()[name].starts_with(&expected), "{:?}", table.faults());
        let segment = Some("Invoicing".to_owned());
        assert!(table.faulty().contains(&FaultyReceiver { connector: name.to_owned(), segment }));
    }
    table.apply(&all(&[("b", b), ("c", c)]), &nothing);
    assert_eq!(states(&table), ["b Running acme", "c Running acme"]);
    assert!(table.faults().is_empty());
}

#[test]
fn unsigned_connector_shares_no_segment() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let off = [("invoicing.signature.policy", "off"), ("source.addresses", "192.0.2.0/24")];

    table.apply(&all(&[("a", sharing("1", &[])), ("b", sharing("2", &off))]), &nothing);

    assert!(states(&table).is_empty() && table.faulty().len() == 2);
    assert!(table.faults()["a"].contains("is the segment that b receives under"), "{:?}", table.faults());
}

#[test]
fn connectors_above_the_limit_of_a_segment_are_not_received() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let name = |at: usize| format!("c{at}");
    let listed = (0..10).map(|at| (name(at), sharing(&at.to_string(), &[]))).collect();

    table.apply(&listed, &nothing);

    assert_eq!(table.received().count(), 8);
    assert_eq!(table.faults().into_keys().collect::<Vec<_>>(), [name(8), name(9)]);
}

/// A connector whose secret is in a file, and where that is.
fn referring(reload: &str) -> (tempfile::TempDir, BTreeMap<String, ListedConnector>) {
    let directory = tempfile::tempdir().unwrap();
    let reference = format!("${{dir:{}:secret}}", directory.path().display());
    let changes = [("accounting.secret", reference.as_str()), ("config.action.reload", reload)];
    let listed = all(&[("a", one(TargetState::Running, &changes)), ("b", one(TargetState::Running, &[]))]);
    (directory, listed)
}

fn receiver(table: &ReceiverConfigs, name: &str) -> Arc<Receiver> {
    let (_, received) = table.received().find(|(found, _)| *found == name).unwrap();
    Arc::clone(&received.receiver)
}

#[test]
fn a_changed_reference_applies_once_two_reads_agree() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let (directory, listed) = referring("restart");
    let write = |text: &str| fs::write(directory.path().join("secret"), text).unwrap();
    let settled = || ReferenceChanges::default();
    let unsettled = || ReferenceChanges { unsettled: true, ..ReferenceChanges::default() };
    write("the first secret of all");
    table.apply(&listed, &nothing);
    let (first, other) = (receiver(&table, "a"), receiver(&table, "b"));
    assert_eq!(table.recheck_references(&nothing), settled());

    write("the second secret, half");
    assert_eq!(table.recheck_references(&nothing), unsettled());
    write("the second secret, half of it");
    assert_eq!(table.recheck_references(&nothing), unsettled());
    table.apply(&listed, &nothing);
    assert!(Arc::ptr_eq(&receiver(&table, "a"), &first), "half of a secret counts");
    assert_eq!(
        table.recheck_references(&nothing),
        ReferenceChanges { stale: vec!["a".to_owned()], unsettled: false }
    );
    table.apply(&listed, &nothing);

    assert!(!Arc::ptr_eq(&receiver(&table, "a"), &first), "the new secret does not count");
    assert!(Arc::ptr_eq(&receiver(&table, "b"), &other), "one without references was rebuilt");
    assert_eq!(table.recheck_references(&nothing), settled());
}

#[test]
fn an_unresolved_reference_is_a_fault_and_changes_nothing() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let (directory, listed) = referring("restart");
    let file = directory.path().join("secret");
    fs::write(&file, "the first secret of all").unwrap();
    table.apply(&listed, &nothing);

    fs::remove_file(&file).unwrap();
    let references = table.recheck_references(&nothing);
    table.apply(&listed, &nothing);
    let (kept, faults) = (states(&table), table.faults());
    fs::write(&file, "the first secret of all").unwrap();
    table.apply(&listed, &nothing);

    assert_eq!(references.stale, ["a"]);
    assert_eq!(kept, ["a Running acme", "b Running acme"]);
    assert!(faults["a"].contains("accounting.secret"), "{faults:?}");
    assert!(table.faults().is_empty() && table.recheck_references(&nothing) == ReferenceChanges::default());
}

#[test]
fn who_asks_for_no_reload_gets_none() {
    let (mut table, nothing) = (ReceiverConfigs::default(), Providers::new([]));
    let (directory, listed) = referring("none");
    let file = directory.path().join("secret");
    fs::write(&file, "the first secret of all").unwrap();
    table.apply(&listed, &nothing);

    fs::write(&file, "the second secret of all").unwrap();

    assert_eq!(
        [table.recheck_references(&nothing), table.recheck_references(&nothing)],
        [ReferenceChanges::default(), ReferenceChanges::default()]
    );
}
