//! Correlation ids and contents, computed instead of stored.
//!
//! A place is packed into 128 bits, of which 55 are always zero, and encrypted by a Feistel network. An id so decodes to its
//! place without an index, and an unknown GUID does not, because the zeros would have to come out.

use super::{Place, WorldRow};
use crate::{
    catalog::Resource,
    random::{Guid, Random, mix},
};

/// The random stream of the keys.
const KEYS: u64 = 0x6964_656E_7469_7479;
const ROUNDS: usize = 4;

/// Converts places to ids and back, and states to the seeds of their fields. Cheap to copy, so that answers can be rendered
/// without the world's lock.
#[derive(Debug, Clone, Copy)]
pub struct Naming {
    seed: u64,
    keys: [u64; ROUNDS],
}

impl Naming {
    /// The ids of a seed; no two seeds share any.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, KEYS);
        Self { seed, keys: std::array::from_fn(|_| random.next()) }
    }

    /// The seed.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Correlation id of a record: a GUID, for companies `<prefix>:<number>:CM:<guid>`.
    pub fn id(&self, place: Place) -> String {
        let guid = self.guid(place);
        if place.resource == Resource::Companies {
            format!("svc:{}:CM:{guid}", 10_000 + self.fixed(place) % 990_000)
        } else {
            guid.to_string()
        }
    }

    /// Decodes an id of a resource. Only the exact text is valid.
    pub fn place(&self, resource: Resource, id: &str) -> Option<Place> {
        let guid = id.get(id.len().checked_sub(36)?..)?;
        let place = self.decode(Guid::parse(guid)?)?;
        (place.resource == resource && self.id(place) == id).then_some(place)
    }

    /// The GUID in a record's id.
    pub fn guid(&self, place: Place) -> Guid {
        let (mut left, mut right) = pack(place);
        for key in self.keys {
            (left, right) = (right, left ^ mix(right ^ key));
        }
        Guid(u128::from(left) << 64 | u128::from(right))
    }

    /// Seed of the fields that never change, such as codes.
    pub fn fixed(&self, place: Place) -> u64 {
        let (left, right) = pack(place);
        mix(mix(self.seed ^ mix(left)) ^ right)
    }

    /// Seed of the fields that change with each state. After a restore it differs even for equal revisions, because the lineage
    /// does.
    pub fn content(&self, place: Place, row: &WorldRow) -> u64 {
        mix(self.fixed(place) ^ mix(u64::from(row.revision) << 16 | u64::from(row.lineage)))
    }

    fn decode(&self, guid: Guid) -> Option<Place> {
        let (mut left, mut right) = ((guid.0 >> 64) as u64, guid.0 as u64);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ mix(left ^ key), left);
        }
        let resource = usize::try_from(left >> 1 & 0xFF).ok().and_then(|at| Resource::ALL.get(at))?;
        let company = (left & 1 == 1).then_some((left >> 32) as u32);
        let place = Place { resource: *resource, company, index: (right >> 32) as u32 };
        (pack(place) == (left, right)).then_some(place)
    }
}

/// Company, resource and whether there is a company on the left, index on the right; all other bits are zero.
fn pack(place: Place) -> (u64, u64) {
    let company = place.company.map_or(0, |company| u64::from(company) << 32 | 1);
    (company | (place.resource as u64) << 1, u64::from(place.index) << 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn places() -> impl Iterator<Item = Place> {
        let companies = [None, Some(0), Some(1), Some(999_999), Some(u32::MAX)];
        Resource::ALL.into_iter().flat_map(move |resource| {
            companies
                .into_iter()
                .flat_map(move |company| [0, 1, 7, u32::MAX].map(|index| Place { resource, company, index }))
        })
    }

    #[test]
    fn every_id_leads_back_to_its_place() {
        let naming = Naming::new(7);

        for place in places() {
            let id = naming.id(place);

            assert_eq!(naming.place(place.resource, &id), Some(place), "{id}");
            let other = Resource::ALL[(place.resource as usize + 1) % Resource::ALL.len()];
            assert_eq!(naming.place(other, &id), None, "{id}");
        }
        assert_eq!(places().map(|place| naming.id(place)).collect::<HashSet<_>>().len(), places().count());
    }

    #[test]
    fn ids_of_another_seed_have_no_place() {
        let (naming, other) = (Naming::new(7), Naming::new(8));

        for place in places() {
            assert_eq!(other.place(place.resource, &naming.id(place)), None);
        }
    }

    #[test]
    fn a_guid_that_was_never_issued_has_no_place() {
        let naming = Naming::new(7);
        let mut random = Random::new(1, 1);

        for _ in 0..100_000 {
            assert_eq!(naming.decode(random.guid()), None);
        }
    }

    #[test]
    fn only_the_exact_text_of_an_id_leads_back() {
        let naming = Naming::new(7);
        let company = Place { resource: Resource::Companies, company: None, index: 3 };
        let customer = Place { resource: Resource::Customers, company: Some(3), index: 0 };
        let (company_id, customer_id) = (naming.id(company), naming.id(customer));
        let guid = naming.guid(company).to_string();

        for text in ["", "é", &guid, &format!("svc:1:CM:{guid}"), &company_id.to_uppercase()] {
            assert_eq!(naming.place(Resource::Companies, text), None, "{text}");
        }
        for text in [customer_id.to_uppercase(), format!(" {customer_id}"), customer_id.replace('-', "")] {
            assert_eq!(naming.place(Resource::Customers, &text), None, "{text}");
        }
        let parts: Vec<&str> = company_id.split(':').collect();
        assert!(
            matches!(parts[..], ["svc", number, "CM", tail] if number.parse::<u32>().is_ok() && tail == guid)
        );
    }
}
