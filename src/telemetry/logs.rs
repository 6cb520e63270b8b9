//! Which log lines are shown, changed while the process runs.
//!
//! A logger is a target of `tracing`, named as its module is (`tributary::kafka`); names with dots, as Java tools write
//! them, mean the same. `root` stands above all. Setting a logger sets those below it too, so that what was asked for is
//! what is shown.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::UNIX_EPOCH,
};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// The logger above all others.
const ROOT: &str = "root";
/// Loggers shown before anybody has set them: the parts of the product, and the libraries that log.
const KNOWN: [&str; 12] = [
    "tributary",
    "tributary::avro",
    "tributary::cli",
    "tributary::config",
    "tributary::kafka",
    "tributary::pipeline",
    "tributary::worker",
    "audit",
    "hyper",
    "librdkafka",
    "rdkafka",
    "reqwest",
];
/// Loggers that may be set at most: each is a directive of the filter that every line is held against.
const MOST: usize = 1_000;

/// How much is logged.
pub type LogLevel = LevelFilter;

/// What a logger shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logger {
    /// How much.
    pub level: LogLevel,
    /// When that was changed last, milliseconds since 1970.
    pub changed: Option<i64>,
}

/// The filter of the process's logs. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    state: Arc<Mutex<State>>,
    reload: Arc<dyn Fn(EnvFilter) -> bool + Send + Sync>,
}

struct State {
    loggers: BTreeMap<String, Logger>,
    /// Directives that are more than a target and a level (spans, fields): kept as they were written.
    others: Vec<String>,
}

impl Logs {
    /// For a filter that was installed, and the way to replace it.
    pub(super) fn new(filter: &str, reload: impl Fn(EnvFilter) -> bool + Send + Sync + 'static) -> Self {
        let mut state = State { loggers: BTreeMap::new(), others: Vec::new() };
        // What the filter's parser takes for granted: without a directive for all, only errors are shown.
        state.loggers.insert(ROOT.to_owned(), Logger { level: LevelFilter::ERROR, changed: None });
        for directive in filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
            let (target, level) = directive.split_once('=').unwrap_or((ROOT, directive));
            match level.parse() {
                Ok(level) if is_name(target) => {
                    state.loggers.insert(target.to_owned(), Logger { level, changed: None });
                }
                // A bare target shows everything of it.
                Err(_) if target == ROOT && is_name(directive) => {
                    let logger = Logger { level: LevelFilter::TRACE, changed: None };
                    state.loggers.insert(directive.to_owned(), logger);
                }
                _ => state.others.push(directive.to_owned()),
            }
        }
        Self { state: Arc::new(Mutex::new(state)), reload: Arc::new(reload) }
    }

    /// Every logger with a level of its own, and the known ones with the level they inherit.
    #[must_use]
    pub fn loggers(&self) -> BTreeMap<String, Logger> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = state.loggers.clone();
        for name in KNOWN {
            let inherited = Logger { level: state.level_of(name), changed: None };
            all.entry(name.to_owned()).or_insert(inherited);
        }
        all
    }

    /// Sets a logger and all below it; the names of those that were set. None if it cannot be a logger's name, or there
    /// are too many.
    pub fn set(&self, name: &str, level: LogLevel) -> Vec<String> {
        let name = if name.eq_ignore_ascii_case(ROOT) { ROOT.to_owned() } else { name.replace('.', "::") };
        if !is_name(&name) {
            return Vec::new();
        }
        let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
        let logger = Logger { level, changed: i64::try_from(now).ok() };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.loggers.contains_key(&name) && state.loggers.len() >= MOST {
            return Vec::new();
        }
        let below = |other: &str| name == ROOT || is_below(other, &name);
        let known = KNOWN.iter().map(|&known| known.to_owned());
        let mut affected: Vec<String> = state.loggers.keys().cloned().chain(known).collect();
        affected.retain(|other| other != &name && below(other));
        affected.push(name);
        affected.sort_unstable();
        affected.dedup();
        for name in &affected {
            state.loggers.insert(name.clone(), logger);
        }
        if let Ok(filter) = EnvFilter::try_new(state.directives()) {
            (self.reload)(filter);
        }
        affected
    }
}

impl State {
    /// The level that holds for a target: that of the closest logger above it.
    fn level_of(&self, target: &str) -> LogLevel {
        let closest = self.loggers.iter().filter(|(name, _)| is_below(target, name));
        let closest = closest.max_by_key(|(name, _)| name.len());
        closest.or_else(|| self.loggers.get_key_value(ROOT)).map_or(LevelFilter::ERROR, |(_, one)| one.level)
    }

    fn directives(&self) -> String {
        let each = self.loggers.iter().map(|(name, logger)| match name.as_str() {
            ROOT => logger.level.to_string(),
            name => format!("{name}={}", logger.level),
        });
        each.chain(self.others.iter().cloned()).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").finish_non_exhaustive()
    }
}

/// Whether a text can be a target: no character that a filter would read otherwise.
fn is_name(text: &str) -> bool {
    let fits = |character: char| character.is_alphanumeric() || matches!(character, '_' | ':' | '-' | '$');
    !text.is_empty() && text.len() <= 256 && text.chars().all(fits)
}

fn is_below(target: &str, logger: &str) -> bool {
    target.strip_prefix(logger).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs whose filter, as text, is looked at instead of installed.
    fn logs(filter: &str) -> (Logs, Arc<Mutex<String>>) {
        let installed = Arc::new(Mutex::new(String::new()));
        let seen = Arc::clone(&installed);
        let logs = Logs::new(filter, move |filter| {
            *seen.lock().unwrap() = filter.to_string();
            true
        });
        (logs, installed)
    }

    fn level(logs: &Logs, name: &str) -> LogLevel {
        logs.loggers()[name].level
    }

    #[test]
    fn loggers_show_what_the_filter_says_and_the_known_ones_inherit() {
        let (logs, _) = logs("info,tributary::kafka=debug,[span]=trace");

        assert_eq!(level(&logs, "root"), LevelFilter::INFO);
        assert_eq!(level(&logs, "tributary::kafka"), LevelFilter::DEBUG);
        assert_eq!(level(&logs, "tributary"), LevelFilter::INFO);
        assert_eq!(logs.loggers()["root"].changed, None);
    }

    #[test]
    fn setting_a_logger_sets_those_below_it_and_nothing_else() {
        let (logs, installed) = logs("info,tributary::kafka=debug,tributaryx=warn");

        let affected = logs.set("tributary", LevelFilter::TRACE);

        assert!(
            affected.contains(&"tributary".to_owned()) && affected.contains(&"tributary::kafka".to_owned())
        );
        assert!(!affected.contains(&"tributaryx".to_owned()), "{affected:?}");
        assert_eq!(level(&logs, "tributary::kafka"), LevelFilter::TRACE);
        assert_eq!(level(&logs, "root"), LevelFilter::INFO);
        assert!(logs.loggers()["tributary"].changed.is_some());
        assert!(installed.lock().unwrap().contains("tributary::kafka=trace"));
    }

    #[test]
    fn root_sets_all_and_dots_mean_the_same_as_colons() {
        let (logs, _) = logs("warn,tributary::kafka=debug");

        logs.set("ROOT", LevelFilter::ERROR);
        let affected = logs.set("tributary.kafka", LevelFilter::DEBUG);

        assert_eq!(affected, ["tributary::kafka"]);
        assert_eq!(level(&logs, "tributary::worker"), LevelFilter::ERROR);
        assert_eq!(level(&logs, "tributary::kafka"), LevelFilter::DEBUG);
    }

    #[test]
    fn what_cannot_be_a_name_and_more_loggers_than_bounded_are_refused() {
        let (logs, installed) = logs("info");

        for name in ["", "a b", "a=debug,b", "[x]", &"x".repeat(257)] {
            assert_eq!(logs.set(name, LevelFilter::DEBUG), Vec::<String>::new(), "{name}");
        }
        let set = (0..2_000).filter(|number| !logs.set(&format!("n{number}"), LevelFilter::INFO).is_empty());
        assert!(set.count() < MOST);
        assert!(!installed.lock().unwrap().contains("a=debug"));
    }

    #[test]
    fn directives_with_spans_survive_a_change() {
        let (logs, installed) = logs("info,[span{field=1}]=trace");

        logs.set("root", LevelFilter::WARN);

        assert!(installed.lock().unwrap().contains("[span{field=1}]=trace"), "{}", installed.lock().unwrap());
    }
}
