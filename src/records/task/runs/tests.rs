use model::{CompanyId, DesiredRunState, GapCause, ListCounts, RunWork, ShardState, ShardTimes};

use super::{
    changes::{DAY, last_whole, payroll_filter},
    *,
};
use crate::{config::Providers, plugin::samples::record_config};

const CUSTOMERS: Target = Target::Accounting(AccountingResource::Customers);
const CHARGES: Target = Target::Accounting(AccountingResource::Charges);

fn source() -> RecordSource {
    RecordSource::parse("records", &record_config(), &Providers::new([])).unwrap().0
}

fn gap(target: Target) -> (Gap, Repair) {
    let gap = Gap {
        connector: "hooks".into(),
        cause: GapCause::Disabled,
        target: Some(target),
        company: None,
        from: 1,
        to: Some(100),
        detail: String::new(),
        opened_at: 5,
        worker: "w".into(),
        state: GapState::Open,
    };
    let repair = Repair::of(&gap, 100, 101);
    (gap, repair)
}

const CUSTOMERS_OF_ALL: [List; 2] = [List::Companies, List::Customers];

/// Adds a run that has finished in both of two shards.
fn over(runs: &mut Runs, run: Run, certified: bool) {
    let at = run.requested_at;
    for shard in 0..2 {
        let progress = RunProgress {
            lists: ListCounts {
                total: 1,
                ended: 1,
                certified: u64::from(certified),
                ..ListCounts::default()
            },
            work: RunWork { pages: 1, rows: 1, ..RunWork::default() },
            times: ShardTimes { started_at: at, updated_at: at, ended_at: Some(at) },
            ..RunProgress::new(&run, shard, ShardState::Ended, at)
        };
        runs.progress.insert((run.id.clone(), shard), progress);
    }
    runs.runs.insert(run.id.clone(), run);
}

fn repair_run(gap: &Gap, repair: &Repair, runs: &Runs) -> Run {
    match next_step(gap, repair, runs, 2, &source()) {
        Step::Read(run) => *run,
        other => panic!("{other:?}"),
    }
}

#[test]
fn gap_is_closed_only_by_a_later_certified_run_of_its_lists() {
    let (gap, repair) = gap(CUSTOMERS);
    let mut runs = Runs::default();
    let run = repair_run(&gap, &repair, &runs);
    let both = BTreeSet::from([List::Companies, List::Customers]);
    assert_eq!(
        (run.lists.clone(), run.known.is_empty()),
        (both, true),
        "the list of companies is certified too"
    );

    let settled = |runs: &Runs| next_step(&gap, &repair, runs, 2, &source());
    let of = |requested_at, lists: &[List], companies: Option<&str>, kind| Run {
        requested_at,
        lists: lists.iter().copied().collect(),
        companies: companies.map(|one| BTreeSet::from([CompanyId::new(one).unwrap()])),
        kind,
        id: RunId::new("other").unwrap(),
        ..run.clone()
    };
    for (other, certified) in [
        (of(99, &CUSTOMERS_OF_ALL, None, RunKind::Snapshot), true),
        (of(100, &[List::Companies, List::Accounts], None, RunKind::Snapshot), true),
        (of(100, &[List::Customers], None, RunKind::Snapshot), true),
        (of(100, &CUSTOMERS_OF_ALL, Some("c"), RunKind::Snapshot), true),
        (of(100, &CUSTOMERS_OF_ALL, None, RunKind::Verify), true),
        (of(100, &CUSTOMERS_OF_ALL, None, RunKind::Snapshot), false),
    ] {
        let mut runs = Runs::default();
        over(&mut runs, other.clone(), certified);
        assert!(matches!(settled(&runs), Step::Read(_)), "{other:?}");
    }
    over(&mut runs, of(100, &CUSTOMERS_OF_ALL, None, RunKind::Snapshot), true);
    assert_eq!(settled(&runs), Step::Settle(GapState::Closed));
}

#[test]
fn repair_outcome_depends_on_its_certificates() {
    for (target, certified, state) in [
        (CUSTOMERS, true, GapState::Closed),
        (CUSTOMERS, false, GapState::RepairedUncertified),
        (CHARGES, true, GapState::RepairedKnown),
        (CHARGES, false, GapState::RepairedUncertified),
        (Target::Accounting(AccountingResource::Accounts), true, GapState::Closed),
        (Target::Accounting(AccountingResource::Accounts), false, GapState::RepairedUncertified),
    ] {
        let (gap, repair) = gap(target);
        let mut runs = Runs::default();
        let run = Run { connector: "records".into(), ..repair_run(&gap, &repair, &runs) };
        runs.runs.insert(run.id.clone(), run.clone());
        assert_eq!(next_step(&gap, &repair, &runs, 2, &source()), Step::Wait);

        over(&mut runs, run, certified);

        assert_eq!(next_step(&gap, &repair, &runs, 2, &source()), Step::Settle(state), "{target}");
    }
}

#[test]
fn company_gap_is_not_closed_by_a_run_of_all_companies() {
    let (one, repair) = gap(CUSTOMERS);
    let gap = Gap { company: Some(CompanyId::new("c").unwrap()), ..one };
    let own = repair_run(&gap, &repair, &Runs::default());
    let mut runs = Runs::default();
    let all = Run { id: RunId::new("all").unwrap(), kind: RunKind::Snapshot, companies: None, ..own.clone() };
    over(&mut runs, all, true);
    assert!(matches!(next_step(&gap, &repair, &runs, 2, &source()), Step::Read(_)));

    over(&mut runs, Run { id: RunId::new("its").unwrap(), kind: RunKind::Snapshot, ..own }, true);
    assert_eq!(next_step(&gap, &repair, &runs, 2, &source()), Step::Settle(GapState::Closed));
}

#[test]
fn absent_list_is_repaired_from_known_records() {
    for (absent, state) in [(0, GapState::RepairedUncertified), (1, GapState::RepairedKnown)] {
        let (gap, repair) = gap(Target::Accounting(AccountingResource::Accounts));
        let mut runs = Runs::default();
        let run = repair_run(&gap, &repair, &runs);
        over(&mut runs, run, false);
        for progress in runs.progress.values_mut() {
            progress.lists.absent = absent;
        }

        assert_eq!(next_step(&gap, &repair, &runs, 2, &source()), Step::Settle(state), "{absent}");
    }
}

#[test]
fn one_repair_serves_all_gaps_that_ended_before_it() {
    let (first, repair) = gap(CHARGES);
    let (second, third) = (Gap { opened_at: 6, ..first.clone() }, Gap { opened_at: 7, ..first.clone() });
    let mut runs = Runs::default();
    let run = repair_run(&first, &repair, &runs);
    let later = Gap { to: Some(run.requested_at + 1), ..third };
    runs.runs.insert(run.id.clone(), run.clone());
    assert_eq!(next_step(&second, &repair, &runs, 2, &source()), Step::Wait, "it is being read");

    over(&mut runs, run.clone(), true);
    assert_eq!(next_step(&second, &repair, &runs, 2, &source()), Step::Settle(GapState::RepairedKnown));
    assert!(
        !matches!(next_step(&later, &repair, &runs, 2, &source()), Step::Settle(_)),
        "it ended after that"
    );

    over(&mut runs, run, false);
    assert!(matches!(next_step(&second, &repair, &runs, 2, &source()), Step::Read(_)), "it gets its own run");
}

#[test]
fn gap_is_not_repaired_before_its_margin_ends() {
    let (gap, repair) = gap(CUSTOMERS);
    let gap = Gap { to: Some(now() + 60_000_000), ..gap };

    assert_eq!(next_step(&gap, &repair, &Runs::default(), 2, &source()), Step::Wait);
}

#[test]
fn uncertified_repair_is_not_repeated() {
    let (gap, repair) = gap(CUSTOMERS);
    let gap = Gap { state: GapState::RepairedUncertified, ..gap };

    assert_eq!(next_step(&gap, &repair, &Runs::default(), 2, &source()), Step::Wait);
}

#[test]
fn invoicing_gap_cannot_be_repaired() {
    let hook = "invoicing/Customer:Created".parse().unwrap();
    let (gap, repair) = gap(hook);

    assert_eq!(
        next_step(&gap, &repair, &Runs::default(), 2, &source()),
        Step::Settle(GapState::Unrepairable)
    );
}

#[test]
fn incremental_payroll_starts_two_days_before_a_full_run() {
    let (one, repair) = gap(CUSTOMERS);
    let plain = repair_run(&one, &repair, &Runs::default());
    let run = |id: &str, at, incremental| Run {
        id: RunId::new(id).unwrap(),
        kind: RunKind::Snapshot,
        lists: BTreeSet::from([List::Payroll]),
        requested_at: at,
        incremental,
        ..plain.clone()
    };
    let mut runs = Runs::default();
    let wanted = run("now", 30 * DAY, true);
    assert_eq!(payroll_filter(&runs, &wanted, 2, &source()), None, "nothing was certified before");
    over(&mut runs, run("first", 10 * DAY, false), true);
    over(&mut runs, run("second", 20 * DAY, false), false);

    assert_eq!(payroll_filter(&runs, &wanted, 2, &source()).as_deref(), Some("lastUpdate gt 1970-01-09"));
    assert_eq!(payroll_filter(&runs, &run("full", 30 * DAY, false), 2, &source()), None);

    let filtered = |runs: &mut Runs, id: &str, filter: &str| {
        let all = runs.progress.iter_mut().filter(|((run, _), _)| run.as_str() == id);
        all.for_each(|(_, progress)| progress.filter = Some(filter.to_owned()));
    };
    over(&mut runs, run("changed", 12 * DAY, true), true);
    filtered(&mut runs, "changed", "lastUpdate gt 1970-01-10");
    let since = payroll_filter(&runs, &wanted, 2, &source());
    assert_eq!(since.as_deref(), Some("lastUpdate gt 1970-01-09"), "an incremental run does not count");

    for (id, incremental) in [("some", false), ("some-changed", true)] {
        over(&mut runs, run(id, 15 * DAY, incremental), true);
        filtered(&mut runs, id, "country eq 'PT'");
    }
    let since = payroll_filter(&runs, &wanted, 2, &source());
    assert_eq!(since.as_deref(), Some("lastUpdate gt 1970-01-09"), "filtered runs do not count");
    assert_eq!(last_whole(&runs, 2, None, 10 * DAY), None, "it was requested later");
    filtered(&mut runs, "first", "country eq 'PT'");
    assert_eq!(payroll_filter(&runs, &wanted, 2, &source()), None, "the whole list was never read");
}

const MINUTE: i64 = 60_000_000;

/// The payroll schedule of a task that began at 0: every ten minutes.
fn payroll_timetable() -> Timetable {
    let mut config = record_config();
    config.insert("snapshot.lists".to_owned(), "customers,payroll".to_owned());
    config.insert("payroll.incremental.schedule".to_owned(), "*/10 * * * *".to_owned());
    let (source, _) = RecordSource::parse("records", &config, &Providers::new([])).unwrap();
    let mut all = Timetable::all(&source, 0);
    assert_eq!(all.len(), 1, "snapshot.schedule is not set");
    all.remove(0)
}

/// A run of the payroll schedule.
fn scheduled(id: &str, minute: i64) -> Run {
    let (one, repair) = gap(CUSTOMERS);
    Run {
        id: RunId::new(id).unwrap(),
        kind: RunKind::Snapshot,
        lists: BTreeSet::from([List::Payroll]),
        incremental: true,
        requested_by: timetable::PAYROLL.to_owned(),
        requested_at: minute * MINUTE,
        ..repair_run(&one, &repair, &Runs::default())
    }
}

#[test]
fn missed_times_of_a_schedule_lead_to_one_run() {
    let run = |time: &str| Due::Run(format!("schedule-payroll-1970-01-01T{time}:00.000Z"));
    for (last, done_until, now, due) in [
        (None, None, 9, Due::Nothing),
        (None, None, 10, run("00:10")),
        (None, None, 55, run("00:10")),
        // The task of a restart continues after the last run.
        (Some(21), None, 29, Due::Nothing),
        (Some(21), None, 55, run("00:30")),
        // This task has skipped times since, or another one has requested a run.
        (Some(21), Some(41), 49, Due::Nothing),
        (Some(21), Some(41), 55, run("00:50")),
        (Some(51), Some(41), 55, Due::Nothing),
    ] {
        let mut runs = Runs::default();
        if let Some(last) = last {
            over(&mut runs, scheduled("last", last), false);
        }
        let other = Run { requested_by: "rest".to_owned(), ..scheduled("other", 54) };
        runs.runs.insert(other.id.clone(), other);
        let done_until = done_until.map(|minute: i64| minute * MINUTE);
        let mut timetable = payroll_timetable();
        timetable.done_until = done_until;

        assert_eq!(timetable.due(&runs, 2, now * MINUTE), due, "{last:?} {done_until:?} {now}");
    }
}

#[test]
fn open_run_of_a_schedule_lets_its_next_times_pass() {
    let (timetable, mut runs) = (payroll_timetable(), Runs::default());
    let open = scheduled("open", 10);
    runs.runs.insert(open.id.clone(), open.clone());
    assert_eq!(timetable.due(&runs, 2, 19 * MINUTE), Due::Nothing);
    assert_eq!(timetable.due(&runs, 2, 20 * MINUTE), Due::Skip(&open));

    over(&mut runs, open, false);

    assert!(matches!(timetable.due(&runs, 2, 20 * MINUTE), Due::Run(_)));
}

#[test]
fn schedule_of_payroll_waits_while_payroll_is_not_readable() {
    let timetable = payroll_timetable();

    assert_eq!(timetable.lists(&BTreeSet::from(List::ALL)), BTreeSet::from([List::Payroll]));
    assert_eq!(timetable.lists(&BTreeSet::from(CUSTOMERS_OF_ALL)), BTreeSet::new());
}

#[test]
fn stopped_incremental_run_does_not_move_the_bound() {
    let mut runs = Runs::default();
    let whole = Run { incremental: false, ..scheduled("whole", 10) };
    over(&mut runs, whole, true);
    let stopped = scheduled("stopped", 5 * 24 * 60);
    over(&mut runs, stopped.clone(), false);
    for progress in runs.progress.values_mut().filter(|progress| progress.of.run == stopped.id) {
        progress.state = ShardState::Stopped;
    }

    let bound = last_whole(&runs, 2, None, i64::MAX).map(|(began, id)| (began, id.as_str()));

    assert_eq!(bound, Some((10 * MINUTE, "whole")));
}

#[test]
fn frequent_payroll_runs_displace_no_others() {
    let mut runs = Runs::default();
    over(&mut runs, Run { incremental: false, ..scheduled("whole", 1) }, true);
    over(&mut runs, Run { requested_by: "schedule".to_owned(), ..scheduled("weekly", 2) }, true);
    for number in 0..100 {
        over(&mut runs, scheduled(&format!("later-{number:02}"), 10 + number), false);
    }

    let expired: Vec<&str> = expired_runs(&runs, 2, None).into_iter().map(|run| run.id.as_str()).collect();

    let oldest: Vec<String> =
        (0..100 - KEPT_PAYROLL_RUNS).map(|number| format!("later-{number:02}")).collect();
    assert_eq!(expired, oldest);
}

#[test]
fn payroll_follows_the_run_that_was_requested_without_it() {
    let (one, repair) = gap(CUSTOMERS);
    let plain = repair_run(&one, &repair, &Runs::default());
    let all = BTreeSet::from(List::ALL);
    let payroll = BTreeSet::from([List::Payroll]);
    let without: BTreeSet<List> = all.difference(&payroll).copied().collect();
    for (read, readable, id, lists) in [
        (None, &all, "initial", &all),
        (None, &without, "initial", &without),
        (Some(&without), &without, "initial", &without),
        (Some(&without), &all, "initial-payroll", &payroll),
        (Some(&all), &all, "initial", &all),
    ] {
        let mut runs = Runs::default();
        if let Some(read) = read {
            let run = Run { id: RunId::new("initial").unwrap(), lists: read.clone(), ..plain.clone() };
            runs.runs.insert(run.id.clone(), run);
        }

        assert_eq!(due_by_mode(&runs, "initial".to_owned(), readable), (id.to_owned(), lists.clone()));
    }
}

#[test]
fn oldest_runs_are_deleted_except_first_and_last_verified() {
    let (one, repair) = gap(CUSTOMERS);
    let plain = repair_run(&one, &repair, &Runs::default());
    let run =
        |id: &str, at, kind| Run { id: RunId::new(id).unwrap(), kind, requested_at: at, ..plain.clone() };
    let mut runs = Runs::default();
    over(&mut runs, run("initial", 1, RunKind::Snapshot), true);
    over(&mut runs, run("initial-payroll", 1, RunKind::Snapshot), true);
    over(&mut runs, run("verified", 2, RunKind::Verify), true);
    over(&mut runs, run("verified-before", 1, RunKind::Verify), true);
    for (place, id) in ["start-1", "start-2", "start-2-payroll"].into_iter().enumerate() {
        let started = run(id, 3 + place as i64, RunKind::Snapshot);
        over(&mut runs, Run { requested_by: "start".to_owned(), ..started }, true);
    }
    for number in 0..KEPT_RUNS as i64 {
        over(&mut runs, run(&format!("later-{number}"), 10 + number, RunKind::Snapshot), true);
    }

    let forgotten: Vec<&str> = expired_runs(&runs, 2, None).into_iter().map(|run| run.id.as_str()).collect();

    assert_eq!(forgotten, ["verified-before", "start-1"]);
}

#[test]
fn interrupted_deletion_never_reopens_a_run() {
    let (one, repair) = gap(CUSTOMERS);
    let plain = repair_run(&one, &repair, &Runs::default());
    let run = Run { connector: "records".into(), id: RunId::new("old").unwrap(), ..plain };
    let mut runs = Runs::default();
    over(&mut runs, run.clone(), true);
    runs.commands.insert(run.id.clone(), RunCommand { wanted: DesiredRunState::Running, at: 1 });
    let keys = keys_of(&run, 2);
    assert_eq!(keys.len(), 4, "the run, its command, and the progress of both shards");

    for key in keys {
        assert_eq!(runs.open(2), Vec::<&Run>::new(), "before {key}");
        let parts = Key::parts(key.as_str()).unwrap();
        let is_there = match parts[0].as_str() {
            Run::KIND => runs.runs.remove(&run.id).is_some(),
            RunCommand::KIND => runs.commands.remove(&run.id).is_some(),
            RunProgress::KIND => {
                runs.progress.remove(&(run.id.clone(), parts[1].parse::<i32>().unwrap())).is_some()
            }
            other => panic!("{other}"),
        };
        assert!(is_there, "{key}");
    }

    assert!(runs.is_empty());
}
