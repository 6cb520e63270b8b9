//! What a scheduler knows about companies.

use model::CompanyId;

/// Whether a company may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompanyState {
    /// The list of companies shows it.
    Known,
    /// The list has not been read to its end yet.
    Unread,
    /// The list does not show it.
    Absent {
        /// When the reading of that list began, microseconds since 1970.
        since: i64,
    },
}

/// The reader of the list of companies.
pub trait Companies {
    /// Looks a company up in the list.
    fn state(&self, company: &CompanyId) -> CompanyState;

    /// Requests another reading of the list, because a record waits for a company that it does not show.
    fn ask(&self);
}
