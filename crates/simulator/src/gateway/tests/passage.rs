//! Requests that the gateway leaves alone, and the limit of their bodies.

use super::*;

#[tokio::test]
async fn what_is_none_of_the_apis_is_not_touched_by_faults_or_the_journal() {
    let rig = Rig::start().await;
    rig.fault(Effect::Drop);

    let status = rig.status(Method::GET, "/accounting/customers").await;

    assert_eq!(status, 404);
    assert_eq!(rig.provider.gateway.request_count(), 0);
}

#[tokio::test]
async fn a_body_passes_whole_up_to_its_limit_and_not_beyond() {
    let rig = Rig::start().await;
    let chunked = |size: usize| {
        let chunks = std::iter::repeat_n(Ok::<_, std::convert::Infallible>(vec![b'a'; 1_024]), size / 1_024);
        reqwest::Body::wrap_stream(futures::stream::iter(chunks))
    };

    let whole = rig.login().body(vec![b'a'; MAX_BODY_BYTES]).send().await.unwrap();
    let whole_chunked = rig.login().body(chunked(MAX_BODY_BYTES)).send().await.unwrap();
    let announced = rig.login().body(vec![b'a'; MAX_BODY_BYTES + 1]).send().await;
    let chunked = rig.login().body(chunked(MAX_BODY_BYTES + 1_024)).send().await;

    assert_eq!(whole.json::<Value>().await.unwrap()["bytes"], MAX_BODY_BYTES);
    assert_eq!(whole_chunked.json::<Value>().await.unwrap()["bytes"], MAX_BODY_BYTES);
    let refused = |answer: reqwest::Result<reqwest::Response>| answer.unwrap().status();
    assert_eq!([refused(announced), refused(chunked)], [413, 413]);
    assert_eq!(rig.reached(), 2);
}
