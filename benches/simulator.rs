//! How fast the simulated provider is, so that nobody measures it by mistake.
//!
//! The simulator has one thread, and so one core, to itself; client and receiver share another. Printed are rates by the
//! clock and by the simulator's own processor time, and what a million records cost in memory.
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

use axum::{Router, routing::post};
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime, sync::oneshot, task::JoinSet};
use tributary::simulator::{
    Provider, Simulator,
    catalog::{Kind, Resource},
    knobs::{Knobs, ReceiverUrls},
    settings::{Settings, WorldSettings},
    world::Change,
};

const TIME: Duration = Duration::from_secs(5);
const CLIENTS: usize = 16;
const DELIVERIES: u64 = 50_000;
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

/// A simulator on a thread of its own.
struct OneCore {
    provider: Arc<Provider>,
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
    for (name, world) in [
        ("1,000 companies x 1,000 records", world(1_000, 500, 500)),
        ("100,000 companies x 10 records", world(100_000, 5, 5)),
    ] {
        let before = resident();
        let begun = Instant::now();
        let provider = Provider::new(Settings { world, ..Settings::default() }).unwrap();
        let made = begun.elapsed();
        let used = (resident() - before) / 1_000_000;
        println!("memory: {name}: {used} MB, made in {} ms", made.as_millis());
        drop(provider);
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
    let (token, _) = simulator.provider.identity.grant(&simulator.provider, &ACCOUNTING);
    let company = simulator.provider.world().company_id(0);
    let context = json!({ "clientId": company }).to_string();
    let (rate, per_core, rows) = client_runtime().block_on(async {
        let client = reqwest::Client::new();
        let first =
            simulator.get(&client, "/accounting/api/customers?pageNumber=1&pageSize=100", &token, &context);
        let rows = first.send().await.unwrap().json::<Vec<Value>>().await.unwrap().len();
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
    let knobs = Knobs { ..Knobs::default() };
    let simulator = OneCore::start(Settings { world: world(200, 10, 10), knobs, ..Settings::default() });
    simulator.provider.turn(|knobs| knobs.delivery.receivers = ReceiverUrls::Any);
    let (token, _) = simulator.provider.identity.grant(&simulator.provider, &ACCOUNTING);
    let (rate, per_core) = client_runtime().block_on(async {
        let received = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&received);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = format!("http://{}/hooks", listener.local_addr().unwrap());
        let router = Router::new().route(
            "/hooks",
            post(move |body: axum::body::Bytes| async move {
                assert!(!body.is_empty());
                counter.fetch_add(1, Ordering::Relaxed);
            }),
        );
        tokio::spawn(async move { axum::serve(listener, router).await });
        let subscribed = reqwest::Client::new()
            .post(format!("http://{}/accounting/api/customers/webhooks/subscribe", simulator.address))
            .header("Ocp-Apim-Subscription-Key", &simulator.provider.settings.subscription_keys[0])
            .header("context", "none")
            .bearer_auth(&token)
            .json(&json!({
                "thirdPartyApplicationName": "bench",
                "url": receiver,
                "secret": "a-secret-of-more-than-32-characters!",
                "eventTypes": [Resource::Customers.semantic_name(Kind::Updated)],
            }))
            .send()
            .await
            .unwrap();
        assert_eq!(subscribed.status(), 200, "{}", subscribed.text().await.unwrap());
        simulator.provider.deliveries.idle().await;
        let places: Vec<_> =
            simulator.provider.world().records(Resource::Customers).map(|(place, _)| place).collect();
        let (begun, used) = (Instant::now(), simulator.used().await);
        let provider = Arc::clone(&simulator.provider);
        // Changes are made on a third thread, a batch at a time, as the world's own pace would.
        let changer = thread::spawn(move || {
            for number in 0..DELIVERIES {
                let place = places[number as usize % places.len()];
                provider.change(|world, clock| {
                    let change = world.act(place, Kind::Updated, clock).unwrap();
                    ((), vec![Change::Record(change)])
                });
            }
        });
        while received.load(Ordering::Relaxed) < DELIVERIES + 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        simulator.provider.deliveries.idle().await;
        changer.join().unwrap();
        let (took, used) = (begun.elapsed(), simulator.used().await - used);
        (DELIVERIES as f64 / took.as_secs_f64(), DELIVERIES as f64 / used.as_secs_f64())
    });
    println!("signed deliveries: {rate:.0}/s, {per_core:.0} per second of its core");
}
