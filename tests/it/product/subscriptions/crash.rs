//! The worker dies at every step of every plan, and in the end there is one subscription of each and no orphan.
//!
//! Each case is one life: started with the place to die at, made to plan something, dead, and started again without. What the
//! provider has at the end is compared with what was declared.
//!
//! `TRIBUTARY_TEST_PLACES=all` visits all places. Otherwise a run visits a fifth of them, another one each day, so that five days of
//! gates visit all; `TRIBUTARY_TEST_SEED` says which.

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
use tributary::webhooks::subscriptions::Ledger;

use super::scene::{CONNECTOR, HOST, LIMIT, Scene, active};
use crate::support::stage::STEP;
use crate::support::{Error, Result, Shared, dice, lost};

/// Time limit of one case, seconds.
const CASE_LIMIT: u64 = 60;
/// Parts that the places are visited in, one a day.
const PARTS: u64 = 5;
/// Set to `all` to visit all of them.
const VARIABLE: &str = "TRIBUTARY_TEST_PLACES";

crate::tests! {
    real a_crash_at_any_step_leaves_exactly_what_is_declared limit (180 + CASE_LIMIT * PLACES.len() as u64);
}

/// What makes a worker plan something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// People want all removed.
    Remove,
    /// People want all back.
    Apply,
    /// A new secret.
    Rotate,
    /// The provider disables one.
    Disable,
    /// The provider pauses a hook.
    Pause,
    /// Somebody deletes one.
    Lose,
    /// The receivers have another name, and subscriptions are moved in place.
    Move,
    /// A worker has died between the provider's answer and its own note of it.
    Orphan,
}

/// Where to die, and what leads there. Each part has one of the first five, which hurt most.
const PLACES: [(Cause, &str); 30] = [
    (Cause::Apply, "subscribe.called"),
    (Cause::Remove, "delete.called"),
    (Cause::Orphan, "identify.settled"),
    (Cause::Disable, "enable.called"),
    (Cause::Move, "move.called"),
    (Cause::Apply, "subscribe.before"),
    (Cause::Apply, "subscribe.settled"),
    (Cause::Apply, "names.before"),
    (Cause::Apply, "names.called"),
    (Cause::Apply, "names.settled"),
    (Cause::Apply, "read.before"),
    (Cause::Apply, "read.called"),
    (Cause::Apply, "read.settled"),
    (Cause::Remove, "delete.before"),
    (Cause::Remove, "delete.settled"),
    (Cause::Rotate, "subscribe.called"),
    (Cause::Rotate, "delete.before"),
    (Cause::Rotate, "delete.called"),
    (Cause::Disable, "enable.before"),
    (Cause::Disable, "enable.settled"),
    (Cause::Pause, "list.before"),
    (Cause::Pause, "list.called"),
    (Cause::Pause, "list.settled"),
    (Cause::Pause, "delete.called"),
    (Cause::Pause, "subscribe.called"),
    (Cause::Lose, "subscribe.called"),
    (Cause::Move, "move.before"),
    (Cause::Move, "move.settled"),
    (Cause::Orphan, "identify.before"),
    (Cause::Orphan, "identify.called"),
];

async fn a_crash_at_any_step_leaves_exactly_what_is_declared(shared: &'static Shared) -> Result<()> {
    let visited = Visited::by_environment();
    println!("subscriptions, crash: {visited}");
    let mut stage = Stage::start(shared).await?;
    let places = visited.places();
    for (cause, place) in &places {
        let died = stage.die(*cause, place).await;
        died.map_err(|error| Error(format!("{cause:?}, {place} ({visited}): {error}")))?;
    }
    println!("subscriptions, crash: a worker died at {} places", places.len());
    Ok(())
}

/// Which places a run visits.
#[derive(Debug, Clone, Copy)]
enum Visited {
    All,
    /// Every fifth, from this one on.
    Part(u64),
}

impl Visited {
    /// # Panics
    /// If the variable holds anything but `all`.
    fn by_environment() -> Self {
        match std::env::var(VARIABLE) {
            Ok(text) if text == "all" => Self::All,
            Ok(text) if !text.is_empty() => panic!("{VARIABLE} is {text:?}: set it to all, or unset it"),
            _ => Self::Part(dice::seed() % PARTS),
        }
    }

    fn places(self) -> Vec<(Cause, &'static str)> {
        match self {
            Self::All => PLACES.to_vec(),
            Self::Part(part) => PLACES.into_iter().skip(part as usize).step_by(PARTS as usize).collect(),
        }
    }
}

/// With the command that visits the same places again.
impl fmt::Display for Visited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = "cargo test --test it -- subscriptions::crash::";
        match self {
            Self::All => write!(f, "all {} places; again: {VARIABLE}=all {command}", PLACES.len()),
            Self::Part(part) => {
                write!(f, "fifth {} of {PARTS}; again: TRIBUTARY_TEST_SEED={part} {command}", part + 1)
            }
        }
    }
}

struct Stage {
    scene: Scene,
    secrets: u32,
    moves: u32,
}

impl Stage {
    async fn start(shared: &Shared) -> Result<Self> {
        // An Acknowledge is repeated for longer than a worker is away: one that the provider has given up leaves a subscription
        // that never sends anything, and of which nobody can learn the id.
        let patient = |settings: &mut Settings| {
            settings.knobs.accounting.retries = vec![500; 120];
            settings.knobs.invoicing.receiver_paths = ReceiverPaths::Any;
        };
        let scene = Scene::start(shared, "subs-crash", 1, patient).await?;
        let stage = Self { scene, secrets: 1, moves: 0 };
        stage.scene.connect(&stage.settings()).await?;
        stage.stands().await?;
        Ok(stage)
    }

    /// What the connector is configured with now.
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
            // A worker may die after it has answered the echo of a hook and before its note of the echo is in Kafka. The hook is
            // deleted and recreated after this time.
            ("subscriptions.acknowledge.timeout.ms", "15000"),
        ]
    }

    /// What the receivers are called now.
    fn host(&self) -> String {
        if self.moves.is_multiple_of(2) { HOST.to_owned() } else { format!("other.{HOST}") }
    }

    /// Says what people want, as soon as the worker takes it. One that has died takes nothing.
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

    async fn die(&mut self, cause: Cause, place: &str) -> Result<()> {
        let at = format!("subscriptions.{place}");
        if cause == Cause::Apply {
            self.wish("remove").await?;
            self.is_empty().await?;
        }
        // The provider does nothing of its own while nobody is there to notice it.
        self.scene.stage.workers[0].kill();
        match cause {
            Cause::Move => {
                self.moves += 1;
                self.scene.rename(&self.host())?;
            }
            Cause::Orphan => {
                self.scene.stage.workers[0].start_again_to_die("subscriptions.subscribe.called").await?;
                self.scene.stage.reach(0)?;
                self.rotate().await?;
                self.scene.stage.workers[0].dead().await?;
            }
            _ => {}
        }
        if cause == Cause::Lose || cause == Cause::Disable {
            let provider = self.scene.stage.simulator.provider();
            let webhook = self.scene.webhooks()[0].id;
            if cause == Cause::Disable {
                assert!(provider.accounting.disable(webhook));
            } else {
                assert!(provider.accounting.lose(webhook, false));
            }
        }
        if cause == Cause::Pause {
            let provider = self.scene.stage.simulator.provider();
            let hook = provider.invoicing.hooks()[0].id;
            assert!(provider.invoicing.pause(hook, true));
        }
        self.scene.stage.workers[0].start_again_to_die(&at).await?;
        self.scene.stage.reach(0)?;
        match cause {
            Cause::Remove => self.wish("remove").await.ok(),
            Cause::Apply => self.wish("apply").await.ok(),
            Cause::Rotate => self.rotate().await.ok(),
            _ => None,
        };
        self.scene.stage.workers[0].dead().await?;

        self.scene.stage.workers[0].start_again().await?;
        self.scene.stage.reach(0)?;
        match cause {
            Cause::Remove => {
                self.wish("remove").await?;
                self.is_empty().await?;
                self.wish("apply").await?;
            }
            Cause::Apply => self.wish("apply").await?,
            Cause::Rotate => self.scene.configure(&self.settings()).await?,
            _ => {}
        }
        self.stands().await
    }

    async fn rotate(&mut self) -> Result<()> {
        self.secrets += 1;
        self.scene.configure(&self.settings()).await
    }

    /// Waits until nothing of ours is there.
    async fn is_empty(&self) -> Result<()> {
        // One that nobody knew of is found by its Acknowledge, and deleted.
        let none = |ledger: &Ledger| {
            self.ours().is_empty() && !ledger.subscriptions.values().any(|one| one.phase.may_live())
        };
        self.scene.ledger().await?.until(&self.scene, "all deleted", none).await.map(drop)
    }

    fn ours(&self) -> Vec<WebhookTruth> {
        self.scene.webhooks()
    }

    /// Waits until everything is as declared, and holds it against what the provider has.
    async fn stands(&self) -> Result<()> {
        let secret = self.settings()[1].1;
        let wanted = model::Fingerprint::of(secret);
        let done = |ledger: &Ledger| {
            // The ledger may say what stood before the worker died.
            let hooks = self.scene.stage.simulator.provider().invoicing.hooks();
            let living = self.scene.webhooks();
            // One that nobody knew of is found by its Acknowledge, and deleted.
            if hooks.iter().any(|hook| hook.paused)
                || living.len() != 2
                || living.iter().any(|one| one.state != WebhookState::Active)
            {
                return false;
            }
            // A move that was cut off is done once it is seen.
            let there = format!("https://{}/", self.host());
            let is_known = |one: &WebhookTruth| {
                one.url.starts_with(&there)
                    && ledger.by_id(&one.id.to_string()).is_some_and(|known| known.url == one.url)
            };
            if !living.iter().all(is_known) {
                return false;
            }
            let current = ledger.subscriptions.values().filter(|one| one.phase.may_live());
            let current = current.filter(|one| one.target.resource().is_some());
            active(ledger).len() == 3
                && ledger.is_done()
                && ledger.wish.as_ref().is_none_or(|wish| !wish.removed)
                && current.clone().all(|one| one.fingerprint == wanted)
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
            assert!(known.is_some_and(|known| known.url == one.url), "{one:?}: {known:?}");
        }
        let hooks = self.scene.stage.simulator.provider().invoicing.hooks();
        assert_eq!(hooks.iter().filter(|hook| !hook.paused).count(), 1, "{hooks:?}");
        assert_eq!(hooks.len(), 1, "{hooks:?}");
        // A question to its own address that a dying or busy worker did not answer in time sends the hook to the shared one.
        let path = hooks[0].uri.split_once("/api/webhooks/incoming/Invoicing").map(|(_, path)| path);
        assert!(matches!(path, Some("" | "/customer-created")), "{hooks:?}");
        let known: Vec<&str> = ledger
            .subscriptions
            .values()
            .filter(|one| one.phase.may_live() && one.target.resource().is_none())
            .map(|one| &*one.url)
            .collect();
        assert_eq!(known, [&*hooks[0].uri]);
        Ok(())
    }
}
