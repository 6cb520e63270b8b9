//! What operators see: librdkafka's log lines and statistics among the product's own, connectors on `/metrics`, and the dashboard and
//! alerting rules that query it.

mod boards;
mod exposition;
mod librdkafka;
mod queries;
mod rules;
mod scrape;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [
        boards::tests(),
        exposition::tests(),
        librdkafka::tests(),
        queries::tests(),
        rules::tests(),
        scrape::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
