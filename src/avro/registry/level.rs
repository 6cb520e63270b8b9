//! Compatibility levels, and which one our subjects must have.

/// What a registry requires of a new version of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantArray))]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
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
    /// The registry's name of the level.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The lowest level that reads every version and keeps every requirement of this level.
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

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::*;

    #[test]
    fn raised_level_keeps_every_requirement() {
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
    fn level_names_round_trip() {
        for &level in Level::VARIANTS {
            assert_eq!(level.word().parse(), Ok(level));
        }
        assert!("backward".parse::<Level>().is_err());
    }
}
