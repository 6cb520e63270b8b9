//! What a person may do about something outside that is not as it should be: a line below the error.
//!
//! Problems of the configuration bring their remedies along; these are for what only shows when it is used.

use std::{error::Error, iter};

use super::client::{RequestRejected, WorkerUnreachable};
use crate::{avro, worker::service};

/// The first that helps, from the error itself down to its causes.
pub(super) fn of(error: &(dyn Error + 'static)) -> Option<String> {
    iter::successors(Some(error), |&error| error.source()).find_map(one)
}

/// The same for who is looking what is the matter: not to look.
pub(super) fn in_check(error: &(dyn Error + 'static)) -> Option<String> {
    let kafka = |error: &(dyn Error + 'static)| {
        let is_away = error.downcast_ref::<kafka::Error>().is_some_and(|error| error.retry().is_retriable());
        is_away.then(|| "see that a broker listens there, or mend bootstrap.servers, and security.protocol for how it is spoken to".to_owned())
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
    if let Some(service::Error::Listen { .. }) = error.downcast_ref() {
        return Some(
            "end what has the address, or give another with listeners or webhook.listeners".to_owned(),
        );
    }
    if let Some(avro::Error::Transport { .. }) = error.downcast_ref() {
        return Some("start the registry, or mend value.converter.schema.registry.url".to_owned());
    }
    #[cfg(feature = "simulator")]
    if let Some(simulator::Error::Listen { .. }) = error.downcast_ref() {
        return Some("end what has the address, or give another with --port; 0 takes a free one".to_owned());
    }
    let is_kafka = error.is::<kafka::Error>();
    is_kafka.then(|| "`tributary check` with the same --config says what is the matter with Kafka".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("do something")]
    struct Attempt(#[source] kafka::Error);

    #[test]
    fn a_cause_has_its_remedy_however_deep_it_is_and_what_nobody_knows_has_none() {
        let stopped = kafka::Error::Stopped { action: "read".to_owned() };

        let told = of(&Attempt(stopped));

        assert!(told.is_some_and(|told| told.contains("tributary check")));
        assert_eq!(of(&std::fmt::Error), None);

        let away = kafka::Error::Deadline { action: "ask".to_owned(), limit: std::time::Duration::ZERO };
        assert!(in_check(&Attempt(away)).is_some_and(|told| told.contains("bootstrap.servers")));
        assert_eq!(in_check(&Attempt(kafka::Error::Stopped { action: "read".to_owned() })), None);
    }
}
