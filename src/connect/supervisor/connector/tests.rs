//! A class that hangs, as one does when its secrets are files on a mount that hangs.

use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use kafka::embedded::EmbeddedCluster;

use super::*;
use crate::{
    config::{KeyDef, Validation},
    plugin::{Past, Task, samples::properties},
    state::offsets::OffsetEdit,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Every check hangs until `free`.
#[derive(Debug, Default)]
struct Hanging {
    entered: AtomicUsize,
    free: Mutex<bool>,
    freed: Condvar,
}

impl Hanging {
    fn free(&self) {
        *self.free.lock().unwrap() = true;
        self.freed.notify_all();
    }

    /// Waits until a check has started.
    async fn was_entered(&self) {
        let entered = async {
            while self.entered.load(Ordering::Acquire) == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, entered).await.unwrap();
    }
}

#[async_trait]
impl Plugin for Hanging {
    fn class(&self) -> &'static str {
        "Hanging"
    }

    fn definitions(&self) -> Vec<KeyDef> {
        Vec::new()
    }

    fn validate(&self, _: &Properties, _: Depth) -> Validation {
        self.entered.fetch_add(1, Ordering::AcqRel);
        let free = self.free.lock().unwrap();
        // Bounded: a failing test must not leave a thread that its runtime waits for.
        drop(self.freed.wait_timeout_while(free, LIMIT, |free| !*free).unwrap());
        Validation { name: "Hanging".to_owned(), error_count: 0, groups: Vec::new(), configs: Vec::new() }
    }

    fn task_configs(&self, _: &str, config: &Properties) -> Result<Vec<Properties>, Failure> {
        Ok(vec![config.clone()])
    }

    async fn run(&self, _: Task) -> Result<(), Failure> {
        Ok(())
    }

    fn transactional_ids(&self, _: &str, _: &Properties, _: &Past) -> Vec<String> {
        Vec::new()
    }

    fn check_offsets(&self, _: &[OffsetEdit]) -> Result<(), String> {
        Ok(())
    }
}

struct Scene {
    _cluster: EmbeddedCluster,
    plugin: Arc<Hanging>,
    owner: TaskConfigWriter,
    config: Arc<Properties>,
}

async fn scene(limit: Duration) -> Scene {
    let cluster = EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("configs", 1).unwrap();
    let kafka = cluster.settings();
    let configs = Table::follow(&kafka, "configs", 1).await.unwrap();
    let plugin = Arc::new(Hanging::default());
    let owner = TaskConfigWriter {
        name: "c".into(),
        plugins: Plugins::new([Arc::clone(&plugin) as Arc<dyn Plugin>]),
        config_writer: ConfigWriter::new(&kafka, configs.clone(), Vec::new()),
        configs,
        lease: Arc::new(|| true),
        lock: TaskConfigLocks::default().of(&"c".into()),
        limit,
    };
    let config = Arc::new(properties(&[("connector.class", "Hanging")]));
    Scene { _cluster: cluster, plugin, owner, config }
}

#[tokio::test]
async fn hanging_check_times_out_and_blocks_only_one_thread() {
    let Scene { plugin, mut owner, config, _cluster } = scene(Duration::from_millis(50)).await;

    for _ in 0..3 {
        let failure = owner.generate(&config).await.unwrap_err();
        assert_eq!((failure.kind, failure.retry.is_retriable()), ("TimedOut", true), "{failure}");
    }
    // On a busy machine the thread may start only after all three have timed out.
    plugin.was_entered().await;
    assert_eq!(plugin.entered.load(Ordering::Acquire), 1, "each attempt blocks one more thread");
    plugin.free();

    owner.limit = LIMIT;
    assert_eq!(owner.generate(&config).await.unwrap(), [(*config).clone()]);
}

#[tokio::test]
async fn connector_with_a_hanging_check_can_be_cancelled() {
    let Scene { plugin, owner, config, _cluster } = scene(LIMIT).await;
    let cancel = CancellationToken::new();
    let (_target, target) = watch::channel(TargetState::Running);
    let (_paused, paused) = watch::channel(false);
    let (startup, pause_reached) = Default::default();
    let run = BodyContext { config, target, paused, cancel: cancel.clone(), startup, pause_reached };
    let running = tokio::spawn(owner.run(run));
    plugin.was_entered().await;

    cancel.cancel();

    let ended = timeout(LIMIT / 2, running).await.expect("it waits for the check").unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    plugin.free();
}

#[test]
fn task_config_lock_lives_as_long_as_its_holder() {
    let mut locks = TaskConfigLocks::default();
    let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
    let first = locks.of(&one);

    assert!(Arc::ptr_eq(&first, &locks.of(&one)));
    assert!(!Arc::ptr_eq(&first, &locks.of(&two)));
    drop(first);
    locks.of(&two);

    assert_eq!(locks.running.len(), 1, "locks without a holder are dropped");
}
