//! The initial world: every record at revision 0, dated over two years.
//!
//! Records have ranks: first the tenant's, then company by company, and within a company row by row through its resources.
//! Dates and the sequences of a company rise with the rank.

use super::{RecordPartition, RecordState, RowTable, WorldRow};
use crate::{
    catalog::Resource,
    clock::{SECOND, Ticks},
    random::mix,
    settings::{MAX_COMPANIES, WorldSettings},
};

const DAY: i64 = 86_400 * SECOND;
/// Records of the initial world are this old.
const MAX_AGE: i64 = 730 * DAY;
const MIN_AGE: i64 = DAY;
/// Ranks of one row through all resources.
const RESOURCES: u64 = Resource::ALL.len() as u64;

/// The records of the accounting data.
#[derive(Debug)]
pub(super) struct AccountingTables {
    /// Companies by number.
    pub(super) companies: RowTable,
    /// Records by company.
    pub(super) partitions: Vec<RecordPartition>,
    /// Records of no company.
    pub(super) tenant: RecordPartition,
}

impl AccountingTables {
    /// The initial ones.
    pub(super) fn new(settings: &WorldSettings, now: Ticks) -> Self {
        let companies = settings.companies.min(MAX_COMPANIES);
        let rows = u64::from(settings.customers.max(settings.accounts).max(settings.others));
        let stride = 1 + rows * RESOURCES;
        let ranks = stride * (u64::from(companies) + 1);
        let span = MAX_AGE - MIN_AGE;
        let maker = RowMaker {
            settings,
            start: Ticks(now.0.saturating_sub(MAX_AGE)),
            slot: (span / i64::try_from(ranks).unwrap_or(i64::MAX)).max(1),
            stride,
        };
        let (_, tenant) = maker.partition(0, |resource| is_tenant_wide(settings, resource));
        let mut own = Vec::with_capacity(companies as usize);
        let mut partitions = Vec::with_capacity(companies as usize);
        for number in 0..companies {
            let (row, partition) =
                maker.partition(u64::from(number) + 1, |resource| !is_tenant_wide(settings, resource));
            own.push(row);
            partitions.push(partition);
        }
        Self { companies: RowTable::new(own.into_iter()), partitions, tenant }
    }

    /// Records that are not deleted, companies included.
    pub(super) fn living(&self) -> u64 {
        let all = self.partitions.iter().chain([&self.tenant]);
        u64::from(self.companies.living()) + all.map(RecordPartition::living).sum::<u64>()
    }
}

/// Whether a resource's records belong to no company. Companies never belong to one; customers and accounts always do,
/// because their lists are per company.
pub(super) fn is_tenant_wide(settings: &WorldSettings, resource: Resource) -> bool {
    match resource {
        Resource::Companies => true,
        Resource::Customers | Resource::Accounts => false,
        resource => settings.tenant_resources.contains(&resource),
    }
}

struct RowMaker<'a> {
    settings: &'a WorldSettings,
    start: Ticks,
    /// Ticks between two ranks.
    slot: i64,
    /// Ranks per company.
    stride: u64,
}

impl RowMaker<'_> {
    /// The partition with this ordinal (0 is the tenant's), and the row of its company.
    fn partition(&self, ordinal: u64, has: impl Fn(Resource) -> bool) -> (WorldRow, RecordPartition) {
        let resources =
            Resource::ALL.into_iter().filter(|&resource| self.count(resource) > 0 && has(resource));
        let mut tables = Vec::with_capacity(resources.clone().count());
        for resource in resources {
            let rank = |index: u32| 1 + u64::from(index) * RESOURCES + resource as u64;
            let rows = (0..self.count(resource)).map(|index| self.row(ordinal, rank(index)));
            tables.push((resource, RowTable::new(rows)));
        }
        let own = self.row(ordinal, 0);
        let mut partition = RecordPartition { tables, counter: 0, lineage: 0 };
        partition.counter = partition.highest_sequence().max(own.sequence);
        (own, partition)
    }

    fn count(&self, resource: Resource) -> u32 {
        match resource {
            Resource::Companies => 0,
            Resource::Customers => self.settings.customers,
            Resource::Accounts => self.settings.accounts,
            _ => self.settings.others,
        }
    }

    fn row(&self, ordinal: u64, rank: u64) -> WorldRow {
        let overall = ordinal * self.stride + rank;
        let noise = mix(self.settings.seed ^ mix(overall));
        let sequence = company_start(self.settings.seed, ordinal) + rank;
        let since_start = i64::try_from(overall).unwrap_or(i64::MAX).saturating_mul(self.slot);
        let within = (noise >> 1).cast_signed() % self.slot;
        let changed = Ticks(self.start.0.saturating_add(since_start).saturating_add(within));
        WorldRow { sequence, changed, revision: 0, lineage: 0, state: RecordState::Enabled }
    }
}

/// Initial counter of a company; ordinal 0 is the tenant.
pub(super) fn company_start(seed: u64, ordinal: u64) -> u64 {
    1_000 + mix(seed ^ mix(ordinal)) % 9_000
}
