//! Dead letters as operators use them: listed, shown to the byte, replayed, on a real cluster.

mod scene;

use bytes::Bytes;
use model::{EncodedRecord, Moment, Topic, TopicPrefix};
use scene::{EVENTS, INVOICING, KEY, LetterScene, change, signer};
use serde_json::Value;
use tributary::publish::LetterSigner;

use crate::support::{
    Shared,
    command::{stderr, stdout, tributary},
    place::header,
    topics::noise,
};

crate::tests! {
    real letters_are_listed_newest_last_and_pieces_are_one_letter;
    real letter_is_shown_with_headers_and_exact_bytes;
    real replay_publishes_under_the_original_id;
    real letter_of_one_record_replays_only_that_record;
    real failed_replays_stay_and_set_the_exit_code;
    real missing_letters_and_topics_are_named;
    real forged_and_unsigned_letters_are_not_replayed;
    real letters_of_another_prefix_or_connector_are_not_replayed;
    real letters_under_the_previous_key_are_replayed;
    real unsigned_mark_does_not_hide_a_signed_letter;
    plain invalid_arguments_end_with_exit_code_2;
}

async fn letters_are_listed_newest_last_and_pieces_are_one_letter(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-list").await;
    let headers = scene.accounting();
    let first = scene.write(scene.letter("model::Error::Malformed", &headers, b"{")).await;
    let [one, other] = ["one", "other"].map(|id| scene.pieces(id, 4, &headers, b"eleven byte"));
    let pieces = scene.write(one[0].clone()).await;
    let incomplete = scene.write(other[0].clone()).await;
    // Written twice, as after a lost acknowledgement.
    for piece in one.iter().chain(&one) {
        scene.write(piece.clone()).await;
    }
    let last = scene.write(scene.letter("avro::Error::Encode", &headers, b"{}")).await;

    let table = scene.run(&["list"]).await;
    let listed = scene.run(&["list", "--json"]).await;
    let newest = scene.run(&["list", "--limit", "1"]).await;
    let by_reason = scene.run(&["list", "--reason", "malformed", "--json"]).await;
    let long_ago = scene.run(&["list", "--since", "2020-01-01T00:00:00Z", "--json"]).await;
    let none = scene.run(&["list", "--since", "0s", "--json"]).await;

    assert!(lines(&listed).iter().all(|one| one["signature"] == "signed"), "{}", stdout(&listed));
    let printed = stdout(&table);
    assert_eq!(table.status.code(), Some(0), "{printed}{}", stderr(&table));
    let places: Vec<&str> = printed.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(places, [&first, &pieces, &incomplete, &last], "{printed}");
    let line = |place: &str| printed.lines().find(|line| line.starts_with(place)).unwrap();
    assert!(line(&pieces).contains(" 11 ") && line(&pieces).ends_with("3 of 3"), "{printed}");
    assert!(line(&incomplete).ends_with("1 of 3  incomplete"), "{printed}");
    let all = lines(&listed);
    assert_eq!(all.len(), 4);
    assert_eq!(all[0]["reason"], "model::Error::Malformed");
    assert_eq!((&all[0]["connector"], &all[0]["stage"]), (&"hooks".into(), &"TASK_POLL".into()));
    assert_eq!((&all[1]["complete"], &all[2]["complete"]), (&true.into(), &false.into()));
    let printed = stdout(&newest);
    assert!(printed.contains(&last) && !printed.contains(&format!("{first} ")), "{printed}");
    assert!(printed.contains("3 older letters are not shown"), "{printed}");
    assert_eq!(lines(&by_reason).iter().map(|one| one["place"].clone()).collect::<Vec<_>>(), [first]);
    assert_eq!((lines(&long_ago).len(), lines(&none).len()), (4, 0));
}

async fn letter_is_shown_with_headers_and_exact_bytes(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-show").await;
    let headers = scene.accounting();
    let binary = b"\x00\xff not text\r\n";
    let plain = scene.write(scene.letter("model::Error::Malformed", &headers, b"{\x1b[2J broken\n")).await;
    let odd = scene.write(scene.letter("model::Error::Malformed", &headers, binary)).await;
    let large = noise(3_000_000);
    let mut places = Vec::new();
    for piece in scene.pieces("large", 1 << 19, &headers, &large) {
        places.push(scene.write(piece).await);
    }
    let torn = scene.write(scene.pieces("torn", 2, &headers, b"torn")[0].clone()).await;

    let text = scene.run(&["show", &plain]).await;
    let raw = scene.run(&["show", &odd, "--raw"]).await;
    let json = scene.run(&["show", &odd, "--json"]).await;
    let joined = scene.run(&["show", &places[0], "--raw"]).await;
    let by_later_piece = scene.run(&["show", &places[3], "--raw"]).await;
    let incomplete = scene.run(&["show", &torn]).await;

    let printed = stdout(&text);
    assert_eq!(text.status.code(), Some(0), "{printed}{}", stderr(&text));
    for expected in [
        "__connect.errors.exception.class.name: model::Error::Malformed",
        "__connect.errors.exception.message: what was wrong then",
        "tributary.received.at: 1790000000000000",
        "\"connector\":\"hooks\"",
        "signature: signed\n",
        "\n\n{\\u{1b}[2J broken\n",
    ] {
        assert!(printed.contains(expected), "{expected} is not in: {printed}");
    }
    assert!(!printed.contains('\u{1b}'), "it would clear the screen");
    assert_eq!(raw.stdout, binary);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["signature"], "signed");
    assert_eq!((&json["body"], &json["bodyBase64"]), (&Value::Null, &"AP8gbm90IHRleHQNCg==".into()));
    assert!(joined.stdout == large && by_later_piece.stdout == large, "{} bytes", joined.stdout.len());
    assert_eq!(incomplete.status.code(), Some(1));
    assert!(stderr(&incomplete).contains("piece 2 of 2 missing"), "{}", stderr(&incomplete));
}

async fn replay_publishes_under_the_original_id(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-replay").await;
    let headers = scene.accounting();
    let whole = scene.write(scene.letter("model::Error", &headers, change("d-1", "c-7").as_bytes())).await;
    let cut = scene.pieces("cut", 200, &headers, change("d-2", "c-7").as_bytes());
    let [first, others @ ..] = cut.as_slice() else { panic!("not cut") };
    let pieces = scene.write(first.clone()).await;
    for piece in others.iter().chain(&cut) {
        scene.write(piece.clone()).await;
    }
    let events = scene.place.name(EVENTS);

    let dry = scene.run(&["replay", "--all", "--dry-run"]).await;
    let untouched = scene.place.read(&events).await.len();
    let one = scene.run(&["replay", &whole]).await;
    let rest = scene.run(&["replay", "--all"]).await;
    let nothing = scene.run(&["replay", "--all"]).await;
    let skipped = scene.run(&["replay", &pieces]).await;
    let listed = scene.run(&["list"]).await;
    let published = scene.place.read(&events).await;
    let again = scene.run(&["replay", &whole, "--again"]).await;

    for output in [&dry, &one, &rest, &nothing, &skipped, &again] {
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(output), stderr(output));
    }
    assert!(stdout(&dry).contains("2 would be replayed, 0 stay"), "{}", stdout(&dry));
    assert_eq!(untouched, 0, "a dry run has published");
    let line = format!("{whole}: published: {events}, key c-7, tributary.id d-1\n");
    assert!(stdout(&one).contains(&line), "{}", stdout(&one));
    assert!(stdout(&rest).contains("1 replayed, 0 stay, 1 were replayed before"), "{}", stdout(&rest));
    assert!(stdout(&nothing).contains("0 replayed, 0 stay, 2 were replayed before"), "{}", stdout(&nothing));
    assert!(stdout(&skipped).contains("replayed before; --again repeats it"), "{}", stdout(&skipped));
    let printed = stdout(&listed);
    assert_eq!(printed.lines().filter(|line| line.ends_with(" replayed")).count(), 2, "{printed}");
    assert_eq!(printed.lines().count(), 3, "marks and pieces are not letters: {printed}");
    let ids: Vec<_> = published.iter().map(|record| header(record, "tributary.id").unwrap()).collect();
    assert_eq!(ids, ["d-1", "d-2"]);
    assert!(published.iter().all(|record| record.key.as_deref() == Some(b"c-7")));
    assert!(published.iter().all(|record| header(record, "tributary.origin") == Some("webhook")));
    // The delivery is weeks old: with its time Kafka would remove the records soon.
    let an_hour_ago = Moment::now().micros() / 1_000 - 3_600_000;
    assert!(published.iter().all(|record| record.timestamp_ms.is_some_and(|at| at > an_hour_ago)));
    assert_eq!(scene.place.read(&events).await.len(), 3);
}

async fn letter_of_one_record_replays_only_that_record(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-one").await;
    let body = r#"{"Id":"x","Notifications":[{"Entity":"Customer","TenantId":"7","EntityId":"1"},
        {"Entity":"Customer","TenantId":"7","EntityId":"2"}]}"#;
    let all = scene.write(scene.letter("avro::Error::Encode", &scene.invoicing(), body.as_bytes())).await;
    let events = scene.place.name(INVOICING);

    let both = scene.run(&["replay", &all]).await;
    let published = scene.place.read(&events).await;
    let ids: Vec<String> =
        published.iter().map(|record| header(record, "tributary.id").unwrap().to_owned()).collect();
    let mut headers = scene.invoicing();
    headers.push(("tributary.id", Bytes::from(ids[1].clone())));
    let second = scene.write(scene.letter("avro::Error::Encode", &headers, body.as_bytes())).await;
    let one = scene.run(&["replay", &second]).await;

    assert_eq!((both.status.code(), one.status.code()), (Some(0), Some(0)), "{}", stdout(&one));
    let after = scene.place.read(&events).await;
    let after: Vec<_> = after.iter().map(|record| header(record, "tributary.id").unwrap()).collect();
    assert_eq!(after, [&ids[0], &ids[1], &ids[1]]);
}

async fn failed_replays_stay_and_set_the_exit_code(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-failing").await;
    let headers = scene.accounting();
    let good = change("d-1", "c-7");
    let broken = scene.write(scene.letter("model::Error::Malformed", &headers, b"{ broken")).await;
    // Random text: twice the size that the topic accepts, even compressed.
    let digits: String = noise(1_500_000).iter().map(|byte| format!("{byte:02x}")).collect();
    let huge = good.replace("a user", &digits);
    let large = scene.write(scene.letter("kafka::Error::RecordRefused", &headers, huge.as_bytes())).await;
    let foreign = scene.write(scene.letter("api::Error", &Vec::new(), good.as_bytes())).await;
    let torn = scene.write(scene.pieces("torn", 400, &headers, good.as_bytes())[0].clone()).await;
    let sound = scene.write(scene.letter("model::Error", &headers, good.as_bytes())).await;

    let output = scene.run(&["replay", "--all"]).await;
    let listed = scene.run(&["list", "--json"]).await;

    let printed = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}{}", stderr(&output));
    for (place, expected) in [
        (&broken, "stays: parse AccountingEvent: broken JSON at line 1"),
        (&large, "stays: publish to topic"),
        (&foreign, "stays: it cannot be replayed: it was not received as a webhook"),
        (&torn, "stays: piece 2"),
        (&sound, "published: "),
    ] {
        assert!(printed.contains(&format!("{place}: {expected}")), "{expected} is not in: {printed}");
    }
    assert!(printed.ends_with("1 replayed, 4 stay, 0 were replayed before\n"), "{printed}");
    let replayed: Vec<_> = lines(&listed).into_iter().filter(|one| one["replayed"] == true).collect();
    assert_eq!(replayed.len(), 1);
    assert_eq!(replayed[0]["place"], sound);
}

async fn missing_letters_and_topics_are_named(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-absent").await;
    let config = scene.config();
    let prefix = scene.place.prefix.to_string();

    let shown = scene.run(&["show", "0@7"]).await;
    let replayed = scene.run(&["replay", "99@7"]).await;
    let empty = scene.run(&["list"]).await;
    let by_prefix = scene.run_alone(&["list", "--config", config, "--prefix", &prefix]).await;
    let other = scene.run_alone(&["list", "--config", config, "--prefix", "no-such"]).await;
    let unchosen = scene.run_alone(&["list", "--config", config]).await;
    let unknown = scene.run_alone(&["list", "--config", config, "--connector", "no-such"]).await;

    assert_eq!(shown.status.code(), Some(1));
    assert!(stderr(&shown).contains("no letter at 0@7"), "{}", stderr(&shown));
    assert_eq!(replayed.status.code(), Some(1));
    assert!(stdout(&replayed).contains("no letter at 99@7"), "{}", stdout(&replayed));
    assert_eq!((empty.status.code(), stdout(&empty).lines().count()), (Some(0), 1));
    assert_eq!(by_prefix.status.code(), Some(0), "{}", stderr(&by_prefix));
    assert_eq!(other.status.code(), Some(1));
    assert!(stderr(&other).contains("topic no-such.dead-letters does not exist"), "{}", stderr(&other));
    for (output, expected) in
        [(unchosen, "--topic: is missing"), (unknown, "--connector = no-such: is neither")]
    {
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

async fn forged_and_unsigned_letters_are_not_replayed(shared: &'static Shared) {
    let mut scene = LetterScene::set(shared, "letters-forged").await;
    let (headers, body) = (scene.accounting(), change("d-1", "c-7"));
    let letter = |scene: &LetterScene| scene.letter("model::Error", &headers, body.as_bytes());
    let mut tampered = letter(&scene);
    tampered.value = Some(Bytes::from(change("d-1", "c-8")));
    let mut redirected = letter(&scene);
    let found = redirected.headers.iter_mut().find(|(name, _)| *name == "tributary.received.at").unwrap();
    found.1 = Bytes::from_static(b"1");
    let cut = scene.pieces("cut", 200, &headers, body.as_bytes());
    let mut piece = cut[1].clone();
    piece.value = Some(Bytes::from_static(b"another piece"));
    scene.change(|letters| letters.signer = LetterSigner::default());
    let unsigned = scene.write(letter(&scene)).await;
    scene.change(|letters| letters.signer = signer("a key that no worker of this cluster has"));
    let stranger = scene.write(letter(&scene)).await;
    let (tampered, redirected) = (scene.write(tampered).await, scene.write(redirected).await);
    scene.write(piece).await;
    let sound = scene.write(cut[0].clone()).await;
    for piece in &cut[1..] {
        scene.write(piece.clone()).await;
    }

    let listed = scene.run(&["list", "--json"]).await;
    let shown = scene.run(&["show", &tampered]).await;
    let refused = scene.run(&["replay", "--all"]).await;
    let published = scene.place.read(&scene.place.name(EVENTS)).await.len();
    let trusting = scene.run(&["replay", "--all", "--trust-unsigned"]).await;

    let signatures: Vec<(String, String)> = lines(&listed)
        .iter()
        .map(|one| ["place", "signature"].map(|name| one[name].as_str().unwrap().to_owned()).into())
        .collect();
    for (place, signature) in [
        (&unsigned, "unsigned"),
        (&stranger, "unknown-key"),
        (&tampered, "forged"),
        (&redirected, "forged"),
        (&sound, "signed"),
    ] {
        assert!(signatures.contains(&(place.clone(), signature.to_owned())), "{place}: {signatures:?}");
    }
    assert!(stdout(&shown).contains("signature: forged\n"), "{}", stdout(&shown));
    let printed = stdout(&refused);
    assert_eq!(refused.status.code(), Some(1), "{printed}{}", stderr(&refused));
    let topic = scene.place.name(Topic::DeadLetters);
    for (place, expected) in [
        (&unsigned, "add --trust-unsigned"),
        (&stranger, "which is neither grant.encryption.key nor its previous one"),
        (&tampered, "its signature does not match its content"),
        (&redirected, "its signature does not match its content"),
    ] {
        let line =
            printed.lines().find(|line| line.starts_with(&format!("{place}: stays: {topic}, partition")));
        assert!(line.is_some_and(|line| line.contains(expected)), "{place} {expected}: {printed}");
    }
    assert!(
        printed.contains(&format!("{sound}: published")),
        "a forged piece blocks a signed letter: {printed}"
    );
    assert_eq!(published, 1, "{printed}");
    let printed = stdout(&trusting);
    assert_eq!(trusting.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("{unsigned}: published")), "{printed}");
    for place in [&stranger, &tampered, &redirected] {
        assert!(printed.contains(&format!("{place}: stays")), "{place}: {printed}");
    }
    assert_eq!(scene.place.read(&scene.place.name(EVENTS)).await.len(), 2, "{printed}");
}

async fn letters_of_another_prefix_or_connector_are_not_replayed(shared: &'static Shared) {
    let mut scene = LetterScene::set(shared, "letters-foreign").await;
    let body = change("d-1", "c-7");
    let other = TopicPrefix::new(format!("{}-other", scene.place.prefix)).unwrap();
    let own = scene.write(scene.letter("model::Error", &scene.accounting(), body.as_bytes())).await;
    scene.change(|letters| letters.connector = "second".to_owned());
    let second = scene.write(scene.letter("model::Error", &scene.accounting(), body.as_bytes())).await;
    scene.change(|letters| letters.prefix = other.clone());
    let foreign = scene.write(scene.letter("model::Error", &scene.accounting(), body.as_bytes())).await;
    // Unsigned and trusted, it still publishes nowhere else.
    scene.change(|letters| letters.signer = LetterSigner::default());
    let unsigned = scene.write(scene.letter("model::Error", &scene.accounting(), body.as_bytes())).await;
    let connector = scene.connector("hooks");

    let for_connector = scene.run(&["replay", "--all", "--trust-unsigned", "--connector", &connector]).await;
    let for_prefix = scene.run(&["replay", "--all", "--trust-unsigned"]).await;

    let printed = stdout(&for_connector);
    assert_eq!(for_connector.status.code(), Some(1), "{printed}{}", stderr(&for_connector));
    assert!(printed.contains(&format!("{own}: published")), "{printed}");
    assert!(
        printed.contains("it belongs to connector second, and this replay publishes for hooks alone"),
        "{printed}"
    );
    for place in [&second, &foreign, &unsigned] {
        assert!(printed.contains(&format!("{place}: stays")), "{place}: {printed}");
    }
    let printed = stdout(&for_prefix);
    assert_eq!(for_prefix.status.code(), Some(1), "{printed}{}", stderr(&for_prefix));
    assert!(printed.contains(&format!("{second}: published")), "any connector of the prefix: {printed}");
    for place in [&foreign, &unsigned] {
        let line =
            printed.lines().find(|line| line.starts_with(&format!("{place}: stays"))).unwrap_or_default();
        assert!(line.contains(&format!("belongs to topic.prefix {other}")), "{place}: {printed}");
    }
    let counts = scene.place.admin.partition_counts(&[&EVENTS.name(&other)]).await.unwrap();
    assert!(counts.is_empty(), "a letter created a topic outside the prefix");
}

async fn letters_under_the_previous_key_are_replayed(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-rotated").await;
    let body = change("d-1", "c-7");
    let place = scene.write(scene.letter("model::Error", &scene.accounting(), body.as_bytes())).await;
    let new = format!("grant.encryption.key={}\n", "k".repeat(40));

    scene.set_keys(&new);
    let unknown = scene.run(&["replay", &place]).await;
    scene.set_keys("");
    let keyless = scene.run(&["replay", &place, "--trust-unsigned"]).await;
    scene.set_keys(&format!("{new}grant.encryption.key.previous={KEY}\n"));
    let known = scene.run(&["replay", &place]).await;
    let again = scene.run(&["replay", "--all"]).await;

    for refused in [&unknown, &keyless] {
        assert_eq!(refused.status.code(), Some(1), "{}", stdout(refused));
        assert!(stdout(refused).contains("set grant.encryption.key.previous"), "{}", stdout(refused));
    }
    assert_eq!(known.status.code(), Some(0), "{}{}", stdout(&known), stderr(&known));
    assert!(stdout(&again).contains("1 were replayed before"), "{}", stdout(&again));
}

async fn unsigned_mark_does_not_hide_a_signed_letter(shared: &'static Shared) {
    let scene = LetterScene::set(shared, "letters-marked").await;
    let body = change("d-1", "c-7");
    let letter = scene.letter("model::Error", &scene.accounting(), body.as_bytes());
    let partition = letter.partition;
    let place = scene.write(letter).await;
    let mark = EncodedRecord {
        topic: scene.place.name(Topic::DeadLetters).into(),
        partition,
        key: Bytes::from_static(b"hooks"),
        value: None,
        headers: vec![("tributary.replayed", Bytes::from(place.clone()))],
        timestamp_ms: None,
    };
    scene.write(mark).await;

    let listed = scene.run(&["list", "--json"]).await;
    let replayed = scene.run(&["replay", "--all"]).await;

    assert_eq!(lines(&listed)[0]["replayed"], false, "{}", stdout(&listed));
    assert!(stdout(&replayed).contains(&format!("{place}: published")), "{}", stdout(&replayed));
}

async fn invalid_arguments_end_with_exit_code_2() {
    for arguments in [
        &["list", "--prefix", "a", "--connector", "b"][..],
        &["list", "--since", "yesterday"],
        &["list", "--limit", "0"],
        &["list", "--prefix", "a b", "--config", "/no/such/file"],
        &["show", "7"],
        &["show", "0@1", "--raw", "--json"],
        &["replay"],
        &["replay", "0@1", "--all"],
        &["replay", "--all", "--reason", "x"],
    ] {
        let output = tributary(&[&["dead-letters"], arguments].concat(), &[]).await;

        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}

fn lines(output: &std::process::Output) -> Vec<Value> {
    let text = stdout(output);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}")))
        .collect()
}
