//! Subscriptions and gaps over HTTP, from a ledger in memory: members, statuses and error messages.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use model::{Gap, GapCause, GapState, Nonce, TopicPrefix};
use serde_json::{Value, json};
use tokio::time::Instant;
use tributary::{
    config::WebhookSource,
    connect::herder::{Error, PlanInfo, StepInfo, SubscriptionParts, SubscriptionStore},
    state::{
        configs::Properties,
        subscriptions::{SubscriptionChange, SubscriptionState},
    },
};
use url::Url;

use super::worker::{Group, Worker, config};
use crate::support::{self, Shared};

crate::tests! {
    real subscriptions_are_listed_and_commands_name_them_by_number;
    real gaps_are_listed_and_can_be_accepted_once_they_ended;
    real a_connector_without_subscriptions_is_refused_commands;
}

/// The ledger of one connector, in memory.
#[derive(Debug, Default)]
struct MemoryLedger {
    ledger: Mutex<SubscriptionState>,
}

#[async_trait]
impl SubscriptionStore for MemoryLedger {
    fn glance(
        &self,
        prefix: &TopicPrefix,
        connector: &str,
        show: &mut dyn FnMut(&SubscriptionState),
    ) -> bool {
        assert_eq!((prefix.as_str(), connector), ("acme", "hooks"));
        show(&self.ledger.lock().unwrap());
        true
    }

    async fn read(&self, _: &TopicPrefix, _: &str) -> Result<SubscriptionState, Error> {
        Ok(self.ledger.lock().unwrap().clone())
    }

    async fn newest(&self, _: &TopicPrefix, _: &str) -> Result<SubscriptionState, Error> {
        Ok(self.ledger.lock().unwrap().clone())
    }

    async fn plan(&self, _: &str, _: &Arc<Properties>, removed: bool, _: Instant) -> Result<PlanInfo, Error> {
        let call = if removed { "delete" } else { "subscribe" };
        let step = StepInfo { call, target: None, id: None, why: "there is none".to_owned() };
        Ok(PlanInfo { steps: vec![step], ..PlanInfo::default() })
    }

    fn fitting(&self, _: &WebhookSource, _: &SubscriptionState) -> Option<BTreeSet<Nonce>> {
        Some(BTreeSet::new())
    }

    fn address_problem(&self, _: &WebhookSource) -> Option<String> {
        None
    }

    async fn write(&self, _: &TopicPrefix, _: &str, change: SubscriptionChange) -> Result<(), Error> {
        self.ledger.lock().unwrap().apply(&change);
        Ok(())
    }
}

/// A worker with a connector `hooks`, and its ledger.
async fn scene(shared: &'static Shared, name: &str) -> (Worker, Arc<MemoryLedger>) {
    let kept = Arc::new(MemoryLedger::default());
    let advertised_url = Some(Url::parse("https://hooks.example.com").unwrap());
    let subscribing =
        SubscriptionParts { store: Arc::clone(&kept) as Arc<dyn SubscriptionStore>, advertised_url };
    let worker = Group::new(shared.bootstrap(), name).subscribing(subscribing).await;
    let config = json!({
        "connector.class": "WebhookSource",
        "topic.prefix": "acme",
        "accounting.resources": "customers,accounts",
        "accounting.secret": "0123456789abcdef",
        "provider.base.url": "https://api.example.com",
        "provider.auth.url": "https://login.example.com",
        "provider.subscription.key": "0123456789abcdef",
        "oauth.client.id": "client",
        "oauth.client.secret": "0123456789abcdef",
    });
    let created = worker.ask("PUT", "/connectors/hooks/config", Some(config)).await;
    assert_eq!(created.status, 201, "{created:?}");
    (worker, kept)
}

async fn subscriptions_are_listed_and_commands_name_them_by_number(
    shared: &'static Shared,
) -> support::Result<()> {
    let (worker, _) = scene(shared, "subscriptions").await;

    let listed = worker.get("/connectors/hooks/subscriptions").await;
    let applied = worker.ask("POST", "/connectors/hooks/subscriptions/apply", None).await;
    let removed = worker.ask("POST", "/connectors/hooks/subscriptions/remove/", None).await;
    let after = worker.get("/connectors/hooks/subscriptions?all=true").await;
    let plan = worker.get("/connectors/hooks/subscriptions/plan").await;
    let removal = worker.get("/connectors/hooks/subscriptions/plan?removed=true").await;

    let expected = json!({
        "connector": "hooks",
        "manage": true,
        "advertisedUrl": "https://hooks.example.com/",
        "wish": null,
        "start": null,
        "subscriptions": [],
        "missing": ["accounting/accounts", "accounting/customers"],
    });
    assert_eq!((listed.status, listed.body), (200, expected));
    assert_eq!(
        (applied.status, &applied.body["number"], &applied.body["removed"]),
        (202, &json!(1), &json!(false))
    );
    assert_eq!(
        (removed.status, &removed.body["number"], &removed.body["removed"]),
        (202, &json!(2), &json!(true))
    );
    assert_eq!((&after.body["wish"]["number"], &after.body["missing"]), (&json!(2), &json!([])));
    assert_eq!(plan.body["steps"][0]["call"], "subscribe");
    assert_eq!((plan.body["converged"].clone(), plan.body["problems"].clone()), (json!(false), json!([])));
    assert_eq!(removal.body["steps"][0]["call"], "delete");

    // Members of a status are strings, since clients of Kafka Connect decode them as such.
    let status = worker.get("/connectors/hooks/status").await.body;
    assert_eq!(status["connector"]["subscriptions"], "removed by request");
    assert_eq!(status["connector"]["gaps"], "none open");
    let listed = worker.get("/connectors?expand=status").await.body;
    assert_eq!(listed["hooks"]["status"], status);

    assert_eq!(worker.ask("PUT", "/connectors/hooks/pause", None).await.status, 202);
    let paused = worker.ask("POST", "/connectors/hooks/subscriptions/apply", None).await;
    assert_eq!(
        (paused.status, paused.message()),
        (400, "Connector hooks is PAUSED, so its task does not run; resume it first")
    );
    let patch = Some(json!({ "subscriptions.manage": "false" }));
    assert_eq!(worker.ask("PATCH", "/connectors/hooks/config", patch).await.status, 200);
    for path in ["apply", "remove"] {
        let refused = worker.ask("POST", &format!("/connectors/hooks/subscriptions/{path}"), None).await;
        assert_eq!(refused.status, 400);
        assert!(
            refused.message().starts_with("subscriptions.manage of connector hooks is false"),
            "{refused:?}"
        );
    }
    assert_eq!(worker.get("/connectors/hooks/subscriptions/plan").await.status, 400);
    Ok(())
}

async fn gaps_are_listed_and_can_be_accepted_once_they_ended(shared: &'static Shared) -> support::Result<()> {
    let (worker, kept) = scene(shared, "gaps").await;
    let gap = |cause, to| Gap {
        connector: "hooks".to_owned(),
        cause,
        target: None,
        company: None,
        from: 0,
        to,
        detail: "what happened".to_owned(),
        opened_at: 1_000_000,
        worker: "a:1".to_owned(),
        state: GapState::Open,
    };
    let (ended, ongoing) = (gap(GapCause::Spool, Some(2)), gap(GapCause::Stopped, None));
    for gap in [&ended, &ongoing] {
        kept.ledger.lock().unwrap().apply(&SubscriptionChange::Gap(gap.clone()));
    }
    let accept = async |body: Value| worker.ask("POST", "/connectors/hooks/gaps/accept", Some(body)).await;
    let ids = async |query: &str| -> Vec<Value> {
        let answer = worker.get(&format!("/connectors/hooks/gaps{query}")).await;
        answer.body.as_array().unwrap().iter().map(|gap| gap["id"].clone()).collect()
    };

    assert_eq!(ids("").await, [json!(ended.id()), json!(ongoing.id())]);
    let accepted = accept(json!({ "id": ended.id() })).await;
    let refused = accept(json!({ "id": ongoing.id() })).await;
    let unknown = accept(json!({ "id": "hooks/spool/7" })).await;
    let nonsense = accept(json!({ "gap": 7 })).await;

    assert_eq!((accepted.status, &accepted.body["state"]), (200, &json!("accepted")));
    assert_eq!((refused.status, unknown.status, nonsense.status), (400, 404, 400));
    assert!(refused.message().contains("has not ended (what happened)"), "{refused:?}");
    assert_eq!(ids("").await, [json!(ongoing.id())]);
    assert_eq!(ids("?all=true").await.len(), 2);
    let status = worker.get("/connectors/hooks/status").await.body;
    assert_eq!(status["connector"]["gaps"], "1 open, oldest 1970-01-01T00:00:01.000Z");
    Ok(())
}

async fn a_connector_without_subscriptions_is_refused_commands(
    shared: &'static Shared,
) -> support::Result<()> {
    let (worker, _) = scene(shared, "no-subscriptions").await;
    let other = worker.ask("PUT", "/connectors/other/config", Some(config("other"))).await;
    assert_eq!(other.status, 201, "{other:?}");

    for path in ["subscriptions", "subscriptions/plan", "gaps"] {
        let unknown = worker.get(&format!("/connectors/unknown/{path}")).await;
        let other = worker.get(&format!("/connectors/other/{path}")).await;
        assert_eq!((unknown.status, unknown.message()), (404, "Connector unknown not found"));
        if path == "gaps" {
            // A RecordSource has gaps too.
            assert_eq!((other.status, &other.body), (200, &json!([])));
        } else {
            assert_eq!(other.status, 400);
            assert!(other.message().contains("only a WebhookSource has"), "{other:?}");
        }
    }
    let status = worker.get("/connectors/other/status").await.body;
    assert_eq!((status["connector"].get("subscriptions"), status["connector"].get("gaps")), (None, None));
    let plain = Group::new(shared.bootstrap(), "no-ledgers").worker().await;
    let created = plain.ask("PUT", "/connectors/other/config", Some(config("other"))).await;
    assert_eq!((created.status, plain.get("/connectors/other/gaps").await.status), (201, 404));
    Ok(())
}
