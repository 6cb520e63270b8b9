//! One sentence for each thing that may happen to a subscription.

use super::{provider::Fault, *};

pub(super) fn settled(targets: &[Target]) -> Scene {
    let mut scene = Scene::new(targets);
    scene.converge();
    scene.check();
    scene
}

#[test]
fn a_subscription_is_asked_for_once_accepted_and_active() {
    let scene = settled(&[CUSTOMERS, CREATED]);

    let subscribed = scene.calls.iter().filter(|call| **call == "subscribe").count();
    assert_eq!(subscribed, 2);
    assert!(scene.gaps().is_empty());
    let start = scene.ledger.start.as_ref().unwrap();
    assert_eq!(start.targets.len(), 1, "hooks have no lists to be read");
    assert_eq!(scene.only(CUSTOMERS).events.len(), 3);
}

#[test]
fn nothing_is_asked_of_the_provider_between_two_polls() {
    let mut scene = settled(&[CUSTOMERS]);
    scene.calls.clear();
    scene.pass(180);

    assert!(scene.calls.iter().all(|call| *call == "read"), "{:?}", scene.calls);
    assert!((2..=5).contains(&scene.calls.len()), "{:?}", scene.calls);
}

#[test]
fn a_disabled_subscription_is_a_gap_enabled_and_repaired() {
    let mut scene = settled(&[CUSTOMERS]);
    let id = scene.only(CUSTOMERS).id.clone();
    scene.now += 5 * SECOND;
    scene.deliver(&id);
    let last = scene.now;
    scene.now += 5 * SECOND;
    scene.provider.set(&id, State::Disabled);
    let disabled = scene.now;

    scene.pass(61);

    let gaps = scene.gaps();
    assert_eq!(gaps.len(), 1);
    let gap = gaps[0];
    assert_eq!((gap.cause, gap.target, gap.from), (GapCause::Disabled, Some(CUSTOMERS), last - SECOND));
    assert!(gap.to.unwrap() >= disabled && gap.opened_at - disabled <= 60 * SECOND, "{gap:?}");
    assert_eq!(scene.only(CUSTOMERS).id, id);
    assert_eq!(scene.ledger.repairs.len(), 1);
    scene.check();
}

#[test]
fn one_that_cannot_be_enabled_is_followed_by_another() {
    let mut scene = settled(&[CUSTOMERS]);
    let id = scene.only(CUSTOMERS).id.clone();
    scene.provider.never_enables = true;
    scene.provider.set(&id, State::Disabled);

    scene.pass(600);

    assert_ne!(scene.only(CUSTOMERS).id, id);
    assert_eq!(scene.gaps().len(), 1);
    scene.check();
}

#[test]
fn a_lost_subscription_is_a_gap_and_recreated() {
    for target in [CUSTOMERS, CREATED] {
        let mut scene = settled(&[target]);
        let id = scene.only(target).id.clone();
        scene.provider.set(&id, State::Deleted);

        scene.pass(70);

        assert_eq!(scene.gaps().len(), 1, "{target}");
        assert_eq!(scene.gaps()[0].cause, GapCause::Lost);
        scene.check();
    }
}

#[test]
fn a_paused_hook_is_an_unrepairable_gap_and_is_recreated() {
    let mut scene = settled(&[CREATED]);
    let id = scene.only(CREATED).id.clone();
    scene.provider.set(&id, State::Disabled);

    scene.pass(70);

    assert_ne!(scene.only(CREATED).id, id);
    let gaps = scene.gaps();
    assert_eq!((gaps.len(), gaps[0].state), (1, GapState::Unrepairable));
    assert!(scene.ledger.repairs.is_empty());
}

#[test]
fn a_new_secret_or_address_replaces_after_the_overlap() {
    for what in ["secret", "address"] {
        for target in [CUSTOMERS, CREATED] {
            let mut scene = settled(&[target]);
            let one = scene.wanted.get_mut(&target).unwrap();
            if what == "secret" {
                one.fingerprint = Fingerprint::of("secret-2");
                one.known.insert(Fingerprint::of("secret-2"));
            } else {
                one.url = "https://hooks.example.com/b".to_owned();
            }

            let mut both = 0;
            for _ in 0..200 {
                scene.pass(1);
                let living: Vec<_> = scene.provider.living(target).collect();
                assert!(living.iter().any(|one| one.state == State::Active), "{what} {target}");
                both += i64::from(living.iter().filter(|one| one.state == State::Active).count() == 2);
            }

            assert!((100..=140).contains(&both), "{both} seconds of both, for another {what}");
            assert!(scene.gaps().is_empty());
            scene.check();
        }
    }
}

#[test]
fn an_address_changed_in_place_is_a_gap_until_accepted() {
    let mut scene = settled(&[CUSTOMERS]);
    let id = scene.only(CUSTOMERS).id.clone();
    scene.rules.move_in_place = true;
    scene.wanted.get_mut(&CUSTOMERS).unwrap().url = "https://hooks.example.com/b".to_owned();

    scene.pass(90);

    assert_eq!(scene.only(CUSTOMERS).id, id);
    assert_eq!(scene.gaps().iter().map(|gap| gap.cause).collect::<Vec<_>>(), [GapCause::Moved]);
    scene.check();
}

#[test]
fn a_provider_that_takes_no_second_one_gets_the_first_moved() {
    let mut scene = settled(&[CUSTOMERS]);
    let id = scene.only(CUSTOMERS).id.clone();
    scene.provider.single = true;
    scene.wanted.get_mut(&CUSTOMERS).unwrap().url = "https://hooks.example.com/b".to_owned();

    scene.pass(90);

    assert_eq!(scene.only(CUSTOMERS).id, id);
    scene.check();
}

#[test]
fn a_lost_answer_is_found_by_the_acknowledge() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    scene.provider.faults.push(Fault::AnswerLost);

    scene.converge();

    assert_eq!(scene.provider.webhooks.len(), 1);
    assert_eq!(scene.calls.iter().filter(|call| **call == "subscribe").count(), 1);
    scene.check();
}

#[test]
fn a_given_up_one_at_an_old_address_is_found_and_deleted() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    scene.rules.move_in_place = true;
    scene.provider.faults.push(Fault::AnswerLost);
    while scene.provider.webhooks.len() < 2 {
        scene.hear();
        scene.round(None);
        scene.now += SECOND;
    }
    // Its Acknowledge comes only after the next one has moved.
    let late = scene.provider.webhooks[0].id.clone();
    scene.provider.set(&late, State::Disabled);
    scene.converge();
    scene.wanted.get_mut(&CUSTOMERS).unwrap().url = "https://hooks.example.com/b".to_owned();
    scene.converge();
    scene.provider.set(&late, State::Awaiting);

    scene.converge();
    scene.pass(130);

    scene.check();
}

#[test]
fn a_lost_move_is_repeated() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    scene.provider.faults.push(Fault::AnswerLost);
    scene.converge();
    let id = scene.only(CUSTOMERS).id.clone();
    scene.rules.move_in_place = true;
    scene.provider.faults.push(Fault::RequestLost);
    scene.wanted.get_mut(&CUSTOMERS).unwrap().url = "https://hooks.example.com/b".to_owned();

    scene.pass(90);

    assert_eq!(scene.only(CUSTOMERS).id, id);
    scene.check();
}

#[test]
fn a_hook_without_an_answer_is_found_in_the_list() {
    let mut scene = Scene::new(&[CREATED]);
    scene.provider.faults.push(Fault::AnswerLost);

    scene.converge();

    assert_eq!(scene.provider.webhooks.len(), 1);
    scene.check();
}

#[test]
fn a_listed_hook_is_active_only_after_its_echo() {
    let mut scene = Scene::new(&[CREATED]);
    scene.provider.only_echoes_at = Some("");
    scene.pass(90);
    let phases = |scene: &Scene| scene.ledger.living(CREATED).map(|one| one.phase).collect::<Vec<_>>();
    assert_eq!(phases(&scene), [SubscriptionPhase::Awaiting]);
    let problem = scene.ledger.living(CREATED).next().unwrap().problem.clone().unwrap();
    assert!(problem.contains("has not asked for the echo"), "{problem}");

    scene.provider.only_echoes_at = None;
    scene.pass(2);

    assert_eq!(phases(&scene), [SubscriptionPhase::Active]);
    assert!(scene.gaps().is_empty());
    scene.check();
}

#[test]
fn a_notification_proves_a_hook_without_a_recorded_echo() {
    let mut scene = Scene::new(&[CREATED]);
    scene.provider.only_echoes_at = Some("");
    scene.pass(30);
    let id = scene.only(CREATED).id.clone();
    scene.deliver(&id);

    scene.pass(2);

    assert_eq!(scene.ledger.by_id(&id).unwrap().phase, SubscriptionPhase::Active);
}

#[test]
fn an_echo_from_before_the_intent_proves_nothing() {
    let mut scene = Scene::new(&[CREATED]);
    scene.provider.only_echoes_at = Some("");
    let echo = Echo { received_at: scene.now - 60 * SECOND, worker: "worker:2".to_owned() };
    scene.ledger.echoes.insert(String::new(), echo);

    scene.pass(30);

    assert_eq!(scene.ledger.living(CREATED).next().unwrap().phase, SubscriptionPhase::Awaiting);
}

#[test]
fn an_active_hook_stays_active_without_an_echo_on_record() {
    let mut scene = settled(&[CREATED]);
    scene.ledger.echoes.clear();
    scene.memory = PlannerMemory::default();
    let id = scene.only(CREATED).id.clone();

    scene.pass(700);

    assert_eq!((scene.ledger.by_id(&id).unwrap().phase, scene.gaps().len()), (SubscriptionPhase::Active, 0));
}

#[test]
fn a_listed_hook_is_active_while_a_worker_writes_no_echoes() {
    let mut scene = Scene::new(&[CREATED]);
    scene.provider.only_echoes_at = Some("");
    let older = ReceiverReport {
        worker: "worker:2".into(),
        at: i64::MAX / 2,
        ..scene.ledger.heard["worker:1"].clone()
    };
    scene.ledger.heard.insert("worker:2".into(), ReceiverReport { tells_echoes: false, ..older });

    scene.pass(10);

    assert_eq!(scene.ledger.living(CREATED).next().unwrap().phase, SubscriptionPhase::Active);
}

#[test]
fn a_request_that_never_arrived_is_made_again() {
    for target in [CUSTOMERS, CREATED] {
        let mut scene = Scene::new(&[target]);
        scene.provider.faults.push(Fault::RequestLost);

        scene.converge();

        assert_eq!(scene.provider.webhooks.len(), 1);
        scene.check();
    }
}

#[test]
fn a_lost_answer_beside_another_ends_with_one_of_both() {
    for fault in [Fault::AnswerLost, Fault::RequestLost] {
        let mut scene = settled(&[CUSTOMERS]);
        let one = scene.wanted.get_mut(&CUSTOMERS).unwrap();
        one.fingerprint = Fingerprint::of("secret-2");
        one.known.insert(Fingerprint::of("secret-2"));
        scene.provider.faults.push(fault);

        for _ in 0..300 {
            scene.pass(1);
            assert!(scene.provider.living(CUSTOMERS).any(|one| one.state == State::Active));
        }

        scene.check();
    }
}

#[test]
fn an_unaccepted_one_is_a_gap_and_recreated() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    for _ in 0..700 {
        scene.hear();
        scene.round(None);
        scene.now += SECOND;
    }
    assert_eq!(scene.gaps().iter().map(|gap| gap.cause).collect::<Vec<_>>(), [GapCause::Awaiting]);
    assert_eq!(scene.gaps()[0].to, None);

    scene.converge();

    scene.check();
}

#[test]
fn awaiting_gap_is_opened_once_with_the_deletion() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    for _ in 0..5 {
        scene.round(None);
        scene.now += SECOND;
    }
    assert!(scene.ledger.living(CUSTOMERS).all(|one| one.phase == SubscriptionPhase::Awaiting));
    scene.now += 700 * SECOND;
    scene.wanted.clear();
    let backoff = RetryState { failures: 1, not_before: scene.now + 60 * SECOND };
    scene.memory.retries.changes.insert(CUSTOMERS, backoff);

    for _ in 0..30 {
        scene.round(None);
        scene.now += SECOND;
    }
    assert!(scene.gaps().is_empty(), "{:?}", scene.gaps());
    scene.converge();

    assert_eq!(scene.gaps().iter().map(|gap| gap.cause).collect::<Vec<_>>(), [GapCause::Awaiting]);
    assert_eq!(scene.ledger.living(CUSTOMERS).count(), 0, "{:?}", scene.brief());
    scene.check();
}

#[test]
fn undeclared_subscriptions_are_deleted_and_no_others() {
    let mut scene = settled(&[CUSTOMERS, CREATED]);
    let theirs =
        scene.provider.add_foreign(CUSTOMERS, "tributary", "https://hooks.example.com/a", "secret-1");
    let forged = scene.provider.add_foreign(
        CUSTOMERS,
        "x/00000000000000ff",
        "https://elsewhere.example.com",
        "secret-1",
    );
    for id in [&theirs, &forged] {
        scene.deliver(id);
    }
    scene.pass(5);
    scene.wanted.clear();

    scene.converge();

    scene.check();
    assert_eq!(scene.provider.webhooks.iter().filter(|one| one.lives()).count(), 2);
}

#[test]
fn one_lost_from_the_ledger_is_replaced_and_deleted() {
    let mut scene = settled(&[CUSTOMERS, CREATED]);
    let ids: Vec<String> = scene.provider.webhooks.iter().map(|one| one.id.clone()).collect();
    scene.ledger = SubscriptionState::default();
    scene.memory = PlannerMemory::default();
    for id in &ids {
        scene.deliver(id);
    }

    scene.converge();
    scene.pass(130);
    scene.converge();

    scene.check();
    assert!(scene.provider.webhooks.iter().filter(|one| ids.contains(&one.id)).all(|one| !one.lives()));
}

#[test]
fn an_unknown_state_and_errors_are_shown() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    scene.pass(2);
    let one = scene.ledger.living(CUSTOMERS).next().unwrap().clone();
    let intended = model::Subscription { phase: SubscriptionPhase::Intended, id: None, ..one };
    scene.write(&[SubscriptionChange::Put(Box::new(intended.clone()))]);
    let call = super::super::ProviderCall::Subscribe(Box::new(intended));
    let strange = super::super::CallOutcome::Done {
        state: Some(6),
        id: Some("w-1".into()),
        errors: vec!["watch out".into()],
    };

    let (changes, _) = scene.input(|input| settle(input, &call, &strange));
    scene.write(&changes);

    let shown = scene.ledger.by_id("w-1").unwrap();
    assert_eq!(
        (shown.phase, shown.problem.as_deref()),
        (SubscriptionPhase::Awaiting, Some("the provider says: ⟪watch out⟫"))
    );
}

#[test]
fn an_unknown_secret_is_a_gap_until_another_is_active() {
    let mut scene = settled(&[CUSTOMERS]);
    *scene.wanted.get_mut(&CUSTOMERS).unwrap() = wanted("secret-2");

    scene.pass(200);

    assert_eq!(scene.gaps().iter().map(|gap| gap.cause).collect::<Vec<_>>(), [GapCause::Secret]);
    scene.check();
}

#[test]
fn a_new_secret_waits_for_every_receiver_with_a_heartbeat() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    let slow = ReceiverReport { worker: "worker:2".into(), at: scene.now, ..ReceiverReport::default() };
    scene.ledger.heard.insert("worker:2".into(), slow);

    scene.round(None);
    scene.memory.secrets.insert(Fingerprint::of("secret-1"), scene.now);
    scene.round(None);
    assert!(scene.provider.webhooks.is_empty());

    let known = scene.ledger.heard["worker:1"].accounting.clone();
    scene.ledger.heard.get_mut("worker:2").unwrap().accounting = known;
    scene.round(None);
    assert_eq!(scene.provider.webhooks.len(), 1);
}

#[test]
fn a_silence_is_a_gap_only_if_it_is_implausibly_long() {
    let mut scene = settled(&[CUSTOMERS]);
    scene.rules.silence = Some(SilenceRules { factor: 3.0, learning: 10_000 * SECOND, min: 60 * SECOND });
    let id = scene.only(CUSTOMERS).id.clone();
    // A delivery every five minutes, with one night of two hours.
    for number in 0..60 {
        scene.deliver(&id);
        scene.pass(1);
        scene.now += if number == 30 { 7_200 } else { 300 } * SECOND;
    }
    scene.deliver(&id);
    scene.pass(1);
    let last = scene.ledger.heard["worker:1"].webhooks[&id].last;

    scene.now = last + 20_000 * SECOND;
    scene.pass(1);
    assert!(scene.gaps().is_empty(), "{:?}", scene.gaps());
    scene.now = last + 22_000 * SECOND;
    scene.pass(3);

    let gaps = scene.gaps();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!((gaps[0].cause, gaps[0].from), (GapCause::Silence, last - SECOND));
    assert_eq!(scene.ledger.repairs.len(), 1);
}

#[test]
fn a_stop_ends_with_a_later_task_and_requests_a_repair() {
    let mut scene = settled(&[CUSTOMERS]);
    let gap = scene.opened_by_worker(GapCause::Stopped, 5);

    scene.round(None);

    assert!(scene.ledger.gaps[&gap].to.is_some());
    assert_eq!(scene.ledger.repairs[&gap].from, 5);
}

#[test]
fn the_stream_of_a_recreated_subscription_starts_with_it() {
    let mut scene = settled(&[CUSTOMERS]);
    let before = scene.ledger.start.clone().unwrap();
    let id = scene.only(CUSTOMERS).id.clone();
    scene.provider.set(&id, State::Deleted);

    scene.pass(90);

    let after = scene.ledger.start.clone().unwrap();
    assert_eq!(after.at, before.at);
    assert!(after.targets[&CUSTOMERS].since > before.targets[&CUSTOMERS].since);
}

#[test]
fn a_provider_that_changes_a_subscription_is_asked_once() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    scene.provider.renames = true;
    scene.pass(300);

    assert_eq!(scene.provider.living(CUSTOMERS).count(), 1, "{:?}", scene.brief());
    let one = scene.ledger.living(CUSTOMERS).next().unwrap();
    assert!(one.problem.as_deref().is_some_and(|problem| problem.contains("/a/x")), "{one:?}");
}

#[test]
fn other_events_and_another_spelling_are_shown_not_changed() {
    let mut scene = Scene::new(&[CUSTOMERS]);
    scene.provider.adds_event = true;
    scene.wanted.get_mut(&CUSTOMERS).unwrap().url = "https://hooks.example.com:443/a".to_owned();
    scene.pass(300);

    assert_eq!(scene.provider.living(CUSTOMERS).count(), 1, "{:?}", scene.brief());
    let one = scene.ledger.living(CUSTOMERS).next().unwrap();
    assert_eq!(one.phase, SubscriptionPhase::Active);
    assert!(one.problem.as_deref().is_some_and(|problem| problem.contains("other events")), "{one:?}");
}

#[test]
fn an_unreadable_id_delays_nothing() {
    let mut scene = settled(&[CUSTOMERS]);
    let id = scene.only(CUSTOMERS).id.clone();
    let strange = scene.provider.add_foreign(CUSTOMERS, "theirs", "https://hooks.example.com/a", "secret-1");
    scene.provider.unreadable.insert(strange.clone());
    scene.deliver(&strange);
    scene.pass(30);
    scene.provider.set(&id, State::Disabled);

    scene.pass(61);

    assert_eq!(scene.only(CUSTOMERS).state, State::Active);
    assert!(scene.calls.contains(&"identify"));
    scene.check();
}

#[test]
fn a_hook_created_during_the_list_is_not_lost() {
    let scene = settled(&[CREATED]);
    let one = scene.ledger.living(CREATED).next().unwrap().clone();
    let call = super::super::ProviderCall::List { planned: one.since };

    let nothing = super::super::CallOutcome::Listed(Vec::new());
    let (changes, _) = scene.input(|input| settle(input, &call, &nothing));

    assert_eq!(changes, []);
    scene.check();
}
