//! How a reading is set up, and what it wants.

/// How a list is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows to ask for.
    pub page_size: u32,
    /// Passes after which a list stays unproved.
    pub most_passes: u32,
    /// How to begin.
    pub method: Wish,
    /// How far the provider's clock may be from ours, in microseconds. It matters where an answer has no `Date`.
    pub clock_skew: i64,
}

/// How a list is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// By page.
    Counting,
    /// By key; by page once keys do not ascend.
    Keyset,
}

/// What to read next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// This page.
    Page {
        /// From 1.
        number: u32,
        /// Rows to ask for.
        size: u32,
        /// By key: only what is above this.
        after: Option<String>,
        /// A page that was asked for before this moment is of no use, and neither is one out of a memo from before.
        sent_after: i64,
    },
    /// Nothing: there is a verdict.
    Over,
}

/// A page that was not looked at. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The list has its verdict.
    #[error("the list has its verdict")]
    Over,
    /// It is not the one that is wanted.
    #[error("page {number} of size {size} is wanted, and this is page {given} of size {asked}")]
    Other {
        /// Page that is wanted.
        number: u32,
        /// Its size.
        size: u32,
        /// Page that was given.
        given: u32,
        /// Its size.
        asked: u32,
    },
    /// It was sent before the page before it was answered.
    #[error("page {number} was sent too early: at {sent}, and not after {sent_after}")]
    Early {
        /// Which page.
        number: u32,
        /// When it was sent.
        sent: i64,
        /// When the one before was answered.
        sent_after: i64,
    },
}
