//! Resolves a connector's configuration for the planner.

use std::{collections::BTreeMap, time::Duration};

use url::Url;

use model::Target;

use crate::{
    config::{
        self, Providers, WebhookSource,
        connector::{InvoicingLogin, webhook::Subscriptions},
    },
    plugin::{Failure, unusable},
    state::configs::Properties,
    webhooks::subscriptions::{
        AdvertisedPath, DesiredSubscription, PollIntervals, SilenceRules, SubscriptionRules, TimeLimits,
        micros, wanted,
    },
};

/// How often names of events are read: new ones are rare.
const EVENT_NAMES_INTERVAL: Duration = Duration::from_secs(3_600);
/// Added to the longest request until an intent counts as lost: the provider may act after the request timed out.
const INTENT_MARGIN: Duration = Duration::from_secs(1);
/// A worker without a heartbeat for this long no longer counts as one that receives; heartbeats come three times as often.
const HEARTBEAT_STALE_AFTER: Duration = Duration::from_secs(60);
/// How long an ended subscription is kept in the ledger: deliveries of it may come late.
const ENDED_RETENTION: Duration = Duration::from_secs(7 * 86_400);
/// Request timeout without a provider: no call is made.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A configuration, ready for the planner.
#[derive(Debug, Clone)]
pub(super) struct ResolvedConnector {
    pub(super) source: WebhookSource,
    /// Empty if subscriptions are not managed here.
    pub(super) wanted: BTreeMap<Target, DesiredSubscription>,
    pub(super) rules: SubscriptionRules,
    /// Timeout of a call.
    pub(super) request: Duration,
}

impl ResolvedConnector {
    /// Reads a configuration. Blocks: references may be files.
    ///
    /// # Errors
    /// It cannot be used, or `webhook.advertised.url` is not set.
    pub(super) fn read(
        connector: &str,
        config: &Properties,
        providers: &Providers,
        advertised: Option<&Url>,
    ) -> Result<Self, Failure> {
        let (source, _) = config::WebhookSource::parse(connector, config, providers).map_err(unusable)?;
        let wanted = match (source.manage_subscriptions, advertised) {
            (false, _) => BTreeMap::new(),
            (true, Some(advertised)) => wanted(&source, advertised).map_err(|path| pathed(&path))?,
            (true, None) => return Err(nowhere()),
        };
        let request =
            source.provider.as_ref().map_or(DEFAULT_REQUEST_TIMEOUT, |provider| provider.transport.request);
        let rules = rules(&source.subscriptions, request);
        Ok(Self { source, wanted, rules, request })
    }

    /// Whether another read declares the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let reached = |one: &Self| {
            let provider = one.source.provider.as_ref();
            let key = provider.map(|one| (one.subscription_key.reveal().to_owned(), one.base_url.clone()));
            let invoicing = one.source.invoicing.as_ref();
            let login = invoicing.and_then(|one| one.login.as_ref());
            let login = login.map(|login| match login {
                InvoicingLogin::Password { mail, password, .. } => {
                    (Some(mail.clone()), password.reveal().to_owned())
                }
                InvoicingLogin::Token(token) => (None, token.reveal().to_owned()),
            });
            let proxy = invoicing.and_then(|one| one.egress_proxy.as_ref());
            (key, login, proxy.map(|proxy| proxy.reveal().to_owned()))
        };
        self.wanted == other.wanted && reached(self) == reached(other)
    }
}

/// The provider could not be given an address.
fn nowhere() -> Failure {
    Failure::permanent(
        "InvalidConfiguration",
        "webhook.advertised.url is not set on this worker, so no address can be registered at the provider",
        "set webhook.advertised.url on every worker to the https address at which the provider reaches them, or set \
         subscriptions.manage=false on the connector and subscribe by other means",
    )
}

/// The provider would refuse the address of every hook.
fn pathed(path: &AdvertisedPath) -> Failure {
    let message = format!("webhook.advertised.url of this worker {path}");
    Failure::permanent("InvalidConfiguration", message, AdvertisedPath::REMEDY)
}

fn rules(settings: &Subscriptions, request: Duration) -> SubscriptionRules {
    SubscriptionRules {
        intervals: PollIntervals {
            poll: micros(settings.poll),
            names: micros(EVENT_NAMES_INTERVAL.max(settings.poll)),
        },
        limits: TimeLimits {
            acknowledge: micros(settings.acknowledge),
            intent: micros(request.saturating_add((request / 2).max(INTENT_MARGIN))),
            ready: micros(settings.ready),
            stale: micros(HEARTBEAT_STALE_AFTER),
            overlap: micros(settings.overlap),
            ended: micros(ENDED_RETENTION),
        },
        silence: settings.silence.map(|factor| SilenceRules {
            factor,
            learning: micros(settings.silence_learning),
            min: micros(settings.silence_min),
        }),
        margin: micros(settings.gap_margin),
        backoff: (micros(settings.backoff.0), micros(settings.backoff.1)),
        move_in_place: settings.move_in_place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::samples::webhook_config;

    #[test]
    fn a_missing_advertised_url_names_the_key_to_set() {
        let mut config = webhook_config();

        let managed = ResolvedConnector::read("hooks", &config, &Providers::new([]), None).unwrap_err();
        config.insert("subscriptions.manage".into(), "false".into());
        let unmanaged = ResolvedConnector::read("hooks", &config, &Providers::new([]), None).unwrap();

        assert!(managed.message.starts_with("webhook.advertised.url is not set"), "{}", managed.message);
        assert!(managed.remedy.unwrap().contains("subscriptions.manage=false"));
        assert!(unmanaged.wanted.is_empty());
    }

    #[test]
    fn invoicing_hooks_refuse_an_advertised_path() {
        let hooks = [("invoicing.hooks", "Customer:Created"), ("invoicing.login.mail", "me@example.com")];
        let secrets = [
            ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
            ("invoicing.login.password", "a password"),
        ];
        for (url, has_hooks, manages, refused) in [
            ("https://hooks.example.com/base", true, true, true),
            ("https://hooks.example.com/", true, true, false),
            ("https://hooks.example.com", true, true, false),
            ("https://hooks.example.com/base", false, true, false),
            ("https://hooks.example.com/base", true, false, false),
        ] {
            let mut config = webhook_config();
            if has_hooks {
                config
                    .extend(hooks.into_iter().chain(secrets).map(|(key, value)| (key.into(), value.into())));
            }
            config.insert("subscriptions.manage".into(), manages.to_string());

            let read = ResolvedConnector::read(
                "hooks",
                &config,
                &Providers::new([]),
                Some(&Url::parse(url).unwrap()),
            );

            assert_eq!(read.is_err(), refused, "{url} {has_hooks} {manages}");
            let Err(failure) = read else { continue };
            assert!(failure.message.starts_with("webhook.advertised.url of this worker has the path /base"));
            assert!(failure.message.contains("invoicing.hooks"), "{}", failure.message);
            assert!(failure.remedy.unwrap().contains("without a path"));
        }
    }

    #[test]
    fn another_invoicing_token_or_scope_of_its_secret_differs() {
        let advertised = Url::parse("https://hooks.example.com").unwrap();
        let read = |token: &str, scope: &str| {
            let mut config = webhook_config();
            let more = [
                ("invoicing.hooks", "Customer:Created"),
                ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
                ("invoicing.secret.scope", scope),
                ("invoicing.login.token", token),
            ];
            config.extend(more.map(|(key, value)| (key.to_owned(), value.to_owned())));
            ResolvedConnector::read("hooks", &config, &Providers::new([]), Some(&advertised)).unwrap()
        };

        let one = read("first", "hook");

        assert!(one.is_same(&read("first", "hook")));
        assert!(!one.is_same(&read("second", "hook")) && !one.is_same(&read("first", "connector")));
    }

    #[test]
    fn another_secret_differs_and_an_intent_outlives_requests() {
        let advertised = Url::parse("https://hooks.example.com").unwrap();
        let read = |secret: &str| {
            let mut config = webhook_config();
            config.insert("accounting.secret".into(), secret.into());
            config.insert("provider.request.timeout.ms".into(), "7000".into());
            ResolvedConnector::read("hooks", &config, &Providers::new([]), Some(&advertised)).unwrap()
        };

        let (one, same, other) =
            (read("0123456789abcdef-1"), read("0123456789abcdef-1"), read("0123456789abcdef-2"));

        assert!(one.is_same(&same) && !one.is_same(&other));
        assert!(one.rules.limits.intent > micros(one.request) && one.request == Duration::from_secs(7));
    }
}
