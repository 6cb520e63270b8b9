//! `tributary auth login`.

use std::{io::Write, path::PathBuf, time::Duration};

use clap::Args;
use tokio::time::{error::Elapsed, timeout};
use url::Url;

use base::retry::ErrorChain;
use kafka::Admin;
use provider::{
    Provider,
    auth::{
        Area,
        grant::Grant,
        login::{OUT_OF_BAND, PendingLogin},
    },
};

#[cfg(feature = "simulator")]
use super::simulated;
use super::{
    browser,
    callback::{CallbackListener, DEFAULT_PATH, ListenAddress},
    flow::{self, LoginFlow},
    grants_topic::{GrantsTopic, restart_failed},
    paste, probe, status,
};

use crate::{
    cli::{Environment, Result, load, outside, problem, resolve, table::harmless},
    config::{Connector, Problem},
    logins::grant_name,
};

#[derive(Args)]
pub(in crate::cli) struct LoginOptions {
    /// API to log in for: accounting, payroll, or invoicing if invoicing.oauth.scopes is set
    #[arg(value_name = "AREA", value_parser = area)]
    area: Area,
    /// Connector with the settings of provider and client: its file (JSON), or its name in connectors.dir or on the workers
    #[arg(long, value_name = "FILE|NAME")]
    connector: String,
    /// Worker properties; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    browser: BrowserArgs,
    #[command(flatten)]
    skip: SkippedChecks,
}

// How the person logs in. Not a doc comment, which clap would show as the command's help.
#[derive(Args)]
pub(in crate::cli) struct BrowserArgs {
    /// Port of localhost for the redirect, if oauth.redirect.uri is unset; default: any free port
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only print the address; open it in a browser yourself
    #[arg(long)]
    no_browser: bool,
    /// For machines without a browser: log in elsewhere, and paste the code or the address at which that browser ends
    #[arg(long, conflicts_with = "port")]
    paste: bool,
    /// Press the button of the simulated provider (`tributary simulate`) automatically
    #[cfg(feature = "simulator")]
    #[arg(long, conflicts_with_all = ["paste", "no_browser"])]
    simulated: bool,
    /// How long to wait for the login
    #[arg(long, value_name = "MINUTES", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

// Each skips one check. Not a doc comment, which clap would show as the command's help.
#[derive(Args)]
struct SkippedChecks {
    /// Replace a grant of another tenant, OAuth client, identity service or provider.base.url; its connectors lose
    /// access to the old one
    #[arg(long)]
    replace: bool,
    /// Log in although existing grants are encrypted with another key, which is lost
    #[arg(long)]
    new_key: bool,
    /// Do not test the new token with a call to the API
    #[arg(long)]
    no_call: bool,
}

/// How the code comes back from the browser.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum ReturnPath {
    /// To a listener on this machine; with the registered address, or one that is built once the port is known.
    Listen(ListenAddress, Option<String>),
    /// The person pastes it; with the redirect address.
    Paste(String),
}

pub(super) async fn run(options: &LoginOptions, environment: &Environment, out: &mut dyn Write) -> Result {
    let config = options.config.as_deref();
    let connector = resolve::connector(&options.connector, config, environment).await?;
    let provider = provider(&connector)?;
    if !options.area.is_used(&provider.oauth) {
        let rule = format!("is not set, and the provider documents no scopes for the {} API", options.area);
        let remedy = "set it to the scopes that the provider gave your client; without it the worker uses invoicing.login.mail \
                      and invoicing.login.password, or invoicing.login.token";
        return Err(problem(options.area.scopes_key(), None, rule, remedy).into());
    }
    let return_path = options.browser.return_path(provider)?;
    let worker = load::load(config, &[], environment)?.worker;
    let grants = GrantsTopic::create(&worker, &Admin::Real(worker.kafka.clone())).await?;
    grants.check_owners(&worker)?;
    if !options.skip.new_key {
        grants.check_key()?;
    }
    if !options.skip.replace {
        grants.check_login(grant_name(provider, options.area), options.area, provider)?;
    }
    let mut flow = LoginFlow::new(Some(&grants), provider, options.area, worker.clock_skew_max);
    flow.replace = options.skip.replace;
    let grant = options.browser.log_in(&flow, return_path, environment, out).await?;
    let (who, until) = (harmless(grant.login.who()), status::until(&grant, &provider.oauth));
    let tenant = grant.login.tenant.as_deref().unwrap_or("unknown");
    writeln!(out, "logged in as {who} (tenant: {tenant}): the workers have the grant {}{until}", flow.grant)?;
    if !options.skip.no_call {
        let answer = probe::first_company(options.area, provider, &flow.clock, &grant).await;
        writeln!(out, "{answer}")?;
    }
    match restart_failed(&worker, options.area, flow.grant).await {
        Ok(names) if names.is_empty() => Ok(()),
        Ok(names) => writeln!(out, "restarted failed tasks of {}", names.join(", ")),
        // The login itself succeeded.
        Err(error) => writeln!(
            out,
            "could not restart failed tasks ({}): run `tributary connectors restart {} --tasks --only-failed`",
            ErrorChain(&error),
            connector.common().name
        ),
    }
    .map_err(outside)
}

impl BrowserArgs {
    /// How the code will come back, by these options and `oauth.redirect.uri`.
    pub(in crate::cli) fn return_path(&self, provider: &Provider) -> Result<ReturnPath, Problem> {
        return_path(provider.oauth.redirect_uri.as_deref(), self.port, self.paste)
    }

    /// Has the person log in. Prompts go to `out`.
    pub(in crate::cli) async fn log_in(
        &self,
        flow: &LoginFlow<'_>,
        return_path: ReturnPath,
        environment: &Environment,
        out: &mut dyn Write,
    ) -> Result<Grant> {
        match return_path {
            ReturnPath::Paste(redirect) => self.by_hand(flow, &redirect, out).await,
            ReturnPath::Listen(place, address) => {
                self.by_browser(flow, &place, address.as_deref(), environment, out).await
            }
        }
    }

    async fn by_browser(
        &self,
        flow: &LoginFlow<'_>,
        place: &ListenAddress,
        address: Option<&str>,
        environment: &Environment,
        out: &mut dyn Write,
    ) -> Result<Grant> {
        let listener = CallbackListener::bind(place).await.map_err(|source| {
            let remedy = match address {
                Some(_) => "register an address with another port and set it as oauth.redirect.uri",
                None => "choose another with --port",
            };
            ListenError { port: place.port, remedy, source }
        })?;
        let redirect = address.unwrap_or(listener.redirect()).to_owned();
        let login = begin(flow, &redirect, out)?;
        #[cfg(feature = "simulator")]
        if self.simulated {
            return simulated::log_in(flow, login, listener, &redirect, self.limit()).await;
        }
        let is_shown = !self.no_browser && browser::open(login.address().as_str(), environment).await;
        let now =
            if is_shown { "A browser should show it now" } else { "Open it in a browser on this machine" };
        writeln!(out, "{now}. Waiting for the browser to come back to {redirect}")?;
        out.flush()?;
        Ok(flow.receive(login, listener, self.limit()).await?)
    }

    async fn by_hand(&self, flow: &LoginFlow<'_>, redirect: &str, out: &mut dyn Write) -> Result<Grant> {
        let login = begin(flow, redirect, out)?;
        let late = |_: Elapsed| outside(flow::Error::TimedOut { limit: self.limit() });
        let pasted = timeout(self.limit(), paste::ask(out)).await.map_err(late)??;
        let code = login.accept_pasted(pasted.reveal());
        Ok(flow.finish(login, code).await?)
    }

    const fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout * 60)
    }
}

fn begin(flow: &LoginFlow<'_>, redirect: &str, out: &mut dyn Write) -> Result<PendingLogin> {
    let login = flow.begin(redirect)?;
    writeln!(out, "To log in for {} (grant {}), open:\n\n  {}\n", flow.area, flow.grant, login.address())?;
    Ok(login)
}

#[derive(Debug, thiserror::Error)]
#[error("listen on port {port} of localhost for the redirect: {remedy}, or paste the code with --paste")]
struct ListenError {
    port: u16,
    remedy: &'static str,
    #[source]
    source: std::io::Error,
}

fn area(text: &str) -> Result<Area, String> {
    let found = Area::ALL.into_iter().find(|area| area.name() == text);
    found.ok_or_else(|| "must be accounting, payroll or invoicing".to_owned())
}

/// The provider of a connector.
pub(in crate::cli) fn provider(connector: &Connector) -> Result<&Provider, Problem> {
    let provider = match connector {
        Connector::WebhookSource(source) => source.provider.as_ref(),
        Connector::RecordSource(source) => Some(&source.provider),
    };
    provider.ok_or_else(|| {
        let remedy = "set provider.auth.url, oauth.client.id and the other keys of the provider";
        let name = connector.common().name.as_str();
        problem("--connector", name, "has no provider to log in at", remedy)
    })
}

/// Chooses the return path from `oauth.redirect.uri` and the options.
fn return_path(redirect: Option<&str>, port: Option<u16>, paste: bool) -> Result<ReturnPath, Problem> {
    let Some(text) = redirect else {
        return Ok(if paste {
            ReturnPath::Paste(OUT_OF_BAND.to_owned())
        } else {
            ReturnPath::Listen(ListenAddress { port: port.unwrap_or(0), path: DEFAULT_PATH.to_owned() }, None)
        });
    };
    if let Some(port) = port {
        let rule = "conflicts with oauth.redirect.uri, which the provider compares exactly";
        return Err(problem("--port", port.to_string().as_str(), rule, "remove one of the two"));
    }
    match Url::parse(text) {
        // Another server listens at an https address, and none at the out-of-band address.
        Ok(url) if url.scheme() != "http" => Ok(ReturnPath::Paste(text.to_owned())),
        Ok(_) if paste => Ok(ReturnPath::Paste(text.to_owned())),
        Ok(url) => {
            let port = url.port_or_known_default().unwrap_or(80);
            Ok(ReturnPath::Listen(ListenAddress { port, path: url.path().to_owned() }, Some(text.to_owned())))
        }
        Err(error) => {
            let rule = format!("is not a URL ({error})");
            Err(problem("oauth.redirect.uri", text, rule, "write it exactly as registered at the provider"))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::logins::login_command;

    #[test]
    fn setting_and_options_choose_the_return_path() {
        let place = |port, path: &str| ListenAddress { port, path: path.to_owned() };
        let local = "http://localhost:8910/back";
        for (redirect, port, paste, expected) in [
            (None, None, false, ReturnPath::Listen(place(0, "/callback"), None)),
            (None, Some(8910), false, ReturnPath::Listen(place(8910, "/callback"), None)),
            (None, None, true, ReturnPath::Paste(OUT_OF_BAND.to_owned())),
            (Some(local), None, false, ReturnPath::Listen(place(8910, "/back"), Some(local.to_owned()))),
            (Some(local), None, true, ReturnPath::Paste(local.to_owned())),
            (
                Some("https://client.example/back"),
                None,
                false,
                ReturnPath::Paste("https://client.example/back".to_owned()),
            ),
            (Some(OUT_OF_BAND), None, false, ReturnPath::Paste(OUT_OF_BAND.to_owned())),
        ] {
            assert_eq!(
                return_path(redirect, port, paste).unwrap(),
                expected,
                "{redirect:?} {port:?} {paste}"
            );
        }
        assert_eq!(return_path(Some(local), Some(1), false).unwrap_err().key, "--port");
    }

    #[test]
    fn the_login_command_in_errors_parses() {
        #[derive(Parser)]
        struct LoginArguments {
            #[command(flatten)]
            options: LoginOptions,
        }
        for area in Area::ALL {
            let command = login_command(area, "books");
            let words = command.strip_prefix("tributary auth ").unwrap().split(' ');

            let parsed = LoginArguments::try_parse_from(words).map_err(|error| error.to_string()).unwrap();

            assert_eq!((parsed.options.area, parsed.options.connector.as_str()), (area, "books"));
        }
    }
}
