//! Log levels: of this worker at once, of all workers through the config topic.
//!
//! A level for the whole cluster is a record; every worker applies the records it reads after its start. As in Kafka Connect,
//! earlier records are not applied: a level that was raised months ago must not return with a restart.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use super::{Error, Herder, TimeBudget};
use crate::{
    state::configs,
    telemetry::{LoggerError, logger_name},
};

/// Kafka Connect's words. FATAL and ALL, which tracing lacks, map to their neighbors.
const LEVELS: [(&str, LevelFilter); 8] = [
    ("OFF", LevelFilter::OFF),
    ("ERROR", LevelFilter::ERROR),
    ("WARN", LevelFilter::WARN),
    ("INFO", LevelFilter::INFO),
    ("DEBUG", LevelFilter::DEBUG),
    ("TRACE", LevelFilter::TRACE),
    ("FATAL", LevelFilter::ERROR),
    ("ALL", LevelFilter::TRACE),
];

/// Reads a level in any case.
fn parse(text: &str) -> Option<LevelFilter> {
    LEVELS.into_iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, level)| level)
}

fn word(level: LevelFilter) -> &'static str {
    LEVELS.into_iter().find(|(_, known)| *known == level).map_or("TRACE", |(word, _)| word)
}

/// A logger as REST shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LoggerLevel {
    /// Its level.
    pub level: &'static str,
    /// When the level was last changed, in milliseconds since 1970; null if never.
    pub last_modified: Option<i64>,
}

impl Herder {
    /// Every logger of this worker.
    pub fn loggers(&self) -> BTreeMap<String, LoggerLevel> {
        let shown = self.parts.loggers.levels().into_iter().map(|(name, shown)| {
            (name, LoggerLevel { level: word(shown.level), last_modified: shown.changed_ms })
        });
        shown.collect()
    }

    /// One logger of this worker.
    ///
    /// # Errors
    /// There is none with that name.
    pub fn logger(&self, name: &str) -> Result<LoggerLevel, Error> {
        let mut levels = self.loggers();
        let found = levels.remove(name).or_else(|| levels.remove(&logger_name(name)));
        found.ok_or_else(|| Error::NotFound(format!("Logger {name} not found.")))
    }

    /// Changes a logger of this worker and returns the names of all loggers this affects.
    ///
    /// # Errors
    /// The level does not exist, or the logger cannot be set.
    pub fn set_logger(&self, name: &str, level: &str) -> Result<Vec<String>, Error> {
        Ok(self.parts.loggers.set(name, asked(level)?)?)
    }

    /// Changes a logger of every worker.
    ///
    /// # Errors
    /// The level does not exist, the logger cannot be set, or Kafka did not take the write.
    pub async fn set_cluster_logger(&self, name: &str, level: &str) -> Result<(), Error> {
        let level = asked(level)?;
        LoggerError::check(name, [])?;
        self.ready().await?;
        let write = configs::logger(name, word(level));
        let decide = |configs: &configs::Configs| {
            // The topic never forgets a name, so the number of names is limited there too.
            LoggerError::check(name, configs.loggers().keys().map(String::as_str))?;
            Ok::<_, Error>(((), vec![write.clone()]))
        };
        self.parts.writers.configs.write(TimeBudget::start().left(), decide).await?;
        self.apply_cluster_levels();
        Ok(())
    }

    /// Applies levels that other workers set for the cluster, until cancelled.
    pub async fn follow_loggers(&self, cancel: CancellationToken) {
        let configs = &self.parts.state.configs;
        let mut changes = configs.changes();
        let follow = async {
            configs.caught_up().await;
            let newest = configs.read(|configs| configs.loggers().values().map(|(_, offset)| *offset).max());
            self.followed.start(newest);
            // The table lives as long as this herder, so this only ends when cancelled.
            while changes.changed().await.is_ok() {
                self.apply_cluster_levels();
            }
        };
        cancel.run_until_cancelled(follow).await;
    }

    fn apply_cluster_levels(&self) {
        let levels: Vec<(String, String, i64)> = self.parts.state.configs.read(|configs| {
            let each = configs
                .loggers()
                .iter()
                .map(|(name, (level, offset))| (name.clone(), level.clone(), *offset));
            each.collect()
        });
        for (name, level) in self.followed.unseen(levels) {
            match parse(&level) {
                Some(level) => match self.parts.loggers.set(&name, level) {
                    Ok(affected) => {
                        let (level, affected) = (word(level), affected.len());
                        tracing::info!(logger = name, level, affected, "log level set for all workers");
                    }
                    Err(error) => {
                        tracing::warn!(logger = name, %error, "could not set a log level for all workers on this worker");
                    }
                },
                None => tracing::warn!(logger = name, "ignored an unknown log level for all workers"),
            }
        }
    }
}

/// The offset up to which level records have been applied.
#[derive(Debug, Default)]
pub(super) struct Followed(Mutex<Option<i64>>);

impl Followed {
    /// Skips records up to this offset. Does nothing if later ones were applied already.
    fn start(&self, newest: Option<i64>) {
        let mut applied = self.0.lock();
        *applied = (*applied).max(newest.or(Some(-1)));
    }

    /// The levels that were not applied yet, in log order; marks them as applied.
    fn unseen(&self, mut levels: Vec<(String, String, i64)>) -> Vec<(String, String)> {
        let mut applied = self.0.lock();
        // Until the start is known, no record is new.
        let Some(last) = *applied else { return Vec::new() };
        levels.retain(|(_, _, offset)| *offset > last);
        levels.sort_unstable_by_key(|(_, _, offset)| *offset);
        *applied = levels.last().map_or(Some(last), |(_, _, offset)| Some(*offset));
        levels.into_iter().map(|(name, level, _)| (name, level)).collect()
    }
}

impl From<LoggerError> for Error {
    fn from(error: LoggerError) -> Self {
        match error {
            LoggerError::Gone => Self::Internal { doing: "change what is logged" },
            refused => Self::BadRequest(refused.to_string()),
        }
    }
}

/// Parses the level of a request.
fn asked(level: &str) -> Result<LevelFilter, Error> {
    parse(level).ok_or_else(|| {
        // It may be a misplaced secret: repeat at most 32 characters.
        let level: String = level.chars().take(32).collect();
        Error::NotFound(format!("invalid log level '{level}'."))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(offsets: &[(&str, i64)]) -> Vec<(String, String, i64)> {
        offsets.iter().map(|(name, offset)| ((*name).to_owned(), "DEBUG".to_owned(), *offset)).collect()
    }

    fn names(followed: &Followed, offsets: &[(&str, i64)]) -> Vec<String> {
        followed.unseen(levels(offsets)).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn levels_written_after_the_start_are_applied_once() {
        let followed = Followed::default();
        let early = names(&followed, &[("a", 3)]);
        followed.start(Some(3));

        let old = names(&followed, &[("a", 3)]);
        let new = names(&followed, &[("z", 4), ("a", 5), ("b", 3)]);
        let again = names(&followed, &[("z", 4), ("a", 5)]);

        assert_eq!((early, old), (Vec::new(), Vec::new()));
        assert_eq!(new, ["z", "a"], "in the order they were written");
        assert_eq!(again, Vec::<String>::new());
    }

    #[test]
    fn first_level_of_an_empty_topic_is_applied() {
        let followed = Followed::default();
        followed.start(None);

        assert_eq!(names(&followed, &[("root", 0)]), ["root"]);
    }

    #[test]
    fn levels_are_parsed_as_kafka_connect_does() {
        let table = [
            ("debug", Some(LevelFilter::DEBUG)),
            ("FATAL", Some(LevelFilter::ERROR)),
            ("All", Some(LevelFilter::TRACE)),
            ("OFF", Some(LevelFilter::OFF)),
            ("LOUD", None),
            ("", None),
        ];

        for (text, level) in table {
            assert_eq!(parse(text), level, "{text}");
        }
    }
}
