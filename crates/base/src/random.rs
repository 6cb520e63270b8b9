//! Random bytes and what is made of them: ids that nobody has drawn before, secrets that nobody can guess. One source for all.

use aws_lc_rs::rand;
use data_encoding::HEXLOWER;

/// The machine has no random numbers to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the machine gives no random numbers")]
pub struct NoRandomness;

/// So many random bytes.
///
/// # Errors
/// The machine gives none.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// So many random bytes as hexadecimal digits.
///
/// # Errors
/// The machine gives none.
pub fn hex<const N: usize>() -> Result<String, NoRandomness> {
    Ok(HEXLOWER.encode(&bytes::<N>()?))
}

/// A fresh GUID, all of it random but the six bits that say so.
///
/// # Errors
/// The machine gives none.
pub fn guid() -> Result<String, NoRandomness> {
    Ok(uuid::Builder::from_random_bytes(bytes()?).into_uuid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_has_its_dashes_version_and_variant_and_is_never_drawn_twice() {
        let (one, other) = (guid().unwrap(), guid().unwrap());

        assert_ne!(one, other);
        let lengths: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{one}");
        assert_eq!(one.as_bytes()[14], b'4', "{one}");
        assert!(matches!(one.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{one}");
    }

    #[test]
    fn digits_are_two_for_each_byte() {
        assert_eq!(hex::<32>().unwrap().len(), 64);
    }
}
