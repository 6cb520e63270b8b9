//! `tributary simulate`: runs the simulated provider until a signal.

use std::{
    fs,
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, ValueEnum};
use serde_json::Value;
use url::Url;

use simulator::{
    InvalidSetting, Simulator,
    clock::Ticks,
    knobs::Knobs,
    settings::{Settings, Tls, WorldSettings},
    timestamp,
    transcript::Transcript,
};

use super::{CommandError, Result, outside, problem, signals::Signals};
use crate::config::{Problem, Problems};

#[derive(Args)]
pub(super) struct SimulateOptions {
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8090)]
    port: u16,
    /// Freeze the clock at a time (2026-11-15T09:00:00Z) until /_control/clock moves it; default: a running clock
    #[arg(long, value_name = "TIMESTAMP", value_parser = timestamp)]
    frozen_at: Option<Ticks>,
    #[command(flatten)]
    world: WorldArgs,
    /// Changes per second that the provider makes by itself; default: 1, or the value in the knobs
    #[arg(long)]
    changes_per_second: Option<f64>,
    /// Newest entries that each journal (requests, deliveries, tokens) keeps
    #[arg(long, default_value_t = 100_000, value_name = "ENTRIES", value_parser = clap::value_parser!(u32).range(1..))]
    journal: u32,
    #[command(flatten)]
    tls: TlsArgs,
    /// Certificate (PEM) to trust for webhook receivers
    #[arg(long, value_name = "FILE")]
    receiver_root: Vec<PathBuf>,
    /// Knobs (JSON, as GET /_control/knobs shows them; missing knobs keep their defaults)
    #[arg(long, value_name = "FILE")]
    knobs: Option<PathBuf>,
    /// Behavior where the provider's document leaves it open
    #[arg(long, value_enum, default_value_t = Profile::Strict, conflicts_with = "knobs")]
    profile: Profile,
}

#[derive(Args)]
struct WorldArgs {
    /// Seed of all random values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Accounting companies
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    companies: u32,
    /// Customers of each company
    #[arg(long, default_value_t = 20)]
    customers: u32,
    /// Accounts of each company
    #[arg(long, default_value_t = 20)]
    accounts: u32,
    /// Records of every other resource in each company
    #[arg(long, default_value_t = 1)]
    others: u32,
    /// Payroll companies
    #[arg(long, default_value_t = 100)]
    payroll_companies: u32,
    /// Answer from a transcript of `tributary probe --save` instead; only the login is simulated
    #[arg(long, value_name = "FILE")]
    transcript: Option<PathBuf>,
}

#[derive(Args)]
struct TlsArgs {
    /// Serve HTTPS with a generated certificate for localhost, which is printed
    #[arg(id = "tls", long = "tls")]
    is_generated: bool,
    /// Serve HTTPS with this certificate chain (PEM)
    #[arg(long, requires = "key", conflicts_with = "tls", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, requires = "certificate", value_name = "FILE")]
    key: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Profile {
    /// The narrowest reading of the document
    Strict,
    /// The most generous reading
    Lenient,
    /// Each open question answered at random; --seed gives the same answers again
    Drawn,
}

pub(super) async fn run(options: &SimulateOptions, out: &mut dyn Write) -> Result {
    let settings = settings(options)?;
    let (client, keys) = (settings.client.clone(), settings.subscription_keys.clone());
    let invoicing = settings.invoicing.clone();
    let mut signals = Signals::take()?;
    let simulator = Simulator::start(settings).await.map_err(not_started)?;
    let base = simulator.base_url();
    let base = base.as_str().trim_end_matches('/');
    let auth = simulator.auth_url();
    if let (Some(certificate), true) = (simulator.certificate(), options.tls.is_generated) {
        writeln!(out, "{certificate}")?;
    }
    writeln!(
        out,
        "provider.base.url          {base}\n\
         provider.auth.url          {}\n\
         provider.subscription.key  {}\n\
         oauth.client.id            {}\n\
         oauth.client.secret        {}\n\
         invoicing login            {} / {}\n\
         provider.hosts.allowed     {} (in the worker's configuration)\n\
         knobs and truth            {base}/_control",
        auth.as_str().trim_end_matches('/'),
        keys.join(", "),
        client.id,
        client.secret,
        invoicing.mail,
        invoicing.password,
        hosts(&simulator.base_url(), &auth),
    )?;
    out.flush()?;
    signals.next().await;
    simulator.stop().await;
    Ok(())
}

/// Value of `provider.hosts.allowed` for the worker.
fn hosts(base: &Url, auth: &Url) -> String {
    let mut hosts: Vec<&str> = [base, auth].iter().filter_map(|url| url.host_str()).collect();
    hosts.dedup();
    hosts.join(",")
}

fn settings(options: &SimulateOptions) -> Result<Settings> {
    let mut knobs = match &options.knobs {
        None => {
            let knobs = match options.profile {
                Profile::Strict => Knobs::default(),
                Profile::Lenient => Knobs::lenient(),
                Profile::Drawn => Knobs::drawn(options.world.seed),
            };
            Knobs { changes_per_second: 1.0, ..knobs }
        }
        Some(path) => knobs(&read("--knobs", path)?)
            .map_err(|error| about("--knobs", path, &error, "GET /_control/knobs shows every knob"))?,
    };
    if let Some(rate) = options.changes_per_second {
        knobs.changes_per_second = rate;
    }
    let tls = match &options.tls {
        TlsArgs { certificate: Some(certificate), key: Some(key), .. } => {
            Tls::Given { certificate: read("--certificate", certificate)?, key: read("--key", key)? }
        }
        TlsArgs { is_generated: true, .. } => Tls::Generated,
        _ => Tls::Off,
    };
    let WorldArgs { seed, companies, customers, accounts, others, payroll_companies, transcript } =
        &options.world;
    let transcript = transcript.as_deref().map(|path| {
        let parsed = Transcript::parse(&read("--transcript", path)?);
        let remedy = "name a file that `tributary probe --save` has written";
        let unusable = |rule| problem("--transcript", &*path.to_string_lossy(), rule, remedy);
        Ok::<_, CommandError>(Arc::new(parsed.map_err(unusable)?))
    });
    let receiver_roots =
        options.receiver_root.iter().map(|path| read("--receiver-root", path)).collect::<Result<_, _>>()?;
    Ok(Settings {
        address: SocketAddr::new(options.address, options.port),
        tls,
        world: WorldSettings {
            seed: *seed,
            companies: *companies,
            customers: *customers,
            accounts: *accounts,
            others: *others,
            payroll_companies: *payroll_companies,
            ..WorldSettings::default()
        },
        transcript: transcript.transpose()?,
        frozen_at: options.frozen_at,
        receiver_roots,
        journal_limit: options.journal as usize,
        knobs,
        ..Settings::default()
    })
}

/// Knobs from a file. If it does not set the rate of changes, the rate is the same as without a file.
fn knobs(text: &str) -> Result<Knobs, serde_json::Error> {
    let mut knobs: Knobs = serde_json::from_str(text)?;
    let named: Value = serde_json::from_str(text)?;
    if named.get("changesPerSecond").is_none() {
        knobs.changes_per_second = 1.0;
    }
    Ok(knobs)
}

fn timestamp(text: &str) -> Result<Ticks, String> {
    timestamp::parse(text).ok_or_else(|| "expected YYYY-MM-DDThh:mm:ssZ".to_owned())
}

/// Invalid settings are problems of the command line.
fn not_started(error: simulator::Error) -> CommandError {
    let simulator::Error::Settings(unfit) = error else { return outside(error) };
    let mut problems = Problems::default();
    for InvalidSetting { name, value, rule, remedy } in unfit {
        problems.push(Problem { key: name, value: Some(value), rule, remedy });
    }
    problems.into()
}

fn read(option: &str, path: &Path) -> Result<String> {
    fs::read_to_string(path)
        .map_err(|error| about(option, path, &error, "name a file that can be read").into())
}

fn about(option: &str, path: &Path, error: &dyn std::error::Error, remedy: &str) -> Problem {
    problem(option, &*path.to_string_lossy(), error.to_string(), remedy)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct SimulateCommand {
        #[command(flatten)]
        options: SimulateOptions,
    }

    fn parsed(arguments: &[&str]) -> Option<Settings> {
        let command = SimulateCommand::try_parse_from([&["simulate"], arguments].concat()).ok()?;
        settings(&command.options).ok()
    }

    fn journal(arguments: &[&str]) -> Option<usize> {
        parsed(arguments).map(|settings| settings.journal_limit)
    }

    #[test]
    fn a_profile_sets_the_open_questions() {
        let knobs = |arguments: &[&str]| parsed(arguments).unwrap().knobs;
        let living = |knobs| Knobs { changes_per_second: 1.0, ..knobs };

        assert_eq!(knobs(&[]), living(Knobs::default()));
        assert_eq!(knobs(&["--profile", "lenient"]), living(Knobs::lenient()));
        assert_eq!(knobs(&["--profile", "drawn", "--seed", "7"]), living(Knobs::drawn(7)));
        assert!(parsed(&["--profile", "drawn", "--knobs", "knobs.json"]).is_none());
    }

    #[test]
    fn journal_sets_the_number_of_entries() {
        assert_eq!(journal(&[]), Some(Settings::default().journal_limit));
        assert_eq!(journal(&["--journal", "7"]), Some(7));
        assert_eq!(journal(&["--journal", "0"]), None);
    }
}
