//! The tasks of all grants. They stop together, and each finishes its current operation first.
//!
//! A panic in one task is a bug, and its grant would silently go stale: all tasks are then canceled. The others finish first,
//! because one of them may hold the only copy of a provider's answer.

use std::{future::Future, time::Duration};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// See the module head.
#[derive(Debug)]
pub(super) struct TaskGroup {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl TaskGroup {
    /// Its tasks are canceled with `cancel`, or when one of them panics.
    pub(super) fn new(cancel: &CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), stop: cancel.child_token() }
    }

    /// The token that cancels a task of the group.
    pub(super) fn stop(&self) -> CancellationToken {
        self.stop.child_token()
    }

    pub(super) fn add(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.tasks.spawn(task)
    }

    /// Waits until a task ends and returns whether it panicked. Never returns if there is no task.
    pub(super) async fn ended(&mut self) -> bool {
        match self.tasks.join_next().await {
            Some(ended) => ended.is_err_and(|error| error.is_panic()),
            None => std::future::pending().await,
        }
    }

    /// Cancels all tasks and waits for them, at most for `limit` if there is one.
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
    async fn a_panic_lets_other_tasks_finish() {
        let mut tasks = TaskGroup::new(&CancellationToken::new());
        let (answer, answered) = oneshot::channel::<&str>();
        let (tell, received) = oneshot::channel();
        let stop = tasks.stop();
        tasks.add(async move {
            stop.cancelled().await;
            tell.send(answered.await.unwrap()).unwrap();
        });
        tasks.add(async { panic!("a bug") });

        assert!(timeout(LIMIT, tasks.ended()).await.unwrap());
        let ending = tokio::spawn(tasks.end(Some(LIMIT)));
        answer.send("refresh-2").unwrap();

        assert_eq!(timeout(LIMIT, received).await.unwrap().unwrap(), "refresh-2");
        timeout(LIMIT, ending).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_hanging_task_is_abandoned_after_the_limit() {
        let mut tasks = TaskGroup::new(&CancellationToken::new());
        tasks.add(std::future::pending());
        tasks.add(async {});

        assert!(!timeout(LIMIT, tasks.ended()).await.unwrap());
        timeout(LIMIT, tasks.end(Some(Duration::from_millis(1)))).await.unwrap();
    }
}
