//! `tributary webhooks …`: signs given bytes, or sends test deliveries like the provider's.
//!
//! A secret comes from a connector's configuration, a variable or a file, never from the command line, where other users of
//! the machine could see it. Exit codes: 0 done, and every delivery was answered 200; 1 one was not, or the receiver does not
//! answer; 2 the command line or a file is wrong, and nothing was sent.

mod bodies;
mod send;

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use http::HeaderName;

use base::secret::Secret;
use model::InvoicingHook;

use super::{CommandError, Environment, Result, outside, problem, resolve};
use crate::{
    config::{
        Connector, Problem,
        connector::{SecretScope, SignatureTrust, WebhookSource, hook},
        properties::read_bounded,
    },
    webhooks::signature::{self, ACCOUNTING_HEADER, MasterSecret, SHORTEST_SECRET},
};

/// More than any receiver accepts.
const MAX_BODY_BYTES: u64 = 128 << 20;
/// Header of invoicing deliveries if no connector names another.
const INVOICING_HEADER: HeaderName = HeaderName::from_static("ms-signature");

#[derive(Subcommand)]
pub(super) enum WebhooksCommand {
    /// Prints the header that signs a body, `name: value`
    Sign {
        /// File with the exact body; default, or -: standard input
        body: Option<PathBuf>,
        #[command(flatten)]
        signing: SigningArgs,
    },
    /// Sends deliveries to a receiver and prints the answers; exit code 0 only if all of them are 200
    Send(Box<send::SendOptions>),
}

#[derive(Args)]
pub(super) struct SigningArgs {
    /// Worker properties; default: only the environment (CONNECT_*)
    #[arg(long, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Connector whose secret is used: its file (JSON), or its name in connectors.dir or on the workers
    #[arg(long, value_name = "FILE|NAME")]
    connector: Option<String>,
    /// Variable that contains the secret
    #[arg(long, value_name = "NAME", conflicts_with = "secret_file")]
    secret_env: Option<String>,
    /// File that contains the secret; one newline at its end is ignored
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Use the connector's previous secret, as during a rotation
    #[arg(long, requires = "connector")]
    previous: bool,
    /// An invoicing delivery of this hook, such as Customer:Created; its secret is derived from invoicing.secret, unless
    /// invoicing.secret.scope is connector
    #[arg(long, value_name = "ENTITY:ACTION", value_parser = hook)]
    invoicing: Option<InvoicingHook>,
    /// Header of the signature; default: the connector's
    #[arg(long, value_name = "NAME")]
    header: Option<HeaderName>,
}

pub(super) struct DeliverySigner {
    header: HeaderName,
    /// `None` if the connector requires no signature.
    secret: Option<Secret>,
}

impl DeliverySigner {
    fn sign(&self, body: &[u8]) -> Option<(HeaderName, String)> {
        self.secret.as_ref().map(|secret| (self.header.clone(), signature::sign(secret, body)))
    }
}

pub(super) async fn run(command: WebhooksCommand, environment: &Environment, out: &mut dyn Write) -> Result {
    match command {
        WebhooksCommand::Sign { body, signing } => {
            let source = signing.source(environment).await?;
            let signer = signing.signer(source.as_ref(), environment)?;
            let body = read_body(body).await?;
            let unsigned = || {
                let rule = "is off, so this connector's deliveries are not signed";
                let remedy = "name a secret with --secret-env or --secret-file to sign anyway";
                problem("invoicing.signature.policy", None, rule, remedy)
            };
            let (name, value) = signer.sign(&body).ok_or_else(unsigned)?;
            writeln!(out, "{name}: {value}").map_err(outside)
        }
        WebhooksCommand::Send(options) => send::run(&options, environment, out).await,
    }
}

impl SigningArgs {
    async fn source(&self, environment: &Environment) -> Result<Option<WebhookSource>> {
        let Some(named) = &self.connector else { return Ok(None) };
        match resolve::connector(named, self.config.as_deref(), environment).await? {
            Connector::WebhookSource(source) => Ok(Some(*source)),
            other => {
                let rule = format!("is a {}, which receives no deliveries", other.class().name());
                Err(problem("--connector", named.as_str(), rule, "name a WebhookSource").into())
            }
        }
    }

    fn signer(
        &self,
        source: Option<&WebhookSource>,
        environment: &Environment,
    ) -> Result<DeliverySigner, Problem> {
        let given = self.given(environment)?;
        let (header, secret) = match (self.invoicing, source) {
            (None, Some(source)) => (ACCOUNTING_HEADER, Some(self.accounting_secret(source, given)?)),
            (Some(_), Some(source)) => self.invoicing_secret(source, given)?,
            (invoicing, None) => {
                let secret = given.ok_or_else(|| {
                    let rule =
                        "is missing, and so are --secret-env and --secret-file: a signature needs a secret";
                    let remedy = "name a connector, or a variable or file with the secret";
                    problem("--connector", None, rule, remedy)
                })?;
                (if invoicing.is_some() { INVOICING_HEADER } else { ACCOUNTING_HEADER }, Some(secret))
            }
        };
        let invoicing = source.and_then(|source| source.invoicing.as_ref());
        let scope = match invoicing.map(|invoicing| &invoicing.signature) {
            Some(SignatureTrust::Required { scope, .. }) => *scope,
            Some(SignatureTrust::Off) | None => SecretScope::Hook,
        };
        let derived = secret.map(|secret| match self.invoicing {
            Some(hook) => MasterSecret::new(&secret, scope).of(hook),
            None => secret,
        });
        Ok(DeliverySigner { header: self.header.clone().unwrap_or(header), secret: derived })
    }

    fn accounting_secret(&self, source: &WebhookSource, given: Option<Secret>) -> Result<Secret, Problem> {
        if let Some(given) = given {
            return Ok(given);
        }
        let accounting = source.accounting.as_ref().ok_or_else(|| {
            let rule = "is not set: the connector receives no accounting deliveries";
            problem("accounting.resources", None, rule, "choose one of its hooks with --invoicing")
        })?;
        self.chosen(&accounting.secret, accounting.previous_secret.as_ref(), "accounting.secret.previous")
    }

    fn invoicing_secret(
        &self,
        source: &WebhookSource,
        given: Option<Secret>,
    ) -> Result<(HeaderName, Option<Secret>), Problem> {
        let invoicing = source.invoicing.as_ref().ok_or_else(|| {
            let rule = "is not set: the connector receives no invoicing deliveries";
            problem("invoicing.hooks", None, rule, "remove --invoicing")
        })?;
        let SignatureTrust::Required { header, secret, previous_secret, .. } = &invoicing.signature else {
            return Ok((INVOICING_HEADER, given));
        };
        // The configuration has validated the header name.
        let header = header.parse().unwrap_or(INVOICING_HEADER);
        let secret = match given {
            Some(given) => given,
            None => self.chosen(secret, previous_secret.as_ref(), "invoicing.secret.previous")?,
        };
        Ok((header, Some(secret)))
    }

    /// The current secret or, with `--previous`, the one in the setting `key`.
    fn chosen(&self, current: &Secret, previous: Option<&Secret>, key: &str) -> Result<Secret, Problem> {
        let chosen = if self.previous { previous } else { Some(current) };
        chosen.cloned().ok_or_else(|| {
            problem(key, None, "is not set, so there is no previous secret", "remove --previous")
        })
    }

    /// The secret from a variable or a file, if given.
    fn given(&self, environment: &Environment) -> Result<Option<Secret>, Problem> {
        let (option, named, found) = match (&self.secret_env, &self.secret_file) {
            (Some(name), _) => {
                let found = environment.iter().find(|(known, _)| known == name.as_str());
                let text = found.and_then(|(_, value)| value.to_str()).map(str::to_owned);
                let text = text.ok_or_else(|| "names no variable that holds text".to_owned());
                ("--secret-env", name.clone(), text)
            }
            (None, Some(path)) => {
                let read =
                    fs::read_to_string(path).map_err(|error| format!("cannot be read: {}", error.kind()));
                ("--secret-file", path.display().to_string(), read.map(without_newline))
            }
            (None, None) => return Ok(None),
        };
        let about = |rule: String, remedy: &str| problem(option, named.as_str(), rule, remedy);
        let secret = found.map_err(|rule| about(rule, "name a variable or file with the secret"))?;
        if secret.len() < SHORTEST_SECRET {
            let rule =
                format!("holds {} bytes, and receivers require at least {SHORTEST_SECRET}", secret.len());
            return Err(about(rule, "use the secret that the connector is configured with"));
        }
        Ok(Some(Secret::new(secret)))
    }
}

fn without_newline(text: String) -> String {
    let Some(line) = text.strip_suffix('\n') else { return text };
    line.strip_suffix('\r').unwrap_or(line).to_owned()
}

/// Reads a file or standard input.
async fn read_body(path: Option<PathBuf>) -> Result<Vec<u8>> {
    let path = path.filter(|path| path.as_os_str() != "-");
    let shown = path.clone().unwrap_or_else(|| "-".into());
    let reading = tokio::task::spawn_blocking(move || match path {
        Some(path) => fs::File::open(path).and_then(|file| read_bounded(file, MAX_BODY_BYTES)),
        None => read_bounded(io::stdin().lock(), MAX_BODY_BYTES),
    });
    let about = |rule: String| {
        let remedy = "name a file with the body, or - for standard input";
        problem("body", &*shown.to_string_lossy(), rule, remedy)
    };
    let body = reading.await?.map_err(|error| about(format!("cannot be read: {}", error.kind())))?;
    body.ok_or_else(|| about(format!("is larger than {MAX_BODY_BYTES} bytes")).into())
}
