//! Wrong clocks, and a slow provider.

use std::{sync::Arc, time::Duration};

use provider::auth::{
    Area,
    identity::{self, RefreshOutcome},
};
use simulator::knobs::Latency;
use tokio::time::Instant;

use super::{checked, identity, log_in, provider, refreshed};
use crate::product::simulator::{pass, start};

crate::tests! {
    plain a_clock_that_is_off_by_a_day_makes_no_difference;
    plain a_slow_refresh_ends_at_its_deadline;
}

const DAY: i64 = 86_400;

async fn a_clock_that_is_off_by_a_day_makes_no_difference() {
    for days in [-1, 1] {
        let simulator = start(|settings| settings.frozen_at = None).await;
        pass(&simulator, days * DAY);
        let provider = provider(&simulator);

        let entered = log_in(&provider, Area::Accounting).await;
        let (identity, check) = checked(&provider);
        let granted = refreshed(&identity, &entered.granted.refresh.unwrap()).await;
        let claims = check.access(&granted.access).await.unwrap();

        let left = claims.ends_ms - identity.clock().now_ms();
        assert!((3_500_000..=3_700_000).contains(&left), "{days} days off: ends in {left} ms");
        let difference = granted.access_expires_ms.unwrap() - claims.ends_ms;
        assert!(difference.abs() < 30_000, "{days} days off: {difference} ms apart");
    }
}

async fn a_slow_refresh_ends_at_its_deadline() {
    let simulator = start(|_| {}).await;
    let provider = provider(&simulator);
    let token = log_in(&provider, Area::Accounting).await.granted.refresh.unwrap();
    simulator.provider().turn(|knobs| knobs.identity.latency = Latency::Fixed { milliseconds: 60_000.0 });

    // Enough time to send, even on a loaded machine.
    let end = Instant::now() + Duration::from_secs(5);
    let outcome = identity(&provider).refresh(&token, Arc::new(|| true), end).await;

    assert!(matches!(outcome, RefreshOutcome::Unknown(identity::Error::Silent)), "{outcome:?}");
    assert!(end.elapsed() < Duration::from_secs(30), "{:?} late", end.elapsed());
}
