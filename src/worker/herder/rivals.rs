//! The keys that no two connectors may share, checked under the lock of the config tail when one is created or edited.

use super::{Error, Herder};
use crate::{
    config::connector::Sole,
    worker::state::configs::{Configs, Properties},
};

impl Herder {
    /// Refuses a configuration that shares with another connector what each must have for itself.
    pub(super) fn check_rivals(
        &self,
        name: &str,
        config: &Properties,
        configs: &Configs,
    ) -> Result<(), Error> {
        let Some(own) = Sole::of(config, &self.parts.providers) else { return Ok(()) };
        let others = configs.connectors().iter().filter(|(other, _)| *other != name);
        for (other, connector) in others {
            if Sole::of(&connector.config, &self.parts.providers).as_ref() == Some(&own) {
                let (rule, remedy) = own.taken(other);
                let errors = vec![format!("{} {rule}; {remedy}", own.key)];
                return Err(Error::Invalid { class: own.class.name().to_owned(), errors });
            }
        }
        Ok(())
    }
}
