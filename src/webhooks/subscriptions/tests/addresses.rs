//! Hooks at their own address, at the shared one, and on their way from one to the other.

use super::{super::OtherAddress, provider::Fault, *};

const SHARED: &str = "https://hooks.example.com/api/webhooks/incoming/Invoicing";
const HOOKS: [Target; 3] = [
    CREATED,
    Target::Invoicing(InvoicingHook { entity: InvoicingEntity::Bank, action: InvoicingAction::Updated }),
    Target::Invoicing(InvoicingHook { entity: InvoicingEntity::Due, action: InvoicingAction::Deleted }),
];

fn own(target: Target) -> String {
    let Target::Invoicing(hook) = target else { panic!("{target} is no hook") };
    format!("{SHARED}/{}", hook.slug())
}

/// As `invoicing.hook.address` says it.
fn set_own(scene: &mut Scene, is_own: bool) {
    for (target, one) in &mut scene.wanted {
        let (own, shared) = (own(*target), SHARED.to_owned());
        (one.url, one.other) = match is_own {
            true => (own, Some(OtherAddress::Fallback(shared))),
            false => (shared, Some(OtherAddress::Former(own))),
        };
    }
}

fn scene() -> Scene {
    let mut scene = Scene::new(&HOOKS);
    set_own(&mut scene, true);
    scene
}

fn urls(scene: &Scene) -> Vec<String> {
    HOOKS.map(|target| scene.only(target).url.clone()).to_vec()
}

fn subscribed(scene: &Scene) -> usize {
    scene.calls.iter().filter(|call| **call == "subscribe").count()
}

#[test]
fn each_hook_gets_its_own_address_where_it_is_taken() {
    let mut scene = scene();

    scene.converge();

    scene.check();
    assert_eq!((urls(&scene), subscribed(&scene)), (HOOKS.map(own).to_vec(), 3));
}

#[test]
fn a_strict_provider_refuses_once_and_gets_the_shared_address() {
    let mut scene = scene();
    scene.provider.only_hooks_at = Some(SHARED);

    scene.converge();
    assert_eq!((urls(&scene), subscribed(&scene)), (vec![SHARED.to_owned(); 3], 1 + 3));
    // Another task finds the answer in the ledger.
    scene.memory = PlannerMemory::default();
    scene.pass(200);

    assert_eq!((urls(&scene), subscribed(&scene)), (vec![SHARED.to_owned(); 3], 1 + 3));
    assert!(scene.gaps().is_empty());
}

#[test]
fn an_own_address_without_echo_falls_back_to_the_shared_one() {
    let mut scene = scene();
    scene.provider.only_hooks_at = Some(SHARED);
    scene.provider.drops_elsewhere = true;

    scene.converge();

    assert_eq!(urls(&scene), vec![SHARED.to_owned(); 3]);
}

#[test]
fn a_listed_hook_without_echo_falls_back_to_the_shared_address() {
    let mut scene = scene();
    scene.provider.only_echoes_at = Some(SHARED);

    scene.pass(590);
    let is_awaiting = |one: &model::Subscription| one.phase == SubscriptionPhase::Awaiting;
    assert!(scene.ledger.subscriptions.values().all(is_awaiting), "{:?}", scene.brief());
    scene.converge();

    assert_eq!(urls(&scene), vec![SHARED.to_owned(); 3]);
    let reported: Vec<_> = scene.gaps().iter().map(|gap| (gap.cause, gap.state)).collect();
    assert!(reported.contains(&(GapCause::Awaiting, GapState::Unrepairable)), "{reported:?}");
    assert!(scene.gaps().iter().all(|gap| gap.detail.contains("echo")), "{:?}", scene.gaps());
}

#[test]
fn a_rotated_secret_does_not_ask_for_the_refused_address_again() {
    let mut scene = scene();
    scene.provider.only_hooks_at = Some(SHARED);
    scene.converge();
    for one in scene.wanted.values_mut() {
        one.fingerprint = Fingerprint::of("secret-2");
        one.known.insert(Fingerprint::of("secret-2"));
    }

    scene.pass(300);

    assert_eq!((urls(&scene), subscribed(&scene)), (vec![SHARED.to_owned(); 3], 1 + 3 + 3));
    assert!(HOOKS.iter().all(|hook| scene.only(*hook).fingerprint == Fingerprint::of("secret-2")));
}

#[test]
fn a_forgotten_refusal_is_tried_again() {
    let mut scene = scene();
    scene.provider.only_hooks_at = Some(SHARED);
    scene.converge();

    for (only, expected) in [(Some(SHARED), vec![SHARED.to_owned(); 3]), (None, HOOKS.map(own).to_vec())] {
        scene.provider.only_hooks_at = only;
        scene.now += 8 * 86_400 * SECOND;
        scene.pass(200);

        assert_eq!(urls(&scene), expected);
    }
    assert_eq!(subscribed(&scene), 1 + 3 + 1 + 3);
    assert!(scene.gaps().is_empty());
}

#[test]
fn hooks_move_between_addresses_without_a_gap() {
    let mut scene = scene();
    set_own(&mut scene, false);
    scene.converge();
    assert_eq!(urls(&scene), vec![SHARED.to_owned(); 3]);

    for (is_own, expected) in [(true, HOOKS.map(own).to_vec()), (false, vec![SHARED.to_owned(); 3])] {
        set_own(&mut scene, is_own);
        for _ in 0..200 {
            scene.pass(1);
            for target in HOOKS {
                let mut living = scene.provider.living(target);
                assert!(living.any(|one| one.state == State::Active), "{target}");
            }
        }

        assert_eq!(urls(&scene), expected);
        scene.check();
    }
    assert!(scene.gaps().is_empty());
}

#[test]
fn hooks_at_either_address_are_known_without_a_ledger() {
    for is_own in [true, false] {
        let mut scene = scene();
        scene.converge();
        let ids: Vec<String> = scene.provider.webhooks.iter().map(|one| one.id.clone()).collect();
        set_own(&mut scene, is_own);
        (scene.ledger, scene.memory) = (SubscriptionState::default(), PlannerMemory::default());

        scene.converge();
        scene.pass(130);
        scene.converge();

        scene.check();
        let left = scene.provider.webhooks.iter().filter(|one| ids.contains(&one.id) && one.lives());
        assert_eq!(left.count(), 0, "hooks that the ledger does not have would deliver forever");
    }
}

#[test]
fn one_hook_that_is_always_refused_stops_no_other() {
    let mut scene = scene();
    scene.provider.refuses = Some(HOOKS[0]);

    scene.pass(900);

    for target in &HOOKS[1..] {
        assert_eq!(scene.only(*target).url, own(*target));
    }
    let refused = scene.ledger.subscriptions.values().filter(|one| one.target == HOOKS[0]);
    assert!(refused.count() <= 2, "one for each address: {:?}", scene.brief());
    assert!(subscribed(&scene) < 40, "{}", subscribed(&scene));
    scene.provider.refuses = None;
    scene.pass(900);
    assert_eq!(scene.provider.living(HOOKS[0]).filter(|one| one.state == State::Active).count(), 1);
}

#[test]
fn hooks_stay_shared_while_an_older_worker_receives() {
    let mut scene = scene();
    let older = ReceiverReport {
        worker: "worker:2".into(),
        at: i64::MAX / 2,
        ..scene.ledger.heard["worker:1"].clone()
    };
    let older = ReceiverReport { hook_addresses: false, ..older };
    scene.ledger.heard.insert("worker:2".into(), older);
    scene.pass(200);
    assert_eq!(urls(&scene), vec![SHARED.to_owned(); 3]);

    scene.ledger.heard.remove("worker:2");
    scene.pass(200);

    assert_eq!(urls(&scene), HOOKS.map(own).to_vec());
    assert!(scene.gaps().is_empty());
}

#[test]
fn nameless_hook_of_a_shared_segment_is_not_adopted() {
    for is_shared in [false, true] {
        let mut scene = Scene::new(&[CREATED]);
        scene.wanted.get_mut(&CREATED).unwrap().url = own(CREATED);
        scene.other_segments.extend(is_shared.then(|| "Invoicing".to_owned()));
        scene.provider.nameless = true;
        scene.provider.faults.push(Fault::RequestLost);
        let theirs = scene.provider.add_foreign(CREATED, "", &own(CREATED), "secret-9");

        scene.pass(400);

        assert_eq!(scene.ledger.by_id(&theirs).is_none(), is_shared);
        if is_shared {
            assert_eq!((subscribed(&scene), scene.provider.webhooks[0].touched), (1, 0));
            let problem = scene.ledger.subscriptions.values().find_map(|one| one.problem.as_deref());
            assert!(
                problem.is_some_and(|problem| problem.contains("another segment")),
                "{:?}",
                scene.brief()
            );
            // The remedy.
            let other = own(CREATED).replace("Invoicing", "Other");
            scene.wanted.get_mut(&CREATED).unwrap().url.clone_from(&other);
            scene.converge();
            assert_eq!((&scene.only(CREATED).url, scene.provider.webhooks[0].touched), (&other, 0));
        }
    }
}

#[test]
fn hook_of_a_connector_with_a_longer_name_is_left_alone() {
    let mut scene = scene();
    let name = format!("tributary/{}", Nonce::new(7));
    let theirs = scene.provider.add_foreign(CREATED, &name, SHARED, "secret-9");
    scene.provider.webhooks[0].owner = "hooks for more";

    scene.converge();
    scene.pass(200);

    assert!(scene.ledger.by_id(&theirs).is_none(), "{:?}", scene.brief());
    scene.check();
}
