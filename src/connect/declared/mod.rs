//! Connectors that files declare (`connectors.dir`): written to the config topic at start and when a file changes.
//!
//! ```text
//! files ──scan──▶ declarations ──differ from declared-<name>?──▶ herder: validated, arbitrated, one transaction
//!                      └──────────────▶ sightings of this worker, for GET /admin/declarations
//! ```
//!
//! A blocking thread scans the files every `connectors.dir.interval.ms` and reads those whose stamp has changed. File system
//! notifications would be quicker and less reliable: mounts of Kubernetes swap a link above the files, network file systems
//! send none, and a watch can overflow. Scanning a thousand files takes milliseconds.
//!
//! - A file is applied when it is new to this worker or its content changed, *and* the topic does not have that content
//!   already. So a restart changes nothing, an edit by REST stays until the file changes, and of several workers with the
//!   same files one writes.
//! - A worker whose file has not changed never writes it again: while a change reaches one worker before another, the other
//!   does not restore the old content.
//! - A missing file never deletes a connector: a missing mount must not end a flow of data. Only the record of a declaration
//!   is removed, once its connector was deleted too, by a worker that sees other files.
//! - The topic gets the configuration as the file has it: references stay references.
//!
//! [`Declaration`], [`Sighting`] and [`DeclarationOutcome`] belong to the herder, which compares them with the config topic: it is below this
//! module and must not name it.
//!
//! On failure: an unusable file is logged once, shown as refused, and retried now and then, since what it refers to may
//! change; the connector keeps its previous configuration. A missing directory is logged once and scanned again. While Kafka
//! is unreachable everything waits for the next scan.

mod folder;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::folder::{FileContent, Folder, FoundFile};
use super::herder::{self, Declaration, DeclarationOutcome, Herder, Sighting};
use crate::config;

/// How long a refused file waits before it is tried again unchanged.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Which files to scan.
#[derive(Debug, Clone)]
pub struct DeclaredOptions {
    /// `connectors.dir`.
    pub directory: Option<PathBuf>,
    /// Files in addition to those of the directory.
    pub files: Vec<PathBuf>,
    /// Time between two scans.
    pub interval: Duration,
}

impl DeclaredOptions {
    /// The options of a worker; `None` if it has no files to scan.
    pub fn of(worker: &config::Worker) -> Option<Self> {
        let options = Self {
            directory: worker.connectors_dir.clone(),
            files: worker.connector_files.clone(),
            interval: worker.connectors_dir_interval,
        };
        (options.directory.is_some() || !options.files.is_empty()).then_some(options)
    }
}

/// Scans the files and applies changes.
pub struct Watch {
    herder: Herder,
    options: DeclaredOptions,
    folder: Option<Folder>,
    /// Hashes that need no more work, by connector: the topic had them at some time since this worker saw them.
    applied: BTreeMap<String, String>,
    /// Refused files, by name.
    refused_files: BTreeMap<String, RefusedFile>,
    /// Why the directory could not be read at the last scan.
    directory_error: Option<String>,
    /// Kafka did not take the last file.
    is_waiting: bool,
}

/// Why a file is not applied.
#[derive(Debug, Clone)]
struct RefusedFile {
    /// Hash of the refused content; `None` if the file could not be read.
    hash: Option<String>,
    reason: String,
    again: Instant,
}

/// A file to apply: index of its sighting, and its content.
type ToApply = (usize, Arc<Declaration>);

impl Watch {
    /// For these files and this worker.
    pub fn new(herder: Herder, options: DeclaredOptions) -> Self {
        let folder = Some(Folder::new(options.directory.clone(), options.files.clone()));
        Self {
            herder,
            options,
            folder,
            applied: BTreeMap::new(),
            refused_files: BTreeMap::new(),
            directory_error: None,
            is_waiting: false,
        }
    }

    /// Scans and applies until it is cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let scans = async {
            loop {
                self.scan_and_apply().await;
                sleep(self.options.interval).await;
            }
        };
        cancel.run_until_cancelled(scans).await;
    }

    async fn scan_and_apply(&mut self) {
        let Some(found) = self.scan().await else { return };
        self.applied.retain(|name, _| found.iter().any(|found| found.name.as_ref() == Some(name)));
        self.refused_files.retain(|file, _| found.iter().any(|found| found.file == *file));
        let (mut sightings, to_apply) = self.plan(found);
        self.herder.set_sightings(sightings.clone());
        self.apply(&mut sightings, to_apply).await;
        self.herder.set_sightings(sightings);
        self.remove_stale_declarations().await;
    }

    async fn scan(&mut self) -> Option<Vec<FoundFile>> {
        let (directory, files) = (self.options.directory.clone(), self.options.files.clone());
        let mut folder = self.folder.take().unwrap_or_else(|| Folder::new(directory, files));
        let scanned = spawn_blocking(move || (folder.scan(), folder)).await;
        let (found, folder) = match scanned {
            Ok(scanned) => scanned,
            Err(error) => {
                tracing::error!(panicked = error.is_panic(), "could not scan the connector files");
                return None;
            }
        };
        self.folder = Some(folder);
        match found {
            Ok(found) => {
                self.directory_error = None;
                Some(found)
            }
            Err(problem) => {
                let problem = problem.to_string();
                if self.directory_error.as_ref() != Some(&problem) {
                    tracing::warn!(%problem, "could not read the connector files; their connectors stay as they are until the next scan succeeds");
                }
                self.directory_error = Some(problem);
                None
            }
        }
    }

    /// The sighting of each file, and the files to apply.
    fn plan(&mut self, found: Vec<FoundFile>) -> (Vec<Sighting>, Vec<ToApply>) {
        let (mut sightings, mut to_apply) = (Vec::new(), Vec::new());
        for FoundFile { name, file, content } in found {
            let finding = match content {
                FileContent::Incomplete => {
                    DeclarationOutcome::Pending("the file is not complete yet".to_owned())
                }
                FileContent::Unusable(reason) => self.refuse(&file, None, reason),
                FileContent::Declares(declaration) if self.is_applied(&declaration) => {
                    self.refused_files.remove(&file);
                    DeclarationOutcome::Applied(declaration)
                }
                FileContent::Declares(declaration) => match self.refused_files.get(&file) {
                    Some(refused_file)
                        if refused_file.hash.as_ref() == Some(&declaration.hash)
                            && refused_file.again > Instant::now() =>
                    {
                        DeclarationOutcome::Refused(refused_file.reason.clone())
                    }
                    _ => {
                        to_apply.push((sightings.len(), declaration));
                        DeclarationOutcome::Pending("it is being applied".to_owned())
                    }
                },
            };
            sightings.push(Sighting { name, file, finding });
        }
        (sightings, to_apply)
    }

    fn is_applied(&mut self, declaration: &Declaration) -> bool {
        let name = &declaration.document.name;
        if self.applied.get(name) == Some(&declaration.hash) {
            return true;
        }
        let is_stored = self.herder.has_declared(declaration);
        if is_stored {
            self.applied.insert(name.clone(), declaration.hash.clone());
        }
        is_stored
    }

    async fn apply(&mut self, sightings: &mut [Sighting], to_apply: Vec<ToApply>) {
        let mut outage: Option<String> = None;
        for (index, declaration) in to_apply {
            let Some(sighting) = sightings.get_mut(index) else { continue };
            if let Some(reason) = &outage {
                sighting.finding = DeclarationOutcome::Pending(reason.clone());
                continue;
            }
            sighting.finding = match self.herder.declare(&declaration).await {
                Ok(written) => {
                    let Declaration { file, document, hash } = &*declaration;
                    if written {
                        tracing::info!(target: "audit", who = "connectors.dir", connector = document.name, file, "change");
                    }
                    self.is_waiting = false;
                    self.refused_files.remove(file);
                    self.applied.insert(document.name.clone(), hash.clone());
                    DeclarationOutcome::Applied(declaration)
                }
                Err(error) if error.retry().is_retriable() => {
                    tracing::debug!(file = declaration.file, %error, "could not apply a connector file yet; retrying at the next scan");
                    let is_outage =
                        matches!(error, herder::Error::Kafka { .. } | herder::Error::Starting { .. });
                    let reason = error.to_string();
                    if is_outage {
                        if !std::mem::replace(&mut self.is_waiting, true) {
                            tracing::warn!(%error, "could not apply connector files because Kafka is unreachable; retrying at every scan");
                        }
                        // Each of the others would take its full time limit too.
                        outage = Some(reason.clone());
                    }
                    DeclarationOutcome::Pending(reason)
                }
                Err(error) => self.refuse(&declaration.file, Some(&declaration.hash), error.to_string()),
            };
        }
    }

    /// Logs a refusal once.
    fn refuse(&mut self, file: &str, hash: Option<&String>, reason: String) -> DeclarationOutcome {
        let refused_file = RefusedFile {
            hash: hash.cloned(),
            reason: reason.clone(),
            again: Instant::now() + REFUSED_RETRY_INTERVAL,
        };
        let before = self.refused_files.insert(file.to_owned(), refused_file);
        if before.is_none_or(|before| before.reason != reason) {
            tracing::error!(
                file,
                reason,
                "refused a connector file; its connector stays as it was until the file is corrected"
            );
        }
        DeclarationOutcome::Refused(reason)
    }

    async fn remove_stale_declarations(&self) {
        for name in self.herder.stale_declarations() {
            match self.herder.remove_declaration(&name).await {
                Ok(()) => tracing::info!(
                    connector = name,
                    "removed the declaration: its connector and its file are gone"
                ),
                Err(error) => {
                    tracing::debug!(connector = name, %error, "could not remove a declaration yet; retrying at the next scan");
                    return;
                }
            }
        }
    }
}
