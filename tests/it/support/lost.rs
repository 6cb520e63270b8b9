//! Time in which a busy machine let nothing run: what does not happen then is nobody's fault.
//!
//! A thread looks at the clock every few milliseconds; a look that comes late says that the machine gave its time to others. What is
//! promised within a time is held to that time without what was lost in it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How often it is looked, and by how much a look may be late.
const TICK: Duration = Duration::from_millis(10);
const LATE: Duration = Duration::from_millis(20);
/// Spans that are remembered: no test lasts longer.
const MOST: usize = 100_000;

static BOOK: Mutex<Book> = Mutex::new(Book { spans: VecDeque::new(), due: None });
static WATCHING: Once = Once::new();

struct Book {
    spans: VecDeque<(Instant, Instant)>,
    /// When the next look is due: one that has not come yet may be late already.
    due: Option<Instant>,
}

/// Looks out for it from now on.
pub(crate) fn watch() {
    WATCHING.call_once(|| {
        // Without it nothing is lost, which excuses nobody.
        let _unwatched = thread::Builder::new().name("lost".to_owned()).spawn(|| {
            loop {
                book().due = Some(Instant::now() + TICK);
                thread::sleep(TICK);
                let mut book = book();
                let span = book.due.take().and_then(|due| late(due, Instant::now()));
                if book.spans.len() == MOST {
                    book.spans.pop_front();
                }
                book.spans.extend(span);
            }
        });
    });
}

fn book() -> MutexGuard<'static, Book> {
    BOOK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn late(due: Instant, now: Instant) -> Option<(Instant, Instant)> {
    (now.saturating_duration_since(due) > LATE).then_some((due, now))
}

/// What was lost between two moments.
pub(crate) fn between(from: Instant, to: Instant) -> Duration {
    let book = book();
    let last = book.due.and_then(|due| late(due, to));
    let spans = last.iter().chain(book.spans.iter().rev().take_while(|(_, end)| *end > from));
    spans.map(|(begin, end)| (*end).min(to).saturating_duration_since((*begin).max(from))).sum()
}

/// How long something has taken that began then, without what was lost meanwhile.
pub(crate) fn fair(began: Instant) -> Duration {
    let now = Instant::now();
    now.saturating_duration_since(began).saturating_sub(between(began, now))
}
