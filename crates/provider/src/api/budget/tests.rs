//! The budget, step by step at chosen moments.

use parking_lot::MutexGuard;
use url::Url;

use base::secret::Secret;

use super::{adaptive_rate::AdaptiveRate, queues::Waiter, *};

/// In-flight limit of all scenes.
const IN_FLIGHT: usize = 32;
const FAR: Duration = Duration::from_secs(3_600);

/// A budget and its clock.
struct Scene {
    budget: Budget,
    now: Instant,
}

/// Requests that wait or were sent.
struct Crowd(Vec<oneshot::Receiver<Permit>>);

impl Scene {
    /// A budget that has learned to use all of its setting.
    fn new(application: f64, company: f64) -> Self {
        let budget = Budget::new(rates(application, company));
        let now = Instant::now();
        let mut adaptive = AdaptiveRate::new(application, now, 1);
        adaptive.advance(now + Duration::from_secs(60), true);
        let scene = Self { budget, now: now + Duration::from_secs(60) };
        let mut state = scene.state();
        let application = &mut state.application;
        (application.adaptive, application.tokens, application.at) = (adaptive, 1.0, scene.now);
        drop(state);
        scene
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.budget.shared.state.lock()
    }

    fn crowd(&self, priority: Priority, company: Option<&str>, count: usize) -> Crowd {
        let wait = || {
            let (turn, waiting) = oneshot::channel();
            let mut state = self.state();
            let company = company.map(|company| state.companies.name(company, self.now));
            state.queues.push(priority, Waiter { company, turn });
            waiting
        };
        Crowd((0..count).map(|_| wait()).collect())
    }

    /// Hands out permits for this long. Each request ends as soon as it is sent, unless `sent` keeps it.
    fn run(&mut self, seconds: f64, mut sent: impl FnMut(Permit) -> Option<Permit>) -> Vec<Permit> {
        let end = self.now + Duration::from_secs_f64(seconds);
        let mut kept = Vec::new();
        loop {
            let step = self.state().next_step(self.now);
            match step {
                DispatchStep::Grant(waiting, turn) => {
                    // Closing the channel marks the request as sent, which reveals its place in the queue.
                    drop(waiting);
                    kept.extend(sent(Permit { shared: Arc::clone(&self.budget.shared), turn }));
                }
                DispatchStep::Wait(Some(again)) if again <= end => self.now = again,
                DispatchStep::Wait(_) | DispatchStep::Done => {
                    self.now = end;
                    return kept;
                }
            }
        }
    }

    fn run_freely(&mut self, seconds: f64) {
        let kept = self.run(seconds, |permit| {
            permit.accepted();
            None
        });
        assert!(kept.is_empty());
    }
}

impl Crowd {
    /// How many were sent.
    fn sent(&mut self) -> usize {
        let gone = |waiting: &mut oneshot::Receiver<Permit>| {
            matches!(waiting.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        self.0.iter_mut().map(gone).filter(|gone| *gone).count()
    }
}

fn rates(application: f64, company: f64) -> Rates {
    Rates { application, company, in_flight: IN_FLIGHT }
}

#[test]
fn the_highest_priority_leaves_a_tenth_to_the_lower_ones() {
    let mut scene = Scene::new(50.0, 50.0);
    let mut snapshot = scene.crowd(Priority::Snapshot, None, 1_000);
    let mut webhook = scene.crowd(Priority::Webhook, None, 1_000);
    let mut repair = scene.crowd(Priority::Repair, None, 1_000);

    scene.run_freely(10.0);

    let (webhook, repair, snapshot) = (webhook.sent(), repair.sent(), snapshot.sent());
    assert!((445..=455).contains(&webhook), "{webhook} {repair} {snapshot}");
    assert!((24..=27).contains(&repair), "{webhook} {repair} {snapshot}");
    assert!((24..=27).contains(&snapshot), "{webhook} {repair} {snapshot}");
}

#[test]
fn snapshots_get_a_tenth_and_what_a_held_company_leaves() {
    let mut scene = Scene::new(50.0, 2.0);
    let mut repair = scene.crowd(Priority::Repair, None, 1_000);
    let mut snapshot = scene.crowd(Priority::Snapshot, None, 1_000);
    scene.run_freely(10.0);
    assert!((445..=455).contains(&repair.sent()), "{}", repair.sent());
    assert!((48..=52).contains(&snapshot.sent()), "{}", snapshot.sent());

    let mut scene = Scene::new(50.0, 2.0);
    let mut held = scene.crowd(Priority::Webhook, Some("whale"), 1_000);
    let mut snapshot = scene.crowd(Priority::Snapshot, None, 1_000);
    scene.run_freely(10.0);

    assert!((20..=23).contains(&held.sent()), "{}", held.sent());
    assert!((470..=485).contains(&snapshot.sent()), "{}", snapshot.sent());
}

#[test]
fn a_company_at_its_limit_delays_only_itself() {
    let mut scene = Scene::new(100.0, 2.0);
    let mut busy = scene.crowd(Priority::Webhook, Some("busy"), 500);
    let mut other = scene.crowd(Priority::Snapshot, Some("other"), 5);
    let mut none = scene.crowd(Priority::Snapshot, None, 300);

    scene.run_freely(10.0);

    assert!((20..=23).contains(&busy.sent()), "{}", busy.sent());
    assert_eq!((other.sent(), none.sent()), (5, 300));
}

#[test]
fn a_refusal_pauses_all_priorities_and_adds_no_burst() {
    let mut scene = Scene::new(100.0, 100.0);
    let _first = scene.crowd(Priority::Snapshot, None, 1);
    let refused = scene.run(0.5, Some).remove(0);

    let pause = refused.refused_at(scene.now, Some(Duration::from_secs(5)));
    drop(refused);
    let mut crowd = scene.crowd(Priority::Webhook, None, 1_000);
    scene.run_freely(4.9);
    let during = crowd.sent();
    scene.run_freely(0.15);
    let soon = crowd.sent();
    scene.run_freely(0.95);

    assert_eq!((pause, during), (Duration::from_secs(5), 0));
    assert!(soon <= 7, "{soon} were sent in one go");
    // 0.85 of the 0.85 that one request leaves of the rate, and returning.
    assert!((70..=85).contains(&crowd.sent()), "{}", crowd.sent());
}

#[test]
fn a_pause_beyond_the_deadline_fails_at_once() {
    let mut scene = Scene::new(100.0, 100.0);
    let _first = scene.crowd(Priority::Snapshot, None, 1);
    let refused = scene.run(0.5, Some).remove(0);
    refused.refused_at(scene.now, Some(Duration::from_secs(60)));

    let soon = scene.now + Duration::from_secs(10);
    let late = scene.budget.enter(Priority::Webhook, None, scene.now, soon).err();

    assert_eq!(late, Some(BudgetTimeout { what: ApiWait::Throttled, left: Some(Duration::from_secs(60)) }));
}

#[test]
fn snapshots_cannot_use_the_last_quarter_in_flight() {
    let mut scene = Scene::new(10_000.0, 10_000.0);
    let mut snapshot = scene.crowd(Priority::Snapshot, None, IN_FLIGHT);
    let mut kept = scene.run(1.0, Some);
    assert_eq!(snapshot.sent(), IN_FLIGHT / 4 * 3);

    let mut webhook = scene.crowd(Priority::Webhook, None, IN_FLIGHT);
    kept.extend(scene.run(1.0, Some));

    assert_eq!((webhook.sent(), snapshot.sent()), (IN_FLIGHT / 4, IN_FLIGHT / 4 * 3));
    drop(kept);
    scene.run_freely(1.0);
    assert_eq!((webhook.sent(), snapshot.sent()), (IN_FLIGHT, IN_FLIGHT));
    let one = Scene::new(10.0, 10.0);
    one.state().rates.in_flight = 1;
    assert!(!one.state().is_full(Priority::Snapshot), "a single one is for everybody");
}

#[test]
fn a_freed_in_flight_slot_goes_to_the_highest_priority() {
    let mut scene = Scene::new(10_000.0, 10_000.0);
    let mut repair = scene.crowd(Priority::Repair, None, IN_FLIGHT + 1);
    let mut kept = scene.run(1.0, Some);
    let mut webhook = scene.crowd(Priority::Webhook, None, 1);
    kept.extend(scene.run(1.0, Some));
    assert_eq!((kept.len(), repair.sent(), webhook.sent()), (IN_FLIGHT, IN_FLIGHT, 0));

    kept.pop();
    kept.extend(scene.run(1.0, Some));
    assert_eq!((repair.sent(), webhook.sent()), (IN_FLIGHT, 1));
    kept.pop();
    kept.extend(scene.run(1.0, Some));

    assert_eq!(repair.sent(), IN_FLIGHT + 1);
}

#[test]
fn a_cancelled_request_uses_no_budget() {
    let mut scene = Scene::new(5.0, 5.0);
    let gone = scene.crowd(Priority::Webhook, None, 100);
    let mut stays = scene.crowd(Priority::Snapshot, None, 3);

    drop(gone);
    scene.run_freely(1.0);

    assert_eq!(stays.sent(), 3);
    let state = scene.state();
    assert_eq!((state.in_flight, state.queues.is_empty(), state.dispatching), (0, true, false));
}

#[test]
fn a_share_scales_the_budget() {
    let mut scene = Scene::new(100.0, 100.0);
    scene.budget.set_share(0.25);
    let mut crowd = scene.crowd(Priority::Snapshot, None, 1_000);

    scene.run_freely(10.0);

    assert!((248..=254).contains(&crowd.sent()), "{}", crowd.sent());
}

#[tokio::test]
async fn waiting_requests_are_admitted_or_time_out() {
    let budget = Budget::new(rates(200.0, 200.0));
    let far = Instant::now() + FAR;
    let served = futures::future::join_all((0..30).map(|_| budget.admit(Priority::Repair, None, far))).await;
    assert!(served.iter().all(Result::is_ok));
    drop(served);

    let slow = Budget::new(rates(0.01, 0.01));
    drop(slow.admit(Priority::Repair, None, far).await.unwrap());
    let late = slow.admit(Priority::Repair, None, Instant::now() + Duration::from_millis(50)).await;

    assert_eq!(late.unwrap_err(), BudgetTimeout { what: ApiWait::Budget, left: None });
}

#[tokio::test]
async fn a_timeout_names_the_company_or_the_pause() {
    let budget = Budget::new(rates(1_000.0, 0.01));
    let soon = || Instant::now() + Duration::from_millis(50);
    let far = Instant::now() + FAR;
    let first = budget.admit(Priority::Webhook, Some("whale"), far).await.unwrap();
    // So that only the company's limit applies.
    budget.shared.state.lock().application.tokens = 1.0;

    let company = budget.admit(Priority::Webhook, Some("whale"), soon()).await.unwrap_err();
    // Well before the company has another token.
    let other =
        budget.admit(Priority::Webhook, Some("other"), Instant::now() + Duration::from_secs(10)).await;
    first.refused(Some(FAR));
    let paused = budget.admit(Priority::Webhook, Some("whale"), soon()).await.unwrap_err();

    assert_eq!(company, BudgetTimeout { what: ApiWait::Company, left: None });
    assert!(other.is_ok());
    assert_eq!(paused.what, ApiWait::Throttled);
    assert!(paused.left.is_some_and(|left| left > FAR / 2), "{paused:?}");
}

/// Fifty companies; the provider allows the first `limited` ones one request per second and the others all. Returns what the
/// others sent in each minute, what the first ones sent and were refused, and the scene.
fn companies(limited: usize, minutes: usize) -> (Vec<usize>, usize, usize, Scene) {
    let mut scene = Scene::new(50.0, 2.0);
    let names: Vec<String> = (0..50).map(|number| format!("company {number}")).collect();
    let mut windows: Vec<Option<Instant>> = vec![None; limited];
    let (mut passed, mut refused, mut others) = (0, 0, Vec::new());
    let mut crowds: Vec<Crowd> = Vec::new();
    for _ in 0..minutes {
        for (place, name) in names.iter().enumerate() {
            // The limited ones want more than they get, the others half of their limit.
            let wanted = if place < limited { 200 } else { 50 };
            crowds.push(scene.crowd(Priority::Webhook, Some(name), wanted));
        }
        let before: usize = crowds.iter_mut().map(Crowd::sent).sum();
        let mut own = 0;
        for _ in 0..600 {
            let permits = scene.run(0.1, Some);
            for permit in permits {
                let place =
                    names.iter().position(|name| Some(&**name) == permit.turn.company.as_deref()).unwrap();
                let Some(window) = windows.get_mut(place) else {
                    permit.accepted();
                    continue;
                };
                own += 1;
                if window.is_none_or(|began| scene.now >= began + Duration::from_secs(1)) {
                    *window = Some(scene.now);
                    passed += 1;
                    permit.accepted();
                } else {
                    refused += 1;
                    permit.refused_at(scene.now, Some(Duration::from_secs(1)));
                }
            }
        }
        others.push(crowds.iter_mut().map(Crowd::sent).sum::<usize>() - before - own);
    }
    (others, passed, refused, scene)
}

#[test]
fn a_company_over_its_limit_slows_down_alone() {
    for limited in [1, 2] {
        let (others, passed, refused, scene) = companies(limited, 5);

        // Two refusals at the same moment may count for the application once or twice.
        let least = if limited == 1 { 50.0 } else { 40.0 };
        assert!(scene.budget.status().rate >= least, "{limited}: {}", scene.budget.status().rate);
        // All that they wanted.
        let wanted = (50 - limited) * 50;
        assert!(others.iter().skip(1).all(|sent| *sent >= wanted * 9 / 10), "{limited}: {others:?}");
        let most = 300 * limited;
        assert!((most * 8 / 10..=most).contains(&passed), "{limited}: {passed} of {most}");
        assert!(refused * 10 < passed, "{limited}: {refused} refused of {passed}");
        let rate = scene.state().companies.rate_of("company 0");
        assert!((0.7..=1.2).contains(&rate), "{rate}");
    }
}

#[test]
fn refusals_of_two_companies_in_a_row_pause_the_application() {
    let mut scene = Scene::new(100.0, 10.0);
    let _crowds =
        [scene.crowd(Priority::Webhook, Some("a"), 3), scene.crowd(Priority::Webhook, Some("b"), 1)];
    let permits = scene.run(0.5, Some);
    let second = Duration::from_secs(1);

    permits[1].refused_at(scene.now, Some(second));
    // Sent before the refused one, so it says nothing.
    permits[0].accepted();
    assert_eq!(
        scene.state().application.adaptive.paused(scene.now),
        None,
        "one company's refusal stopped everybody"
    );
    permits[3].refused_at(scene.now, Some(second));

    assert_eq!(scene.state().application.adaptive.paused(scene.now), Some(scene.now + second));
    let cut = scene.budget.status().rate;
    assert!(cut < 100.0);
    // Further refusals of the storm lengthen the pause and cut nothing.
    let before = scene.state().companies.rate_of("a");
    permits[2].refused_at(scene.now, Some(second * 2));
    assert_eq!(scene.state().application.adaptive.paused(scene.now), Some(scene.now + second * 2));
    assert!((scene.budget.status().rate - cut).abs() < 1e-9);
    assert!((scene.state().companies.rate_of("a") - before).abs() < 1e-9);
}

#[test]
fn a_passed_request_keeps_a_refusal_to_its_company() {
    let mut scene = Scene::new(100.0, 10.0);
    let _crowds = ["a", "b", "c"].map(|company| scene.crowd(Priority::Webhook, Some(company), 1));
    let permits = scene.run(0.5, Some);
    let second = Duration::from_secs(1);

    permits[0].refused_at(scene.now, Some(second));
    permits[1].accepted();
    permits[2].refused_at(scene.now, Some(second));

    assert_eq!(scene.state().application.adaptive.paused(scene.now), None);
    assert!((scene.budget.status().rate - 100.0).abs() < 1e-9);
    assert!(scene.state().companies.rate_of("a") < 10.0 && scene.state().companies.rate_of("c") < 10.0);
}

#[test]
fn an_unused_permit_costs_nothing() {
    let mut scene = Scene::new(10.0, 1.0);
    let _crowd = scene.crowd(Priority::Webhook, Some("a"), 50);

    let mut turns = 0;
    scene.run(1.0, |permit| {
        turns += 1;
        if turns < 20 {
            permit.unused();
        }
        None
    });

    // One that was used, and what has refilled since.
    assert!((20..=22).contains(&turns), "{turns}");
}

#[test]
fn a_held_company_costs_no_work_per_admitted_request() {
    let mut scene = Scene::new(1_000.0, 0.001);
    let _whale = scene.crowd(Priority::Webhook, Some("whale"), 9_000);
    let mut others = scene.crowd(Priority::Snapshot, None, 5_000);

    scene.run_freely(0.1);
    let looks = scene.state().companies.looks();
    scene.run_freely(4.0);

    assert!(others.sent() > 3_000, "{}", others.sent());
    // The company is examined when it may have a token, not with every permit of the others.
    assert!(scene.state().companies.looks() - looks <= 2, "{}", scene.state().companies.looks() - looks);
}

#[test]
fn cancelled_requests_take_no_room_in_their_queue() {
    let scene = Scene::new(0.001, 0.001);
    let gone = scene.crowd(Priority::Snapshot, None, 10_000);
    let mut now = scene.now;
    let mut room = |priority| {
        now += Duration::from_secs(2);
        scene.state().queues.has_room(priority, now)
    };
    assert!(!room(Priority::Snapshot) && room(Priority::Webhook));

    drop(gone);

    assert!(room(Priority::Snapshot));
    assert!(scene.state().queues.is_empty());
}

#[test]
fn a_growing_share_applies_at_once_and_zero_is_raised() {
    let scene = Scene::new(100.0, 100.0);
    scene.budget.set_share(0.5);
    scene.state().application.adaptive.refused(scene.now, Some(Duration::from_secs(1)), 0);
    let half = scene.budget.status().rate;

    scene.budget.set_share(1.0);
    assert!((scene.budget.status().rate - half * 2.0).abs() < 1e-9, "{}", scene.budget.status().rate);
    scene.budget.set_share(0.0);
    assert!(scene.budget.status().rate > 0.1, "{}", scene.budget.status().rate);
    scene.budget.set_share(f64::NAN);

    assert!((scene.budget.status().rate - half * 2.0).abs() < 1e-9, "{}", scene.budget.status().rate);
    assert!((scene.state().share - 1.0).abs() < 1e-9);
}

#[test]
fn a_key_has_one_budget_with_the_largest_requested_rates() {
    let budgets = Budgets::default();
    let [here, there]: [Url; 2] = ["https://here", "https://there"].map(|url| url.parse().unwrap());
    let (key, other) = (Secret::new("key"), Secret::new("other"));
    let (small, large) = (rates(5.0, 3.0), rates(50.0, 1.0));

    let none = budgets.of(&here, &key, None);
    assert_eq!(none.shared.state.lock().rates, Rates::default());
    let first = budgets.of(&here, &key, Some(small));
    assert!(none.is_same(&first));
    assert_eq!(first.shared.state.lock().rates, small, "a default overruled a setting");
    let second = budgets.of(&here, &key, Some(large));
    let clone = second.clone();
    drop(second);
    assert_eq!(first.shared.state.lock().rates, rates(50.0, 3.0));
    drop(clone);
    assert_eq!(first.shared.state.lock().rates, small, "a rate outlived its budget");

    for apart in [budgets.of(&there, &key, Some(small)), budgets.of(&here, &other, Some(small))] {
        assert!(!first.is_same(&apart));
    }
    // An unused budget is dropped.
    drop((none, first));
    assert_eq!(budgets.of(&here, &key, Some(large)).shared.state.lock().rates, large);
}

#[test]
fn status_shows_what_is_in_flight_and_the_cut_of_a_refusal() {
    let mut scene = Scene::new(100.0, 100.0);
    let _crowd = scene.crowd(Priority::Repair, None, 5);
    assert_eq!(scene.state().application.adaptive.ratio(), 1.0);
    let permits = scene.run(0.5, Some);
    permits[0].refused(Some(Duration::from_secs(60)));

    let status = scene.budget.status();

    assert_eq!((status.in_flight, status.setting), (5, 100.0));
    assert!(status.rate < 100.0 && scene.state().application.adaptive.ratio() < 1.0, "{status:?}");
}
