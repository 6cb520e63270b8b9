//! The intake on a real spool and a broker in memory whose every answer the test decides.

mod broker;
mod dedup;
mod fixture;
mod order;
mod outcome;
mod producer;
