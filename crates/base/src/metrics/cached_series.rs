//! Series that every delivery moves, looked up once: to find a series by name and labels costs more than to move it.
//!
//! They are kept from when the process has its recorder ([`cache_series`]). Until then, and under a recorder of one test, there are
//! none, and each move looks its series up.

use std::sync::OnceLock;

use metrics::{Counter, Histogram, counter, histogram};

use super::{DeliveryFamily, labels::value, names::*};

static KEPT: OnceLock<CachedSeries> = OnceLock::new();

pub(super) struct CachedSeries {
    /// Records of webhooks that were published.
    pub(super) published: Counter,
    /// How long that took.
    pub(super) published_after: Histogram,
    accounting: Durable,
    invoicing: Durable,
}

/// Deliveries of one API that ended well.
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

/// Keeps series of the recorder that is in force for the whole process.
pub fn cache_series() {
    let durable = |family: DeliveryFamily| Durable {
        count: counter!(DELIVERIES.name, "family" => value(family), "outcome" => "durable"),
        seconds: histogram!(DELIVERY_SECONDS.name, "family" => value(family)),
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
