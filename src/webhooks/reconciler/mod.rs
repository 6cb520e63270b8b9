//! Keeps the provider's subscriptions as a connector declares them: the task of a `WebhookSource`.
//!
//! ```text
//! configuration, state topic, memory ─▶ plan ─▶ commit its changes ─▶ calls, at most four at once:
//!        commit `before` ─▶ lease? ─▶ call the provider ─▶ settle ─▶ commit, with the next `before`
//! repeated until no call is due
//! ```
//!
//! [`webhooks::subscriptions`](crate::webhooks::subscriptions) plans calls and settles outcomes; this module does the I/O.
//!
//! | File | Does |
//! |---|---|
//! | `desired.rs` | reads the configuration, with its references resolved |
//! | `task.rs` | the loop |
//! | `provider_calls.rs` | calls the provider |
//! | `dry_run/` | shows what the loop would do |
//!
//! - Every commit is fenced by the connector's transactional id, and one comes before every call that creates something: an older
//!   instance is fenced before it acts. No call starts without the lease, and none ends later than `provider.request.timeout.ms` after
//!   its plan, which is less than the planner waits for the outcome of an intent.
//! - A commit has been read back before anything follows from it.
//! - A call in flight is not cancelled by a pause or a change of settings; a stop waits for it for a while.
//! - References in the configuration are resolved again at an interval, and sooner if a worker reports a secret that is new here. A
//!   change counts once two reads agree.
//! - Without `subscriptions.manage` no call is made: the task only sets the end of open gaps and requests their repair.
//!
//! On failure of one call its target waits; after a failure that concerns more, all targets wait with a growing backoff; a failure that
//! needs an operator fails the task. Beside accounting, invoicing fails nothing else: its targets show the problem and are retried.

mod desired;
mod task;

mod dry_run;
mod provider_calls;

pub use self::dry_run::{DryRun, DryRunContext, DryRunStep, dry_run};
pub(crate) use self::task::Reconciler;
