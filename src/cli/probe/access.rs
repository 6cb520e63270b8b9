//! Access of a probe: a stored grant as it is, or a login for this run, for each area.

use std::{
    collections::BTreeMap,
    error::Error,
    io::{self, Write as _},
    sync::Arc,
};

use base::{metrics::ApiArea, retry::ErrorChain};
use model::Moment;
use provider::{
    Provider,
    api::{ApiOptions, Budget, Client, Rates},
    auth::{Area, grant::Grant, http::ProviderClock, login::CallbackError},
};

use super::{CLOCK_SKEW_MAX, ProbeOptions, session::AreaAccess};
use crate::{
    cli::{
        CommandError, Environment, Result,
        auth::{
            flow::{self, LoginFlow},
            grants_topic::{StoredGrant, look},
            login::ReturnPath,
            probe::LoginToken,
        },
        table::harmless,
    },
    config::Worker,
    logins::{grant_name, is_login_of, login_command},
};

/// Access to accounting and payroll, or why there is none. Prompts of a login go to stderr.
///
/// # Errors
/// The client cannot be set up, or the options of the login are wrong.
pub(super) async fn open(
    options: &ProbeOptions,
    provider: &Provider,
    worker: Option<&Worker>,
    environment: &Environment,
) -> Result<BTreeMap<Area, Result<AreaAccess, String>>> {
    let is_login = !options.login.is_empty();
    let return_path = is_login.then(|| options.browser.return_path(provider)).transpose()?;
    let clock = ProviderClock::new(worker.map_or(CLOCK_SKEW_MAX, |worker| worker.clock_skew_max));
    let rates = Rates { application: options.rate, company: options.rate, in_flight: 1 };
    let client = Client::new(&ApiOptions::from(provider), Budget::new(rates), clock.clone())?;
    let areas = [Area::Accounting, Area::Payroll];
    let stored = match worker {
        _ if areas.iter().all(|area| options.login.contains(area)) => Ok(Vec::new()),
        None => Err("no worker is configured: name its properties with --config".to_owned()),
        // Without the key no grant could be read, so do not wait for Kafka.
        Some(worker) if worker.keyring()?.is_none() => Err("grant.encryption.key is not set here".to_owned()),
        Some(worker) => look(worker).await.map_err(|error| words(&error)),
    };
    let mut access = BTreeMap::new();
    for area in areas {
        let grant = match &return_path {
            Some(path) if options.login.contains(&area) => {
                let entered = log_in(options, provider, area, path.clone(), &clock, environment).await;
                entered.map_err(|error| words(&error))
            }
            _ => {
                let remedy = login_command(area, &options.connector);
                let found = stored.as_deref().map_err(Clone::clone);
                let found = found.and_then(|stored| stored_grant(stored, provider, area));
                found.map_err(|reason| {
                    format!("no login for the {area} API: {reason}; run `{remedy}`, or add --login {area}")
                })
            }
        };
        access.insert(area, grant.and_then(|grant| area_access(&client, area, &grant)));
    }
    Ok(access)
}

fn area_access(client: &Client, area: Area, grant: &Grant) -> Result<AreaAccess, String> {
    let logged_out = || format!("the grant {} has no token", grant.name);
    let token = LoginToken::of(grant).ok_or_else(logged_out)?;
    let api = if area == Area::Payroll { ApiArea::Payroll } else { ApiArea::Accounting };
    let tokens = grant.tokens().ok_or_else(logged_out)?;
    let granted = &tokens.scopes;
    let lacks = |scope: &&str| !granted.iter().any(|granted| granted == scope);
    let missing_scopes = area.scopes().iter().copied().filter(lacks).collect();
    let inspector = client.inspector(api, Arc::new(token));
    Ok(AreaAccess { inspector, missing_scopes, expires_ms: tokens.access_expires_ms })
}

async fn log_in(
    options: &ProbeOptions,
    provider: &Provider,
    area: Area,
    return_path: ReturnPath,
    clock: &ProviderClock,
    environment: &Environment,
) -> Result<Grant> {
    let flow = LoginFlow::new(None, provider, area, clock.tolerance());
    let mut prompts = io::stderr();
    let entered = options.browser.log_in(&flow, return_path, environment, &mut prompts).await;
    // The person may need the provider's words, which the report leaves out.
    if let Err(CommandError::Outside(error)) = &entered
        && let Some(CallbackError::Refused { description: Some(description), .. }) = refusal(error.as_ref())
    {
        writeln!(prompts, "the provider's reason: {}", harmless(description))?;
    }
    entered
}

/// The stored grant of an area, if it can be used as it is.
fn stored_grant(stored: &[StoredGrant], provider: &Provider, area: Area) -> Result<Grant, String> {
    let name = grant_name(provider, area);
    let known = stored.iter().find(|known| known.name == name);
    let known = known.ok_or_else(|| format!("the grant {name} does not exist"))?;
    let grant = known.grant.as_ref().map_err(|error| ErrorChain(error).to_string())?;
    if !is_login_of(provider, &grant.login) {
        return Err(format!("the grant {name} is of another OAuth client or identity service"));
    }
    if !grant.login.may_go_to(&provider.base_url, &provider.transport.hosts) {
        return Err(format!("the grant {name} may not be used at provider.base.url"));
    }
    let now_ms = Moment::now().micros() / 1_000;
    match grant.tokens() {
        None => Err(format!("the grant {name} was logged out")),
        Some(tokens) if tokens.access_expires_ms <= now_ms => Err(format!(
            "the access token of the grant {name} has expired, and only a running worker refreshes it"
        )),
        Some(_) => Ok(grant.clone()),
    }
}

/// The rejected callback of a login, if that is the error.
fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CallbackError> {
    match error.downcast_ref::<flow::Error>()? {
        flow::Error::Callback(error) => Some(error),
        _ => None,
    }
}

/// What failed, without a list of everything that was configured, and without free text of the provider, which may name a person.
fn words(error: &CommandError) -> String {
    match error {
        CommandError::Configuration(problems) => problems.to_string().trim().to_owned(),
        CommandError::Outside(error) => match refusal(error.as_ref()) {
            Some(CallbackError::Refused { code, .. }) => {
                let is_code = code.chars().all(|one| one.is_ascii_lowercase() || one == '_');
                let code = if is_code { code.as_str() } else { "another text than an OAuth error code" };
                format!("the provider rejected the login: {code}")
            }
            _ => ErrorChain(error.as_ref()).to_string(),
        },
        CommandError::NotFound(what) => what.clone(),
        CommandError::Reported => "the login failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::outside;

    #[test]
    fn a_rejected_login_is_reported_by_its_code_alone() {
        let refused = |code: &str| {
            let description = Some("ana@example.com may not".to_owned());
            let error = CallbackError::Refused { code: code.to_owned(), description };
            words(&outside(flow::Error::Callback(error)))
        };

        assert_eq!(refused("access_denied"), "the provider rejected the login: access_denied");
        assert!(!refused("Ana Example").contains("Ana"));
    }
}
