//! The config topic as of now, also where the broker has left a write hanging in it.
//!
//! A hanging write hides all that was committed behind it, and reading alone never gets past it. Only the one who holds the
//! arbiter's transactional id can end it; so whoever finds the topic undecided takes that id by an edit of nothing.
//!
//! On failure: the open transaction is somebody else's and stays; the error names it.

use std::{convert::Infallible, time::Duration};

use super::{
    arbiter::{self, Arbiter},
    state::{Tail, configs::Configs},
};
use crate::kafka;

/// Reads the config topic to its end, and ends what hangs there.
///
/// # Errors
/// Kafka did not answer within the limit, or a transaction that is not the arbiter's hides the end.
pub(super) async fn read_configs(
    configs: &Tail<Configs>,
    arbiter: &Arbiter,
    limit: Duration,
) -> Result<(), kafka::Error> {
    let undecided = match configs.read_to_end(limit / 2).await {
        Err(error @ kafka::Error::Undecided { .. }) => error,
        other => return other,
    };
    let nothing = |_: &Configs| Ok::<_, Infallible>(((), Vec::new()));
    match arbiter.write(limit, nothing).await {
        Ok(()) => Ok(()),
        Err(arbiter::Error::Kafka(error)) => Err(error),
        // Others do the same at this moment: next time.
        Err(arbiter::Error::Conflict { .. }) => Err(undecided),
        Err(arbiter::Error::Refused(never)) => match never {},
    }
}
