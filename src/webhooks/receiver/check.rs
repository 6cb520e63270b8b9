//! What makes a body trustworthy, found out while it is read.

use super::super::signature::{Keys, Presented, Running};

/// See the module's head.
#[derive(Debug)]
pub(super) enum Check {
    /// A signature over all bytes, by one of several secrets.
    Signature {
        /// The secrets, having seen what was read so far.
        running: Running,
        /// What the sender claims.
        presented: Presented,
    },
    /// Where it comes from, which was looked at before.
    Source,
}

impl Check {
    pub(super) fn signature(keys: &Keys, presented: Presented) -> Self {
        Self::Signature { running: keys.start(), presented }
    }

    /// The next bytes of the body.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        if let Self::Signature { running, .. } = self {
            running.update(bytes);
        }
    }

    /// How often each byte is hashed.
    pub(super) fn passes(&self) -> usize {
        match self {
            Self::Signature { running, .. } => running.secrets(),
            Self::Source => 0,
        }
    }

    /// Whether all that was read is trustworthy, and the place of the secret that tells so.
    pub(super) fn finish(self) -> Option<usize> {
        match self {
            Self::Signature { running, presented } => running.matching(&presented),
            Self::Source => Some(0),
        }
    }
}
