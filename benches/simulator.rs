//! Speed of the simulated provider, so that no other benchmark measures it by mistake.
//!
//! The simulator has one thread, hence one core, to itself; client and receiver share another. It prints rates per second of
//! wall-clock time and of the simulator's own processor time, and the memory that a million records take.
//!
//! `cargo bench --bench simulator`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures and may panic")]

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use axum::{Router, http::HeaderMap, routing::post};
use serde_json::{Value, json};
use simulator::{
    SimulatedProvider, Simulator,
    catalog::Resource,
    knobs::ReceiverUrls,
    settings::{Settings, WorldSettings},
};
use tokio::{net::TcpListener, runtime, sync::oneshot, task::JoinSet};

const TIME: Duration = Duration::from_secs(5);
const CLIENTS: usize = 16;
const CHANGES: u64 = 60_000;
/// Environment variable of the child process that measures a world of this shape.
const SHAPE: &str = "TRIBUTARY_BENCH_WORLD";
const SECRET: &str = "a-secret-of-more-than-32-characters!";
const ACCOUNTING: [&str; 6] = [
    "offline_access",
    "openid",
    "SVC.ES.NEWPOL.COR.API",
    "SVC.ES.NEWPOL.ACC.API",
    "SVC.ES.NEWPOL.MNG.API",
    "SVC.ES.Webhooks",
];

fn main() {
    memory();
    pages();
    deliveries();
}

/// A client without compression, which would otherwise dominate the measurement.
fn plain_client() -> reqwest::Client {
    reqwest::Client::builder().no_gzip().build().unwrap()
}

/// A simulator in a separate thread.
struct OneCore {
    provider: Arc<SimulatedProvider>,
    address: SocketAddr,
    jobs: mpsc::Sender<oneshot::Sender<Duration>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl OneCore {
    fn start(settings: Settings) -> Self {
        let (started, start) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let (jobs, asked) = mpsc::channel::<oneshot::Sender<Duration>>();
        let thread = thread::spawn(move || {
            runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let simulator = Simulator::start(settings).await.unwrap();
                started.send((Arc::clone(simulator.provider()), simulator.address())).unwrap();
                let answer = async {
                    loop {
                        while let Ok(reply) = asked.try_recv() {
                            reply.send(processor_time()).ok();
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                tokio::select! { _ = stopped => {}, () = answer => {} }
                simulator.stop().await;
            });
        });
        let (provider, address) = start.recv().unwrap();
        Self { provider, address, jobs, stop: Some(stop), thread: Some(thread) }
    }

    /// Processor time of its thread so far.
    async fn used(&self) -> Duration {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(reply).unwrap();
        answer.await.unwrap()
    }

    fn get(
        &self,
        client: &reqwest::Client,
        path: &str,
        token: &str,
        context: &str,
    ) -> reqwest::RequestBuilder {
        client
            .get(format!("http://{}{path}", self.address))
            .header("Ocp-Apim-Subscription-Key", &self.provider.settings.subscription_keys[0])
            .header("Content-Type", "application/json")
            .header("context", context)
            .bearer_auth(token)
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        self.stop.take().unwrap().send(()).ok();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn memory() {
    // One process per shape, so that none reuses memory that another one freed.
    if let Ok(shape) = std::env::var(SHAPE) {
        let (companies, each) = shape.split_once('x').unwrap();
        let (companies, each) = (companies.parse().unwrap(), each.parse::<u32>().unwrap());
        let before = resident();
        let begun = Instant::now();
        let settings = Settings { world: world(companies, each / 2, each - each / 2), ..Settings::default() };
        let provider = SimulatedProvider::new(settings).unwrap();
        let (made, used) = (begun.elapsed().as_millis(), resident().saturating_sub(before) / 1_000_000);
        let records: usize = Resource::ALL.iter().map(|&one| provider.world().records(one).count()).sum();
        println!(
            "memory: {companies} companies with {each} records each, {records} in all: {used} MB in {made} ms"
        );
        std::process::exit(0);
    }
    for shape in ["1x1000000", "1000x1000", "100000x10"] {
        let me = std::env::current_exe().unwrap();
        assert!(std::process::Command::new(me).env(SHAPE, shape).status().unwrap().success());
    }
}

fn world(companies: u32, customers: u32, accounts: u32) -> WorldSettings {
    WorldSettings { companies, customers, accounts, others: 0, ..WorldSettings::default() }
}

fn client_runtime() -> runtime::Runtime {
    runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn pages() {
    let simulator = OneCore::start(Settings { world: world(10, 10_000, 100), ..Settings::default() });
    let (token, _) = simulator.provider.identity.grant(&ACCOUNTING);
    let company = simulator.provider.world().company_id(0);
    let context = json!({ "clientId": company }).to_string();
    let (rate, per_core, rows) = client_runtime().block_on(async {
        let client = plain_client();
        let first =
            simulator.get(&client, "/accounting/api/customers?pageNumber=1&pageSize=100", &token, &context);
        let rows = first.send().await.unwrap().json::<Vec<Value>>().await.unwrap().len();
        assert_eq!(rows, 100);
        let count = Arc::new(AtomicU64::new(0));
        let (begun, used) = (Instant::now(), simulator.used().await);
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let count = Arc::clone(&count);
            let requests: Vec<reqwest::Request> = (1..=100)
                .map(|page| {
                    let page = (page + number * 7) % 100 + 1;
                    let path = format!("/accounting/api/customers?pageNumber={page}&pageSize=100");
                    simulator.get(&client, &path, &token, &context).build().unwrap()
                })
                .collect();
            let client = client.clone();
            clients.spawn(async move {
                for request in requests.iter().cycle() {
                    if begun.elapsed() > TIME {
                        return;
                    }
                    let answer = client.execute(request.try_clone().unwrap()).await.unwrap();
                    assert_eq!(answer.status(), 200);
                    answer.bytes().await.unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        clients.join_all().await;
        let (took, used) = (begun.elapsed(), simulator.used().await - used);
        let count = count.load(Ordering::Relaxed) as f64;
        (count / took.as_secs_f64(), count / used.as_secs_f64(), rows)
    });
    println!("pages of {rows} customers: {rate:.0}/s, {per_core:.0} per second of its core");
}

fn deliveries() {
    let world = WorldSettings { others: 10, ..world(200, 10, 10) };
    let simulator = OneCore::start(Settings { world, ..Settings::default() });
    simulator.provider.turn(|knobs| knobs.delivery.receivers = ReceiverUrls::Any);
    let (token, _) = simulator.provider.identity.grant(&ACCOUNTING);
    let (count, rate, per_core) = client_runtime().block_on(async {
        let received = Arc::new(AtomicU64::new(0));
        let receiver = receive(Arc::clone(&received)).await;
        let client = plain_client();
        for resource in Resource::ALL {
            let path = format!("http://{}{}/webhooks/subscribe", simulator.address, resource.prefix());
            let answer = client
                .post(path)
                .header("Ocp-Apim-Subscription-Key", &simulator.provider.settings.subscription_keys[0])
                .header("context", "none")
                .bearer_auth(&token)
                .json(&json!({
                    "thirdPartyApplicationName": "bench",
                    "url": receiver,
                    "secret": SECRET,
                    "eventTypes": resource.kinds().map(|kind| resource.semantic_name(kind)),
                }))
                .send()
                .await
                .unwrap();
            assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        }
        simulator.provider.deliveries.idle().await;
        let first = received.load(Ordering::Relaxed);
        let (begun, used) = (Instant::now(), simulator.used().await);
        // Runs in the simulator's own thread: changing the world, writing and signing count too.
        let step = client
            .post(format!("http://{}/_control/step", simulator.address))
            .body(json!({ "changes": CHANGES }).to_string());
        assert_eq!(step.send().await.unwrap().status(), 200);
        simulator.provider.deliveries.idle().await;
        let (took, used) = (begun.elapsed(), simulator.used().await - used);
        let count = received.load(Ordering::Relaxed) - first;
        (count, count as f64 / took.as_secs_f64(), count as f64 / used.as_secs_f64())
    });
    println!("{count} signed deliveries: {rate:.0}/s, {per_core:.0} per second of its core");
}

/// A receiver that verifies every signature.
async fn receive(received: Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/hooks", listener.local_addr().unwrap());
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let router = Router::new().route(
        "/hooks",
        post(move |headers: HeaderMap, body: axum::body::Bytes| async move {
            let signed = hmac::sign(&key, &body);
            let hex: String = signed.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
            assert_eq!(headers["svc-webhook-signature"], format!("sha256={hex}"));
            received.fetch_add(1, Ordering::Relaxed);
        }),
    );
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
