//! Fault rules: which requests they match, and how often they have applied.
//!
//! Rules are tried in order. One that does not match, still skips, is used up or was not drawn leaves the request to the next,
//! so a list such as "429 twice, then 500 once" works as written. Counts are kept per rule and restart only when the knobs
//! change.

use axum::http::Method;
use parking_lot::Mutex;
use url::form_urlencoded;

use crate::{
    knobs::{Effect, Fault, FaultTarget},
    random::{Random, mix},
};

/// The random stream of fault rules.
const PURPOSE: u64 = 0x6661_756c_7400_0000;

/// The counts of each rule.
#[derive(Debug)]
pub(super) struct FaultCounters(Mutex<Vec<RuleCount>>);

#[derive(Debug, Clone, Default)]
struct RuleCount {
    fitted: u64,
    hits: u32,
}

/// What rules match against.
#[derive(Debug, Clone, Copy)]
pub(super) struct FaultSubject<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) company: Option<&'a str>,
}

impl FaultCounters {
    /// For this number of rules.
    pub(super) fn new(rules: usize) -> Self {
        Self(Mutex::new(vec![RuleCount::default(); rules]))
    }

    /// The effect of the first rule that applies. `rules` must be those that the counts are for.
    pub(super) fn draw<'a>(
        &self,
        rules: &'a [Fault],
        seed: u64,
        seen: FaultSubject<'_>,
    ) -> Option<&'a Effect> {
        let mut counts = self.0.lock();
        let purposes = PURPOSE..;
        for ((rule, count), purpose) in rules.iter().zip(counts.iter_mut()).zip(purposes) {
            if seen.fits(&rule.on) && count.hits(rule, seed, purpose) {
                return Some(&rule.effect);
            }
        }
        None
    }

    /// Restarts all counts, for this number of rules.
    pub(super) fn restart(&self, rules: usize) {
        *self.0.lock() = vec![RuleCount::default(); rules];
    }
}

impl RuleCount {
    /// Counts a request that matches; whether the rule applies.
    fn hits(&mut self, rule: &Fault, seed: u64, purpose: u64) -> bool {
        self.fitted += 1;
        let hits = self.fitted > u64::from(rule.skip)
            && rule.times.is_none_or(|times| self.hits < times)
            && Random::new(seed ^ mix(self.fitted), purpose).chance(rule.share);
        self.hits = self.hits.saturating_add(u32::from(hits));
        hits
    }
}

impl FaultSubject<'_> {
    fn fits(&self, target: &FaultTarget) -> bool {
        target.method.as_ref().is_none_or(|method| self.method.as_str().eq_ignore_ascii_case(method))
            && target.path.as_ref().is_none_or(|path| self.path.starts_with(path))
            && target.ending.as_ref().is_none_or(|ending| self.ends_with(ending))
            && target.company.as_ref().is_none_or(|company| self.company == Some(company))
            && target.page.is_none_or(|page| self.page() == Some(page))
    }

    /// Ids contain colons, which some clients encode and some do not.
    fn ends_with(&self, ending: &str) -> bool {
        self.path.ends_with(ending) || (self.path.contains('%') && decoded(self.path).ends_with(ending))
    }

    fn page(&self) -> Option<u64> {
        let mut parameters = form_urlencoded::parse(self.query.as_bytes());
        parameters.find(|(name, _)| name == "pageNumber")?.1.parse().ok()
    }
}

/// Percent-decodes a path. Neither paths nor ids contain `=`, `&` or `+`, which forms treat specially.
fn decoded(path: &str) -> String {
    form_urlencoded::parse(path.as_bytes()).next().map_or_else(String::new, |(name, _)| name.into_owned())
}
