//! The strategies of the model's own tests, because what Avro carries is what the model reads.

use model::*;

#[path = "../../../crates/model/src/tests/strategies.rs"]
#[allow(dead_code, reason = "the model's tests use more of them")]
mod of_the_model;

pub(in crate::avro) use of_the_model::{any_value, canonical};
