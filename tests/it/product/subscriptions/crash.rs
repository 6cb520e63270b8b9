//! The worker dies at every step of every plan, and in the end there is one subscription for each target and no orphan.
//!
//! In each case a worker is started with a fail point, given a reason to plan something, dies, and is started again without. Then the
//! provider's webhooks are compared with the configuration.
//!
//! `TRIBUTARY_TEST_PLACES=all` runs all cases. Otherwise a run takes a fifth of them, another one each day, so that five days of
//! gates cover all; `TRIBUTARY_TEST_SEED` selects it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use model::GapState;
use simulator::{
    accounting::{WebhookState, WebhookTruth},
    knobs::ReceiverPaths,
    settings::Settings,
};
use tokio::time::sleep;
use tributary::state::subscriptions::SubscriptionState;

use super::scene::{CONNECTOR, HOST, LIMIT, SubscriptionScene, active};
use crate::support::{Error, Result, Shared, dice, lost, stage::STEP};

/// Time limit of one case, seconds.
const CASE_LIMIT: u64 = 60;
/// Parts of the cases, one for each day.
const PARTS: u64 = 5;
/// Set to `all` to run all cases.
const VARIABLE: &str = "TRIBUTARY_TEST_PLACES";

crate::tests! {
    real a_crash_at_any_step_leaves_exactly_what_is_declared limit (180 + CASE_LIMIT * FAILPOINTS.len() as u64);
}

/// The reason for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlanCause {
    /// A person requests the removal of all subscriptions.
    Remove,
    /// A person requests all of them again.
    Apply,
    /// A new secret.
    Rotate,
    /// The provider disables one.
    Disable,
    /// The provider pauses a hook.
    Pause,
    /// The provider loses one.
    Lose,
    /// The receivers have another host name, and subscriptions are moved in place.
    Move,
    /// A worker died between the provider's answer and its record of it.
    Orphan,
}

/// The fail points, and the reasons to reach them. Each part has one of the first five, which are the worst.
const FAILPOINTS: [(PlanCause, &str); 30] = [
    (PlanCause::Apply, "subscribe.called"),
    (PlanCause::Remove, "delete.called"),
    (PlanCause::Orphan, "identify.settled"),
    (PlanCause::Disable, "enable.called"),
    (PlanCause::Move, "move.called"),
    (PlanCause::Apply, "subscribe.before"),
    (PlanCause::Apply, "subscribe.settled"),
    (PlanCause::Apply, "names.before"),
    (PlanCause::Apply, "names.called"),
    (PlanCause::Apply, "names.settled"),
    (PlanCause::Apply, "read.before"),
    (PlanCause::Apply, "read.called"),
    (PlanCause::Apply, "read.settled"),
    (PlanCause::Remove, "delete.before"),
    (PlanCause::Remove, "delete.settled"),
    (PlanCause::Rotate, "subscribe.called"),
    (PlanCause::Rotate, "delete.before"),
    (PlanCause::Rotate, "delete.called"),
    (PlanCause::Disable, "enable.before"),
    (PlanCause::Disable, "enable.settled"),
    (PlanCause::Pause, "list.before"),
    (PlanCause::Pause, "list.called"),
    (PlanCause::Pause, "list.settled"),
    (PlanCause::Pause, "delete.called"),
    (PlanCause::Pause, "subscribe.called"),
    (PlanCause::Lose, "subscribe.called"),
    (PlanCause::Move, "move.before"),
    (PlanCause::Move, "move.settled"),
    (PlanCause::Orphan, "identify.before"),
    (PlanCause::Orphan, "identify.called"),
];

async fn a_crash_at_any_step_leaves_exactly_what_is_declared(shared: &'static Shared) -> Result<()> {
    let selected = SelectedCases::by_environment();
    println!("subscriptions, crash: {selected}");
    let mut stage = CrashStage::start(shared).await?;
    let cases = selected.cases();
    for (cause, failpoint) in &cases {
        let died = stage.die(*cause, failpoint).await;
        died.map_err(|error| Error(format!("{cause:?}, {failpoint} ({selected}): {error}")))?;
    }
    println!("subscriptions, crash: a worker died at {} fail points", cases.len());
    Ok(())
}

/// The cases of a run.
#[derive(Debug, Clone, Copy)]
enum SelectedCases {
    All,
    /// Every fifth, from this one on.
    Part(u64),
}

impl SelectedCases {
    /// # Panics
    /// If the variable holds anything but `all`.
    fn by_environment() -> Self {
        match std::env::var(VARIABLE) {
            Ok(text) if text == "all" => Self::All,
            Ok(text) if !text.is_empty() => panic!("{VARIABLE} is {text:?}: set it to all, or unset it"),
            _ => Self::Part(dice::seed() % PARTS),
        }
    }

    fn cases(self) -> Vec<(PlanCause, &'static str)> {
        match self {
            Self::All => FAILPOINTS.to_vec(),
            Self::Part(part) => FAILPOINTS.into_iter().skip(part as usize).step_by(PARTS as usize).collect(),
        }
    }
}

/// With the command that runs the same cases again.
impl fmt::Display for SelectedCases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = "cargo test --test it -- subscriptions::crash::";
        match self {
            Self::All => {
                write!(f, "all {} fail points; repeat with: {VARIABLE}=all {command}", FAILPOINTS.len())
            }
            Self::Part(part) => {
                write!(f, "fifth {} of {PARTS}; repeat with: TRIBUTARY_TEST_SEED={part} {command}", part + 1)
            }
        }
    }
}

struct CrashStage {
    scene: SubscriptionScene,
    secrets: u32,
    moves: u32,
}

impl CrashStage {
    async fn start(shared: &Shared) -> Result<Self> {
        // The provider retries an Acknowledge for longer than a worker is away: if it gives up, a subscription remains that never
        // sends anything and whose id is unknown.
        let patient = |settings: &mut Settings| {
            settings.knobs.accounting.retries = vec![500; 120];
            settings.knobs.invoicing.receiver_paths = ReceiverPaths::Any;
        };
        let scene = SubscriptionScene::start(shared, "subs-crash", 1, patient).await?;
        let stage = Self { scene, secrets: 1, moves: 0 };
        stage.scene.connect(&stage.settings()).await?;
        stage.until_declared().await?;
        Ok(stage)
    }

    /// The present settings of the connector.
    fn settings(&self) -> Vec<(&'static str, &'static str)> {
        let secrets = ["0123456789abcdef-even", "0123456789abcdef-odd"];
        let now = (self.secrets % 2) as usize;
        vec![
            ("accounting.resources", "customers,accounts"),
            ("accounting.secret", secrets[now]),
            ("accounting.secret.previous", secrets[1 - now]),
            ("invoicing.hooks", "Customer:Created"),
            ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
            ("invoicing.login.mail", "ana@example.com"),
            ("invoicing.login.password", "simulated-password"),
            ("provider.request.timeout.ms", "2000"),
            ("subscriptions.move", "change"),
            ("subscriptions.ready.timeout.ms", "200"),
            ("subscriptions.overlap.ms", "100"),
            // If a worker dies after it has answered the echo of a hook and before its record of the echo is in Kafka, the hook is
            // deleted and recreated after this time.
            ("subscriptions.acknowledge.timeout.ms", "15000"),
        ]
    }

    /// The present host name of the receivers.
    fn host(&self) -> String {
        if self.moves.is_multiple_of(2) { HOST.to_owned() } else { format!("other.{HOST}") }
    }

    /// Requests `apply` or `remove` until the worker accepts it; an error if the worker has died.
    async fn wish(&self, what: &str) -> Result<()> {
        let path = format!("/connectors/{CONNECTOR}/subscriptions/{what}");
        let began = Instant::now();
        loop {
            match self.scene.stage.ask(0, "POST", &path, None).await? {
                (202, _) => return Ok(()),
                (503, _) if lost::fair(began) < LIMIT => sleep(STEP).await,
                (status, answer) => panic!("{what}: {status} {answer}"),
            }
        }
    }

    async fn die(&mut self, cause: PlanCause, failpoint: &str) -> Result<()> {
        let at = format!("subscriptions.{failpoint}");
        if cause == PlanCause::Apply {
            self.wish("remove").await?;
            self.until_empty().await?;
        }
        // Dead while the provider changes something, so that the next worker finds the change at its start.
        self.scene.stage.workers[0].kill();
        match cause {
            PlanCause::Move => {
                self.moves += 1;
                self.scene.rename(&self.host())?;
            }
            PlanCause::Orphan => {
                self.scene.stage.workers[0].start_again_to_die("subscriptions.subscribe.called").await?;
                self.scene.stage.reach(0)?;
                self.rotate().await?;
                self.scene.stage.workers[0].dead().await?;
            }
            _ => {}
        }
        if cause == PlanCause::Lose || cause == PlanCause::Disable {
            let provider = self.scene.stage.simulator.provider();
            let webhook = self.scene.webhooks()[0].id;
            if cause == PlanCause::Disable {
                assert!(provider.accounting.disable(webhook));
            } else {
                assert!(provider.accounting.remove(webhook));
            }
        }
        if cause == PlanCause::Pause {
            let provider = self.scene.stage.simulator.provider();
            let hook = provider.invoicing.hooks()[0].id;
            assert!(provider.invoicing.pause(hook, true));
        }
        self.scene.stage.workers[0].start_again_to_die(&at).await?;
        self.scene.stage.reach(0)?;
        match cause {
            PlanCause::Remove => self.wish("remove").await.ok(),
            PlanCause::Apply => self.wish("apply").await.ok(),
            PlanCause::Rotate => self.rotate().await.ok(),
            _ => None,
        };
        self.scene.stage.workers[0].dead().await?;

        self.scene.stage.workers[0].start_again().await?;
        self.scene.stage.reach(0)?;
        match cause {
            PlanCause::Remove => {
                self.wish("remove").await?;
                self.until_empty().await?;
                self.wish("apply").await?;
            }
            PlanCause::Apply => self.wish("apply").await?,
            PlanCause::Rotate => self.scene.configure(&self.settings()).await?,
            _ => {}
        }
        self.until_declared().await
    }

    async fn rotate(&mut self) -> Result<()> {
        self.secrets += 1;
        self.scene.configure(&self.settings()).await
    }

    /// Waits until the provider has none of our subscriptions.
    async fn until_empty(&self) -> Result<()> {
        // An unknown one is found by its Acknowledge, and deleted.
        let none = |ledger: &SubscriptionState| {
            self.scene.webhooks().is_empty() && !ledger.subscriptions.values().any(|one| one.phase.may_live())
        };
        self.scene.ledger().await?.until(&self.scene, "all deleted", none).await.map(drop)
    }

    /// Waits until everything is as declared, and compares it with the provider.
    async fn until_declared(&self) -> Result<()> {
        let secret = self.settings()[1].1;
        let wanted = model::Fingerprint::of(secret);
        let done = |ledger: &SubscriptionState| {
            // The ledger may still have the state from before the crash.
            let hooks = self.scene.stage.simulator.provider().invoicing.hooks();
            let living = self.scene.webhooks();
            // An unknown one is found by its Acknowledge, and deleted.
            if hooks.iter().any(|hook| hook.paused)
                || living.len() != 2
                || living.iter().any(|one| one.state != WebhookState::Active)
            {
                return false;
            }
            // The next worker completes a move once it reads the new address.
            let there = format!("https://{}/", self.host());
            let is_known = |one: &WebhookTruth| {
                one.url.starts_with(&there)
                    && ledger
                        .by_id(&one.id.to_string())
                        .is_some_and(|known| known.registration.url == one.url)
            };
            if !living.iter().all(is_known) {
                return false;
            }
            let current = ledger.subscriptions.values().filter(|one| one.phase.may_live());
            let current = current.filter(|one| one.target.resource().is_some());
            active(ledger).len() == 3
                && ledger.requests.pending().is_none()
                && !ledger.requests.is_removed()
                && current.clone().all(|one| one.registration.fingerprint == wanted)
                && ledger.gaps.iter().all(|(id, gap)| {
                    let is_over = gap.to.is_some() && ledger.repairs.contains_key(id);
                    is_over || gap.state == GapState::Unrepairable
                })
        };
        let ledger = self.scene.ledger().await?.until(&self.scene, "all as declared", done).await?;
        let living = self.scene.webhooks();
        let resources: BTreeSet<_> = living.iter().map(|one| one.resource.plural()).collect();
        assert_eq!((living.len(), resources.len()), (2, 2), "{living:?}");
        assert!(living.iter().all(|one| one.state == WebhookState::Active), "{living:?}");
        for one in &living {
            let known = ledger.by_id(&one.id.to_string());
            assert!(known.is_some_and(|known| known.registration.url == one.url), "{one:?}: {known:?}");
        }
        let hooks = self.scene.stage.simulator.provider().invoicing.hooks();
        assert_eq!(hooks.iter().filter(|hook| !hook.paused).count(), 1, "{hooks:?}");
        assert_eq!(hooks.len(), 1, "{hooks:?}");
        // If a dying or busy worker did not answer the echo at the hook's address in time, the hook moved to the shared one.
        let path = hooks[0].uri.split_once("/api/webhooks/incoming/Invoicing").map(|(_, path)| path);
        assert!(matches!(path, Some("" | "/customer-created")), "{hooks:?}");
        let known: Vec<&str> = ledger
            .subscriptions
            .values()
            .filter(|one| one.phase.may_live() && one.target.resource().is_none())
            .map(|one| &*one.registration.url)
            .collect();
        assert_eq!(known, [&*hooks[0].uri]);
        Ok(())
    }
}
