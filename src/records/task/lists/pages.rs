//! Reads pages of lists from the provider: the stored form for their proof, and the rows to publish.
//!
//! A page reserves [`Room`], as much as recent large pages needed, from before its request until its commit, by followers too. So the
//! memory of a task for pages stays near its limit for any number of shards, lists and slots: if pages are large, fewer are requested at
//! once.
//!
//! The memory to prove a list ([`Load`]) grows with the list and is held until its end. If the lists of companies remember much together,
//! only the oldest of each shard that still grow continue, so that lists end one after the other. Lists that span companies continue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use model::{AccountingResource, CompanyId, Error, Key, List, RecordId, SequenceVersion, Value, Version};
use provider::api::{
    self, Accounting, CallOptions, Page, PageRequest, Payroll, PayrollRequest, Priority, Total, row_hash,
};

use crate::records::{
    proof::{PageAnswer, Row, Seen},
    schedule::{Content, Subject},
};

/// Time limit of one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of a task for pages, in KiB of JSON. Compared, encoded and in the producer's queue they take several times as much.
const ROOM_KIB: u32 = 4 << 10;
/// Rows that lists of companies may remember for their proofs, over all shards of a task; about 100 bytes each.
const MOST_REMEMBERED_ROWS: u64 = 100_000;
/// Assumed size of the first page, in KiB.
const FIRST_PAGE_KIB: u32 = 512;
/// Weight of the last estimate: a smaller page moves it by 1/8 of the difference.
const INERTIA: u32 = 8;
/// State of account templates, which have no id and are not published.
const TEMPLATE: &str = "Template";

/// A page to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) list: List,
    pub(super) company: Option<CompanyId>,
    pub(super) number: u32,
    pub(super) size: u32,
    /// `filter`, for payroll.
    pub(super) filter: Option<String>,
    /// The page must be requested at or after this time.
    pub(super) sent_after: i64,
    pub(super) priority: Priority,
}

/// A page that was read.
#[derive(Debug)]
pub(in crate::records::task) struct Fetched {
    pub(super) rows: Vec<Fresh>,
    pub(in crate::records::task) seen: Seen,
    /// Released with the page.
    pub(super) room: Option<Taken>,
}

impl Fetched {
    /// A page without rows, or one that could not be read.
    pub(super) fn without_rows(seen: Seen) -> Self {
        Self { rows: Vec::new(), seen, room: None }
    }

    /// The companies that it shows, with their versions.
    pub(in crate::records::task) fn companies(
        &self,
    ) -> impl Iterator<Item = (CompanyId, Option<SequenceVersion>)> {
        self.rows.iter().filter_map(|row| {
            let version = row.version.as_ref().and_then(Version::number).cloned();
            Some((row.subject.as_ref()?.company.clone(), version))
        })
    }
}

/// Limits the memory of a task for pages, in KiB of JSON.
#[derive(Debug)]
struct Room {
    size: u32,
    free: Arc<Semaphore>,
    /// Estimated size of a page: follows larger pages at once and smaller ones slowly.
    usual: AtomicU32,
}

/// Part of a [`Room`].
pub(super) type Taken = OwnedSemaphorePermit;

impl Room {
    fn new(size: u32) -> Self {
        Self { size, free: Arc::new(Semaphore::new(size as usize)), usual: AtomicU32::new(FIRST_PAGE_KIB) }
    }

    /// Waits for the estimated size of a page.
    async fn reserve(&self) -> Option<Taken> {
        let wanted = self.usual.load(Ordering::Relaxed).clamp(1, self.size);
        // The semaphore is never closed.
        Arc::clone(&self.free).acquire_many_owned(wanted).await.ok()
    }

    /// Adjusts a reservation to the size of its page: releases the rest, or takes more if that is free. It never waits, because holders
    /// that wait for each other could deadlock.
    fn settle(&self, taken: &mut Taken, bytes: usize) {
        let needed = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).clamp(1, self.size);
        let usual = self.usual.load(Ordering::Relaxed);
        let moved =
            (u64::from(usual) * u64::from(INERTIA - 1) + u64::from(needed)).div_ceil(u64::from(INERTIA));
        // Larger pages count at once: while an average follows, other pages would reserve too little.
        let moved = moved.max(u64::from(needed));
        // Of two concurrent updates one may be lost, which does not matter.
        self.usual.store(u32::try_from(moved).unwrap_or(needed), Ordering::Relaxed);
        let has = u32::try_from(taken.num_permits()).unwrap_or(u32::MAX);
        if has > needed {
            drop(taken.split((has - needed) as usize));
        } else if let Ok(more) = Arc::clone(&self.free).try_acquire_many_owned(needed - has) {
            taken.merge(more);
        }
    }
}

/// Number of rows that the lists of a task remember.
#[derive(Debug, Default)]
pub(super) struct Load {
    all: Arc<AtomicU64>,
    own: u64,
}

impl Load {
    /// Adds a list.
    pub(super) fn another(&self) -> Self {
        Self { all: Arc::clone(&self.all), own: 0 }
    }

    /// Sets the number of rows that this list remembers.
    pub(super) fn set(&mut self, rows: u64) {
        self.all.fetch_add(rows, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.own, rows), Ordering::Relaxed);
    }

    /// Whether the lists together exceed the limit, so that they should end one after the other.
    pub(super) fn is_much(&self) -> bool {
        self.all.load(Ordering::Relaxed) >= MOST_REMEMBERED_ROWS
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A row that is a record, with its JSON. It is not parsed yet: a value takes several times the memory, rows wait for their turn,
/// and most rows that are read again are never written.
#[derive(Debug, Clone)]
pub(in crate::records::task) struct Fresh {
    /// The record, if it can be read by id.
    pub(super) subject: Option<Subject>,
    /// Hash of its id, as in readings.
    pub(super) hash: u128,
    pub(super) key: Key,
    /// `None` if it cannot be compared.
    pub(super) version: Option<Version>,
    pub(super) raw: Bytes,
}

impl Fresh {
    /// A row from its value and JSON; `None` if it is not a record.
    pub(super) fn new(value: &Value, raw: Bytes) -> Option<Self> {
        let (key, id) = (value.key().ok()?, value.record_id()?);
        let version = value.version().ok().flatten();
        Some(Self { subject: subject(value, &id), hash: row_hash(&id), key, version, raw })
    }

    /// Parses its value.
    ///
    /// # Errors
    /// Never: the JSON was parsed before.
    pub(super) fn value(&self) -> Result<Arc<Value>, Error> {
        self.content().value(self.subject.as_ref())
    }

    /// The content to publish.
    pub(super) fn content(&self) -> Content {
        Content::Json(self.raw.clone())
    }
}

/// The record of a row, if it can be read by id.
fn subject(value: &Value, id: &str) -> Option<Subject> {
    let id = RecordId::new(id).ok()?;
    let (resource, company) = match value {
        Value::Company(_) => (AccountingResource::Companies, CompanyId::new(id.as_str()).ok()?),
        Value::Customer(customer) => (AccountingResource::Customers, customer.company_id.clone()),
        Value::Account(account) => (AccountingResource::Accounts, account.company_id.clone()),
        _ => return None,
    };
    Some(Subject { in_company: resource != AccountingResource::Companies, resource, company, id })
}

/// Reads pages for all shards of a task, and limits their number and memory.
pub(in crate::records::task) struct Pages {
    accounting: Accounting,
    payroll: Option<Payroll>,
    order_by: String,
    /// Limits concurrent requests for pages.
    slots: Arc<Semaphore>,
    room: Room,
    /// Rows that readings of lists of companies remember.
    pub(super) load: Load,
}

impl Pages {
    pub(in crate::records::task) fn new(
        accounting: Accounting,
        payroll: Option<Payroll>,
        order_by: String,
        slots: Arc<Semaphore>,
    ) -> Self {
        Self { accounting, payroll, order_by, slots, room: Room::new(ROOM_KIB), load: Load::default() }
    }

    /// Reads a page, once there is room for it.
    pub(super) async fn read(&self, asked: &Asked) -> Result<Arc<Fetched>, api::Error> {
        let mut room = self.room.reserve().await;
        let mut page = self.fetch(asked).await?;
        if let Some(room) = &mut room {
            self.room.settle(room, page.rows.iter().map(|row| row.raw.len()).sum());
        }
        page.room = room;
        Ok(Arc::new(fit(page, asked.sent_after)))
    }

    /// Reads a page of the companies that there are, for the directory. It takes no slot and no room: events wait for it.
    pub(in crate::records::task) async fn companies(
        &self,
        number: u32,
        size: u32,
        sent_after: i64,
    ) -> Result<Fetched, api::Error> {
        let (list, company, filter) = (List::Companies, None, None);
        let asked = Asked { list, company, number, size, filter, sent_after, priority: Priority::Repair };
        Ok(fit(self.ask(&asked).await?, sent_after))
    }

    /// Whether the provider answers at all: a request for one row of the same list, or of the companies, succeeds or fails with an error
    /// about that list only.
    pub(super) async fn answers(&self, asked: &Asked) -> bool {
        let is_answer = |read: Result<(), api::Error>| match read {
            Ok(()) => true,
            Err(error) => matches!(error.reach(), api::Reach::Record | api::Reach::Company),
        };
        let shortest = Asked { number: 1, size: 1, filter: None, ..asked.clone() };
        if is_answer(self.fetch(&shortest).await.map(drop)) {
            return true;
        }
        let companies = Asked { list: List::Companies, company: None, ..shortest };
        // Payroll has another API.
        asked.list != List::Payroll && is_answer(self.fetch(&companies).await.map(drop))
    }

    /// Requests a page, once there is a slot for it.
    async fn fetch(&self, asked: &Asked) -> Result<Fetched, api::Error> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        self.ask(asked).await
    }

    async fn ask(&self, asked: &Asked) -> Result<Fetched, api::Error> {
        let page = PageRequest { number: asked.number, size: asked.size };
        let ask = CallOptions::within(asked.priority, PAGE_TIMEOUT);
        match (asked.list, &asked.company) {
            (List::Customers, Some(company)) => {
                self.accounting.customers(company, page, &ask).await.map(fetched)
            }
            (List::Accounts, Some(company)) => {
                self.accounting.accounts(company, page, &ask).await.map(fetched)
            }
            (List::Payroll, _) => {
                let Some(payroll) = &self.payroll else {
                    // Not expected: while there is no grant, runs do not include the list.
                    let seen = Seen::unreadable(page.number, page.size, "no grant", 0);
                    return Ok(Fetched::without_rows(seen));
                };
                let (filter, order_by) = (asked.filter.as_deref(), Some(self.order_by.as_str()));
                payroll.companies(PayrollRequest { page, filter, order_by }, &ask).await.map(fetched)
            }
            (List::Companies | List::Customers | List::Accounts, _) => {
                self.accounting.companies(page, &ask).await.map(fetched)
            }
        }
    }
}

/// Shifts the times of a new page to `sent_after` or later. They can be earlier if `sent_after` comes from another machine whose clock
/// is ahead.
fn fit(mut page: Fetched, sent_after: i64) -> Fetched {
    let early = sent_after.saturating_sub(page.seen.answer.sent).max(0);
    page.seen.answer.sent = page.seen.answer.sent.saturating_add(early);
    page.seen.answer.answered = page.seen.answer.answered.saturating_add(early);
    page
}

/// Converts a page to its stored form and its rows.
fn fetched<T: Into<Value>>(page: Page<T>) -> Fetched {
    let Page { number, asked, rows, raw, total, times, base, widest } = page;
    let content = api::page_hash(&raw);
    let mut seen = Seen {
        number,
        asked,
        rows: Arc::default(),
        problem: None,
        base,
        widest,
        total: match total {
            Total::Reported(pagination) => Some(pagination.total_count),
            Total::Absent | Total::Unreadable => None,
        },
        content,
        answer: PageAnswer {
            sent: micros(times.sent),
            answered: micros(times.answered),
            date: times.date.map(micros),
            cached: times.age.is_some(),
        },
        ends: false,
    };
    let (mut fresh, mut kept) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for (place, (row, raw)) in rows.into_iter().zip(raw).enumerate() {
        let value: Value = row.into();
        let changed_at = changed_at(&value);
        let hash = |version: Option<&Version>| version.map_or(0, |one| row_hash(&one.to_string()) as u64);
        if let Some(row) = Fresh::new(&value, raw.clone()) {
            kept.push(Row { id: row.hash, version: hash(row.version.as_ref()), changed_at });
            fresh.push(row);
        } else if is_template(&value) {
            // Nothing to publish, but the row counts in the list.
            let (text, version) = (String::from_utf8_lossy(&raw), value.version().ok().flatten());
            let id = row_hash(&format!("{TEMPLATE}/{text}"));
            kept.push(Row { id, version: hash(version.as_ref()), changed_at });
        } else {
            let problem = format!("row {} of page {number} has no id", place + 1);
            seen.problem.get_or_insert(problem);
        }
    }
    seen.rows = kept.into();
    Fetched { rows: fresh, seen, room: None }
}

fn is_template(value: &Value) -> bool {
    // An empty id counts as missing.
    matches!(value, Value::Account(account)
        if value.record_id().is_none() && account.state.as_deref() == Some(TEMPLATE))
}

fn changed_at(value: &Value) -> Option<i64> {
    match value {
        Value::Company(company) => company.version_at,
        Value::Customer(customer) => customer.version_at,
        Value::Account(account) => account.version_at,
        Value::PayrollCompany(company) => company.last_update_at,
        _ => None,
    }
}

fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use model::{Account, Company, Customer, PayrollCompany};

    use super::*;

    fn reserve(room: &Room) -> Option<Taken> {
        room.reserve().now_or_never().flatten()
    }

    /// A page of one row.
    fn page<T: Into<Value>>(json: &'static str, read: impl Fn(&[u8]) -> Result<T, Error>) -> Page<T> {
        let raw = Bytes::from_static(json.as_bytes());
        let times = api::ReadTimes { sent: UNIX_EPOCH, answered: UNIX_EPOCH, date: None, age: None };
        let rows = vec![read(&raw).unwrap()];
        Page {
            number: 1,
            asked: 10,
            rows,
            raw: vec![raw],
            total: Total::Absent,
            times,
            base: Some(1),
            widest: 0,
        }
    }

    #[test]
    fn row_keeps_value_key_version_and_hash_of_its_page() {
        let company = CompanyId::new("c:1").unwrap();
        let account = r#"{"correlationId":"a/\u0062","sequenceVersion":7,"state":"Enabled","other":{"a":[1]},"other":2}"#;
        let customer = r#"{"name":"N","correlationId":"b","sequenceVersion":"0012","unknown":null}"#;
        let own = r#"{"correlationId":"c:1","sequenceVersion":"9","name":"C"}"#;
        let payroll = r#"{"companyCode":17,"lastUpdate":"2026-01-01T00:00:00","more":1.50}"#;
        let pages = [
            (
                fetched(page(account, |row| Account::from_json(row, &company))),
                Account::from_json(account.as_bytes(), &company).unwrap().into(),
            ),
            (
                fetched(page(customer, |row| Customer::from_json(row, &company))),
                Customer::from_json(customer.as_bytes(), &company).unwrap().into(),
            ),
            (fetched(page(own, Company::from_json)), Company::from_json(own.as_bytes()).unwrap().into()),
            (
                fetched(page(payroll, PayrollCompany::from_json)),
                PayrollCompany::from_json(payroll.as_bytes()).unwrap().into(),
            ),
        ];
        for (page, value) in pages {
            let value: Value = value;
            let [row] = &page.rows[..] else { panic!("one row: {page:?}") };

            assert_eq!(*row.value().unwrap(), value);
            assert_eq!(row.key, value.key().unwrap());
            assert_eq!(row.version, value.version().unwrap());
            assert_eq!(row.hash, page.seen.rows[0].id);
            assert_eq!(row.hash, row_hash(&value.record_id().unwrap()));
            let is_payroll = matches!(value, Value::PayrollCompany(_));
            assert_eq!(row.subject.is_none(), is_payroll, "only payroll cannot be read by id");
            if let Some(subject) = &row.subject {
                assert_eq!((subject.key(), subject.topic()), (row.key.clone(), value.topic()));
            }
        }
    }

    #[test]
    fn page_waits_for_room_for_a_typical_page() {
        let room = Room::new(2 * FIRST_PAGE_KIB);
        let (first, second) = (reserve(&room), reserve(&room));

        assert!(first.is_some() && second.is_some(), "there was room");
        assert!(reserve(&room).is_none(), "the room is used up");

        drop(first);
        assert!(reserve(&room).is_some(), "there is room again");
    }

    #[test]
    fn remembered_rows_are_counted_until_each_list_ends() {
        let task = Load::default();
        let (mut one, mut other) = (task.another(), task.another());

        one.set(MOST_REMEMBERED_ROWS - 1);
        one.set(MOST_REMEMBERED_ROWS / 2);
        other.set(MOST_REMEMBERED_ROWS / 2 - 1);
        assert!(!task.is_much());
        other.set(MOST_REMEMBERED_ROWS / 2);
        assert!(task.is_much());

        drop(one);
        assert!(!task.is_much());
        assert_eq!(task.all.load(Ordering::Relaxed), MOST_REMEMBERED_ROWS / 2);
    }

    #[test]
    fn smaller_page_returns_room_and_later_pages_take_less() {
        let room = Room::new(FIRST_PAGE_KIB);
        let mut first = reserve(&room).unwrap();
        assert!(reserve(&room).is_none());

        for _ in 0..50 {
            room.settle(&mut first, 10 << 10);
        }

        let others: Vec<Taken> = std::iter::from_fn(|| reserve(&room)).collect();
        assert!(others.len() > 20, "{} pages of 10 KiB in {FIRST_PAGE_KIB}", others.len());
    }

    #[test]
    fn larger_page_does_not_wait_and_blocks_further_pages() {
        let room = Room::new(3 * FIRST_PAGE_KIB);
        let (mut first, mut second) = (reserve(&room).unwrap(), reserve(&room).unwrap());

        room.settle(&mut first, (2 * FIRST_PAGE_KIB as usize) << 10);
        room.settle(&mut second, 1 << 40);

        assert_eq!(first.num_permits(), 2 * FIRST_PAGE_KIB as usize);
        assert_eq!(second.num_permits(), FIRST_PAGE_KIB as usize, "no more is free");
        assert!(reserve(&room).is_none());
        drop(second);
        assert!(reserve(&room).is_none(), "pages are expected to be large now");
        drop(first);
        assert!(reserve(&room).is_some());
    }
}
