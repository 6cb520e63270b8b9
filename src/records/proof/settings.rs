//! Settings of a reading, and the steps that it requests.

/// How a list is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows per page.
    pub page_size: u32,
    /// Passes after which the reading ends without a proof.
    pub most_passes: u32,
    /// Part of the list to read; `None` means all of it.
    pub filter: Option<Filter>,
    /// Allowed difference between the provider's clock and ours, in microseconds. Used if an answer has no `Date`.
    pub clock_skew: i64,
}

/// A filter that the provider applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// A filter from the configuration, opaque to us.
    Configured,
    /// Rows that changed after a moment. The filter must return rows that changed later than `after + margin`, and none that changed
    /// earlier than `after - margin`. Microseconds on the provider's clock.
    Changed {
        /// The moment.
        after: i64,
        /// Tolerance, because the provider does not document whether it compares days or moments, and in which time zone.
        margin: i64,
    },
}

/// The next step of a reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadingStep {
    /// Read this page.
    Page {
        /// From 1.
        number: u32,
        /// Rows to request.
        size: u32,
        /// Whether to request it with the filter.
        filtered: bool,
        /// The page must be requested at or after this time.
        sent_after: i64,
    },
    /// Nothing to read: there is a verdict.
    Over,
}
