//! Scans of the published records of a topic.

use std::ops::ControlFlow;

use model::{CompanyId, Key, RecordId, Stamp, Topic};

use super::{ShardFence, ShardStore};
use crate::records::fence::Error;

/// Company and id of a record.
type PublishedId = (CompanyId, RecordId);

impl ShardFence {
    /// Returns the records of a topic that are not deleted and whose id `wanted` selects, for one company or all, and `wanted` itself.
    /// Scans all entries on a blocking thread. Records with hashed keys are left out; no real id is that long.
    ///
    /// # Errors
    /// The database failed; the shard must be opened again.
    pub fn known<W>(
        &self,
        topic: Topic,
        company: Option<&CompanyId>,
        mut wanted: W,
    ) -> impl Future<Output = Result<(Vec<PublishedId>, W), Error>> + Send + use<W>
    where
        W: FnMut(&str) -> bool + Send + 'static,
    {
        let lead = Key::fences_of(topic, company);
        self.run(move |core| {
            let (from, to) = core.keys.entries_under(lead.as_bytes());
            let mut found = Vec::new();
            core.scan(&from, &to, &mut |_, record| {
                found.extend(Some(record).filter(|(_, id)| wanted(id.as_str())));
                ControlFlow::Continue(())
            })?;
            Ok((found, wanted))
        })
    }

    /// Returns at most `most` records of a topic, in key order after the key `after`, that are not deleted and whose company `wanted`
    /// selects; and the key from which to continue, if there may be more.
    ///
    /// # Errors
    /// The database failed; the shard must be opened again.
    pub fn known_after<W>(
        &self,
        topic: Topic,
        after: Option<&str>,
        most: usize,
        wanted: W,
    ) -> impl Future<Output = Result<(Vec<PublishedId>, Option<String>), Error>> + Send + use<W>
    where
        W: Fn(&CompanyId) -> bool + Send + 'static,
    {
        let lead = Key::fences_of(topic, None);
        let after = after.filter(|after| after.starts_with(&lead)).map(str::to_owned);
        self.run(move |core| {
            let (mut from, to) = core.keys.entries_under(lead.as_bytes());
            if let Some(after) = &after {
                from = core.keys.entry(after.as_bytes());
                // The smallest key after it.
                from.push(0);
            }
            let (mut found, mut last) = (Vec::new(), None);
            core.scan(&from, &to, &mut |key, record| {
                found.extend(Some(record).filter(|(company, _)| wanted(company)));
                if found.len() < most {
                    return ControlFlow::Continue(());
                }
                last = Some(key.to_owned());
                ControlFlow::Break(())
            })?;
            Ok((found, last))
        })
    }
}

impl ShardStore {
    /// Visits records that are not deleted, in key order, until `visit` breaks.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&str, PublishedId) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut broken = None;
        self.opened.with(|database| {
            database.visit(from, to, &mut |key, value| {
                let text = std::str::from_utf8(self.keys.key_of(key)).unwrap_or_default();
                match serde_json::from_slice::<Stamp>(value) {
                    Ok(stamp) if !stamp.deleted => {
                        company_and_id(text).map_or(ControlFlow::Continue(()), |record| visit(text, record))
                    }
                    Ok(_) => ControlFlow::Continue(()),
                    Err(error) => {
                        broken = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })
        })?;
        broken.map_or(Ok(()), |error| Err(self.broken("read a stamp", error)))
    }
}

/// Company and id in the key of an entry.
fn company_and_id(key: &str) -> Option<PublishedId> {
    let parts = Key::parts(key).ok()?;
    let [_, company, id] = &parts[..] else { return None };
    Some((CompanyId::new(company.as_str()).ok()?, RecordId::new(id.as_str()).ok()?))
}
