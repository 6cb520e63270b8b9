//! Readings of lists that change meanwhile, compared with the provider's state.

mod copies;
mod properties;
mod providers;
mod rules;
mod simulation;
mod traps;

use std::collections::BTreeMap;

use model::{Certificate, RunId};

use super::{pass::interval, *};

const SECOND: i64 = 1_000_000;

/// Pseudorandom numbers from a seed.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.roll() % limit.max(1) as u64).unwrap()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn chance(&mut self, share: f64) -> bool {
        (self.roll() >> 11) as f64 / ((1_u64 << 53) as f64) < share
    }
}

/// A change of a list. Places are taken modulo the length.
#[derive(Debug, Clone, Copy)]
enum Change {
    Head,
    Tail,
    Insert(usize),
    Delete(usize),
    Move(usize, usize),
    Update(usize),
}

/// A simulated provider of one list, with its history.
#[derive(Debug, Clone)]
struct World {
    list: Vec<Row>,
    next_id: u128,
    /// Our clock.
    now: i64,
    /// How far the provider's clock is ahead of ours.
    ahead: i64,
    dates: bool,
    totals: bool,
    /// Most rows per page. Places still follow the requested size.
    clamp: usize,
    /// Rows of the longest page so far.
    widest: u32,
    /// Ids listed at the cut of each page, by the time of its request.
    truth: BTreeMap<i64, Vec<u128>>,
}

impl World {
    fn of(rows: usize) -> Self {
        let mut world = Self {
            list: Vec::new(),
            next_id: 0,
            now: 1_000 * SECOND,
            ahead: 0,
            dates: true,
            totals: false,
            clamp: usize::MAX,
            widest: 0,
            truth: BTreeMap::new(),
        };
        for _ in 0..rows {
            world.apply(Change::Tail);
        }
        world.now += 1_000 * SECOND;
        world
    }

    fn apply(&mut self, change: Change) {
        let (rows, now) = (self.list.len(), self.now + self.ahead);
        let mut insert = |place: usize| {
            self.next_id += 1;
            self.list.insert(place, Row { id: self.next_id, version: 1, changed_at: Some(now) });
        };
        match change {
            Change::Head => insert(0),
            Change::Tail => insert(rows),
            Change::Insert(place) => insert(place % (rows + 1)),
            _ if rows == 0 => {}
            Change::Delete(place) => {
                self.list.remove(place % rows);
            }
            Change::Move(from, to) => {
                let row = self.list.remove(from % rows);
                self.list.insert(to % rows, row);
            }
            Change::Update(place) => {
                let row = &mut self.list[place % rows];
                (row.version, row.changed_at) = (row.version + 1, Some(now));
            }
        }
    }

    /// Answers a page, with changes before and after its cut.
    fn page(&mut self, number: u32, size: u32, before: &[Change], behind: &[Change]) -> Seen {
        let sent = self.now;
        self.now += SECOND / 3;
        before.iter().for_each(|change| self.apply(*change));
        let (from, size_wanted) = ((number as usize - 1) * size as usize, size as usize);
        let rows: Vec<Row> = self.list.iter().skip(from).take(size_wanted.min(self.clamp)).copied().collect();
        self.widest = self.widest.max(rows.len() as u32);
        self.truth.insert(sent, self.list.iter().map(|row| row.id).collect());
        let total = self.totals.then_some(self.list.len() as u64);
        self.now += SECOND / 3;
        behind.iter().for_each(|change| self.apply(*change));
        let date = self.dates.then(|| (self.now + self.ahead) / SECOND * SECOND);
        self.now += SECOND / 3;
        let answered = self.now;
        self.now += 1;
        let content = rows.iter().fold(0, |hash: u128, row| {
            hash.wrapping_mul(1_000_003).wrapping_add(row.id << 20 | u128::from(row.version))
        });
        Seen {
            number,
            asked: size,
            rows: rows.into(),
            problem: None,
            base: Some(1),
            widest: self.widest,
            total,
            content,
            answer: PageAnswer { sent, answered, date, cached: false },
            ends: false,
        }
    }

    /// Ids listed at the cut of a verdict.
    fn at_cut(&self, marks: &[Seen], verdict: &Certificate, skew: i64) -> &[u128] {
        let cut = (verdict.counts.cut_after.unwrap(), verdict.counts.cut_before.unwrap());
        let page = marks.iter().find(|seen| interval(seen, skew) == cut).expect("the cut is a page's");
        &self.truth[&page.answer.sent]
    }

    /// Number of ids listed at the cut of a certificate and shown by no page.
    fn missed(&self, marks: &[Seen], reading: &Reading) -> usize {
        let verdict = reading.verdict().unwrap();
        let listed = self.at_cut(marks, &verdict, reading.settings.clock_skew);
        listed.iter().filter(|id| !reading.has_shown(**id)).count()
    }
}

impl Reading {
    /// The certificate, once the reading is over.
    fn verdict(&self) -> Option<Certificate> {
        self.complete(Certificate::of_shard("c", RunId::new("r").unwrap(), "l", 0, 0))
    }
}

fn settings(page_size: u32, most_passes: u32) -> Settings {
    Settings { page_size, most_passes, filter: None, clock_skew: 300 * SECOND }
}

/// Reads a list to its verdict. `changes` happen between pages, and before and after the cut of each; there is a `pause` between pages.
fn read(
    world: &mut World,
    settings: Settings,
    pause: i64,
    mut changes: impl FnMut() -> [Vec<Change>; 3],
) -> (Reading, Vec<Seen>) {
    let (mut reading, mut marks) = (Reading::new(settings), Vec::new());
    while let ReadingStep::Page { number, size, sent_after, .. } = reading.want() {
        assert!(sent_after <= world.now);
        let [between, before, behind] = changes();
        // In the middle of the pause: a change close to a cut cannot be distinguished from it.
        world.now += pause / 2;
        between.into_iter().for_each(|change| world.apply(change));
        world.now += pause / 2;
        let seen = world.page(number, size, &before, &behind);
        reading.look(&seen).unwrap();
        marks.push(seen);
    }
    (reading, marks)
}

fn nothing() -> [Vec<Change>; 3] {
    Default::default()
}
