//! Writes the status topic, and builds the records of the offset topic for edits through REST.
//!
//! [`StatusWriter`] keeps the latest value of each key until Kafka has it: the caller never waits, a value that is replaced before
//! it is sent is never sent, and memory is bounded by the number of keys. [`OffsetRecords`] go into a transaction of the
//! config writer; the caller waits until its own table has read them.
//!
//! - Of each key one record at a time is in flight, so its records are in the log in the order they were put.
//! - A removal that has to come before a value always does.
//! - A record's partition is that of Kafka's default partitioner for its key, where Kafka Connect would put it too.
//!
//! On failure: a lost broker only delays; a fatally failed producer is replaced; a record that the broker refuses is logged and
//! dropped, since it would be refused again.

mod offset;
mod pending;
mod status;
#[cfg(test)]
mod tests;

pub use offset::OffsetRecords;
pub use status::StatusWriter;
