//! Compatibility levels, and which one a subject of ours must have.

use std::fmt;

/// What a registry demands of a new version of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Nothing.
    None,
    /// It reads the latest version.
    Backward,
    /// It reads every version.
    BackwardTransitive,
    /// The latest version reads it.
    Forward,
    /// Every version reads it.
    ForwardTransitive,
    /// Both, with the latest version.
    Full,
    /// Both, with every version.
    FullTransitive,
}

impl Level {
    const ALL: [Self; 7] = [
        Self::None,
        Self::Backward,
        Self::BackwardTransitive,
        Self::Forward,
        Self::ForwardTransitive,
        Self::Full,
        Self::FullTransitive,
    ];

    /// The word the registry uses.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Backward => "BACKWARD",
            Self::BackwardTransitive => "BACKWARD_TRANSITIVE",
            Self::Forward => "FORWARD",
            Self::ForwardTransitive => "FORWARD_TRANSITIVE",
            Self::Full => "FULL",
            Self::FullTransitive => "FULL_TRANSITIVE",
        }
    }

    /// The level of this word, if it is one.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.word() == word)
    }

    /// The least level that reads every version and gives up nothing this level demands.
    #[must_use]
    pub fn raised(self) -> Self {
        match self {
            Self::None | Self::Backward | Self::BackwardTransitive => Self::BackwardTransitive,
            Self::Forward | Self::ForwardTransitive | Self::Full | Self::FullTransitive => {
                Self::FullTransitive
            }
        }
    }

    /// Whether older versions must read the new one, too.
    #[must_use]
    pub fn looks_forward(self) -> bool {
        matches!(self, Self::Forward | Self::ForwardTransitive | Self::Full | Self::FullTransitive)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_level_reads_every_version_and_gives_up_no_demand() {
        for (level, raised) in [
            (Level::None, Level::BackwardTransitive),
            (Level::Backward, Level::BackwardTransitive),
            (Level::BackwardTransitive, Level::BackwardTransitive),
            (Level::Forward, Level::FullTransitive),
            (Level::ForwardTransitive, Level::FullTransitive),
            (Level::Full, Level::FullTransitive),
            (Level::FullTransitive, Level::FullTransitive),
        ] {
            assert_eq!(level.raised(), raised, "{level}");
        }
    }

    #[test]
    fn every_word_is_read_back_and_no_other() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.word()), Some(level));
        }
        assert_eq!(Level::parse("backward"), None);
    }
}
