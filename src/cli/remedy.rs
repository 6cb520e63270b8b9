//! Remedies for errors outside the configuration, printed below the error. Configuration problems carry their own remedies.

use std::{error::Error, iter};

use super::client::{RequestRejected, WorkerUnreachable};
use crate::{avro, worker};

/// The first remedy found, from the error down to its causes.
pub(super) fn of(error: &(dyn Error + 'static)) -> Option<String> {
    iter::successors(Some(error), |&error| error.source()).find_map(one)
}

/// The same for `tributary check`, which must not recommend itself.
pub(super) fn in_check(error: &(dyn Error + 'static)) -> Option<String> {
    let kafka = |error: &(dyn Error + 'static)| {
        let is_away = error.downcast_ref::<kafka::Error>().is_some_and(|error| error.retry().is_retriable());
        is_away.then(|| "start a broker there, or correct bootstrap.servers and security.protocol".to_owned())
    };
    let mut causes = iter::successors(Some(error), |&error| error.source());
    causes.find_map(|error| kafka(error).or_else(|| one(error).filter(|_| !error.is::<kafka::Error>())))
}

fn one(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(unreachable) = error.downcast_ref::<WorkerUnreachable>() {
        return Some(unreachable.remedy());
    }
    if let Some(refused) = error.downcast_ref::<RequestRejected>() {
        return refused.remedy().map(str::to_owned);
    }
    if let Some(worker::Error::Listen { .. }) = error.downcast_ref() {
        return Some(
            "stop the process that uses the address, or set another with listeners or webhook.listeners"
                .to_owned(),
        );
    }
    if let Some(avro::Error::Transport { .. }) = error.downcast_ref() {
        return Some("start the registry, or correct value.converter.schema.registry.url".to_owned());
    }
    #[cfg(feature = "simulator")]
    if let Some(simulator::Error::Listen { .. }) = error.downcast_ref() {
        return Some(
            "stop the process that uses the address, or set another with --port; 0 takes a free one"
                .to_owned(),
        );
    }
    let is_kafka = error.is::<kafka::Error>();
    is_kafka.then(|| "run `tributary check` with the same --config to diagnose Kafka".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("do something")]
    struct FailedAction(#[source] kafka::Error);

    #[test]
    fn a_nested_cause_has_a_remedy_and_an_unknown_one_has_none() {
        let stopped = kafka::Error::Stopped { action: "read".to_owned() };

        let remedy = of(&FailedAction(stopped));

        assert!(remedy.is_some_and(|remedy| remedy.contains("tributary check")));
        assert_eq!(of(&std::fmt::Error), None);

        let away = kafka::Error::Deadline { action: "ask".to_owned(), limit: std::time::Duration::ZERO };
        assert!(in_check(&FailedAction(away)).is_some_and(|remedy| remedy.contains("bootstrap.servers")));
        assert_eq!(in_check(&FailedAction(kafka::Error::Stopped { action: "read".to_owned() })), None);
    }
}
