//! `tributary auth status`: every grant and its expiry.
//!
//! Without the encryption key of a grant it shows the name, the key's fingerprint and the time of the record. Then, and if a grant needs
//! a person within a week, the exit code is 1.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use clap::Args;
use serde_json::{Value, json};

use base::{durable, retry::ErrorChain};
use model::Moment;
use provider::{
    OAuth,
    auth::{
        Area,
        grant::{Grant, GrantState},
        seal::{Envelope, Keyring},
    },
};

use super::{
    grants_topic::{StoredGrant, look},
    login::provider,
};
use crate::{
    cli::{
        CommandError, Environment, Result,
        client::OutputArgs,
        load, resolve,
        table::{columns, each, moment, text, text_or},
    },
    config::{Connector, Worker},
    logins::grant_name,
    state::configs,
};

/// A login that ends within this time needs a person, in milliseconds.
const EXPIRY_WARNING: i64 = 7 * DAY;
const DAY: i64 = 86_400_000;
const MINUTE: i64 = 60_000;
/// A copy has a few kilobytes; a larger file is not one.
const MAX_COPY_BYTES: u64 = 1 << 20;
/// Remark on a login from a version that did not store origins.
const NO_ORIGIN_REMARK: &str = "the login names no origin, so its tokens go only to hosts that provider.hosts.allowed lists in full: \
                         log in again to bind it to provider.base.url";
/// Documented by the provider; used if no connector configures a lifetime.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(30 * 86_400);

#[derive(Args)]
pub(in crate::cli) struct StatusOptions {
    /// Worker properties; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Connector files (JSON), in addition to those in `connectors.dir`, for the lifetimes of their logins
    #[arg(long = "connector", value_name = "FILE")]
    connectors: Vec<PathBuf>,
    #[command(flatten)]
    format: OutputArgs,
}

pub(super) async fn run(options: &StatusOptions, environment: &Environment, out: &mut dyn Write) -> Result {
    let loaded = load::load(options.config.as_deref(), &options.connectors, environment)?;
    let (grants, cached) = load_grants(&loaded.worker).await?;
    let mut connectors = loaded.connectors;
    if !cached {
        connectors.extend(running_connectors(&loaded.worker).await?);
    }
    let lifetimes = LoginLifetimes::of(&connectors, !cached);
    let now = Moment::now().micros() / 1_000;
    let lines: Vec<GrantSummary> =
        grants.into_iter().map(|known| GrantSummary::new(known, &lifetimes, now)).collect();
    if options.format.is_json() {
        for line in &lines {
            writeln!(out, "{}", line.json(cached))?;
        }
    } else {
        show(&lines, cached, out)?;
    }
    if lines.iter().any(|line| line.needs_a_person) { Err(CommandError::Reported) } else { Ok(()) }
}

/// ` until TIME`, or nothing if the login has no end.
pub(super) fn until(grant: &Grant, oauth: &OAuth) -> String {
    let (login, _) = grant.ends_ms(oauth.login_lifetime, oauth.idle_lifetime);
    login.map_or_else(String::new, |end| format!(" until {}", moment(end)))
}

/// The connectors of the workers, as far as their settings can be read here.
async fn running_connectors(worker: &Worker) -> Result<Vec<Connector>, kafka::Error> {
    let configs = resolve::configs(worker).await?;
    let parsed = |(name, connector): (&String, &configs::StoredConnector)| {
        // Skip connectors whose references cannot be resolved on this machine.
        Connector::parse(name, &connector.config, &worker.providers).ok().map(|(connector, _)| connector)
    };
    Ok(configs.connectors().iter().filter_map(parsed).collect())
}

/// All grants, and whether they come from this machine's copies.
async fn load_grants(worker: &Worker) -> Result<(Vec<StoredGrant>, bool)> {
    match look(worker).await {
        Ok(grants) => Ok((grants, false)),
        Err(CommandError::Outside(error)) => {
            let copies = local_copies(worker)?;
            if copies.is_empty() {
                return Err(CommandError::Outside(error));
            }
            tracing::warn!(error = %ErrorChain(error.as_ref()), "Kafka does not answer; showing this machine's copies");
            Ok((copies, true))
        }
        Err(failure) => Err(failure),
    }
}

/// Copies that a worker stored on this machine.
fn local_copies(worker: &Worker) -> Result<Vec<StoredGrant>> {
    let keys = worker.keyring()?;
    let directory = worker.state_dir.join("grants");
    Ok(copy_names(&directory)
        .into_iter()
        .filter_map(|name| local_copy(&directory, name, keys.as_ref()))
        .collect())
}

/// Reads one copy and never changes it: a worker may be writing it, and moves a damaged one aside itself.
fn local_copy(directory: &Path, name: String, keys: Option<&Keyring>) -> Option<StoredGrant> {
    let path = directory.join(format!("{name}.grant"));
    let content = durable::read(&path, MAX_COPY_BYTES).ok()??;
    let envelope: Option<Envelope> = serde_json::from_slice(&content).ok();
    let written = std::fs::metadata(&path).and_then(|data| data.modified()).ok();
    let written = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let written_ms = written.and_then(|at| i64::try_from(at.as_millis()).ok());
    Some(StoredGrant::open(name, envelope.as_ref(), written_ms, keys))
}

fn copy_names(directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = files
        .filter_map(|file| file.file_name().to_str()?.strip_suffix(".grant").map(str::to_owned))
        .collect();
    names.sort_unstable();
    names
}

/// Lifetimes of logins, by grant and area, as configured in connectors.
struct LoginLifetimes {
    known: BTreeMap<(String, Area), (Option<Duration>, Option<Duration>)>,
    /// Whether all connectors are known.
    all: bool,
}

impl LoginLifetimes {
    fn of(connectors: &[Connector], all: bool) -> Self {
        let mut known = BTreeMap::new();
        for provider in connectors.iter().filter_map(|connector| provider(connector).ok()) {
            for area in Area::ALL {
                let ends = (provider.oauth.login_lifetime, provider.oauth.idle_lifetime);
                known.insert((grant_name(provider, area).to_owned(), area), ends);
            }
        }
        Self { known, all }
    }

    fn get(&self, grant: &Grant) -> Option<(Option<Duration>, Option<Duration>)> {
        self.known.get(&(grant.name.clone(), grant.area)).copied()
    }
}

/// One grant as it is shown.
#[derive(Debug)]
struct GrantSummary {
    known: StoredGrant,
    state: &'static str,
    access_ms: Option<i64>,
    refresh_ms: Option<i64>,
    login_ms: Option<i64>,
    remark: Option<String>,
    needs_a_person: bool,
    now_ms: i64,
}

impl GrantSummary {
    fn new(known: StoredGrant, lifetimes: &LoginLifetimes, now_ms: i64) -> Self {
        let remark = known.grant.as_ref().err().map(|error| {
            let written = known.written_ms.map(|at| format!("written {}, ", moment(at)));
            let key = known.kid.as_ref().map(|kid| format!("encrypted with the key {kid}; "));
            [written, key, Some(error.to_string())].into_iter().flatten().collect()
        });
        let (access_ms, refresh_ms, login_ms) = (None, None, None);
        let mut status = Self {
            known,
            state: "unreadable",
            access_ms,
            refresh_ms,
            login_ms,
            remark,
            needs_a_person: true,
            now_ms,
        };
        let Ok(grant) = &status.known.grant else { return status };
        let named = lifetimes.get(grant);
        if let Some(tokens) = grant.tokens() {
            let (lifetime, idle) = named.unwrap_or((Some(DEFAULT_LIFETIME), None));
            (status.login_ms, status.refresh_ms) = grant.ends_ms(lifetime, idle);
            status.access_ms = Some(tokens.access_expires_ms);
        }
        (status.state, status.remark, status.needs_a_person) = match &grant.state {
            GrantState::Ready { .. } if named.is_none() && lifetimes.all => {
                ("ready", Some("no connector uses it, so it is not refreshed".to_owned()), false)
            }
            GrantState::Ready { .. } if grant.login.origins.is_empty() => {
                ("ready", Some(NO_ORIGIN_REMARK.to_owned()), false)
            }
            GrantState::Ready { .. } => ("ready", None, false),
            GrantState::Refreshing { intent, .. } => {
                let (worker, started) = (&intent.origin.worker, moment(intent.origin.begun_ms));
                ("refreshing", Some(format!("{worker} has been refreshing it since {started}")), false)
            }
            GrantState::Lost { reason, at_ms, .. } => {
                ("lost", Some(format!("{reason}, found {}: log in again", moment(*at_ms))), true)
            }
            GrantState::LoggedOut { at_ms } => {
                ("logged out", Some(format!("since {}", moment(*at_ms))), false)
            }
        };
        if let Some(end) = status.refresh_ms.filter(|end| end.saturating_sub(now_ms) < EXPIRY_WARNING)
            && !status.needs_a_person
        {
            status.needs_a_person = true;
            let what = if end <= now_ms { "ended" } else { "ends" };
            status.remark = Some(format!("the login {what} {}: log in again", moment(end)));
        }
        status
    }

    fn json(&self, cached: bool) -> Value {
        let grant = self.known.grant.as_ref().ok();
        let tokens = grant.and_then(Grant::tokens);
        json!({
            "grant": self.known.name,
            "area": grant.map(|grant| grant.area.name()),
            "state": self.state,
            "who": grant.map(|grant| grant.login.who()),
            "tenant": grant.and_then(|grant| grant.login.tenant.as_deref()),
            "origins": grant.map_or(&[][..], |grant| grant.login.origins.as_slice()),
            "scopes": tokens.map_or(&[][..], |tokens| tokens.scopes.as_slice()),
            "accessTokenEnds": self.access_ms.map(moment),
            "refreshTokenEnds": self.refresh_ms.map(moment),
            "loginEnds": self.login_ms.map(moment),
            "daysLeft": self.days_left(),
            "key": self.known.kid,
            "written": self.known.written_ms.map(moment),
            "remark": self.remark,
            "needsAPerson": self.needs_a_person,
            "fromThisMachinesCopy": cached,
        })
    }

    /// Whole days until the login ends; 0 once it has.
    fn days_left(&self) -> Option<i64> {
        self.login_ms.map(|end| end.saturating_sub(self.now_ms).max(0) / DAY)
    }
}

fn show(lines: &[GrantSummary], cached: bool, out: &mut dyn Write) -> std::io::Result<()> {
    if cached {
        writeln!(out, "Kafka does not answer: these are this machine's copies, which may be old\n")?;
    }
    if lines.is_empty() {
        return writeln!(out, "no logins: run `tributary auth login AREA --connector NAME`");
    }
    let head = [
        "GRANT",
        "AREA",
        "STATE",
        "WHO",
        "TENANT",
        "ORIGINS",
        "ACCESS TOKEN",
        "REFRESH TOKEN",
        "LOGIN",
        "KEY",
    ];
    let dash = || "-".to_owned();
    let shown: Vec<Value> = lines.iter().map(|line| line.json(cached)).collect();
    let joined = |all: &Value| each(all).iter().map(text).collect::<Vec<_>>().join(" ");
    let rows = shown.iter().zip(lines).map(|(one, line)| {
        let ends = |end: Option<i64>| end.map_or_else(dash, |end| distance(end.saturating_sub(line.now_ms)));
        let origins = joined(&one["origins"]);
        [
            text(&one["grant"]),
            text(&one["area"]),
            text(&one["state"]),
            text(&one["who"]),
            text_or(&one["tenant"], if line.known.grant.is_ok() { "unknown" } else { "-" }),
            if origins.is_empty() { dash() } else { origins },
            ends(line.access_ms),
            ends(line.refresh_ms),
            line.days_left().map_or_else(dash, |days| format!("{days} days left")),
            text(&one["key"]),
        ]
    });
    columns(head, rows.collect(), out)?;
    for one in &shown {
        let (name, scopes) = (text(&one["grant"]), joined(&one["scopes"]));
        writeln!(out)?;
        if !scopes.is_empty() {
            writeln!(out, "{name} may: {scopes}")?;
        }
        if !one["remark"].is_null() {
            writeln!(out, "{name}: {}", text(&one["remark"]))?;
        }
    }
    Ok(())
}

/// A time relative to now, in one unit.
fn distance(ms: i64) -> String {
    let (size, word) = match ms.saturating_abs() {
        ms if ms >= 2 * DAY => (ms / DAY, "days"),
        ms if ms >= 120 * MINUTE => (ms / (60 * MINUTE), "hours"),
        ms => (ms / MINUTE, "minutes"),
    };
    if ms < 0 { format!("ended {size} {word} ago") } else { format!("in {size} {word}") }
}

#[cfg(test)]
mod tests;
