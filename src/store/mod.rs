//! The interface to the embedded store: what the spool and the fences need from a database and its disk.
//!
//! The product has one implementation, [`Fjall`]. Tests wrap it to simulate a disk that fails or is slow.

#[cfg(test)]
pub(crate) mod crash_copy;
mod fjall;

use std::{error, fmt, io, ops::ControlFlow, path::Path};

pub use self::fjall::Fjall;

/// ENFILE and EMFILE, for which `io::ErrorKind` has no variant.
const TOO_MANY_OPEN_FILES: [i32; 2] = [23, 24];

/// Opens databases.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Opens the database in this directory, or creates it. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`] if it is open elsewhere; otherwise why it cannot be read or created.
    fn open(&self, directory: &Path) -> Result<Box<dyn Database>, Error>;

    /// Copies what can be recovered of the database in `from`, which does not open, to `to`, which does not exist. `from` stays
    /// unchanged. Blocks.
    ///
    /// # Errors
    /// Why nothing can be recovered.
    fn salvage(&self, from: &Path, to: &Path) -> Result<Box<dyn Database>, Error>;

    /// Bytes available to us on the disk of this directory.
    ///
    /// # Errors
    /// Why the system does not report it.
    fn free_bytes(&self, directory: &Path) -> io::Result<u64>;
}

/// An open database: a map ordered by key. All calls block.
pub trait Database: Send + Sync {
    /// Applies all changes or none, atomically. With `durable` they, and all earlier ones, are on disk when this returns. No key may
    /// occur twice.
    ///
    /// # Errors
    /// Every error is final: how much is on disk is unknown, and nothing more may be committed to this database.
    fn commit(&self, changes: Vec<StoreChange>, durable: bool) -> Result<(), Error>;

    /// The value at this key.
    ///
    /// # Errors
    /// The part of the database that has it is unreadable.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// Passes the keys from `from` up to, but not including, `to` with their values to `visit`, in order, until it breaks.
    ///
    /// # Errors
    /// The entries after the last one passed are unreadable.
    fn visit(&self, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), Error>;

    /// Frees the disk space of removed entries as far as possible. May take long.
    ///
    /// # Errors
    /// What failed; it does not matter unless a commit fails too.
    fn compact(&self) -> Result<(), Error>;
}

/// Receives keys and values until it breaks.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// One change of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChange {
    /// Sets the value of a key.
    Put(Vec<u8>, Vec<u8>),
    /// Removes a key.
    Delete(Vec<u8>),
}

impl StoreChange {
    /// Bytes of key and value.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(key, value) => key.len() + value.len(),
            Self::Delete(key) => key.len(),
        }
    }
}

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk is full.
    #[error("no disk space left for the database")]
    NoSpace(#[source] Cause),
    /// The database is open elsewhere.
    #[error("the database is open elsewhere")]
    Locked,
    /// The system refuses for a reason unrelated to the files' content: permissions, open files, memory.
    #[error("{action}")]
    Refused {
        /// What was attempted.
        action: &'static str,
        /// The reason.
        #[source]
        source: Cause,
    },
    /// Anything else.
    #[error("{action}")]
    Broken {
        /// What was attempted.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: Cause,
    },
}

/// The cause of an error.
pub type Cause = Box<dyn error::Error + Send + Sync>;

impl Error {
    /// An error of the system while `action` was attempted.
    #[must_use]
    pub fn io(action: &'static str, source: io::Error) -> Self {
        use io::ErrorKind::{OutOfMemory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};

        match source.kind() {
            StorageFull | QuotaExceeded => Self::NoSpace(source.into()),
            PermissionDenied | ReadOnlyFilesystem | OutOfMemory => {
                Self::Refused { action, source: source.into() }
            }
            _ if source.raw_os_error().is_some_and(|code| TOO_MANY_OPEN_FILES.contains(&code)) => {
                Self::Refused { action, source: source.into() }
            }
            _ => Self::Broken { action, source: source.into() },
        }
    }

    /// Whether the reason says nothing about the database's files, so that the same may succeed later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        !matches!(self, Self::Broken { .. })
    }
}
