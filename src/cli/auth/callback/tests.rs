//! The callback listener with callbacks at any time.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

async fn listener() -> (CallbackListener, u16) {
    let listener =
        CallbackListener::bind(&ListenAddress { port: 0, path: "/back".to_owned() }).await.unwrap();
    let port = listener.servers[0].address().port();
    (listener, port)
}

/// Sends a head and reads the answer to its end.
async fn raw(address: SocketAddr, head: &str) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        String::from_utf8_lossy(&answer).into_owned()
    };
    timeout(LIMIT, talk).await.unwrap()
}

async fn send(port: u16, target: &str, host: &str) -> String {
    let head =
        format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    raw(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), &head).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn is_untouched(listener: &mut CallbackListener) -> bool {
    listener.callbacks.try_recv().is_err()
}

#[tokio::test]
async fn a_second_callback_is_late() {
    let (mut listener, port) = listener().await;
    let host = format!("LocalHost:{port}");
    let first = tokio::spawn({
        let host = host.clone();
        async move { send(port, "/back?code=1", &host).await }
    });
    let callback = timeout(LIMIT, listener.callback()).await.unwrap();

    let meanwhile = send(port, "/back?code=1", &host).await;
    callback.show(LoginPage::done(Some("books"), None));
    let first = first.await.unwrap();
    let afterwards = send(port, "/back?code=1", &host).await;

    assert_eq!([status(&meanwhile), status(&first), status(&afterwards)], ["409", "200", "409"]);
    assert!(first.contains("books"), "{first}");
    assert!(is_untouched(&mut listener));
}

#[tokio::test]
async fn a_dropped_callback_shows_a_page() {
    let (mut listener, port) = listener().await;
    let page = tokio::spawn(async move { send(port, "/back?code=1", &format!("localhost:{port}")).await });

    drop(timeout(LIMIT, listener.callback()).await.unwrap());

    let page = page.await.unwrap();
    assert_eq!(status(&page), "503");
    assert!(page.contains("given up"), "{page}");
}

#[tokio::test]
async fn both_loopback_addresses_take_the_callback() {
    let (mut listener, port) = listener().await;
    let Some(second) = listener.servers.get(1).map(Server::address) else {
        // A machine without IPv6 has only one.
        return;
    };
    let head = format!("GET /back?code=6 HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    let page = tokio::spawn(async move { raw(second, &head).await });

    let callback = timeout(LIMIT, listener.callback()).await.unwrap();

    assert!(second.is_ipv6() && second.port() == port);
    assert_eq!(callback.query, "code=6");
    callback.show(LoginPage::LATE);
    page.await.unwrap();
}

#[tokio::test]
async fn a_port_taken_on_either_address_is_refused() {
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))] {
        let Ok(taken) = TcpListener::bind(address).await else { continue };
        let port = taken.local_addr().unwrap().port();

        let bound = CallbackListener::bind(&ListenAddress { port, path: "/back".to_owned() }).await;

        assert_eq!(bound.unwrap_err().kind(), io::ErrorKind::AddrInUse, "{address}");
    }
}
