//! Which companies there are, as far as a scheduler has to know.

use model::CompanyId;

/// What is known of a company.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompanyState {
    /// It is one of those that can be read.
    Known,
    /// The list has not been read to its end yet.
    Unread,
    /// The list does not show it, whose reading began then.
    Absent {
        /// Microseconds since 1970.
        since: i64,
    },
}

/// Whoever reads the list of companies.
pub trait Companies {
    /// How a company stands.
    fn state(&self, company: &CompanyId) -> CompanyState;

    /// The list should be read again: somebody waits for a company it does not show.
    fn ask(&self);
}
