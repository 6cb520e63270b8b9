//! What each company may be asked for: its own rate, which falls and comes back by the same rule as the application's.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use base::metrics::ApiWait;

use super::{adaptive_rate::AdaptiveRate, bucket::TokenBucket};

/// CompanyRates that are kept before those that nothing is known about are forgotten.
const MAX_COMPANIES: usize = 4_096;
/// What was found out about a company is kept for so long after its last request.
const IDLE_LIMIT: Duration = Duration::from_secs(3_600);

/// The companies of a budget.
#[derive(Debug)]
pub(super) struct CompanyRates {
    known: HashMap<Arc<str>, CompanyRate>,
    /// Requests a second for each.
    rate: f64,
    hasher: RandomState,
    /// How often one was asked for a token.
    #[cfg(test)]
    looks: u64,
}

#[derive(Debug)]
struct CompanyRate {
    adaptive: AdaptiveRate,
    bucket: TokenBucket,
    /// Whether somebody has been waiting for it since it was last looked at.
    limited: bool,
    /// When it last held somebody up.
    held: Option<Instant>,
    /// When it was last asked for.
    at: Instant,
}

impl CompanyRates {
    /// None yet. So many requests a second for each.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            known: HashMap::new(),
            rate,
            hasher: RandomState::new(),
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Another rate for all.
    pub(super) fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
        for company in self.known.values_mut() {
            company.adaptive.set(rate);
        }
    }

    /// A company by its name, kept once for all that wait for it.
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

    /// The state of a company; a new one if it was forgotten while a request of it waited.
    fn entry(&mut self, company: &Arc<str>, now: Instant) -> &mut CompanyRate {
        let Self { known, rate, hasher, .. } = self;
        known
            .entry(Arc::clone(company))
            .or_insert_with(|| CompanyRate::new(*rate, now, hasher.hash_one(company)))
    }

    /// Takes a token of a company, or tells until when there is none. The number of its cuts so far.
    pub(super) fn take(&mut self, company: Option<&Arc<str>>, now: Instant) -> Result<u64, Instant> {
        let Some(company) = company else { return Ok(0) };
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let company = self.entry(company, now);
        company.take(now).inspect_err(|_| company.held = Some(now))
    }

    /// Gives a token back that was not used.
    pub(super) fn give(&mut self, company: Option<&str>) {
        if let Some(company) = self.find(company) {
            company.bucket.give(company.adaptive.rate.max(1.0));
            company.adaptive.unsent();
        }
    }

    /// What a request has waited for since then, if not for a pause of the application.
    pub(super) fn held_since(&self, company: Option<&str>, since: Instant) -> ApiWait {
        match company.and_then(|company| self.known.get(company)) {
            Some(one) if one.adaptive.paused_until.is_some_and(|end| end > since) => ApiWait::Throttled,
            Some(one) if one.held.is_some_and(|held| held >= since) => ApiWait::Company,
            _ => ApiWait::Budget,
        }
    }

    /// Until when a company is paused.
    pub(super) fn paused(&self, company: Option<&str>, now: Instant) -> Option<Instant> {
        self.known.get(company?)?.adaptive.paused(now)
    }

    /// A company's request was answered and not refused.
    pub(super) fn accepted(&mut self, company: Option<&str>) {
        if let Some(company) = self.find(company) {
            company.adaptive.accepted();
        }
    }

    /// A company's request was refused: how long it pauses.
    pub(super) fn refused(
        &mut self,
        company: &Arc<str>,
        now: Instant,
        retry_after: Option<Duration>,
        cuts: u64,
    ) -> Duration {
        self.entry(company, now).adaptive.refused(now, retry_after, cuts)
    }

    fn find(&mut self, company: Option<&str>) -> Option<&mut CompanyRate> {
        self.known.get_mut(company?)
    }

    /// How often one was asked for a token.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    /// A company's rate.
    #[cfg(test)]
    pub(super) fn rate_of(&self, company: &str) -> f64 {
        self.known[company].adaptive.rate
    }
}

impl CompanyRate {
    fn new(rate: f64, now: Instant, seed: u64) -> Self {
        // The companies' rate is a guess of ours and not what the provider names: it is used until it is refused.
        let adaptive = AdaptiveRate::trusting(rate, now, seed);
        Self { adaptive, bucket: TokenBucket::new(rate.max(1.0), now), limited: false, held: None, at: now }
    }

    fn take(&mut self, now: Instant) -> Result<u64, Instant> {
        self.adaptive.advance(now, self.limited);
        (self.limited, self.at) = (false, now);
        if let Some(until) = self.adaptive.paused(now) {
            return Err(until);
        }
        if let Some(end) = self.adaptive.paused_until {
            self.bucket.rest_until(end);
        }
        let rate = self.adaptive.rate;
        self.bucket.refill(now, rate, rate.max(1.0));
        if !self.bucket.has_token() {
            self.limited = true;
            // A moment longer than it seems is wrong by a moment only, and shorter would be a busy loop.
            return Err(now + self.bucket.wait(rate).max(Duration::from_millis(1)));
        }
        self.bucket.take();
        self.adaptive.sent(now);
        Ok(self.adaptive.cuts)
    }

    /// Whether it would be the same if it were made anew, or nearly.
    fn is_forgettable(&self, now: Instant) -> bool {
        let rested = now.saturating_duration_since(self.at);
        if self.adaptive.is_untouched() {
            // Long enough for its bucket to be full.
            return rested.as_secs_f64() * self.adaptive.rate >= self.adaptive.rate.max(1.0);
        }
        rested >= IDLE_LIMIT && self.adaptive.paused(now).is_none()
    }
}
