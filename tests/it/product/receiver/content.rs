//! Signed bodies that cannot be parsed: they come from the provider, so they are kept as dead letters and answered 200.

use super::rig::{
    ACCOUNTING, INVOICING, MASTER, Rig, SECRET, accounting, event, hook_secret, request, sign, signed,
};

crate::tests! {
    plain a_signed_unreadable_delivery_is_a_dead_letter_and_gets_200;
    plain depth_and_odd_values_are_no_harm_where_they_can_be_kept;
    plain a_body_may_be_as_large_as_its_limit_and_no_larger;
}

async fn a_signed_unreadable_delivery_is_a_dead_letter_and_gets_200() {
    let rig = Rig::start().await;
    let whole = event("1");
    let mut not_utf8 = whole.clone();
    not_utf8[20] = 0xff;
    let utf16: Vec<u8> = str::from_utf8(&whole).unwrap().encode_utf16().flat_map(u16::to_le_bytes).collect();
    let zipped = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 0xff, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let unreadable: [(&str, Vec<u8>); 13] = [
        ("nothing", Vec::new()),
        ("spaces", b"   ".to_vec()),
        ("null", b"null".to_vec()),
        ("an array", b"[]".to_vec()),
        ("arrays, 10,000 deep", [b"[".repeat(10_000), b"]".repeat(10_000)].concat()),
        ("objects, 10,000 deep, never closed", br#"{"a":"#.repeat(10_000)),
        ("cut short", whole[..whole.len() - 1].to_vec()),
        ("two bodies", whole.repeat(2)),
        ("not UTF-8", not_utf8),
        ("UTF-16", utf16),
        ("compressed", zipped.to_vec()),
        ("another format", b"<event/>".to_vec()),
        ("zeros", vec![0; 4_096]),
    ];

    let key = hook_secret(MASTER, "Customer:Created");
    for (what, body) in unreadable {
        // At the hook's own address: at the shared one a large body has to name its entity.
        let own = format!("{INVOICING}/customer-created");
        let invoicing = request("POST", &own, &[("ms-signature", &sign(&key, &body))], &body);
        for request in [signed(&body), invoicing] {
            assert_eq!(rig.ask(&request).await.status, 200, "{what}");

            let (delivery, reading) = rig.taken.drain().pop().unwrap();
            assert_eq!(delivery.body, body, "{what}");
            let [part] = reading.parts.as_slice() else { panic!("{what}: {reading:?}") };
            assert!(part.content.is_err(), "{what}: {part:?}");
            assert_eq!(tributary::webhooks::delivery::topic_of(&part.lane), "acme.dead-letters", "{what}");
            assert!(!reading.acknowledges && reading.outgoing_id.is_none(), "{what}");
        }
    }
}

async fn depth_and_odd_values_are_no_harm_where_they_can_be_kept() {
    let rig = Rig::start().await;
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let names: String = (0..1_000).map(|name| format!("\"{name}\":{name},")).collect();

    for (what, json) in [
        ("a deep member", format!("{{\"a\":{deep}}}")),
        ("a deep id", format!("{{\"OutgoingId\":{deep}}}")),
        ("a deep type", format!("{{\"EventType\":{deep}}}")),
        ("deep data in text", format!("{{\"JsonData\":\"{deep}\"}}")),
        ("a thousand members", format!("{{{names}\"a\":1}}")),
        ("a member twice", "{\"OutgoingId\":\"1\",\"OutgoingId\":\"2\"}".to_owned()),
        ("numbers out of range", "{\"Timestamp\":1e999999999,\"a\":-0.0e-99999}".to_owned()),
        ("half a pair", "{\"OutgoingId\":\"\\ud800\"}".to_owned()),
        ("text of zeros", "{\"OutgoingId\":\"\\u0000\\u0000\"}".to_owned()),
        ("wrong types", "{\"EventType\":7,\"JsonData\":{},\"OutgoingId\":[],\"WebhookId\":null}".to_owned()),
    ] {
        let headers = [("svc-webhook-signature", sign(SECRET, json.as_bytes()))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));

        let answer =
            rig.ask(&request("POST", &format!("{ACCOUNTING}/customers"), &headers, json.as_bytes())).await;

        assert_eq!(answer.status, 200, "{what}");
        let (delivery, reading) = rig.taken.drain().pop().unwrap();
        assert!(delivery.body == json && reading.parts.len() == 1, "{what}");
    }
}

async fn a_body_may_be_as_large_as_its_limit_and_no_larger() {
    let mut rig = Rig::with(|setup| setup.set("body.limit.bytes", "2000")).await;
    let chunked = |body: &[u8]| {
        let head = format!(
            "POST {ACCOUNTING} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nsvc-webhook-signature: {}\r\n\
             transfer-encoding: chunked\r\n\r\n",
            sign(SECRET, body)
        );
        let chunks = body.chunks(700).flat_map(super::rig::chunk).collect::<Vec<_>>();
        [head.as_bytes(), &chunks, b"0\r\n\r\n"].concat()
    };

    for (length, status) in [(2_000, 200), (2_001, 413), (8_000, 413)] {
        let body = vec![b' '; length];
        for request in [signed(&body), chunked(&body)] {
            let answer = rig.ask(&request).await;

            assert_eq!((answer.status, answer.body.len()), (status, 0), "{length}");
            // Too large and from the provider: reported, since it is lost.
            assert_eq!(rig.oversized.try_recv().is_ok(), status == 413, "{length}");
            assert_eq!(rig.taken.drain().len(), usize::from(status == 200), "{length}");
        }
        // A stranger's is not reported, and the answer does not reveal the limit.
        let forged = rig.ask(&accounting(&sign("the accounting secret of tomorrow", &body), &body)).await;
        assert_eq!(forged.status, 401, "{length}");
        assert!(rig.oversized.try_recv().is_err() && rig.taken.drain().is_empty(), "{length}");
    }
    let beyond = vec![b' '; 8_001];
    for request in [signed(&beyond), chunked(&beyond)] {
        let answers = rig.send(&request).await;

        // The unread rest of the body may reset the connection before the answer is read.
        assert!(answers.iter().all(|answer| answer.status == 413) && answers.len() < 2, "{answers:?}");
    }
    assert!(rig.oversized.try_recv().is_err() && rig.taken.drain().is_empty());
}
