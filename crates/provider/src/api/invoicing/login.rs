//! Tokens of the invoicing API, by logins that repeat themselves.
//!
//! ```text
//! token wanted ─▶ current token valid? ─▶ use it
//!                    └ no: one login at a time: method ─▶ companies ─▶ selection ─▶ token, in memory only
//! ```
//!
//! - Callers share one login. It has its own timeout, because the first caller may have a short deadline.
//! - A token lives for an hour and cannot be renewed. A new login starts shortly before it ends; if that fails, the token is used
//!   until its end.
//! - A rejected password is not retried: the provider locks users out. A new [`InvoicingTokens`], as a restarted task creates it,
//!   tries again.
//! - A token that is rejected right after its login does not cause another login.

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

use super::{CompanyChoice, InvoicingSession};
use crate::{
    api::{
        CallOptions, Client, Error, Priority,
        error::{Acted, Cause, Endpoint},
    },
    auth::{self, Access, Tokens, http::milliseconds},
};

/// Lifetime of a token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3_600);
/// How long before its end a token is replaced.
const RENEW_BEFORE_END: Duration = Duration::from_secs(300);
/// Timeout of a login, however long its callers wait.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum time between two logins.
const MIN_LOGIN_INTERVAL: Duration = Duration::from_secs(10);
const AREA: &str = "invoicing";

/// A way to log in.
#[async_trait]
pub trait LoginMethod: fmt::Debug + Send + Sync {
    /// Logs in as one company.
    async fn log_in(&self, client: &Client, options: &CallOptions) -> Result<InvoicingSession, Error>;
}

/// Mail and password.
#[derive(Debug, Clone)]
pub struct Password {
    /// `invoicing.login.mail`.
    pub mail: String,
    /// `invoicing.login.password`.
    pub password: Secret,
    /// `invoicing.login.company`; `None` for the user's default.
    pub company: Option<i64>,
}

/// Tokens that renew themselves.
#[derive(Debug)]
pub struct InvoicingTokens(Arc<TokenRenewal>);

#[derive(Debug)]
struct TokenRenewal {
    client: Client,
    method: Arc<dyn LoginMethod>,
    state: Mutex<LoginState>,
}

#[derive(Debug, Default)]
struct LoginState {
    serial: u64,
    current: Option<CurrentToken>,
    /// Why no further login is tried.
    refused: Option<String>,
    /// When the last login started.
    tried: Option<Instant>,
    /// The last login, which may have ended.
    running: Option<RunningLogin>,
}

#[derive(Debug, Clone)]
struct CurrentToken {
    access: Access,
    since: Instant,
}

/// The result of a login, or its error and whether to retry.
type LoginResult = Result<(), (String, Retry)>;

/// A running login, shared by its callers.
type RunningLogin = Shared<BoxFuture<'static, LoginResult>>;

impl InvoicingTokens {
    /// No login happens before the first token is needed.
    pub fn new(client: Client, method: Arc<dyn LoginMethod>) -> Self {
        Self(Arc::new(TokenRenewal { client, method, state: Mutex::default() }))
    }

    /// Whether the login was rejected and is not retried.
    pub fn is_refused(&self) -> bool {
        self.0.state.lock().refused.is_some()
    }

    /// The current token if `serves` accepts it, else the token of a new login; while that runs, a token that is still
    /// `acceptable`.
    async fn token_or_log_in(
        &self,
        serves: impl Fn(&CurrentToken) -> bool,
        acceptable: impl Fn(&CurrentToken) -> bool,
        end: Instant,
    ) -> Result<Access, auth::Error> {
        let since = Instant::now();
        loop {
            let login = {
                let mut state = self.0.state.lock();
                let at_hand = |test: &dyn Fn(&CurrentToken) -> bool| {
                    let current = state.current.as_ref().filter(|current| test(current));
                    current.map(|current| current.access.clone())
                };
                let fallback = at_hand(&acceptable);
                // While the token is acceptable, a failed login is not repeated at once.
                let just_tried = state.tried.is_some_and(|tried| tried.elapsed() < MIN_LOGIN_INTERVAL);
                if let Some(access) = fallback.clone().filter(|_| just_tried).or_else(|| at_hand(&serves)) {
                    return Ok(access);
                }
                let login = self.0.login(&mut state);
                // With an acceptable token, do not wait for the login.
                match fallback {
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

impl TokenRenewal {
    /// The running login, or a new one.
    fn login(self: &Arc<Self>, state: &mut LoginState) -> Result<RunningLogin, auth::Error> {
        if let Some(refused) = &state.refused {
            return Err(failed(refused.clone(), Retry::Never));
        }
        // Skip a login that has ended.
        if let Some(running) = &state.running
            && running.clone().now_or_never().is_none()
        {
            return Ok(running.clone());
        }
        if let Some(current) = &state.current
            && current.since.elapsed() < MIN_LOGIN_INTERVAL
        {
            let words = "the provider rejects the token of a login a moment ago";
            return Err(failed(
                words,
                Retry::After(MIN_LOGIN_INTERVAL.saturating_sub(current.since.elapsed())),
            ));
        }
        // In its own task, so that a caller that leaves does not end it for the others.
        let login = tokio::spawn(Arc::clone(self).log_in());
        let cancelled = |_| Err(("the login was cancelled".to_owned(), Retry::Later));
        let running = login.map(move |result| result.unwrap_or_else(cancelled)).boxed().shared();
        (state.running, state.tried) = (Some(running.clone()), Some(Instant::now()));
        Ok(running)
    }

    async fn log_in(self: Arc<Self>) -> LoginResult {
        let options = CallOptions::within(Priority::Webhook, LOGIN_TIMEOUT);
        match self.method.log_in(&self.client, &options).await {
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

    fn keep(&self, session: InvoicingSession) {
        let expires_ms = Some(self.client.0.clock.now_ms().saturating_add(milliseconds(TOKEN_LIFETIME)));
        let mut state = self.state.lock();
        state.serial += 1;
        let access = Access { header: session.header, serial: state.serial, expires_ms };
        state.current = Some(CurrentToken { access, since: Instant::now() });
    }
}

#[async_trait]
impl Tokens for InvoicingTokens {
    async fn token(&self, end: Instant) -> Result<Access, auth::Error> {
        let younger = |than: Duration| move |current: &CurrentToken| current.since.elapsed() < than;
        self.token_or_log_in(
            younger(TOKEN_LIFETIME.saturating_sub(RENEW_BEFORE_END)),
            younger(TOKEN_LIFETIME),
            end,
        )
        .await
    }

    async fn instead_of(&self, refused: &Access, end: Instant) -> Result<Access, auth::Error> {
        self.token_or_log_in(|current| current.access.serial > refused.serial, |_| false, end).await
    }

    fn remedy(&self) -> Option<String> {
        Some("the invoicing login: check what its user may do".to_owned())
    }
}

#[async_trait]
impl LoginMethod for Password {
    async fn log_in(&self, client: &Client, options: &CallOptions) -> Result<InvoicingSession, Error> {
        let session = client.log_in(&self.mail, &self.password, options).await?;
        let company = choose(self.company, &session.companies).map_err(|cause| Error {
            endpoint: Endpoint { method: "POST", path: super::LOGIN.into() },
            status: None,
            cause,
            excerpt: None,
            acted: Acted::Yes,
            in_company: false,
        })?;
        client.select(&session, company, options).await
    }
}

/// The configured company, else the user's default, else the only one.
fn choose(set: Option<i64>, companies: &[CompanyChoice]) -> Result<i64, Cause> {
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
        api::{ApiOptions, Budget, Rates},
        auth::{http::ProviderClock, tests::stub::provider},
    };

    /// Logs in without a provider, or fails with this cause.
    #[derive(Debug)]
    struct FakeLogin(AtomicU64, fn() -> Option<Cause>);

    #[async_trait]
    impl LoginMethod for FakeLogin {
        async fn log_in(&self, _: &Client, _: &CallOptions) -> Result<InvoicingSession, Error> {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            if let Some(cause) = self.1() {
                let endpoint = Endpoint { method: "POST", path: "login".into() };
                let acted = Acted::No;
                return Err(Error { endpoint, status: None, cause, excerpt: None, acted, in_company: false });
            }
            let header = Secret::new(format!("Bearer {number}"));
            Ok(InvoicingSession { header, refresh: Secret::new("refresh"), companies: Vec::new() })
        }
    }

    fn login(fails: fn() -> Option<Cause>) -> (Arc<FakeLogin>, InvoicingTokens, Instant) {
        let options = ApiOptions::from(&provider(&"http://127.0.0.1:1".parse().unwrap()));
        let clock = ProviderClock::new(Duration::from_secs(1));
        let client = Client::new(&options, Budget::new(Rates::default()), clock).unwrap();
        let method = Arc::new(FakeLogin(AtomicU64::new(0), fails));
        let login = InvoicingTokens::new(client, Arc::clone(&method) as _);
        (method, login, Instant::now() + Duration::from_secs(30))
    }

    /// Ages the current token.
    fn age(login: &InvoicingTokens, by: Duration) {
        let mut state = login.0.state.lock();
        let current = state.current.as_mut().unwrap();
        current.since = current.since.checked_sub(by).unwrap();
        state.tried = state.tried.and_then(|tried| tried.checked_sub(by));
    }

    #[tokio::test]
    async fn callers_share_one_login_that_renews_before_its_end() {
        let (method, login, end) = login(|| None);

        let shared = futures::future::join_all((0..50).map(|_| login.token(end))).await;
        age(&login, TOKEN_LIFETIME - RENEW_BEFORE_END - Duration::from_secs(60));
        let young = login.token(end).await.unwrap();
        age(&login, Duration::from_secs(60));
        // Still valid; the next login is running.
        assert_eq!(login.token(end).await.unwrap().serial, 1);
        settled(&login).await;
        let next = login.token(end).await.unwrap();

        assert!(shared.iter().all(|access| access.as_ref().unwrap().serial == 1));
        assert_eq!((young.serial, next.serial, method.0.load(Ordering::Relaxed)), (1, 2, 2));
        assert_eq!(next.header.reveal(), "Bearer 1");
    }

    /// Waits for the running login.
    async fn settled(login: &InvoicingTokens) {
        let running = login.0.state.lock().running.clone();
        if let Some(running) = running {
            drop(running.await);
        }
    }

    #[tokio::test]
    async fn a_failed_renewal_keeps_the_token_until_its_end() {
        static FAILS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let (method, login, end) =
            login(|| FAILS.load(Ordering::Relaxed).then_some(Cause::Server { again: None }));
        assert_eq!(login.token(end).await.unwrap().serial, 1);
        FAILS.store(true, Ordering::Relaxed);
        age(&login, TOKEN_LIFETIME - RENEW_BEFORE_END);

        for logins in 2..4 {
            assert_eq!(login.token(end).await.unwrap().serial, 1);
            settled(&login).await;
            assert_eq!(login.token(end).await.unwrap().serial, 1);
            settled(&login).await;
            assert_eq!(method.0.load(Ordering::Relaxed), logins, "a failed login was repeated at once");
            age(&login, MIN_LOGIN_INTERVAL);
        }
        age(&login, RENEW_BEFORE_END);

        assert_eq!(login.token(end).await.unwrap_err().retry(), Retry::Later);
    }

    #[tokio::test]
    async fn a_login_continues_when_its_caller_leaves() {
        let (method, login, end) = login(|| None);

        assert!(futures::FutureExt::now_or_never(login.token(end)).is_none());
        settled(&login).await;
        let patient = login.token(end).await;

        assert_eq!((patient.unwrap().serial, method.0.load(Ordering::Relaxed)), (1, 1));
    }

    #[tokio::test]
    async fn a_rejected_token_is_replaced_by_one_login_but_not_at_once() {
        let (method, login, end) = login(|| None);
        let first = login.token(end).await.unwrap();

        let error = login.instead_of(&first, end).await.unwrap_err();
        assert!(matches!(error.retry(), Retry::After(wait) if wait <= MIN_LOGIN_INTERVAL), "{error:?}");
        age(&login, MIN_LOGIN_INTERVAL);
        let others = futures::future::join_all((0..50).map(|_| login.instead_of(&first, end))).await;

        assert!(others.iter().all(|access| access.as_ref().unwrap().serial == 2));
        assert_eq!(method.0.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_rejected_password_is_tried_once_and_an_outage_again() {
        let (method, refused, end) = login(|| Some(Cause::Credentials));
        for _ in 0..3 {
            let error = refused.token(end).await.unwrap_err();
            assert_eq!(error.retry(), Retry::Never);
            assert!(ErrorChain(&error).to_string().contains("invoicing.login.password"), "{error:?}");
        }
        assert_eq!((method.0.load(Ordering::Relaxed), refused.is_refused()), (1, true));

        let (method, failing, end) = login(|| Some(Cause::Server { again: None }));
        for _ in 0..3 {
            assert_eq!(failing.token(end).await.unwrap_err().retry(), Retry::Later);
        }
        assert_eq!(method.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_company_is_the_configured_the_default_or_the_only_one() {
        let choice = |id, default| CompanyChoice { id, default };
        let (a, b, usual) = (choice(1, false), choice(2, false), choice(3, true));

        assert_eq!(choose(Some(9), &[a.clone(), b.clone()]).unwrap(), 9);
        assert_eq!(choose(None, &[a.clone(), usual]).unwrap(), 3);
        assert_eq!(choose(None, std::slice::from_ref(&b)).unwrap(), 2);
        let error = choose(None, &[a, b]).unwrap_err();
        assert!(error.to_string().ends_with("one of 1, 2"), "{error}");
        assert_eq!(error.verdict().0, Retry::Never);
        assert!(choose(None, &[]).is_err());
    }
}
