//! A provider in memory that rotates refresh tokens, ends a grant whose token comes twice, and fails on request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{retry::Retry, secret::Secret};
use model::Moment;
use parking_lot::Mutex;
use provider::{
    Provider,
    auth::grant::IssuedTokens,
    auth::identity,
    auth::identity::{Gate, Granted, OAuthCode, RefreshOutcome},
};
use tokio::sync::watch;
use tokio::time::Instant;
use tributary::logins::{Issuer, IssuerFactory, TokenFault};

/// The effect of a refresh.
#[derive(Debug, Clone)]
pub(super) enum RefreshEffect {
    /// The provider rotates, and the answer is lost.
    LoseAnswer,
    /// The request is not sent.
    NotSent,
    /// The provider gets the request, and never answers.
    Hang,
    /// It refuses with this error code.
    Refuse(&'static str),
    /// It rotates, and answers after [`TestIssuer::answer`].
    Wait,
    /// The call panics.
    Panic,
}

/// Grants whose tokens have numbers in the same thousand end together.
const FAMILY: u32 = 1_000;

#[derive(Debug)]
struct IssuerState {
    /// Numbers of the valid refresh tokens.
    good: BTreeSet<u32>,
    /// When each token was given.
    given: BTreeMap<u32, i64>,
    presented: Vec<(String, i64)>,
    /// The number of issuers that were made.
    made: usize,
    effects: VecDeque<RefreshEffect>,
    life: Duration,
    /// Age of the tokens of a login.
    age: Duration,
}

/// The provider. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct TestIssuer {
    state: Arc<Mutex<IssuerState>>,
    /// The number of tokens that were presented.
    count: watch::Sender<usize>,
    /// Whether checks of tokens wait.
    held: watch::Sender<bool>,
    /// Whether answers of [`RefreshEffect::Wait`] are sent.
    answers: watch::Sender<bool>,
    keys: watch::Sender<KeyAvailability>,
}

/// Whether the keys that verify tokens are available.
#[derive(Debug, Default)]
struct KeyAvailability {
    are_away: bool,
    missed: usize,
}

impl KeyAvailability {
    fn miss(&mut self) -> bool {
        self.missed += usize::from(self.are_away);
        self.are_away
    }
}

impl TestIssuer {
    /// With this lifetime of access tokens.
    pub(super) fn new(life: Duration) -> Self {
        let state = IssuerState {
            good: BTreeSet::new(),
            given: BTreeMap::new(),
            presented: Vec::new(),
            made: 0,
            effects: VecDeque::new(),
            life,
            age: Duration::ZERO,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            count: watch::Sender::new(0),
            held: watch::Sender::new(false),
            answers: watch::Sender::new(false),
            keys: watch::Sender::default(),
        }
    }

    /// The tokens of a login, which start with the refresh token of this number.
    pub(super) fn log_in(&self, number: u32) -> IssuedTokens {
        let Granted { access, refresh, .. } = self.granted(number);
        let mut state = self.state.lock();
        state.good.insert(number);
        let at_ms = self.now_ms() - i64::try_from(state.age.as_millis()).unwrap();
        state.given.insert(number, at_ms);
        IssuedTokens { access, expires_in: Some(state.life), refresh, scopes: None, at_ms }
    }

    /// The tokens of later logins have this age.
    pub(super) fn age(&self, age: Duration) {
        self.state.lock().age = age;
    }

    pub(super) fn next(&self, effect: RefreshEffect) {
        self.state.lock().effects.push_back(effect);
    }

    /// Has checks of tokens wait, or not any more.
    pub(super) fn hold_checks(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Refresh tokens in the order in which they were presented.
    pub(super) fn presented(&self) -> Vec<String> {
        self.state.lock().presented.iter().map(|(token, _)| token.clone()).collect()
    }

    /// The age of the access token when each refresh token was presented.
    pub(super) fn ages(&self) -> Vec<Duration> {
        let state = self.state.lock();
        let age = |(token, at_ms): &(String, i64)| {
            let given = number(token).and_then(|number| state.given.get(&number)).copied().unwrap();
            Duration::from_millis(u64::try_from(at_ms - given).unwrap())
        };
        state.presented.iter().map(age).collect()
    }

    /// The number of issuers that were made.
    pub(super) fn made(&self) -> usize {
        self.state.lock().made
    }

    /// Makes the keys unavailable: tokens cannot be checked any more.
    pub(super) fn take_keys_away(&self) {
        self.keys.send_modify(|keys| keys.are_away = true);
    }

    /// Waits until two checks have failed for that: the first may have been before the last change.
    pub(super) async fn has_refused_keys(&self) {
        self.keys.subscribe().wait_for(|keys| keys.missed >= 2).await.unwrap();
    }

    /// Sends the answers that wait.
    pub(super) fn answer(&self) {
        self.answers.send_replace(true);
    }

    /// Waits until `count` tokens were presented.
    pub(super) async fn has_seen(&self, count: usize) {
        self.count.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }

    fn granted(&self, number: u32) -> Granted {
        let now_ms = self.now_ms();
        let mut state = self.state.lock();
        state.given.insert(number, now_ms);
        Granted {
            access: format!("access-{number}").into(),
            access_expires_ms: Some(now_ms + i64::try_from(state.life.as_millis()).unwrap()),
            refresh: Some(format!("refresh-{number}").into()),
            identity: None,
            scopes: Vec::new(),
        }
    }

    /// The number of the next token, if this one is good.
    fn rotate(&self, token: &str) -> Option<u32> {
        let mut state = self.state.lock();
        let number = number(token)?;
        if !state.good.remove(&number) {
            state.good.retain(|other| other / FAMILY != number / FAMILY);
            return None;
        }
        state.good.insert(number + 1);
        Some(number + 1)
    }
}

fn number(token: &str) -> Option<u32> {
    token.strip_prefix("refresh-")?.parse().ok()
}

impl IssuerFactory for TestIssuer {
    fn issuer(&self, _: &Provider) -> Result<Arc<dyn Issuer>, identity::Error> {
        self.state.lock().made += 1;
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Issuer for TestIssuer {
    async fn refresh(&self, token: &Secret, gate: Gate, _: Instant) -> RefreshOutcome {
        let effect = self.state.lock().effects.pop_front();
        if matches!(effect, Some(RefreshEffect::NotSent)) || !gate() {
            return RefreshOutcome::NotSent(identity::Error::Silent);
        }
        let count = {
            let mut state = self.state.lock();
            state.presented.push((token.reveal().to_owned(), self.now_ms()));
            state.presented.len()
        };
        self.count.send_replace(count);
        match effect {
            Some(RefreshEffect::Refuse(code)) => {
                return RefreshOutcome::Refused(OAuthCode::Other(code.to_owned()));
            }
            Some(RefreshEffect::Hang) => std::future::pending().await,
            Some(RefreshEffect::Panic) => panic!("the test asked for this panic"),
            _ => {}
        }
        let next = self.rotate(token.reveal());
        match effect {
            Some(RefreshEffect::LoseAnswer) => return RefreshOutcome::Unknown(identity::Error::Silent),
            Some(RefreshEffect::Wait) => drop(self.answers.subscribe().wait_for(|may| *may).await),
            _ => {}
        }
        next.map_or_else(
            || RefreshOutcome::Refused(OAuthCode::InvalidGrant),
            |next| RefreshOutcome::Granted(self.granted(next)),
        )
    }

    async fn check(&self, _: &Secret) -> Result<Option<i64>, TokenFault> {
        self.held.subscribe().wait_for(|held| !held).await.unwrap();
        if self.keys.send_if_modified(|keys| keys.miss()) {
            return Err(TokenFault::Keys { source: "they are away".into(), retry: Retry::Later });
        }
        Ok(None)
    }

    fn now_ms(&self) -> i64 {
        Moment::now().micros() / 1_000
    }
}
