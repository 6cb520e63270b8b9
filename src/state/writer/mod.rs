//! Writing the status topic, and the records of the offset topic for edits through REST.
//!
//! [`StatusWriter`] keeps the latest value of each key until Kafka has it: the caller never waits, a value that was
//! overtaken before it was sent is not sent at all, and what is kept is bounded by the number of keys. [`OffsetRecords`]
//! go into a transaction of the config writer; the caller waits until its own table has read them.
//!
//! - Of each key one record at a time is under way, so its records are in the log in the order they were put.
//! - A removal that has to come before a value is never overtaken by it.
//! - A record's partition is that of Kafka's default partitioner for its key, where Kafka Connect would put it too.
//!
//! On failure: a lost broker only delays; a producer that failed for good is replaced; a record the broker refuses for
//! itself is logged and dropped, for it would be refused again.

mod offset;
mod pending;
mod status;
#[cfg(test)]
mod tests;

pub use offset::OffsetRecords;
pub use status::StatusWriter;
