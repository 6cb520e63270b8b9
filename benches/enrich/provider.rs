//! The simulated provider: a fixed latency, no limits, and customers of many companies.

use std::sync::Arc;
use std::time::Duration;

use simulator::{
    SimulatedProvider, Simulator,
    catalog::Resource,
    knobs::Latency,
    settings::{Settings, WorldSettings},
    world::Place,
};

use crate::support::{Error, Result};

/// Latency of every read.
pub(crate) const LATENCY: Duration = Duration::from_millis(50);
/// Small, because no benchmark reads the journals.
const JOURNAL: usize = 1_000;

/// A provider with this many companies and customers per company; every answer takes [`LATENCY`].
pub(crate) async fn start(companies: u32, customers: u32) -> Result<Simulator> {
    let world = WorldSettings { companies, customers, accounts: 1, others: 1, ..WorldSettings::default() };
    let mut settings = Settings { world, journal_limit: JOURNAL, ..Settings::default() };
    settings.knobs.gateway.latency = Latency::Fixed { milliseconds: LATENCY.as_secs_f64() * 1e3 };
    Simulator::start(settings).await.map_err(|error| Error(format!("start the provider: {error}")))
}

/// Like [`start`], but it answers at once.
pub(crate) async fn at_once(companies: u32, customers: u32) -> Result<Simulator> {
    let simulator = start(companies, customers).await?;
    simulator.provider().turn(|knobs| knobs.gateway.latency = Latency::None);
    Ok(simulator)
}

/// All customers with their versions: the first of each company, then the second of each, and so on.
pub(crate) fn customers(provider: &Arc<SimulatedProvider>) -> Vec<(Place, u64)> {
    let world = provider.world();
    let mut all: Vec<_> =
        world.records(Resource::Customers).map(|(place, row)| (place, row.sequence)).collect();
    all.sort_unstable_by_key(|(place, _)| (place.index, place.company));
    all
}
