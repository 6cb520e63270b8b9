//! `tributary dead-letters …`: what could not be published, one by one, and another try for what was a delivery.
//!
//! Topic ─▶ [`Letters::scan`] ─▶ entries ─▶ a table, one letter's headers and body, or a replay. `webhooks::dead_letter` has the
//! form of letters, pieces and marks.
//!
//! - A topic is read from its first record to its end of now; memory is bounded by `--limit` for `list`, by one letter for
//!   `show`, and by [`replay::PIECES_LIMIT`] and 16 bytes a mark for `replay`.
//! - Nothing is ever removed: a replay adds a mark behind the letter, and what still fails stays as it was.
//! - A replay publishes for one `topic.prefix`, and only letters that a worker signed ([`LetterSigner`]); `--trust-unsigned` allows
//!   letters without a signature, never one with a wrong signature.
//!
//! Exit codes: 0 done; 1 Kafka or the registry is away, or a letter is not there, incomplete or still fails; 2 the command
//! line or the configuration is wrong, and nothing was done.

mod entry;
mod list;
mod read;
mod replay;
mod show;

use std::{collections::BTreeSet, io::Write, path::PathBuf, sync::Arc};

use clap::{ArgGroup, Args, Subcommand};

use kafka::Admin;
use model::{Moment, Topic, TopicPrefix};

use super::{Environment, Result, client::Format, failure, load, meant, problem};
use crate::{
    config::{Problem, Worker},
    publish::LetterSigner,
    webhooks::dead_letter::LetterPosition,
};

#[derive(Subcommand)]
pub(super) enum Command {
    /// The letters of a topic, newest last
    List {
        #[command(flatten)]
        which: Which,
        /// Only letters whose reason or stage contains this text, such as Malformed or KAFKA_PRODUCE
        #[arg(long)]
        reason: Option<String>,
        /// Only letters written since: a time such as 2026-11-15T09:00:00Z, or so long ago (90s, 15m, 2h, 7d)
        #[arg(long, value_name = "TIME", value_parser = since)]
        since: Option<i64>,
        /// The newest so many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        #[command(flatten)]
        format: Format,
    },
    /// One letter: all headers, and the body with its pieces joined
    Show {
        /// Where it is, as `list` shows it
        #[arg(value_name = "PARTITION@OFFSET")]
        place: LetterPosition,
        #[command(flatten)]
        which: Which,
        /// The body alone, byte for byte
        #[arg(long, conflicts_with_all = ["json", "output"])]
        raw: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Reads deliveries again and publishes what they say now; what still fails stays, and is told with exit code 1
    #[command(group(ArgGroup::new("chosen").required(true).multiple(false).args(["places", "reason", "all"])))]
    Replay {
        /// Which letters, as `list` shows them
        #[arg(value_name = "PARTITION@OFFSET")]
        places: Vec<LetterPosition>,
        #[command(flatten)]
        which: Which,
        /// All letters whose reason or stage contains this text
        #[arg(long)]
        reason: Option<String>,
        /// All letters
        #[arg(long)]
        all: bool,
        /// Tell what would be published, and publish nothing
        #[arg(long)]
        dry_run: bool,
        /// Also what was replayed before
        #[arg(long)]
        again: bool,
        /// Also letters without a signature: those of workers without grant.encryption.key, or of earlier versions
        #[arg(long)]
        trust_unsigned: bool,
    },
}

/// Which topic.
#[derive(Args)]
#[command(group(ArgGroup::new("owner").multiple(false).args(["prefix", "connector"])))]
pub(super) struct Which {
    /// Worker properties; without it, the environment (CONNECT_*) alone
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The dead-letter topic itself; with --prefix or --connector, theirs under another name
    #[arg(long)]
    topic: Option<String>,
    /// The dead letters of a topic.prefix
    #[arg(long)]
    prefix: Option<String>,
    /// The dead letters of a connector: its file (JSON), or its name in connectors.dir or on the workers
    #[arg(long, value_name = "FILE|NAME")]
    connector: Option<String>,
}

/// A topic of dead letters that is there.
struct Letters {
    worker: Worker,
    topic: Arc<str>,
    partitions: i32,
    signer: LetterSigner,
    /// For whom a replay publishes; `None` if the choice of the topic leaves that open.
    owner: Option<Owner>,
}

/// For whom a replay publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    prefix: TopicPrefix,
    /// `None` for every connector of the prefix.
    connector: Option<String>,
}

pub(super) async fn run(command: Command, environment: &Environment, out: &mut dyn Write) -> Result {
    match command {
        Command::List { which, reason, since, limit, format } => {
            let letters = which.find(environment).await?;
            let wanted = entry::Wanted { reason, since };
            list::run(&letters, wanted, limit as usize, format.is_json(), out).await
        }
        Command::Show { place, which, raw, format } => {
            let letters = which.find(environment).await?;
            show::run(&letters, place, raw, format.is_json(), out).await
        }
        Command::Replay { places, which, reason, all: _, dry_run, again, trust_unsigned } => {
            let letters = which.find(environment).await?;
            let owner = letters.owner.clone().ok_or_else(|| {
                let rule = "is missing: a replay publishes below one topic.prefix, and the choice of the topic does not tell which";
                problem("--prefix", None, rule, "add --prefix or --connector")
            })?;
            let wanted = entry::Wanted { reason, since: None };
            let places: BTreeSet<LetterPosition> = places.into_iter().collect();
            let order = replay::Order { wanted, places, dry_run, again, owner, trust_unsigned };
            // Large, and once in a process.
            Box::pin(replay::run(&letters, order, out)).await
        }
    }
}

impl Which {
    async fn find(&self, environment: &Environment) -> Result<Letters> {
        let loaded = load::load(self.config.as_deref(), &[], environment)?;
        let (topic, owner) = match (&self.connector, &self.prefix, &self.topic) {
            (Some(named), _, topic) => {
                let connector = meant::connector(named, self.config.as_deref(), environment).await?;
                let common = connector.common();
                let (prefix, connector) = (common.topic_prefix.clone(), Some(common.name.clone()));
                let topic = topic.as_ref().unwrap_or(&common.errors.dead_letter_topic).clone();
                (topic, Some(Owner { prefix, connector }))
            }
            (None, Some(prefix), topic) => {
                let prefix = TopicPrefix::new(prefix.as_str()).map_err(|error| {
                    let remedy = "write the topic.prefix of a connector";
                    problem("--prefix", prefix.as_str(), error.to_string(), remedy)
                })?;
                let topic = topic.clone().unwrap_or_else(|| Topic::DeadLetters.name(&prefix));
                (topic, Some(Owner { prefix, connector: None }))
            }
            (None, None, Some(topic)) => (topic.clone(), owner_by_name(topic)),
            (None, None, None) => {
                let common = || loaded.connectors.iter().map(|one| one.common());
                let topic = only(&common().map(|common| common.errors.dead_letter_topic.clone()).collect())?;
                let mut prefixes: BTreeSet<TopicPrefix> =
                    common().map(|one| one.topic_prefix.clone()).collect();
                let prefix = prefixes.pop_first().filter(|_| prefixes.is_empty());
                (topic, prefix.map(|prefix| Owner { prefix, connector: None }))
            }
        };
        let worker = loaded.worker;
        let signer = LetterSigner::of(&worker)?;
        let counts = Admin::Real(worker.kafka.clone()).partition_counts(&[&topic]).await?;
        let missing = || {
            failure(format!(
                "topic {topic} does not exist; name another with --topic, --prefix or --connector"
            ))
        };
        let partitions = *counts.get(&topic).ok_or_else(missing)?;
        Ok(Letters { worker, topic: topic.into(), partitions, signer, owner })
    }
}

/// Whose dead letters a topic has by its name alone.
fn owner_by_name(topic: &str) -> Option<Owner> {
    let prefix = topic.strip_suffix(&format!(".{}", Topic::DeadLetters.suffix()))?;
    Some(Owner { prefix: TopicPrefix::new(prefix).ok()?, connector: None })
}

/// The topic of the only choice there is.
fn only(topics: &BTreeSet<String>) -> Result<String, Problem> {
    let known: Vec<&str> = topics.iter().map(String::as_str).collect();
    let rule = match known.as_slice() {
        [topic] => return Ok((*topic).to_owned()),
        [] => {
            "is missing, and connectors.dir names no connector whose dead letters could be meant".to_owned()
        }
        several => format!("is missing, and connectors.dir has several: {}", several.join(", ")),
    };
    Err(problem("--topic", None, rule, "name a topic, or its --prefix or --connector"))
}

/// Milliseconds since 1970 of a moment, or of so long ago.
fn since(text: &str) -> Result<i64, &'static str> {
    if let Some(moment) = Moment::parse(text) {
        return Ok(moment.micros().div_euclid(1_000));
    }
    let fault = "must be a time such as 2026-11-15T09:00:00Z, or so long ago, such as 90s, 15m, 2h or 7d";
    let unit = match text.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3_600,
        Some(b'd') => 86_400,
        _ => return Err(fault),
    };
    let count: u32 = text[..text.len() - 1].parse().map_err(|_| fault)?;
    Ok((Moment::now().micros() / 1_000 - i64::from(count) * unit * 1_000).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_moment_or_so_long_ago() {
        let now = Moment::now().micros() / 1_000;

        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(1_000));
        let hours = now - since("2h").unwrap();
        assert!((7_140_000..7_260_000).contains(&hours), "{hours}");
        for wrong in ["", "h", "2", "-2h", "2w", "yesterday", "2026-11-15"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_topic_tells_its_prefix_by_the_default_name_alone() {
        let prefix = |topic: &str| owner_by_name(topic).map(|owner| owner.prefix.to_string());

        assert_eq!(prefix("acme.eu.dead-letters").as_deref(), Some("acme.eu"));
        for other in ["dead-letters", ".dead-letters", "acme.errors", "acme..dead-letters"] {
            assert_eq!(prefix(other), None, "{other}");
        }
    }

    #[test]
    fn a_topic_is_chosen_only_where_there_is_no_choice() {
        let told = |topics: &[&str]| {
            let chosen = only(&topics.iter().map(|topic| (*topic).to_owned()).collect());
            chosen.unwrap_or_else(|problem| problem.to_string())
        };

        assert_eq!(told(&["a.dead-letters"]), "a.dead-letters");
        assert!(told(&[]).contains("--topic"), "{}", told(&[]));
        assert!(told(&["a", "b"]).contains("several: a, b"), "{}", told(&["a", "b"]));
    }
}
