//! The oracle of the integration tests, without their tests.

#![allow(dead_code, reason = "the tests use more of it")]

#[path = "../../tests/it/product/oracle/delivery.rs"]
pub(crate) mod delivery;
#[path = "../../tests/it/product/oracle/judge.rs"]
pub(crate) mod judge;
#[path = "../../tests/it/product/oracle/ledger.rs"]
pub(crate) mod ledger;
#[path = "../../tests/it/product/oracle/reader.rs"]
pub(crate) mod reader;
#[path = "../../tests/it/product/oracle/senders.rs"]
pub(crate) mod senders;
#[path = "../../tests/it/product/oracle/worker.rs"]
pub(crate) mod worker;
