//! Which log lines are shown, changed while the process runs.
//!
//! A logger is a module path such as `tributary::kafka`, as `log.filter` names them; `root` stands above all. Setting one
//! sets those below it too, so what was asked for is what appears.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Registry,
    filter::Targets,
    reload::{self, Handle},
};

use super::Error;

/// The logger above all others.
const ROOT: &str = "root";
/// Loggers that are always shown, whether or not anything was set for them.
const KNOWN: [&str; 2] = ["audit", "tributary"];

/// How much a logger shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// What is shown.
    pub level: LevelFilter,
    /// When that was changed, in milliseconds since 1970; `None` if it is as configured.
    pub changed_ms: Option<i64>,
}

/// The filter of the process's logs.
pub struct Filters {
    levels: Mutex<Levels>,
    handle: Handle<EnvFilter, Registry>,
}

impl Filters {
    /// The filter as configured, ready to be put before the layers that write.
    pub(super) fn new(text: &str) -> Result<(Self, reload::Layer<EnvFilter, Registry>), Error> {
        let (layer, handle) = reload::Layer::new(super::filter(text)?);
        Ok((Self { levels: Mutex::new(Levels::parse(text)), handle }, layer))
    }

    /// Every logger something is known of, `root` among them.
    #[must_use]
    pub fn levels(&self) -> BTreeMap<String, Shown> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner).shown()
    }

    /// Sets a logger and all below it, and names those that were set; none if it cannot be a logger's name.
    pub fn set(&self, logger: &str, level: LevelFilter) -> Vec<String> {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
        let mut changed = levels.clone();
        let affected = changed.set(logger, level, i64::try_from(now).unwrap_or(i64::MAX));
        if affected.is_empty() {
            return affected;
        }
        let applied = EnvFilter::try_new(changed.directives()).map_err(|error| error.to_string());
        match applied.and_then(|filter| self.handle.reload(filter).map_err(|error| error.to_string())) {
            Ok(()) => *levels = changed,
            // The subscriber is gone, or the name is one the filter's language has no word for.
            Err(error) => {
                tracing::warn!(logger, error, "change what is logged");
                return Vec::new();
            }
        }
        affected
    }
}

impl fmt::Debug for Filters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filters").finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
struct Levels {
    root: Shown,
    targets: BTreeMap<String, Shown>,
    /// What only the filter's own language can say, such as spans; kept as it is.
    others: Option<String>,
}

impl Levels {
    fn parse(text: &str) -> Self {
        let configured = |level| Shown { level, changed_ms: None };
        match text.parse::<Targets>() {
            Ok(targets) => Self {
                root: configured(targets.default_level().unwrap_or(LevelFilter::OFF)),
                targets: targets.iter().map(|(name, level)| (name.to_owned(), configured(level))).collect(),
                others: None,
            },
            Err(_) => Self {
                root: configured(bare_level(text)),
                targets: BTreeMap::new(),
                others: Some(text.to_owned()),
            },
        }
    }

    fn shown(&self) -> BTreeMap<String, Shown> {
        let known = KNOWN.map(|name| (name.to_owned(), self.effective(name)));
        let root = [(ROOT.to_owned(), self.root)];
        let set = self.targets.iter().map(|(name, shown)| (name.clone(), *shown));
        known.into_iter().chain(root).chain(set).collect()
    }

    fn effective(&self, logger: &str) -> Shown {
        let above = self.targets.iter().filter(|(name, _)| is_within(logger, name));
        above.max_by_key(|(name, _)| name.len()).map_or(self.root, |(_, shown)| *shown)
    }

    fn set(&mut self, logger: &str, level: LevelFilter, now_ms: i64) -> Vec<String> {
        let shown = Shown { level, changed_ms: Some(now_ms) };
        let is_root = logger.eq_ignore_ascii_case(ROOT);
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':');
        let named = !logger.is_empty() && logger.chars().all(letter);
        if !is_root && !named {
            return Vec::new();
        }
        let mut affected = Vec::new();
        for (name, below) in &mut self.targets {
            if is_root || is_within(name, logger) {
                *below = shown;
                affected.push(name.clone());
            }
        }
        if is_root {
            self.root = shown;
            affected.push(ROOT.to_owned());
        } else if self.targets.insert(logger.to_owned(), shown).is_none() {
            affected.push(logger.to_owned());
        }
        affected.sort_unstable();
        affected
    }

    fn directives(&self) -> String {
        let root = self.root.level.to_string();
        let targets = self.targets.iter().map(|(name, shown)| format!("{name}={}", shown.level));
        // What was set later comes last: the filter takes the last word on equal names.
        self.others.iter().cloned().chain([root]).chain(targets).collect::<Vec<_>>().join(",")
    }
}

/// The level for everything in a filter that says more than names and levels.
fn bare_level(text: &str) -> LevelFilter {
    text.rsplit(',').find_map(|part| part.trim().parse().ok()).unwrap_or(LevelFilter::OFF)
}

/// Whether a logger is another or stands below it.
fn is_within(logger: &str, above: &str) -> bool {
    logger.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(text: &str) -> Levels {
        Levels::parse(text)
    }

    fn shown(levels: &Levels, logger: &str) -> Option<LevelFilter> {
        levels.shown().get(logger).map(|shown| shown.level)
    }

    #[test]
    fn a_logger_shows_what_the_nearest_above_it_says() {
        let levels = levels("warn,tributary=debug,tributary::kafka=off");

        assert_eq!(shown(&levels, "root"), Some(LevelFilter::WARN));
        assert_eq!(shown(&levels, "tributary"), Some(LevelFilter::DEBUG));
        assert_eq!(shown(&levels, "audit"), Some(LevelFilter::WARN));
        assert_eq!(shown(&levels, "no.such"), None);
        assert_eq!(levels.shown()["root"].changed_ms, None);
    }

    #[test]
    fn setting_one_sets_those_below_it_and_nothing_beside_it() {
        let mut levels = levels("info,tributary::kafka=warn,tributary::kafkaesque=warn");

        let affected = levels.set("tributary", LevelFilter::TRACE, 7);
        let beside = levels.set("tributary::kafka", LevelFilter::ERROR, 8);

        assert_eq!(affected, ["tributary", "tributary::kafka", "tributary::kafkaesque"]);
        assert_eq!(beside, ["tributary::kafka"]);
        assert_eq!(levels.shown()["tributary::kafka"].changed_ms, Some(8));
        assert_eq!(
            levels.directives(),
            "info,tributary=trace,tributary::kafka=error,tributary::kafkaesque=trace"
        );
    }

    #[test]
    fn root_sets_all_and_a_name_that_is_none_sets_nothing() {
        let mut levels = levels("info,tributary=debug");

        assert_eq!(levels.set("ROOT", LevelFilter::WARN, 1), ["root", "tributary"]);
        for name in ["", "a=b", "a,b", "a[b]", "a b"] {
            assert_eq!(levels.set(name, LevelFilter::TRACE, 2), Vec::<String>::new(), "{name:?}");
        }
        assert_eq!(levels.directives(), "warn,tributary=warn");
    }

    #[test]
    fn a_filter_by_spans_keeps_them_and_its_level() {
        let mut levels = levels("warn,tributary[task{name=a}]=trace");

        levels.set("tributary::kafka", LevelFilter::DEBUG, 1);

        assert_eq!(shown(&levels, "root"), Some(LevelFilter::WARN));
        assert_eq!(levels.directives(), "warn,tributary[task{name=a}]=trace,warn,tributary::kafka=debug");
        assert!(EnvFilter::try_new(levels.directives()).is_ok());
    }

    #[test]
    fn what_is_set_really_changes_which_lines_are_shown() {
        use tracing_subscriber::layer::SubscriberExt as _;
        let (filters, layer) = Filters::new("info").unwrap();
        let subscriber = tracing_subscriber::registry().with(layer);

        tracing::subscriber::with_default(subscriber, || {
            let shows = || {
                let root = tracing::enabled!(target: "elsewhere", tracing::Level::DEBUG);
                let ours = tracing::enabled!(target: "tributary::kafka", tracing::Level::DEBUG);
                (root, ours)
            };
            let before = shows();
            filters.set("tributary", LevelFilter::DEBUG);
            let one = shows();
            filters.set(ROOT, LevelFilter::ERROR);
            let none = shows();

            assert_eq!((before, one, none), ((false, false), (false, true), (false, false)));
        });
    }
}
