//! The names of events, written once.

use std::sync::Arc;

use serde::Serialize;

use crate::catalog::{Kind, Resource};

/// The names of every event of every resource, and of the Acknowledge.
#[derive(Debug)]
pub(super) struct Names(Vec<[Event; 5]>);

/// One event of one resource, as envelopes describe it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Event {
    pub(super) app_name: &'static str,
    pub(super) domain: &'static str,
    pub(super) resource: String,
    pub(super) event_type: String,
    pub(super) semantic_name: Arc<str>,
}

impl Names {
    pub(super) fn new() -> Self {
        let events = |resource: Resource| {
            let [first, second, third, fourth] = resource.kinds().map(|kind| resource.event_type(kind));
            [first, second, third, fourth, "Acknowledge".to_owned()].map(|name| Event::new(resource, &name))
        };
        Self(Resource::ALL.into_iter().map(events).collect())
    }

    /// The event of this kind, by its [`index`].
    pub(super) fn event(&self, resource: Resource, kind: usize) -> &Event {
        &self.0[resource as usize][kind.min(3)]
    }

    pub(super) fn acknowledge(&self, resource: Resource) -> &Event {
        &self.0[resource as usize][4]
    }

    /// The kind with this semantic name, which is compared exactly.
    pub(super) fn find(&self, resource: Resource, semantic_name: &str) -> Option<usize> {
        (0..4).find(|&kind| &*self.event(resource, kind).semantic_name == semantic_name)
    }
}

/// Where a kind stands among those of its resource; `None` if the resource does not have it.
pub(super) fn index(resource: Resource, kind: Kind) -> Option<usize> {
    resource.kinds().iter().position(|&offered| offered == kind)
}

impl Event {
    pub(super) fn new(resource: Resource, event_type: &str) -> Self {
        let (app_name, domain, plural) = (resource.app_name(), resource.domain(), resource.plural());
        let semantic_name = format!("{app_name}.{domain}.{plural}.{event_type}").into();
        Self { app_name, domain, resource: plural, event_type: event_type.to_owned(), semantic_name }
    }
}
