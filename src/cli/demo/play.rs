//! What happens in the demo, in order, and how it is watched meanwhile.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::{
    Options,
    ledger::{Figures, by_topic},
    lists::Run,
    screen::{Board, Screen},
    stage::{LIMIT, Stage},
    summary::Counted,
};
use crate::cli::Result;

/// How often is looked at how everything stands.
const LOOK: Duration = Duration::from_millis(250);
/// The same once nothing is measured any more.
const CALM_LOOK: Duration = Duration::from_secs(1);
/// How often a line is printed where nothing stays in place.
const LINE: Duration = Duration::from_secs(1);
/// How long the last deliveries, the spool and everything that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stage and who watches it.
pub(super) struct Play<'a, 'b> {
    stage: &'a Stage,
    screen: &'a mut Screen<'b>,
    /// The newest one that reads lists, where it is shown; else null.
    run: Value,
    doing: &'static str,
    is_reachable: bool,
    /// Whether lines are printed, and when the last one was.
    line: Option<Instant>,
    most_spooled: u64,
}

impl<'a, 'b> Play<'a, 'b> {
    pub(super) fn new(stage: &'a Stage, screen: &'a mut Screen<'b>) -> Self {
        let run = Value::Null;
        Self { stage, screen, run, doing: "starting", is_reachable: true, line: None, most_spooled: 0 }
    }

    /// From connectors that are not there yet to the last count.
    pub(super) async fn run(&mut self, options: &Options) -> Result<Counted> {
        let stage = self.stage;
        self.begin(options.rate).await?;
        let listed = self.through_an_outage(Duration::from_secs(options.seconds.into()) / 3).await?;
        stage.change(0.0);
        self.doing = "waiting until nothing is on its way any more";
        let settled = self.in_time(stage.settled()).await?.unwrap_or_default();
        let figures = stage.figures();
        self.write_line()?;
        self.line = None;

        self.doing = "reading the topics back";
        let verdict = self.during(stage.verdict(&settled)).await??;
        self.screen.tell(&format!("events read back: {}", by_topic(&verdict.topics)))?;
        let notified = self.during(stage.notified(&settled)).await??;
        self.screen.tell(&format!("invoicing events read back: {}", by_topic(&notified.topics)))?;
        let enriched = self.during(stage.enriched(PATIENCE)).await??;
        self.screen.tell(&format!(
            "records read back: {} behind {} events, {} of them deleted",
            enriched.records, enriched.events, enriched.deleted
        ))?;
        // The task may be on its way back to its worker after the outage.
        let runs = self.in_time(stage.is_running()).await?.is_some();
        let standing = (runs, stage.state().await);
        let (enabled_after, gap) = self.through_a_gap().await?;
        let registered_after = self.through_a_lost_hook().await?;
        self.doing = "reading the list of payroll companies once more";
        let payroll = self.during(stage.payroll(PATIENCE)).await??;
        self.screen.tell(&format!(
            "payroll read again and compared: {} companies, {} missing or different",
            payroll.companies, payroll.different
        ))?;
        self.doing = "verifying: every list against the topics";
        let compared = self.during(stage.compared(PATIENCE)).await?;
        self.screen
            .tell(&format!("verified, source against topics: {} rows compared", compared.number("/rows")))?;
        // Last: whatever came before may have given something up.
        let letters = self.during(stage.letters()).await??;
        let (most_spooled, refreshes) = (self.most_spooled, stage.refreshes());
        Ok(Counted {
            figures,
            verdict,
            notified,
            payroll,
            letters,
            most_spooled,
            enriched,
            listed,
            compared,
            standing,
            refreshes,
            enabled_after,
            gap,
            registered_after,
        })
    }

    /// Keeps the provider changing things until the caller drops this.
    pub(super) async fn go_on(&mut self, rate: u32) -> Result {
        self.stage.change(f64::from(rate));
        self.doing = "staying up until Ctrl-C";
        loop {
            if self.screen.terminal.is_live {
                let run = self.stage.newest_run().await;
                self.look(run)?;
            }
            sleep(CALM_LOOK).await;
        }
    }

    /// Up to the first event.
    async fn begin(&mut self, rate: u32) -> Result {
        let stage = self.stage;
        self.doing = "waiting for the connectors";
        self.during(stage.connect()).await??;
        self.screen.tell("both connectors are created")?;
        self.doing = "waiting for the subscriptions";
        let subscribed = self.during(timeout(LIMIT, stage.subscribed())).await??;
        self.screen.tell(&format!(
            "{subscribed} subscriptions made by the worker, each acknowledged; the provider changes {rate} things a second"
        ))?;
        let before = stage.figures().published;
        stage.change(f64::from(rate));
        self.during(timeout(LIMIT, stage.published_more(before))).await??;
        self.screen.tell(&format!("first event after {:.1} s", self.screen.seconds()))
    }

    /// Three times as long as this, Kafka being away in the middle; the lists are read before that.
    async fn through_an_outage(&mut self, third: Duration) -> Result<Run> {
        let stage = self.stage;
        if !self.screen.terminal.is_live {
            self.screen.print(&format!("\n{:>8}  {:<10} {}", "", "Kafka", Figures::HEAD))?;
        }
        self.line = Some(Instant::now());
        let end = tokio::time::Instant::now() + third;
        self.doing = "events as they happen, and every list in full";
        let listed = Run(self.in_time(stage.over("initial")).await?.unwrap_or_default());
        self.screen.tell(&format!(
            "snapshot: {} of {} lists certified complete, {} rows on {} pages, {} records published",
            listed.number("/collections/certified"),
            listed.number("/collections/total"),
            listed.number("/rows"),
            listed.number("/pages"),
            listed.number("/published")
        ))?;
        self.during(sleep_until(end)).await?;

        stage.set_reachable(false)?;
        self.is_reachable = false;
        self.doing = "Kafka is away: deliveries are answered from the spool";
        self.screen.tell("Kafka is cut off: deliveries are answered once they are in the spool")?;
        let end = tokio::time::Instant::now() + third;
        // A delivery waits for Kafka for a while before it goes there.
        self.in_time(stage.spool_is_empty(false)).await?;
        self.during(sleep_until(end)).await?;

        stage.set_reachable(true)?;
        self.is_reachable = true;
        self.doing = "Kafka is back: the spool is published";
        self.screen
            .tell(&format!("Kafka is back, with {} deliveries in the spool", stage.figures().spooled))?;
        let (back, end) = (Instant::now(), tokio::time::Instant::now() + third);
        if self.in_time(stage.spool_is_empty(true)).await?.is_some() {
            let seconds = back.elapsed().as_secs_f64();
            self.screen.tell(&format!("the spool is empty {seconds:.1} s later"))?;
        }
        self.doing = "events as they happen";
        self.during(sleep_until(end)).await?;
        Ok(listed)
    }

    /// The provider disables a subscription. Seconds until it was enabled again, and what became of the gap.
    async fn through_a_gap(&mut self) -> Result<(Option<f64>, Option<String>)> {
        let stage = self.stage;
        self.doing = "the provider has disabled a subscription";
        // Two waits: for the repair that is asked for, and for the subscription.
        let disabled = self.during(timeout(2 * PATIENCE, stage.disable_one())).await?;
        let Some((target, after)) = disabled.ok().flatten() else {
            self.screen.tell("a subscription that the provider disabled was not enabled again")?;
            return Ok((None, None));
        };
        self.screen.tell(&format!(
            "the provider disabled {target}: {after:.1} s later it was enabled again, with a gap for the time between and a repair asked for"
        ))?;
        self.doing = "what the gap may have cost is read again";
        let gap = self.in_time(stage.repaired()).await?;
        let state = gap.as_deref().unwrap_or("open: nothing has mended it in time");
        self.screen.tell(&format!("what the gap may have cost was read again: it is {state}"))?;
        Ok((Some(after), gap))
    }

    /// A hook is deleted at the provider. Seconds until it was registered again.
    async fn through_a_lost_hook(&mut self) -> Result<Option<f64>> {
        self.doing = "an invoicing hook was deleted at the provider";
        let after = self.in_time(self.stage.lose_a_hook()).await?.flatten();
        self.screen.tell(&match after {
            Some(after) => {
                format!("an invoicing hook was deleted at the provider: registered again {after:.1} s later")
            }
            None => "an invoicing hook that was deleted at the provider was not registered again".to_owned(),
        })?;
        Ok(after)
    }

    /// As [`Self::during`], for at most [`PATIENCE`]; `None` if it is not done by then.
    async fn in_time<T>(&mut self, work: impl Future<Output = T>) -> Result<Option<T>> {
        Ok(self.during(timeout(PATIENCE, work)).await?.ok())
    }

    /// Does something, and shows meanwhile how everything stands.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        // Large, and one at a time.
        let mut work = Box::pin(work);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (stage, is_live) = (self.stage, self.screen.terminal.is_live);
        loop {
            let look = async {
                looks.tick().await;
                let newest = timeout(LOOK, stage.newest_run());
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
        let figures = self.stage.figures();
        self.most_spooled = self.most_spooled.max(figures.spooled);
        if self.screen.terminal.is_live {
            return self.screen.show(&Board {
                doing: self.doing,
                is_reachable: self.is_reachable,
                figures,
                run: self.run.clone(),
                refreshes: self.stage.refreshes(),
            });
        }
        match self.line {
            Some(last) if last.elapsed() >= LINE => self.write_line(),
            _ => Ok(()),
        }
    }

    fn write_line(&mut self) -> Result {
        if self.screen.terminal.is_live {
            return Ok(());
        }
        self.line = Some(Instant::now());
        self.screen.line(self.is_reachable, &self.stage.figures())
    }
}
