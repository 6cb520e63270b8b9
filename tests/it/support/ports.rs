//! Free ports on loopback, below the range the kernel takes for outgoing connections.
//!
//! A broker comes back on its old port after a kill. Were that port in the kernel's own range (from 32768 on
//! Linux), a client that keeps reconnecting could be given it as its *source* port, connect to itself, and
//! hold it against the broker. A port found free can still be taken before the child binds it: [`retry`] then
//! starts the child again with new ports.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use super::{Error, Result};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;
/// Attempts to start a child with new ports.
pub(super) const ATTEMPTS: u32 = 3;

/// Starts a child, again if the error contains `taken`: another process has bound one of its ports first.
pub(super) async fn retry<T>(taken: &str, mut start: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match start().await {
            Err(error) if error.0.contains(taken) => {}
            started => return started,
        }
    }
    start().await
}

/// `N` ports that were free a moment ago, all different, none given out before in this run until the range
/// wraps.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Runs side by side begin at different ports; 37 spreads neighboring process ids.
    let start = (std::process::id().wrapping_mul(37) % u32::from(COUNT)) as u16;
    let mut found = [0; N];
    let mut filled = 0;
    for _ in 0..COUNT {
        if filled == N {
            break;
        }
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (start + step) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            found[filled] = port;
            filled += 1;
        }
    }
    if filled < N {
        return Err(Error(format!("find {N} free ports from {FIRST} to {}: all taken", FIRST + COUNT - 1)));
    }
    Ok(found)
}
