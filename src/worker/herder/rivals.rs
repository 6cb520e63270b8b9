//! What no two connectors may share, held when one is created or edited.
//!
//! An edit is decided under the lock of the config tail, where nothing may wait. So what has to be read from files is read
//! before, and what came meanwhile makes the edit [`Error::Stale`]; everything else is compared as it is written.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};

use super::{Budget, Error, Herder};
use crate::{
    config::{Providers, connector::Sole},
    worker::state::configs::{Configs, Properties},
};

/// The longest references of other connectors may take to be read; those that take longer count as different.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// What a connector has for itself, and what others have as far as that takes files.
pub(super) struct Rivals {
    name: String,
    own: Option<Sole>,
    /// By name and revision; `None` where it cannot be read, which counts as different.
    resolved: BTreeMap<(String, i64), Option<Sole>>,
    /// Whether those that are not there were not to be read in time.
    late: bool,
    providers: Providers,
}

impl Herder {
    /// Reads what has to be read before a configuration is decided on.
    pub(super) async fn rivals(&self, name: &str, config: &Arc<Properties>, budget: Budget) -> Rivals {
        let referring: Vec<(String, i64, Arc<Properties>)> = self.parts.state.configs.read(|configs| {
            let others = configs.connectors().iter().filter(|(other, _)| *other != name);
            let referring = others.filter(|(_, connector)| Sole::refers(&connector.config));
            referring
                .map(|(other, connector)| (other.clone(), connector.revision, Arc::clone(&connector.config)))
                .collect()
        });
        let providers = self.parts.providers.clone();
        let (name, config) = (name.to_owned(), Arc::clone(config));
        if referring.is_empty() && !Sole::refers(&config) {
            let own = Sole::of(&config, &providers);
            return Rivals { name, own, resolved: BTreeMap::new(), late: false, providers };
        }
        let reading = providers.clone();
        let late = |name: String, providers| {
            tracing::warn!(connector = name, "what other connectors refer to could not be read in time");
            Rivals { name, own: None, resolved: BTreeMap::new(), late: true, providers }
        };
        let Ok(turn) = self.limits.thread(budget, "waiting to read references").await else {
            return late(name, providers);
        };
        let read = spawn_blocking(move || {
            let _turn = turn;
            let own = Sole::of(&config, &reading);
            let each = referring.into_iter().map(|(other, revision, config)| {
                let sole = Sole::of(&config, &reading);
                ((other, revision), sole)
            });
            (own, each.collect())
        });
        match timeout(budget.left().min(READ_LIMIT), read).await {
            Ok(Ok((own, resolved))) => Rivals { name, own, resolved, late: false, providers },
            _ => late(name, providers),
        }
    }
}

impl Rivals {
    /// Refuses a configuration that has what another connector has.
    pub(super) fn check(&self, configs: &Configs) -> Result<(), Error> {
        let Some(own) = &self.own else { return Ok(()) };
        for (other, connector) in configs.connectors().iter().filter(|(other, _)| **other != self.name) {
            let sole = if Sole::refers(&connector.config) {
                match self.resolved.get(&(other.clone(), connector.revision)) {
                    Some(sole) => sole.clone(),
                    None if self.late => None,
                    // Created or edited since we looked.
                    None => return Err(Error::Stale),
                }
            } else {
                Sole::of(&connector.config, &self.providers)
            };
            if sole.as_ref() == Some(own) {
                let (rule, remedy) = own.taken(other);
                let errors = vec![format!("{} {rule}; {remedy}", own.key)];
                return Err(Error::Invalid { class: own.class.name().to_owned(), errors });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::state::configs::{self};

    fn config(prefix: &str) -> Properties {
        let pairs = [("connector.class", "RecordSource"), ("topic.prefix", prefix)];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn rivals(prefix: &str) -> Rivals {
        let providers = Providers::new([("ONE".to_owned(), "one".to_owned())]);
        let own = Sole::of(&config(prefix), &providers);
        Rivals { name: "new".to_owned(), own, resolved: BTreeMap::new(), late: false, providers }
    }

    #[test]
    fn a_prefix_of_another_is_refused_by_name_and_one_that_came_meanwhile_by_reference_is_stale() {
        let mut configs = Configs::default();
        configs.foresee(&[configs::connector("old", Some(&config("one")))]);
        let taken = rivals("one").check(&configs).unwrap_err();
        let free = rivals("two").check(&configs);
        let itself = Rivals { name: "old".to_owned(), ..rivals("one") }.check(&configs);

        configs.foresee(&[configs::connector("old", Some(&config("${env:ONE}")))]);
        let revision = configs.connectors()["old"].revision;
        let unseen = rivals("two").check(&configs).unwrap_err();
        let mut seen = rivals("one");
        seen.resolved.insert(("old".to_owned(), revision), seen.own.clone());

        assert!(taken.to_string().contains("which RecordSource old writes"), "{taken}");
        assert!(free.is_ok() && itself.is_ok());
        assert!(matches!(unseen, Error::Stale), "{unseen}");
        assert!(matches!(seen.check(&configs), Err(Error::Invalid { .. })));
        assert!(
            Rivals { late: true, ..rivals("one") }.check(&configs).is_ok(),
            "what cannot be read differs"
        );
    }
}
