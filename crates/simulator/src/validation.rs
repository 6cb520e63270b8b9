//! Validation of settings and knobs: the world fits in memory, and every number is in range.

use std::fmt;

use super::{
    Error,
    catalog::{Entity, Resource},
    knobs::{Effect, Knobs, Latency, Rate},
    settings::{MAX_COMPANIES, MAX_RECORDS, Settings, WorldSettings},
};

const MAX_FAULT_BODY_BYTES: u32 = 64 << 20;

/// A setting or knob with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value}: {rule}; {remedy}")]
pub struct InvalidSetting {
    /// Its name; for knobs, the path in JSON.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub rule: String,
    /// What to do.
    pub remedy: String,
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Settings`] with every invalid value.
    pub fn validate(&self) -> Result<(), Error> {
        let mut found = Validator::default();
        let companies = self.world.companies;
        if companies > MAX_COMPANIES {
            let rule = format!("at most {MAX_COMPANIES}");
            found.add("companies", companies, &rule, "ask for fewer companies with more records each");
        }
        let records = records(&self.world);
        if records > MAX_RECORDS {
            let rule = format!("the first world has at most {MAX_RECORDS}");
            let remedy =
                "lower the number of companies or the records of each, payroll and invoicing counted in";
            found.add("records", records, &rule, remedy);
        }
        if self.journal_limit == 0 {
            found.add("journal limit", 0, "at least 1", "leave it out to keep the default");
        }
        found.knobs(&self.knobs);
        found.none().map_err(Error::Settings)
    }
}

impl Knobs {
    /// Checks every number in the knobs.
    ///
    /// # Errors
    /// Every invalid value.
    pub fn validate(&self) -> Result<(), Vec<InvalidSetting>> {
        let mut found = Validator::default();
        found.knobs(self);
        found.none()
    }
}

/// Records in the initial world, of all kinds.
fn records(world: &WorldSettings) -> u64 {
    let sized = [Resource::Companies, Resource::Customers, Resource::Accounts];
    let others = Resource::ALL.iter().filter(|resource| !sized.contains(resource));
    let (tenant, own): (Vec<&Resource>, Vec<&Resource>) =
        others.partition(|&resource| world.tenant_resources.contains(resource));
    let count = |kinds: usize, of_each: u32| (kinds as u64).saturating_mul(u64::from(of_each));
    let company = 1 + u64::from(world.customers) + u64::from(world.accounts) + count(own.len(), world.others);
    let invoicing = 1 + count(Entity::ALL.len(), world.invoicing_entities);
    [
        u64::from(world.companies).saturating_mul(company),
        count(tenant.len(), world.others),
        u64::from(world.payroll_companies),
        u64::from(world.invoicing_companies).saturating_mul(invoicing),
    ]
    .into_iter()
    .fold(0, u64::saturating_add)
}

/// Collects invalid values.
#[derive(Default)]
struct Validator(Vec<InvalidSetting>);

impl Validator {
    fn none(self) -> Result<(), Vec<InvalidSetting>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }

    fn add(&mut self, name: impl Into<String>, value: impl fmt::Display, rule: &str, remedy: &str) {
        self.0.push(InvalidSetting {
            name: name.into(),
            value: value.to_string(),
            rule: rule.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    fn knobs(&mut self, knobs: &Knobs) {
        let Knobs { identity, gateway, reads, delivery, .. } = knobs;
        let seconds = |rate: Option<Rate>| rate.map_or(0.0, |rate| rate.seconds);
        for (name, amount) in [
            ("changesPerSecond", knobs.changes_per_second),
            ("gateway.rate.seconds", seconds(gateway.rate)),
            ("gateway.quota.seconds", seconds(gateway.quota)),
            ("reads.churn.inserts", reads.churn.inserts),
            ("reads.churn.deletes", reads.churn.deletes),
            ("reads.churn.updates", reads.churn.updates),
        ] {
            if !(0.0..=f64::MAX).contains(&amount) {
                self.add(name, amount, "a number, not negative", "give 0 or more");
            }
        }
        for (name, share) in [
            ("reads.replicaShare", reads.replica_share),
            ("delivery.duplicate", delivery.duplicate),
            ("delivery.reorder", delivery.reorder),
            ("delivery.lose", delivery.lose),
        ] {
            self.share(name, share);
        }
        for (name, latency) in [
            ("identity.latency", &identity.latency),
            ("identity.answerLatency", &identity.answer_latency),
            ("gateway.latency", &gateway.latency),
            ("delivery.delay", &delivery.delay),
        ] {
            self.latency(name, latency);
        }
        for (number, fault) in knobs.faults.iter().enumerate() {
            self.share(&format!("faults[{number}].share"), fault.share);
            self.effect(&format!("faults[{number}].effect"), &fault.effect);
        }
        for (number, fault) in identity.faults.iter().enumerate() {
            self.effect(&format!("identity.faults[{number}].effect"), &fault.effect);
        }
    }

    fn effect(&mut self, name: &str, effect: &Effect) {
        match effect {
            Effect::Delay(latency) => self.latency(&format!("{name}.delay"), latency),
            Effect::Oversized { bytes, .. } if *bytes > MAX_FAULT_BODY_BYTES => {
                let (name, rule) =
                    (format!("{name}.oversized.bytes"), format!("at most {MAX_FAULT_BODY_BYTES}"));
                self.add(name, bytes, &rule, "give less than any limit of a client");
            }
            _ => {}
        }
    }

    fn share(&mut self, name: &str, value: f64) {
        if !(0.0..=1.0).contains(&value) {
            self.add(name, value, "a share, from 0 to 1", "give 1 for all and 0 for none");
        }
    }

    fn latency(&mut self, name: &str, latency: &Latency) {
        let (first, second) = match *latency {
            Latency::None => (0.0, 0.0),
            Latency::Fixed { milliseconds } => (milliseconds, milliseconds),
            Latency::Uniform { from, to } => (from, to),
        };
        if ![first, second].iter().all(|number| (0.0..=f64::MAX).contains(number)) {
            self.add(name, format!("{latency:?}"), "milliseconds, not negative", "give 0 or more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::{Fault, FaultTarget, HttpStatus, IdentityEndpoint, IdentityFault, RetryHint};

    fn complaints(change: impl FnOnce(&mut Settings)) -> Vec<String> {
        let mut settings = Settings::default();
        change(&mut settings);
        match settings.validate() {
            Err(Error::Settings(unfit)) => unfit.into_iter().map(|unfit| unfit.name).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_world_too_large_for_memory_is_refused() {
        let refused: [fn(&mut WorldSettings); 6] = [
            |world| world.customers = u32::MAX,
            |world| world.accounts = 2_000_001,
            |world| world.others = 200_000,
            |world| world.payroll_companies = u32::MAX,
            |world| world.invoicing_entities = u32::MAX,
            |world| world.invoicing_companies = u32::MAX,
        ];
        for change in refused {
            assert_eq!(complaints(|settings| change(&mut settings.world)), ["records"]);
        }
        let all = |settings: &mut Settings| {
            let world = &mut settings.world;
            (world.companies, world.customers, world.accounts, world.others) =
                (u32::MAX, u32::MAX, u32::MAX, u32::MAX);
        };
        assert_eq!(complaints(all), ["companies", "records"]);
        assert_eq!(complaints(|settings| settings.world.companies = 1_000_001), ["companies", "records"]);
        assert_eq!(complaints(|settings| settings.journal_limit = 0), ["journal limit"]);
        let tenant_wide = |settings: &mut Settings| {
            settings.world.others = 1_000_000;
            settings.world.tenant_resources = Resource::ALL.into();
        };
        assert_eq!(complaints(tenant_wide), Vec::<String>::new(), "counted once, not for each company");
        let large = |settings: &mut Settings| {
            let world = &mut settings.world;
            (world.companies, world.customers, world.accounts, world.others) = (1_000_000, 9, 9, 0);
        };
        assert_eq!(complaints(large), Vec::<String>::new());
    }

    #[test]
    fn invalid_numbers_are_refused_by_the_names_of_their_knobs() {
        let fault = |share, effect| Fault { on: FaultTarget::default(), effect, share, times: None, skip: 0 };
        let identity_fault =
            |effect| IdentityFault { on: IdentityEndpoint::Token, effect, times: None, after_work: false };
        for bad in [-3.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let found = complaints(|settings| {
                let knobs = &mut settings.knobs;
                knobs.changes_per_second = bad;
                knobs.identity.latency = Latency::Uniform { from: 1.0, to: bad };
                knobs.identity.answer_latency = Latency::Fixed { milliseconds: bad };
                knobs.identity.faults =
                    vec![identity_fault(Effect::Delay(Latency::Fixed { milliseconds: bad }))];
                knobs.gateway.latency = Latency::Fixed { milliseconds: bad };
                knobs.gateway.rate = Some(Rate { requests: 1, seconds: bad, tells: RetryHint::Both });
                knobs.gateway.quota = knobs.gateway.rate;
                knobs.reads.churn.updates = bad;
                knobs.reads.replica_share = bad;
                knobs.delivery.lose = bad;
                knobs.delivery.delay = Latency::Fixed { milliseconds: bad };
                knobs.faults = vec![
                    fault(1.0, Effect::Drop),
                    fault(bad, Effect::Delay(Latency::Fixed { milliseconds: bad })),
                ];
            });

            let expected = [
                "changesPerSecond",
                "gateway.rate.seconds",
                "gateway.quota.seconds",
                "reads.churn.updates",
                "reads.replicaShare",
                "delivery.lose",
                "identity.latency",
                "identity.answerLatency",
                "gateway.latency",
                "delivery.delay",
                "faults[1].share",
                "faults[1].effect.delay",
                "identity.faults[0].effect.delay",
            ];
            assert_eq!(found, expected, "{bad}");
        }
        let large = Effect::Oversized { bytes: (64 << 20) + 1, status: HttpStatus::OK };
        assert_eq!(
            complaints(|settings| settings.knobs.identity.faults = vec![identity_fault(large)]),
            ["identity.faults[0].effect.oversized.bytes"]
        );
        assert_eq!(complaints(|settings| settings.knobs.delivery.duplicate = 1.5), ["delivery.duplicate"]);
        assert_eq!(complaints(|settings| settings.knobs.delivery.duplicate = 1.0), Vec::<String>::new());
    }
}
