//! The subscriptions that a configuration declares.

use std::collections::{BTreeMap, BTreeSet};

use url::Url;

use base::secret::Secret;
use model::{Fingerprint, Nonce, Subscription, SubscriptionRegistration, Target};

use super::{DesiredSubscription, OtherAddress};
use crate::{
    config,
    state::subscriptions::SubscriptionState,
    webhooks::signature::{MasterSecret, fingerprints, hook_fingerprints},
};

/// The path of `webhook.advertised.url`, which invoicing hooks cannot be registered below.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "has the path {0}, and invoicing.hooks names hooks: the provider delivers those to \
     https://<host>/api/webhooks/incoming/<segment>, with nothing between the host and that path"
)]
pub struct AdvertisedPath(String);

impl AdvertisedPath {
    /// The operator's next step.
    pub const REMEDY: &str = "write webhook.advertised.url without a path, such as https://hooks.example.com, and let the proxy route \
                              /api/webhooks/incoming/ and /webhooks/accounting/ to the workers; or leave invoicing.hooks empty";
}

/// Every target of a configuration, received at `webhook.advertised.url`. The fingerprint of a hook is that of its
/// [`MasterSecret`].
///
/// # Errors
/// The configuration names invoicing hooks, and the address has a path.
pub fn wanted(
    source: &config::WebhookSource,
    advertised: &Url,
) -> Result<BTreeMap<Target, DesiredSubscription>, AdvertisedPath> {
    if source.invoicing.is_some() && advertised.path() != "/" {
        return Err(AdvertisedPath(advertised.path().to_owned()));
    }
    let base = advertised.as_str().trim_end_matches('/');
    let application = &source.application_name;
    let mut all = BTreeMap::new();
    if let Some(accounting) = &source.accounting {
        let common = DesiredSubscription {
            url: String::new(),
            other: None,
            fingerprint: fingerprint(&accounting.secret),
            known: fingerprints(&accounting.secret, accounting.previous_secret.as_ref()),
            application: application.clone(),
            endings: (!accounting.wants_all_events()).then(|| accounting.events.clone()),
        };
        for resource in &accounting.resources {
            let url = address(base, &["webhooks", "accounting", &source.common.name, resource.name()]);
            all.insert(Target::Accounting(*resource), DesiredSubscription { url, ..common.clone() });
        }
    }
    if let Some(invoicing) = &source.invoicing {
        let (now, known) = hook_fingerprints(&invoicing.signature);
        let shared = address(base, &["api", "webhooks", "incoming", &invoicing.segment]);
        for hook in &invoicing.hooks {
            let own = address(&shared, &[&hook.slug()]);
            let (url, other) = match invoicing.own_addresses {
                true => (own, OtherAddress::Fallback(shared.clone())),
                false => (shared.clone(), OtherAddress::Former(own)),
            };
            let wanted = DesiredSubscription {
                url,
                other: Some(other),
                fingerprint: now.clone(),
                known: known.clone(),
                application: application.clone(),
                endings: None,
            };
            all.insert(Target::Invoicing(*hook), wanted);
        }
    }
    Ok(all)
}

/// The secret of a target that has this fingerprint, among those that are configured. A hook whose deliveries are not signed has
/// none.
#[must_use]
pub fn secret_of(source: &config::WebhookSource, target: Target, wanted: &Fingerprint) -> Option<Secret> {
    match target {
        Target::Accounting(_) => {
            let accounting = source.accounting.as_ref()?;
            let both = [Some(&accounting.secret), accounting.previous_secret.as_ref()];
            both.into_iter().flatten().find(|one| fingerprint(one) == *wanted).cloned()
        }
        Target::Invoicing(hook) => {
            let masters = MasterSecret::all(&source.invoicing.as_ref()?.signature);
            masters.iter().find(|one| one.fingerprint() == *wanted).map(|one| one.of(hook))
        }
    }
}

/// Subscriptions that are what the configuration wants, as far as that can be said without asking which events there are.
#[must_use]
pub fn fitting(
    wanted: &BTreeMap<Target, DesiredSubscription>,
    ledger: &SubscriptionState,
) -> BTreeSet<Nonce> {
    let fits = |one: &&Subscription| {
        let SubscriptionRegistration { application, url, fingerprint, events, .. } = &one.registration;
        wanted.get(&one.target).is_some_and(|wanted| {
            *fingerprint == wanted.fingerprint
                && *application == wanted.application
                && wanted.events(events) == *events
        }) && super::address(ledger, wanted, one.target) == Some(url.as_str())
    };
    ledger.subscriptions.values().filter(fits).map(|one| one.nonce.clone()).collect()
}

fn fingerprint(secret: &Secret) -> Fingerprint {
    Fingerprint::of(secret.reveal())
}

/// An address below another, each segment percent-encoded.
fn address(base: &str, segments: &[&str]) -> String {
    // It was parsed before.
    let Ok(mut url) = Url::parse(base) else { return base.to_owned() };
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url.into()
}

#[cfg(test)]
mod tests {
    use model::{AccountingResource, InvoicingHook, SubscriptionPhase, SubscriptionTimes};

    use super::*;
    use crate::config::Providers;

    #[test]
    fn a_hook_has_its_own_address_unless_the_setting_shares_one() {
        let hook = InvoicingHook::from_slug("sale-invoice-updated").unwrap();
        let advertised = Url::parse("https://hooks.example.com/").unwrap();
        let shared = "https://hooks.example.com/api/webhooks/incoming/Here".to_owned();
        let own = format!("{shared}/sale-invoice-updated");
        for (setting, url, other) in [
            (None, &own, OtherAddress::Fallback(shared.clone())),
            (Some("own"), &own, OtherAddress::Fallback(shared.clone())),
            (Some("shared"), &shared, OtherAddress::Former(own.clone())),
        ] {
            let mut config: BTreeMap<String, String> = [
                ("connector.class", "WebhookSource"),
                ("topic.prefix", "acme"),
                ("invoicing.hooks", "SaleInvoice:Updated"),
                ("invoicing.segment", "Here"),
                ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
                ("subscriptions.manage", "false"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
            config.extend(setting.map(|setting| ("invoicing.hook.address".to_owned(), setting.to_owned())));
            let (source, _) = config::WebhookSource::parse("hooks", &config, &Providers::new([])).unwrap();

            let wanted = &wanted(&source, &advertised).unwrap()[&Target::Invoicing(hook)];

            assert_eq!((&wanted.url, wanted.other.as_ref()), (url, Some(&other)));
            assert!(
                wanted.is_at(&own) && wanted.is_at(&shared) && !wanted.is_at("https://hooks.example.com")
            );
        }
    }

    #[test]
    fn one_that_differs_in_anything_does_not_fit() {
        type Edit = fn(&mut Subscription);
        let target = Target::Accounting(AccountingResource::Customers);
        let secret = Fingerprint::of("0123456789abcdef");
        let wanted = DesiredSubscription {
            url: "https://hooks.example.com/x".into(),
            other: None,
            fingerprint: secret.clone(),
            known: BTreeSet::from([secret.clone()]),
            application: "tributary".into(),
            endings: Some(BTreeSet::from(["Created"])),
        };
        let one = Subscription {
            connector: "hooks".into(),
            target,
            nonce: Nonce::new(7),
            id: Some("id-7".into()),
            registration: SubscriptionRegistration {
                application: wanted.application.clone(),
                url: wanted.url.clone(),
                spelled: None,
                fingerprint: secret,
                events: BTreeSet::from(["CustomerCreated".to_owned()]),
            },
            phase: SubscriptionPhase::Active,
            since: 1,
            times: SubscriptionTimes {
                intended_at: 1,
                acknowledged_at: Some(1),
                active_since: Some(1),
                checked_at: Some(1),
                last_delivery: None,
            },
            problem: None,
            history: Vec::new(),
        };
        let wanted = BTreeMap::from([(target, wanted)]);
        let edits: [(&str, bool, Edit); 6] = [
            ("nothing", true, |_| {}),
            ("secret", false, |one| one.registration.fingerprint = Fingerprint::of("another")),
            ("address", false, |one| one.registration.url = "https://elsewhere.example.com/".into()),
            ("name", false, |one| one.registration.application = "other".into()),
            ("events", false, |one| one.registration.events = BTreeSet::from(["CustomerDeleted".to_owned()])),
            ("target", false, |one| one.target = Target::Accounting(AccountingResource::Accounts)),
        ];
        for (what, fits, edit) in edits {
            let mut ledger = SubscriptionState::default();
            let mut one = one.clone();
            edit(&mut one);
            ledger.subscriptions.insert(one.nonce.clone(), one);

            assert_eq!(!fitting(&wanted, &ledger).is_empty(), fits, "{what}");
        }
    }
}
