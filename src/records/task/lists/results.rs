//! Results of requests: pages, known records, reads by id, and the end of a list.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;

use base::{failpoint, metrics, retry::Retry};
use model::{DesiredRunState, Key, List, Origin, RunKind, RunProgress, ShardState};
use provider::api;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    super::state,
    Active, Came, Cursor, Failed, Found, Got, ListTotals, Lists, Part, PartContent, Probe, Stage,
    UNLISTED_BRAKE_COUNT, UNLISTED_BRAKE_DIVISOR, UnlistedReads, What,
    job::{self, Job, answer},
    pages::Fetched,
    rows,
    spanning::{ListRole, Relayed, RelayedPage},
};
use crate::{
    config::connector::Rows,
    plugin::Failure,
    records::{schedule::Subject, task::taking::unreadable},
};

/// Number of attempts that gives the longest backoff.
const LONG: u32 = 30;

impl Lists {
    /// Counts records that the scheduler gave up: a list whose rows wait for one of them is not published completely.
    pub(in crate::records::task) fn given_up(&mut self, subjects: &[Subject]) {
        for subject in subjects {
            for job in self.jobs.values_mut() {
                job.loses(subject);
            }
        }
    }

    /// Counts a record that Kafka rejected: a list that has shown it, or whose rows wait for it, is not published completely.
    pub(in crate::records::task) fn refused(&mut self, subject: Option<&Subject>, origin: Origin) {
        for job in self.jobs.values_mut() {
            job.refused(subject, origin);
        }
    }

    /// Takes the result of a request.
    ///
    /// # Errors
    /// The local fence database failed.
    pub(in crate::records::task) fn got(&mut self, got: Got, now: i64) -> Result<(), Failure> {
        match got {
            Got::Page(number, _, Ok(Came { page, thin })) => {
                self.hold.count = 0;
                self.count_requests(number, 1);
                self.page(number, page, thin, now);
            }
            Got::Page(number, page, Err(failed)) => {
                self.count_requests(number, 1);
                self.failed(number, page, &failed, now);
            }
            Got::Known(number, found) => self.known(number, found.map_err(unreadable)?, now),
            Got::Record(number, subject, tries, read) => {
                self.count_requests(number, 1);
                self.record(number, subject, tries, read, now);
            }
            Got::Relayed(number, relayed, next) => self.relayed(number, relayed, next, now),
            Got::Reported(number, reports, Some(report)) => {
                let Some(job) = self.jobs.get_mut(&number) else { return Ok(()) };
                job.list()
                    .into_iter()
                    .for_each(|list| failpoint::reach(format_args!("lists.{list}.reported")));
                if let Some(leader) = job.role.leader() {
                    leader.reported(reports, report);
                    if leader.is_void() {
                        self.follow_void(number, now);
                    }
                }
                self.pause_with_followers(number, now);
                self.write_due_marks();
            }
            // All followers have ended.
            Got::Reported(_, _, None) => {}
            Got::Topic(run, list, read) => self.topic_read(run, list, read, now),
            Got::Counted(number, count) => {
                let count = count.map_err(unreadable)?;
                if let Some(job) = self.jobs.get_mut(&number) {
                    job.proof.sample.iter_mut().for_each(|sample| sample.counted(count));
                    job.advance();
                }
            }
        }
        Ok(())
    }

    /// Counts requests to the provider in the progress of the run, which is written with its next part.
    fn count_requests(&mut self, number: u64, count: u64) {
        let run = self.jobs.get(&number).map(|job| &job.run.id);
        if let Some(active) = run.and_then(|run| self.runs.get_mut(run)) {
            active.progress.work.requests += count;
        }
    }

    fn page(&mut self, number: u64, fetched: Arc<Fetched>, probed: Option<bool>, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Some(collection) = job.collection().cloned() else { return };
        if let Some(thin) = probed {
            let probe = Probe { thin };
            self.state.probes.insert(collection.list, probe);
            let kept = (state::probe(self.shard, collection.list), Some(state::json(&probe)));
            self.parts.ready.push_back(Part::of_run(&job.run.id, vec![kept]));
        }
        metrics::page_read(collection.list.name(), "read");
        let is_verify = job.run.kind == RunKind::Verify;
        let shown = if is_verify { job.shown_of(&fetched) } else { HashSet::new() };
        if !job.look(&fetched) {
            // It was requested before the answer to the page before it, because a clock was set back.
            job.requests.due = now.saturating_add(self.shared.wait(0));
            return;
        }
        self.take_page(number, fetched, shown);
    }

    /// Voids a list because of a version regression in a record of a follower. The mark is kept here too: the follower may end first and
    /// remove its own.
    fn follow_void(&mut self, number: u64, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let is_new = job.proof.void_since.is_none() && !job.role.has_verdict();
        let Some(collection) = job.collection().filter(|_| is_new).cloned() else { return };
        job.proof.void_since = Some(now);
        if job.run.kind != RunKind::Verify && self.state.void.insert(collection.clone()) {
            let mark = (collection.void(self.shard), Some(Bytes::from_static(b"{}")));
            self.put(number, PartContent::State(vec![mark]), 512);
        }
    }

    /// Pauses the run in this shard while all followers of a list wait for an operator, and continues it afterwards.
    fn pause_with_followers(&mut self, number: u64, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let run = job.run.id.clone();
        let Some(leader) = job.role.leader() else { return };
        let is_braked = leader.is_braked();
        if std::mem::replace(&mut leader.is_paused, is_braked) == is_braked {
            return;
        }
        let waits = |job: &Job| {
            matches!(job.stage, Stage::Braked(_))
                || matches!(&job.role, ListRole::Leader(leader) if leader.is_paused)
        };
        let others_wait = self.jobs.values().any(|job| job.run.id == run && waits(job));
        let Some(active) = self.runs.get_mut(&run) else { return };
        let progress = &mut active.progress;
        match progress.state {
            ShardState::Running if is_braked => {
                (progress.state, progress.braked_at) = (ShardState::Paused, Some(now));
                progress.reason = Some("the other shards wait for an operator".to_owned());
            }
            ShardState::Paused if !others_wait && active.wanted == DesiredRunState::Running => {
                (progress.state, progress.reason) = (ShardState::Running, None);
            }
            _ => return,
        }
        self.parts.ready.push_back(Part::standing(&run));
    }

    /// Queues a page that the reading of its list has taken, and passes it on to followers.
    fn take_page(&mut self, number: u64, fetched: Arc<Fetched>, shown: HashSet<Key>) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Some(collection) = job.collection().cloned() else { return };
        job.written.marks += 1;
        let tasks = collection.company.is_none().then_some(self.shared.lists.tasks);
        let mark = (collection.page(self.shard, job.written.marks), state::mark(&fetched.seen, tasks));
        let rows = self.shared.source.snapshot.rows;
        let is_thin = collection.list.resource().is_some()
            && match rows {
                Rows::Thin => true,
                Rows::Full => false,
                // Rows that could not be compared may show less than their records.
                Rows::Probe => self.state.probes.get(&collection.list).is_none_or(|probe| probe.thin),
            };
        let page = Arc::new(RelayedPage { number: job.written.marks, fetched, is_thin, shown });
        job.role.leader().into_iter().for_each(|leader| leader.relay(&page));
        failpoint::reach(format_args!("lists.{}.relayed", collection.list));
        let bytes = page.fetched.rows.iter().map(|row| 512 + row.raw.len()).sum::<usize>() + mark.1.len();
        self.put(number, PartContent::Page(page, Some(mark)), bytes);
    }

    /// Takes what the leader of a list passes on.
    fn relayed(&mut self, number: u64, relayed: UnboundedReceiver<Relayed>, next: Option<Relayed>, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Some(follower) = job.role.follower() else { return };
        match next {
            // The leader has stopped, and this shard is about to.
            None => {}
            Some(Relayed::End(end)) => job.follow_to_end(&end, now),
            Some(Relayed::Page(page)) => {
                follower.note_page(page.number, relayed);
                job.requests.answered = page.fetched.seen.answer.answered;
                job.advance();
                let (shared, shard) = (&self.shared, self.shard);
                let own = page.fetched.rows.iter().filter(|row| shared.shard_of(&row.key) == shard);
                match own.map(|row| 512 + row.raw.len()).sum() {
                    0 => job.report(false),
                    bytes => self.put(number, PartContent::Page(page, None), bytes),
                }
            }
        }
    }

    fn failed(&mut self, number: u64, page: u32, failed: &Failed, now: i64) {
        let Failed { error, is_alone } = failed;
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let list = job.collection().map_or("", |collection| collection.list.name());
        metrics::page_read(list, "failed");
        let why = error.without_excerpt();
        job.requests.problem = Some(format!("page {page} of {list}: {why}"));
        let named = error.retry().named_micros();
        let reach = if *is_alone { api::Reach::Record } else { error.reach() };
        match (reach, error.retry()) {
            // A rate limit passes without a limit of attempts.
            (api::Reach::Record | api::Reach::Company, _) if error.is_rate() => {
                job.advance();
                job.requests.due =
                    now.saturating_add(named.unwrap_or_else(|| self.shared.wait(job.requests.tries)));
            }
            // A final refusal concerns this list. Whether it concerns events too, reads by id find out.
            (api::Reach::Record | api::Reach::Company, _) | (_, Retry::Never) => {
                let grown = self.shared.wait(job.requests.tries);
                let seen = job.fails(page, error, &why, named.unwrap_or(grown), now);
                if let Some(seen) = seen {
                    // The mark of a void pass is stored like a page.
                    self.take_page(number, Arc::new(Fetched::without_rows(seen)), HashSet::new());
                }
            }
            (api::Reach::Grant | api::Reach::Everything, _) => {
                job.advance();
                // Payroll is another API with another grant, so other lists do not wait for it.
                let is_payroll = job.list() == Some(List::Payroll);
                let (connector, shard) = (&*self.shared.task.connector, self.shard);
                if is_payroll {
                    tracing::warn!(connector, shard, list, why, "payroll waits");
                    job.requests.due = now.saturating_add(named.unwrap_or_else(|| self.shared.wait(LONG)));
                } else {
                    tracing::warn!(connector, shard, list, why, "lists wait");
                    self.hold.why = Some(why);
                    self.hold(named, now);
                }
            }
        }
    }

    /// Pauses all lists, with a growing backoff.
    fn hold(&mut self, named: Option<i64>, now: i64) {
        if now >= self.hold.until {
            self.hold.count = self.hold.count.saturating_add(1);
            let grown = self.shared.wait(self.hold.count);
            self.hold.until = now.saturating_add(named.unwrap_or(grown).max(1));
        }
    }

    fn known(&mut self, number: u64, found: Found, now: i64) {
        let Found { records: found, next, entries } = found;
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let listed = job.proof.reading.as_ref().and_then(|reading| reading.listed()).unwrap_or(0);
        // A list that spans companies has records of other shards too; only the shard's own can be unlisted here.
        let own = usize::try_from(entries).unwrap_or(usize::MAX);
        let listed = usize::try_from(listed).unwrap_or(0).min(own);
        let count = found.len();
        let is_list = matches!(job.what, What::List(_));
        let run = job.run.id.clone();
        let is_payroll = matches!(&job.what, What::List(collection) if collection.list.resource().is_none());
        let is_verify = job.run.kind == RunKind::Verify;
        let Cursor { vanished, unreadable, .. } = job.cursor;
        let mut reads =
            UnlistedReads { vanished_count: vanished, unreadable, next, ..UnlistedReads::default() };
        if is_payroll {
            // They cannot be read by id, so the certificate names them.
            for (_, id) in found {
                reads.gone(&id);
            }
        } else {
            reads.waiting = found.into_iter().map(|(company, id)| (company, id, 1)).collect();
            if let Some(comparing) = &job.comparing {
                comparing.ask(&mut reads);
            }
        }
        let is_too_much =
            is_list && !is_verify && count > UNLISTED_BRAKE_COUNT.max(listed / UNLISTED_BRAKE_DIVISOR);
        let is_allowed =
            |active: &Active| is_released(&active.progress, active.ordered_at, job.requests.answered);
        let is_allowed = self.runs.get(&run).is_some_and(is_allowed);
        if !is_too_much || is_allowed {
            job.stage = Stage::Unlisted(reads);
            return;
        }
        let why = format!(
            "{count} known records are not in the list of {}: more than a list loses by itself; look at it, then resume or stop the run",
            job.collection().map(|one| one.list.name()).unwrap_or_default()
        );
        tracing::error!(connector = &*self.shared.task.connector, shard = self.shard, run = %run, why);
        metrics::snapshot_braked();
        job.stage = Stage::Braked(now);
        job.report(false);
        if let Some(active) = self.runs.get_mut(&run) {
            active.progress.braked_at = Some(now);
            (active.progress.state, active.progress.reason) = (ShardState::Paused, Some(why));
        }
        self.parts.ready.push_back(Part::standing(&run));
    }

    fn record(&mut self, number: u64, subject: Subject, tries: u32, read: Result<Bytes, Failed>, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Stage::Unlisted(reads) = &mut job.stage else { return };
        if let Err(Failed { error, is_alone }) = &read {
            let reach = if *is_alone { api::Reach::Record } else { error.reach() };
            match (reach, error.retry()) {
                (api::Reach::Record | api::Reach::Company, _) | (_, Retry::Never) if !error.is_rate() => {}
                _ => {
                    reads.open = reads.open.saturating_sub(1);
                    reads.waiting.push_back((subject.company, subject.id, tries));
                    self.hold.why = Some(error.to_string());
                    self.hold(error.retry().named_micros(), now);
                    return;
                }
            }
        }
        let answer = answer(read.as_ref().map(Bytes::clone).map_err(|failed| &failed.error), tries);
        if answer == job::Answer::Again {
            job.requests.due = now.saturating_add(self.shared.wait(tries));
        }
        self.hold.count = 0;
        if job.comparing.is_some() {
            self.looked_up(number, subject, tries, answer);
            return;
        }
        reads.count(subject.company.clone(), subject.id.clone(), tries, &answer);
        if let job::Answer::There(json) = answer
            && let Some(entry) = rows::entry_of_record(&job.run, &subject, &json, None)
        {
            self.put(number, PartContent::Record(Box::new(entry)), json.len() + 512);
        }
    }

    /// Ends a list of which all is read and committed: queues its certificate and removes its pages.
    pub(super) fn end(&mut self, number: u64, now: i64) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let is_verify = job.run.kind == RunKind::Verify;
        let is_stream_verified = self.shared.lists.stream.borrow().unwrap_or_default();
        let certificate = job.certificate(&self.shared.task.connector, self.shard, is_stream_verified, now);
        let (vanished, unreadable) = match &job.stage {
            Stage::Unlisted(reads) => (reads.vanished_count, reads.unreadable),
            _ => (0, 0),
        };
        job.stage = Stage::Ending;
        let mut kept: Vec<_> = job.kept(self.shard).into_iter().map(|key| (key, None)).collect();
        if let Some(collection) = job.collection().filter(|collection| self.state.void.remove(collection)) {
            kept.push((collection.void(self.shard), None));
        }
        // A verification starts from the first page again, so it needs no mark.
        let over = job.collection().filter(|_| !is_verify).map(|collection| collection.over(self.shard));
        kept.extend(over.map(|key| (key, Some(Bytes::from_static(b"{}")))));
        if let Some(again) = job.again() {
            // Known records have no certificate: the cursor says that all were read, until the run ends.
            let over = Cursor { is_over: true, ..job.cursor.clone() };
            kept = vec![(state::cursor(self.shard, &again), Some(state::json(&over)))];
        }
        let is_proved = certificate.as_ref().map_or(unreadable == 0, |one| one.certified);
        // A sample proves nothing about the list.
        let certified = u64::from(is_proved && job.proof.sample.is_none());
        let unread = job.proof.sample.as_ref().map_or(0, |sample| sample.unread);
        // If the run also reads the known records of this list again, those reads count the vanished ones, each once.
        let is_read_again =
            job.list().and_then(List::resource).is_some_and(|one| job.run.known.contains(&one));
        let vanished = if is_read_again { 0 } else { vanished };
        let totals = ListTotals { certified, vanished, unread, offer: job.proof.offer };
        // A reading of changes neither proves the list nor speaks against its last certificate, so it leaves that in place.
        let is_of_changes = job.proof.reading.as_ref().is_some_and(|reading| reading.is_of_changes());
        if let (Some(certificate), Some(collection)) = (&certificate, job.collection()) {
            let (list, reason) = (collection.list.name(), certificate.reason.as_deref().unwrap_or_default());
            let connector = &*self.shared.task.connector;
            if is_of_changes {
                tracing::info!(connector, shard = self.shard, list, reason, "changes of a list were read");
            } else {
                metrics::list_ended(list, certificate.method.name());
            }
            if !certificate.certified && !is_of_changes {
                let company = certificate.scope.company_id.as_ref().map(tracing::field::display);
                tracing::warn!(connector, shard = self.shard, list, company, reason, "a list is uncertified");
            }
        }
        // A verification publishes nothing, so it certifies nothing.
        let certificate = certificate.filter(|_| !is_verify && !is_of_changes).map(Box::new);
        self.put(number, PartContent::End { certificate, state: kept, totals }, 512);
    }
}

/// Whether an operator resumed the run after a list of it was braked and after the last page of this list. An earlier order was about
/// something else.
fn is_released(progress: &RunProgress, ordered_at: i64, answered: i64) -> bool {
    ordered_at > answered && progress.braked_at.is_some_and(|since| ordered_at > since)
}

#[cfg(test)]
mod tests {
    use model::Run;

    use super::*;

    #[test]
    fn only_a_later_order_releases_the_brake() {
        let run: Run = serde_json::from_value(serde_json::json!({
            "connector": "records", "id": "r", "lists": ["customers"], "requestedBy": "test", "requestedAt": 1,
        }))
        .unwrap();
        for (braked_at, answered, ordered_at, advance) in [
            // The run was paused and resumed before a list was braked.
            (None, 5, 9, false),
            (Some(7), 5, 0, false),
            (Some(7), 5, 6, false),
            (Some(7), 5, 7, false),
            (Some(7), 5, 8, true),
            // The list was read again since.
            (Some(7), 8, 8, false),
        ] {
            let progress = RunProgress { braked_at, ..RunProgress::new(&run, 0, ShardState::Paused, 1) };

            let found = is_released(&progress, ordered_at, answered);

            assert_eq!(found, advance, "{braked_at:?} {answered} {ordered_at}");
        }
    }
}
