//! The address of a delivery: which secrets may have signed it, how much of its body is read, and what else it says.

use std::{iter, sync::Arc};

use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

use base::metrics::RefusalReason;
use model::{AccountingResource, InvoicingHook};

use super::body::{BodyCheck, BodyLimits, KeyGroup, OVERSIZED_READ_FACTOR};
use crate::webhooks::{
    delivery::ApiFamily,
    receiver_table::{Receiver, Trust},
    signature::{ACCOUNTING_HEADER, PresentedSignature, Scheme, SigningKeys},
};

/// Body limit for requests to unknown connectors: the default of `body.limit.bytes`.
pub(super) const UNKNOWN_ACCOUNTING_BODY_LIMIT: usize = 8 << 20;
/// The same for invoicing deliveries.
pub(super) const UNKNOWN_INVOICING_BODY_LIMIT: usize = 256 << 10;
/// The signature header of requests to unknown connectors.
pub(super) const UNKNOWN_SIGNATURE_HEADER: &str = "ms-signature";

/// What the address of a request says about its deliveries.
#[derive(Debug, Clone, Copy)]
pub(super) enum Address {
    /// Accounting, with the resource that the address names, if any.
    Accounting(Option<AccountingResource>),
    /// Invoicing, with the hook whose own address it is; `None`: the shared address.
    Invoicing(Option<InvoicingHook>),
}

/// Secrets of a connector, with the hook that they identify.
type HookKeys<'a> = (Option<InvoicingHook>, &'a SigningKeys);

impl Address {
    /// The check that a delivery has to pass: one of these receivers verifies it. If there are none, it is checked with `unknown`.
    pub(super) fn check<'a>(
        self,
        headers: &HeaderMap,
        receivers: &[&'a Receiver],
        unknown: &'a SigningKeys,
    ) -> Result<BodyCheck<'a>, RefusalReason> {
        // Without signatures a connector has the address alone.
        if let (Self::Invoicing(hook), &[receiver]) = (self, receivers)
            && receiver.invoicing.as_ref().is_some_and(|ours| matches!(ours.trust, Trust::Addresses))
        {
            return Ok(BodyCheck::Source { receiver, hook });
        }
        let (mut groups, mut is_known, mut is_presented) = (Vec::new(), false, false);
        for &receiver in receivers {
            let Some((header, keys)) = self.keys(receiver) else { continue };
            is_known = true;
            is_presented |= headers.contains_key(&header);
            let Some(presented) = self.presented(headers, &header) else { continue };
            let group = |(hook, keys)| KeyGroup { receiver: Some(receiver), hook, keys, presented };
            groups.extend(keys.into_iter().map(group));
        }
        match (is_known, self) {
            (false, _) => {
                let header = match self {
                    Self::Accounting(_) => ACCOUNTING_HEADER,
                    Self::Invoicing(_) => HeaderName::from_static(UNKNOWN_SIGNATURE_HEADER),
                };
                let presented = self.presented(headers, &header).ok_or(RefusalReason::Unknown)?;
                let group = KeyGroup { receiver: None, hook: None, keys: unknown, presented };
                Ok(BodyCheck::signature(vec![group]))
            }
            // The answer is 401 in any case; the reason is for the metric.
            _ if groups.is_empty() && is_presented => Err(RefusalReason::Signature),
            _ if groups.is_empty() => Err(RefusalReason::Unsigned),
            (true, Self::Invoicing(None)) => Ok(BodyCheck::AnyHook(groups)),
            (true, _) => Ok(BodyCheck::signature(groups)),
        }
    }

    /// The header of a receiver's signatures, and the secrets that may have made one; `None`: it takes no signed deliveries here.
    fn keys(self, receiver: &Receiver) -> Option<(HeaderName, Vec<HookKeys<'_>>)> {
        let hook = match self {
            Self::Accounting(_) => {
                return Some((ACCOUNTING_HEADER, vec![(None, &receiver.accounting.as_ref()?.keys)]));
            }
            Self::Invoicing(hook) => hook,
        };
        let Trust::Signed { header, keys, whole } = &receiver.invoicing.as_ref()?.trust else { return None };
        let each = keys.iter().filter(|(known, _)| hook.is_none_or(|hook| hook == **known));
        let each = each.map(|(known, keys)| (Some(*known), keys));
        // At the own address of a hook, these identify it too.
        let all = iter::once((hook, whole)).chain(each).filter(|(_, keys)| keys.count() > 0);
        Some((header.clone(), all.collect()))
    }

    fn presented(self, headers: &HeaderMap, header: &HeaderName) -> Option<PresentedSignature> {
        let scheme = match self {
            Self::Accounting(_) => Scheme::Required,
            Self::Invoicing(_) => Scheme::Optional,
        };
        PresentedSignature::of(headers, header, scheme)
    }

    /// How much of a body is read: as much as one of these receivers takes. A body for an unknown connector is read like any other,
    /// and refused as unsigned.
    pub(super) fn limits(self, receivers: &[&Receiver], until: Instant) -> BodyLimits {
        let largest = receivers.iter().map(|receiver| self.body_limit(Some(receiver))).max();
        let bytes = largest.unwrap_or_else(|| self.body_limit(None));
        let most = match self {
            Self::Accounting(_) => bytes.saturating_mul(OVERSIZED_READ_FACTOR),
            Self::Invoicing(_) => bytes,
        };
        BodyLimits { bytes, most, until }
    }

    /// The body limit of a receiver, in bytes.
    pub(super) fn body_limit(self, receiver: Option<&Receiver>) -> usize {
        match self {
            Self::Accounting(_) => {
                let accounting = receiver.and_then(|receiver| receiver.accounting.as_ref());
                accounting.map_or(UNKNOWN_ACCOUNTING_BODY_LIMIT, |accounting| accounting.body_limit)
            }
            Self::Invoicing(_) => {
                let invoicing = receiver.and_then(|receiver| receiver.invoicing.as_ref());
                invoicing.map_or(UNKNOWN_INVOICING_BODY_LIMIT, |invoicing| invoicing.body_limit)
            }
        }
    }

    /// What is known about a delivery beside its body. `hook`: the one that its secret or its own address identified.
    pub(super) fn family(self, receiver: &Receiver, hook: Option<InvoicingHook>) -> ApiFamily {
        match self {
            Self::Accounting(resource) => ApiFamily::Accounting { resource },
            Self::Invoicing(_) => {
                let tenants = receiver.invoicing.as_ref().map(|invoicing| Arc::clone(&invoicing.tenants));
                ApiFamily::Invoicing { hook: hook.map(Into::into), tenants: tenants.unwrap_or_default() }
            }
        }
    }
}
