//! Payroll in the demo. It has no webhooks, so its list is read once more after all changes, and then every company of the provider is
//! compared with the topic.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::time::timeout;

use model::{SchemaKind, Topic};
use simulator::{
    knobs::ListOrder,
    reads::{Shape, payroll_json},
};

use super::system::DemoSystem;
use crate::cli::Result;

/// Companies by their code.
type CompaniesByCode = BTreeMap<u64, Value>;

/// The result of comparing payroll companies with the topic.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PayrollCheck {
    /// Whether the last read proved the list complete.
    pub(super) is_certified: bool,
    /// Companies that the provider has.
    pub(super) companies: usize,
    /// Of these, missing or different in the topic.
    pub(super) different: usize,
    /// Companies in the topic that the provider no longer has: payroll reports no deletes and has no read by id to confirm one.
    pub(super) left: usize,
}

impl PayrollCheck {
    fn of(source: &CompaniesByCode, topic: &CompaniesByCode, is_certified: bool) -> Self {
        Self {
            is_certified,
            companies: source.len(),
            different: source.iter().filter(|(code, one)| topic.get(code) != Some(one)).count(),
            left: topic.keys().filter(|code| !source.contains_key(code)).count(),
        }
    }

    /// Whether the topic has every company unchanged, and the list is proved complete.
    pub(super) fn is_same(&self) -> bool {
        self.is_certified && self.companies > 0 && self.different == 0
    }
}

impl DemoSystem {
    /// Reads the list again, then compares the topic with the provider.
    pub(super) async fn payroll(&self, limit: Duration) -> Result<PayrollCheck> {
        self.request(&json!({ "id": "payroll", "lists": ["payroll"] })).await;
        let run = timeout(limit, self.over("payroll")).await.unwrap_or_default();
        let decoder = self.decoder()?;
        let mut topic = CompaniesByCode::new();
        for record in self.read(Topic::PayrollCompanies).await? {
            let value = record.value.unwrap_or_default();
            let (_, value) = decoder.decode(SchemaKind::PayrollCompany, &value).await?;
            keep(&mut topic, serde_json::from_str(&value.to_json())?);
        }
        let mut source = CompaniesByCode::new();
        let world = self.services.simulator.provider().world();
        for row in world.payroll(ListOrder::Created) {
            let json = payroll_json(world.seed(), &row, Shape::default());
            keep(&mut source, serde_json::from_slice(&json)?);
        }
        Ok(PayrollCheck::of(&source, &topic, run["certified"] == true))
    }
}

/// A later company with the same code replaces the earlier one.
fn keep(companies: &mut CompaniesByCode, company: Value) {
    companies.insert(company["companyCode"].as_u64().unwrap_or_default(), company);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_company_must_be_in_the_topic_unchanged() {
        let companies = |all: &[(u64, &str)]| {
            let mut found = CompaniesByCode::new();
            for (code, name) in all {
                keep(&mut found, json!({ "companyCode": code, "companyName": name }));
            }
            found
        };
        let source = companies(&[(1, "a"), (2, "b")]);
        for (topic, is_certified, different, left, is_same) in [
            (companies(&[(1, "a"), (2, "old"), (2, "b")]), true, 0, 0, true),
            (companies(&[(1, "a"), (2, "b"), (3, "c")]), true, 0, 1, true),
            (companies(&[(1, "a"), (2, "old")]), true, 1, 0, false),
            (companies(&[(1, "a")]), true, 1, 0, false),
            (companies(&[(1, "a"), (2, "b")]), false, 0, 0, false),
        ] {
            let payroll = PayrollCheck::of(&source, &topic, is_certified);

            assert_eq!((payroll.different, payroll.left, payroll.is_same()), (different, left, is_same));
        }
        assert!(!PayrollCheck::of(&companies(&[]), &companies(&[]), true).is_same(), "nothing was shown");
    }
}
