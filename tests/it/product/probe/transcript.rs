//! What a probe sends, prints and saves: GETs only, nothing private, and a transcript that replays to the same report.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use serde_json::Value;
use simulator::{knobs::Knobs, transcript::Transcript};

use super::{CLIENT_SECRET, ProbeScene};
use crate::product::simulator::{Client, KEY, ids};
use crate::support::command::{stderr, stdout, tributary};
use crate::support::secrets::Secrets;

crate::tests! {
    plain nothing_private_is_printed_or_saved;
    plain a_probe_sends_only_a_bounded_number_of_gets;
    plain a_replayed_transcript_gives_the_same_report within 300;
    plain a_transcript_that_cannot_be_read_is_refused;
}

/// Shorter texts occur by chance.
const SHORTEST: usize = 4;

/// All texts and codes of a body that identify someone, and all amounts.
fn private(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            let is_public = ["Enabled", "Template"].contains(&text.as_str())
                || text.contains("T0")
                || text.contains("T1")
                || text.contains("T2");
            if !is_public {
                found.insert(text.clone());
            }
        }
        Value::Number(number) => _ = found.insert(number.to_string()),
        Value::Array(values) => values.iter().for_each(|one| private(one, found)),
        Value::Object(members) => {
            let all = members.iter().filter(|(name, _)| *name != "sequenceVersion");
            all.for_each(|(_, one)| private(one, found));
        }
        _ => {}
    }
}

async fn nothing_private_is_printed_or_saved() {
    let scene =
        ProbeScene::new("probe-private", &[], |settings| settings.knobs.reads.extra_fields = true).await;
    let saved = scene.path("probe.jsonl");
    let login = ["--login", "accounting,payroll", "--simulated", "--save", &saved];
    let table = scene.probe(&login).await;
    fs::remove_file(&saved).unwrap();
    let json = scene.probe(&[&login[..], &["--output", "json"]].concat()).await;
    assert_eq!((table.status.code(), json.status.code()), (Some(0), Some(0)), "{}", stderr(&json));
    let transcript = fs::read_to_string(&saved).unwrap();
    assert_eq!(fs::metadata(&saved).unwrap().permissions().mode() & 0o777, 0o600);

    let client = Client::accounting(&scene.simulator);
    let mut bodies = vec![client.get("/accounting/api/companies?pageNumber=1&pageSize=1000").await.ok()];
    let company = &ids(bodies[0].as_array().unwrap())[0];
    for list in ["customers", "accounts"] {
        let path = format!("/accounting/api/{list}?pageNumber=1&pageSize=1000");
        bodies.push(client.company(company).get(&path).await.ok());
    }
    let payroll = Client::payroll(&scene.simulator);
    bodies.push(payroll.get("/payroll/api/companies?pageNumber=1&pageSize=1000").await.ok());
    let mut hidden = BTreeSet::new();
    bodies.iter().for_each(|body| private(body, &mut hidden));
    hidden.retain(|text| text.chars().count() >= SHORTEST);
    assert!(hidden.len() > 500, "{}", hidden.len());
    let mut secrets = Secrets::default();
    for issued in scene.simulator.provider().identity.issued() {
        secrets.add(&format!("the {} token or code", issued.kind), &issued.token);
    }
    secrets.add("the client secret", CLIENT_SECRET);
    secrets.add("the subscription key", KEY);

    let texts = [stdout(&table), stderr(&table), stdout(&json), stderr(&json), transcript];
    for text in &texts {
        // JSON escapes quotes and line breaks.
        let shows = |one: &&String| {
            text.contains(one.as_str())
                || text.contains(Value::from(one.as_str()).to_string().trim_matches('"'))
        };
        let found: Vec<&String> = hidden.iter().filter(shows).collect();
        assert!(found.is_empty(), "{found:?} in {}", &text[..text.floor_char_boundary(2_000)]);
        assert_eq!(secrets.found_in("the output", text.as_bytes()), Vec::<String>::new());
    }
}

async fn a_probe_sends_only_a_bounded_number_of_gets() {
    let scene = ProbeScene::new("probe-gets", &[], |settings| {
        let reads = &mut settings.knobs.reads;
        (reads.max_page_size, reads.over_max) = (37, simulator::knobs::OverMax::Refuse);
    })
    .await;

    let (_, report) = scene.report("accounting,payroll", &[]).await;

    let requests = scene.simulator.provider().gateway.requests(0, usize::MAX);
    let others: Vec<_> = requests.iter().filter(|(_, request)| request.method != "GET").collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(report.0["requests"].as_u64(), Some(requests.len() as u64));
    assert!((80..=250).contains(&requests.len()), "{}", requests.len());
}

async fn a_replayed_transcript_gives_the_same_report() {
    for (name, knobs) in [("strict", Knobs::default()), ("drawn", Knobs::drawn(7))] {
        let scene =
            ProbeScene::new(&format!("probe-save-{name}"), &[], |settings| settings.knobs = knobs).await;
        let saved = scene.path("probe.jsonl");
        let (code, report) = scene.report("accounting,payroll", &["--save", &saved]).await;
        let transcript = Transcript::parse(&fs::read_to_string(&saved).unwrap()).unwrap();
        let replay = ProbeScene::new(&format!("probe-replay-{name}"), &[], |settings| {
            settings.transcript = Some(Arc::new(transcript));
        })
        .await;

        let (replayed_code, replayed) = replay.report("accounting,payroll", &[]).await;

        assert_eq!((code, replayed_code), (Some(0), Some(0)));
        assert_eq!(report.findings(), replayed.findings(), "{name}");
        assert_eq!(report.0, replayed.0, "{name}");
    }
}

async fn a_transcript_that_cannot_be_read_is_refused() {
    let scene = ProbeScene::new("probe-bad-transcript", &[], |_| {}).await;
    let file = scene.path("bad.jsonl");
    fs::write(&file, "{\"transcript\":1}\n{\"path\":1}\n").unwrap();

    let output = tributary(&["simulate", "--port", "0", "--transcript", &file], &[]).await;

    let said = stderr(&output);
    assert!(output.status.code() == Some(2) && said.contains("--transcript"), "{said}");
    assert!(said.contains("line 2") && said.contains("tributary probe --save"), "{said}");
}
