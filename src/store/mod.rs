//! The edge to the embedded store: what the spool and the fences ask of a database, and of the disk under it.
//!
//! The product has one implementation, [`Fjall`]. The seam is here for those who need a disk that fails or is slow: they wrap
//! it.

mod fjall;
#[cfg(test)]
pub(crate) mod image;

use std::{error, fmt, io, ops::ControlFlow, path::Path};

pub use self::fjall::Fjall;

/// ENFILE and EMFILE, which have no kind of their own.
const TOO_MANY_FILES: [i32; 2] = [23, 24];

/// Where databases come from.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Opens the database in this directory, and creates it if there is none. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`] when somebody else has it open; otherwise why it cannot be read or made.
    fn open(&self, directory: &Path) -> Result<Box<dyn Database>, Error>;

    /// Writes to `to`, which does not exist, what can be had of the database in `from`, which does not open and is left
    /// as it is. Blocks.
    ///
    /// # Errors
    /// Why there is nothing to be had.
    fn salvage(&self, from: &Path, to: &Path) -> Result<Box<dyn Database>, Error>;

    /// Free bytes on the disk of this directory, for us.
    ///
    /// # Errors
    /// Why the system does not tell.
    fn free_bytes(&self, directory: &Path) -> io::Result<u64>;
}

/// One open database: keys to values, in the order of the keys. All calls block.
pub trait Database: Send + Sync {
    /// All changes or none, in one step. With `durable` they are on disk when this returns, together with all earlier
    /// ones. No key is twice among them.
    ///
    /// # Errors
    /// Any is final: what of it is on disk is unknown, and nothing may be committed here any more.
    fn commit(&self, changes: Vec<Change>, durable: bool) -> Result<(), Error>;

    /// The value at this key.
    ///
    /// # Errors
    /// The part of the database that has it is unreadable.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// Shows keys and values from `from` on and below `to`, in order, until there are no more or `visit` breaks off.
    ///
    /// # Errors
    /// What comes after the last one shown is unreadable.
    fn visit(&self, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), Error>;

    /// Gives back the disk that removed entries still take, as far as that can be done. May take long.
    ///
    /// # Errors
    /// What went wrong meanwhile; the database's own business unless a commit fails too.
    fn compact(&self) -> Result<(), Error>;
}

/// Is shown keys and values until it breaks off.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// One change of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from now on.
    Put(Vec<u8>, Vec<u8>),
    /// The key has none.
    Delete(Vec<u8>),
}

impl Change {
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
    /// Somebody else has the database open.
    #[error("the database is open elsewhere")]
    Locked,
    /// The system refuses, for a reason that says nothing about the files: rights, open files, memory.
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

/// Why something failed, whoever says so.
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
            _ if source.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code)) => {
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
