//! Random bytes from a secure source, for unique ids and unguessable secrets.

use aws_lc_rs::rand;
use data_encoding::HEXLOWER;

/// The system's random number generator failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system's random number generator failed")]
pub struct NoRandomness;

/// `N` random bytes.
///
/// # Errors
/// The generator failed.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// `N` random bytes as hexadecimal digits.
///
/// # Errors
/// The generator failed.
pub fn hex<const N: usize>() -> Result<String, NoRandomness> {
    Ok(HEXLOWER.encode(&bytes::<N>()?))
}

/// A random (version 4) GUID.
///
/// # Errors
/// The generator failed.
pub fn guid() -> Result<String, NoRandomness> {
    Ok(uuid::Builder::from_random_bytes(bytes()?).into_uuid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_has_version_4_and_is_unique() {
        let (one, other) = (guid().unwrap(), guid().unwrap());

        assert_ne!(one, other);
        let lengths: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{one}");
        assert_eq!(one.as_bytes()[14], b'4', "{one}");
        assert!(matches!(one.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{one}");
    }

    #[test]
    fn hex_has_two_digits_per_byte() {
        assert_eq!(hex::<32>().unwrap().len(), 64);
    }
}
