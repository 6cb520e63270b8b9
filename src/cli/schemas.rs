//! `tributary schemas`: the Avro schemas of this build, and their state in the registry.

use std::io::Write;

use clap::Subcommand;
use serde_json::{Value, json};

use model::SchemaKind;

use super::{
    CheckedConfig, ConfigFiles, Environment, Result, block_on, client::OutputArgs, outside, problem, start,
    table::columns,
};
use crate::{
    avro::{self, Registry, ValueSubject, schemas},
    publish::Layout,
};

#[derive(Subcommand)]
pub(super) enum SchemasCommand {
    /// Prints names and fingerprints of the schemas in this build
    List(OutputArgs),
    /// Checks whether the registry would accept them for the connectors' topics; changes nothing
    Check(ConfigFiles),
    /// Sets the compatibility of the subjects and registers the schemas, as a start does
    Register(ConfigFiles),
}

pub(super) fn run(command: SchemasCommand, environment: Environment, out: &mut dyn Write) -> Result {
    let (files, register) = match command {
        SchemasCommand::List(format) => return list(&format, out),
        SchemasCommand::Check(files) => (files, false),
        SchemasCommand::Register(files) => (files, true),
    };
    let (loaded, _) = start(files.load(&environment)?.sound()?)?;
    if loaded.connectors.is_empty() {
        let directory = loaded.worker.connectors_dir.map(|directory| directory.display().to_string());
        let rule = "names no connector, and neither does --connector; schemas belong to a connector's topics";
        let remedy =
            "name a file with --connector, or set connectors.dir to a directory with connector files";
        return Err(problem("connectors.dir", directory.as_deref(), rule, remedy).into());
    }
    block_on(async |_| against_registry(&loaded, register, out).await)
}

fn list(format: &OutputArgs, out: &mut dyn Write) -> Result {
    let mut rows = Vec::new();
    for kind in SchemaKind::ALL {
        let schema = schemas::embedded(kind)?;
        if format.is_json() {
            let text: Value = serde_json::from_str(schema.text)?;
            let line =
                json!({ "name": kind.name(), "fingerprint": schema.fingerprint.to_string(), "schema": text });
            writeln!(out, "{line}")?;
        }
        rows.push([kind.name().to_owned(), schema.fingerprint.to_string()]);
    }
    if format.is_json() {
        return Ok(());
    }
    columns(["SCHEMA", "FINGERPRINT"], rows, out).map_err(outside)
}

async fn against_registry(loaded: &CheckedConfig, register: bool, out: &mut dyn Write) -> Result {
    let registry = Registry::new(&loaded.worker.registry)?;
    let subjects: Vec<ValueSubject> =
        loaded.connectors.iter().flat_map(|connector| Layout::of(connector).subjects()).collect();
    let (accepted, asked) = ask(&registry, &subjects, register).await;
    for line in accepted {
        writeln!(out, "{line}")?;
    }
    asked.map_err(outside)
}

/// A line for each subject that the registry accepts, and the errors of the others. Stops at the first transport error, since the
/// other requests would wait for the same timeout.
pub(super) async fn ask(
    registry: &Registry,
    subjects: &[ValueSubject],
    register: bool,
) -> (Vec<String>, Result<(), avro::Error>) {
    let mut accepted = Vec::new();
    let mut refused = Vec::new();
    for subject in subjects {
        match ask_one(registry, subject, register).await {
            Ok(text) => accepted.push(format!("{} {text}", subject.name())),
            Err(error @ avro::Error::Transport { .. }) => return (accepted, Err(error)),
            Err(error) => refused.push(error),
        }
    }
    let refused = if refused.is_empty() { Ok(()) } else { Err(avro::Error::Several(refused)) };
    (accepted, refused)
}

async fn ask_one(registry: &Registry, subject: &ValueSubject, register: bool) -> Result<String, avro::Error> {
    let schema = schemas::embedded(subject.kind)?;
    let name = subject.name();
    if register {
        registry.register(&name, schema.text, &schema.schema).await.map(|id| format!("id {id}"))
    } else {
        registry.check(&name, schema.text, &schema.schema).await.map(|()| "fits".to_owned())
    }
}
