//! Captures what a test's own thread logs.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Time after which an incomplete scene is returned as it is.
const RETRY_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct LineBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LineBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a scene logs, as text or one JSON object per line.
///
/// `tracing` decides at the first use of a callsite whether it is enabled. A thread of another test may decide before this one
/// subscribes, and store its "disabled" afterwards. So a scene whose log is not `whole` is repeated after the decisions are reset.
pub(crate) async fn captured_logs(
    is_json: bool,
    whole: impl Fn(&str) -> bool,
    scene: impl AsyncFn(),
) -> String {
    let lines = LineBuffer::default();
    let writer = lines.clone();
    let builder = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false);
    let _default = if is_json {
        tracing::subscriber::set_default(builder.json().finish())
    } else {
        tracing::subscriber::set_default(builder.finish())
    };
    let end = Instant::now() + RETRY_LIMIT;
    loop {
        tracing::callsite::rebuild_interest_cache();
        scene().await;
        let bytes = std::mem::take(&mut *lines.0.lock());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if whole(&text) || Instant::now() >= end {
            return text;
        }
        thread::yield_now();
    }
}
