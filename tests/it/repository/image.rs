//! The image by its Dockerfile: pinned bases, no simulator in the release image, and its bill of materials. No engine builds it here:
//! these tests read the file and run its scripts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

crate::tests! {
    plain the_image_pins_its_bases_by_digest;
    plain an_unpinned_base_ends_the_image_build;
    plain only_the_demo_image_has_the_simulator;
    plain the_image_has_the_sbom_of_its_features;
    plain the_image_build_gets_every_file_that_it_copies;
}

/// The features of a release, as the build and the SBOM name them.
const RELEASE_FEATURES: &str = "--no-default-features --features dist";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

struct Stage {
    /// Empty for the last one, which is the image.
    name: String,
    base: String,
    steps: Vec<String>,
}

/// The Dockerfile's arguments before its first stage, and its stages. Continued lines are one step; comments are left out.
fn dockerfile() -> (BTreeMap<String, String>, Vec<Stage>) {
    let (mut arguments, mut stages) = (BTreeMap::new(), Vec::<Stage>::new());
    let text = read("Dockerfile");
    let text: String =
        text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
    for step in text.replace("\\\n", " ").lines() {
        let words: Vec<&str> = step.split_whitespace().collect();
        match (words.as_slice(), stages.last_mut()) {
            (["ARG", argument], None) => {
                let (name, value) = argument.split_once('=').unwrap();
                arguments.insert(name.to_owned(), value.to_owned());
            }
            (["FROM", base, name @ ..], _) => {
                let (base, name) = ((*base).to_owned(), name.get(1).copied().unwrap_or_default().to_owned());
                stages.push(Stage { name, base, steps: Vec::new() });
            }
            ([], _) => {}
            (words, Some(stage)) => stage.steps.push(words.join(" ")),
            (words, None) => panic!("{words:?} stands before the first stage"),
        }
    }
    (arguments, stages)
}

fn stage<'a>(stages: &'a [Stage], name: &str) -> &'a Stage {
    stages.iter().find(|stage| stage.name == name).unwrap_or_else(|| panic!("no stage {name:?}"))
}

/// The name in `${NAME}`.
fn argument(base: &str) -> Option<&str> {
    base.strip_prefix("${")?.strip_suffix('}')
}

fn is_pinned(images: &[&str]) -> bool {
    Command::new(root().join(".ci/pinned")).args(images).output().unwrap().status.success()
}

async fn the_image_pins_its_bases_by_digest() {
    let (arguments, stages) = dockerfile();

    assert!(!read("Dockerfile").contains("# syntax="), "a syntax line names an image by a tag that moves");
    for (at, Stage { base, steps, .. }) in stages.iter().enumerate() {
        let is_stage = |name: &str| stages[..at].iter().any(|earlier| earlier.name == name);
        match argument(base) {
            Some(name) => assert!(is_pinned(&[&arguments[name]]), "{name} has no digest"),
            None => assert!(is_stage(base), "{base} is an image by its tag"),
        }
        for from in steps.iter().filter_map(|step| step.split_once("--from=")) {
            let from = from.1.split(' ').next().unwrap();
            assert!(is_stage(from), "{from} is an image by its tag");
        }
    }
}

async fn an_unpinned_base_ends_the_image_build() {
    let digest = "0123456789abcdef".repeat(4);
    let pinned = format!("registry.example:5000/a/rust:1.95-bookworm@sha256:{digest}");
    let (short, upper) =
        (format!("rust@sha256:{}", &digest[1..]), format!("rust@sha256:{}", digest.to_uppercase()));
    let (two_lines, bare) = (format!("{pinned}\nrust"), format!("@sha256:{digest}"));

    assert!(is_pinned(&[&pinned]));
    for image in ["", "rust", "rust:1.95-bookworm", "rust@sha256:", &short, &upper, &two_lines, &bare] {
        assert!(!is_pinned(&[image]), "{image:?}");
        assert!(!is_pinned(&[&pinned, image]), "{image:?} behind another");
    }
    assert!(!is_pinned(&[]));

    let (arguments, stages) = dockerfile();
    let bases: Vec<_> = stages.iter().filter_map(|stage| argument(&stage.base)).collect();
    assert_eq!(bases.len(), arguments.len());
    let check = format!(
        "RUN .ci/pinned {}",
        bases.iter().map(|name| format!("\"${name}\"")).collect::<Vec<_>>().join(" ")
    );
    let sources = stage(&stages, "sources");
    let at =
        |step: &str| sources.steps.iter().position(|own| own == step).unwrap_or_else(|| panic!("no {step}"));
    for name in bases {
        assert!(at(&format!("ARG {name}")) < at(&check), "{name} is empty when it is checked");
    }
    // Both images copy their binary from a stage that is based on this one.
    for name in ["build", "build-demo"] {
        assert_eq!(stage(&stages, name).base, "sources");
    }
}

async fn only_the_demo_image_has_the_simulator() {
    let (_, stages) = dockerfile();
    let build = |name: &str| -> String {
        let builds = stage(&stages, name).steps.iter().filter(|step| step.contains("cargo build"));
        builds.cloned().collect()
    };
    let copies = |stage: &Stage| -> Vec<String> {
        stage.steps.iter().filter(|step| step.ends_with("/usr/local/bin/tributary")).cloned().collect()
    };
    let binary =
        |from: &str| vec![format!("COPY --from={from} /usr/local/bin/tributary /usr/local/bin/tributary")];

    assert!(build("build").contains(RELEASE_FEATURES), "{}", build("build"));
    assert!(!build("build-demo").contains("--no-default-features"), "{}", build("build-demo"));
    for file in ["README.md", "CHANGELOG.md", "Cargo.toml", ".ci/nightly"] {
        assert!(read(file).contains(RELEASE_FEATURES), "{file} names other features than the image has");
    }
    // The simulator is a member of the workspace, which cargo would build otherwise.
    assert!(["build", "build-demo"].iter().all(|stage| build(stage).contains("-p tributary")));
    let image = stages.last().unwrap();
    assert_eq!((image.name.as_str(), copies(image)), ("", binary("build")));
    assert_eq!(copies(stage(&stages, "demo")), binary("build-demo"));
    let compose = read("docker-compose.yml");
    let builds: Vec<_> = compose.lines().map(str::trim).filter(|line| line.starts_with("build:")).collect();
    assert_eq!(builds, ["build: { context: ., target: demo }"]);
}

async fn the_image_has_the_sbom_of_its_features() {
    let (_, stages) = dockerfile();

    assert!(stage(&stages, "build").steps.iter().any(|step| step.ends_with(".ci/sbom /sbom.cdx.json")));
    let copy = "COPY --from=build /sbom.cdx.json /usr/share/doc/tributary/sbom.cdx.json";
    assert!(stages.last().unwrap().steps.iter().any(|step| step == copy));
    assert!(read(".ci/sbom").contains(RELEASE_FEATURES));
}

async fn the_image_build_gets_every_file_that_it_copies() {
    let (_, stages) = dockerfile();
    let ignored = read(".dockerignore");

    let copies = stages.iter().flat_map(|stage| &stage.steps).filter_map(|step| step.strip_prefix("COPY "));
    for copy in copies.filter(|copy| !copy.starts_with("--from=")) {
        let sources: Vec<&str> = copy.split(' ').collect();
        for source in &sources[..sources.len() - 1] {
            let top = source.split('/').next().unwrap();
            assert!(
                ignored.lines().any(|line| line == format!("!{top}")),
                ".dockerignore leaves out {source}"
            );
        }
    }
}
