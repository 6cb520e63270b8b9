use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::json;

use model::{
    AccountingResource, Acknowledge, Fingerprint, Gap, GapCause, GapState, InvoicingAction, InvoicingEntity,
    InvoicingHook, Nonce, ReceiverReport, Repair, StreamStart, Subscription, SubscriptionCommandDone,
    SubscriptionPhase, SubscriptionRegistration, SubscriptionTimes, TargetStart, Traffic,
};

use super::*;

const CUSTOMERS: Target = Target::Accounting(AccountingResource::Customers);
const ACCOUNTS: Target = Target::Accounting(AccountingResource::Accounts);
const HOOK: Target =
    Target::Invoicing(InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created });
/// 2026-11-15T00:00:00Z.
const DAY: i64 = 1_794_700_800_000_000;

fn subscription(target: Target, nonce: u64, phase: SubscriptionPhase) -> Subscription {
    Subscription {
        connector: "hooks".into(),
        target,
        nonce: Nonce::new(nonce),
        id: Some(format!("id-{nonce}")),
        registration: SubscriptionRegistration {
            application: "tributary".into(),
            url: address(target),
            spelled: None,
            fingerprint: Fingerprint::of("0123456789abcdef"),
            events: BTreeSet::from(["CustomerCreated".to_owned()]),
        },
        phase,
        since: DAY,
        times: SubscriptionTimes {
            intended_at: DAY,
            acknowledged_at: Some(DAY),
            active_since: Some(DAY),
            checked_at: Some(DAY),
            last_delivery: None,
        },
        problem: None,
        history: Vec::new(),
    }
}

fn address(target: Target) -> String {
    format!("https://hooks.example.com/{target}")
}

fn state(subscriptions: impl IntoIterator<Item = Subscription>) -> SubscriptionState {
    let mut state = SubscriptionState::default();
    for one in subscriptions {
        state.apply(&SubscriptionChange::Put(Box::new(one)));
    }
    state
}

fn gap(cause: GapCause, opened_at: i64, to: Option<i64>, state: GapState) -> Gap {
    Gap {
        connector: "hooks".into(),
        cause,
        target: Some(CUSTOMERS),
        company: None,
        from: opened_at - 1_000_000,
        to,
        detail: "the provider has disabled the subscription".into(),
        opened_at,
        worker: "a:1".into(),
        state,
    }
}

fn shown(targets: &[Target], state: &SubscriptionState, all: bool) -> SubscriptionsInfo {
    let fitting = state.subscriptions.values().filter(|one| targets.contains(&one.target));
    let (fitting, targets) =
        (fitting.map(|one| one.nonce.clone()).collect(), targets.iter().copied().collect());
    let declaration = view::DeclaredSubscriptions {
        connector: "hooks",
        manage: true,
        advertised_url: Some("https://hooks.example.com/".to_owned()),
        targets: &targets,
        fitting: Some(&fitting),
    };
    view::subscriptions(&declaration, state, all)
}

fn declared(targets: &[Target]) -> SubscriptionTargets {
    let topic_prefix = TopicPrefix::new("acme").unwrap();
    SubscriptionTargets { topic_prefix, manage: true, targets: targets.iter().copied().collect() }
}

#[test]
fn subscriptions_json_has_the_documented_members() {
    let mut state = state([subscription(CUSTOMERS, 7, SubscriptionPhase::Active)]);
    let (later, resource) = (DAY + 1_500_000, Some(AccountingResource::Customers));
    state.acknowledges.insert(
        "id-7".into(),
        Acknowledge { webhook_id: "id-7".into(), resource, received_at: later, worker: "a:1".into() },
    );
    let traffic = Traffic { resource, last: later, count: 3 };
    let heard = ReceiverReport {
        webhooks: BTreeMap::from([("id-7".to_owned(), traffic)]),
        ..ReceiverReport::default()
    };
    state.heard.insert("a:1".into(), heard);
    let started = TargetStart { nonce: Nonce::new(7), since: DAY };
    let targets = BTreeMap::from([(CUSTOMERS, started)]);
    state.start = Some(StreamStart { connector: "hooks".into(), at: DAY, targets });
    state.requests.command = Some(SubscriptionCommand { number: 2, removed: false, at: DAY });
    state.requests.done = Some(SubscriptionCommandDone { number: 1, at: DAY });

    let actual = serde_json::to_value(shown(&[CUSTOMERS, HOOK], &state, false)).unwrap();

    let day = "2026-11-15T00:00:00.000Z";
    let later = "2026-11-15T00:00:01.500Z";
    let expected = json!({
        "connector": "hooks",
        "manage": true,
        "advertisedUrl": "https://hooks.example.com/",
        "wish": { "number": 2, "removed": false, "at": day, "done": 1 },
        "start": { "at": day, "targets": { "accounting/customers": { "nonce": "0000000000000007", "since": day } } },
        "subscriptions": [{
            "target": "accounting/customers",
            "id": "id-7",
            "nonce": "0000000000000007",
            "phase": "active",
            "since": day,
            "url": "https://hooks.example.com/accounting/customers",
            "fingerprint": Fingerprint::of("0123456789abcdef"),
            "fits": true,
            "events": ["CustomerCreated"],
            "acknowledgedAt": later,
            "lastDelivery": later,
            "checkedAt": day,
            "problem": null,
            "history": [],
        }],
        "missing": ["invoicing/Customer:Created"],
    });
    assert_eq!(actual, expected);
}

#[test]
fn worker_without_an_address_leaves_fits_null() {
    let targets = BTreeSet::from([CUSTOMERS]);
    let declaration = view::DeclaredSubscriptions {
        connector: "hooks",
        manage: true,
        advertised_url: None,
        targets: &targets,
        fitting: None,
    };

    let view = view::subscriptions(
        &declaration,
        &state([subscription(CUSTOMERS, 7, SubscriptionPhase::Active)]),
        false,
    );

    assert_eq!((view.subscriptions[0].subscribed.fits, view.missing.len()), (None, 0));
}

#[test]
fn ended_subscription_is_shown_on_request_or_for_its_problem() {
    let refused = Subscription {
        id: None,
        problem: Some("the provider says: no".into()),
        ..subscription(CUSTOMERS, 1, SubscriptionPhase::Ended)
    };
    let state = state([
        refused,
        subscription(ACCOUNTS, 2, SubscriptionPhase::Ended),
        subscription(HOOK, 3, SubscriptionPhase::Active),
    ]);
    let nonces = |all| -> Vec<String> {
        let view = shown(&[CUSTOMERS, ACCOUNTS, HOOK], &state, all);
        view.subscriptions.iter().map(|one| one.nonce.to_string()).collect()
    };

    assert_eq!(nonces(false), ["0000000000000001", "0000000000000003"]);
    assert_eq!(nonces(true).len(), 3);
    assert_eq!(shown(&[CUSTOMERS, ACCOUNTS, HOOK], &state, false).missing, [ACCOUNTS, CUSTOMERS]);
}

#[test]
fn requested_removal_leaves_nothing_missing_or_fitting() {
    let mut state = state([subscription(CUSTOMERS, 7, SubscriptionPhase::Ending)]);
    state.requests.command = Some(SubscriptionCommand { number: 1, removed: true, at: DAY });

    let view = shown(&[CUSTOMERS, ACCOUNTS], &state, false);

    assert_eq!((view.missing.len(), view.subscriptions[0].subscribed.fits), (0, Some(false)));
    let actual = summary::subscriptions(&declared(&[CUSTOMERS, ACCOUNTS]), &state);
    assert_eq!(actual, "removed by request: 1 left");
}

#[test]
fn status_counts_active_targets_and_names_the_others() {
    let active = subscription(CUSTOMERS, 1, SubscriptionPhase::Active);
    let disabled = subscription(ACCOUNTS, 2, SubscriptionPhase::Disabled);
    let both = declared(&[CUSTOMERS, ACCOUNTS]);
    let say = |subscriptions: &[&Subscription]| {
        summary::subscriptions(&both, &state(subscriptions.iter().map(|one| (*one).clone())))
    };

    assert_eq!(say(&[&active, &subscription(ACCOUNTS, 3, SubscriptionPhase::Active)]), "2 of 2 active");
    assert_eq!(
        say(&[&active, &disabled]),
        "1 of 2 active: accounting/accounts disabled since 2026-11-15T00:00:00.000Z"
    );
    // An active successor counts for its target.
    assert_eq!(
        say(&[&active, &disabled, &subscription(ACCOUNTS, 3, SubscriptionPhase::Active)]),
        "2 of 2 active"
    );
    assert_eq!(say(&[]), "0 of 2 active: accounting/accounts missing, accounting/customers missing");
    let every: Vec<Target> = AccountingResource::all().map(Target::Accounting).collect();
    assert!(summary::subscriptions(&declared(&every), &state([])).ends_with(", 16 more"));
    let unmanaged = SubscriptionTargets { manage: false, ..both };
    assert_eq!(summary::subscriptions(&unmanaged, &state([active])), "not managed: 2 declared");
}

#[test]
fn status_counts_open_gaps() {
    let mut state = SubscriptionState::default();
    assert_eq!(summary::gaps(&state), "none open");
    state.apply(&SubscriptionChange::Gap(gap(GapCause::Lost, DAY, None, GapState::Closed)));
    assert_eq!(summary::gaps(&state), "none open");
    state.apply(&SubscriptionChange::Gap(gap(GapCause::Disabled, DAY + 1_000_000, None, GapState::Open)));
    state.apply(&SubscriptionChange::Gap(gap(GapCause::Disabled, DAY, Some(DAY), GapState::RepairedKnown)));
    assert_eq!(summary::gaps(&state), "2 open, oldest 2026-11-15T00:00:00.000Z");
    state.apply(&SubscriptionChange::Gap(gap(
        GapCause::Spool,
        DAY + 2_000_000,
        Some(DAY),
        GapState::Unrepairable,
    )));
    assert_eq!(summary::gaps(&state), "3 open, 1 of them unrepairable, oldest 2026-11-15T00:00:00.000Z");
}

#[test]
fn gaps_are_shown_oldest_first_and_ended_ones_on_request() {
    let mut state = SubscriptionState::default();
    let open = gap(GapCause::Disabled, DAY + 5_000_000, Some(DAY + 9_000_000), GapState::Open);
    state.apply(&SubscriptionChange::Repair(Repair::of(&open, DAY + 9_000_000, DAY + 9_000_000)));
    state.apply(&SubscriptionChange::Gap(open));
    state.apply(&SubscriptionChange::Gap(gap(GapCause::Spool, DAY, Some(DAY), GapState::Accepted)));

    let actual = serde_json::to_value(view::gaps(&state, false)).unwrap();

    let expected = json!([{
        "id": "hooks/disabled/1794700805000000/accounting%2Fcustomers",
        "cause": "disabled",
        "target": "accounting/customers",
        "company": null,
        "from": "2026-11-15T00:00:04.000Z",
        "to": "2026-11-15T00:00:09.000Z",
        "openedAt": "2026-11-15T00:00:05.000Z",
        "state": "open",
        "detail": "the provider has disabled the subscription",
        "repair": { "state": "requested", "requestedAt": "2026-11-15T00:00:09.000Z" },
    }]);
    assert_eq!(actual, expected);
    let causes: Vec<&str> = view::gaps(&state, true).iter().map(|gap| gap.cause).collect();
    assert_eq!(causes, ["spool", "disabled"]);
}

#[test]
fn plan_json_has_the_documented_members() {
    let why = "there is none".to_owned();
    let step = StepInfo { call: "subscribe", target: Some(CUSTOMERS), id: None, why };
    let plan = PlanInfo { steps: vec![step], ..PlanInfo::default() };

    let actual = serde_json::to_value(plan).unwrap();

    let expected = json!({ "call": "subscribe", "target": "accounting/customers", "why": "there is none" });
    assert_eq!(actual, json!({ "steps": [expected], "converged": false, "problems": [] }));
}

/// Subscriptions in memory.
#[derive(Debug, Default)]
struct Kept(Mutex<SubscriptionState>);

impl Kept {
    fn now(&self) -> SubscriptionState {
        self.0.lock().clone()
    }
}

#[async_trait]
impl SubscriptionStore for Kept {
    fn fitting(&self, _: &WebhookSource, _: &SubscriptionState) -> Option<BTreeSet<Nonce>> {
        None
    }

    fn address_problem(&self, _: &WebhookSource) -> Option<String> {
        None
    }

    fn glance(&self, _: &TopicPrefix, _: &str, show: &mut dyn FnMut(&SubscriptionState)) -> bool {
        show(&self.now());
        true
    }

    async fn read(&self, _: &TopicPrefix, _: &str) -> Result<SubscriptionState, Error> {
        Ok(self.now())
    }

    async fn newest(&self, _: &TopicPrefix, _: &str) -> Result<SubscriptionState, Error> {
        Ok(self.now())
    }

    async fn plan(&self, _: &str, _: &Arc<Properties>, _: bool, _: Instant) -> Result<PlanInfo, Error> {
        Ok(PlanInfo::default())
    }

    async fn write(&self, _: &TopicPrefix, _: &str, change: SubscriptionChange) -> Result<(), Error> {
        self.0.lock().apply(&change);
        Ok(())
    }
}

#[tokio::test]
async fn wish_has_the_next_number_and_the_last_one_done() {
    let (kept, prefix) = (Kept::default(), TopicPrefix::new("acme").unwrap());

    let first = request_command(&kept, &prefix, "hooks", false, DAY).await.unwrap();
    kept.0.lock().requests.done = Some(SubscriptionCommandDone { number: 1, at: DAY });
    let second = request_command(&kept, &prefix, "hooks", true, DAY).await.unwrap();

    assert_eq!((first.number, first.done), (1, None));
    assert_eq!((second.number, second.removed, second.done), (2, true, Some(1)));
    assert_eq!(kept.now().requests.command, Some(SubscriptionCommand { number: 2, removed: true, at: DAY }));
}

#[tokio::test]
async fn only_ended_gaps_can_be_accepted() {
    let (kept, prefix) = (Kept::default(), TopicPrefix::new("acme").unwrap());
    let ended = gap(GapCause::Disabled, DAY, Some(DAY), GapState::Unrepairable);
    let ongoing = gap(GapCause::Lost, DAY, None, GapState::Open);
    for gap in [&ended, &ongoing] {
        kept.0.lock().apply(&SubscriptionChange::Gap(gap.clone()));
    }

    let accepted = accept(&kept, &prefix, "hooks", &ended.id()).await.unwrap();
    let again = accept(&kept, &prefix, "hooks", &ended.id()).await.unwrap();
    let open_ended = accept(&kept, &prefix, "hooks", &ongoing.id()).await.unwrap_err();
    let unknown = accept(&kept, &prefix, "hooks", "hooks/spool/1").await.unwrap_err();

    assert_eq!((accepted.state, again.state), ("accepted", "accepted"));
    assert_eq!(kept.now().gaps[&ended.id()].state, GapState::Accepted);
    assert!(
        matches!(&open_ended, Error::BadRequest(actual) if actual.contains("fix its cause first")),
        "{open_ended}"
    );
    assert_eq!(unknown.status(), 404);
    assert_eq!(kept.now().gaps[&ongoing.id()].state, GapState::Open);
}
