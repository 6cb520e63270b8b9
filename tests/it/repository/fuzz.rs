//! Runs the fuzz targets on their seeds and on inputs close to them. `fuzz/run` explores from there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[allow(unreachable_pub, reason = "a separate library, included here")]
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

crate::tests! {
    plain every_seed_passes_its_fuzz_target;
    plain seeds_reach_the_code_behind_the_first_check;
    plain every_directory_of_seeds_has_a_fuzz_target;
}

type Target = fn(&[u8]);

/// Every target, by the name of its directory of seeds.
const TARGETS: [(&str, Target); 6] = [
    ("avro", |input| {
        targets::avro(input);
    }),
    ("configuration", |input| {
        targets::configuration(input);
    }),
    ("envelope", targets::envelope),
    ("invoicing_body", targets::invoicing_body),
    ("signature_header", targets::signature_header),
    ("token", |input| {
        targets::token(input);
    }),
];

/// Most positions of one seed that are changed. A configuration takes milliseconds to check, so that all positions would take minutes.
fn places(target: &str) -> usize {
    if target == "configuration" { 40 } else { usize::MAX }
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn seed(target: &str, name: &str) -> Vec<u8> {
    fs::read(fuzz().join("seeds").join(target).join(name)).unwrap()
}

async fn every_seed_passes_its_fuzz_target() {
    for (name, check) in TARGETS {
        let mut tried = 0;
        for seed in fs::read_dir(fuzz().join("seeds").join(name)).unwrap() {
            let seed = fs::read(seed.unwrap().path()).unwrap();
            check(&seed);
            for place in (0..seed.len()).step_by(seed.len().div_ceil(places(name)).max(1)) {
                check(&seed[..place]);
                let mut changed = seed.clone();
                for byte in [b'"', b'{', b'0', b'\\', 0xff] {
                    changed[place] = byte;
                    check(&changed);
                }
            }
            tried += 1;
        }
        assert!(tried > 0, "{name} has no seeds");
    }
}

/// A target that refuses every seed at its first check would pass and test nothing.
async fn seeds_reach_the_code_behind_the_first_check() {
    for (name, accepted) in [
        ("AccountingEvent", true),
        ("Certificate", true),
        ("Customer", true),
        ("InvoicingEvent", true),
        ("older-schema", true),
        ("unbounded-schema", false),
    ] {
        assert_eq!(targets::avro(&seed("avro", name)), accepted, "{name}");
    }
    for name in ["worker.properties", "webhooks.json", "records.json"] {
        assert!(targets::configuration(&seed("configuration", name)), "{name}");
    }
    for (name, accepted) in
        [("access", true), ("identity", true), ("keys.json", true), ("forged", false), ("unsigned", false)]
    {
        assert_eq!(targets::token(&seed("token", name)), accepted, "{name}");
    }
}

async fn every_directory_of_seeds_has_a_fuzz_target() {
    let names = |directory: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(fuzz().join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let built = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    let checked = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>();

    assert_eq!(names("seeds"), checked);
    assert_eq!(names("fuzz_targets"), checked);
    assert_eq!(built.map(str::to_owned).collect::<BTreeSet<_>>(), checked);
}
