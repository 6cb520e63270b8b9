//! Finds the system's OpenSSL, or builds one.
//!
//! Building takes minutes, so the system's is used if its headers are installed and it is version 3 or newer.
//! `TRIBUTARY_OPENSSL=vendored` or `=system` decides otherwise: what is shipped is built with `vendored`, so that it runs on machines
//! with another OpenSSL or none.

#![allow(clippy::print_stdout, reason = "cargo reads what a build script prints")]

use std::{env, path::Path};

/// Decides which one is used.
const CHOICE: &str = "TRIBUTARY_OPENSSL";
/// The oldest version that is used. Older ones get no security updates.
const OLDEST: &str = "3.0";

fn main() {
    println!("cargo:rerun-if-env-changed={CHOICE}");
    let choice = env::var(CHOICE).unwrap_or_default();
    match choice.as_str() {
        "" => system().unwrap_or_else(|why| {
            println!("cargo:warning=building OpenSSL, which takes minutes: {why}; install its headers (Debian: libssl-dev pkg-config)");
            vendored();
        }),
        "system" => system().unwrap_or_else(|error| panic!("{CHOICE}=system: {error}")),
        "vendored" => vendored(),
        other => panic!("{CHOICE}={other}: use `system` or `vendored`, or unset it to let the build decide"),
    }
}

/// Uses the system's, if it can be used for what is built.
fn system() -> Result<(), String> {
    if env::var("HOST").ok() != env::var("TARGET").ok() {
        return Err("this is a cross build, and the system's OpenSSL is for the host".to_owned());
    }
    if env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|one| one == "crt-static"))
    {
        return Err("this build links statically".to_owned());
    }
    let quiet = pkg_config::Config::new().atleast_version(OLDEST).cargo_metadata(false).probe("openssl");
    let found = quiet.map_err(|_| format!("pkg-config finds no OpenSSL {OLDEST} or newer"))?;
    // librdkafka's own build searches only the compiler's default directories.
    if found.include_paths.iter().any(|path| path != Path::new("/usr/include")) {
        return Err(format!(
            "its headers are in {:?}, and only /usr/include is supported",
            found.include_paths
        ));
    }
    pkg_config::Config::new().atleast_version(OLDEST).probe("openssl").map_err(|error| error.to_string())?;
    Ok(())
}

fn vendored() {
    let built = openssl_src::Build::new().build();
    // librdkafka's own build looks there for headers.
    if let Some(root) = built.include_dir().parent() {
        println!("cargo:root={}", root.display());
    }
    built.print_cargo_metadata();
}
