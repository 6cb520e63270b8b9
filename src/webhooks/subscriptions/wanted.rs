//! What a configuration declares.

use std::collections::{BTreeMap, BTreeSet};

use url::Url;

use super::Wanted;
use crate::{
    config::{self, connector::webhook::Signature},
    model::{Fingerprint, Target},
    secret::Secret,
    webhooks::signature::hook_secret,
};

/// Every target of a configuration, received at `webhook.advertised.url`. The fingerprint of a hook is that of the secret which its
/// own is derived from.
#[must_use]
pub fn wanted(source: &config::WebhookSource, advertised: &Url) -> BTreeMap<Target, Wanted> {
    let base = advertised.as_str().trim_end_matches('/');
    let application = &source.application_name;
    let mut all = BTreeMap::new();
    if let Some(accounting) = &source.accounting {
        let secrets = [Some(&accounting.secret), accounting.previous_secret.as_ref()];
        let known: BTreeSet<_> = secrets.into_iter().flatten().map(fingerprint).collect();
        let endings = (!accounting.wants_all_events()).then(|| accounting.events.clone());
        for resource in &accounting.resources {
            let url = address(base, &["webhooks", "accounting", &source.common.name, resource.name()]);
            let wanted = Wanted {
                url,
                fingerprint: fingerprint(&accounting.secret),
                known: known.clone(),
                application: application.clone(),
                endings: endings.clone(),
            };
            all.insert(Target::Accounting(*resource), wanted);
        }
    }
    if let Some(invoicing) = &source.invoicing {
        let (now, previous) = match &invoicing.signature {
            Signature::Required { secret, previous_secret, .. } => {
                (fingerprint(secret), previous_secret.as_ref())
            }
            Signature::Off => (Fingerprint::of(""), None),
        };
        let known: BTreeSet<_> = [now.clone()].into_iter().chain(previous.map(fingerprint)).collect();
        for hook in &invoicing.hooks {
            let wanted = Wanted {
                url: address(base, &["api", "webhooks", "incoming", &invoicing.segment]),
                fingerprint: now.clone(),
                known: known.clone(),
                application: application.clone(),
                endings: None,
            };
            all.insert(Target::Invoicing(*hook), wanted);
        }
    }
    all
}

/// The secret of a target that has this fingerprint, among those that are configured. A hook whose deliveries are not signed has
/// none.
#[must_use]
pub fn secret_of(source: &config::WebhookSource, target: Target, wanted: &Fingerprint) -> Option<Secret> {
    let find = |now: &Secret, previous: Option<&Secret>| {
        [Some(now), previous].into_iter().flatten().find(|one| fingerprint(one) == *wanted).cloned()
    };
    match target {
        Target::Accounting(_) => {
            let accounting = source.accounting.as_ref()?;
            find(&accounting.secret, accounting.previous_secret.as_ref())
        }
        Target::Invoicing(hook) => match &source.invoicing.as_ref()?.signature {
            Signature::Required { secret, previous_secret, .. } => {
                let master = find(secret, previous_secret.as_ref())?;
                Some(hook_secret(&master, hook.entity, hook.action))
            }
            Signature::Off => None,
        },
    }
}

fn fingerprint(secret: &Secret) -> Fingerprint {
    Fingerprint::of(secret.reveal())
}

/// An address below another, each segment percent-encoded.
fn address(base: &str, segments: &[&str]) -> String {
    // It was one a moment ago.
    let Ok(mut url) = Url::parse(base) else { return base.to_owned() };
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url.into()
}
