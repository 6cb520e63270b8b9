//! How a reading is set up, and what it wants.

/// How a list is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows to ask for.
    pub page_size: u32,
    /// Passes after which a list stays unproved.
    pub most_passes: u32,
    /// What part of the list is read; all of it without one.
    pub filter: Option<Filter>,
    /// How far the provider's clock may be from ours, in microseconds. It matters where an answer has no `Date`.
    pub clock_skew: i64,
}

/// A filter that the provider is asked to apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// One that an operator has configured, in words that only the provider understands.
    Configured,
    /// Rows that changed after a moment. It has to let through what changed later than `after` by the margin, and nothing that changed
    /// earlier than it by the margin. Microseconds on the provider's clock.
    Changed {
        /// The moment.
        after: i64,
        /// How the provider compares, by day or by moment and in which time zone, is not documented.
        margin: i64,
    },
}

/// What to read next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadingStep {
    /// This page.
    Page {
        /// From 1.
        number: u32,
        /// Rows to ask for.
        size: u32,
        /// With the filter.
        filtered: bool,
        /// A page that was asked for before this moment is of no use, and neither is one out of a memo from before.
        sent_after: i64,
    },
    /// Nothing: there is a verdict.
    Over,
}
