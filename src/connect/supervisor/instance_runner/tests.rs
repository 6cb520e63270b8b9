use std::sync::atomic::{AtomicBool, Ordering};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use base::retry::BackoffPolicy;

use super::*;
use crate::{
    connect::supervisor::{Startups, SupervisorHandle, status_reporter},
    plugin::samples::properties,
    state::statuses::Status,
};

/// Limit for busy machines; a passing test never waits this long.
const LIMIT: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(5);

/// How a test ends a run of the body.
enum Ending {
    Returns(Result<(), Failure>),
    Panics,
}

/// One run of the body, as a test sees it.
struct ObservedRun {
    config: Arc<Properties>,
    paused: watch::Receiver<bool>,
    cancel: CancellationToken,
    end: oneshot::Sender<Ending>,
    /// Set if the test reports the start instead of the body.
    startup: Option<Arc<Notify>>,
    pause_reached: Arc<Notify>,
}

/// A runner whose body does what the test says.
struct Stage {
    runs: mpsc::UnboundedReceiver<ObservedRun>,
    reported: mpsc::UnboundedReceiver<Status>,
    instructions: watch::Sender<Instruction>,
    handle: SupervisorHandle,
    has_lease: Arc<AtomicBool>,
    runner_task: JoinHandle<()>,
}

fn desired(restarts: RestartRevisions) -> DesiredState {
    let config = Arc::new(properties(&[("topic", "a")]));
    DesiredState { config, revision: 0, target: TargetState::Running, restarts }
}

fn patient(panics: u32) -> Settings {
    let policy = BackoffPolicy { first: SOON, longest: SOON, total: None };
    let (healthy_after, panic_window) = (LIMIT, LIMIT);
    let restarting = RestartPolicy { policy, healthy_after, panics, panic_window };
    Settings { task_grace: LIMIT, lost_grace: SOON, restarting }
}

impl Stage {
    fn new(settings: Settings) -> Self {
        Self::with(settings, desired(RestartRevisions::default()), true)
    }

    /// `obeys`: whether the body ends when it is cancelled.
    fn with(settings: Settings, desired: DesiredState, obeys: bool) -> Self {
        Self::of(settings, desired, obeys, true)
    }

    /// `starts`: whether the body reports its start.
    fn of(settings: Settings, desired: DesiredState, obeys: bool, starts: bool) -> Self {
        let (observed, runs) = mpsc::unbounded_channel();
        let body: InstanceBody = Arc::new(move |run: BodyContext| {
            let observed = observed.clone();
            Box::pin(async move {
                let (end, ending) = oneshot::channel();
                let (cancel, paused, config) =
                    (run.cancel.clone(), run.paused.clone(), Arc::clone(&run.config));
                let startup = if starts {
                    run.startup.notify_one();
                    None
                } else {
                    Some(run.startup)
                };
                let pause_reached = run.pause_reached;
                observed.send(ObservedRun { config, paused, cancel, end, startup, pause_reached }).ok();
                let ending = tokio::select! {
                    ending = ending => ending.unwrap(),
                    () = run.cancel.cancelled(), if obeys => Ending::Returns(Ok(())),
                };
                match ending {
                    Ending::Returns(result) => result,
                    Ending::Panics => panic!("on request"),
                }
            })
        });
        let (reporter, handle, reported) = status_reporter::tests::reporter(None);
        let has_lease = Arc::new(AtomicBool::new(true));
        let lease: kafka::Lease = {
            let has_lease = Arc::clone(&has_lease);
            Arc::new(move || has_lease.load(Ordering::Acquire))
        };
        let id = InstanceId { connector: "c".into(), task: Some(0) };
        let runner = InstanceRunner::new(id, body, Arc::new(reporter), lease, settings);
        let (instructions, receiver) = watch::channel(Instruction::Run(desired));
        let runner_task = tokio::spawn(runner.run(receiver));
        Self { runs, reported, instructions, handle, has_lease, runner_task }
    }

    async fn next_run(&mut self) -> ObservedRun {
        timeout(LIMIT, self.runs.recv()).await.expect("the body was not started").unwrap()
    }

    async fn reports(&mut self, state: RunState) -> Status {
        let reported = timeout(LIMIT, self.reported.recv()).await.expect("nothing was reported").unwrap();
        assert_eq!(reported.state, state, "{reported:?}");
        reported
    }

    /// Reports that the test has not read.
    fn unread(&mut self) -> Vec<RunState> {
        std::iter::from_fn(|| self.reported.try_recv().ok()).map(|status| status.state).collect()
    }

    fn change(&self, change: impl FnOnce(&mut DesiredState)) {
        self.instructions.send_modify(|instruction| match instruction {
            Instruction::Run(desired) => change(desired),
            Instruction::End(_) => panic!("it was asked to end"),
        });
    }

    fn end(&self, deadline: Instant, report: bool) {
        self.instructions.send_replace(Instruction::End(StopRequest { deadline, report }));
    }

    async fn ends(self, report: bool) -> mpsc::UnboundedReceiver<Status> {
        self.end(Instant::now() + LIMIT, report);
        timeout(LIMIT, self.runner_task).await.expect("it has not ended").unwrap();
        self.reported
    }
}

fn retryable() -> Ending {
    Ending::Returns(Err(Failure::retryable("Flaky", "it rained")))
}

fn permanent() -> Ending {
    Ending::Returns(Err(Failure::permanent("Broken", "it broke", "repair it")))
}

#[tokio::test]
async fn retryable_failure_shows_restarting_then_running() {
    let mut stage = Stage::new(patient(0));

    for _ in 0..3 {
        stage.reports(RunState::Running).await;
        stage.next_run().await.end.send(retryable()).ok().unwrap();
        let trace = stage.reports(RunState::Restarting).await.trace.unwrap();
        assert!(trace.starts_with("Flaky: it rained\n") && trace.contains("Next: it restarts in"), "{trace}");
    }

    let running = stage.reports(RunState::Running).await;
    assert_eq!((running.trace, running.generation), (None, 5));
    assert_eq!(stage.handle.task_startups().attempts, 4);
}

#[tokio::test]
async fn instance_is_running_only_after_its_body_reports_the_start() {
    let mut stage = Stage::of(patient(0), desired(RestartRevisions::default()), true, false);

    for failures in 1..=2 {
        stage.next_run().await.end.send(retryable()).ok().unwrap();
        stage.reports(RunState::Restarting).await;
        let expected = Startups { attempts: failures, successes: 0, failures };
        let begun = stage.handle.task_startups();
        assert_eq!(Startups { attempts: failures, ..begun }, expected);
    }
    let run = stage.next_run().await;
    assert!(stage.unread().is_empty(), "it has not started yet");
    assert_eq!(stage.handle.running()[0].state, RunState::Restarting);
    run.startup.as_ref().unwrap().notify_one();
    run.startup.unwrap().notify_one();

    stage.reports(RunState::Running).await;
    assert_eq!(stage.handle.task_startups(), Startups { attempts: 3, successes: 1, failures: 2 });
    assert!(stage.unread().is_empty());
}

#[tokio::test]
async fn pause_before_the_start_shows_after_the_start() {
    let mut stage = Stage::of(patient(0), desired(RestartRevisions::default()), true, false);
    let mut run = stage.next_run().await;

    stage.change(|desired| desired.target = TargetState::Paused);
    timeout(LIMIT, run.paused.wait_for(|paused| *paused)).await.unwrap().unwrap();
    assert!(stage.unread().is_empty());
    run.startup.unwrap().notify_one();

    stage.reports(RunState::Paused).await;
}

#[tokio::test]
async fn failure_beyond_the_retry_budget_is_failed() {
    let mut settings = patient(0);
    settings.restarting.policy.total = Some(SOON);
    let mut stage = Stage::new(settings);

    // Jitter decides whether one or two waits spend the budget.
    loop {
        stage.reports(RunState::Running).await;
        stage.next_run().await.end.send(retryable()).ok().unwrap();
        match timeout(LIMIT, stage.reported.recv()).await.unwrap().unwrap().state {
            RunState::Restarting => {}
            RunState::Failed => break,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn permanent_failure_stays_failed_until_a_restart() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    stage.next_run().await.end.send(permanent()).ok().unwrap();

    let failed = stage.reports(RunState::Failed).await;
    assert!(failed.trace.unwrap().contains("\nRemedy: repair it\n"));
    stage.change(|desired| desired.target = TargetState::Paused);
    stage.change(|desired| desired.target = TargetState::Running);
    stage.change(|desired| desired.restarts.if_failed = 3);

    stage.reports(RunState::Restarting).await;
    stage.reports(RunState::Running).await;
    stage.next_run().await;
}

#[tokio::test]
async fn panics_beyond_the_limit_fail_the_instance() {
    let mut stage = Stage::new(patient(2));

    for state in [RunState::Restarting, RunState::Restarting, RunState::Failed] {
        stage.reports(RunState::Running).await;
        stage.next_run().await.end.send(Ending::Panics).ok().unwrap();
        let trace = stage.reports(state).await.trace.unwrap();
        assert!(trace.starts_with("Panicked: the program has a bug: on request"), "{trace}");
    }

    // A restart resets the count of panics.
    stage.change(|desired| desired.restarts.always = 1);
    stage.reports(RunState::Restarting).await;
    stage.reports(RunState::Running).await;
    stage.next_run().await.end.send(Ending::Panics).ok().unwrap();
    stage.reports(RunState::Restarting).await;
}

#[tokio::test]
async fn task_is_paused_only_after_its_body_has_paused() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    let mut run = stage.next_run().await;

    stage.change(|desired| desired.target = TargetState::Paused);
    timeout(LIMIT, run.paused.wait_for(|paused| *paused)).await.unwrap().unwrap();
    stage.change(|desired| desired.target = TargetState::Running);
    timeout(LIMIT, run.paused.wait_for(|paused| !*paused)).await.unwrap().unwrap();
    // Too late: it runs again by then, so the next report is RUNNING.
    run.pause_reached.notify_one();
    stage.reports(RunState::Running).await;

    stage.change(|desired| desired.target = TargetState::Paused);
    timeout(LIMIT, run.paused.wait_for(|paused| *paused)).await.unwrap().unwrap();
    run.pause_reached.notify_one();
    stage.reports(RunState::Paused).await;
}

#[tokio::test]
async fn pause_and_resume_do_not_restart_the_body() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    let mut run = stage.next_run().await;

    stage.change(|desired| desired.target = TargetState::Paused);
    assert!(*timeout(LIMIT, run.paused.wait_for(|paused| *paused)).await.unwrap().unwrap());
    run.pause_reached.notify_one();
    stage.reports(RunState::Paused).await;
    stage.change(|desired| desired.target = TargetState::Running);
    stage.reports(RunState::Running).await;
    assert!(!*timeout(LIMIT, run.paused.wait_for(|paused| !*paused)).await.unwrap().unwrap());

    assert!(!run.cancel.is_cancelled() && stage.runs.try_recv().is_err());
}

#[tokio::test]
async fn only_a_changed_configuration_restarts_the_body() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    let first = stage.next_run().await;

    stage.change(|desired| (desired.config, desired.revision) = (Arc::new(properties(&[("topic", "a")])), 1));
    stage.change(|desired| (desired.config, desired.revision) = (Arc::new(properties(&[("topic", "b")])), 2));

    stage.reports(RunState::Restarting).await;
    stage.reports(RunState::Running).await;
    assert!(first.cancel.is_cancelled());
    assert_eq!(*stage.next_run().await.config, properties(&[("topic", "b")]));
    assert!(stage.unread().is_empty());
}

#[tokio::test]
async fn restart_is_handled_once_and_not_if_requested_before_start() {
    let before = RestartRevisions { always: 7, if_failed: 7 };
    let mut stage = Stage::with(patient(0), desired(before), true);
    stage.reports(RunState::Running).await;
    stage.next_run().await;

    stage.change(|desired| desired.restarts = RestartRevisions { always: 7, if_failed: 9 });
    stage.change(|desired| desired.restarts = RestartRevisions { always: 8, if_failed: 9 });
    stage.reports(RunState::Restarting).await;
    stage.reports(RunState::Running).await;
    stage.next_run().await;
    stage.change(|desired| desired.revision += 1);

    // The end is served last, so every report before it has arrived.
    let mut reported = stage.ends(true).await;
    assert_eq!(reported.recv().await.unwrap().state, RunState::Unassigned);
    assert!(reported.recv().await.is_none());
}

#[tokio::test]
async fn restart_of_failed_instances_ignores_later_failures() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    let run = stage.next_run().await;

    stage.change(|desired| (desired.restarts.if_failed, desired.target) = (3, TargetState::Paused));
    run.pause_reached.notify_one();
    stage.reports(RunState::Paused).await;
    run.end.send(permanent()).ok().unwrap();
    stage.reports(RunState::Failed).await;
    stage.change(|desired| desired.target = TargetState::Running);

    let mut reported = stage.ends(false).await;
    assert!(reported.recv().await.is_none(), "it was restarted");
}

#[tokio::test]
async fn unreported_stop_writes_no_status_even_after_a_failure() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    stage.next_run().await.end.send(permanent()).ok().unwrap();
    stage.reports(RunState::Failed).await;
    let handle = stage.handle.clone();
    assert_eq!(handle.running().len(), 1);

    let mut reported = stage.ends(false).await;

    assert!(reported.recv().await.is_none());
    assert!(handle.running().is_empty());
}

#[tokio::test]
async fn lost_partition_aborts_a_body_sooner() {
    let mut stage = Stage::with(patient(0), desired(RestartRevisions::default()), false);
    stage.reports(RunState::Running).await;
    let run = stage.next_run().await;

    stage.end(Instant::now() + 10 * LIMIT, true);
    timeout(LIMIT, run.cancel.cancelled()).await.unwrap();
    stage.end(Instant::now(), false);

    timeout(LIMIT, stage.runner_task).await.expect("it was not aborted").unwrap();
    assert!(run.end.is_closed(), "the body is still there");
    assert!(stage.reported.recv().await.is_none());
}

#[tokio::test]
async fn failure_without_the_lease_is_not_reported_and_retried() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    let run = stage.next_run().await;

    stage.has_lease.store(false, Ordering::Release);
    run.end.send(permanent()).ok().unwrap();
    let next = stage.next_run().await;
    stage.has_lease.store(true, Ordering::Release);
    next.end.send(permanent()).ok().unwrap();

    stage.reports(RunState::Running).await;
    stage.reports(RunState::Failed).await;
}

#[tokio::test]
async fn body_that_returns_early_is_restarted() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;

    stage.next_run().await.end.send(Ending::Returns(Ok(()))).ok().unwrap();

    assert!(stage.reports(RunState::Restarting).await.trace.unwrap().starts_with("Ended: "));
    stage.next_run().await;
}

#[tokio::test]
async fn instances_end_when_the_supervisor_is_dropped() {
    let mut stage = Stage::new(patient(0));
    stage.reports(RunState::Running).await;
    stage.next_run().await;

    drop(stage.instructions);

    timeout(LIMIT, stage.runner_task).await.expect("it has outlived the supervisor").unwrap();
}
