//! `tributary dead-letters …`: lists and shows dead letters, and replays those that were deliveries.
//!
//! Topic ─▶ [`DeadLetterTopic::scan`] ─▶ entries ─▶ a table, one letter's headers and body, or a replay. `webhooks::dead_letter` has the
//! form of letters, pieces and marks.
//!
//! - A topic is read from its first record to its current end; memory is bounded by `--limit` for `list`, by one letter for
//!   `show`, and by [`replay::MAX_PIECE_BYTES`] and 16 bytes a mark for `replay`.
//! - Nothing is removed: a replay adds a mark behind the letter, and a letter that still fails stays as it was.
//! - A replay publishes for one `topic.prefix`, and only letters that a worker signed ([`LetterSigner`]); `--trust-unsigned` allows
//!   letters without a signature, never one with a wrong signature.
//!
//! Exit codes: 0 done; 1 Kafka or the registry does not answer, or a letter does not exist, is incomplete or still fails; 2 the command
//! line or the configuration is wrong, and nothing was done.

mod entry;
mod list;
mod replay;
mod scan;
mod show;

use std::{collections::BTreeSet, io::Write, path::PathBuf, sync::Arc};

use clap::{ArgGroup, Args, Subcommand};

use kafka::Admin;
use model::{Topic, TopicPrefix};

use super::{Environment, Result, client::OutputArgs, failure, load, problem, resolve, scan::since};
use crate::{config::Worker, publish::LetterSigner, webhooks::dead_letter::LetterPosition};

#[derive(Subcommand)]
pub(super) enum DeadLettersCommand {
    /// Lists the letters of a topic, newest last
    List {
        #[command(flatten)]
        which: TopicChoice,
        /// Only letters whose reason or stage contains this text, such as Malformed or KAFKA_PRODUCE
        #[arg(long)]
        reason: Option<String>,
        /// Only letters written since a time such as 2026-11-15T09:00:00Z, or within a duration (90s, 15m, 2h, 7d)
        #[arg(long, value_name = "TIME", value_parser = since)]
        since: Option<i64>,
        /// Maximum number of letters; the newest are shown
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Shows one letter: all headers, and the body joined from its pieces
    Show {
        /// Place of the letter, as `list` shows it
        #[arg(value_name = "PARTITION@OFFSET")]
        place: LetterPosition,
        #[command(flatten)]
        which: TopicChoice,
        /// Print only the body, byte for byte
        #[arg(long, conflicts_with_all = ["json", "output"])]
        raw: bool,
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Reads deliveries again and publishes their records; letters that still fail stay, with exit code 1
    #[command(group(ArgGroup::new("chosen").required(true).multiple(false).args(["places", "reason", "all"])))]
    Replay {
        /// Places of letters, as `list` shows them
        #[arg(value_name = "PARTITION@OFFSET")]
        places: Vec<LetterPosition>,
        #[command(flatten)]
        which: TopicChoice,
        /// All letters whose reason or stage contains this text
        #[arg(long)]
        reason: Option<String>,
        /// All letters
        #[arg(long)]
        all: bool,
        /// Print the records that would be published, and publish nothing
        #[arg(long)]
        dry_run: bool,
        /// Also letters that were replayed before
        #[arg(long)]
        again: bool,
        /// Also letters without a signature: those of workers without grant.encryption.key, or of earlier versions
        #[arg(long)]
        trust_unsigned: bool,
    },
}

#[derive(Args)]
#[command(group(ArgGroup::new("owner").multiple(false).args(["prefix", "connector"])))]
pub(super) struct TopicChoice {
    /// Worker properties; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The dead-letter topic; with --prefix or --connector, overrides their topic name
    #[arg(long)]
    topic: Option<String>,
    /// The dead letters of a topic.prefix
    #[arg(long)]
    prefix: Option<String>,
    /// The dead letters of a connector: its file (JSON), or its name in connectors.dir or on the workers
    #[arg(long, value_name = "FILE|NAME")]
    connector: Option<String>,
}

/// An existing dead-letter topic.
struct DeadLetterTopic {
    worker: Worker,
    topic: Arc<str>,
    partitions: i32,
    signer: LetterSigner,
    /// Prefix and connector of a replay; `None` if the choice of the topic does not determine them.
    owner: Option<ReplayScope>,
}

/// Prefix and connector for which a replay publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReplayScope {
    prefix: TopicPrefix,
    /// `None` for every connector of the prefix.
    connector: Option<String>,
}

pub(super) async fn run(
    command: DeadLettersCommand,
    environment: &Environment,
    out: &mut dyn Write,
) -> Result {
    match command {
        DeadLettersCommand::List { which, reason, since, limit, format } => {
            let letters = which.find(environment).await?;
            let filter = entry::LetterFilter { reason, since };
            list::run(&letters, filter, limit as usize, format.is_json(), out).await
        }
        DeadLettersCommand::Show { place, which, raw, format } => {
            let letters = which.find(environment).await?;
            show::run(&letters, place, raw, format.is_json(), out).await
        }
        DeadLettersCommand::Replay { places, which, reason, all: _, dry_run, again, trust_unsigned } => {
            let letters = which.find(environment).await?;
            let owner = letters.owner.clone().ok_or_else(|| {
                let rule = "is missing: a replay publishes below one topic.prefix, and the chosen topic does not determine it";
                problem("--prefix", None, rule, "add --prefix or --connector")
            })?;
            let filter = entry::LetterFilter { reason, since: None };
            let places: BTreeSet<LetterPosition> = places.into_iter().collect();
            let request = replay::ReplayRequest { filter, places, dry_run, again, owner, trust_unsigned };
            // A large future.
            Box::pin(replay::run(&letters, request, out)).await
        }
    }
}

impl TopicChoice {
    async fn find(&self, environment: &Environment) -> Result<DeadLetterTopic> {
        let loaded = load::load(self.config.as_deref(), &[], environment)?;
        let (topic, owner) = match (&self.connector, &self.prefix, &self.topic) {
            (Some(named), _, topic) => {
                let connector = resolve::connector(named, self.config.as_deref(), environment).await?;
                let common = connector.common();
                let (prefix, connector) = (common.topic_prefix.clone(), Some(common.name.clone()));
                let topic = topic.as_ref().unwrap_or(&common.errors.dead_letter_topic).clone();
                (topic, Some(ReplayScope { prefix, connector }))
            }
            (None, Some(prefix), topic) => {
                let prefix = resolve::prefix(prefix)?;
                let topic = topic.clone().unwrap_or_else(|| Topic::DeadLetters.name(&prefix));
                (topic, Some(ReplayScope { prefix, connector: None }))
            }
            (None, None, Some(topic)) => (topic.clone(), owner_by_name(topic)),
            (None, None, None) => {
                let common = || loaded.connectors.iter().map(|one| one.common());
                let topics = common().map(|common| common.errors.dead_letter_topic.clone()).collect();
                let topic =
                    resolve::only("--topic", &topics, "name a topic, or its --prefix or --connector")?;
                let mut prefixes: BTreeSet<TopicPrefix> =
                    common().map(|one| one.topic_prefix.clone()).collect();
                let prefix = prefixes.pop_first().filter(|_| prefixes.is_empty());
                (topic, prefix.map(|prefix| ReplayScope { prefix, connector: None }))
            }
        };
        let worker = loaded.worker;
        let signer = LetterSigner::of(&worker)?;
        let counts = Admin::Real(worker.kafka.clone()).partition_counts(&[&topic]).await?;
        let missing = || {
            failure(format!(
                "topic {topic} does not exist; choose another with --topic, --prefix or --connector"
            ))
        };
        let partitions = *counts.get(&topic).ok_or_else(missing)?;
        Ok(DeadLetterTopic { worker, topic: topic.into(), partitions, signer, owner })
    }
}

/// The prefix in a topic's default name.
fn owner_by_name(topic: &str) -> Option<ReplayScope> {
    let prefix = topic.strip_suffix(&format!(".{}", Topic::DeadLetters.suffix()))?;
    Some(ReplayScope { prefix: TopicPrefix::new(prefix).ok()?, connector: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_default_topic_name_has_a_prefix() {
        let prefix = |topic: &str| owner_by_name(topic).map(|owner| owner.prefix.to_string());

        assert_eq!(prefix("acme.eu.dead-letters").as_deref(), Some("acme.eu"));
        for other in ["dead-letters", ".dead-letters", "acme.errors", "acme..dead-letters"] {
            assert_eq!(prefix(other), None, "{other}");
        }
    }
}
