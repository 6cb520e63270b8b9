//! Invoicing hooks are created from the receiver's own address, through a proxy.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use base::{retry::ErrorChain, secret::Secret};
use model::{InvoicingAction, InvoicingEntity, InvoicingHook};
use provider::api::{
    Cause, Invoicing,
    invoicing::{InvoicingTokens, NewHook},
};
use simulator::{Simulator, settings::Tls};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpSocket, TcpStream},
    task::{AbortHandle, JoinSet},
};

use super::{FREELY, Granted, Stale, client_of, options, page, patient, wire::way};
use crate::product::simulator::start;

crate::tests! {
    plain only_creating_a_hook_uses_the_proxy;
    plain a_dead_proxy_is_named_without_its_password;
}

/// Source address of requests through the proxy, different from all others.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const PASSWORD: &str = "a-password-of-the-proxy";

/// A TLS proxy that records its requests.
struct Tunnel {
    address: std::net::SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    accepting: AbortHandle,
}

impl Tunnel {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, heads) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let noted = Arc::clone(&heads);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(tunnel(stream, Arc::clone(&noted)));
            }
        });
        Self { address, heads, accepting: accepting.abort_handle() }
    }

    fn url(&self) -> Secret {
        Secret::new(format!("http://us:{PASSWORD}@{}", self.address))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn tunnel(mut client: TcpStream, heads: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        if client.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(read).unwrap();
    let target = head.strip_prefix("CONNECT ")?.split(' ').next()?.to_owned();
    heads.lock().unwrap().push(head);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ELSEWHERE, 0).into()).unwrap();
    let port = target.rsplit(':').next()?.parse().ok()?;
    let mut server = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.ok()?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?;
    copy_bidirectional(&mut client, &mut server).await.ok()?;
    Some(())
}

fn new_hook() -> NewHook {
    NewHook {
        uri: format!("https://{ELSEWHERE}/api/webhooks/incoming/Invoicing"),
        hook: InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created },
        secret: Secret::new("0123456789-0123456789-0123456789-abc"),
        is_paused: true,
        application_name: "tributary".into(),
        description: "books".into(),
    }
}

async fn scene() -> (Simulator, tempfile::TempDir) {
    let simulator = start(|settings| {
        settings.tls = Tls::Generated;
        settings.knobs.delivery.hold = true;
    })
    .await;
    assert!(simulator.provider().knobs().invoicing.check_origin);
    (simulator, tempfile::tempdir().unwrap())
}

/// The invoicing API with a login, through this proxy or directly.
fn invoicing(simulator: &Simulator, directory: &tempfile::TempDir, proxy: Option<Secret>) -> Invoicing {
    let mut options = options(simulator, Some(directory));
    options.egress_proxy = proxy;
    let client = client_of(&options, FREELY);
    let password = simulator.provider().settings.invoicing.password.clone();
    client.invoicing(Arc::new(InvoicingTokens::new(client.clone(), Arc::new(way(simulator, &password)))))
}

async fn only_creating_a_hook_uses_the_proxy() {
    let (simulator, directory) = scene().await;
    let proxy = Tunnel::open().await;

    let direct =
        invoicing(&simulator, &directory, None).create_hook(&new_hook(), &patient()).await.unwrap_err();
    assert!(matches!(direct.cause, Cause::Refused), "{direct:?}");
    let invoicing = invoicing(&simulator, &directory, Some(proxy.url()));
    let made = invoicing.create_hook(&new_hook(), &patient()).await.unwrap().unwrap();
    let hooks = invoicing.hooks(&patient()).await.unwrap();
    invoicing.delete_hook(&made.id.clone().unwrap(), &patient()).await.unwrap();

    assert_eq!(hooks, [made]);
    let heads = proxy.heads.lock().unwrap().clone();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert!(heads[0].to_lowercase().contains("proxy-authorization: basic "), "{heads:?}");
}

async fn a_dead_proxy_is_named_without_its_password() {
    let (simulator, directory) = scene().await;
    let mut options = options(&simulator, Some(&directory));
    options.egress_proxy = Some(Secret::new(format!("http://us:{PASSWORD}@127.0.0.1:1")));
    let client = client_of(&options, FREELY);
    let invoicing = client.invoicing(Arc::new(Stale::default()));

    for _ in 0..6 {
        let error = invoicing.create_hook(&new_hook(), &patient()).await.unwrap_err();
        let shown = format!("{} {error:?}", ErrorChain(&error));
        assert!(matches!(error.cause, Cause::Unreachable(_)), "{shown}");
        assert!(!shown.contains(PASSWORD), "{shown}");
    }
    let accounting = client.accounting(Granted::accounting(&simulator));

    assert_eq!(accounting.companies_numbered(page(1, 10), &patient()).await.unwrap().rows.len(), 3);
}
