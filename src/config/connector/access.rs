//! Access to the provider's APIs, configured alike for both connectors.

use std::time::Duration;

use url::Url;

use provider::{ANY_AUDIENCE, AreaLogin, AreaLogins, HostRefused, OAuth, Provider, Transport, is_local};

use super::keys;
use crate::config::{address::http_url, key::ConfigKey, reader::SettingsReader};

/// Reads the provider's section. `Some(because)` makes it required; otherwise an incomplete section gives `None`.
pub(super) fn read(reader: &mut SettingsReader<'_>, because: Option<&str>) -> Option<Provider> {
    if let Some(because) = because {
        for key in [
            &keys::BASE_URL,
            &keys::AUTH_URL,
            &keys::SUBSCRIPTION_KEY,
            &keys::CLIENT_ID,
            &keys::CLIENT_SECRET,
        ] {
            reader.require(key, because);
        }
    }
    let base_url = reader.parsed(&keys::BASE_URL, http_url);
    let auth_url = reader.parsed(&keys::AUTH_URL, http_url);
    for (key, url) in [(&keys::BASE_URL, &base_url), (&keys::AUTH_URL, &auth_url)] {
        let Some(url) = url else { continue };
        if !url.username().is_empty() || url.password().is_some() {
            reader.refuse(key, "must not hold credentials", "remove the name and password before the @");
        } else if url.scheme() == "http" && !is_local(url) {
            reader.refuse(key, "must be https, because keys and tokens go there", "write https://");
        }
        check_host(reader, key, url);
    }
    let subscription_key = reader.secret(&keys::SUBSCRIPTION_KEY);
    let client_id = reader.text(&keys::CLIENT_ID);
    let client_secret = reader.secret(&keys::CLIENT_SECRET);
    let [accounting_grant, payroll_grant, invoicing_grant] =
        [&keys::ACCOUNTING_GRANT, &keys::PAYROLL_GRANT, &keys::INVOICING_GRANT]
            .map(|key| reader.text_or_default(key));
    let invoicing_scopes = reader.list(&keys::INVOICING_SCOPES);
    if accounting_grant == payroll_grant {
        reader.refuse(
            &keys::PAYROLL_GRANT,
            "must differ from accounting.oauth.grant, because the two logins ask for different scopes",
            "give one of them another name",
        );
    }
    if !invoicing_scopes.is_empty() && [&accounting_grant, &payroll_grant].contains(&&invoicing_grant) {
        reader.refuse(
            &keys::INVOICING_GRANT,
            "must differ from accounting.oauth.grant and payroll.oauth.grant, because each login asks for different scopes",
            "give it another name",
        );
    }
    let shared_scopes = reader.list(&keys::SCOPES);
    let [accounting_scopes, payroll_scopes] =
        [&keys::ACCOUNTING_SCOPES, &keys::PAYROLL_SCOPES].map(|key| match reader.list(key) {
            own if own.is_empty() => shared_scopes.clone(),
            own => own,
        });
    // `?` comes last, so that every key is read.
    Some(Provider {
        transport: Transport {
            connect: reader.milliseconds(&keys::CONNECT_TIMEOUT),
            read: reader.milliseconds(&keys::READ_TIMEOUT),
            request: reader.milliseconds(&keys::REQUEST_TIMEOUT),
            response_limit: reader.value(&keys::RESPONSE_LIMIT),
            authorities: reader.path(&keys::CA_LOCATION),
            hosts: reader.hosts().clone(),
        },
        oauth: OAuth {
            logins: AreaLogins {
                accounting: AreaLogin { grant: accounting_grant, scopes: accounting_scopes },
                payroll: AreaLogin { grant: payroll_grant, scopes: payroll_scopes },
                invoicing: AreaLogin { grant: invoicing_grant, scopes: invoicing_scopes },
            },
            redirect_uri: reader.text(&keys::REDIRECT_URI),
            pkce: reader.boolean(&keys::PKCE),
            issuers: reader.list(&keys::ISSUERS),
            audiences: audiences(reader),
            keys: reader.path(&keys::KEYS_LOCATION),
            login_lifetime: days(reader, &keys::LOGIN_LIFETIME),
            idle_lifetime: days(reader, &keys::IDLE_LIFETIME),
            client_id: client_id?,
            client_secret: client_secret?,
        },
        base_url: base_url?,
        auth_url: auth_url?,
        subscription_key: subscription_key?,
    })
}

fn audiences(reader: &mut SettingsReader<'_>) -> Vec<String> {
    let audiences = reader.list(&keys::AUDIENCES);
    if audiences.len() > 1 && audiences.iter().any(|audience| audience == ANY_AUDIENCE) {
        reader.refuse(
            &keys::AUDIENCES,
            "lists any together with other audiences",
            "write any alone to accept every audience, or only the audiences to accept",
        );
    }
    audiences
}

/// Refuses an address with a host that the worker does not allow.
pub(super) fn check_host(reader: &mut SettingsReader<'_>, key: &ConfigKey, url: &Url) {
    if let Err(refused) = reader.hosts().check(url) {
        reader.refuse(key, refused.to_string(), HostRefused::REMEDY);
    }
}

/// A duration in days; `None` for 0.
fn days(reader: &mut SettingsReader<'_>, key: &ConfigKey) -> Option<Duration> {
    let days: u64 = reader.value(key);
    (days > 0).then(|| Duration::from_secs(days * 86_400))
}
