//! The managed `WebhookSource`s of a prefix, and where the stream of each begins, as this worker has read it.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use tokio::time::sleep;

use model::{Start, TopicPrefix};

use super::{Tools, stream::Streams};
use crate::{
    config::connector::{Class, Declared, keys::CONNECTOR_CLASS},
    worker::{ledger::Handle, state::configs::Connector},
};

/// How often a ledger is looked for that is not followed here yet.
const LOOK: Duration = Duration::from_secs(1);

/// See the module's head.
pub(super) struct Sources<'a> {
    tools: &'a Tools,
    prefix: TopicPrefix,
}

impl<'a> Sources<'a> {
    pub(super) fn new(tools: &'a Tools, prefix: TopicPrefix) -> Self {
        Self { tools, prefix }
    }

    /// Whether a connector keeps the subscriptions of this prefix.
    fn is_one(&self, connector: &Connector) -> bool {
        let class = connector.config.get(CONNECTOR_CLASS.name).and_then(|class| Class::parse(class));
        class == Some(Class::WebhookSource)
            && Declared::of(&connector.config, &self.tools.providers)
                .is_some_and(|declared| declared.manage && declared.topic_prefix == self.prefix)
    }

    fn ledger(&self) -> Option<Handle> {
        self.tools.ledgers.known(self.prefix.as_str()).filter(Handle::is_caught_up)
    }
}

#[async_trait]
impl Streams for Sources<'_> {
    fn starts(&self) -> BTreeMap<String, Option<Start>> {
        let names: Vec<String> = self.tools.configs.read(|configs| {
            let ours = configs.connectors().iter().filter(|(_, connector)| self.is_one(connector));
            ours.map(|(name, _)| name.clone()).collect()
        });
        let ledger = self.ledger();
        let start =
            |name: &str| ledger.as_ref().and_then(|ledger| ledger.read(name, |one| one.start.clone()));
        names.into_iter().map(|name| (name.clone(), start(&name))).collect()
    }

    async fn changed(&mut self) {
        let mut configs = self.tools.configs.changes();
        configs.borrow_and_update();
        let ledger = async {
            match self.ledger() {
                Some(ledger) => {
                    let mut changes = ledger.changes();
                    changes.borrow_and_update();
                    // What came between the last look and this one is found by the next look, soon.
                    tokio::select! { _ = changes.changed() => {} () = sleep(LOOK) => {} }
                }
                None => sleep(LOOK).await,
            }
        };
        tokio::select! {
            _ = configs.changed() => {}
            () = ledger => {}
        }
    }
}
