//! The rate of each company, which adapts by the same rule as the application's.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use base::metrics::ApiWait;

use super::{adaptive_rate::AdaptiveRate, metered_rate::MeteredRate};

/// Companies in memory; above this, companies without learned state are dropped.
const MAX_COMPANIES: usize = 4_096;
/// How long learned state is kept after a company's last request.
const IDLE_LIMIT: Duration = Duration::from_secs(3_600);

/// The companies of a budget.
#[derive(Debug)]
pub(super) struct CompanyRates {
    known: HashMap<Arc<str>, CompanyRate>,
    /// Configured requests per second for each company.
    rate: f64,
    hasher: RandomState,
    /// Number of token requests, for tests.
    #[cfg(test)]
    looks: u64,
}

#[derive(Debug)]
struct CompanyRate {
    metered: MeteredRate,
    /// When the company last had no token for a request.
    held: Option<Instant>,
    /// Time of the last token request.
    at: Instant,
}

impl CompanyRates {
    /// No companies yet; `rate` requests per second for each.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            known: HashMap::new(),
            rate,
            hasher: RandomState::new(),
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Sets another rate for all companies.
    pub(super) fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
        for company in self.known.values_mut() {
            company.metered.adaptive.set(rate);
        }
    }

    /// The shared name of a company, one allocation for all its requests.
    pub(super) fn name(&mut self, company: &str, now: Instant) -> Arc<str> {
        if let Some((name, _)) = self.known.get_key_value(company) {
            return Arc::clone(name);
        }
        if self.known.len() >= MAX_COMPANIES {
            self.known.retain(|_, company| !company.is_forgettable(now));
        }
        let name: Arc<str> = company.into();
        self.entry(&name, now);
        name
    }

    /// The state of a company; a new one if it was dropped while a request waited.
    fn entry(&mut self, company: &Arc<str>, now: Instant) -> &mut CompanyRate {
        let Self { known, rate, hasher, .. } = self;
        known
            .entry(Arc::clone(company))
            .or_insert_with(|| CompanyRate::new(*rate, now, hasher.hash_one(company)))
    }

    /// Takes a token and returns the number of the company's cuts so far.
    ///
    /// # Errors
    /// When a token may be available.
    pub(super) fn take(&mut self, company: Option<&Arc<str>>, now: Instant) -> Result<u64, Instant> {
        let Some(company) = company else { return Ok(0) };
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let company = self.entry(company, now);
        company.take(now).inspect_err(|_| company.held = Some(now))
    }

    /// Returns an unused token.
    pub(super) fn give(&mut self, company: Option<&str>) {
        if let Some(company) = self.find(company) {
            company.metered.give();
        }
    }

    /// What a request has waited for since then, apart from a pause of the application.
    pub(super) fn held_since(&self, company: Option<&str>, since: Instant) -> ApiWait {
        match company.and_then(|company| self.known.get(company)) {
            Some(one) if one.metered.adaptive.paused_until.is_some_and(|end| end > since) => {
                ApiWait::Throttled
            }
            Some(one) if one.held.is_some_and(|held| held >= since) => ApiWait::Company,
            _ => ApiWait::Budget,
        }
    }

    /// Until when the company is paused.
    pub(super) fn paused(&self, company: Option<&str>, now: Instant) -> Option<Instant> {
        self.known.get(company?)?.metered.adaptive.paused(now)
    }

    /// A request of the company was not rate limited.
    pub(super) fn accepted(&mut self, company: Option<&str>) {
        if let Some(company) = self.find(company) {
            company.metered.adaptive.accepted();
        }
    }

    /// A request of the company was rate limited. Returns how long it pauses.
    pub(super) fn refused(
        &mut self,
        company: &Arc<str>,
        now: Instant,
        retry_after: Option<Duration>,
        cuts: u64,
    ) -> Duration {
        self.entry(company, now).metered.adaptive.refused(now, retry_after, cuts)
    }

    fn find(&mut self, company: Option<&str>) -> Option<&mut CompanyRate> {
        self.known.get_mut(company?)
    }

    /// Number of token requests.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    /// The company's current rate.
    #[cfg(test)]
    pub(super) fn rate_of(&self, company: &str) -> f64 {
        self.known[company].metered.adaptive.rate
    }
}

impl CompanyRate {
    fn new(rate: f64, now: Instant, seed: u64) -> Self {
        // The configured rate is our guess, not the provider's limit: use all of it until a refusal.
        let adaptive = AdaptiveRate::trusting(rate, now, seed);
        Self { metered: MeteredRate::new(adaptive, rate.max(1.0), 1.0, now), held: None, at: now }
    }

    fn take(&mut self, now: Instant) -> Result<u64, Instant> {
        self.metered.advance(now, true);
        self.at = now;
        self.metered.rest(now)?;
        // A lower bound: waiting a moment longer costs little, and a zero wait would be a busy loop.
        self.metered.has_token(now).map_err(|wait| now + wait.max(Duration::from_millis(1)))?;
        Ok(self.metered.take(now))
    }

    /// Whether dropping the company loses (almost) nothing.
    fn is_forgettable(&self, now: Instant) -> bool {
        let rested = now.saturating_duration_since(self.at);
        if self.metered.adaptive.is_untouched() {
            return self.metered.fills_in(rested);
        }
        rested >= IDLE_LIMIT && self.metered.adaptive.paused(now).is_none()
    }
}
