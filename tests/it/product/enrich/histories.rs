//! The checker on made-up histories: a sound one passes, and each kind of fault is found and named.

use kafka::partition_of;
use model::AccountingResource::{self, Customers, Journals};
use serde_json::{Value, json};

use super::checker::{
    EventClass, Evidence, Fence, Letter, ProviderState, PublishedEvent, PublishedRecord, check,
    check_certificates,
};

crate::tests! {
    plain a_sound_history_passes;
    plain the_copy_that_ends_a_batch_is_no_second_record;
    plain each_way_to_be_wrong_is_found_and_named;
    plain a_certified_list_must_have_records_without_events;
    plain a_parked_or_dead_letter_record_excuses_only_its_key;
    plain a_later_epoch_may_lower_versions_and_undo_deletes;
    plain every_fault_is_reported_with_its_count_and_the_first_few;
}

const PARTITIONS: i32 = 4;
const KEY: &str = "a:1/r";

fn record(version: u64, name: &str) -> Value {
    json!({ "correlationId": "r", "sequenceVersion": version.to_string(), "vatName": name })
}

fn line(offset: i64, version: u64, epoch: u64, value: Option<Value>) -> PublishedRecord {
    PublishedRecord {
        key: KEY.to_owned(),
        partition: partition_of(b"a:1", PARTITIONS),
        offset,
        version: Some(version),
        epoch: Some(epoch),
        origin: "enrichment".to_owned(),
        batch: None,
        value,
    }
}

fn event(resource: AccountingResource, offset: i64, version: u64, kind: EventClass) -> PublishedEvent {
    PublishedEvent {
        position: (format!("p.{resource}.events"), 0, offset),
        key: Some(KEY.to_owned()),
        resource,
        version: Some(version),
        kind,
        id: format!("{resource}-{offset}"),
    }
}

/// A customer with three events and two reads, and a journal that was read and then deleted.
fn sound() -> Evidence {
    let customer = (Customers, KEY.to_owned());
    let journal = (Journals, KEY.to_owned());
    let mut evidence = Evidence { partitions: PARTITIONS, ..Evidence::default() };
    evidence.lines.insert(
        Customers,
        vec![line(0, 5, 0, Some(record(5, "before"))), line(2, 9, 0, Some(record(9, "after")))],
    );
    evidence.lines.insert(Journals, vec![line(0, 3, 0, Some(record(3, "here"))), line(1, 4, 0, None)]);
    evidence.events = vec![
        event(Customers, 0, 5, EventClass::Changed),
        event(Customers, 1, 7, EventClass::Changed),
        event(Customers, 2, 9, EventClass::Changed),
        PublishedEvent { version: None, ..event(Customers, 3, 0, EventClass::Silent) },
        event(Journals, 0, 3, EventClass::Changed),
        event(Journals, 1, 4, EventClass::Deleted),
    ];
    evidence.settled =
        [(("p.customers.events".to_owned(), 0), 4), (("p.journals.events".to_owned(), 0), 2)].into();
    evidence.fences.insert(customer.clone(), Fence { epoch: 0, version: 9, deleted: false });
    evidence.fences.insert(journal.clone(), Fence { epoch: 0, version: 4, deleted: true });
    evidence.truth.insert(customer, ProviderState::Alive(record(9, "after")));
    evidence.truth.insert(journal, ProviderState::Deleted);
    evidence.accepted = evidence.events.iter().map(|event| event.id.clone()).collect();
    evidence
}

/// The customers' records.
fn lines(evidence: &mut Evidence) -> &mut Vec<PublishedRecord> {
    evidence.lines.get_mut(&Customers).unwrap()
}

async fn a_sound_history_passes() {
    let verdict = check(&sound());

    verdict.assert_sound();
    assert_eq!(
        verdict.to_string(),
        "6 events, 4 records of 2 keys, 1 of them tombstones, 0 parked, 0 dead letters, 0 violations"
    );
}

async fn the_copy_that_ends_a_batch_is_no_second_record() {
    let mut evidence = sound();
    let last = lines(&mut evidence).last_mut().unwrap();
    last.batch = Some("7".to_owned());
    let copy = PublishedRecord { offset: last.offset + 1, ..last.clone() };
    lines(&mut evidence).push(copy);
    check(&evidence).assert_sound();
}

/// The faults to be found, and the change that causes them.
type Wrong = (&'static [&'static str], fn(&mut Evidence));

async fn each_way_to_be_wrong_is_found_and_named() {
    let ways: &[Wrong] = &[
        (&["behind", "fence", "version back"], |all| lines(all).swap(0, 1)),
        (&["epoch back", "epoch raised"], |all| lines(all)[0].epoch = Some(1)),
        (&["repeated"], |all| {
            let last = lines(all)[1].clone();
            lines(all).push(last);
        }),
        (&["repeated"], |all| {
            let [_, last] = &mut lines(all)[..] else { return };
            last.batch = Some("7".to_owned());
            let other = PublishedRecord { batch: Some("8".to_owned()), ..last.clone() };
            lines(all).push(other);
        }),
        (&["repeated"], |all| {
            let tombstones = all.lines.get_mut(&Journals).unwrap();
            tombstones.push(tombstones[1].clone());
        }),
        (&["fence", "resurrected", "undead"], |all| {
            let journals = all.lines.get_mut(&Journals).unwrap();
            journals.push(line(2, 4, 0, Some(record(4, "here"))));
        }),
        (&["misplaced"], |all| lines(all)[0].partition += 1),
        (&["mislabelled"], |all| lines(all)[0].version = Some(6)),
        (&["mislabelled"], |all| lines(all)[0].value.as_mut().unwrap()["correlationId"] = json!("s")),
        (&["mislabelled"], |all| lines(all)[0].epoch = None),
        (&["mislabelled"], |all| lines(all)[0].origin.clear()),
        (&["different"], |all| lines(all)[1].value.as_mut().unwrap()["vatName"] = json!("another")),
        (&["different"], |all| lines(all)[1].value.as_mut().unwrap()["more"] = json!(1)),
        (&["behind"], |all| {
            all.truth.insert((Customers, KEY.to_owned()), ProviderState::Alive(record(10, "later")));
        }),
        (&["ahead"], |all| {
            all.truth.insert((Customers, KEY.to_owned()), ProviderState::Alive(record(8, "earlier")));
        }),
        (&["foreign"], |all| {
            all.truth.remove(&(Customers, KEY.to_owned()));
        }),
        (&["undead"], |all| {
            all.truth.insert((Customers, KEY.to_owned()), ProviderState::Deleted);
        }),
        (&["tombstoned"], |all| {
            all.truth.insert((Journals, KEY.to_owned()), ProviderState::Alive(record(4, "here")));
        }),
        // A tombstone counts although a later record replaced it.
        (&["tombstoned"], |all| lines(all)[0].value = None),
        (&["fence", "missing"], |all| drop(all.lines.remove(&Customers))),
        (&["unsettled"], |all| {
            all.settled.insert(("p.customers.events".to_owned(), 0), 3);
        }),
        (&["unsettled", "unsettled"], |all| {
            all.settled.remove(&("p.journals.events".to_owned(), 0));
        }),
        (&["unaccounted"], |all| all.events[1].version = Some(10)),
        (&["unaccounted"], |all| all.events[1].version = None),
        (&["unaccounted"], |all| all.events[1].key = None),
        (&["unaccounted"], |all| all.events[1].kind = EventClass::Garbled),
        (&["undelivered"], |all| {
            all.accepted.insert("lost".to_owned());
        }),
        (&["fence"], |all| all.fences.get_mut(&(Customers, KEY.to_owned())).unwrap().deleted = true),
        (&["fence"], |all| {
            all.fences.remove(&(Journals, KEY.to_owned()));
        }),
        (&["fence"], |all| {
            all.fences
                .insert((Customers, "a:1/s".to_owned()), Fence { epoch: 0, version: 1, deleted: false });
        }),
        (&["unreasoned"], |all| {
            all.letters.push(Letter {
                position: None,
                class: "enrich::Foreign".to_owned(),
                message: String::new(),
            });
        }),
    ];

    for (number, (kinds, spoil)) in ways.iter().enumerate() {
        let mut evidence = sound();
        spoil(&mut evidence);

        let verdict = check(&evidence);

        let mut expected = kinds.to_vec();
        let count = expected.len() as u64;
        expected.dedup();
        assert_eq!(verdict.kinds(), expected, "way {number}: {verdict}");
        assert_eq!(expected.iter().map(|kind| verdict.count(kind)).sum::<u64>(), count, "way {number}");
    }
}

async fn a_certified_list_must_have_records_without_events() {
    let without_event = (Customers, "a:1/s".to_owned());
    let mut evidence = sound();
    evidence.certified.insert((Customers, KEY.to_owned()));
    check(&evidence).assert_sound();
    evidence.certified.insert(without_event.clone());

    for verdict in [check(&evidence), check_certificates(&evidence)] {
        assert_eq!((verdict.kinds(), verdict.count("certified")), (vec!["certified"], 1), "{verdict}");
    }
    evidence.parked.insert(without_event, None);
    check_certificates(&evidence).assert_sound();
}

/// A case, the excuse, and the faults that remain.
type Excuse<'a> = (&'a str, &'a dyn Fn(&mut Evidence), &'a [&'a str]);

async fn a_parked_or_dead_letter_record_excuses_only_its_key() {
    let newer = |all: &mut Evidence| {
        all.events.push(event(Customers, 4, 12, EventClass::Changed));
        all.settled.insert(("p.customers.events".to_owned(), 0), 5);
        all.truth.insert((Customers, KEY.to_owned()), ProviderState::Alive(record(12, "newest")));
    };
    let parked = |all: &mut Evidence, version| {
        all.parked.insert((Customers, KEY.to_owned()), version);
    };
    let letter = |all: &mut Evidence, offset| {
        let position = Some(("p.customers.events".to_owned(), 0, offset));
        all.letters.push(Letter {
            position,
            class: "unreadable".to_owned(),
            message: "it was not read".to_owned(),
        });
    };
    let table: [Excuse<'_>; 7] = [
        ("nothing", &|_| {}, &["behind", "unaccounted"]),
        ("parked", &|all| parked(all, Some(12)), &[]),
        ("parked up to any version", &|all| parked(all, None), &[]),
        ("parked up to an older version", &|all| parked(all, Some(11)), &["unaccounted"]),
        ("a dead letter", &|all| letter(all, 4), &[]),
        ("another's dead letter", &|all| letter(all, 9), &["behind", "unaccounted"]),
        (
            "parked, and yet a tombstone",
            &|all| {
                parked(all, Some(12));
                lines(all).push(line(3, 10, 0, None));
            },
            &["fence", "tombstoned"],
        ),
    ];

    for (case, excuse, kinds) in table {
        let mut evidence = sound();
        newer(&mut evidence);
        excuse(&mut evidence);

        let verdict = check(&evidence);

        assert_eq!(verdict.kinds(), kinds, "{case}: {verdict}");
    }
}

async fn a_later_epoch_may_lower_versions_and_undo_deletes() {
    let mut evidence = sound();
    let mut again = |resource, version, name: &str| {
        let value = record(version, name);
        evidence.lines.get_mut(&resource).unwrap().push(line(9, version, 1, Some(value.clone())));
        let name = (resource, KEY.to_owned());
        evidence.fences.insert(name.clone(), Fence { epoch: 1, version, deleted: false });
        evidence.truth.insert(name, ProviderState::Alive(value));
    };

    again(Customers, 6, "restored");
    again(Journals, 2, "restored");
    evidence.restored = true;
    let restored = check(&evidence);
    evidence.restored = false;
    let unfounded = check(&evidence);

    restored.assert_sound();
    assert_eq!((unfounded.kinds(), unfounded.count("epoch raised")), (vec!["epoch raised"], 2));
}

async fn every_fault_is_reported_with_its_count_and_the_first_few() {
    let mut evidence = sound();
    evidence.accepted.extend((0..20).map(|number| format!("lost-{number:02}")));
    lines(&mut evidence)[0].partition += 1;

    let text = check(&evidence).to_string();

    assert!(text.contains("21 violations, 1 misplaced, 20 undelivered\n"), "{text}");
    assert!(text.contains("\n  misplaced: customers PublishedRecord {"), "{text}");
    assert!(text.contains("\n  undelivered: lost-04") && !text.contains("lost-05"), "{text}");
}
