//! Series that every delivery updates, cached: finding a series by name and labels costs more than updating it.
//!
//! They are cached once the process has its recorder ([`cache_series`]). Until then, and under a test's own recorder, each
//! update looks up its series.

use std::{collections::HashMap, sync::OnceLock};

use metrics::{Counter, Histogram, counter, histogram};

use super::{DeliveryFamily, names::*};

static KEPT: OnceLock<CachedSeries> = OnceLock::new();

pub(super) struct CachedSeries {
    /// Records of webhooks that were published.
    pub(super) published: Counter,
    /// How long their acknowledgement took.
    pub(super) published_after: Histogram,
    /// Accounting events, by resource and outcome.
    pub(super) accounting_events: HashMap<(&'static str, &'static str), Counter>,
    accounting: Durable,
    invoicing: Durable,
}

/// Durable deliveries of one API.
pub(super) struct Durable {
    pub(super) count: Counter,
    pub(super) seconds: Histogram,
}

impl CachedSeries {
    pub(super) fn durable(&self, family: DeliveryFamily) -> &Durable {
        match family {
            DeliveryFamily::Accounting => &self.accounting,
            DeliveryFamily::Invoicing => &self.invoicing,
        }
    }
}

/// Caches the series of the process's global recorder.
pub fn cache_series() {
    let durable = |family: DeliveryFamily| Durable {
        count: counter!(DELIVERIES.name, "family" => family.label(), "outcome" => "durable"),
        seconds: histogram!(DELIVERY_SECONDS.name, "family" => family.label()),
    };
    let of_resource = |entity: &'static str| {
        EVENT_OUTCOMES.iter().map(move |outcome| {
            let series = counter!(ACCOUNTING_EVENTS.name, "entity" => entity, "outcome" => *outcome);
            ((entity, *outcome), series)
        })
    };
    KEPT.get_or_init(|| CachedSeries {
        published: counter!(RECORDS_PUBLISHED.name, "origin" => "webhook"),
        published_after: histogram!(PUBLISH_SECONDS.name),
        accounting_events: RESOURCES.iter().copied().flat_map(of_resource).collect(),
        accounting: durable(DeliveryFamily::Accounting),
        invoicing: durable(DeliveryFamily::Invoicing),
    });
}

pub(super) fn get() -> Option<&'static CachedSeries> {
    KEPT.get()
}
