//! Request smuggling: requests that a proxy and the receiver could parse differently.
//!
//! Behind a proxy that shares one connection among senders, bytes that the proxy takes for a body and the receiver for a request would
//! count as another sender's request. So the receiver refuses every ambiguous request, and reads nothing after it on that connection.

use super::rig::{ACCOUNTING, Rig, SECRET, event, sign, signed};

crate::tests! {
    plain a_request_hidden_in_another_is_never_taken_for_one;
    plain odd_but_lawful_requests_are_taken_once;
    plain pipelined_requests_are_answered_one_by_one_and_in_order;
}

/// A head up to the content length.
fn head(signature: &str) -> String {
    format!("POST {ACCOUNTING} HTTP/1.1\r\nhost: a\r\nsvc-webhook-signature: {signature}\r\n")
}

async fn a_request_hidden_in_another_is_never_taken_for_one() {
    let rig = Rig::start().await;
    // A valid delivery, which must never be taken for one.
    let hidden = String::from_utf8(signed(&event("hidden"))).unwrap();
    let (front, size) = (head(&sign(SECRET, b"")), hidden.len());
    let chunked = "transfer-encoding: chunked\r\n";
    let shapes = [
        (
            "length and chunks",
            format!("{front}content-length: {}\r\n{chunked}\r\n0\r\n\r\n{hidden}", size + 5),
        ),
        (
            "chunks and length",
            format!("{front}{chunked}content-length: {}\r\n\r\n0\r\n\r\n{hidden}", size + 5),
        ),
        ("two lengths", format!("{front}content-length: 0\r\ncontent-length: {size}\r\n\r\n{hidden}")),
        ("two lengths in one", format!("{front}content-length: 0, {size}\r\n\r\n{hidden}")),
        ("a signed length", format!("{front}content-length: +0\r\n\r\n{hidden}")),
        ("a negative length", format!("{front}content-length: -1\r\n\r\n{hidden}")),
        ("a length in hexadecimal", format!("{front}content-length: 0x0\r\n\r\n{hidden}")),
        ("an empty length", format!("{front}content-length: \r\n\r\n{hidden}")),
        (
            "a length beyond all numbers",
            format!("{front}content-length: 18446744073709551616\r\n\r\n{hidden}"),
        ),
        ("another encoding", format!("{front}transfer-encoding: gzip\r\n\r\n{hidden}")),
        (
            "an encoding after chunks",
            format!("{front}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        ("a look-alike", format!("{front}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}")),
        ("chunks, then not", format!("{front}{chunked}transfer-encoding: identity\r\n\r\n0\r\n\r\n{hidden}")),
        ("a tab in the encoding", format!("{front}transfer-encoding: \u{b}chunked\r\n\r\n0\r\n\r\n{hidden}")),
        ("a space before the colon", format!("{front}content-length : 0\r\n\r\n{hidden}")),
        ("a folded line", format!("{front}content-length: 0\r\n x: y\r\n\r\n{hidden}")),
        ("a folded first line", format!("{front} x: y\r\ncontent-length: 0\r\n\r\n{hidden}")),
        ("a header without a colon", format!("{front}content-length\r\n\r\n{hidden}")),
        ("a zero in a value", format!("{front}x: a\0b\r\ncontent-length: 0\r\n\r\n{hidden}")),
        ("a carriage return in a value", format!("{front}x: a\rb\r\ncontent-length: 0\r\n\r\n{hidden}")),
        ("a chunk size with a sign", format!("{front}{chunked}\r\n-0\r\n\r\n{hidden}")),
        ("a chunk size in octal dress", format!("{front}{chunked}\r\n0x0\r\n\r\n{hidden}")),
        ("a chunk size beyond all numbers", format!("{front}{chunked}\r\n10000000000000000\r\n{hidden}")),
        ("no chunk size", format!("{front}{chunked}\r\n\r\n{hidden}")),
        ("a chunk that is longer than it says", format!("{front}{chunked}\r\n1\r\nabc\r\n0\r\n\r\n{hidden}")),
        ("a chunk ended by a bare line feed", format!("{front}{chunked}\r\n1\r\na\n0\r\n\r\n{hidden}")),
        ("a line feed in an extension", format!("{front}{chunked}\r\n1;a\nb\r\na\r\n0\r\n\r\n{hidden}")),
        (
            "chunks of the old protocol",
            format!("{front}{chunked}\r\n0\r\n\r\n{hidden}").replace("1.1", "1.0"),
        ),
        ("a length that takes it in", format!("{front}content-length: {size}\r\n\r\n{hidden}")),
        ("a chunk that takes it in", format!("{front}{chunked}\r\n{size:x}\r\n{hidden}\r\n0\r\n\r\n")),
        ("a method of two words", format!("PO ST{}content-length: 0\r\n\r\n{hidden}", &front[4..])),
        (
            "an unknown protocol",
            format!("{front}content-length: 0\r\n\r\n{hidden}").replace("HTTP/1.1", "HTTP/1.7"),
        ),
        ("an invisible first line", format!("\0\r\n{front}content-length: 0\r\n\r\n{hidden}")),
    ];

    for (what, bytes) in shapes {
        let answers = rig.send_and_end(bytes.as_bytes()).await;

        let taken = rig.taken.drain();
        let hidden = taken.iter().filter(|(_, reading)| reading.outgoing_id.as_deref() == Some("hidden"));
        assert_eq!(hidden.count(), 0, "{what}: {answers:?}");
        assert!(answers.len() < 2, "{what}: {answers:?}");
        assert!(answers.iter().all(|answer| answer.status < 500), "{what}: {answers:?}");
    }
}

async fn odd_but_lawful_requests_are_taken_once() {
    let rig = Rig::start().await;
    let body = event("1");
    let text = str::from_utf8(&body).unwrap();
    let (size, front) = (body.len(), head(&sign(SECRET, &body)) + "connection: close\r\n");
    let (one, rest) = text.split_at(10);
    let in_chunks = format!("{:x};name=\"a value\"\r\n{one}\r\n{:X}\r\n{rest}\r\n", one.len(), rest.len());
    let shapes = [
        (
            "the same length twice",
            format!("{front}content-length: {size}\r\ncontent-length: {size}\r\n\r\n{text}"),
        ),
        ("a length with zeros", format!("{front}content-length: 000{size}\r\n\r\n{text}")),
        ("chunk extensions", format!("{front}transfer-encoding: chunked\r\n\r\n{in_chunks}0\r\n\r\n")),
        ("trailers", format!("{front}transfer-encoding: chunked\r\n\r\n{in_chunks}0\r\nx: y\r\n\r\n")),
        ("another case", format!("{front}Transfer-Encoding: CHUNKED\r\n\r\n{in_chunks}000\r\n\r\n")),
        (
            "the absolute form",
            format!("{front}content-length: {size}\r\n\r\n{text}")
                .replace("POST /", "POST http://elsewhere/"),
        ),
        ("an empty line before it", format!("\r\n{front}content-length: {size}\r\n\r\n{text}")),
        ("leave to send", format!("{front}expect: 100-continue\r\ncontent-length: {size}\r\n\r\n{text}")),
        ("spaces around values", format!("{front}content-length:   {size}  \r\n\r\n{text}")),
    ];

    for (what, bytes) in shapes {
        let answers = rig.send(bytes.as_bytes()).await;

        let statuses: Vec<_> =
            answers.iter().map(|answer| answer.status).filter(|status| *status != 100).collect();
        assert_eq!(statuses, [200], "{what}");
        let taken = rig.taken.drain();
        assert!(matches!(taken.as_slice(), [(delivery, _)] if delivery.body == body), "{what}: {taken:?}");
    }
}

async fn pipelined_requests_are_answered_one_by_one_and_in_order() {
    // Through a proxy, whose connection a refusal does not end.
    let rig = Rig::with(|setup| setup.receiver.proxies = vec!["127.0.0.0/8".parse().unwrap()]).await;
    let alone = Rig::start().await;
    let mut bytes = Vec::new();
    for (number, good) in [(1, true), (2, false), (3, true), (4, false), (5, true)] {
        let body = event(&number.to_string());
        let signature = if good { sign(SECRET, &body) } else { sign("another secret of length", &body) };
        let close = if number == 5 { "connection: close\r\n" } else { "" };
        bytes.extend(format!("{}{close}content-length: {}\r\n\r\n", head(&signature), body.len()).bytes());
        bytes.extend(&body);
    }

    let answers = rig.send(&bytes).await;

    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 401, 200, 401, 200]);
    let taken = rig.taken.drain();
    let ids: Vec<_> = taken.iter().filter_map(|(_, reading)| reading.outgoing_id.as_deref()).collect();
    assert_eq!(ids, ["1", "3", "5"]);
    let answers = alone.send(&bytes).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 401], "a stranger's connection ends with its refusal");
}
