//! Files of grants on this disk: a copy of each record, and answers that are not in the topic yet.
//!
//! `{name}.grant` is the envelope as in the topic, for people: it shows who is logged in while Kafka is unreachable. No worker takes
//! a token from it, since a worker without Kafka has no connectors either. It is never written back: it may be older than the
//! topic, and an old refresh token ends the grant. `{name}.{intent}.pending` is the provider's answer to the refresh of that intent,
//! sealed, from its arrival until it is in the topic: a process that is killed in between finds it again.
//!
//! - Files are replaced atomically and only their owner can read them. Each has one writing task; each answer has its own file.
//! - A damaged file is renamed and logged once. A file under an unknown key is left in place.
//!
//! On failure the topic has everything that matters, except for a pending answer. A hanging disk delays only these files, because
//! no other task waits for them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use base::{durable, secret::Secret};
use provider::auth::{
    grant::{Grant, IssuedTokens, RefreshBase},
    seal::{self, Envelope, Keyring},
};

use super::table::grant_key;

const DIRECTORY: &str = "grants";
const COPY: &str = "grant";
const PENDING: &str = "pending";
/// Suffix of an answer that is not completely written.
const PARTIAL_SUFFIX: &str = ".pending.tmp";
/// Age from which a partial file is removed: its writer is gone.
const PARTIAL_MAX_AGE: Duration = Duration::from_secs(3_600);
/// A grant has a few kilobytes; a larger file is not ours.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The grant files of a worker.
#[derive(Debug, Clone)]
pub struct GrantFiles {
    directory: PathBuf,
    keys: Arc<Keyring>,
}

/// An answer of the provider that may not be in the topic yet.
#[derive(Debug, Clone)]
pub struct PendingAnswer {
    /// Name of the grant.
    pub name: String,
    /// The refresh that it answers.
    pub base: RefreshBase,
    /// The provider's tokens.
    pub issued: IssuedTokens,
}

/// Serializable form of [`PendingAnswer`].
#[derive(Serialize, Deserialize)]
struct PendingAnswerRecord {
    base: RefreshBase,
    access: String,
    expires_in_ms: Option<u64>,
    refresh: Option<String>,
    scopes: Option<Vec<String>>,
    at_ms: i64,
}

impl GrantFiles {
    /// Below this `state.dir`.
    pub fn new(state_dir: &Path, keys: Arc<Keyring>) -> Self {
        Self { directory: state_dir.join(DIRECTORY), keys }
    }

    /// Ensures that no other user can read what an earlier process left below this `state.dir`. Blocks.
    ///
    /// # Errors
    /// A file belongs to another user, or other users keep access.
    pub fn check(state_dir: &Path) -> io::Result<()> {
        let directory = state_dir.join(DIRECTORY);
        if directory.try_exists()? { durable::private_tree(&directory) } else { Ok(()) }
    }

    /// The copy of a grant, if there is a readable one. Blocks.
    pub fn copy(&self, name: &str) -> Option<Grant> {
        let (path, key) = (self.path(name, COPY), grant_key(name));
        self.read(&path, COPY, |envelope| self.keys.open(&key, envelope))
    }

    /// Stores a copy of the grant's record.
    pub(super) async fn write_copy(&self, name: &str, envelope: Arc<Envelope>) -> io::Result<()> {
        self.write(self.path(name, COPY), move || Ok(serde_json::to_vec(&*envelope)?)).await
    }

    /// Stores an answer until it is settled.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn pend(&self, pending: &PendingAnswer) -> io::Result<()> {
        let PendingAnswer { name, base, issued } = pending;
        let written = PendingAnswerRecord {
            base: base.clone(),
            access: issued.access.reveal().to_owned(),
            expires_in_ms: issued.expires_in.map(|life| u64::try_from(life.as_millis()).unwrap_or(u64::MAX)),
            refresh: issued.refresh.as_ref().map(|refresh| refresh.reveal().to_owned()),
            scopes: issued.scopes.clone(),
            at_ms: issued.at_ms,
        };
        let bytes = Zeroizing::new(serde_json::to_vec(&written)?);
        // Each answer has its own file, so it needs no revision.
        let sealed = self.keys.seal_bytes(&pending_key(name), base.serial, 0, bytes);
        let envelope = sealed.map_err(io::Error::other)?;
        self.write(self.pending_path(name, base), move || Ok(serde_json::to_vec(&envelope)?)).await
    }

    /// Removes an answer that is in the topic or obsolete.
    pub(super) async fn settled(&self, name: &str, base: &RefreshBase) -> io::Result<()> {
        let path = self.pending_path(name, base);
        match durable::off_runtime(move || std::fs::remove_file(path)).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Answers that an earlier process left. Blocks.
    pub(super) fn pending(&self) -> Vec<PendingAnswer> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let found = entries.flatten().filter_map(|entry| {
            let path = entry.path();
            let is_half = path.to_str().is_some_and(|path| path.ends_with(PARTIAL_SUFFIX));
            let written = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let age = written.and_then(|written| written.elapsed().ok());
            if is_half && age.is_some_and(|age| age > PARTIAL_MAX_AGE) {
                std::fs::remove_file(&path).ok();
            }
            let is_pending = path.extension().is_some_and(|extension| extension == PENDING);
            is_pending.then(|| self.pending_of(&path)).flatten()
        });
        found.collect()
    }

    fn pending_of(&self, path: &Path) -> Option<PendingAnswer> {
        let (name, _) = path.file_stem()?.to_str()?.rsplit_once('.')?;
        let key = pending_key(name);
        let written: PendingAnswerRecord = self.read(path, PENDING, |envelope| {
            let bytes = self.keys.open_bytes(&key, envelope)?;
            serde_json::from_slice(&bytes).map_err(|_| seal::Error::Damaged)
        })?;
        let issued = IssuedTokens {
            access: Secret::new(written.access),
            expires_in: written.expires_in_ms.map(Duration::from_millis),
            refresh: written.refresh.map(Secret::new),
            scopes: written.scopes,
            at_ms: written.at_ms,
        };
        Some(PendingAnswer { name: name.to_owned(), base: written.base, issued })
    }

    /// Reads a file; renames it if it is damaged.
    fn read<T>(
        &self,
        path: &Path,
        kind: &str,
        open: impl Fn(&Envelope) -> Result<T, seal::Error>,
    ) -> Option<T> {
        let bytes = match durable::read(path, MAX_FILE_BYTES) {
            Ok(bytes) => bytes?,
            Err(error) => {
                log_unusable(path, kind, &error, "cannot be read");
                return None;
            }
        };
        let opened =
            serde_json::from_slice(&bytes).map_err(|_| seal::Error::Damaged).and_then(|one| open(&one));
        match opened {
            Ok(opened) => Some(opened),
            Err(error @ seal::Error::UnknownKey { .. }) => {
                log_unusable(path, kind, &error, "is under an unknown key and stays as it is");
                None
            }
            Err(error) => {
                let aside = set_aside(path);
                let what = aside.map_or_else(
                    || "is damaged".to_owned(),
                    |aside| format!("is damaged and was renamed to {}", aside.display()),
                );
                log_unusable(path, kind, &error, &what);
                None
            }
        }
    }

    async fn write(
        &self,
        path: PathBuf,
        content: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static,
    ) -> io::Result<()> {
        let directory = self.directory.clone();
        durable::off_runtime(move || {
            durable::private_directory(&directory)?;
            durable::replace(&path, &content()?)
        })
        .await
    }

    /// Grant names are plain words, so they are valid file names.
    fn path(&self, name: &str, extension: &str) -> PathBuf {
        self.directory.join(format!("{name}.{extension}"))
    }

    fn pending_path(&self, name: &str, base: &RefreshBase) -> PathBuf {
        // Our ids are plain; an id of another version must still be a single path component.
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        let intent: String = base.intent.chars().map(plain).take(64).collect();
        self.path(&format!("{name}.{intent}"), PENDING)
    }
}

fn pending_key(name: &str) -> String {
    format!("pending/{name}")
}

fn set_aside(path: &Path) -> Option<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".damaged-{now}"));
    let aside = path.with_file_name(name);
    std::fs::rename(path, &aside).ok().map(|()| aside)
}

/// Logs an unusable file.
fn log_unusable(path: &Path, kind: &str, error: &dyn std::error::Error, what: &str) {
    let (path, meaning) = (path.display(), meaning(kind));
    if kind == PENDING {
        tracing::error!(%path, %error, meaning, "an answer of the provider {what}");
    } else {
        tracing::warn!(%path, %error, meaning, "the copy of a grant {what}");
    }
}

/// A copy is dispensable; an answer may exist nowhere else.
fn meaning(kind: &str) -> &'static str {
    match kind {
        PENDING => "the topic does not have it: if its grant is lost, log in again",
        _ => "the topic has the grant; no action needed",
    }
}

#[cfg(test)]
mod tests {
    use provider::auth::grant::samples::{intent, issued, ready};

    use super::*;

    fn keys(text: &str) -> Arc<Keyring> {
        Arc::new(Keyring::new(&text.repeat(32).as_str().into(), None, "group").unwrap())
    }

    #[test]
    fn loose_permissions_are_tightened() {
        use std::os::unix::fs::PermissionsExt as _;
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join(DIRECTORY);
        let file = directory.join("acc.grant");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        GrantFiles::check(state.path()).unwrap();
        assert!(!directory.exists(), "a check creates nothing");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(&file, b"{}").unwrap();
        for (path, mode) in [(&directory, 0o755), (&file, 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }

        GrantFiles::check(state.path()).unwrap();

        assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
    }

    fn names(files: &GrantFiles) -> Vec<String> {
        let entries = std::fs::read_dir(&files.directory).unwrap();
        let mut names: Vec<_> = entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn pending() -> PendingAnswer {
        let started = ready("acc").begin(1, intent("i")).unwrap();
        let base = started.base(started.intent().unwrap());
        PendingAnswer { name: "acc".into(), base, issued: issued(2) }
    }

    #[tokio::test]
    async fn an_answer_is_kept_encrypted_until_it_is_settled() {
        let directory = tempfile::tempdir().unwrap();
        let files = GrantFiles::new(directory.path(), keys("a"));

        files.pend(&pending()).await.unwrap();

        let found = files.pending();
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.name.as_str(), &one.base), ("acc", &pending().base));
        assert_eq!(one.issued.refresh.as_ref().unwrap().reveal(), "refresh-2");
        let on_disk = std::fs::read_to_string(files.path("acc.i", PENDING)).unwrap();
        assert!(!on_disk.contains("refresh-2"), "{on_disk}");
        files.settled("acc", &one.base).await.unwrap();
        files.settled("acc", &one.base).await.unwrap();
        assert!(files.pending().is_empty());
    }

    #[tokio::test]
    async fn answers_of_two_refreshes_have_separate_files() {
        let directory = tempfile::tempdir().unwrap();
        let files = GrantFiles::new(directory.path(), keys("a"));
        let other = PendingAnswer { base: RefreshBase { intent: "j".into(), ..pending().base }, ..pending() };

        files.pend(&pending()).await.unwrap();
        files.pend(&other).await.unwrap();
        assert_eq!(files.pending().len(), 2);
        files.settled("acc", &pending().base).await.unwrap();
        let half = std::fs::File::create(files.path("acc.k", "pending.tmp")).unwrap();
        half.set_modified(SystemTime::now() - 2 * PARTIAL_MAX_AGE).unwrap();

        assert_eq!(files.pending()[0].base, other.base);
        assert_eq!(names(&files), ["acc.j.pending"], "the partial file is removed");
    }

    #[tokio::test]
    async fn a_copy_is_the_grant_and_a_damaged_one_is_kept_aside() {
        let directory = tempfile::tempdir().unwrap();
        let files = GrantFiles::new(directory.path(), keys("a"));
        let envelope = files.keys.seal("grant/acc", &ready("acc"), 1).unwrap();

        files.write_copy("acc", Arc::new(envelope)).await.unwrap();
        assert_eq!(files.copy("acc").unwrap().serial, 1);
        std::fs::copy(files.path("acc", COPY), files.path("pay", COPY)).unwrap();
        std::fs::write(files.path("odd.i", PENDING), b"{\"v\":").unwrap();

        assert!(files.copy("pay").is_none(), "a copy under another name is not that grant");
        assert!(files.pending().is_empty());
        assert!(files.copy("none").is_none());
        let names = names(&files);
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(
            names[1].starts_with("odd.i.pending.damaged-") && names[2].starts_with("pay.grant.damaged-"),
            "{names:?}"
        );
    }

    #[test]
    fn only_a_damaged_answer_may_need_a_login() {
        assert!(meaning(COPY).contains("no action needed"));
        assert!(meaning(PENDING).contains("log in again") && !meaning(PENDING).contains("no action needed"));
    }

    #[tokio::test]
    async fn a_file_under_another_key_stays_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        GrantFiles::new(directory.path(), keys("a")).pend(&pending()).await.unwrap();
        let other = GrantFiles::new(directory.path(), keys("b"));

        assert!(other.pending().is_empty());

        assert_eq!(names(&other), ["acc.i.pending"]);
    }
}
