//! The documents are right: links resolve, commands exist, settings exist.
//!
//! Commands are not run here, since most need a cluster; `readme` runs those in the README's blocks. Every command, also within a
//! sentence, must exist and have every option that is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::command::{stdout, tributary};

crate::tests! {
    plain every_link_in_the_documents_resolves;
    plain every_command_in_the_documents_can_be_typed;
    plain every_setting_in_the_documents_exists;
    plain errors_in_a_document_are_found;
}

const DOCUMENTS: [&str; 7] = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "config/REFERENCE.md",
    "config/METRICS.md",
    "docs/provider.md",
];

/// Files with commands in backticks in their comments.
const COMMENTED: [&str; 5] = [
    "config/worker.properties",
    "config/kubernetes/kustomization.yaml",
    "config/kubernetes/statefulset.yaml",
    "config/systemd/tributary.service",
    "docker-compose.yml",
];

/// Names with dots in the documents that are no settings of ours: settings of Kafka, files, hosts, and members of answers.
const FOREIGN: [&str; 10] = [
    "allowed.paths",
    "connector.gaps",
    "connector.subscriptions",
    "deny.toml",
    "hooks.example.com",
    "isolation.level",
    "max.message.bytes",
    "receivers.json",
    "security.protocol",
    "wish.done",
];

fn read(document: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text outside of fenced blocks, and the lines of those with this tag, continued lines as one.
fn divided(text: &str, tag: &str) -> (String, Vec<String>) {
    let (mut outside, mut lines, mut fence) = (String::new(), Vec::<String>::new(), None::<String>);
    let mut continued = false;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), &fence) {
            (Some(_), Some(_)) => fence = None,
            (Some(named), None) => fence = Some(named.to_owned()),
            (None, Some(named)) if named == tag => {
                let part = line.trim().trim_end_matches('\\').trim_end();
                match lines.last_mut().filter(|_| continued) {
                    Some(last) => *last = format!("{last} {part}"),
                    None => lines.push(part.to_owned()),
                }
                continued = line.ends_with('\\');
            }
            (None, Some(_)) => {}
            (None, None) => outside.extend([line, "\n"]),
        }
    }
    (outside, lines)
}

/// Targets of `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    let parts = text.split("](").skip(1);
    parts.filter_map(|part| Some(part.split_once(')')?.0)).collect()
}

/// Headings as a forge names their anchors.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| -> String {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|one| one.is_alphanumeric() || matches!(one, ' ' | '-' | '_'));
        kept.map(|one| if one == ' ' { '-' } else { one }).collect()
    };
    headings.map(slug).collect()
}

/// Links of a document that do not resolve.
fn dead_links(document: &str, text: &str) -> Vec<String> {
    let (outside, _) = divided(text, "");
    let (root, anchors) = (Path::new(env!("CARGO_MANIFEST_DIR")), anchors(&outside));
    let directory = root.join(document).parent().unwrap().to_owned();
    let leads = |target: &str| match target.split_once('#') {
        Some(("", anchor)) => anchors.contains(anchor),
        _ if target.starts_with("https://") => true,
        Some((path, _)) => directory.join(path).exists(),
        None => directory.join(target).exists(),
    };
    links(&outside).into_iter().filter(|target| !leads(target)).map(str::to_owned).collect()
}

async fn every_link_in_the_documents_resolves() {
    for document in DOCUMENTS {
        let text = read(document);
        let dead = dead_links(document, &text);
        assert!(dead.is_empty(), "{document}: {dead:?} lead nowhere");
    }
    assert!(links(&read("README.md")).len() > 30, "the README has hardly any links: are they found?");
}

/// The arguments of each `tributary` command in these lines.
fn calls(lines: &[String]) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    for line in lines {
        let bare = line.split("  #").next().unwrap_or_default().split(" # ").next().unwrap_or_default();
        let bare = bare.replace("cargo run --release -- ", "tributary ");
        let Some(arguments) = bare.trim().strip_prefix("tributary ") else { continue };
        calls.push(arguments.split_whitespace().map(str::to_owned).collect());
    }
    calls
}

/// The help of a command, by its words.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, Option<String>>);

impl Helps {
    async fn of(&mut self, words: &[String]) -> Option<String> {
        if !self.0.contains_key(words) {
            let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
            arguments.push("--help");
            let output = tributary(&arguments, &[]).await;
            self.0.insert(words.to_vec(), output.status.success().then(|| stdout(&output)));
        }
        self.0[words].clone()
    }

    /// The parts of a command that do not exist.
    async fn wrong(&mut self, call: &[String]) -> Option<String> {
        let mut words: Vec<String> = call.iter().take(1).cloned().collect();
        let mut help = self.of(&words).await;
        if let (Some(text), Some(second)) = (&help, call.get(1))
            && text.contains("Commands:")
        {
            words.push(second.clone());
            help = match text.lines().any(|line| line.trim_start().split(' ').next() == Some(second)) {
                true => self.of(&words).await,
                false => None,
            };
        }
        let Some(help) = help else { return Some(format!("`tributary {}` is no command", words.join(" "))) };
        let options = call.iter().filter(|word| word.starts_with("--"));
        let known: BTreeSet<&str> = help.split(|one: char| !(one.is_alphanumeric() || one == '-')).collect();
        let unknown =
            options.map(|option| option.split('=').next().unwrap()).find(|one| !known.contains(one));
        unknown.map(|option| format!("`tributary {}` has no {option}", words.join(" ")))
    }
}

async fn every_command_in_the_documents_can_be_typed() {
    let (outside, mut lines) = divided(&read("README.md"), "sh");
    let in_comments = COMMENTED.map(read);
    for text in in_comments.iter().chain([&outside]) {
        lines.extend(text.split('`').skip(1).step_by(2).map(|quoted| quoted.replace('\n', " ")));
    }
    let (calls, mut helps) = (calls(&lines), Helps::default());
    for call in &calls {
        let wrong = helps.wrong(call).await;
        assert_eq!(wrong, None, "tributary {}", call.join(" "));
    }
    assert!(calls.len() > 60, "{} calls found", calls.len());
}

/// Names that look like settings: in backticks, in properties, and members of JSON.
fn named_keys(text: &str) -> BTreeSet<String> {
    let (outside, properties) = divided(text, "properties");
    let (_, json) = divided(text, "json");
    let quoted = outside.split('`').skip(1).step_by(2).map(str::to_owned);
    let members = json.iter().flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned);
    let lines = properties.into_iter().filter(|line| !line.starts_with('#'));
    let is_key = |name: &str| {
        let parts: Vec<&str> = name.split('.').collect();
        let is_word = |part: &&str| !part.is_empty() && part.chars().all(|one| one.is_ascii_lowercase());
        parts.len() > 1 && parts.iter().all(is_word)
    };
    let names =
        quoted.chain(members).chain(lines).map(|text| text.split('=').next().unwrap_or_default().to_owned());
    names.filter(|name| is_key(name)).collect()
}

/// The names that are no settings.
fn unknown_keys(text: &str, reference: &str) -> Vec<String> {
    let known: BTreeSet<&str> =
        reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let is_known = |name: &String| {
        // Record headers; and settings that are passed to Kafka's clients.
        let foreign = FOREIGN.contains(&name.as_str())
            || ["tributary.", "sasl.", "ssl.", "config.providers."]
                .iter()
                .any(|prefix| name.starts_with(prefix));
        foreign || known.contains(name.as_str())
    };
    named_keys(text).into_iter().filter(|name| !is_known(name)).collect()
}

async fn every_setting_in_the_documents_exists() {
    let reference = read("config/REFERENCE.md");
    for (document, least) in [("README.md", 50), ("SECURITY.md", 30)] {
        let text = read(document);
        let unknown = unknown_keys(&text, &reference);
        assert!(unknown.is_empty(), "{document}: {unknown:?} are no keys");
        assert!(named_keys(&text).len() > least, "{document}: {:?}", named_keys(&text));
    }
}

async fn errors_in_a_document_are_found() {
    let text = "# A title\n[a](#a-title) [b](#nowhere) [c](src/lib.rs) [d](src/none.rs)\n```sh\n[e](none)\n```\n\
                `group.id` `group.ids` `group.id=x`";
    assert_eq!(dead_links("README.md", text), ["#nowhere", "src/none.rs"]);
    assert_eq!(unknown_keys(text, "| `group.id` | x |"), ["group.ids"]);

    let lines = [
        "tributary schemas list  # well",
        "tributary schemas checks",
        "curl x",
        "tributary run --confg x",
        "tributary nothing",
    ];
    let mut helps = Helps::default();
    let mut wrong = Vec::new();
    for call in calls(&lines.map(str::to_owned)) {
        wrong.push(helps.wrong(&call).await);
    }
    let told = |text: &str| Some(text.to_owned());
    assert_eq!(
        wrong,
        [
            None,
            told("`tributary schemas checks` is no command"),
            told("`tributary run` has no --confg"),
            told("`tributary nothing` is no command")
        ]
    );
}
