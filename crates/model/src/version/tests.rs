use proptest::prelude::*;

use super::*;

fn sequence(text: &str) -> SequenceVersion {
    SequenceVersion::parse(text).unwrap()
}

fn stamp(epoch: u64, version: &str, rank: Rank, deleted: bool) -> Stamp {
    Stamp { epoch: Epoch(epoch), version: version.parse().unwrap(), rank, deleted }
}

fn payroll(time: &str, content: &str) -> Stamp {
    let version = Version::payroll(time, content.as_bytes()).unwrap();
    Stamp { epoch: Epoch(0), version, rank: Rank::List, deleted: false }
}

#[test]
fn version_reaches_what_it_would_replace_or_equals() {
    for stored_deleted in [false, true] {
        for version in ["8", "9", "009", "10"] {
            let stored = stamp(3, "9", Rank::List, stored_deleted);
            let read = stamp(3, version, Rank::ById, false);
            let comparison = read.against(Some(&stored));

            let reaches = read.version.reaches(&stored);

            let expected = comparison.publishes() || comparison == Comparison::Same;
            assert_eq!(reaches, expected, "{version} {stored_deleted}");
        }
    }
    assert!(!payroll("2024-05-06T07:08:09Z", "a").version.reaches(&stamp(0, "1", Rank::List, false)));
}

#[test]
fn versions_compare_as_numbers_and_keep_their_text() {
    assert!(sequence("9") < sequence("10"));
    assert!(sequence("18446744073709551616") > sequence("18446744073709551615"));
    assert_eq!(sequence("007"), sequence("7"));
    assert_eq!(sequence("0"), sequence("000"));
    assert_eq!(sequence("007").as_str(), "007");
}

#[test]
fn number_is_set_if_it_fits() {
    for (text, number) in [
        ("0", Some(0)),
        ("00", Some(0)),
        ("0042", Some(42)),
        ("9223372036854775807", Some(i64::MAX)),
        ("9223372036854775808", None),
    ] {
        assert_eq!(sequence(text).as_i64(), number, "{text}");
    }
}

#[test]
fn only_digits_are_accepted() {
    for text in ["", "-1", "+1", "1.0", " 1", "1e3", "٣", "0x1"] {
        assert!(SequenceVersion::parse(text).is_err(), "{text}");
    }
}

#[test]
fn comparison_follows_its_table() {
    use {Comparison as C, Rank::*};
    let stored = stamp(1, "10", List, false);
    let deleted = stamp(1, "10", ById, true);
    let cases = [
        (stamp(0, "1", List, false), None, C::First),
        (stamp(1, "11", List, false), Some(&stored), C::Newer),
        (stamp(1, "10", ById, false), Some(&stored), C::HigherRank),
        (stamp(1, "10", List, false), Some(&stored), C::Same),
        (stamp(1, "9", ById, false), Some(&stored), C::Older),
        (stamp(2, "1", List, false), Some(&stored), C::Newer),
        (stamp(0, "99", ById, false), Some(&stored), C::Older),
        (stamp(1, "10", List, true), Some(&stored), C::Newer),
        (stamp(1, "11", ById, true), Some(&stored), C::Newer),
        (stamp(1, "9", ById, true), Some(&stored), C::Older),
        (stamp(1, "10", ById, false), Some(&deleted), C::BehindDelete),
        (stamp(1, "9", ById, false), Some(&deleted), C::BehindDelete),
        (stamp(1, "10", ById, true), Some(&deleted), C::Same),
        (stamp(1, "11", List, false), Some(&deleted), C::Newer),
        (stamp(2, "10", List, false), Some(&deleted), C::Newer),
    ];

    for (candidate, stored, expected) in cases {
        assert_eq!(candidate.against(stored), expected, "{candidate:?} against {stored:?}");
    }
}

#[test]
fn older_reading_never_wins_without_a_version() {
    use Comparison as C;
    let untold = |event_number: &str, content: &str| {
        let event_number = SequenceVersion::parse(event_number).ok();
        Stamp {
            version: Version::content(event_number, content.as_bytes()),
            ..stamp(1, "1", Rank::ById, false)
        }
    };
    let tells = |version: &str, rank| stamp(1, version, rank, false);
    let dead = |stamp: Stamp| Stamp { deleted: true, ..stamp };
    for (candidate, stored, expected) in [
        // The number decides, whether it is the record's or the event's.
        (untold("6", "a"), untold("5", "a"), C::Newer),
        (untold("4", "b"), untold("5", "a"), C::Older),
        (untold("10", "a"), tells("9", Rank::ById), C::Newer),
        (untold("9", "a"), tells("10", Rank::ById), C::Older),
        (tells("10", Rank::ById), untold("9", "a"), C::Newer),
        (tells("9", Rank::ById), untold("10", "a"), C::Older),
        // At the same number content decides between readings without the record's number.
        (untold("5", "a"), untold("5", "a"), C::Same),
        (untold("5", "b"), untold("5", "a"), C::Newer),
        // A reading with the record's number replaces one without, never the reverse.
        (tells("5", Rank::ById), untold("5", "a"), C::HigherRank),
        (untold("5", "a"), tells("5", Rank::ById), C::Same),
        (untold("5", "a"), tells("5", Rank::List), C::Same),
        // No number is below every number.
        (untold("", "a"), untold("0", "b"), C::Older),
        (untold("0", "a"), untold("", "b"), C::Newer),
        (untold("", "a"), untold("", "a"), C::Same),
        (untold("", "a"), untold("", "b"), C::Newer),
        (tells("0", Rank::List), untold("", "a"), C::Newer),
        // Against a delete only a higher number wins.
        (untold("5", "b"), dead(untold("5", "a")), C::BehindDelete),
        (untold("5", "b"), dead(tells("5", Rank::ById)), C::BehindDelete),
        (untold("6", "a"), dead(untold("5", "a")), C::Newer),
        (dead(tells("5", Rank::ById)), untold("5", "a"), C::Newer),
        (dead(untold("5", "a")), untold("5", "a"), C::Newer),
        (dead(untold("5", "a")), dead(untold("5", "a")), C::Same),
        (untold("5", "a"), payroll("2024-05-06T07:08:09Z", "a"), C::Incomparable),
    ] {
        assert_eq!(candidate.against(Some(&stored)), expected, "{candidate:?} against {stored:?}");
    }
}

#[test]
fn reading_without_a_number_gets_the_stored_one() {
    let untold = || Version::content(None, b"new");
    for (stored, version, expected) in [
        (None, "#", Comparison::First),
        (Some(stamp(3, "9", Rank::List, false)), "9#", Comparison::Same),
        (Some(stamp(3, "9", Rank::ById, true)), "9#", Comparison::BehindDelete),
        (Some(payroll("2024-05-06T07:08:09Z", "a")), "2024-05-06T07:08:09Z#", Comparison::Newer),
        (Some(payroll("2024-05-06T07:08:09Z", "new")), "2024-05-06T07:08:09Z#", Comparison::Same),
    ] {
        let read = Stamp::reading(untold(), Rank::List, stored.as_ref());

        assert!(read.version.to_string().starts_with(version), "{read:?}");
        assert_eq!(read.epoch, stored.as_ref().map_or(Epoch(0), |stored| stored.epoch));
        assert_eq!(read.against(stored.as_ref()), expected, "{stored:?}");
    }
    let stored = Stamp::reading(untold(), Rank::List, None);
    assert_eq!(payroll("2024-05-06T07:08:09Z", "a").against(Some(&stored)), Comparison::Newer);
}

#[test]
fn payroll_compares_by_time_then_content() {
    let stored = payroll("2024-05-06T07:08:09.123Z", "a");
    let by_id = Stamp { rank: Rank::ById, ..stored.clone() };

    for (candidate, expected) in [
        (payroll("2024-05-06T07:08:09.124Z", "a"), Comparison::Newer),
        (payroll("2024-05-06T07:08:09.123Z", "b"), Comparison::Newer),
        (payroll("2024-05-06T09:08:09.123+02:00", "a"), Comparison::Same),
        (payroll("2024-05-06T07:08:09.122Z", "b"), Comparison::Older),
        (by_id, Comparison::Same),
        (stamp(0, "5", Rank::List, false), Comparison::Incomparable),
    ] {
        assert_eq!(candidate.against(Some(&stored)), expected, "{candidate:?}");
    }
}

#[test]
fn version_header_parses_back() {
    for version in [
        Version::Sequence(sequence("0042")),
        payroll("2024-05-06T07:08:09.123Z", "a").version,
        Version::content(None, b"a"),
        Version::content(SequenceVersion::parse("0042").ok(), b"a"),
    ] {
        assert_eq!(version.to_string().parse(), Ok(version));
    }
    for text in ["", "x", "2024-05-06T07:08:09Z#12", "yesterday#00000000000000000000000000000000"] {
        assert!(text.parse::<Version>().is_err(), "{text}");
    }
}

#[test]
fn stamp_is_written_as_in_the_fences_topic() {
    let by_id = stamp(0, "12", Rank::ById, false);
    let deleted = stamp(3, "0042", Rank::List, true);
    let company = payroll("2024-05-06T07:08:09.123Z", "a");
    let hash = "ca978112ca1bbdcafac231b39a23dc4d";

    for (stamp, json) in [
        (by_id, r#"{"epoch":0,"version":"12","rank":2,"deleted":false}"#.to_owned()),
        (deleted, r#"{"epoch":3,"version":"0042","rank":1,"deleted":true}"#.to_owned()),
        (
            company,
            format!(r#"{{"epoch":0,"version":"2024-05-06T07:08:09.123Z#{hash}","rank":1,"deleted":false}}"#),
        ),
    ] {
        assert_eq!(serde_json::to_string(&stamp).unwrap(), json);
        let back: Stamp = serde_json::from_str(&json).unwrap();
        assert_eq!(back, stamp);
        assert_eq!(back.version.to_string(), stamp.version.to_string(), "the text as it was sent");
    }
}

#[test]
fn incomparable_stamp_is_refused() {
    for (json, event_number) in [
        (r#"{"epoch":0,"version":"12","rank":3,"deleted":false}"#, "unknown rank `3`"),
        (r#"{"epoch":0,"version":"12","rank":0,"deleted":false}"#, "unknown rank `0`"),
        (r#"{"epoch":0,"version":"twelve","rank":2,"deleted":false}"#, "`twelve` is not a number"),
        (r#"{"epoch":0,"version":"now#1","rank":2,"deleted":false}"#, "version `now#1`"),
        (r#"{"epoch":0,"version":12,"rank":2,"deleted":false}"#, "expected a string"),
        (r#"{"epoch":-1,"version":"12","rank":2,"deleted":false}"#, "expected u64"),
        (r#"{"epoch":0,"version":"12","rank":2}"#, "missing field `deleted`"),
    ] {
        let error = serde_json::from_str::<Stamp>(json).unwrap_err().to_string();
        assert!(error.contains(event_number), "{json}: {error}");
    }
}

proptest! {
    #[test]
    fn text_and_number_agree_on_the_order(left: u64, right: u64, zeros in 0_usize..4) {
        let padded = format!("{}{left}", "0".repeat(zeros));

        prop_assert_eq!(sequence(&padded).cmp(&sequence(&right.to_string())), left.cmp(&right));
    }
}

fn any_version() -> impl Strategy<Value = Version> {
    let number = || proptest::option::of(0_u8..4);
    (number(), any::<bool>(), 0_u8..3).prop_map(|(number, tells, content)| {
        let number = number.map(|number| sequence(&number.to_string()));
        match number {
            Some(number) if tells => Version::Sequence(number),
            event_number => Version::content(event_number, &[content]),
        }
    })
}

proptest! {
    #[test]
    fn published_numbers_of_a_key_never_decrease(readings in proptest::collection::vec((any_version(), any::<bool>()), 1..40)) {
        let mut stored: Option<Stamp> = None;
        for (version, deleted) in readings {
            let read = Stamp::reading(version, Rank::ById, stored.as_ref());
            let read = Stamp { deleted, ..read };
            if !read.against(stored.as_ref()).publishes() {
                continue;
            }
            if let Some(stored) = &stored {
                prop_assert!(read.version.number() >= stored.version.number(), "{read:?} over {stored:?}");
                let revives = stored.deleted && !read.deleted;
                prop_assert!(!revives || read.version.number() > stored.version.number(), "{read:?} over {stored:?}");
            }
            stored = Some(read);
        }
    }
}
