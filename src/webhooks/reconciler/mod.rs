//! Keeps the provider's subscriptions as a connector declares them: the task of a `WebhookSource`.
//!
//! ```text
//! configuration, ledger, memory ─▶ plan ─▶ commit its changes ─▶ steps, at most four at once:
//!        commit `before` ─▶ lease? ─▶ call the provider ─▶ settle ─▶ commit, with the next `before`
//! until there is nothing to do but to wait
//! ```
//!
//! What is planned and what outcomes mean is [`webhooks::subscriptions`](crate::webhooks::subscriptions)'; here it is done.
//!
//! - Every commit is fenced by the connector's transactional id, and one comes before every call that makes something: an older
//!   instance finds out before it acts. No call is begun without the lease, and none lasts longer than
//!   `provider.request.timeout.ms` from its plan on, which is shorter than an intent is waited for.
//! - What was committed has been read back before anything follows from it.
//! - A call that is under way is not given up for a pause or a change of settings; a stop waits for it for a while.
//! - What the configuration refers to is looked at every so often, and sooner where a receiver knows a secret that is new here.
//!   It counts once two looks have found the same.
//! - Without `subscriptions.manage` nobody is called: what is known to be lost is handed on to be repaired, and that is all.
//!
//! On failure of one call its target waits; of one that is about more than that everything does, for longer each time; what
//! needs a person fails the task. Beside accounting, invoicing fails nothing else: its targets show the problem and are retried.

mod calls;
mod desired;
mod dry_run;
mod task;

pub use self::dry_run::{DryRun, DryRunContext, DryRunStep, dry_run};
pub(crate) use self::task::Reconciler;
