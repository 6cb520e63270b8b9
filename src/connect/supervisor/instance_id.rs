//! Which partition of the work topic a connector or task belongs to; the partition's owner runs it.

use std::{fmt, sync::Arc};

use kafka::partition_of;

/// A connector, or one of its tasks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId {
    /// Name of the connector.
    pub connector: Arc<str>,
    /// Number of the task; `None` for the connector itself.
    pub task: Option<u32>,
}

impl InstanceId {
    /// Its partition among `partitions`: a connector's by the hash of its name, task `i`'s the `i`-th after that. So the
    /// tasks of one connector spread over the workers, and all workers with the same count compute the same partition.
    pub fn partition(&self, partitions: u32) -> i32 {
        // Kafka's partition counts are `i32`.
        let partitions = i32::try_from(partitions).unwrap_or(i32::MAX).max(1);
        let home = i64::from(partition_of(self.connector.as_bytes(), partitions));
        ((home + i64::from(self.task.unwrap_or(0))) % i64::from(partitions)) as i32
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            Some(task) => write!(f, "task {}-{task}", self.connector),
            None => write!(f, "connector {}", self.connector),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_partitions_follow_the_connector_partition() {
        let place = |task| InstanceId { connector: "21".into(), task }.partition(12);

        // The hash of "21" is 1173551340, and so its partition 0.
        assert_eq!(place(None), 0);
        assert_eq!((place(Some(0)), place(Some(1)), place(Some(11)), place(Some(12))), (0, 1, 11, 0));
        assert_eq!(place(Some(u32::MAX)), (u32::MAX % 12) as i32);
    }
}
