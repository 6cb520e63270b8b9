//! The configuration of a `WebhookSource`: which deliveries to receive, how to verify them, what to subscribe to.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ipnet::IpNet;

use base::secret::Secret;
use model::{AccountingResource, CompanyId, InvoicingHook, TenantId};
use provider::Provider;

use super::{Common, access, common, keys as shared, known_keys, provider_names};
use crate::config::{
    ConfigKey, address,
    problem::{Problems, Warning},
    providers::Providers,
    reader::SettingsReader,
    rules,
};

pub(crate) mod keys;

/// A `WebhookSource`, checked.
#[derive(Debug, Clone)]
pub struct WebhookSource {
    /// Settings common to all connectors.
    pub common: Common,
    /// `application.name`.
    pub application_name: String,
    /// Accounting webhooks; `None` if no resource is listed.
    pub accounting: Option<AccountingWebhooks>,
    /// Invoicing webhooks; `None` if no hook is listed.
    pub invoicing: Option<InvoicingWebhooks>,
    /// `source.addresses`; empty for any.
    pub source_addresses: Vec<IpNet>,
    /// `body.limit.bytes`.
    pub body_limit_bytes: usize,
    /// `spool.limit.bytes`.
    pub spool_limit_bytes: u64,
    /// `subscriptions.manage`; if true, [`WebhookSource::provider`] is set.
    pub manage_subscriptions: bool,
    /// How subscriptions are managed.
    pub subscriptions: Subscriptions,
    /// Access to the provider.
    pub provider: Option<Provider>,
}

/// How subscriptions are managed: `subscriptions.*` and `gap.margin.ms`.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscriptions {
    /// `.poll.interval.ms`.
    pub poll: Duration,
    /// `.acknowledge.timeout.ms`.
    pub acknowledge: Duration,
    /// `.overlap.ms`.
    pub overlap: Duration,
    /// `.move` is `change`.
    pub move_in_place: bool,
    /// `.ready.timeout.ms`.
    pub ready: Duration,
    /// `.retry.backoff.ms` and `.retry.backoff.max.ms`.
    pub backoff: (Duration, Duration),
    /// `.silence.factor`; `None` for `off`.
    pub silence: Option<f64>,
    /// `.silence.learning.ms`.
    pub silence_learning: Duration,
    /// `.silence.min.ms`.
    pub silence_min: Duration,
    /// `gap.margin.ms`.
    pub gap_margin: Duration,
}

/// Accounting webhooks.
#[derive(Debug, Clone)]
pub struct AccountingWebhooks {
    /// `accounting.resources`; not empty.
    pub resources: BTreeSet<AccountingResource>,
    /// `accounting.events`: last parts of event names; not empty.
    pub events: BTreeSet<&'static str>,
    /// `accounting.secret`.
    pub secret: Secret,
    /// `accounting.secret.previous`.
    pub previous_secret: Option<Secret>,
}

impl AccountingWebhooks {
    /// Whether all events are wanted, including kinds that do not exist yet.
    #[must_use]
    pub fn wants_all_events(&self) -> bool {
        provider_names::EVENT_KINDS.iter().all(|kind| self.events.contains(kind))
    }
}

/// Invoicing webhooks.
#[derive(Debug, Clone)]
pub struct InvoicingWebhooks {
    /// `invoicing.hooks`; not empty.
    pub hooks: BTreeSet<InvoicingHook>,
    /// `invoicing.signature.policy`, with its settings.
    pub signature: SignatureTrust,
    /// `invoicing.segment`.
    pub segment: String,
    /// `invoicing.hook.address` is `own`.
    pub own_addresses: bool,
    /// `invoicing.tenants`.
    pub tenants: BTreeMap<TenantId, CompanyId>,
    /// `invoicing.api.version`; `None` if the header is not sent.
    pub api_version: Option<String>,
    /// `invoicing.egress.proxy`; an address that may hold credentials.
    pub egress_proxy: Option<Secret>,
    /// `invoicing.login.*`.
    pub login: Option<InvoicingLogin>,
    /// `invoicing.body.limit.bytes`.
    pub body_limit_bytes: usize,
}

/// How invoicing deliveries are verified.
#[derive(Debug, Clone)]
pub enum SignatureTrust {
    /// By signature.
    Required {
        /// `invoicing.signature.header`.
        header: String,
        /// `invoicing.secret`.
        secret: Secret,
        /// `invoicing.secret.previous`.
        previous_secret: Option<Secret>,
        /// `invoicing.secret.scope`.
        scope: SecretScope,
    },
    /// Only by [`WebhookSource::source_addresses`], which is then not empty.
    Off,
}

/// `invoicing.secret.scope`: what a secret is registered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretScope {
    /// A secret is derived for each hook.
    Hook,
    /// The secret itself is that of all hooks.
    Connector,
}

/// `invoicing.login.*`.
#[derive(Debug, Clone)]
pub enum InvoicingLogin {
    /// With mail and password.
    Password {
        /// `.mail`.
        mail: String,
        /// `.password`.
        password: Secret,
        /// `.company`; `None` for the user's default.
        company: Option<i64>,
    },
    /// `.token`.
    Token(Secret),
}

impl WebhookSource {
    /// Reads a connector's flat configuration.
    ///
    /// # Errors
    /// All its problems.
    pub fn parse(
        name: &str,
        config: &BTreeMap<String, String>,
        providers: &Providers,
    ) -> Result<(Self, Vec<Warning>), Problems> {
        super::parse(name, config, providers, &known_keys::WEBHOOK, read)
    }
}

fn read(reader: &mut SettingsReader<'_>, name: &str) -> Option<WebhookSource> {
    let common = common::read(reader, name);
    if reader.text_or_default(&shared::EXACTLY_ONCE) == "required" {
        reader.refuse(
            &shared::EXACTLY_ONCE,
            "is impossible for a WebhookSource: the provider may deliver twice",
            "remove it; a duplicate carries the same tributary.id header",
        );
    }
    let manage = reader.boolean(&keys::MANAGE);
    let source_addresses = reader.parsed_list(&keys::SOURCE_ADDRESSES, address::network);
    let accounting = accounting(reader);
    let invoicing = invoicing(reader, manage);
    let listed = [&keys::ACCOUNTING_RESOURCES, &keys::INVOICING_HOOKS];
    if reader.are_valid(&listed) && listed.iter().all(|key| reader.list(key).is_empty()) {
        reader.problems.add(
            keys::ACCOUNTING_RESOURCES.name,
            "and invoicing.hooks are both empty, so the connector would do nothing",
            "name resources, hooks, or both",
        );
    }
    let provider = access::read(reader, manage.then_some("while subscriptions.manage is true"));
    // `?` comes last, so that every key is read.
    Some(WebhookSource {
        accounting,
        invoicing,
        source_addresses,
        manage_subscriptions: manage,
        provider,
        application_name: reader.text_or_default(&keys::APPLICATION_NAME),
        body_limit_bytes: reader.value(&keys::BODY_LIMIT),
        spool_limit_bytes: reader.value(&keys::SPOOL_LIMIT),
        subscriptions: subscriptions(reader),
        common: common?,
    })
}

fn subscriptions(reader: &mut SettingsReader<'_>) -> Subscriptions {
    let backoff = (reader.milliseconds(&keys::BACKOFF), reader.milliseconds(&keys::BACKOFF_MAX));
    if backoff.1 < backoff.0 && reader.are_valid(&[&keys::BACKOFF, &keys::BACKOFF_MAX]) {
        let rule = format!("is less than {}", keys::BACKOFF.name);
        reader.refuse(&keys::BACKOFF_MAX, rule, "make the longest wait at least as long as the first");
    }
    Subscriptions {
        poll: reader.milliseconds(&keys::POLL),
        acknowledge: reader.milliseconds(&keys::ACKNOWLEDGE),
        overlap: reader.milliseconds(&keys::OVERLAP),
        move_in_place: reader.text_or_default(&keys::MOVE) == "change",
        ready: reader.milliseconds(&keys::READY),
        backoff,
        silence: reader.parsed(&keys::SILENCE, provider_names::factor).flatten(),
        silence_learning: reader.milliseconds(&keys::SILENCE_LEARNING),
        silence_min: reader.milliseconds(&keys::SILENCE_MIN),
        gap_margin: reader.milliseconds(&keys::GAP_MARGIN),
    }
}

fn accounting(reader: &mut SettingsReader<'_>) -> Option<AccountingWebhooks> {
    let resources = reader.parsed_set(&keys::ACCOUNTING_RESOURCES, provider_names::resources);
    let events = reader.parsed_set(&keys::ACCOUNTING_EVENTS, provider_names::event_kinds);
    let (secret, previous) = secrets(reader, &keys::ACCOUNTING_SECRET, &keys::ACCOUNTING_PREVIOUS);
    if resources.is_empty() {
        return None;
    }
    reader.require(&keys::ACCOUNTING_SECRET, "when accounting.resources is not empty");
    if events.is_empty() && reader.are_valid(&[&keys::ACCOUNTING_EVENTS]) {
        reader.refuse(&keys::ACCOUNTING_EVENTS, "is empty", "name some events, or remove the key to get all");
    }
    Some(AccountingWebhooks { resources, events, secret: secret?, previous_secret: previous })
}

fn invoicing(reader: &mut SettingsReader<'_>, manage: bool) -> Option<InvoicingWebhooks> {
    let hooks = reader.parsed_set(&keys::INVOICING_HOOKS, provider_names::hooks);
    let is_used = !hooks.is_empty();
    let signature = signature(reader, is_used);
    // `?` comes last, so that every key is read.
    let invoicing = InvoicingWebhooks {
        hooks,
        segment: reader.text_or_default(&keys::SEGMENT),
        own_addresses: reader.text_or_default(&keys::HOOK_ADDRESS) == "own",
        tenants: tenants(reader),
        api_version: Some(reader.text_or_default(&keys::API_VERSION)).filter(|version| !version.is_empty()),
        egress_proxy: egress_proxy(reader),
        body_limit_bytes: reader.value(&keys::INVOICING_BODY_LIMIT),
        login: login(reader, manage && is_used),
        signature: signature?,
    };
    is_used.then_some(invoicing)
}

/// The proxy's address with name and password in it, as HTTP clients expect it.
fn egress_proxy(reader: &mut SettingsReader<'_>) -> Option<Secret> {
    let proxy = reader.parsed(&keys::EGRESS_PROXY, address::http_url);
    let user_info = reader.secret(&keys::EGRESS_USER_INFO);
    if user_info.is_some() {
        reader.require(&keys::EGRESS_PROXY, "when invoicing.egress.proxy.user.info is set");
    }
    let mut proxy = proxy?;
    access::check_host(reader, &keys::EGRESS_PROXY, &proxy);
    if let Some((user, password)) = user_info.as_ref().and_then(|info| info.reveal().split_once(':')) {
        // Both calls fail only for addresses without a host, which the key's rule refuses.
        proxy.set_username(user).and_then(|()| proxy.set_password(Some(password))).unwrap_or_default();
    }
    Some(Secret::new(proxy.as_str()))
}

fn signature(reader: &mut SettingsReader<'_>, used: bool) -> Option<SignatureTrust> {
    let header = reader.text_or_default(&keys::SIGNATURE_HEADER);
    let (secret, previous_secret) = secrets(reader, &keys::INVOICING_SECRET, &keys::INVOICING_PREVIOUS);
    let scope = match reader.text_or_default(&keys::SECRET_SCOPE).as_str() {
        "connector" => SecretScope::Connector,
        _ => SecretScope::Hook,
    };
    if reader.text_or_default(&keys::SIGNATURE_POLICY) == "off" {
        let anyone = reader.list(&keys::SOURCE_ADDRESSES).is_empty();
        if anyone && reader.are_valid(&[&keys::SOURCE_ADDRESSES]) {
            reader.refuse(
                &keys::SIGNATURE_POLICY,
                "needs source.addresses: otherwise anyone could invent events",
                "name the provider's networks in source.addresses, or require signatures",
            );
        }
        return Some(SignatureTrust::Off);
    }
    if used {
        reader.require(
            &keys::INVOICING_SECRET,
            "when invoicing.hooks is not empty and signatures are required",
        );
    }
    Some(SignatureTrust::Required { header, secret: secret?, previous_secret, scope })
}

/// A secret and its predecessor, which must differ: a rotation to the same value is a mistake.
fn secrets(
    reader: &mut SettingsReader<'_>,
    key: &ConfigKey,
    previous: &ConfigKey,
) -> (Option<Secret>, Option<Secret>) {
    let (now, before) = (reader.secret(key), reader.secret(previous));
    match (&now, &before) {
        (Some(now), Some(before)) if now.reveal() == before.reveal() => {
            let rule = format!("is the same as {}, so nothing was rotated", key.name);
            reader.refuse(previous, rule, "set the old secret, or remove the key");
        }
        (None, Some(_)) => reader.require(key, &format!("when {} is set", previous.name)),
        _ => {}
    }
    (now, before)
}

fn tenants(reader: &mut SettingsReader<'_>) -> BTreeMap<TenantId, CompanyId> {
    let mut tenants = BTreeMap::new();
    for (tenant, company) in reader.parsed_list(&keys::TENANTS, rules::tenant) {
        if tenants.insert(tenant, company).is_some() {
            reader.refuse(&keys::TENANTS, "names a tenant twice", "give each tenant one company");
        }
    }
    tenants
}

fn login(reader: &mut SettingsReader<'_>, required: bool) -> Option<InvoicingLogin> {
    let by_grant = !reader.list(&shared::INVOICING_SCOPES).is_empty();
    let by_token = reader.is_set(&keys::LOGIN_TOKEN);
    if by_token {
        for other in [&keys::LOGIN_MAIL, &keys::LOGIN_PASSWORD, &keys::LOGIN_COMPANY] {
            if reader.is_set(other) {
                let rule = "contradicts invoicing.login.token, which is a token of one company already";
                reader.refuse(other, rule, "remove it, or invoicing.login.token");
            }
        }
    }
    let grant_rule =
        "contradicts invoicing.oauth.scopes, with which the worker uses a grant for the invoicing API";
    if by_grant && by_token {
        reader.refuse(&keys::LOGIN_TOKEN, grant_rule, "remove it, or invoicing.oauth.scopes");
    } else if by_grant && reader.is_set(&keys::LOGIN_MAIL) {
        let remedy = "remove invoicing.login.mail and invoicing.login.password, or invoicing.oauth.scopes";
        reader.refuse(&keys::LOGIN_MAIL, grant_rule, remedy);
    } else if required && !by_grant && !by_token {
        let because =
            "to register invoicing hooks, unless invoicing.login.token or invoicing.oauth.scopes is set";
        reader.require(&keys::LOGIN_MAIL, because);
    }
    if reader.is_set(&keys::LOGIN_MAIL) {
        reader.require(&keys::LOGIN_PASSWORD, "when invoicing.login.mail is set");
    }
    let (mail, password) = (reader.text(&keys::LOGIN_MAIL), reader.secret(&keys::LOGIN_PASSWORD));
    let company = reader.text(&keys::LOGIN_COMPANY).and_then(|id| id.parse().ok());
    match reader.secret(&keys::LOGIN_TOKEN) {
        Some(token) => Some(InvoicingLogin::Token(token)),
        None => Some(InvoicingLogin::Password { mail: mail?, password: password?, company }),
    }
}

#[cfg(test)]
mod tests;
