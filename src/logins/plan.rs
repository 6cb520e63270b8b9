//! What the owner of a grant does next, as a pure function of what it knows: without a clock or Kafka.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use provider::auth::grant::{Grant, GrantState, RefreshBase, RefreshCause, RefreshIntent};

/// An open intent is recovered when the access token has this long to live: until then no request needs a new token, and a
/// worker with the answer may still commit it.
const RECOVERY_LEAD_MS: i64 = 60_000;
/// Limit of that wait: a clock may be wrong, and refreshes begin six minutes ahead at the earliest.
const MAX_RECOVERY_DELAY: Duration = Duration::from_secs(360);
/// Longest wait between two presentations with unknown outcome.
const MAX_RECOVERY_BACKOFF: Duration = Duration::from_secs(300);
/// Between two refreshes because the token ends, at least. It doubles while tokens live hardly longer.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
const MAX_REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Between two refreshes because an API has refused the token.
const REFUSED_INTERVAL: Duration = Duration::from_secs(30);
/// Refreshes of refused tokens within [`REFUSED_WINDOW`]: more do not help with an API that refuses every token.
const REFUSED_LIMIT: usize = 3;
const REFUSED_WINDOW: Duration = Duration::from_secs(600);

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Nothing until something changes.
    Idle,
    /// Nothing before this time.
    WaitUntil(Instant),
    /// Present the refresh token of this serial.
    Refresh { serial: u64, cause: RefreshCause },
    /// Present it again: the outcome of the current intent is unknown, and this worker first saw it at that time.
    Recover { orphan: RefreshBase, seen: Instant },
    /// Encrypt it with the current key.
    Reseal,
}

/// Facts beside the grant itself.
#[derive(Debug)]
pub(super) struct PlanInput<'a> {
    /// It is encrypted with the previous key.
    pub(super) is_sealed_before: bool,
    /// The serial whose token an API refused last.
    pub(super) refused: Option<u64>,
    /// The history of refreshes.
    pub(super) memory: &'a RefreshHistory,
    pub(super) now: Instant,
    /// The provider's time, in milliseconds since 1970.
    pub(super) provider_ms: i64,
    /// Jitter from 0 to 1, constant for one serial.
    pub(super) chance: f64,
}

/// What the refresher of a grant remembers.
#[derive(Debug, Default)]
pub(super) struct RefreshHistory {
    /// The open intent, and when this worker first saw it.
    first_seen: Option<(String, Instant)>,
    /// When tokens were refreshed because an API had refused them.
    refusals: VecDeque<Instant>,
    /// Consecutive presentations with unknown outcome.
    unknown_outcomes: u32,
    /// Consecutive token sets that expired at once.
    short_lived: u32,
    /// No refresh before then because a token expires.
    not_due_before: Option<Instant>,
    /// No attempt before then.
    pub(super) not_before: Option<Instant>,
}

impl RefreshHistory {
    /// Records the open intent, if there is one.
    pub(super) fn observe(&mut self, grant: Option<&Grant>, now: Instant) {
        let intent = grant.and_then(Grant::intent).map(|intent| &intent.id);
        match intent {
            None => self.first_seen = None,
            Some(id) if self.first_seen.as_ref().is_some_and(|(seen, _)| seen == id) => {}
            Some(id) => self.first_seen = Some((id.clone(), now)),
        }
    }

    /// Records an intent of this worker with an unknown outcome, from when it started: nothing was sent under it before, nor
    /// will be after its window.
    pub(super) fn outcome_unknown(&mut self, intent: String, at: Instant) {
        self.first_seen = Some((intent, at));
        self.unknown_outcomes = self.unknown_outcomes.saturating_add(1);
    }

    /// The outcome of the last presentation is known.
    pub(super) fn outcome_known(&mut self) {
        self.unknown_outcomes = 0;
    }

    /// Records new tokens with this lifetime.
    pub(super) fn refreshed(&mut self, now: Instant, life: Duration) {
        // Otherwise tokens that expire at once would be refreshed without a pause.
        self.short_lived =
            if life < 2 * MIN_REFRESH_INTERVAL { self.short_lived.saturating_add(1) } else { 0 };
        let wait = match self.short_lived {
            0 => life / 2,
            count => MIN_REFRESH_INTERVAL.saturating_mul(1 << (count - 1).min(10)).min(MAX_REFRESH_INTERVAL),
        };
        self.not_due_before = Some(now + wait);
    }

    /// Records a refresh because of a refused token.
    pub(super) fn refused(&mut self, now: Instant) {
        if self.refusals.len() == REFUSED_LIMIT {
            self.refusals.pop_front();
        }
        self.refusals.push_back(now);
    }

    /// When a token that is refused now may be refreshed.
    fn refusable_at(&self, now: Instant) -> Instant {
        let apart = self.refusals.back().map(|last| *last + REFUSED_INTERVAL);
        let full = self.refusals.len() == REFUSED_LIMIT;
        let crowd = self.refusals.front().filter(|_| full).map(|first| *first + REFUSED_WINDOW);
        [apart, crowd].into_iter().flatten().fold(now, Instant::max)
    }
}

/// The next step for a grant that this worker owns.
pub(super) fn next_step(grant: &Grant, known: &PlanInput<'_>) -> NextStep {
    let PlanInput { memory, now, .. } = *known;
    let wanted = match &grant.state {
        GrantState::LoggedOut { .. } | GrantState::Lost { .. } => None,
        GrantState::Refreshing { intent, .. } => {
            let seen =
                memory.first_seen.as_ref().filter(|(id, _)| *id == intent.id).map_or(now, |(_, at)| *at);
            let recover = NextStep::Recover { orphan: grant.base(intent), seen };
            Some((recoverable_at(grant, intent, seen, known), recover))
        }
        GrantState::Ready { .. } => ready(grant, known),
    };
    let (at, next) = match wanted {
        // A refresh encrypts with the current key anyway.
        Some((at, next)) if at <= now || grant.intent().is_some() || !known.is_sealed_before => (at, next),
        _ if known.is_sealed_before => (now, NextStep::Reseal),
        _ => return NextStep::Idle,
    };
    match memory.not_before.map_or(at, |before| at.max(before)) {
        at if at > now => NextStep::WaitUntil(at),
        _ => next,
    }
}

/// When the token of an open intent is presented again. Not before [`RefreshIntent::patience`], which keeps two presentations
/// apart; and, while the access token is valid, not before a new one is needed. The second wait is not needed for safety: it only
/// gives an answer on a disk or behind a broken connection time to arrive.
fn recoverable_at(grant: &Grant, intent: &RefreshIntent, seen: Instant, known: &PlanInput<'_>) -> Instant {
    let PlanInput { now, memory, provider_ms, .. } = *known;
    let doubled = intent.patience().saturating_mul(1 << memory.unknown_outcomes.saturating_sub(1).min(10));
    let at = seen + intent.patience().max(doubled.min(MAX_RECOVERY_BACKOFF));
    let is_refused = intent.cause == RefreshCause::Refused || known.refused == Some(grant.serial);
    let Some(tokens) = grant.tokens().filter(|_| !is_refused) else { return at };
    let spare = tokens.access_expires_ms.saturating_sub(provider_ms).saturating_sub(RECOVERY_LEAD_MS);
    let needed =
        now + Duration::from_millis(u64::try_from(spare).unwrap_or_default()).min(MAX_RECOVERY_DELAY);
    at.max(needed.min(seen + MAX_RECOVERY_DELAY))
}

fn ready(grant: &Grant, known: &PlanInput<'_>) -> Option<(Instant, NextStep)> {
    let PlanInput { now, memory, provider_ms, .. } = *known;
    let refresh = |cause| NextStep::Refresh { serial: grant.serial, cause };
    let left = grant.due_ms(known.chance)?.saturating_sub(provider_ms);
    let due = now + Duration::from_millis(u64::try_from(left).unwrap_or_default());
    let due = memory.not_due_before.map_or(due, |not_due_before| due.max(not_due_before));
    let refused = (known.refused == Some(grant.serial)).then(|| memory.refusable_at(now));
    Some(match refused {
        Some(at) if at < due => (at, refresh(RefreshCause::Refused)),
        _ => (due, refresh(RefreshCause::Due)),
    })
}

#[cfg(test)]
mod tests {
    use provider::auth::grant::samples::{AT_MS, intent, ready as fresh};

    use super::*;

    struct PlanScene {
        memory: RefreshHistory,
        now: Instant,
        refused: Option<u64>,
        is_sealed_before: bool,
        provider_ms: i64,
    }

    impl PlanScene {
        fn new() -> Self {
            let (memory, now) = (RefreshHistory::default(), Instant::now());
            Self { memory, now, refused: None, is_sealed_before: false, provider_ms: AT_MS }
        }

        fn next(&self, grant: &Grant) -> NextStep {
            let Self { memory, now, refused, is_sealed_before, provider_ms } = self;
            let (now, refused, is_sealed_before, provider_ms) =
                (*now, *refused, *is_sealed_before, *provider_ms);
            next_step(grant, &PlanInput { is_sealed_before, refused, memory, now, provider_ms, chance: 0.5 })
        }
    }

    const DUE: NextStep = NextStep::Refresh { serial: 1, cause: RefreshCause::Due };
    const REFUSED: NextStep = NextStep::Refresh { serial: 1, cause: RefreshCause::Refused };

    #[test]
    fn token_is_refreshed_five_minutes_ahead_by_the_provider_clock() {
        let (mut scene, grant) = (PlanScene::new(), fresh("acc"));

        assert_eq!(scene.next(&grant), NextStep::WaitUntil(scene.now + Duration::from_secs(3_300)));
        scene.provider_ms = AT_MS + 3_300_000;
        assert_eq!(scene.next(&grant), DUE);
        scene.memory.not_before = Some(scene.now + Duration::from_secs(9));
        assert_eq!(scene.next(&grant), NextStep::WaitUntil(scene.now + Duration::from_secs(9)));
    }

    #[test]
    fn refused_token_is_refreshed_at_once_then_less_often() {
        let (mut scene, grant) = (PlanScene::new(), fresh("acc"));
        let mut times = Vec::new();
        scene.refused = Some(1);
        let start = scene.now;

        for _ in 0..5 {
            if let NextStep::WaitUntil(at) = scene.next(&grant) {
                scene.now = at;
            }
            assert_eq!(scene.next(&grant), REFUSED);
            times.push((scene.now - start).as_secs());
            let now = scene.now;
            scene.memory.refused(now);
        }

        assert_eq!(times, [0, 30, 60, 600, 630]);
        scene.refused = Some(0);
        assert!(
            matches!(scene.next(&grant), NextStep::WaitUntil(_)),
            "a refusal of an older serial does not count"
        );
    }

    #[test]
    fn wait_for_an_open_intent_counts_from_when_it_was_seen() {
        let mut scene = PlanScene::new();
        let refreshing = fresh("acc").begin(1, intent("i")).unwrap();
        let seen = scene.now;
        scene.provider_ms = AT_MS + 3_600_000;
        scene.memory.observe(Some(&refreshing), seen);

        scene.now += Duration::from_secs(14);
        scene.memory.observe(Some(&refreshing), scene.now);
        assert_eq!(scene.next(&refreshing), NextStep::WaitUntil(seen + Duration::from_secs(15)));
        scene.now += Duration::from_secs(1);
        let orphan = refreshing.base(refreshing.intent().unwrap());
        assert_eq!(scene.next(&refreshing), NextStep::Recover { orphan: orphan.clone(), seen });
        let other = refreshing.recover(&orphan, Duration::from_secs(15), intent("j")).unwrap();
        scene.memory.observe(Some(&other), scene.now);
        assert_eq!(scene.next(&other), NextStep::WaitUntil(scene.now + Duration::from_secs(15)));
    }

    #[test]
    fn open_intent_waits_while_the_access_token_is_valid() {
        let mut scene = PlanScene::new();
        let refreshing = fresh("acc").begin(1, intent("i")).unwrap();
        let seen = scene.now;
        scene.memory.observe(Some(&refreshing), seen);
        let after = |seconds| NextStep::WaitUntil(seen + Duration::from_secs(seconds));

        scene.provider_ms = AT_MS + 3_600_000 - 300_000;
        assert_eq!(scene.next(&refreshing), after(240), "a minute before it expires");
        scene.provider_ms = AT_MS + 3_600_000 - 70_000;
        assert_eq!(scene.next(&refreshing), after(15), "not before the window and the grace time");
        scene.provider_ms = AT_MS - 86_400_000;
        assert_eq!(scene.next(&refreshing), after(360), "a clock that is a day behind does not delay it");
        scene.refused = Some(1);
        assert_eq!(scene.next(&refreshing), after(15), "the access token is refused");
        scene.refused = None;
        let refused = RefreshIntent { cause: RefreshCause::Refused, ..intent("i") };
        assert_eq!(scene.next(&fresh("acc").begin(1, refused).unwrap()), after(15));
    }

    #[test]
    fn unknown_outcomes_back_off() {
        let mut scene = PlanScene::new();
        let refreshing = fresh("acc").begin(1, intent("i")).unwrap();
        scene.provider_ms = AT_MS + 3_600_000;
        let mut waits = Vec::new();

        for _ in 0..7 {
            scene.memory.outcome_unknown("i".into(), scene.now);
            let NextStep::WaitUntil(at) = scene.next(&refreshing) else { panic!("it does not wait") };
            waits.push((at - scene.now).as_secs());
        }

        assert_eq!(waits, [15, 30, 60, 120, 240, 300, 300]);
        scene.memory.outcome_known();
        scene.memory.outcome_unknown("i".into(), scene.now);
        assert_eq!(scene.next(&refreshing), NextStep::WaitUntil(scene.now + Duration::from_secs(15)));
    }

    #[test]
    fn tokens_that_expire_at_once_back_off() {
        let mut scene = PlanScene::new();
        let mut ended = fresh("acc");
        if let GrantState::Ready { tokens } = &mut ended.state {
            tokens.access_expires_ms = tokens.access_since_ms;
        }
        assert_eq!(scene.next(&ended), DUE);
        let mut waits = Vec::new();

        for _ in 0..8 {
            scene.memory.refreshed(scene.now, Duration::ZERO);
            let NextStep::WaitUntil(at) = scene.next(&ended) else { panic!("it does not wait") };
            waits.push((at - scene.now).as_secs());
            scene.now = at;
        }

        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        scene.memory.refreshed(scene.now, Duration::from_secs(40));
        assert_eq!(
            scene.next(&ended),
            NextStep::WaitUntil(scene.now + Duration::from_secs(20)),
            "half of its lifetime"
        );
        scene.memory.refreshed(scene.now, Duration::ZERO);
        scene.refused = Some(1);
        assert_eq!(scene.next(&ended), REFUSED, "a refused token is refreshed at once");
    }

    #[test]
    fn grant_under_the_old_key_is_resealed_unless_refresh_is_due() {
        let (mut scene, grant) = (PlanScene::new(), fresh("acc"));
        scene.is_sealed_before = true;

        assert_eq!(scene.next(&grant), NextStep::Reseal);
        assert_eq!(scene.next(&grant.log_out(AT_MS)), NextStep::Reseal);
        scene.provider_ms = AT_MS + 3_600_000;
        assert_eq!(scene.next(&grant), DUE);
        let refreshing = grant.begin(1, intent("i")).unwrap();
        assert!(matches!(scene.next(&refreshing), NextStep::WaitUntil(_)));
    }

    #[test]
    fn lost_and_logged_out_grants_are_idle() {
        let mut scene = PlanScene::new();
        let refreshing = fresh("acc").begin(1, intent("i")).unwrap();
        let lost =
            refreshing.lose(&refreshing.base(refreshing.intent().unwrap()), "invalid_grant", AT_MS).unwrap();
        (scene.provider_ms, scene.refused) = (i64::MAX, Some(1));

        assert_eq!(scene.next(&lost), NextStep::Idle);
        assert_eq!(scene.next(&fresh("acc").log_out(AT_MS)), NextStep::Idle);
    }
}
