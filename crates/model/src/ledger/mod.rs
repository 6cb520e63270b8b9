//! What `{prefix}.state` says of subscriptions and of lists: which there are, what was heard by them, what may be missing, what is
//! read.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `subscription/{connector}/{nonce}` | [`Subscription`] | the reconciler |
//! | `acknowledge/{connector}/{webhookId}` | [`Acknowledge`] | the worker it came to |
//! | `echo/{connector}` and, of the own address of a hook, `/{hook}` | [`Echo`] | the worker it came to |
//! | `heard/{connector}/{worker}` | [`ReceiverReport`] | each worker, every so often |
//! | `pace/{connector}` | [`DeliveryIntervals`] | the reconciler |
//! | `gap/{connector}/{cause}/{openedAt}` and, of one target, `/{target}` | [`Gap`] | whoever finds it |
//! | `run/{connector}/{gap}` | [`Repair`] | the reconciler; who reads it does it |
//! | `start/{connector}` | [`StreamStart`] | the reconciler |
//! | `wish/{connector}` | [`SubscriptionCommand`] | people, by REST |
//! | `done/{connector}` | [`SubscriptionCommandDone`] | the reconciler |
//! | `accepted/{connector}/{gap}` | [`GapAccepted`] | people, by REST |
//! | `snapshot/{connector}/{run}` | [`Run`] | people, by REST, and the first task for a mode, a schedule or a gap |
//! | `order/{connector}/{run}` | [`RunCommand`] | people, by REST |
//! | `progress/{shard}/{connector}/{run}` | [`RunProgress`] | the shard, with what it has read |
//!
//! Times are microseconds since 1970. A member that is not known here is passed over, so that an older worker reads what a newer
//! one has written. There are fingerprints of secrets in it and no secrets.

mod difference;
mod gap;
mod receiver;
mod run;
mod subscription;
mod target;

pub use difference::Difference;
pub use gap::{Gap, GapAccepted, GapCause, GapState, Repair, RepairState};
pub use receiver::{Acknowledge, DeliveryInterval, DeliveryIntervals, Echo, ReceiverReport, Traffic};
pub use run::{DesiredRunState, ListProgress, Run, RunCommand, RunKind, RunProgress, ShardState};
pub use subscription::{
    HistoryEntry, Nonce, StreamStart, Subscription, SubscriptionCommand, SubscriptionCommandDone,
    SubscriptionPhase, TargetStart,
};
pub use target::{Fingerprint, Target};
