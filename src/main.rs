//! The `tributary` binary; everything else is in the library.

#[cfg(feature = "jemalloc")]
mod allocator;

use std::{env, io, process::ExitCode};

fn main() -> ExitCode {
    // Fails only if a crypto provider is already installed, which cannot be at this point.
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    tributary::cli::run(env::args_os().collect(), env::vars_os().collect(), &mut io::stdout())
}
