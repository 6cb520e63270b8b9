//! The W3C `traceparent` header of a record.

use std::{fmt, str::FromStr};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::Error;

/// A position in a trace (<https://www.w3.org/TR/trace-context/#traceparent-header>). Neither id is ever zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traceparent {
    trace: [u8; 16],
    parent: [u8; 8],
    flags: u8,
}

/// Length of `00-<32>-<16>-<2>`.
const TRACEPARENT_BYTES: usize = 55;

impl Traceparent {
    /// From its parts.
    ///
    /// # Errors
    /// One of the ids is zero, which the format reserves for "invalid".
    pub fn new(trace: [u8; 16], parent: [u8; 8], flags: u8) -> Result<Self, Error> {
        if trace == [0; 16] {
            return Err(Error::Traceparent { rule: "has a trace id of zero" });
        }
        if parent == [0; 8] {
            return Err(Error::Traceparent { rule: "has a parent id of zero" });
        }
        Ok(Self { trace, parent, flags })
    }

    /// A trace derived from an id, always the same one: a repeated record belongs to the trace of the first. Not sampled, since
    /// it was not recorded.
    #[must_use]
    pub fn derived(id: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(id).into();
        let (mut trace, mut parent) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&digest[..16]);
        parent.copy_from_slice(&digest[16..24]);
        // Zero is reserved; practically no id leads to it.
        trace[0] |= u8::from(trace == [0; 16]);
        parent[0] |= u8::from(parent == [0; 8]);
        Self { trace, parent, flags: 0 }
    }

    /// The same trace with a new parent.
    ///
    /// # Errors
    /// The new parent id is zero.
    pub fn child(&self, parent: [u8; 8]) -> Result<Self, Error> {
        Self::new(self.trace, parent, self.flags)
    }
}

impl FromStr for Traceparent {
    type Err = Error;

    /// Strict for version 00. For later versions only the common part is parsed, as the format demands.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |rule| Err(Error::Traceparent { rule });
        let bytes = text.as_bytes();
        let Some((head, rest)) = bytes.split_at_checked(TRACEPARENT_BYTES) else {
            return refuse("is too short");
        };
        if [2, 35, 52].into_iter().any(|place| head[place] != b'-') {
            return refuse("has its dashes in the wrong places");
        }
        let (Some([version]), Some(trace), Some(parent), Some([flags])) = (
            hexadecimal(&head[..2]),
            hexadecimal(&head[3..35]),
            hexadecimal(&head[36..52]),
            hexadecimal(&head[53..]),
        ) else {
            return refuse("has a character that is not lower-case hexadecimal");
        };
        match version {
            0xFF => return refuse("has the forbidden version ff"),
            0 if !rest.is_empty() => return refuse("is too long for version 00"),
            _ if rest.first().is_some_and(|byte| *byte != b'-') => return refuse("continues without a dash"),
            _ => {}
        }
        Self::new(trace, parent, flags)
    }
}

impl fmt::Display for Traceparent {
    /// Always version 00: parts of later versions are not passed on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, parent) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.parent));
        write!(f, "00-{trace:032x}-{parent:016x}-{:02x}", self.flags)
    }
}

fn hexadecimal<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    HEXLOWER.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn each_id_has_its_own_stable_trace() {
        let trace = Traceparent::derived("delivery-1");

        assert_eq!(trace, Traceparent::derived("delivery-1"));
        assert_ne!(trace.trace, Traceparent::derived("delivery-2").trace);
        assert_eq!(trace.to_string().parse(), Ok(trace));
        assert_eq!(trace.flags, 0, "not sampled");
    }

    #[test]
    fn example_of_the_specification_round_trips() {
        let parsed: Traceparent = EXAMPLE.parse().unwrap();

        assert_eq!(parsed.to_string(), EXAMPLE);
        assert_eq!(parsed.flags, 1, "sampled");
        assert_eq!(parsed.parent, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    }

    #[test]
    fn child_keeps_trace_and_flags() {
        let parent: Traceparent = EXAMPLE.parse().unwrap();

        let child = parent.child([1; 8]).unwrap();

        assert_eq!(child.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0101010101010101-01");
        assert!(parent.child([0; 8]).is_err());
    }

    #[test]
    fn common_part_of_a_later_version_is_parsed() {
        let later = EXAMPLE.replacen("00", "cc", 1) + "-what-the-future-will-be-like";

        assert_eq!(later.parse::<Traceparent>().unwrap().to_string(), EXAMPLE);
    }

    #[test]
    fn malformed_traceparent_is_refused_with_the_rule() {
        for (text, rule) in [
            (String::new(), "is too short"),
            (EXAMPLE[..54].to_owned(), "is too short"),
            (EXAMPLE.to_owned() + "-00", "is too long"),
            (EXAMPLE.to_uppercase(), "lower-case"),
            (EXAMPLE.replace('-', "_"), "dashes"),
            (EXAMPLE.replacen("4bf9", "4bg9", 1), "lower-case"),
            (EXAMPLE.replacen("00-", "ff-", 1), "forbidden version"),
            (EXAMPLE.replacen("00-", "01-", 1) + "x", "without a dash"),
            (format!("00-{:032}-00f067aa0ba902b7-01", 0), "trace id of zero"),
            (format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016}-01", 0), "parent id of zero"),
            ("é".repeat(28), "dashes"),
        ] {
            let error = text.parse::<Traceparent>().unwrap_err().to_string();

            assert!(error.contains(rule), "{text}: {error}");
        }
    }
}
