use bytes::Bytes;
use model::{CompanyId, Origin, RecordId};

use super::{
    super::spanning::{RelayedPage, SpanningLists},
    *,
};
use crate::records::proof::{PageAnswer, Row, Settings};

fn run() -> Arc<Run> {
    let run = serde_json::json!({
        "connector": "records", "id": "r", "kind": "repair", "lists": ["customers"], "known": ["charges"],
        "requestedBy": "test", "requestedAt": 5,
    });
    Arc::new(serde_json::from_value(run).unwrap())
}

fn list() -> Job {
    list_of(List::Customers)
}

fn list_of(list: List) -> Job {
    let run = run();
    let company = CompanyId::new("c").ok().filter(|_| !list.spans_companies());
    let collection = Collection { run: run.id.clone(), requested_at: 5, list, company };
    let settings = Settings { page_size: 2, most_passes: 4, filter: None, clock_skew: 0 };
    let mut job = Job { stage: Stage::Pages, ..Job::new(run, What::List(collection), 7) };
    job.set_reading(Reading::new(settings));
    job
}

fn mark(number: u64) -> PageMark {
    PageMark { number, key: Key::state("page", &["1"]), value: Bytes::new(), rows: 2 }
}

fn page(asked: &Asked, ids: &[u128]) -> Fetched {
    let rows = ids.iter().map(|id| Row { id: *id, version: 1, changed_at: None }).collect();
    let sent = asked.sent_after + 1;
    let seen = Seen {
        rows,
        problem: None,
        content: u128::from(asked.number),
        answer: PageAnswer { sent, answered: sent + 1, ..PageAnswer::default() },
        ..Seen::unreadable(asked.number, asked.size, "", sent)
    };
    Fetched::without_rows(seen)
}

/// A list of one row that was read to its end, with this number of published records.
fn proved(list: List, published: u64) -> Job {
    let mut job = list_of(list);
    for ids in [&[1][..], &[], &[1]] {
        let asked = job.wants_page(10).unwrap();
        job.stage = Stage::Asking;
        assert!(job.look(&page(&asked, ids)));
    }
    job.count(published, 0);
    job
}

#[test]
fn a_list_of_which_kafka_refuses_a_row_is_not_certified_also_where_rows_have_no_read_by_id() {
    let (company, id) = (CompanyId::new("c").unwrap(), RecordId::new("1").unwrap());
    let customer = Subject { resource: AccountingResource::Customers, company, id, in_company: true };
    let other = Subject { company: CompanyId::new("d").unwrap(), ..customer.clone() };
    for (list, subject, origin, is_hit) in [
        (List::Payroll, None, Origin::Snapshot, true),
        (List::Payroll, None, Origin::Repair, true),
        (List::Customers, None, Origin::Snapshot, false),
        (List::Customers, Some(&customer), Origin::Snapshot, true),
        // An event brought it, and will bring the next.
        (List::Customers, Some(&customer), Origin::Enrichment, false),
        (List::Customers, Some(&other), Origin::Snapshot, false),
        (List::Payroll, Some(&customer), Origin::Snapshot, false),
    ] {
        let mut job = proved(list, 2);

        job.refused(subject, origin);

        let certificate = job.certificate("records", 3, true, 20).unwrap();
        let expected = if is_hit { (false, 1) } else { (true, 2) };
        let told = (certificate.certified, certificate.records.published);
        assert_eq!(told, expected, "{list} {subject:?} {origin:?}");
        assert_eq!(certificate.reason.is_some(), is_hit);
    }
}

#[test]
fn only_a_later_order_releases_a_braked_list() {
    let mut job = Job { stage: Stage::Braked(7), ..list() };

    assert!(!job.release(6) && !job.release(7) && matches!(job.stage, Stage::Braked(7)));
    assert!(job.release(8) && matches!(job.stage, Stage::Scan));
    assert!(!job.release(9), "it is not braked");
}

#[test]
fn the_next_page_is_asked_for_once_the_one_before_is_committed() {
    let mut job = list();
    let first = job.wants_page(10).unwrap();
    job.stage = Stage::Asking;
    assert!(job.look(&page(&first, &[1, 2])));

    job.written.unwritten = 1;
    assert_eq!(job.wants_page(10), None, "a crash now costs one page");

    job.written.unwritten = 0;
    assert_eq!(job.wants_page(10).map(|asked| asked.number), Some(2));
}

#[test]
fn pages_whose_records_are_still_read_do_not_stop_the_next_page() {
    let mut job = list();
    let first = job.wants_page(10).unwrap();
    job.stage = Stage::Asking;
    assert!(job.look(&page(&first, &[1, 2])));

    job.written.unmarked = (1..MOST_UNMARKED as u64).map(mark).collect();
    assert_eq!(job.wants_page(10).map(|asked| asked.number), Some(2));
    assert!(!job.is_settled());
    job.written.unmarked.push(mark(MOST_UNMARKED as u64));
    assert_eq!(job.wants_page(10), None);
}

#[test]
fn a_list_whose_last_page_has_no_mark_is_void_when_the_provider_goes_back() {
    let mut job = list();
    job.stage = Stage::Scan;
    assert_eq!(job.note_regression(0), None, "all its pages are marked");

    job.written.unmarked = vec![mark(1)];
    assert_eq!(job.note_regression(0).as_ref(), job.collection());
}

#[test]
fn a_list_whose_provider_went_back_is_read_to_its_end_and_not_certified() {
    let mut job = list();
    for (number, ids) in [&[1][..], &[], &[1]].into_iter().enumerate() {
        let asked = job.wants_page(10).unwrap();
        job.stage = Stage::Asking;
        if number == 1 {
            assert_eq!(job.note_regression(0).as_ref(), job.collection());
        }
        assert!(job.look(&page(&asked, ids)));
    }

    assert!(matches!(job.stage, Stage::Scan) && !job.is_proved());
    let certificate = job.certificate("records", 3, true, 20).unwrap();
    assert_eq!((certificate.certified, certificate.reason.as_deref()), (false, Some(REGRESSED)));
}

fn not_found() -> api::Error {
    api::Error {
        endpoint: api::Endpoint { method: "GET", path: "accounting/api/customers".into() },
        status: Some(404),
        cause: api::Cause::NotFound { by: api::AnsweredBy::Gateway },
        excerpt: None,
        acted: api::Acted::No,
        in_company: true,
    }
}

#[test]
fn a_list_that_is_not_offered_is_absent_where_its_known_records_are_read_instead_and_else_only_unproved() {
    use AccountingResource::{Accounts, Charges};
    for (list, known, is_absent) in [
        (List::Accounts, Accounts, true),
        (List::Accounts, Charges, false),
        (List::Customers, Accounts, false),
        (List::Payroll, Accounts, false),
    ] {
        let run = Run { known: [known].into(), ..(*run()).clone() };
        let mut job = Job { run: Arc::new(run), ..list_of(list) };

        for at in 0..TRIES {
            job.fails(1, &not_found(), "why", 1, i64::from(at));
        }

        let reading = job.proof.reading.as_ref().unwrap();
        assert!(reading.is_over() && !reading.is_proved());
        assert_eq!(job.proof.offer.is_absent, is_absent, "{list} {known}");
    }
}

#[test]
fn only_an_unknown_path_of_accounts_is_not_offered() {
    for (list, by, is_unoffered) in [
        (List::Accounts, api::AnsweredBy::Gateway, true),
        (List::Accounts, api::AnsweredBy::Unknown, true),
        (List::Accounts, api::AnsweredBy::Api, false),
        (List::Customers, api::AnsweredBy::Gateway, false),
    ] {
        let error = api::Error { cause: api::Cause::NotFound { by }, ..not_found() };
        let mut job = list_of(list);

        for at in 0..TRIES {
            job.fails(1, &error, "why", 1, i64::from(at));
        }

        assert_eq!(job.proof.offer.is_unoffered, is_unoffered, "{list} {by:?}");
    }
}

#[test]
fn a_refusal_is_final_only_before_the_first_page() {
    let error = not_found();
    for (marks, is_over) in [(0, true), (1, false)] {
        let mut job = list();
        job.written.marks = marks;
        let kept: Vec<Seen> =
            (0..TRIES).filter_map(|at| job.fails(1, &error, "why", 1, i64::from(at))).collect();

        assert_eq!(job.proof.reading.as_ref().unwrap().is_over(), is_over, "{marks}");
        assert_eq!(kept.len(), usize::from(!is_over), "that the pass is void is kept");
    }
}

#[test]
fn what_became_of_rows_is_kept_once_it_has_changed_and_forgotten_with_the_pages() {
    let mut job = list();
    job.written.marks = 1;
    let collection = job.collection().unwrap().clone();
    let [counts, page] = [0, 1].map(|n| collection.page(3, n));
    job.count(0, 0);
    assert_eq!((job.take_counts(3), job.kept(3)), (None, vec![page.clone()]));

    job.count(2, 1);
    let (key, value) = job.take_counts(3).unwrap();

    assert_eq!((&key, &value[..]), (&counts, &br#"{"published":2,"unusable":1}"#[..]));
    assert_eq!((job.take_counts(3), job.kept(3)), (None, vec![counts, page]));
    job.count(1, 0);
    assert!(job.take_counts(3).is_some());
}

#[test]
fn what_is_counted_is_to_be_kept_at_once_and_not_any_more_once_the_list_ends() {
    let mut job = list();
    assert!(!job.has_new_counts());
    job.count(0, 1);
    assert!(job.has_new_counts() && job.take_counts(3).is_some() && !job.has_new_counts());

    // Its keys are removed with its certificate: nothing comes after them.
    job.stage = Stage::Ending;
    job.count(0, 1);
    assert!(!job.has_new_counts() && job.take_counts(3).is_none());

    // There is no page to keep them beside.
    let mut known = Job::new(run(), What::Known(AccountingResource::Charges), 7);
    known.count(1, 0);
    assert!(!known.has_new_counts() && known.take_counts(3).is_none());
}

#[test]
fn known_records_are_read_part_by_part_and_it_is_kept_how_far() {
    let mut job = Job::new(run(), What::Known(AccountingResource::Charges), 7);
    assert_eq!(job.again(), Some((job.run.id.clone(), 5, AccountingResource::Charges)));
    let next = Some("accounting.charges/c/1".to_owned());
    job.stage =
        Stage::Unlisted(UnlistedReads { next: next.clone(), unreadable: 3, ..UnlistedReads::default() });

    let cursor = job.take_cursor().unwrap();

    assert_eq!(cursor, Cursor { after: next, vanished: 0, unreadable: 3, is_over: false });
    assert!(matches!(job.stage, Stage::Scan) && job.cursor == cursor);
    // The last part has nothing behind it.
    job.stage = Stage::Unlisted(UnlistedReads::default());
    assert_eq!(job.take_cursor(), None);
}

#[test]
fn a_follower_settles_no_page_while_its_counts_are_on_their_way() {
    let lists = SpanningLists::new(vec![0, 1]);
    let mut job = list_of(List::Payroll);
    let [mut leader, follower] = [0, 1].map(|shard| lists.take_role(job.collection().unwrap(), shard));
    job.role = follower;
    let fetched = Arc::new(Fetched::without_rows(Seen::unreadable(1, 10, "", 0)));
    let page = Arc::new(RelayedPage { number: 1, fetched, is_thin: false, shown: HashSet::new() });
    leader.leader().unwrap().relay(&page);
    let follower = job.role.follower().unwrap();
    follower.report_ready(false);
    let relayed = follower.take_relayed().unwrap();
    follower.note_page(1, relayed);
    let mut last = None;
    let mut may_mark = |job: &mut Job| {
        job.report(false);
        let leader_of = leader.leader().unwrap();
        let mut reports = leader_of.take_reports().unwrap();
        let Some(first) = reports.try_recv().ok().or(last) else { panic!("no report") };
        last = Some(first);
        leader_of.reported(reports, first);
        leader.may_mark(1)
    };

    job.count(0, 1);
    assert!(!may_mark(&mut job), "the count is not written");
    assert!(job.take_counts(1).is_some());
    assert!(!may_mark(&mut job), "the batch with the count is not committed");
    job.rows.is_writing_counts = false;
    assert!(may_mark(&mut job));
}
