//! What operators see: librdkafka's lines and statistics among the product's own, and connectors on `/metrics`.

mod exposition;
mod librdkafka;
mod scrape;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [exposition::tests(), librdkafka::tests(), scrape::tests()].into_iter().flatten().collect()
}
