//! Types that are serialized as text.

use super::{Error, error::excerpt};

/// Serializes a type with `Display` and `FromStr` as plain text. Avro schemas declare such fields as strings: adding a symbol
/// to an Avro enum breaks old readers.
macro_rules! written_as_text {
    ($($type:ty),+) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

/// Implements `FromStr` for a `named!` type, with its name for error messages.
macro_rules! read_as_name {
    ($($type:ty: $what:literal),+) => {$(
        impl std::str::FromStr for $type {
            type Err = $crate::Error;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $crate::text::find($what, name, &Self::ALL, Self::name)
            }
        }
    )+};
}

pub(super) use {read_as_name, written_as_text};

/// The member of `all` with this name.
pub(super) fn find<T: Copy>(
    what: &'static str,
    given: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, Error> {
    let found = all.iter().copied().find(|one| name(*one) == given);
    found.ok_or_else(|| Error::UnknownName {
        what,
        given: excerpt(given),
        valid: all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", "),
    })
}
