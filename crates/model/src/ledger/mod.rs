//! The records about subscriptions and lists in `{prefix}.state`: subscriptions, received deliveries, gaps, and runs that read
//! lists.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `subscription/{connector}/{nonce}` | [`Subscription`] | the reconciler |
//! | `acknowledge/{connector}/{webhookId}` | [`Acknowledge`] | the worker that received it |
//! | `echo/{connector}` and, for a hook's own address, `/{hook}` | [`Echo`] | the worker that received it |
//! | `heard/{connector}/{worker}` | [`ReceiverReport`] | each worker, periodically |
//! | `pace/{connector}` | [`DeliveryIntervals`] | the reconciler |
//! | `gap/{connector}/{cause}/{openedAt}` and, for one target, `/{target}` | [`Gap`] | the worker that finds it; the first task that reads lists writes the result of its repair |
//! | `run/{connector}/{gap}` | [`Repair`] | the writer of the gap requests it; the first task that reads lists executes it and writes its state |
//! | `start/{connector}` | [`StreamStart`] | the reconciler |
//! | `wish/{connector}` | [`SubscriptionCommand`] | people, by REST |
//! | `done/{connector}` | [`SubscriptionCommandDone`] | the reconciler |
//! | `accepted/{connector}/{gap}` | [`GapAccepted`] | people, by REST |
//! | `snapshot/{connector}/{run}` | [`Run`] | people, by REST, and the first task for a snapshot mode, a schedule or a gap |
//! | `order/{connector}/{run}` | [`RunCommand`] | people, by REST |
//! | `progress/{shard}/{connector}/{run}` | [`RunProgress`] | the shard, with the records it has read |
//!
//! Times are microseconds since 1970. Unknown members are ignored, so that older workers can read records of newer ones. The
//! records contain fingerprints of secrets, never secrets.

mod difference;
mod gap;
mod receiver;
mod run;
mod subscription;
mod target;

pub use difference::Difference;
pub use gap::{Gap, GapAccepted, GapCause, GapState, Repair, RepairState};
pub use receiver::{Acknowledge, DeliveryInterval, DeliveryIntervals, Echo, ReceiverReport, Traffic};
pub use run::{
    DesiredRunState, ListComparison, ListCounts, ListProgress, Run, RunCommand, RunKind, RunProgress,
    RunWork, ShardRun, ShardState, ShardTimes, Verification,
};
pub use subscription::{
    HistoryEntry, Nonce, StreamStart, Subscription, SubscriptionCommand, SubscriptionCommandDone,
    SubscriptionPhase, SubscriptionRegistration, SubscriptionTimes, TargetStart,
};
pub use target::{Fingerprint, Target};
