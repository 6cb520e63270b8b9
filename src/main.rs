//! The `tributary` binary: arguments in, exit code out. Everything else is in the library.

use std::{io, process::ExitCode};

/// Deliveries make many small allocations on one thread that another frees, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The one crypto provider; it fails only where somebody has installed one before, which nobody has.
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    tributary::cli::run(std::env::args_os(), std::env::vars_os(), &mut io::stdout())
}
