//! Staying logged in to the invoicing API.
//!
//! ```text
//! token wanted ─▶ one at hand? ─▶ it
//!                    └ one login at a time, in its own time: way ─▶ companies ─▶ choice ─▶ session, in memory only
//! ```
//!
//! - However many ask, one login is on its way. It has a time of its own: who asked first may be in a hurry.
//! - A token lives an hour and no way to renew it is documented: a new login comes shortly before its end, and where that
//!   fails the old one serves until then.
//! - Mail and password that are refused are not tried again: users get locked out. Whoever mends them makes a new [`Login`],
//!   as a task does that is restarted.
//! - A token that is refused right after a login is not answered with login after login.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use base::{
    retry::{ErrorChain, Retry},
    secret::Secret,
};

use super::{Choice, Session};
use crate::{
    api::{
        Ask, Client, Error, Priority,
        error::{Acted, Cause, Endpoint},
    },
    auth::{self, Access, Tokens, http::milliseconds},
};

/// How long a token lives.
const LIFE: Duration = Duration::from_secs(3_600);
/// So long before its end another is asked for.
const AHEAD: Duration = Duration::from_secs(300);
/// How long a login may take, whoever waits for it.
const LOGIN_TIME: Duration = Duration::from_secs(30);
/// Two logins are so far apart at least.
const APART: Duration = Duration::from_secs(10);
const AREA: &str = "invoicing";

/// How one gets in.
#[async_trait]
pub trait Way: fmt::Debug + Send + Sync {
    /// Gets in, as one company.
    async fn enter(&self, client: &Client, ask: &Ask) -> Result<Session, Error>;
}

/// By mail and password.
#[derive(Debug, Clone)]
pub struct Password {
    /// `invoicing.login.mail`.
    pub mail: String,
    /// `invoicing.login.password`.
    pub password: Secret,
    /// `invoicing.login.company`; `None` for the user's default.
    pub company: Option<i64>,
}

/// A login that renews itself.
#[derive(Debug)]
pub struct Login(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    way: Arc<dyn Way>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    serial: u64,
    current: Option<Current>,
    /// Why it is not tried again.
    refused: Option<String>,
    /// When the last login began.
    tried: Option<Instant>,
    /// The last login; it may have ended.
    running: Option<Running>,
}

#[derive(Debug, Clone)]
struct Current {
    access: Access,
    since: Instant,
}

/// How a login ended: well, or why not and what may be done about it.
type Ended = Result<(), (String, Retry)>;

/// A login on its way, for all who wait for it.
type Running = Shared<BoxFuture<'static, Ended>>;

impl Login {
    /// Nobody has logged in yet.
    pub fn new(client: Client, way: Arc<dyn Way>) -> Self {
        Self(Arc::new(Inner { client, way, state: Mutex::default() }))
    }

    /// Whether mail and password were refused, so that it is never tried again.
    pub fn is_refused(&self) -> bool {
        self.0.state.lock().refused.is_some()
    }

    /// The token at hand if it serves, else that of a login, else whatever serves at a pinch.
    async fn serve(
        &self,
        serves: impl Fn(&Current) -> bool,
        at_a_pinch: impl Fn(&Current) -> bool,
        end: Instant,
    ) -> Result<Access, auth::Error> {
        let since = Instant::now();
        loop {
            let login = {
                let mut state = self.0.state.lock();
                let at_hand = |test: &dyn Fn(&Current) -> bool| {
                    let current = state.current.as_ref().filter(|current| test(current));
                    current.map(|current| current.access.clone())
                };
                let pinch = at_hand(&at_a_pinch);
                // As long as the token serves, a login that failed is not followed by the next at once.
                let just_tried = state.tried.is_some_and(|tried| tried.elapsed() < APART);
                if let Some(access) = pinch.clone().filter(|_| just_tried).or_else(|| at_hand(&serves)) {
                    return Ok(access);
                }
                let login = self.0.login(&mut state);
                // With a token at a pinch there is no hurry: the login goes on by itself.
                match pinch {
                    Some(access) => return Ok(access),
                    None => login?,
                }
            };
            match timeout_at(end, login).await {
                Ok(Ok(())) => {}
                Ok(Err((words, retry))) => return Err(failed(words, retry)),
                Err(_) => return Err(auth::Error::Pending { grant: AREA.into(), waited: since.elapsed() }),
            }
        }
    }
}

impl Inner {
    /// The login on its way, or a new one.
    fn login(self: &Arc<Self>, state: &mut State) -> Result<Running, auth::Error> {
        if let Some(refused) = &state.refused {
            return Err(failed(refused.clone(), Retry::Never));
        }
        // One that has ended is not waited for.
        if let Some(running) = &state.running
            && running.clone().now_or_never().is_none()
        {
            return Ok(running.clone());
        }
        if let Some(current) = &state.current
            && current.since.elapsed() < APART
        {
            let words = "the token of a login a moment ago is refused";
            return Err(failed(words, Retry::After(APART.saturating_sub(current.since.elapsed()))));
        }
        // Apart from whoever asks: one that goes away, or is in a hurry, does not end it for the others.
        let login = tokio::spawn(Arc::clone(self).log_in());
        let given_up = |_| Err(("the login was given up".to_owned(), Retry::Later));
        let running = login.map(move |ended| ended.unwrap_or_else(given_up)).boxed().shared();
        (state.running, state.tried) = (Some(running.clone()), Some(Instant::now()));
        Ok(running)
    }

    async fn log_in(self: Arc<Self>) -> Ended {
        let ask = Ask::within(Priority::Webhook, LOGIN_TIME);
        match self.way.enter(&self.client, &ask).await {
            Ok(session) => {
                self.keep(session);
                Ok(())
            }
            Err(error) => {
                let words = ErrorChain(&error).to_string();
                if matches!(error.cause, Cause::Credentials | Cause::Refused | Cause::Forbidden { .. }) {
                    self.state.lock().refused = Some(words.clone());
                }
                Err((words, error.retry()))
            }
        }
    }

    fn keep(&self, session: Session) {
        let expires_ms = Some(self.client.0.clock.now_ms().saturating_add(milliseconds(LIFE)));
        let mut state = self.state.lock();
        state.serial += 1;
        let access = Access { header: session.header, serial: state.serial, expires_ms };
        state.current = Some(Current { access, since: Instant::now() });
    }
}

#[async_trait]
impl Tokens for Login {
    async fn token(&self, end: Instant) -> Result<Access, auth::Error> {
        let younger = |than: Duration| move |current: &Current| current.since.elapsed() < than;
        self.serve(younger(LIFE.saturating_sub(AHEAD)), younger(LIFE), end).await
    }

    async fn instead_of(&self, refused: &Access, end: Instant) -> Result<Access, auth::Error> {
        self.serve(|current| current.access.serial > refused.serial, |_| false, end).await
    }

    fn remedy(&self) -> Option<String> {
        Some("the invoicing login: check what its user may do".to_owned())
    }
}

#[async_trait]
impl Way for Password {
    async fn enter(&self, client: &Client, ask: &Ask) -> Result<Session, Error> {
        let session = client.log_in(&self.mail, &self.password, ask).await?;
        let company = choose(self.company, &session.companies).map_err(|cause| Error {
            endpoint: Endpoint { method: "POST", path: super::LOGIN.into() },
            status: None,
            cause,
            excerpt: None,
            acted: Acted::Yes,
            in_company: false,
        })?;
        client.select(&session, company, ask).await
    }
}

/// The company that is set, else the user's usual one, else the only one.
fn choose(set: Option<i64>, companies: &[Choice]) -> Result<i64, Cause> {
    let usual = || companies.iter().find(|company| company.default);
    let only = || companies.first().filter(|_| companies.len() == 1);
    if let Some(set) = set {
        return Ok(set);
    }
    usual().or_else(only).map(|company| company.id).ok_or_else(|| {
        let offered: Vec<_> = companies.iter().take(20).map(|company| company.id.to_string()).collect();
        Cause::Company { offered: if offered.is_empty() { "none".into() } else { offered.join(", ") } }
    })
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>, retry: Retry) -> auth::Error {
    auth::Error::Login { area: AREA, source: source.into(), retry }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{
        HostPolicy, Transport,
        api::{Budget, Options, Rates},
        auth::http::ProviderClock,
    };

    /// Gets in without anybody being asked; fails with a cause where there is one.
    #[derive(Debug)]
    struct Open(AtomicU64, fn() -> Option<Cause>);

    #[async_trait]
    impl Way for Open {
        async fn enter(&self, _: &Client, _: &Ask) -> Result<Session, Error> {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            if let Some(cause) = self.1() {
                let endpoint = Endpoint { method: "POST", path: "login".into() };
                let acted = Acted::No;
                return Err(Error { endpoint, status: None, cause, excerpt: None, acted, in_company: false });
            }
            let header = Secret::new(format!("Bearer {number}"));
            Ok(Session { header, refresh: Secret::new("refresh"), companies: Vec::new() })
        }
    }

    fn login(fails: fn() -> Option<Cause>) -> (Arc<Open>, Login, Instant) {
        let second = Duration::from_secs(1);
        let transport = Transport {
            connect: second,
            read: second,
            request: second,
            response_limit: 1 << 20,
            authorities: None,
            hosts: HostPolicy::listing(&["127.0.0.1"]),
        };
        let options = Options {
            base_url: "http://127.0.0.1:1".parse().unwrap(),
            subscription_key: Secret::new("key"),
            transport,
            api_version: None,
            egress_proxy: None,
        };
        let clock = ProviderClock::new(second);
        let client = Client::new(&options, Budget::new(Rates::default()), clock).unwrap();
        let way = Arc::new(Open(AtomicU64::new(0), fails));
        let login = Login::new(client, Arc::clone(&way) as _);
        (way, login, Instant::now() + Duration::from_secs(30))
    }

    /// Makes the token at hand so much older.
    fn age(login: &Login, by: Duration) {
        let mut state = login.0.state.lock();
        let current = state.current.as_mut().unwrap();
        current.since = current.since.checked_sub(by).unwrap();
        state.tried = state.tried.and_then(|tried| tried.checked_sub(by));
    }

    #[tokio::test]
    async fn many_share_one_login_and_another_comes_shortly_before_its_end() {
        let (way, login, end) = login(|| None);

        let shared = futures::future::join_all((0..50).map(|_| login.token(end))).await;
        age(&login, LIFE - AHEAD - Duration::from_secs(60));
        let young = login.token(end).await.unwrap();
        age(&login, Duration::from_secs(60));
        // It serves a little longer; the next is on its way.
        assert_eq!(login.token(end).await.unwrap().serial, 1);
        settled(&login).await;
        let next = login.token(end).await.unwrap();

        assert!(shared.iter().all(|access| access.as_ref().unwrap().serial == 1));
        assert_eq!((young.serial, next.serial, way.0.load(Ordering::Relaxed)), (1, 2, 2));
        assert_eq!(next.header.reveal(), "Bearer 1");
    }

    /// Waits for the login on its way.
    async fn settled(login: &Login) {
        let running = login.0.state.lock().running.clone();
        if let Some(running) = running {
            drop(running.await);
        }
    }

    #[tokio::test]
    async fn a_login_that_fails_ahead_of_the_end_costs_nothing_before_it() {
        static FAILS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let (way, login, end) =
            login(|| FAILS.load(Ordering::Relaxed).then_some(Cause::Server { again: None }));
        assert_eq!(login.token(end).await.unwrap().serial, 1);
        FAILS.store(true, Ordering::Relaxed);
        age(&login, LIFE - AHEAD);

        for logins in 2..4 {
            assert_eq!(login.token(end).await.unwrap().serial, 1);
            settled(&login).await;
            assert_eq!(login.token(end).await.unwrap().serial, 1);
            settled(&login).await;
            assert_eq!(way.0.load(Ordering::Relaxed), logins, "one at the heels of the other");
            age(&login, APART);
        }
        age(&login, AHEAD);

        assert_eq!(login.token(end).await.unwrap_err().retry(), Retry::Later);
    }

    #[tokio::test]
    async fn a_login_goes_on_when_who_asked_for_it_goes_away() {
        let (way, login, end) = login(|| None);

        assert!(futures::FutureExt::now_or_never(login.token(end)).is_none());
        settled(&login).await;
        let patient = login.token(end).await;

        assert_eq!((patient.unwrap().serial, way.0.load(Ordering::Relaxed)), (1, 1));
    }

    #[tokio::test]
    async fn a_refused_token_is_replaced_by_one_login_and_not_at_the_heels_of_the_last() {
        let (way, login, end) = login(|| None);
        let first = login.token(end).await.unwrap();

        let error = login.instead_of(&first, end).await.unwrap_err();
        assert!(matches!(error.retry(), Retry::After(wait) if wait <= APART), "{error:?}");
        age(&login, APART);
        let others = futures::future::join_all((0..50).map(|_| login.instead_of(&first, end))).await;

        assert!(others.iter().all(|access| access.as_ref().unwrap().serial == 2));
        assert_eq!(way.0.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_is_wrong_for_good_is_tried_once_and_what_passes_is_tried_again() {
        let (way, refused, end) = login(|| Some(Cause::Credentials));
        for _ in 0..3 {
            let error = refused.token(end).await.unwrap_err();
            assert_eq!(error.retry(), Retry::Never);
            assert!(ErrorChain(&error).to_string().contains("invoicing.login.password"), "{error:?}");
        }
        assert_eq!((way.0.load(Ordering::Relaxed), refused.is_refused()), (1, true));

        let (way, failing, end) = login(|| Some(Cause::Server { again: None }));
        for _ in 0..3 {
            assert_eq!(failing.token(end).await.unwrap_err().retry(), Retry::Later);
        }
        assert_eq!(way.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_company_is_the_one_set_else_the_usual_else_the_only_one() {
        let choice = |id, default| Choice { id, default };
        let (a, b, usual) = (choice(1, false), choice(2, false), choice(3, true));

        assert_eq!(choose(Some(9), &[a.clone(), b.clone()]).unwrap(), 9);
        assert_eq!(choose(None, &[a.clone(), usual]).unwrap(), 3);
        assert_eq!(choose(None, std::slice::from_ref(&b)).unwrap(), 2);
        let error = choose(None, &[a, b]).unwrap_err();
        assert!(error.to_string().ends_with("one of 1, 2"), "{error}");
        assert_eq!(error.retry(), Retry::Never);
        assert!(choose(None, &[]).is_err());
    }
}
