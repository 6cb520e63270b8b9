//! A member in a process of its own, so that it can be frozen and killed as a worker is.
//!
//! It is a copy of this binary that joins and looks, every millisecond or all the time, which partitions it holds. It
//! says when that changes: `take PARTITION CLAIM TIME`, `lose PARTITION CLAIM TIME`, both with a moment at which it surely
//! held the partition, by a clock that all processes share; and `thawed COUNT` when it was frozen, with how many it held
//! the first time it could look again. Told anything, or at the end of its input, it leaves the group and says `left`.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka::Membership;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use super::work::{self, Claims, PARTITIONS, Work};
use crate::support::process::Process;
use crate::support::topics::LIMIT;
use crate::support::{Result, run_directory};

/// Set for the copy: where Kafka is.
pub(crate) const MEMBER: &str = "TRIBUTARY_TEST_MEMBER";
/// Set for the copy: the topic.
const TOPIC: &str = "TRIBUTARY_TEST_MEMBER_TOPIC";
/// Set for the copy: its name.
const NAME: &str = "TRIBUTARY_TEST_MEMBER_NAME";

/// Set for a copy that is to look without a pause.
const EAGER: &str = "TRIBUTARY_TEST_MEMBER_EAGER";

/// Between two looks.
const STEP: Duration = Duration::from_millis(1);
/// Whoever has not looked for this long was frozen.
const FROZEN: Duration = Duration::from_secs(4);

/// The copy's whole life.
pub(crate) fn member() -> ExitCode {
    let of = |variable: &str| std::env::var(variable).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let membership = runtime.block_on(work::join(&of(MEMBER), &of(TOPIC), &of(NAME)));
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
    // The claim of each partition held, and when it was last seen to be.
    let mut held: BTreeMap<i32, (i64, Duration)> = BTreeMap::new();
    let eager = std::env::var_os(EAGER).is_some();
    let mut looked = now();
    // Looks since a freeze, and how many of them found the partition held.
    let mut thawed: Option<(i32, usize)> = None;
    loop {
        // Before the look: a change to nothing must be said by the last one.
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

/// By a clock that all processes of a machine share.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap())
}

/// A time throughout which a member held a partition.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) member: String,
    pub(super) partition: i32,
    pub(super) claim: i64,
    pub(super) from: Duration,
    pub(super) to: Duration,
}

/// That process, as the test sees it.
pub(super) struct Member {
    process: Process,
    name: String,
}

impl Member {
    /// Starts one and waits until it has joined; partitions come later.
    pub(super) async fn start(bootstrap: &str, work: &Work, name: &str) -> Result<Self> {
        Self::start_as(bootstrap, work, name, false).await
    }

    /// One that looks all the time: once it is thawed, before any other of its threads.
    pub(super) async fn start_eager(bootstrap: &str, work: &Work, name: &str) -> Result<Self> {
        Self::start_as(bootstrap, work, name, true).await
    }

    async fn start_as(bootstrap: &str, work: &Work, name: &str, eager: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(MEMBER, bootstrap).env(TOPIC, &work.topic).env(NAME, name);
        if eager {
            command.env(EAGER, "");
        }
        let log = run_directory::create("member")?.join("log");
        let process = Process::spawn_listening(name, command, &log)?;
        process.until_said("joined", LIMIT).await?;
        Ok(Self { process, name: name.to_owned() })
    }

    /// What it holds, as far as it has said.
    pub(super) fn held(&self) -> Claims {
        let mut held = Claims::new();
        for line in self.lines() {
            match line {
                Line::Take { partition, claim, .. } => drop(held.insert(partition, claim)),
                Line::Lose { partition, .. } => drop(held.remove(&partition)),
                Line::Thawed { .. } => {}
            }
        }
        held
    }

    /// How many it held the first time it could look after each time it was frozen.
    pub(super) fn thawed(&self) -> Vec<usize> {
        let held = |line| if let Line::Thawed { held } = line { Some(held) } else { None };
        self.lines().into_iter().filter_map(held).collect()
    }

    /// Every time it held a partition. What it has not said to have lost it held until `end`.
    pub(super) fn spans(&self, end: Option<Duration>) -> Vec<Span> {
        let mut open: BTreeMap<i32, Span> = BTreeMap::new();
        let mut spans = Vec::new();
        for line in self.lines() {
            match line {
                Line::Take { partition, claim, at } => {
                    let member = self.name.clone();
                    open.insert(partition, Span { member, partition, claim, from: at, to: at });
                }
                Line::Lose { partition, at } => {
                    spans.push(Span { to: at, ..open.remove(&partition).unwrap() });
                }
                Line::Thawed { .. } => {}
            }
        }
        match end {
            Some(end) => spans.extend(open.into_values().map(|span| Span { to: end.max(span.from), ..span })),
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

    /// SIGKILL; gives every time it held a partition.
    pub(super) fn kill(&self) -> Vec<Span> {
        let last = now();
        self.process.kill();
        self.spans(Some(last))
    }

    /// Lets it leave the group; gives every time it held a partition.
    pub(super) async fn leave(&self) -> Result<Vec<Span>> {
        self.process.write_line("leave")?;
        self.process.until_said("left", LIMIT).await.or_else(|error| match self.process.ended() {
            Some(status) if status.success() => Ok(()),
            _ => Err(error),
        })?;
        Ok(self.spans(None))
    }

    fn lines(&self) -> Vec<Line> {
        let said = self.process.said();
        // The last line may be half written.
        let whole = &said[..said.rfind('\n').map_or(0, |end| end + 1)];
        whole.lines().filter_map(Line::parse).collect()
    }
}

enum Line {
    Take { partition: i32, claim: i64, at: Duration },
    Lose { partition: i32, at: Duration },
    Thawed { held: usize },
}

impl Line {
    /// `None` for what librdkafka and others say.
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
