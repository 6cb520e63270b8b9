//! After drawn faults and crashes each target has one active subscription, and there is no orphan.

use super::{provider::Fault, *};

/// The same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const TARGETS: [Target; 4] = [
    CUSTOMERS,
    Target::Accounting(AccountingResource::Accounts),
    CREATED,
    Target::Invoicing(InvoicingHook { entity: InvoicingEntity::Bank, action: InvoicingAction::Updated }),
];

fn disturb(scene: &mut Scene, dice: &mut Dice, secrets: &mut u32) {
    let living: Vec<String> = scene
        .provider
        .webhooks
        .iter()
        .filter(|one| one.lives() && !one.is_foreign)
        .map(|one| one.id.clone())
        .collect();
    let some = (!living.is_empty()).then(|| living[dice.roll(living.len().max(1) as u64) as usize].clone());
    let target = TARGETS[dice.roll(4) as usize];
    match (dice.roll(12), some) {
        (0, Some(id)) => {
            let is_active =
                scene.provider.webhooks.iter().any(|one| one.id == id && one.state == State::Active);
            if is_active {
                scene.provider.set(&id, State::Disabled);
            }
        }
        (1, Some(id)) => scene.provider.set(&id, State::Deleted),
        (2, Some(id)) => scene.deliver(&id),
        (3, _) => {
            let faults = [Fault::AnswerLost, Fault::RequestLost, Fault::Refused, Fault::Unreachable];
            scene.provider.faults.push(faults[dice.roll(4) as usize]);
        }
        (4, _) => {
            *secrets += 1;
            let (now, before) = (format!("secret-{secrets}"), format!("secret-{}", *secrets - 1));
            for one in scene.wanted.values_mut() {
                one.fingerprint = Fingerprint::of(&now);
                one.known = BTreeSet::from([Fingerprint::of(&now), Fingerprint::of(&before)]);
            }
        }
        (5, _) => {
            let url = format!("https://hooks.example.com/{}", dice.roll(3));
            scene.wanted.values_mut().for_each(|one| one.url.clone_from(&url));
        }
        (6, _) => drop(scene.wanted.remove(&target)),
        (7, _) => {
            let like =
                scene.wanted.values().next().cloned().unwrap_or_else(|| wanted(&format!("secret-{secrets}")));
            scene.wanted.insert(target, like);
        }
        (8, _) => {
            scene.provider.more_events.insert(format!("Svc.New{}", dice.roll(2)));
            scene.memory.provider.names.clear();
        }
        (9, _) => scene.memory = PlannerMemory::default(),
        _ => scene.now += dice.roll(90) as i64 * SECOND,
    }
}

/// Every seed is a life of a connector with crashes in every place.
#[test]
fn drawn_lives_end_with_one_subscription_each_and_no_orphan() {
    for seed in crate::cycles::seeds("SUBSCRIPTIONS", 400) {
        let mut dice = Dice(seed);
        let mut scene = Scene::new(&TARGETS[..=dice.roll(4) as usize]);
        scene.provider.single = dice.roll(4) == 0;
        scene.rules.move_in_place = dice.roll(3) == 0;
        for target in TARGETS {
            scene.provider.add_foreign(target, "another's", "https://elsewhere.example.com/x", "theirs");
            scene.provider.add_foreign(target, "by hand", "https://hooks.example.com/a", "secret-1");
        }
        let mut secrets = 1;

        for _ in 0..60 {
            if dice.roll(3) == 0 {
                disturb(&mut scene, &mut dice, &mut secrets);
            }
            if dice.roll(3) > 0 {
                scene.hear();
                scene.acknowledge();
            }
            let end = (dice.roll(4) == 0)
                .then(|| (dice.roll(3) as usize, if dice.roll(2) == 0 { End::Before } else { End::Called }));
            scene.round(end);
            scene.now += dice.roll(20) as i64 * SECOND;
        }
        scene.provider.faults.clear();
        if scene.provider.single {
            // What cannot be replaced stays as it is, and says so: that is another test's.
            continue;
        }
        scene.pass(130);
        scene.converge();
        // What was given up shows itself, at the latest, by what it sends.
        let active = scene.provider.webhooks.iter().filter(|one| one.state == State::Active);
        let active: Vec<String> = active.map(|one| one.id.clone()).collect();
        for id in active {
            scene.deliver(&id);
        }
        scene.pass(5);
        scene.converge();
        scene.check();
    }
}
