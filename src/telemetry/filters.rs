//! Which log lines are shown, changed while the process runs.
//!
//! A logger is a module path such as `tributary::kafka`, as in `log.filter`; `root` is above all. Setting a logger also sets all
//! loggers below it, so that the requested level is what appears.
//!
//! - The audit log is always shown, whatever is configured or set: a user cannot hide a change by turning it off first.
//! - Names are bounded in length and number: each stays in the filter that every log line is checked against.

use std::{collections::BTreeMap, time::SystemTime};

use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Registry,
    filter::Targets,
    reload::{self, Handle},
};

use super::Error;

/// The logger above all others.
const ROOT: &str = "root";
/// The logger of changes by users.
const AUDIT: &str = "audit";
/// The logger above all of this product.
const PRODUCT: &str = "tributary";
/// Maximum length of a logger's name, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Maximum number of loggers with a level.
const MAX_LOGGERS: usize = 256;

/// Why a logger's level cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoggerError {
    /// No logger can have this name.
    #[error(
        "a logger's name has 1 to {MAX_NAME_BYTES} letters, digits, dots, colons, dashes, underscores and dollar signs"
    )]
    Name,
    /// It is the audit logger.
    #[error("the audit log is always written, its level cannot be changed")]
    Audit,
    /// The maximum number of loggers has a level.
    #[error(
        "levels have been set for {MAX_LOGGERS} loggers, which is the maximum; set one of those, or root"
    )]
    Number,
    /// The subscriber was dropped.
    #[error("logs are not written any more")]
    Gone,
}

impl LoggerError {
    /// Checks a name, given the `known` loggers whose levels were set.
    ///
    /// # Errors
    /// The name is not valid, and why.
    pub fn check<'a>(logger: &str, known: impl IntoIterator<Item = &'a str>) -> Result<(), Self> {
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':' | '.' | '$');
        let logger = logger_name(logger);
        if logger.is_empty() || logger.len() > MAX_NAME_BYTES || !logger.chars().all(letter) {
            return Err(Self::Name);
        }
        if is_within(&logger, AUDIT) {
            return Err(Self::Audit);
        }
        let mut others = 0;
        for name in known {
            if logger_name(name) == logger {
                return Ok(());
            }
            others += 1;
        }
        if others < MAX_LOGGERS || logger == ROOT { Ok(()) } else { Err(Self::Number) }
    }
}

/// The level of a logger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveLevel {
    /// The level.
    pub level: LevelFilter,
    /// When it was changed, in milliseconds since 1970; `None` if it is as configured.
    pub changed_ms: Option<i64>,
}

/// The filter of the process's logs.
#[derive(Debug)]
pub struct Filters {
    levels: Mutex<Levels>,
    handle: Handle<EnvFilter, Registry>,
}

impl Filters {
    /// The configured filter, and the layer to install before those that write. Levels can be set only while the layer exists.
    ///
    /// # Errors
    /// The text does not parse.
    pub fn new(text: &str) -> Result<(Self, reload::Layer<EnvFilter, Registry>), Error> {
        super::filter(text)?;
        let levels = Levels::parse(text);
        let (layer, handle) = reload::Layer::new(super::filter(&format!("{text},{AUDIT_DIRECTIVE}"))?);
        Ok((Self { levels: Mutex::new(levels), handle }, layer))
    }

    /// Every logger with a known level, including `root`.
    #[must_use]
    pub fn levels(&self) -> BTreeMap<String, EffectiveLevel> {
        self.levels.lock().shown()
    }

    /// Sets the level of a logger and all below it, and returns those that were set.
    ///
    /// # Errors
    /// See [`LoggerError`].
    pub fn set(&self, logger: &str, level: LevelFilter) -> Result<Vec<String>, LoggerError> {
        let mut levels = self.levels.lock();
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
        let mut changed = levels.clone();
        let affected = changed.set(logger, level, i64::try_from(now).unwrap_or(i64::MAX))?;
        // The filter syntax cannot express some names, such as those with a dollar sign.
        let filter =
            EnvFilter::try_new(with_log_targets(&changed.directives())).map_err(|_| LoggerError::Name)?;
        self.handle.reload(filter).map_err(|_| LoggerError::Gone)?;
        *levels = changed;
        Ok(affected)
    }
}

#[derive(Debug, Clone)]
struct Levels {
    root: EffectiveLevel,
    targets: BTreeMap<String, EffectiveLevel>,
    /// A filter that is more than names and levels, such as spans; kept unchanged.
    others: Option<String>,
}

impl Levels {
    fn parse(text: &str) -> Self {
        let configured = |level| EffectiveLevel { level, changed_ms: None };
        match text.parse::<Targets>() {
            Ok(targets) => Self {
                root: configured(targets.default_level().unwrap_or(LevelFilter::OFF)),
                targets: targets
                    .iter()
                    .filter(|(name, _)| !is_within(name, AUDIT))
                    .map(|(name, level)| (logger_name(name), configured(level)))
                    .collect(),
                others: None,
            },
            Err(_) => Self {
                root: configured(bare_level(text)),
                targets: BTreeMap::new(),
                others: Some(text.to_owned()),
            },
        }
    }

    fn shown(&self) -> BTreeMap<String, EffectiveLevel> {
        let audit = EffectiveLevel { level: LevelFilter::INFO, changed_ms: None };
        let known = [(AUDIT.to_owned(), audit), (PRODUCT.to_owned(), self.effective(PRODUCT))];
        let root = [(ROOT.to_owned(), self.root)];
        let set = self.targets.iter().map(|(name, shown)| (name.clone(), *shown));
        known.into_iter().chain(root).chain(set).collect()
    }

    fn effective(&self, logger: &str) -> EffectiveLevel {
        let above = self.targets.iter().filter(|(name, _)| is_within(logger, name));
        above.max_by_key(|(name, _)| name.len()).map_or(self.root, |(_, shown)| *shown)
    }

    fn set(&mut self, logger: &str, level: LevelFilter, now_ms: i64) -> Result<Vec<String>, LoggerError> {
        LoggerError::check(logger, self.targets.keys().map(String::as_str))?;
        let shown = EffectiveLevel { level, changed_ms: Some(now_ms) };
        let logger = &logger_name(logger);
        let is_root = logger == ROOT;
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
        Ok(affected)
    }

    fn directives(&self) -> String {
        let root = self.root.level.to_string();
        let targets = self.targets.iter().map(|(name, shown)| format!("{name}={}", shown.level));
        // Later settings come last: of equal names the filter uses the last.
        let audit = AUDIT_DIRECTIVE.to_owned();
        self.others.iter().cloned().chain([root]).chain(targets).chain([audit]).collect::<Vec<_>>().join(",")
    }
}

/// Module paths as used in filters and REST, and the log targets of these crates. Only crates that log.
const MODULE_TARGETS: [(&str, &str); 6] = [
    ("tributary::api", "tributary_provider::api"),
    ("tributary::auth", "tributary_provider::auth"),
    ("tributary::circuit", "tributary_base::circuit"),
    ("tributary::kafka", "tributary_kafka"),
    ("tributary::server", "tributary_server"),
    ("tributary::simulator", "tributary_simulator"),
];

/// Former paths of modules that have moved; accepted for one version. A module that also has a new name stands before the folder it
/// was in.
const MOVED_MODULES: [(&str, &str); 26] = [
    ("tributary::worker::access", "tributary::logins::access"),
    ("tributary::worker::arbiter", "tributary::connect::config_writer"),
    ("tributary::worker::classes::record", "tributary::records::plugin"),
    ("tributary::worker::cluster", "tributary::connect::cluster"),
    ("tributary::worker::declared", "tributary::connect::declared"),
    ("tributary::worker::grants", "tributary::logins"),
    ("tributary::worker::herder::snapshots", "tributary::connect::herder::runs"),
    ("tributary::worker::herder", "tributary::connect::herder"),
    ("tributary::worker::ingest::cache", "tributary::webhooks::ingest::receiver_cache"),
    ("tributary::worker::ingest::follow", "tributary::webhooks::ingest::config_watcher"),
    ("tributary::worker::ingest::gaps", "tributary::webhooks::ingest::gap_file"),
    ("tributary::worker::ingest::notes", "tributary::webhooks::ingest::state_notes"),
    ("tributary::worker::ingest::openings", "tributary::webhooks::ingest::topic_readiness"),
    ("tributary::worker::ingest", "tributary::webhooks::ingest"),
    ("tributary::worker::ledger", "tributary::state::state_topic"),
    ("tributary::worker::reconciler", "tributary::webhooks::reconciler"),
    ("tributary::worker::records::committing", "tributary::records::task::commit"),
    ("tributary::worker::records", "tributary::records::task"),
    ("tributary::worker::rest", "tributary::connect::rest"),
    ("tributary::worker::service", "tributary::worker"),
    ("tributary::worker::state", "tributary::state"),
    ("tributary::worker::supervisor::keeper", "tributary::connect::supervisor::instance_runner"),
    ("tributary::worker::supervisor", "tributary::connect::supervisor"),
    ("tributary::enrich", "tributary::records::schedule"),
    ("tributary::fence", "tributary::records::fence"),
    ("tributary::pipeline", "tributary::publish"),
];

/// Rewrites the module paths in a filter (`tributary::kafka`) to log targets (`tributary_kafka`).
pub(super) fn with_log_targets(filter: &str) -> String {
    let mut named = filter.to_owned();
    for (module, target) in MOVED_MODULES.into_iter().chain(MODULE_TARGETS) {
        let mut parts = named.split(module);
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let goes_on = part.starts_with(|next: char| next.is_alphanumeric() || next == '_');
            text += if goes_on { module } else { target };
            text += part;
        }
        named = text;
    }
    named
}

/// The last directive of every filter.
const AUDIT_DIRECTIVE: &str = "audit=info";

/// The canonical name of a logger: dots, as in Kafka Connect's names, become `::`, `root` is case-insensitive, and `tributary_kafka`,
/// as shown in log lines, is `tributary::kafka`. A module that has moved has its present path.
#[must_use]
pub fn logger_name(written: &str) -> String {
    if written.eq_ignore_ascii_case(ROOT) {
        return ROOT.to_owned();
    }
    let name = written.replace('.', "::");
    let moved = MOVED_MODULES.iter().find(|(former, _)| is_within(&name, former));
    let name = moved.map_or_else(|| name.clone(), |(former, now)| format!("{now}{}", &name[former.len()..]));
    let target = MODULE_TARGETS.iter().find(|(_, target)| is_within(&name, target));
    target.map_or_else(|| name.clone(), |(module, target)| format!("{module}{}", &name[target.len()..]))
}

/// The default level of a filter that is more than names and levels.
fn bare_level(text: &str) -> LevelFilter {
    text.rsplit(',').find_map(|part| part.trim().parse().ok()).unwrap_or(LevelFilter::OFF)
}

/// Whether a logger equals another or is below it. All crates of the product are below `tributary`.
fn is_within(logger: &str, above: &str) -> bool {
    let is_below = |rest: &str| rest.starts_with("::") || (above == PRODUCT && rest.starts_with('_'));
    logger.strip_prefix(above).is_some_and(|rest| rest.is_empty() || is_below(rest))
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
    fn a_module_with_its_own_crate_keeps_its_logger_name() {
        for (filter, named) in [
            ("info,tributary::kafka=debug", "info,tributary_kafka=debug"),
            (
                "tributary::kafka::producer=off,tributary::kafka",
                "tributary_kafka::producer=off,tributary_kafka",
            ),
            ("tributary::auth[refresh{grant=a}]=trace", "tributary_provider::auth[refresh{grant=a}]=trace"),
            (
                "tributary::kafkaesque=warn,tributary::model_x=warn",
                "tributary::kafkaesque=warn,tributary::model_x=warn",
            ),
            ("tributary=debug,tributary::worker=info", "tributary=debug,tributary::worker=info"),
            (
                "tributary::worker::grants=debug,tributary::pipeline",
                "tributary::logins=debug,tributary::publish",
            ),
            ("tributary::worker::ingest::gaps=off", "tributary::webhooks::ingest::gap_file=off"),
            ("tributary::worker::ingest::follow=off", "tributary::webhooks::ingest::config_watcher=off"),
            ("tributary::worker::records::committing=off", "tributary::records::task::commit=off"),
        ] {
            assert_eq!(with_log_targets(filter), named);
        }
    }

    #[test]
    fn former_name_of_a_moved_module_sets_the_present_logger() {
        let mut levels = levels("info");

        levels.set("tributary.worker.rest", LevelFilter::DEBUG, 1).unwrap();

        assert_eq!(levels.directives(), "info,tributary::connect::rest=debug,audit=info");
        assert_eq!(logger_name("tributary::worker"), "tributary::worker");
    }

    #[test]
    fn both_names_of_a_crate_set_one_logger() {
        let mut levels = levels("info,tributary_kafka=debug");

        levels.set("tributary.kafka", LevelFilter::TRACE, 1).unwrap();
        let both = levels.directives();
        levels.set("tributary_provider", LevelFilter::TRACE, 2).unwrap();
        levels.set("tributary", LevelFilter::WARN, 3).unwrap();

        assert_eq!(both, "info,tributary::kafka=trace,audit=info");
        assert_eq!(
            levels.directives(),
            "info,tributary=warn,tributary::kafka=warn,tributary_provider=warn,audit=info"
        );
    }

    #[test]
    fn logger_inherits_the_level_of_the_nearest_above() {
        let levels = levels("warn,tributary=debug,tributary::kafka=off");

        assert_eq!(shown(&levels, "root"), Some(LevelFilter::WARN));
        assert_eq!(shown(&levels, "tributary"), Some(LevelFilter::DEBUG));
        assert_eq!(shown(&levels, "audit"), Some(LevelFilter::INFO));
        assert_eq!(shown(&levels, "no.such"), None);
        assert_eq!(levels.shown()["root"].changed_ms, None);
    }

    #[test]
    fn setting_one_sets_those_below_it_and_nothing_beside_it() {
        let mut levels = levels("info,tributary::kafka=warn,tributary::kafkaesque=warn");

        let affected = levels.set("tributary", LevelFilter::TRACE, 7).unwrap();
        let beside = levels.set("tributary.kafka", LevelFilter::ERROR, 8).unwrap();

        assert_eq!(affected, ["tributary", "tributary::kafka", "tributary::kafkaesque"]);
        assert_eq!(beside, ["tributary::kafka"]);
        assert_eq!(levels.shown()["tributary::kafka"].changed_ms, Some(8));
        assert_eq!(
            levels.directives(),
            "info,tributary=trace,tributary::kafka=error,tributary::kafkaesque=trace,audit=info"
        );
    }

    #[test]
    fn root_sets_all_and_an_invalid_name_nothing() {
        let mut levels = levels("info,tributary=debug");

        assert_eq!(levels.set("ROOT", LevelFilter::WARN, 1).unwrap(), ["root", "tributary"]);
        for name in ["", "a=b", "a,b", "a[b]", "a b", &"x".repeat(256)] {
            assert_eq!(levels.set(name, LevelFilter::TRACE, 2), Err(LoggerError::Name), "{name:?}");
        }
        assert_eq!(levels.directives(), "warn,tributary=warn,audit=info");
    }

    #[test]
    fn number_of_loggers_with_a_level_is_limited() {
        let mut levels = levels("info");
        for number in 0..MAX_LOGGERS {
            levels.set(&format!("logger{number}"), LevelFilter::DEBUG, 1).unwrap();
        }

        assert_eq!(levels.set("one.more", LevelFilter::DEBUG, 2), Err(LoggerError::Number));
        assert!(levels.set("logger7", LevelFilter::WARN, 3).is_ok(), "one that is there can be changed");
        assert!(levels.set("root", LevelFilter::WARN, 3).is_ok());
    }

    #[test]
    fn no_filter_hides_the_audit_log() {
        use tracing_subscriber::layer::SubscriberExt as _;
        for configured in ["off", "info,audit=off", "audit=error,warn", "off,tributary[task{name=a}]=trace"] {
            let (filters, layer) = Filters::new(configured).unwrap();
            let subscriber = tracing_subscriber::registry().with(layer);

            tracing::subscriber::with_default(subscriber, || {
                let shown = || tracing::enabled!(target: "audit", tracing::Level::INFO);
                assert!(shown(), "{configured}");
                filters.set(ROOT, LevelFilter::OFF).unwrap();
                assert!(shown(), "{configured}, then root off");
                for name in ["audit", "audit.change"] {
                    assert_eq!(filters.set(name, LevelFilter::OFF), Err(LoggerError::Audit));
                }
                assert!(shown(), "{configured}, then audit off");
                assert!(!tracing::enabled!(target: "elsewhere", tracing::Level::ERROR));
            });
        }
    }

    #[test]
    fn a_filter_by_spans_keeps_them_and_its_level() {
        let mut levels = levels("warn,tributary[task{name=a}]=trace");

        levels.set("tributary::kafka", LevelFilter::DEBUG, 1).unwrap();

        assert_eq!(shown(&levels, "root"), Some(LevelFilter::WARN));
        let directives = "warn,tributary[task{name=a}]=trace,warn,tributary::kafka=debug,audit=info";
        assert_eq!(levels.directives(), directives);
        assert!(EnvFilter::try_new(levels.directives()).is_ok());
    }

    #[test]
    fn set_levels_change_which_lines_are_shown() {
        use tracing_subscriber::layer::SubscriberExt as _;
        let (filters, layer) = Filters::new("info").unwrap();
        let subscriber = tracing_subscriber::registry().with(layer);

        tracing::subscriber::with_default(subscriber, || {
            let shows = || {
                let root = tracing::enabled!(target: "elsewhere", tracing::Level::DEBUG);
                let ours = tracing::enabled!(target: "tributary_kafka::producer", tracing::Level::DEBUG);
                (root, ours)
            };
            let before = shows();
            filters.set("tributary", LevelFilter::DEBUG).unwrap();
            let one = shows();
            filters.set(ROOT, LevelFilter::ERROR).unwrap();
            let none = shows();

            assert_eq!((before, one, none), ((false, false), (false, true), (false, false)));
        });
    }
}
