//! Connectors declared by files, on real Kafka: each change is applied once, by any worker, and edits by REST are kept.

mod place;
mod run;

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use self::place::{DECLARATIONS, DeclaredFiles, entry};
use crate::product::rest::worker::{Answer, SECRET};
use crate::support::harness::Test;
use crate::support::{Result, Shared, breakable};

pub(crate) fn tests() -> Vec<Test> {
    [own::tests(), run::tests()].into_iter().flatten().collect()
}

mod own {
    use super::*;

    crate::tests! {
        real file_is_applied_at_start_with_its_references_unresolved;
        real rest_edit_survives_restarts_until_the_file_changes;
        real one_of_two_workers_writes_each_file_change;
        real stale_file_does_not_restore_old_content;
        real deleted_connector_returns_only_when_its_file_changes;
        real connector_outlives_its_file_until_it_is_deleted_too;
        real bad_file_is_reported_without_secrets_and_not_applied;
        real two_files_with_one_name_are_refused_with_both_named;
        real mount_that_swaps_its_links_is_followed;
        real connector_equal_to_its_file_is_not_rewritten;
        real worker_without_files_shows_declarations_of_others;
        disturbing file_changed_during_an_outage_is_applied_afterwards within 240;
    }

    async fn file_is_applied_at_start_with_its_references_unresolved(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-start");
        place.write("secret", format!("key={SECRET}\n"));
        let reference = format!("${{file:{}:key}}", place.path("secret").display());
        let mut document = place.document("a", "client");
        document["initial_state"] = json!("PAUSED");
        document["config"]["provider.subscription.key"] = json!(reference);
        document["config"]["oauth.client.secret"] = json!(reference);
        place.write("a.json", document.to_string());

        let worker = place.worker().await;
        let listed = worker.until_state("a", "in sync").await;

        assert_eq!(listed, json!({"name": "a", "file": "a.json", "state": "in sync"}));
        let mut expected = document["config"].clone();
        expected["name"] = json!("a");
        assert_eq!(worker.get("/connectors/a/config").await.body, expected);
        let records = place.records().await;
        let shown: Vec<_> = records.iter().map(|(key, _, ends)| (key.as_str(), *ends)).collect();
        assert_eq!(shown, [("connector-a", false), ("target-state-a", false), ("declared-a", true)]);
        let all = records.iter().filter_map(|(_, value, _)| value.clone()).collect::<String>();
        assert!(all.contains("${file:") && all.contains("PAUSED") && !all.contains(SECRET), "{all}");
        let stored: Value = serde_json::from_str(records[2].1.as_ref().unwrap()).unwrap();
        assert_eq!(stored["file"], "a.json");
        assert!(stored["hash"].as_str().unwrap().len() == 64 && stored.as_object().unwrap().len() == 2);
    }

    async fn rest_edit_survives_restarts_until_the_file_changes(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-edit");
        place.declare("a", "file");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let patched =
            worker.ask("PATCH", "/connectors/a/config", Some(json!({"oauth.client.id": "rest"}))).await;
        worker.until_state("a", "edited").await;
        drop(worker);
        // The same content, formatted differently.
        let mut same = place.document("a", "file");
        same["config"]["tasks.max"] = json!(2);
        same["_comment"] = json!("formatted");
        place.write("a.json", format!("{same:#}"));
        let worker = place.worker().await;
        worker.has_checked(&place).await;
        let kept = worker.get("/connectors/a/config").await;
        let listed = worker.get(DECLARATIONS).await;
        place.declare("a", "file again");
        worker.until_client("a", "file again").await;

        assert_eq!(patched.status, 200, "{patched:?}");
        assert_eq!(kept.body["oauth.client.id"], "rest");
        assert_eq!(*entry(&listed, "a"), json!({"name": "a", "file": "a.json", "state": "edited"}));
        worker.until_state("a", "in sync").await;
        assert_eq!(place.written(&["connector-a", "declared-a"]).await, [3, 2]);
    }

    async fn one_of_two_workers_writes_each_file_change(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-pair");
        let names = ["a", "b", "c", "d"];
        for name in names {
            place.declare(name, "0");
        }
        let (one, two) = tokio::join!(place.worker(), place.worker());

        for round in ["0", "1", "2"] {
            for name in names {
                place.declare(name, round);
            }
            for worker in [&one, &two] {
                for name in names {
                    worker.until_client(name, round).await;
                    worker.until_state(name, "in sync").await;
                }
            }
        }
        one.has_checked(&place).await;
        two.has_checked(&place).await;

        let keys = names.map(|name| [format!("connector-{name}"), format!("declared-{name}")]);
        let keys: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
        assert_eq!(place.written(&keys).await, [3; 8], "{keys:?}");
    }

    async fn stale_file_does_not_restore_old_content(shared: &'static Shared) {
        let early = DeclaredFiles::new(shared.bootstrap(), "declared-early");
        let late = early.beside("declared-late");
        early.declare("a", "old");
        late.declare("a", "old");
        let (first, second) = (early.worker().await, late.worker().await);
        first.until_state("a", "in sync").await;
        second.until_state("a", "in sync").await;

        early.declare("a", "new");
        first.until_client("a", "new").await;
        // The two records of the edit may be read one after the other: with only the first it looks like an edit by REST.
        let behind =
            second.until_entry("a", |entry| entry["state"] == "edited" && entry["message"].is_string()).await;
        second.has_checked(&late).await;
        let kept = second.get("/connectors/a/config").await;
        late.declare("a", "new");
        second.until_state("a", "in sync").await;

        assert!(behind["message"].as_str().unwrap().contains("other content"), "{behind}");
        assert_eq!(kept.body["oauth.client.id"], "new");
        assert_eq!(early.written(&["connector-a", "declared-a"]).await, [2, 2]);
    }

    async fn deleted_connector_returns_only_when_its_file_changes(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-deleted");
        place.declare("a", "1");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let deleted = worker.ask("DELETE", "/connectors/a", None).await;
        worker.until_state("a", "deleted").await;
        drop(worker);
        let worker = place.worker().await;
        worker.has_checked(&place).await;
        let listed = worker.get(DECLARATIONS).await;
        let absent = worker.get("/connectors/a").await;
        place.declare("a", "2");
        worker.until_client("a", "2").await;

        assert_eq!((deleted.status, absent.status), (204, 404));
        assert_eq!(entry(&listed, "a")["state"], "deleted");
        worker.until_state("a", "in sync").await;
    }

    async fn connector_outlives_its_file_until_it_is_deleted_too(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-removed");
        for name in ["a", "b", "other"] {
            place.declare(name, "1");
        }
        let worker = place.worker().await;
        worker.until_state("other", "in sync").await;

        fs::remove_file(place.path("a.json")).unwrap();
        worker.until_state("a", "file removed").await;
        let there = worker.get("/connectors/a").await;
        place.declare("a", "1");
        worker.until_state("a", "in sync").await;
        let written = place.written(&["connector-a", "declared-a"]).await;
        // First the file, then the connector; then the reverse.
        fs::remove_file(place.path("a.json")).unwrap();
        worker.until_state("a", "file removed").await;
        worker.ask("DELETE", "/connectors/a", None).await;
        worker.until(DECLARATIONS, |answer| entry(answer, "a").is_null()).await;
        worker.ask("DELETE", "/connectors/b", None).await;
        worker.until_state("b", "deleted").await;
        fs::remove_file(place.path("b.json")).unwrap();
        worker.until(DECLARATIONS, |answer| entry(answer, "b").is_null()).await;
        let tombs = place.records().await;
        place.declare("a", "1");
        worker.until_state("a", "in sync").await;

        assert_eq!(there.status, 200);
        assert_eq!(written, [1, 1], "the same file, put back, changes nothing");
        for key in ["declared-a", "declared-b"] {
            assert!(
                tombs.iter().any(|(found, value, _)| found == key && value.is_none()),
                "{key}: {tombs:?}"
            );
        }
        assert_eq!(worker.get("/connectors/a").await.status, 200, "a file put back later is a new one");
    }

    async fn bad_file_is_reported_without_secrets_and_not_applied(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-bad");
        place.declare("a", "good");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let text = place.document("a", "half").to_string();
        place.write("a.json", &text[..text.len() - 5]);
        let half = worker.until_state("a", "refused").await;
        let mut invalid = place.document("a", "invalid");
        invalid["config"]["page.size"] = json!("many");
        place.write("a.json", invalid.to_string());
        let listed = worker
            .until(DECLARATIONS, |answer| {
                entry(answer, "a")["message"].as_str().is_some_and(|message| message.contains("page.size"))
            })
            .await;
        place.write("b.json", r#"{"name": "b", "config": {"connector.class": "Unknown"}}"#);
        let unknown = worker.until_state("b", "refused").await;
        let kept = worker.get("/connectors/a/config").await;
        place.declare("a", "corrected");
        worker.until_client("a", "corrected").await;

        assert!(half["message"].as_str().unwrap().contains("is not JSON"), "{half}");
        assert_eq!(entry(&listed, "a")["state"], "refused");
        assert!(unknown["message"].as_str().unwrap().contains("Failed to find any class"), "{unknown}");
        for shown in [&half, &listed.body, &unknown] {
            assert!(!shown.to_string().contains(SECRET), "{shown}");
        }
        assert_eq!(kept.body["oauth.client.id"], "good");
        worker.until_state("a", "in sync").await;
        assert_eq!(worker.get("/connectors/b").await.status, 404);
    }

    async fn two_files_with_one_name_are_refused_with_both_named(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-twice");
        place.declare("a", "1");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        place.write("other.json", place.document("a", "2").to_string());
        let refused = worker.until_state("a", "refused").await;
        let kept = worker.get("/connectors/a/config").await;
        fs::remove_file(place.path("a.json")).unwrap();
        worker.until_client("a", "2").await;

        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("a.json") && message.contains("other.json"), "{message}");
        assert_eq!(kept.body["oauth.client.id"], "1");
    }

    async fn mount_that_swaps_its_links_is_followed(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-mount");
        for (version, client) in [("..v1", "1"), ("..v2", "2")] {
            fs::create_dir(place.path(version)).unwrap();
            place.write(&format!("{version}/a.json"), place.document("a", client).to_string());
        }
        symlink("..v1", place.path("..data")).unwrap();
        symlink("..data/a.json", place.path("a.json")).unwrap();
        let worker = place.worker().await;
        worker.until_client("a", "1").await;
        worker.has_checked(&place).await;

        symlink("..v2", place.path("..data_tmp")).unwrap();
        fs::rename(place.path("..data_tmp"), place.path("..data")).unwrap();
        fs::remove_dir_all(place.path("..v1")).unwrap();

        worker.until_client("a", "2").await;
        worker.until_state("a", "in sync").await;
        assert_eq!(place.written(&["connector-a"]).await, [2]);
    }

    async fn connector_equal_to_its_file_is_not_rewritten(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-same");
        let worker = place.worker().await;
        let config = place.document("a", "1")["config"].clone();
        worker.ask("PUT", "/connectors/a/config", Some(config)).await;

        place.declare("a", "1");
        worker.until_state("a", "in sync").await;

        assert_eq!(
            place.written(&["connector-a", "declared-a"]).await,
            [1, 1],
            "a new record would make concurrent edits stale"
        );
    }

    async fn worker_without_files_shows_declarations_of_others(shared: &'static Shared) {
        let place = DeclaredFiles::new(shared.bootstrap(), "declared-none");
        let alone = place.group.worker().await;
        let nothing = alone.get(DECLARATIONS).await;
        place.declare("a", "1");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let listed = alone.until(DECLARATIONS, |answer| entry(answer, "a")["state"] == "in sync").await;
        worker.ask("PATCH", "/connectors/a/config", Some(json!({"oauth.client.id": "2"}))).await;
        alone.until(DECLARATIONS, |answer| entry(answer, "a")["state"] == "edited").await;
        let posted = alone.ask("POST", DECLARATIONS, None).await;

        assert_eq!((nothing.status, nothing.body), (200, json!([])));
        assert_eq!(listed.body, json!([{"name": "a", "file": "a.json", "state": "in sync"}]));
        assert_eq!(posted.status, 405);
    }

    async fn file_changed_during_an_outage_is_applied_afterwards() -> Result<()> {
        let broker = breakable::take().await?;
        let place = DeclaredFiles::new(&broker.bootstrap(), "declared-outage");
        place.declare("a", "1");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        broker.pause()?;
        place.declare("a", "2");
        place.declare("b", "1");
        let is_pending = |answer: &Answer| {
            ["a", "b"].iter().all(|name| {
                let message = entry(answer, name)["message"].as_str().unwrap_or_default();
                entry(answer, name)["state"] == "pending" && message.contains("write the change")
            })
        };
        worker.until(DECLARATIONS, is_pending).await;
        broker.resume()?;

        worker.until_client("a", "2").await;
        worker.until_state("b", "in sync").await;
        worker.has_checked(&place).await;
        assert_eq!(place.written(&["connector-a", "connector-b"]).await, [2, 1]);
        Ok(())
    }
}
