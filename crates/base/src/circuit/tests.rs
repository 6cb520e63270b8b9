use super::*;

fn closed() -> (CircuitInner, Instant) {
    let open_backoff = Backoff::new(OPEN_BACKOFF, 7);
    (CircuitInner { state: CircuitState::Closed { failures: 0 }, open_backoff, waiting: 0 }, Instant::now())
}

fn fail(circuit: &mut CircuitInner, times: u32, now: Instant) {
    for _ in 0..times {
        let probe = circuit.enter(now).unwrap();
        circuit.failed(now, probe);
    }
}

/// How long it stays open.
fn rest(circuit: &CircuitInner, now: Instant) -> Duration {
    match circuit.look(now) {
        Readiness::Until(until) => until - now,
        other => panic!("{other:?}"),
    }
}

#[test]
fn five_failures_in_a_row_open_the_circuit() {
    let (mut circuit, now) = closed();

    fail(&mut circuit, 4, now);
    circuit.succeeded();
    fail(&mut circuit, 4, now);
    assert_eq!(circuit.enter(now), Some(false));
    fail(&mut circuit, 1, now);

    assert_eq!(circuit.enter(now), None);
    let rest = rest(&circuit, now);
    assert!((500..=1_000).contains(&rest.as_millis()), "{rest:?}");
}

#[test]
fn exactly_one_probe_is_sent_until_it_is_answered() {
    let (mut circuit, now) = closed();
    fail(&mut circuit, 5, now);
    let later = now + rest(&circuit, now);

    assert_eq!(circuit.look(later), Readiness::Free);
    assert_eq!((circuit.enter(later), circuit.enter(later)), (Some(true), None));
    assert_eq!(circuit.look(later + OPEN_BACKOFF.longest), Readiness::Probing);
    circuit.succeeded();

    assert_eq!((circuit.enter(later), circuit.enter(later)), (Some(false), Some(false)));
}

#[test]
fn failed_probe_doubles_the_wait_up_to_30_seconds() {
    let (mut circuit, mut now) = closed();
    fail(&mut circuit, 5, now);

    let mut rests = Vec::new();
    for _ in 0..7 {
        let rest = rest(&circuit, now);
        rests.push(rest.as_millis());
        now += rest;
        fail(&mut circuit, 1, now);
    }

    for (rest, whole) in rests.iter().zip([1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]) {
        assert!((whole / 2..=whole).contains(rest), "{rests:?}");
    }
    circuit.succeeded();
    fail(&mut circuit, 5, now);
    assert!(rest(&circuit, now) <= OPEN_BACKOFF.first);
}

#[test]
fn dropped_probe_is_replaced_by_the_next() {
    let (mut circuit, now) = closed();
    fail(&mut circuit, 5, now);
    let later = now + rest(&circuit, now);
    assert_eq!(circuit.enter(later), Some(true));

    circuit.abandoned(later);

    assert_eq!((circuit.enter(later), circuit.enter(later)), (Some(true), None));
}

#[test]
fn inconclusive_probe_waits_one_second_each_time() {
    let (mut circuit, now) = closed();
    fail(&mut circuit, 5, now);
    let mut later = now + rest(&circuit, now);

    for _ in 0..5 {
        assert_eq!(circuit.enter(later), Some(true));
        circuit.inconclusive(later);
        assert_eq!((circuit.enter(later), rest(&circuit, later)), (None, OPEN_BACKOFF.first));
        later += OPEN_BACKOFF.first;
    }
}

#[test]
fn earlier_request_does_not_lengthen_the_wait() {
    let (mut circuit, now) = closed();
    let late = circuit.enter(now).unwrap();
    fail(&mut circuit, 5, now);
    let before = circuit.look(now);

    circuit.failed(now + Duration::from_millis(10), late);

    assert_eq!(circuit.look(now), before);
}

#[tokio::test]
async fn waiting_requests_are_sent_once_the_probe_is_answered() {
    let circuit = Circuit::new(ApiHost::Api);
    circuit.inner.lock().state = CircuitState::Open { until: Instant::now() };
    let far = Instant::now() + Duration::from_secs(30);
    let probe = circuit.enter().unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(circuit.ready(soon).await, Err(StaysOpen(None)));

    let (waited, ()) = tokio::join!(circuit.ready(far), async {
        tokio::task::yield_now().await;
        probe.succeeded();
    });

    waited.unwrap();
    assert!(circuit.enter().is_some() && circuit.enter().is_some());
}

#[tokio::test]
async fn short_deadline_fails_with_the_remaining_time() {
    let circuit = Circuit::new(ApiHost::Api);
    for _ in 0..OPENING_FAILURES {
        circuit.enter().unwrap().failed();
    }
    // Otherwise the circuit may be half open before it is checked.
    let hour = Duration::from_secs(3_600);
    if let CircuitState::Open { until } = &mut circuit.inner.lock().state {
        *until += hour;
    }

    let StaysOpen(left) = circuit.ready(Instant::now()).await.unwrap_err();

    assert!(left.is_some_and(|left| (hour / 2..=hour + OPEN_BACKOFF.first).contains(&left)), "{left:?}");
}

/// Half open: the next request is the probe.
fn half_open() -> (Circuit, Instant) {
    let circuit = Circuit::new(ApiHost::Identity);
    circuit.inner.lock().state = CircuitState::Open { until: Instant::now() };
    (circuit, Instant::now() + Duration::from_secs(30))
}

#[tokio::test]
async fn yielding_request_is_the_probe_if_no_other_waits() {
    let (circuit, far) = half_open();

    circuit.ready_yielding(far).await.unwrap();
    let probe = circuit.enter_yielding().unwrap();

    assert!(circuit.enter().is_none(), "it is the one probe");
    probe.succeeded();
    assert!(circuit.enter_yielding().is_ok_and(|pass| !pass.probe));
}

#[tokio::test]
async fn yielding_request_leaves_the_probe_to_another() {
    let (circuit, far) = half_open();
    let soon = Instant::now() + Duration::from_millis(20);
    let other = circuit.wait();
    assert_eq!(circuit.enter_yielding().unwrap_err(), StaysOpen(None));
    assert_eq!(circuit.ready_yielding(soon).await, Err(StaysOpen(None)));

    let (last, pass) = tokio::join!(circuit.ready_yielding(far), async {
        tokio::task::yield_now().await;
        let pass = circuit.pass(far).await.unwrap();
        drop(other);
        tokio::task::yield_now().await;
        let was_probe = pass.probe;
        pass.succeeded();
        was_probe
    });

    last.unwrap();
    assert!(pass, "the one that waited was the probe");
    assert!(circuit.enter_yielding().is_ok_and(|pass| !pass.probe));
}

#[tokio::test]
async fn yielding_request_proceeds_when_the_other_is_dropped() {
    let (circuit, far) = half_open();
    let other = circuit.wait();

    let (last, ()) = tokio::join!(circuit.ready_yielding(far), async {
        tokio::task::yield_now().await;
        drop(other);
    });

    last.unwrap();
    assert!(circuit.enter_yielding().is_ok_and(|pass| pass.probe));
}
