//! A member process, which can be frozen and killed like a worker.
//!
//! It is a copy of this binary that joins the group and polls, every millisecond or without a pause, which partitions it holds. It
//! prints changes: `take PARTITION CLAIM TIME` and `lose PARTITION CLAIM TIME`, each with a time at which it certainly held the
//! partition, by a clock that all processes share; and `thawed COUNT` after it was frozen, with the number of partitions that it
//! held at the first poll. At any line of input, or at its end, it leaves the group and prints `left`.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka::Membership;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use super::assigned::{self, AssignedTopic, Claims, PARTITIONS};
use crate::support::process::Process;
use crate::support::topics::LIMIT;
use crate::support::{Result, run_directory};

/// Set for the copy: the bootstrap servers.
pub(crate) const MEMBER: &str = "TRIBUTARY_TEST_MEMBER";
/// Set for the copy: the topic.
const TOPIC: &str = "TRIBUTARY_TEST_MEMBER_TOPIC";
/// Set for the copy: its name.
const NAME: &str = "TRIBUTARY_TEST_MEMBER_NAME";

/// Set for a copy that polls without a pause.
const EAGER: &str = "TRIBUTARY_TEST_MEMBER_EAGER";

/// Between two polls.
const STEP: Duration = Duration::from_millis(1);
/// A member that has not polled for this long was frozen.
const FROZEN: Duration = Duration::from_secs(4);

/// The main function of the copy.
pub(crate) fn member() -> ExitCode {
    let of = |variable: &str| std::env::var(variable).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let membership = runtime.block_on(assigned::join(&of(MEMBER), &of(TOPIC), &of(NAME)));
    println!("joined");
    let over = Arc::new(AtomicBool::new(false));
    let (watched, until) = (membership.clone(), Arc::clone(&over));
    let watch = std::thread::spawn(move || watch(&watched, &until));
    std::io::stdin().read_line(&mut String::new()).unwrap();
    runtime.block_on(membership.leave());
    over.store(true, Ordering::Release);
    watch.join().unwrap();
    println!("left");
    ExitCode::SUCCESS
}

fn watch(membership: &Membership, over: &AtomicBool) {
    // The claim of each partition that is held, and when that was last seen.
    let mut held: BTreeMap<i32, (i64, Duration)> = BTreeMap::new();
    let eager = std::env::var_os(EAGER).is_some();
    let mut looked = now();
    // Partitions polled since a freeze, and how many of them were held.
    let mut thawed: Option<(i32, usize)> = None;
    loop {
        // Read before the poll, so that the last poll prints the loss of everything.
        let last = over.load(Ordering::Acquire);
        let owned = membership.owned();
        for partition in 0..PARTITIONS {
            let claim = owned.borrow().get(&partition).copied();
            let before = now();
            if before - looked > FROZEN {
                thawed = Some((0, 0));
            }
            looked = before;
            let holds = membership.holds(partition);
            let claim = claim.filter(|_| holds);
            match (held.get(&partition).copied(), claim) {
                (Some((known, _)), Some(claim)) if known == claim => {
                    held.insert(partition, (claim, before));
                }
                (known, claim) => {
                    if let Some((known, seen)) = known {
                        println!("lose {partition} {known} {}", seen.as_nanos());
                        held.remove(&partition);
                    }
                    if let Some(claim) = claim {
                        let seen = now();
                        println!("take {partition} {claim} {}", seen.as_nanos());
                        held.insert(partition, (claim, seen));
                    }
                }
            }
            thawed = thawed.map(|(looks, found)| (looks + 1, found + usize::from(holds)));
            if let Some((PARTITIONS, found)) = thawed {
                println!("thawed {found}");
                thawed = None;
            }
        }
        if last {
            return;
        }
        if !eager {
            std::thread::sleep(STEP);
        }
    }
}

/// The time by a clock that all processes of a machine share.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap())
}

/// A period in which a member held a partition.
#[derive(Debug, Clone)]
pub(super) struct HoldingSpan {
    pub(super) member: String,
    pub(super) partition: i32,
    pub(super) claim: i64,
    pub(super) from: Duration,
    pub(super) to: Duration,
}

/// The handle of that process.
pub(super) struct MemberProcess {
    process: Process,
    name: String,
}

impl MemberProcess {
    /// Starts one and waits until it has joined; partitions come later.
    pub(super) async fn start(bootstrap: &str, topic: &AssignedTopic, name: &str) -> Result<Self> {
        Self::start_as(bootstrap, topic, name, false).await
    }

    /// A member that polls without a pause: once it is thawed, it polls before its other threads run.
    pub(super) async fn start_eager(bootstrap: &str, topic: &AssignedTopic, name: &str) -> Result<Self> {
        Self::start_as(bootstrap, topic, name, true).await
    }

    async fn start_as(bootstrap: &str, topic: &AssignedTopic, name: &str, eager: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(MEMBER, bootstrap).env(TOPIC, &topic.name).env(NAME, name);
        if eager {
            command.env(EAGER, "");
        }
        let log = run_directory::create("member")?.join("log");
        let process = Process::spawn_listening(name, command, &log)?;
        process.until_said("joined", LIMIT).await?;
        Ok(Self { process, name: name.to_owned() })
    }

    /// The partitions that it holds by its output.
    pub(super) fn held(&self) -> Claims {
        let mut held = Claims::new();
        for line in self.lines() {
            match line {
                ReportLine::Take { partition, claim, .. } => drop(held.insert(partition, claim)),
                ReportLine::Lose { partition, .. } => drop(held.remove(&partition)),
                ReportLine::Thawed { .. } => {}
            }
        }
        held
    }

    /// The number of partitions that it held at its first poll after each freeze.
    pub(super) fn thawed(&self) -> Vec<usize> {
        let held = |line| if let ReportLine::Thawed { held } = line { Some(held) } else { None };
        self.lines().into_iter().filter_map(held).collect()
    }

    /// Every period in which it held a partition. One that it has not reported as lost ends at `end`.
    pub(super) fn spans(&self, end: Option<Duration>) -> Vec<HoldingSpan> {
        let mut open: BTreeMap<i32, HoldingSpan> = BTreeMap::new();
        let mut spans = Vec::new();
        for line in self.lines() {
            match line {
                ReportLine::Take { partition, claim, at } => {
                    let member = self.name.clone();
                    open.insert(partition, HoldingSpan { member, partition, claim, from: at, to: at });
                }
                ReportLine::Lose { partition, at } => {
                    spans.push(HoldingSpan { to: at, ..open.remove(&partition).unwrap() });
                }
                ReportLine::Thawed { .. } => {}
            }
        }
        match end {
            Some(end) => {
                spans.extend(open.into_values().map(|span| HoldingSpan { to: end.max(span.from), ..span }))
            }
            None => assert!(open.is_empty(), "{} still holds {open:?}", self.name),
        }
        spans
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    pub(super) fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// SIGKILL; the periods in which it held partitions.
    pub(super) fn kill(&self) -> Vec<HoldingSpan> {
        let last = now();
        self.process.kill();
        self.spans(Some(last))
    }

    /// Has it leave the group; the periods in which it held partitions.
    pub(super) async fn leave(&self) -> Result<Vec<HoldingSpan>> {
        self.process.write_line("leave")?;
        self.process.until_said("left", LIMIT).await.or_else(|error| match self.process.ended() {
            Some(status) if status.success() => Ok(()),
            _ => Err(error),
        })?;
        Ok(self.spans(None))
    }

    fn lines(&self) -> Vec<ReportLine> {
        let said = self.process.said();
        // The last line may be half written.
        let whole = &said[..said.rfind('\n').map_or(0, |end| end + 1)];
        whole.lines().filter_map(ReportLine::parse).collect()
    }
}

enum ReportLine {
    Take { partition: i32, claim: i64, at: Duration },
    Lose { partition: i32, at: Duration },
    Thawed { held: usize },
}

impl ReportLine {
    /// `None` for lines of librdkafka and others.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let at = |nanos: &str| nanos.parse().ok().map(Duration::from_nanos);
        match words[..] {
            ["take", partition, claim, nanos] => Some(Self::Take {
                partition: partition.parse().ok()?,
                claim: claim.parse().ok()?,
                at: at(nanos)?,
            }),
            ["lose", partition, _, nanos] => {
                Some(Self::Lose { partition: partition.parse().ok()?, at: at(nanos)? })
            }
            ["thawed", held] => Some(Self::Thawed { held: held.parse().ok()? }),
            _ => None,
        }
    }
}
