//! Sends deliveries one after the other, and prints each answer as it arrives.

use std::{
    io::Write,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use reqwest::{Client, RequestBuilder, StatusCode, header::CONTENT_TYPE, redirect::Policy};
use url::Url;

use base::random;

use super::{
    CommandError, Environment, Result, SigningArgs,
    bodies::{self, AccountingDelivery},
    read_body,
};
use crate::{
    cli::{client, load, outside, problem, table::indented},
    config::{Listener, Problem, connector::WebhookSource, worker},
};

/// Limit for reading an answer; a receiver's has no body.
const MAX_ANSWER_BYTES: usize = 4096;
/// Path segment of invoicing deliveries if no connector names another.
const DEFAULT_SEGMENT: &str = "Invoicing";

#[derive(Args)]
pub(in crate::cli) struct SendOptions {
    #[command(flatten)]
    signing: SigningArgs,
    /// Address of the receiver; without a path, the connector's is added. Default: the worker's own
    #[arg(long)]
    url: Option<Url>,
    #[command(flatten)]
    delivery: AccountingDelivery,
    /// Number of deliveries, each with its own ids unless --body is given
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// File with the body to send instead; - for standard input
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Request an echo from the receiver, as the provider does before it activates an invoicing hook; sends no delivery
    #[arg(long, conflicts_with_all = ["body", "count"])]
    echo: bool,
    /// PEM file with the certificate to trust, if no public authority has signed the receiver's
    #[arg(long, env = "TRIBUTARY_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Seconds to wait for an answer; the provider waits 5
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
}

pub(super) async fn run(options: &SendOptions, environment: &Environment, out: &mut dyn Write) -> Result {
    let signing = &options.signing;
    let source = signing.source(environment).await?;
    let url = url(options, source.as_ref(), environment)?;
    let limit = Duration::from_secs(options.timeout);
    // The provider follows no redirect.
    let client = client::builder(options.ca.as_deref())?.timeout(limit).redirect(Policy::none()).build();
    let client = client?;
    if options.echo {
        return echo(&client, url, out).await;
    }
    let signer = signing.signer(source.as_ref(), environment)?;
    let given = match &options.body {
        Some(path) => Some(read_body(Some(path.clone())).await?),
        None => None,
    };
    let (mut taken, mut slowest) = (0, Duration::ZERO);
    for number in 1..=options.count {
        let body = match &given {
            Some(given) => given.clone(),
            None => self::body(options, number)?,
        };
        let mut request = client.post(url.clone()).header(CONTENT_TYPE, "application/json; charset=utf-8");
        if let Some((name, value)) = signer.sign(&body) {
            request = request.header(name, value);
        }
        let answer = answer(request.body(body)).await?;
        taken += u32::from(answer.status == StatusCode::OK);
        slowest = slowest.max(answer.elapsed);
        let place = if options.count > 1 { format!("{number}: ") } else { String::new() };
        print(&place, &answer, out)?;
    }
    let sent = options.count;
    if sent > 1 {
        let slowest = slowest.as_secs_f64() * 1_000.0;
        writeln!(out, "{sent} sent, {taken} answered 200, the slowest in {slowest:.1} ms")?;
    }
    // The provider disables a hook unless the answer is exactly 200.
    if taken == sent { Ok(()) } else { Err(CommandError::Reported) }
}

fn body(options: &SendOptions, number: u32) -> Result<Vec<u8>> {
    match options.signing.invoicing {
        Some(hook) => bodies::invoicing(hook, &options.delivery.tenant, number),
        None => bodies::accounting(&options.delivery, number),
    }
    .map_err(outside)
}

struct DeliveryAnswer {
    status: StatusCode,
    kind: String,
    body: Vec<u8>,
    elapsed: Duration,
}

async fn answer(request: RequestBuilder) -> Result<DeliveryAnswer> {
    let began = Instant::now();
    let mut answer = request.send().await?;
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let (status, kind) = (answer.status(), kind.unwrap_or_default().to_owned());
    let mut body = Vec::new();
    while body.len() <= MAX_ANSWER_BYTES
        && let Some(chunk) = answer.chunk().await?
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(MAX_ANSWER_BYTES);
    Ok(DeliveryAnswer { status, kind, body, elapsed: began.elapsed() })
}

fn print(
    place: &str,
    DeliveryAnswer { status, body, elapsed, .. }: &DeliveryAnswer,
    out: &mut dyn Write,
) -> Result {
    writeln!(out, "{place}{status} in {:.1} ms", elapsed.as_secs_f64() * 1_000.0)?;
    if !body.is_empty() {
        writeln!(out, "  {}", indented(&String::from_utf8_lossy(body), "  "))?;
    }
    Ok(())
}

/// Requests an echo as the provider does and checks the answer: exactly the id, as plain text.
async fn echo(client: &Client, mut url: Url, out: &mut dyn Write) -> Result {
    let id = random::guid()?;
    url.query_pairs_mut().clear().append_pair("echo", &id);
    let answer = answer(client.get(url)).await?;
    print("", &answer, out)?;
    let fault = if answer.status != StatusCode::OK {
        "the status is not 200"
    } else if answer.body != id.as_bytes() {
        "the body is not the id that was sent"
    } else if !answer.kind.starts_with("text/plain") {
        "the content type is not text/plain"
    } else {
        return writeln!(out, "the echo is valid").map_err(outside);
    };
    writeln!(out, "invalid echo: {fault}")?;
    Err(CommandError::Reported)
}

fn url(options: &SendOptions, source: Option<&WebhookSource>, environment: &Environment) -> Result<Url> {
    let mut url = match &options.url {
        Some(url) if !matches!(url.path(), "" | "/") => return Ok(checked(url.clone())?),
        Some(url) => checked(url.clone())?,
        None => own(options, environment)?,
    };
    let hook = options.signing.invoicing;
    let slug = hook.map(|hook| hook.slug());
    let path = match (source, options.echo || hook.is_some()) {
        (Some(source), false) => {
            let name = source.common.name.as_str();
            vec!["webhooks", "accounting", name, options.delivery.resource.name()]
        }
        (Some(source), true) => {
            let invoicing = source.invoicing.as_ref();
            let segment = invoicing.map_or(DEFAULT_SEGMENT, |invoicing| invoicing.segment.as_str());
            let own = slug.as_deref().filter(|_| invoicing.is_some_and(|invoicing| invoicing.own_addresses));
            ["api", "webhooks", "incoming", segment].into_iter().chain(own).collect()
        }
        (None, true) => vec!["api", "webhooks", "incoming", DEFAULT_SEGMENT],
        (None, false) => {
            let rule = "has no path, and there is no --connector to take it from";
            let remedy = "write the whole address of the receiver, or name its connector";
            return Err(problem("--url", None, rule, remedy).into());
        }
    };
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.clear().extend(path);
    }
    Ok(url)
}

fn checked(url: Url) -> Result<Url, Problem> {
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        return Ok(url);
    }
    let rule = "must be an http or https address";
    Err(problem("--url", None, rule, "write for example https://hooks.example.com"))
}

/// The receiver of the worker with these properties.
fn own(options: &SendOptions, environment: &Environment) -> Result<Url> {
    let worker = load::worker_if_any(options.signing.config.as_deref(), environment)?;
    let receiver = worker.and_then(|worker| {
        let worker::ReceiverSettings { advertised_url, listeners, .. } = worker.webhook;
        advertised_url.or_else(|| listeners.first().and_then(Listener::local_url))
    });
    receiver.ok_or_else(|| {
        let rule = "is missing, and the worker's properties have neither webhook.advertised.url nor webhook.listeners";
        let remedy = "write the address of the receiver, or name its worker's properties with --config";
        problem("--url", None, rule, remedy).into()
    })
}
