//! What `{prefix}.state` says of subscriptions and of lists: which there are, what was heard by them, what may be missing, what is
//! read.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `subscription/{connector}/{nonce}` | [`Subscription`] | the reconciler |
//! | `acknowledge/{connector}/{webhookId}` | [`Acknowledge`] | the worker it came to |
//! | `echo/{connector}` and, of the own address of a hook, `/{hook}` | [`Echo`] | the worker it came to |
//! | `heard/{connector}/{worker}` | [`Heard`] | each worker, every so often |
//! | `pace/{connector}` | [`Paces`] | the reconciler |
//! | `gap/{connector}/{cause}/{openedAt}` and, of one target, `/{target}` | [`Gap`] | whoever finds it |
//! | `run/{connector}/{gap}` | [`Repair`] | the reconciler; who reads it does it |
//! | `start/{connector}` | [`Start`] | the reconciler |
//! | `wish/{connector}` | [`Wish`] | people, by REST |
//! | `done/{connector}` | [`Done`] | the reconciler |
//! | `accepted/{connector}/{gap}` | [`Accepted`] | people, by REST |
//! | `snapshot/{connector}/{run}` | [`Run`] | people, by REST, and the first task for a mode, a schedule or a gap |
//! | `order/{connector}/{run}` | [`Order`] | people, by REST |
//! | `progress/{shard}/{connector}/{run}` | [`Progress`] | the shard, with what it has read |
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
pub use gap::{Accepted, Gap, GapCause, GapState, Repair, RepairState};
pub use receiver::{Acknowledge, Echo, Heard, Pace, Paces, Traffic};
pub use run::{ListProgress, Order, Progress, Run, RunKind, ShardState, Wanted};
pub use subscription::{Done, Nonce, Note, Phase, Start, Started, Subscription, Wish};
pub use target::{Fingerprint, Target};
