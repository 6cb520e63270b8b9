//! The checks of the fuzz targets, over their seeds and what is near to them: quick, and part of every run. `fuzz/run` goes on
//! from there.

use std::fs;
use std::path::Path;

#[allow(unreachable_pub, reason = "a library of its own, of which this is a look")]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

crate::tests! {
    plain every_seed_holds_to_what_its_fuzz_target_checks;
}

async fn every_seed_holds_to_what_its_fuzz_target_checks() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");

    for (name, check) in [
        ("envelope", targets::envelope as fn(&[u8])),
        ("invoicing_body", targets::invoicing_body),
        ("signature_header", targets::signature_header),
    ] {
        let mut tried = 0;
        for seed in fs::read_dir(seeds.join(name)).unwrap() {
            let seed = fs::read(seed.unwrap().path()).unwrap();
            check(&seed);
            for place in 0..seed.len() {
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
