//! Connectors that files declare (`connectors.dir`), brought into the config topic at start and when a file changes.
//!
//! ```text
//! files ──look──▶ what they say ──differs from declared-N?──▶ herder: validated, arbitrated, one transaction
//!                       └──────────────▶ what this worker sees, for GET /admin/declarations
//! ```
//!
//! The files are looked at every `connectors.dir.interval.ms`, on a blocking thread, and read where their stamp has
//! changed. Being told of changes by the system would be quicker and less sure: mounts of Kubernetes swap a link above the
//! files, network file systems tell nothing, and a watch can overflow. A look at a thousand files takes milliseconds.
//!
//! - A file is brought in when it is new to this worker or says something else than before, *and* the topic has not got
//!   that already. So a restart changes nothing, an edit by REST stays until the file changes, and of several workers
//!   with the same files one writes.
//! - A worker whose file has not changed never writes it again. Where files change on one worker before another, the
//!   other does not put the old content back.
//! - Nothing is ever deleted because a file is gone: a mount that is missing must not end a flow of data. Only the
//!   memory of a declaration goes, once its connector was deleted too, and while there are other files to see.
//! - What files say goes to the topic as it is written: references stay references.
//!
//! On failure: a file that cannot be used is logged once, told as refused, and tried again now and then, as what it refers
//! to may change; what stood there before stays. A directory that is missing is logged once and looked for again. While Kafka is away everything waits for the next look.

mod folder;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::folder::{Content, Folder, Found};
use super::herder::{self, Declaration, Finding, Herder, Sighting};
use crate::config;

/// How long a refused file waits before it is tried again unchanged.
const AGAIN: Duration = Duration::from_secs(30);

/// Where the files are.
#[derive(Debug, Clone)]
pub struct Options {
    /// `connectors.dir`.
    pub directory: Option<PathBuf>,
    /// Files beside those in it.
    pub files: Vec<PathBuf>,
    /// Between two looks.
    pub interval: Duration,
}

impl Options {
    /// Those of a worker; `None` where it has no files to look at.
    pub fn of(worker: &config::Worker) -> Option<Self> {
        let options = Self {
            directory: worker.connectors_dir.clone(),
            files: worker.connector_files.clone(),
            interval: worker.connectors_dir_interval,
        };
        (options.directory.is_some() || !options.files.is_empty()).then_some(options)
    }
}

/// Looks at the files for as long as it runs.
pub struct Watch {
    herder: Herder,
    options: Options,
    folder: Option<Folder>,
    /// Hash that is done with, by connector: the topic had it at some moment since this worker sees it.
    settled: BTreeMap<String, String>,
    /// By file.
    troubles: BTreeMap<String, Trouble>,
    /// Why the directory could not be read last time.
    blind: Option<String>,
    /// Kafka did not take the last file.
    is_waiting: bool,
}

/// What keeps a file from being applied.
#[derive(Debug, Clone)]
struct Trouble {
    /// Of what was refused; none where the file could not be read.
    hash: Option<String>,
    reason: String,
    again: Instant,
}

/// What is left to do about a file in one turn.
type Task = (usize, Arc<Declaration>);

impl Watch {
    /// Of these files, for this worker.
    pub fn new(herder: Herder, options: Options) -> Self {
        let folder = Some(Folder::new(options.directory.clone(), options.files.clone()));
        Self {
            herder,
            options,
            folder,
            settled: BTreeMap::new(),
            troubles: BTreeMap::new(),
            blind: None,
            is_waiting: false,
        }
    }

    /// Looks and applies until it is cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let turns = async {
            loop {
                self.turn().await;
                sleep(self.options.interval).await;
            }
        };
        cancel.run_until_cancelled(turns).await;
    }

    async fn turn(&mut self) {
        let Some(found) = self.look().await else { return };
        self.settled.retain(|name, _| found.iter().any(|found| found.name.as_ref() == Some(name)));
        self.troubles.retain(|file, _| found.iter().any(|found| found.file == *file));
        let (mut sightings, tasks) = self.judge(found);
        self.herder.see(sightings.clone());
        self.apply(&mut sightings, tasks).await;
        let is_empty = sightings.is_empty();
        self.herder.see(sightings);
        // An empty directory may be the place of a mount that is missing.
        if !is_empty {
            self.forget().await;
        }
    }

    async fn look(&mut self) -> Option<Vec<Found>> {
        let (directory, files) = (self.options.directory.clone(), self.options.files.clone());
        let mut folder = self.folder.take().unwrap_or_else(|| Folder::new(directory, files));
        let looked = spawn_blocking(move || (folder.look(), folder)).await;
        let (found, folder) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                tracing::error!(panicked = error.is_panic(), "look at the connector files");
                return None;
            }
        };
        self.folder = Some(folder);
        match found {
            Ok(found) => {
                self.blind = None;
                Some(found)
            }
            Err(problem) => {
                let problem = problem.to_string();
                if self.blind.as_ref() != Some(&problem) {
                    tracing::warn!(%problem, "the connector files cannot be seen; all stays as it is, they are looked at again");
                }
                self.blind = Some(problem);
                None
            }
        }
    }

    /// What there is to tell of each file now, and which of them have to be applied.
    fn judge(&mut self, found: Vec<Found>) -> (Vec<Sighting>, Vec<Task>) {
        let (mut sightings, mut tasks) = (Vec::new(), Vec::new());
        for Found { name, file, content } in found {
            let finding = match content {
                Content::Unsettled => Finding::Pending("the file is not complete yet".to_owned()),
                Content::Unusable(reason) => self.refuse(&file, None, reason),
                Content::Says(said) if self.is_settled(&said) => {
                    self.troubles.remove(&file);
                    Finding::Applied(said)
                }
                Content::Says(said) => match self.troubles.get(&file) {
                    Some(trouble)
                        if trouble.hash.as_ref() == Some(&said.hash) && trouble.again > Instant::now() =>
                    {
                        Finding::Refused(trouble.reason.clone())
                    }
                    _ => {
                        tasks.push((sightings.len(), said));
                        Finding::Pending("it is being applied".to_owned())
                    }
                },
            };
            sightings.push(Sighting { name, file, finding });
        }
        (sightings, tasks)
    }

    fn is_settled(&mut self, said: &Declaration) -> bool {
        let name = &said.document.name;
        if self.settled.get(name) == Some(&said.hash) {
            return true;
        }
        let is_stored = self.herder.has_declared(said);
        if is_stored {
            self.settled.insert(name.clone(), said.hash.clone());
        }
        is_stored
    }

    async fn apply(&mut self, sightings: &mut [Sighting], tasks: Vec<Task>) {
        let mut outage: Option<String> = None;
        for (index, said) in tasks {
            let Some(sighting) = sightings.get_mut(index) else { continue };
            if let Some(reason) = &outage {
                sighting.finding = Finding::Pending(reason.clone());
                continue;
            }
            sighting.finding = match self.herder.declare(&said).await {
                Ok(written) => {
                    let Declaration { file, document, hash } = &*said;
                    if written {
                        tracing::info!(target: "audit", who = "connectors.dir", connector = document.name, file, "change");
                    }
                    self.is_waiting = false;
                    self.troubles.remove(file);
                    self.settled.insert(document.name.clone(), hash.clone());
                    Finding::Applied(said)
                }
                Err(error) if error.retry().is_retriable() => {
                    tracing::debug!(file = said.file, %error, "a connector file has to wait");
                    let is_outage =
                        matches!(error, herder::Error::Kafka { .. } | herder::Error::Starting { .. });
                    let reason = error.to_string();
                    if is_outage {
                        if !std::mem::replace(&mut self.is_waiting, true) {
                            tracing::warn!(%error, "connector files wait for Kafka");
                        }
                        // The others would wait as long, one after the other.
                        outage = Some(reason.clone());
                    }
                    Finding::Pending(reason)
                }
                Err(error) => self.refuse(&said.file, Some(&said.hash), error.to_string()),
            };
        }
    }

    /// Logs a refusal once.
    fn refuse(&mut self, file: &str, hash: Option<&String>, reason: String) -> Finding {
        let trouble = Trouble { hash: hash.cloned(), reason: reason.clone(), again: Instant::now() + AGAIN };
        let before = self.troubles.insert(file.to_owned(), trouble);
        if before.is_none_or(|before| before.reason != reason) {
            tracing::error!(file, reason, "a connector file is refused; what was there before stays");
        }
        Finding::Refused(reason)
    }

    async fn forget(&self) {
        for name in self.herder.forgotten() {
            match self.herder.forget(&name).await {
                Ok(()) => tracing::info!(connector = name, "neither the connector nor its file is left"),
                Err(error) => {
                    tracing::debug!(connector = name, %error, "a declaration is forgotten later");
                    return;
                }
            }
        }
    }
}
