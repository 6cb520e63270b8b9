//! Companies with one sender each, which sends one delivery after the other.
//!
//! Half of the senders repeat a delivery with the same id until it is accepted, as the provider does; the others continue with the
//! next. Half of each kind use HTTP/1.1, the others HTTP/2 where the receiver offers it. The [`Ledger`] records everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Certificate, Client, Response};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::delivery::{Delivery, Maker, SIGNATURE_HEADER};
use super::ledger::{Answer, LIMIT, Ledger};
use crate::support::lost;

/// Without an answer after this, a sending is late however busy the machine is.
const PATIENCE: Duration = lost::promised_longest(LIMIT);
/// Wait after a delivery that was not accepted.
const RETRY_BACKOFF: Duration = Duration::from_millis(50);

/// Where deliveries go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The whole address.
    pub(crate) url: String,
    /// Its certificate, PEM; `None` for plain HTTP.
    pub(crate) certificate: Option<String>,
}

/// Senders at work. They end when this is dropped.
pub(crate) struct Senders {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Senders {
    /// Starts a sender for each company, with `pace` between an answer and the next delivery.
    pub(crate) fn start(
        ledger: &Arc<Ledger>,
        maker: &Maker,
        target: &Target,
        companies: u32,
        pace: Duration,
    ) -> Self {
        let clients = [client(target, true), client(target, false)];
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for company in 0..companies {
            let sender = Sender {
                ledger: Arc::clone(ledger),
                maker: maker.clone(),
                client: clients[company as usize / 2 % 2].clone(),
                url: target.url.clone(),
                company,
                retries: company % 2 == 0,
                pace,
            };
            tasks.spawn(sender.run(stop.clone()));
        }
        Self { tasks, stop }
    }

    /// Ends all senders after the delivery that each is sending.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

struct Sender {
    ledger: Arc<Ledger>,
    maker: Maker,
    client: Client,
    url: String,
    company: u32,
    /// Whether a delivery is repeated until it is accepted.
    retries: bool,
    pace: Duration,
}

impl Sender {
    async fn run(self, stop: CancellationToken) {
        for number in 0.. {
            let delivery = self.maker.delivery(self.company, number);
            let index = self.ledger.sent(delivery.id, delivery.company);
            while !self.ledger.answered(index, send(&self.client, &self.url, &delivery).await) {
                if stop.run_until_cancelled(tokio::time::sleep(RETRY_BACKOFF)).await.is_none()
                    || !self.retries
                {
                    break;
                }
            }
            if stop.run_until_cancelled(tokio::time::sleep(self.pace)).await.is_none() {
                return;
            }
        }
    }
}

/// Sends a delivery once.
pub(crate) async fn send(client: &Client, url: &str, delivery: &Delivery) -> Answer {
    let began = Instant::now();
    let request = client
        .post(url)
        .header("content-type", "application/json")
        .header(SIGNATURE_HEADER, &delivery.signature[..])
        .body(delivery.body.clone());
    let answered = async {
        let answer = request.send().await?;
        let (status, courteous) = (answer.status().as_u16(), is_courteous(&answer));
        let proper = courteous && answer.bytes().await?.is_empty();
        Ok::<_, reqwest::Error>((status, proper))
    };
    match answered.await {
        // A worker cannot answer in CPU time that it did not get.
        Ok((status, proper)) => {
            Answer::Status { status, took: lost::promised(began), own: lost::fair(began), proper }
        }
        Err(error) if error.is_timeout() => Answer::Silent(lost::fair(began)),
        Err(error) if error.is_connect() => Answer::Refused(began.elapsed()),
        Err(_) => Answer::Broken(began.elapsed()),
    }
}

/// An HTTP client for a receiver.
pub(crate) fn client(target: &Target, only_http1: bool) -> Client {
    let mut builder = Client::builder().no_proxy().timeout(PATIENCE);
    if only_http1 {
        builder = builder.http1_only();
    }
    if let Some(pem) = &target.certificate {
        builder = builder.tls_certs_only([Certificate::from_pem(pem.as_bytes()).unwrap()]);
    }
    builder.build().unwrap()
}

fn is_courteous(answer: &Response) -> bool {
    let headers = answer.headers();
    !headers.contains_key("set-cookie") && (answer.status() != 503 || headers.contains_key("retry-after"))
}
