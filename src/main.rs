//! The `tributary` binary: arguments in, exit code out. Everything else is in the library.

#[cfg(feature = "jemalloc")]
mod allocator;

use std::{io, process::ExitCode};

fn main() -> ExitCode {
    // The one crypto provider; it fails only where somebody has installed one before, which nobody has.
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    tributary::cli::run(std::env::args_os(), std::env::vars_os(), &mut io::stdout())
}
