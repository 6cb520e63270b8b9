//! Series that every delivery updates, cached: finding a series by name and labels costs more than updating it.
//!
//! They are cached once the process has its recorder ([`cache_series`]). Until then, and under a test's own recorder, each
//! update looks up its series.

use std::sync::OnceLock;

use metrics::{Counter, Histogram, counter, histogram};

use super::{DeliveryFamily, names::*};

static KEPT: OnceLock<CachedSeries> = OnceLock::new();

pub(super) struct CachedSeries {
    /// Records of webhooks that were published.
    pub(super) published: Counter,
    /// How long their acknowledgement took.
    pub(super) published_after: Histogram,
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
    KEPT.get_or_init(|| CachedSeries {
        published: counter!(RECORDS_PUBLISHED.name, "origin" => "webhook"),
        published_after: histogram!(PUBLISH_SECONDS.name),
        accounting: durable(DeliveryFamily::Accounting),
        invoicing: durable(DeliveryFamily::Invoicing),
    });
}

pub(super) fn get() -> Option<&'static CachedSeries> {
    KEPT.get()
}
