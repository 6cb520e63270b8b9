//! The steps of the demo, and the display during them.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::{
    DemoOptions,
    deliveries::{DeliveryFigures, by_topic},
    lists::ListRun,
    screen::{Screen, StatusBoard},
    summary::{DemoResult, ListRuns, LoginCheck, RecoveryCheck},
    system::{DemoSystem, TIMEOUT},
};
use crate::cli::Result;

/// Interval of display updates.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The same after the measurements.
const IDLE_POLL: Duration = Duration::from_secs(1);
/// Interval of status lines without a live terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of each wait.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the steps on a system and shows them on a screen.
pub(super) struct Scenario<'a, 'b> {
    system: &'a DemoSystem,
    screen: &'a mut Screen<'b>,
    /// The newest run that reads lists, if it is shown; else null.
    run: Value,
    doing: &'static str,
    is_reachable: bool,
    /// Time of the last status line; `None` while none are printed.
    line: Option<Instant>,
    most_spooled: u64,
}

impl<'a, 'b> Scenario<'a, 'b> {
    pub(super) fn new(system: &'a DemoSystem, screen: &'a mut Screen<'b>) -> Self {
        let run = Value::Null;
        Self { system, screen, run, doing: "starting", is_reachable: true, line: None, most_spooled: 0 }
    }

    /// All steps, from creating the connectors to the verification.
    pub(super) async fn run(&mut self, options: &DemoOptions) -> Result<DemoResult> {
        let system = self.system;
        self.begin(options.rate).await?;
        let listed = self.through_an_outage(Duration::from_secs(options.seconds.into()) / 3).await?;
        system.change(0.0);
        self.doing = "waiting for deliveries in flight";
        let settled = self.in_time(system.settled()).await?.unwrap_or_default();
        let figures = system.figures();
        self.write_line()?;
        self.line = None;

        self.doing = "reading the topics back";
        let delivery_check = self.during(system.delivery_check(&settled)).await??;
        self.screen.event(&format!("events read back: {}", by_topic(&delivery_check.topics)))?;
        let notified = self.during(system.notified(&settled)).await??;
        self.screen.event(&format!("invoicing events read back: {}", by_topic(&notified.topics)))?;
        let enriched = self.during(system.enriched(STEP_TIMEOUT)).await??;
        self.screen.event(&format!(
            "records read back: {} behind {} events, {} of them deleted",
            enriched.records, enriched.events, enriched.deleted
        ))?;
        // The task may still be restarting after the outage.
        let is_running = self.in_time(system.is_running()).await?.is_some();
        let state = system.state().await;
        let (enabled_after, gap) = self.through_a_gap().await?;
        let registered_after = self.through_a_lost_hook().await?;
        self.doing = "reading the list of payroll companies once more";
        let payroll = self.during(system.payroll(STEP_TIMEOUT)).await??;
        self.screen.event(&format!(
            "payroll read again and compared: {} companies, {} missing or different",
            payroll.companies, payroll.different
        ))?;
        self.doing = "verifying: every list against the topics";
        let compared = self.during(system.compared(STEP_TIMEOUT)).await?;
        self.screen
            .event(&format!("verified, source against topics: {} rows compared", compared.number("/rows")))?;
        // Last, because any earlier step may have written dead letters.
        let letters = self.during(system.letters()).await??;
        Ok(DemoResult {
            figures,
            most_spooled: self.most_spooled,
            delivery_check,
            notified,
            payroll,
            letters,
            enriched,
            lists: ListRuns { listed, compared },
            login: LoginCheck { refreshes: system.refreshes(), is_running, state },
            recovery: RecoveryCheck { enabled_after, gap, registered_after },
        })
    }

    /// Keeps the provider changing data until the caller drops the future.
    pub(super) async fn keep_changing(&mut self, rate: u32) -> Result {
        self.system.change(f64::from(rate));
        self.doing = "staying up until Ctrl-C";
        loop {
            if self.screen.terminal.is_live {
                let run = self.system.newest_run().await;
                self.look(run)?;
            }
            sleep(IDLE_POLL).await;
        }
    }

    /// Creates connectors and subscriptions, and waits for the first event.
    async fn begin(&mut self, rate: u32) -> Result {
        let system = self.system;
        self.doing = "waiting for the connectors";
        self.during(system.connect()).await??;
        self.screen.event("both connectors are created")?;
        self.doing = "waiting for the subscriptions";
        let subscribed = self.during(timeout(TIMEOUT, system.subscribed())).await??;
        self.screen.event(&format!(
            "{subscribed} subscriptions made by the worker, each acknowledged; the provider makes {rate} changes per second"
        ))?;
        let before = system.figures().published;
        system.change(f64::from(rate));
        self.during(timeout(TIMEOUT, system.published_more(before))).await??;
        self.screen.event(&format!("first event after {:.1} s", self.screen.seconds()))
    }

    /// Three phases of this length: lists are read, Kafka is down, Kafka is back.
    async fn through_an_outage(&mut self, third: Duration) -> Result<ListRun> {
        let system = self.system;
        if !self.screen.terminal.is_live {
            self.screen.print(&format!("\n{:>8}  {:<10} {}", "", "Kafka", DeliveryFigures::HEAD))?;
        }
        self.line = Some(Instant::now());
        let end = tokio::time::Instant::now() + third;
        self.doing = "receiving events, and reading every list in full";
        let listed = ListRun(self.in_time(system.over("initial")).await?.unwrap_or_default());
        self.screen.event(&format!(
            "snapshot: {} of {} lists certified complete, {} rows on {} pages, {} records published",
            listed.number("/collections/certified"),
            listed.number("/collections/total"),
            listed.number("/rows"),
            listed.number("/pages"),
            listed.number("/published")
        ))?;
        self.during(sleep_until(end)).await?;

        system.set_reachable(false)?;
        self.is_reachable = false;
        self.doing = "Kafka is down: deliveries go to the spool";
        self.screen.event("Kafka is cut off: deliveries are answered once they are in the spool")?;
        let end = tokio::time::Instant::now() + third;
        // A delivery waits for Kafka before it goes to the spool.
        self.in_time(system.spool_is_empty(false)).await?;
        self.during(sleep_until(end)).await?;

        system.set_reachable(true)?;
        self.is_reachable = true;
        self.doing = "Kafka is back: the spool drains";
        self.screen
            .event(&format!("Kafka is back, with {} deliveries in the spool", system.figures().spooled))?;
        let (back, end) = (Instant::now(), tokio::time::Instant::now() + third);
        if self.in_time(system.spool_is_empty(true)).await?.is_some() {
            let seconds = back.elapsed().as_secs_f64();
            self.screen.event(&format!("spool drained in {seconds:.1} s"))?;
        }
        self.doing = "receiving events";
        self.during(sleep_until(end)).await?;
        Ok(listed)
    }

    /// The provider disables a subscription. Returns the seconds until it was enabled again, and the state of the gap.
    async fn through_a_gap(&mut self) -> Result<(Option<f64>, Option<String>)> {
        let system = self.system;
        self.doing = "the provider has disabled a subscription";
        // Two waits: for the requested repair and for the subscription.
        let disabled = self.during(timeout(2 * STEP_TIMEOUT, system.disable_one())).await?;
        let Some((target, after)) = disabled.ok().flatten() else {
            self.screen.event("a subscription that the provider disabled was not enabled again")?;
            return Ok((None, None));
        };
        self.screen.event(&format!(
            "the provider disabled {target}: enabled again {after:.1} s later, with a gap for the time between and a repair requested"
        ))?;
        self.doing = "repairing the gap";
        let gap = self.in_time(system.repaired()).await?;
        let state = gap.as_deref().unwrap_or("still open: not repaired in time");
        self.screen.event(&format!("the gap is {state}"))?;
        Ok((Some(after), gap))
    }

    /// The provider deletes a hook. Returns the seconds until it was registered again.
    async fn through_a_lost_hook(&mut self) -> Result<Option<f64>> {
        self.doing = "an invoicing hook was deleted at the provider";
        let after = self.in_time(self.system.lose_a_hook()).await?.flatten();
        self.screen.event(&match after {
            Some(after) => {
                format!("an invoicing hook was deleted at the provider: registered again {after:.1} s later")
            }
            None => "an invoicing hook that was deleted at the provider was not registered again".to_owned(),
        })?;
        Ok(after)
    }

    /// [`Self::during`] with [`STEP_TIMEOUT`]; `None` after the timeout.
    async fn in_time<T>(&mut self, work: impl Future<Output = T>) -> Result<Option<T>> {
        Ok(self.during(timeout(STEP_TIMEOUT, work)).await?.ok())
    }

    /// Runs `work` and updates the display meanwhile.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        // A large future.
        let mut work = Box::pin(work);
        let mut looks = interval(POLL_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (system, is_live) = (self.system, self.screen.terminal.is_live);
        loop {
            let look = async {
                looks.tick().await;
                let newest = timeout(POLL_INTERVAL, system.newest_run());
                if is_live { newest.await.unwrap_or_default() } else { Value::Null }
            };
            tokio::select! {
                done = &mut work => return Ok(done),
                run = look => self.look(run)?,
            }
        }
    }

    fn look(&mut self, run: Value) -> Result {
        if !run.is_null() {
            self.run = run;
        }
        let figures = self.system.figures();
        self.most_spooled = self.most_spooled.max(figures.spooled);
        if self.screen.terminal.is_live {
            return self.screen.show(&StatusBoard {
                doing: self.doing,
                is_reachable: self.is_reachable,
                figures,
                run: self.run.clone(),
                refreshes: self.system.refreshes(),
            });
        }
        match self.line {
            Some(last) if last.elapsed() >= LINE_INTERVAL => self.write_line(),
            _ => Ok(()),
        }
    }

    fn write_line(&mut self) -> Result {
        if self.screen.terminal.is_live {
            return Ok(());
        }
        self.line = Some(Instant::now());
        self.screen.line(self.is_reachable, &self.system.figures())
    }
}
