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
        login::{Login, OUT_OF_BAND},
    },
};

#[cfg(feature = "simulator")]
use super::button;
use super::{
    browser, call,
    callback::{Listener, PATH, Place},
    desk::{self, Desk},
    keep::{Keep, restart_failed},
    paste, status,
};
use crate::{
    cli::{Environment, Result, load, meant, outside, problem, table::harmless},
    config::{Connector, Problem, Worker},
    worker::grants::grant_name,
};

#[derive(Args)]
pub(in crate::cli) struct Options {
    /// What to log in for: accounting, payroll, or invoicing where invoicing.oauth.scopes is set
    #[arg(value_name = "AREA", value_parser = area)]
    area: Area,
    /// Connector whose provider and client to log in with: a file (JSON), or a name that connectors.dir or the workers know
    #[arg(long, value_name = "FILE|NAME")]
    connector: String,
    /// Worker properties; without it, the environment (CONNECT_*) alone
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Port of localhost that the browser comes back to, where oauth.redirect.uri is unset; any free one without it
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Print the address only, and wait for a browser that somebody opens
    #[arg(long)]
    no_browser: bool,
    /// For machines without a browser: log in anywhere, and paste the code, or the address that the browser ended at
    #[arg(long, conflicts_with = "port")]
    paste: bool,
    /// Press the button of the simulated provider (`tributary simulate`) in place of a person
    #[cfg(feature = "simulator")]
    #[arg(long, conflicts_with_all = ["paste", "no_browser"])]
    simulated: bool,
    /// How long to wait for the person
    #[arg(long, value_name = "MINUTES", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
    /// Log in although the grant is that of another OAuth client, identity service or provider.base.url, whose connectors lose it
    #[arg(long)]
    replace: bool,
    /// Log in although the grants topic has grants that are encrypted with another key, which is lost
    #[arg(long)]
    new_key: bool,
    /// Do not try the new token with a call to the API
    #[arg(long)]
    no_call: bool,
}

/// How the person comes back.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// To this machine, at the address that is registered or, without one, that is settled once the port is known.
    Listen(Place, Option<String>),
    /// Through their own hands.
    Paste(String),
}

pub(super) async fn run(options: &Options, environment: &Environment, out: &mut dyn Write) -> Result {
    let config = options.config.as_deref();
    let connector = meant::connector(&options.connector, config, environment).await?;
    let provider = provider(&connector)?;
    if !options.area.is_used(&provider.oauth) {
        let rule = format!("is not set, and the provider documents no scopes for the {} API", options.area);
        let remedy = "set it to the scopes that the provider gave your client; without it that API is entered with \
                      invoicing.login.mail and invoicing.login.password";
        return Err(problem(options.area.scopes_key(), None, rule, remedy).into());
    }
    let way = way(provider.oauth.redirect_uri.as_deref(), options.port, options.paste)?;
    let worker = load::load(config, &[], environment)?.worker;
    let keep = Keep::create(&worker, &Admin::Real(worker.kafka.clone())).await?;
    keep.check_owners(&worker)?;
    if !options.new_key {
        keep.check_key()?;
    }
    if !options.replace {
        keep.check_login(grant_name(provider, options.area), options.area, provider)?;
    }
    let terminal = Terminal {
        desk: Desk::new(&keep, provider, options.area, worker.clock_skew_max),
        options,
        limit: Duration::from_secs(options.timeout * 60),
        worker: &worker,
        connector: &connector.common().name,
    };
    match way {
        Way::Paste(redirect) => terminal.by_hand(&redirect, out).await,
        Way::Listen(place, address) => {
            terminal.by_browser(&place, address.as_deref(), environment, out).await
        }
    }
}

/// The command around a login: what it prints, and what it does afterwards.
struct Terminal<'a> {
    desk: Desk<'a>,
    options: &'a Options,
    limit: Duration,
    worker: &'a Worker,
    connector: &'a str,
}

impl Terminal<'_> {
    async fn by_browser(
        &self,
        place: &Place,
        address: Option<&str>,
        environment: &Environment,
        out: &mut dyn Write,
    ) -> Result {
        let listener = Listener::bind(place).await.map_err(|source| {
            let remedy = match address {
                Some(_) => "register an address with another port and set it as oauth.redirect.uri",
                None => "choose another with --port",
            };
            Unheard { port: place.port, remedy, source }
        })?;
        let redirect = address.unwrap_or(listener.redirect()).to_owned();
        let login = self.begin(&redirect, out)?;
        #[cfg(feature = "simulator")]
        if self.options.simulated {
            let grant = button::log_in(&self.desk, login, listener, &redirect, self.limit).await?;
            return self.tell(grant, out).await;
        }
        let is_shown = !self.options.no_browser && browser::open(login.address().as_str(), environment).await;
        let now =
            if is_shown { "A browser should show it now" } else { "Open it in a browser on this machine" };
        writeln!(out, "{now}. Waiting for it to come back to {redirect}")?;
        out.flush()?;
        self.tell(self.desk.receive(login, listener, self.limit).await?, out).await
    }

    async fn by_hand(&self, redirect: &str, out: &mut dyn Write) -> Result {
        let login = self.begin(redirect, out)?;
        let late = |_: Elapsed| outside(desk::Error::Nobody { limit: self.limit });
        let pasted = timeout(self.limit, paste::ask(out)).await.map_err(late)??;
        let code = login.accept_pasted(pasted.reveal());
        self.tell(self.desk.finish(login, code).await?, out).await
    }

    fn begin(&self, redirect: &str, out: &mut dyn Write) -> Result<Login> {
        let Desk { area, grant, .. } = self.desk;
        let login = self.desk.begin(redirect)?;
        writeln!(out, "To log in for {area} (grant {grant}), open:\n\n  {}\n", login.address())?;
        Ok(login)
    }

    async fn tell(&self, grant: Grant, out: &mut dyn Write) -> Result {
        let Desk { area, provider, grant: name, .. } = self.desk;
        let (who, until) = (harmless(grant.login.who()), status::until(&grant, &provider.oauth));
        writeln!(out, "logged in as {who}: the workers have the grant {name}{until}")?;
        if !self.options.no_call {
            let answer = call::first_company(area, provider, &self.desk.clock, &grant).await;
            writeln!(out, "{answer}")?;
        }
        match restart_failed(self.worker, area, name).await {
            Ok(names) if names.is_empty() => Ok(()),
            Ok(names) => writeln!(out, "failed tasks begin again: {}", names.join(", ")),
            // The grant is kept, which is what was asked for.
            Err(error) => writeln!(
                out,
                "failed tasks were not told to begin again ({}): run `tributary connectors restart {} --tasks --only-failed`",
                ErrorChain(&error),
                self.connector
            ),
        }
        .map_err(outside)
    }
}

/// Nothing can listen where the browser comes back to.
#[derive(Debug, thiserror::Error)]
#[error(
    "listen on port {port} of localhost for the browser to come back: {remedy}, or paste the code with --paste"
)]
struct Unheard {
    port: u16,
    remedy: &'static str,
    #[source]
    source: std::io::Error,
}

fn area(text: &str) -> Result<Area, String> {
    let found = Area::ALL.into_iter().find(|area| area.name() == text);
    found.ok_or_else(|| "accounting, payroll or invoicing".to_owned())
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

/// How the person comes back, by the setting and the command line.
fn way(redirect: Option<&str>, port: Option<u16>, paste: bool) -> Result<Way, Problem> {
    let Some(text) = redirect else {
        return Ok(if paste {
            Way::Paste(OUT_OF_BAND.to_owned())
        } else {
            Way::Listen(Place { port: port.unwrap_or(0), path: PATH.to_owned() }, None)
        });
    };
    if let Some(port) = port {
        let rule = "does not go with oauth.redirect.uri, which the provider compares to the letter";
        return Err(problem("--port", port.to_string().as_str(), rule, "leave one of the two out"));
    }
    match Url::parse(text) {
        // Whatever listens there is not this command, and nothing listens at the address of nowhere.
        Ok(url) if url.scheme() != "http" => Ok(Way::Paste(text.to_owned())),
        Ok(_) if paste => Ok(Way::Paste(text.to_owned())),
        Ok(url) => {
            let port = url.port_or_known_default().unwrap_or(80);
            Ok(Way::Listen(Place { port, path: url.path().to_owned() }, Some(text.to_owned())))
        }
        Err(error) => {
            let rule = format!("is no address ({error})");
            Err(problem("oauth.redirect.uri", text, rule, "write it as it is registered at the provider"))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::worker::grants::login_command;

    #[test]
    fn the_setting_and_the_command_line_say_how_the_person_comes_back() {
        let place = |port, path: &str| Place { port, path: path.to_owned() };
        let local = "http://localhost:8910/back";
        for (redirect, port, paste, expected) in [
            (None, None, false, Way::Listen(place(0, "/callback"), None)),
            (None, Some(8910), false, Way::Listen(place(8910, "/callback"), None)),
            (None, None, true, Way::Paste(OUT_OF_BAND.to_owned())),
            (Some(local), None, false, Way::Listen(place(8910, "/back"), Some(local.to_owned()))),
            (Some(local), None, true, Way::Paste(local.to_owned())),
            (
                Some("https://client.example/back"),
                None,
                false,
                Way::Paste("https://client.example/back".to_owned()),
            ),
            (Some(OUT_OF_BAND), None, false, Way::Paste(OUT_OF_BAND.to_owned())),
        ] {
            assert_eq!(way(redirect, port, paste).unwrap(), expected, "{redirect:?} {port:?} {paste}");
        }
        assert_eq!(way(Some(local), Some(1), false).unwrap_err().key, "--port");
    }

    #[test]
    fn the_command_that_errors_tell_people_to_run_is_one() {
        #[derive(Parser)]
        struct Arguments {
            #[command(flatten)]
            options: Options,
        }
        for area in Area::ALL {
            let command = login_command(area, "books");
            let words = command.strip_prefix("tributary auth ").unwrap().split(' ');

            let parsed = Arguments::try_parse_from(words).map_err(|error| error.to_string()).unwrap();

            assert_eq!((parsed.options.area, parsed.options.connector.as_str()), (area, "books"));
        }
    }
}
