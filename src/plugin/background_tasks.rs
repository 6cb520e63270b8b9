//! Background tasks of a worker that should run until they are cancelled.

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::task::JoinHandle;

/// Waits until one of them has ended or panicked, and returns its name.
pub(crate) async fn first_ended(parts: &mut [(&'static str, JoinHandle<()>)]) -> &'static str {
    let each = parts.iter_mut().map(|(part, handle)| async move {
        // The panic hook has logged the panic.
        handle.await.ok();
        *part
    });
    match each.collect::<FuturesUnordered<_>>().next().await {
        Some(part) => part,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn first_ended_names_the_part_that_panicked() {
        let lasting = || ("follower", tokio::spawn(std::future::pending::<()>()));
        let broken = tokio::spawn(async { panic!("a bug") });
        let (mut sound, mut parts) = (vec![lasting()], vec![lasting(), ("watch", broken)]);

        let first = timeout(Duration::from_secs(30), first_ended(&mut parts)).await;

        assert_eq!(first.unwrap(), "watch");
        assert!(first_ended(&mut sound).now_or_never().is_none());
        assert!(first_ended(&mut []).now_or_never().is_none());
    }
}
