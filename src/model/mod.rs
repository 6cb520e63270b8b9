//! Plain data.

mod encoded;

pub use encoded::EncodedRecord;
