//! The config topic as of now, also where the broker has left a write hanging in it.
//!
//! A hanging write hides all that was committed behind it, and reading alone never gets past it. Only the one who holds the
//! arbiter's transactional id can end it; so whoever finds the topic undecided takes that id by an edit of nothing.
//!
//! On failure: the open transaction is somebody else's and stays; the error names it.

use std::{convert::Infallible, time::Duration};

use kafka::ReadLimits;

use super::arbiter::{Arbiter, PARTITION};
use crate::state::{Tail, configs::Configs};

/// The longest an open write is waited for before somebody looks whether it hangs: many times what one takes.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reads the config topic to its end, and ends what hangs there. The limit is that of the reading, and once more that of
/// the cure where it takes one.
///
/// # Errors
/// Kafka did not answer within the limit, or a transaction that is not the arbiter's hides the end. Others who do the same at
/// this moment are a reason to try again.
pub(crate) async fn read_configs(
    configs: &Tail<Configs>,
    arbiter: &Arbiter,
    limit: Duration,
) -> Result<(), kafka::Error> {
    let waits = ReadLimits { other_partitions: &[], transaction_wait: PATIENCE.min(limit / 2), limit };
    match configs.read_partitions_to_end(&[PARTITION], waits).await {
        Err(kafka::Error::Undecided { .. }) => {}
        other => return other,
    }
    let nothing = |_: &Configs| Ok::<_, Infallible>(((), Vec::new()));
    match arbiter.write(limit, nothing).await.map_err(|error| error.passing(limit)) {
        Ok(()) => Ok(()),
        Err(Ok(error)) => Err(error),
        Err(Err(never)) => match never {},
    }
}
