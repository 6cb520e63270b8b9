//! A provider in memory that rotates refresh tokens, ends a grant whose token comes twice, and can be told to fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{retry::Retry, secret::Secret};
use model::Moment;
use parking_lot::Mutex;
use provider::{
    Provider,
    auth::grant::Issued,
    auth::identity,
    auth::identity::{Gate, Granted, OAuthCode, RefreshOutcome},
};
use tokio::sync::watch;
use tokio::time::Instant;
use tributary::logins::{Fault, Issuer, Issuers};

/// What becomes of the next refreshes.
#[derive(Debug, Clone)]
pub(super) enum Effect {
    /// The provider rotates, and nobody hears of it.
    LoseAnswer,
    /// It is not reached.
    NotSent,
    /// It is reached, does nothing, and nobody hears of that.
    Hang,
    /// It refuses with this word.
    Refuse(&'static str),
    /// It rotates, and answers when it is told to.
    Wait,
    /// Whoever presents the token meets a fault of the program.
    Panic,
}

/// Of grants whose tokens have numbers in the same thousand, one ends with the other.
const FAMILY: u32 = 1_000;

#[derive(Debug)]
struct State {
    /// Numbers of the refresh tokens that are good.
    good: BTreeSet<u32>,
    /// When each token was given.
    given: BTreeMap<u32, i64>,
    presented: Vec<(String, i64)>,
    /// Issuers that were made.
    made: usize,
    effects: VecDeque<Effect>,
    life: Duration,
    /// How old tokens of a login are.
    age: Duration,
}

/// The provider. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Bank {
    state: Arc<Mutex<State>>,
    /// How many tokens were presented.
    count: watch::Sender<usize>,
    /// Whether checks of tokens are held up.
    held: watch::Sender<bool>,
    /// Whether answers that wait may come.
    answers: watch::Sender<bool>,
    keys: watch::Sender<Keys>,
}

/// Whether the keys that tokens are checked with can be had.
#[derive(Debug, Default)]
struct Keys {
    are_away: bool,
    missed: usize,
}

impl Keys {
    fn miss(&mut self) -> bool {
        self.missed += usize::from(self.are_away);
        self.are_away
    }
}

impl Bank {
    /// One whose access tokens live so long.
    pub(super) fn new(life: Duration) -> Self {
        let state = State {
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

    /// What a login gives: a grant that begins with this refresh token.
    pub(super) fn log_in(&self, number: u32) -> Issued {
        let Granted { access, refresh, .. } = self.granted(number);
        let mut state = self.state.lock();
        state.good.insert(number);
        let at_ms = self.now_ms() - i64::try_from(state.age.as_millis()).unwrap();
        state.given.insert(number, at_ms);
        Issued { access, expires_in: Some(state.life), refresh, scopes: None, at_ms }
    }

    /// Tokens of the next logins were given so long ago.
    pub(super) fn age(&self, age: Duration) {
        self.state.lock().age = age;
    }

    pub(super) fn next(&self, effect: Effect) {
        self.state.lock().effects.push_back(effect);
    }

    /// Its keys take their time from here on, or do not any more.
    pub(super) fn hold_checks(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Refresh tokens in the order in which they were presented.
    pub(super) fn presented(&self) -> Vec<String> {
        self.state.lock().presented.iter().map(|(token, _)| token.clone()).collect()
    }

    /// How old the access token beside it was when each was presented.
    pub(super) fn ages(&self) -> Vec<Duration> {
        let state = self.state.lock();
        let age = |(token, at_ms): &(String, i64)| {
            let given = number(token).and_then(|number| state.given.get(&number)).copied().unwrap();
            Duration::from_millis(u64::try_from(at_ms - given).unwrap())
        };
        state.presented.iter().map(age).collect()
    }

    /// How many issuers were made.
    pub(super) fn made(&self) -> usize {
        self.state.lock().made
    }

    /// From here on tokens cannot be checked.
    pub(super) fn take_keys_away(&self) {
        self.keys.send_modify(|keys| keys.are_away = true);
    }

    /// Waits until somebody has wanted to, twice: the first time may have been before the last change.
    pub(super) async fn has_refused_keys(&self) {
        self.keys.subscribe().wait_for(|keys| keys.missed >= 2).await.unwrap();
    }

    /// Lets the answers come that wait.
    pub(super) fn answer(&self) {
        self.answers.send_replace(true);
    }

    /// Waits until so many were.
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

impl Issuers for Bank {
    fn issuer(&self, _: &Provider) -> Result<Arc<dyn Issuer>, identity::Error> {
        self.state.lock().made += 1;
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Issuer for Bank {
    async fn refresh(&self, token: &Secret, gate: Gate, _: Instant) -> RefreshOutcome {
        let effect = self.state.lock().effects.pop_front();
        if matches!(effect, Some(Effect::NotSent)) || !gate() {
            return RefreshOutcome::NotSent(identity::Error::Silent);
        }
        let count = {
            let mut state = self.state.lock();
            state.presented.push((token.reveal().to_owned(), self.now_ms()));
            state.presented.len()
        };
        self.count.send_replace(count);
        match effect {
            Some(Effect::Refuse("invalid_client")) => {
                return RefreshOutcome::Refused(OAuthCode::InvalidClient);
            }
            Some(Effect::Refuse(code)) => return RefreshOutcome::Refused(OAuthCode::Other(code.to_owned())),
            Some(Effect::Hang) => std::future::pending().await,
            Some(Effect::Panic) => panic!("a fault of the program, as the test wants it"),
            _ => {}
        }
        let next = self.rotate(token.reveal());
        match effect {
            Some(Effect::LoseAnswer) => return RefreshOutcome::Unknown(identity::Error::Silent),
            Some(Effect::Wait) => drop(self.answers.subscribe().wait_for(|may| *may).await),
            _ => {}
        }
        next.map_or_else(
            || RefreshOutcome::Refused(OAuthCode::InvalidGrant),
            |next| RefreshOutcome::Granted(self.granted(next)),
        )
    }

    async fn check(&self, _: &Secret) -> Result<Option<i64>, Fault> {
        self.held.subscribe().wait_for(|held| !held).await.unwrap();
        if self.keys.send_if_modified(|keys| keys.miss()) {
            return Err(Fault::Keys { source: "they are away".into(), retry: Retry::Later });
        }
        Ok(None)
    }

    fn now_ms(&self) -> i64 {
        Moment::now().micros() / 1_000
    }
}
