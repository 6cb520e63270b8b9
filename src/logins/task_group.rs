//! The tasks of all grants, which end together and never in the middle of something.
//!
//! A panic in one of them is a fault of the program, after which a grant would silently go stale: all are told to end, and what
//! the others have under way is ended first. An answer that only one of them has must not be lost to the fault of another.

use std::{future::Future, time::Duration};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// See the module's head.
#[derive(Debug)]
pub(super) struct TaskGroup {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl TaskGroup {
    /// One whose members are told to end when `cancel` says so, or when one of them is broken.
    pub(super) fn new(cancel: &CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), stop: cancel.child_token() }
    }

    /// What tells a member to end.
    pub(super) fn stop(&self) -> CancellationToken {
        self.stop.child_token()
    }

    pub(super) fn add(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.tasks.spawn(task)
    }

    /// Waits until one has ended, and returns whether it has panicked; for ever where there is none.
    pub(super) async fn ended(&mut self) -> bool {
        match self.tasks.join_next().await {
            Some(ended) => ended.is_err_and(|error| error.is_panic()),
            None => std::future::pending().await,
        }
    }

    /// Tells all to end and waits for them: without a limit where somebody else has one, else so long.
    pub(super) async fn end(mut self, limit: Option<Duration>) {
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        match limit {
            None => all.await,
            Some(limit) => drop(timeout(limit, all).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_panic_of_one_lets_the_others_end_what_they_have_under_way() {
        let mut tasks = TaskGroup::new(&CancellationToken::new());
        let (answer, answered) = oneshot::channel::<&str>();
        let (tell, told) = oneshot::channel();
        let stop = tasks.stop();
        tasks.add(async move {
            stop.cancelled().await;
            // Comes after it was told to end.
            tell.send(answered.await.unwrap()).unwrap();
        });
        tasks.add(async { panic!("a fault of the program") });

        assert!(timeout(LIMIT, tasks.ended()).await.unwrap());
        let ending = tokio::spawn(tasks.end(Some(LIMIT)));
        answer.send("refresh-2").unwrap();

        assert_eq!(timeout(LIMIT, told).await.unwrap().unwrap(), "refresh-2");
        timeout(LIMIT, ending).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn one_that_ends_by_itself_is_no_fault_and_one_that_does_not_is_left_after_the_limit() {
        let mut tasks = TaskGroup::new(&CancellationToken::new());
        tasks.add(std::future::pending());
        tasks.add(async {});

        assert!(!timeout(LIMIT, tasks.ended()).await.unwrap());
        timeout(LIMIT, tasks.end(Some(Duration::from_millis(1)))).await.unwrap();
    }
}
