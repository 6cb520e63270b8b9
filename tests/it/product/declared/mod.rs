//! Connectors that files declare, on real Kafka: applied once, whoever looks, and edits by REST kept.

mod place;
mod run;

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use self::place::{DECLARATIONS, Place, entry};
use crate::product::rest::worker::{Answer, SECRET};
use crate::support::harness::Test;
use crate::support::{Result, Shared, breakable};

pub(crate) fn tests() -> Vec<Test> {
    [own::tests(), run::tests()].into_iter().flatten().collect()
}

mod own {
    use super::*;

    crate::tests! {
        real a_file_is_applied_at_start_in_one_transaction_and_its_references_stay_references;
        real an_edit_by_rest_stays_over_a_restart_until_the_file_changes;
        real of_two_workers_with_the_same_files_one_writes_each_change;
        real a_worker_whose_file_lags_behind_does_not_put_the_old_content_back;
        real a_connector_that_was_deleted_by_rest_comes_back_only_when_its_file_changes;
        real a_connector_goes_on_without_its_file_and_is_forgotten_once_it_is_deleted_too;
        real a_bad_file_is_told_without_its_secrets_and_what_was_there_stays;
        real two_files_with_one_name_are_refused_with_both_named;
        real a_mount_that_swaps_its_links_is_followed;
        real a_connector_that_is_as_declared_already_is_not_written_again;
        real a_worker_without_files_tells_what_others_have_declared;
        disturbing a_file_that_changes_while_kafka_is_away_is_applied_when_it_is_back within 240;
    }

    async fn a_file_is_applied_at_start_in_one_transaction_and_its_references_stay_references(
        shared: &'static Shared,
    ) {
        let place = Place::new(shared.bootstrap(), "declared-start");
        place.write("secret", format!("key={SECRET}\n"));
        let reference = format!("${{file:{}:key}}", place.path("secret").display());
        let mut document = place.document("a", "client");
        document["initial_state"] = json!("PAUSED");
        document["config"]["provider.subscription.key"] = json!(reference);
        document["config"]["oauth.client.secret"] = json!(reference);
        place.write("a.json", document.to_string());

        let worker = place.worker().await;
        let told = worker.until_state("a", "in sync").await;

        assert_eq!(told, json!({"name": "a", "file": "a.json", "state": "in sync"}));
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

    async fn an_edit_by_rest_stays_over_a_restart_until_the_file_changes(shared: &'static Shared) {
        let place = Place::new(shared.bootstrap(), "declared-edit");
        place.declare("a", "file");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let patched =
            worker.ask("PATCH", "/connectors/a/config", Some(json!({"oauth.client.id": "rest"}))).await;
        worker.until_state("a", "edited").await;
        drop(worker);
        // The same in other words.
        let mut same = place.document("a", "file");
        same["config"]["tasks.max"] = json!(2);
        same["_comment"] = json!("formatted");
        place.write("a.json", format!("{same:#}"));
        let worker = place.worker().await;
        worker.has_looked(&place).await;
        let kept = worker.get("/connectors/a/config").await;
        let told = worker.get(DECLARATIONS).await;
        place.declare("a", "file again");
        worker.until_client("a", "file again").await;

        assert_eq!(patched.status, 200, "{patched:?}");
        assert_eq!(kept.body["oauth.client.id"], "rest");
        assert_eq!(*entry(&told, "a"), json!({"name": "a", "file": "a.json", "state": "edited"}));
        worker.until_state("a", "in sync").await;
        assert_eq!(place.written(&["connector-a", "declared-a"]).await, [3, 2]);
    }

    async fn of_two_workers_with_the_same_files_one_writes_each_change(shared: &'static Shared) {
        let place = Place::new(shared.bootstrap(), "declared-pair");
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
        one.has_looked(&place).await;
        two.has_looked(&place).await;

        let keys = names.map(|name| [format!("connector-{name}"), format!("declared-{name}")]);
        let keys: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
        assert_eq!(place.written(&keys).await, [3; 8], "{keys:?}");
    }

    async fn a_worker_whose_file_lags_behind_does_not_put_the_old_content_back(shared: &'static Shared) {
        let early = Place::new(shared.bootstrap(), "declared-early");
        let late = early.beside("declared-late");
        early.declare("a", "old");
        late.declare("a", "old");
        let (first, second) = (early.worker().await, late.worker().await);
        first.until_state("a", "in sync").await;
        second.until_state("a", "in sync").await;

        early.declare("a", "new");
        first.until_client("a", "new").await;
        // The two records of the edit may be read one after the other: with the first alone it looks like an edit by REST.
        let behind =
            second.until_entry("a", |entry| entry["state"] == "edited" && entry["message"].is_string()).await;
        second.has_looked(&late).await;
        let kept = second.get("/connectors/a/config").await;
        late.declare("a", "new");
        second.until_state("a", "in sync").await;

        assert!(behind["message"].as_str().unwrap().contains("another content"), "{behind}");
        assert_eq!(kept.body["oauth.client.id"], "new");
        assert_eq!(early.written(&["connector-a", "declared-a"]).await, [2, 2]);
    }

    async fn a_connector_that_was_deleted_by_rest_comes_back_only_when_its_file_changes(
        shared: &'static Shared,
    ) {
        let place = Place::new(shared.bootstrap(), "declared-deleted");
        place.declare("a", "1");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let deleted = worker.ask("DELETE", "/connectors/a", None).await;
        worker.until_state("a", "deleted").await;
        drop(worker);
        let worker = place.worker().await;
        worker.has_looked(&place).await;
        let told = worker.get(DECLARATIONS).await;
        let absent = worker.get("/connectors/a").await;
        place.declare("a", "2");
        worker.until_client("a", "2").await;

        assert_eq!((deleted.status, absent.status), (204, 404));
        assert_eq!(entry(&told, "a")["state"], "deleted");
        worker.until_state("a", "in sync").await;
    }

    async fn a_connector_goes_on_without_its_file_and_is_forgotten_once_it_is_deleted_too(
        shared: &'static Shared,
    ) {
        let place = Place::new(shared.bootstrap(), "declared-removed");
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
        // First the file, then the connector; and the other way round.
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

    async fn a_bad_file_is_told_without_its_secrets_and_what_was_there_stays(shared: &'static Shared) {
        let place = Place::new(shared.bootstrap(), "declared-bad");
        place.declare("a", "good");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let text = place.document("a", "half").to_string();
        place.write("a.json", &text[..text.len() - 5]);
        let half = worker.until_state("a", "refused").await;
        let mut invalid = place.document("a", "invalid");
        invalid["config"]["page.size"] = json!("many");
        place.write("a.json", invalid.to_string());
        let told = worker
            .until(DECLARATIONS, |answer| {
                entry(answer, "a")["message"].as_str().is_some_and(|message| message.contains("page.size"))
            })
            .await;
        place.write("b.json", r#"{"name": "b", "config": {"connector.class": "Nobody"}}"#);
        let unknown = worker.until_state("b", "refused").await;
        let kept = worker.get("/connectors/a/config").await;
        place.declare("a", "mended");
        worker.until_client("a", "mended").await;

        assert!(half["message"].as_str().unwrap().contains("is not JSON"), "{half}");
        assert_eq!(entry(&told, "a")["state"], "refused");
        assert!(unknown["message"].as_str().unwrap().contains("Failed to find any class"), "{unknown}");
        for shown in [&half, &told.body, &unknown] {
            assert!(!shown.to_string().contains(SECRET), "{shown}");
        }
        assert_eq!(kept.body["oauth.client.id"], "good");
        worker.until_state("a", "in sync").await;
        assert_eq!(worker.get("/connectors/b").await.status, 404);
    }

    async fn two_files_with_one_name_are_refused_with_both_named(shared: &'static Shared) {
        let place = Place::new(shared.bootstrap(), "declared-twice");
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

    async fn a_mount_that_swaps_its_links_is_followed(shared: &'static Shared) {
        let place = Place::new(shared.bootstrap(), "declared-mount");
        for (version, client) in [("..v1", "1"), ("..v2", "2")] {
            fs::create_dir(place.path(version)).unwrap();
            place.write(&format!("{version}/a.json"), place.document("a", client).to_string());
        }
        symlink("..v1", place.path("..data")).unwrap();
        symlink("..data/a.json", place.path("a.json")).unwrap();
        let worker = place.worker().await;
        worker.until_client("a", "1").await;
        worker.has_looked(&place).await;

        symlink("..v2", place.path("..data_tmp")).unwrap();
        fs::rename(place.path("..data_tmp"), place.path("..data")).unwrap();
        fs::remove_dir_all(place.path("..v1")).unwrap();

        worker.until_client("a", "2").await;
        worker.until_state("a", "in sync").await;
        assert_eq!(place.written(&["connector-a"]).await, [2]);
    }

    async fn a_connector_that_is_as_declared_already_is_not_written_again(shared: &'static Shared) {
        let place = Place::new(shared.bootstrap(), "declared-same");
        let worker = place.worker().await;
        let config = place.document("a", "1")["config"].clone();
        worker.ask("PUT", "/connectors/a/config", Some(config)).await;

        place.declare("a", "1");
        worker.until_state("a", "in sync").await;

        assert_eq!(place.written(&["connector-a", "declared-a"]).await, [1, 1], "its tasks go on");
    }

    async fn a_worker_without_files_tells_what_others_have_declared(shared: &'static Shared) {
        let place = Place::new(shared.bootstrap(), "declared-none");
        let alone = place.group.worker().await;
        let nothing = alone.get(DECLARATIONS).await;
        place.declare("a", "1");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        let told = alone.until(DECLARATIONS, |answer| entry(answer, "a")["state"] == "in sync").await;
        worker.ask("PATCH", "/connectors/a/config", Some(json!({"oauth.client.id": "2"}))).await;
        alone.until(DECLARATIONS, |answer| entry(answer, "a")["state"] == "edited").await;
        let posted = alone.ask("POST", DECLARATIONS, None).await;

        assert_eq!((nothing.status, nothing.body), (200, json!([])));
        assert_eq!(told.body, json!([{"name": "a", "file": "a.json", "state": "in sync"}]));
        assert_eq!(posted.status, 405);
    }

    async fn a_file_that_changes_while_kafka_is_away_is_applied_when_it_is_back() -> Result<()> {
        let broker = breakable::take().await?;
        let place = Place::new(&broker.bootstrap(), "declared-outage");
        place.declare("a", "1");
        let worker = place.worker().await;
        worker.until_state("a", "in sync").await;

        broker.pause()?;
        place.declare("a", "2");
        place.declare("b", "1");
        let is_told = |answer: &Answer| {
            ["a", "b"].iter().all(|name| {
                let message = entry(answer, name)["message"].as_str().unwrap_or_default();
                entry(answer, name)["state"] == "pending" && message.contains("write the change")
            })
        };
        worker.until(DECLARATIONS, is_told).await;
        broker.resume()?;

        worker.until_client("a", "2").await;
        worker.until_state("b", "in sync").await;
        worker.has_looked(&place).await;
        assert_eq!(place.written(&["connector-a", "connector-b"]).await, [2, 1]);
        Ok(())
    }
}
