//! A provider with canned responses, for those that the simulator does not send. It records its requests.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use provider::api::ApiOptions;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};
use url::Url;

use super::options_at;

/// A canned response.
pub(super) enum Reply {
    /// Send this at once.
    Now(String),
    /// Send this after a while.
    After(Duration, String),
    /// Never respond, and keep the connection open.
    Never,
}

/// The running provider; it ends when dropped.
pub(super) struct Canned {
    url: Url,
    heads: Arc<Mutex<Vec<String>>>,
    accepting: AbortHandle,
}

impl Canned {
    /// Responds by the head of the request, in lower case.
    pub(super) async fn start(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (heads, answer) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(answer));
        let noted = Arc::clone(&heads);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&noted), Arc::clone(&answer)));
            }
        });
        Self { url, heads, accepting: accepting.abort_handle() }
    }

    /// The heads of all requests so far.
    pub(super) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// Client options for it.
    pub(super) fn options(&self) -> ApiOptions {
        options_at(self.url.clone(), None)
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A response with these header lines.
pub(super) fn answer(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

/// Reads one request and responds. Errors end the connection, as with any server.
async fn serve(
    mut stream: TcpStream,
    heads: Arc<Mutex<Vec<String>>>,
    answer: Arc<impl Fn(&str) -> Reply + Send + Sync>,
) -> Option<()> {
    let mut read = Vec::new();
    let (head, length) = loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&read).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let told = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let whole = told.map_or(0, |length| length.trim().parse().unwrap());
            break (head.to_owned(), whole - body.len().min(whole));
        }
    };
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await.ok()?;
    heads.lock().unwrap().push(head.clone());
    let text = match answer(&head) {
        Reply::Now(text) => text,
        Reply::After(wait, text) => {
            tokio::time::sleep(wait).await;
            text
        }
        Reply::Never => std::future::pending().await,
    };
    stream.write_all(text.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}
