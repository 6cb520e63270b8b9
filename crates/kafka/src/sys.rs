//! librdkafka calls that the safe wrapper lacks; the only unsafe code of the crate.
#![expect(
    unsafe_code,
    reason = "calls into librdkafka that its safe wrapper lacks, each with a safety comment"
)]

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char},
    ptr, slice,
    time::Duration,
};

use rdkafka::{
    ClientContext,
    bindings::{self as rd, rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR},
    client::{Client, OAuthToken},
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::BorrowedMessage,
};

use super::{Error, error::Persisted};

/// Whether a consumer's queue holds events: mostly log lines, and fetched records.
pub(super) fn has_events<C: ClientContext>(client: &Client<C>) -> bool {
    // SAFETY: the client is alive for the whole call, which only reads the length of its queue.
    unsafe { rd::rd_kafka_outq_len(client.native_ptr()) > 0 }
}

/// Whether a message whose delivery is reported is in the log.
pub(super) fn persisted(message: &BorrowedMessage<'_>) -> Persisted {
    // SAFETY: the pointer comes from a live message that is borrowed for the whole call; the call only reads it.
    let status = unsafe { rd::rd_kafka_message_status(message.ptr()) };
    match status {
        rd::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED => Persisted::No,
        rd::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED => Persisted::Possibly,
        rd::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_PERSISTED => Persisted::Yes,
    }
}

/// Lets the first member of a group in this client's in-process cluster start at once instead of after 3 s. Does nothing
/// for a client without such a cluster.
pub(super) fn rebalance_at_once<C: ClientContext>(client: &Client<C>) {
    // SAFETY: the client is alive for the whole call, and the cluster it answers with lives as long as the client.
    unsafe {
        let cluster = rd::rd_kafka_handle_mock_cluster(client.native_ptr());
        if !cluster.is_null() {
            rd::rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0);
        }
    }
}

/// Sets a client's token unasked: the admin client's queue is not polled, so its request would go unanswered.
pub(super) fn set_token<C: ClientContext>(client: &Client<C>, token: OAuthToken) -> Result<(), String> {
    let text = CString::new(token.token).map_err(|_| "the token holds a NUL byte".to_owned())?;
    let principal =
        CString::new(token.principal_name).map_err(|_| "the subject holds a NUL byte".to_owned())?;
    let mut reason = [0_u8; 512];
    // SAFETY: the client and both strings outlive the call, which copies them; the buffer has the length we pass, and
    // librdkafka ends its text there with a NUL. No extensions are given, so their pointer is never read.
    let code = unsafe {
        rd::rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            text.as_ptr(),
            token.lifetime_ms,
            principal.as_ptr(),
            std::ptr::null_mut(),
            0,
            reason.as_mut_ptr().cast::<c_char>(),
            reason.len(),
        )
    };
    if code == RD_KAFKA_RESP_ERR_NO_ERROR {
        return Ok(());
    }
    let end = reason.iter().position(|byte| *byte == 0).unwrap_or(reason.len());
    Err(String::from_utf8_lossy(&reason[..end]).into_owned())
}

/// Sets the token a client asked for, or reports the failure, after which it asks again later.
pub(super) fn answer<C: ClientContext>(client: &Client<C>, token: Result<OAuthToken, Error>) {
    let handed = token.map_err(|error| error.to_string()).and_then(|token| set_token(client, token));
    let Err(reason) = handed else { return };
    let reason = CString::new(reason.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the client and the text outlive the call, which copies the text.
    unsafe { rd::rd_kafka_oauthbearer_set_token_failure(client.native_ptr(), reason.as_ptr()) };
}

/// Adds brokers to a client, `host:port` separated by commas. Known ones are not added twice.
pub(super) fn add_brokers<C: ClientContext>(client: &Client<C>, bootstrap: &str) {
    let Ok(bootstrap) = CString::new(bootstrap) else { return };
    // SAFETY: the client and the text outlive the call, which copies the text. It may be made on any thread.
    unsafe { rd::rd_kafka_brokers_add(client.native_ptr(), bootstrap.as_ptr()) };
}

/// A topic's metadata.
pub(super) struct TopicMetadata {
    pub(super) partitions: Vec<i32>,
    pub(super) has_leaders: bool,
}

/// Reads the metadata of several topics with one request. The wrapper can only ask for one topic or for all.
pub(super) fn find_topics<C: ClientContext>(
    client: &Client<C>,
    names: &[&str],
    limit: Duration,
) -> Result<BTreeMap<String, Result<TopicMetadata, Code>>, KafkaError> {
    let mut handles = TopicHandles(Vec::with_capacity(names.len()));
    for name in names {
        let name = CString::new(*name).map_err(|_| KafkaError::MetadataFetch(Code::InvalidTopic))?;
        // SAFETY: the client and the name outlive the call, which copies the name; no configuration is given.
        let handle = unsafe { rd::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), ptr::null_mut()) };
        if handle.is_null() {
            return Err(KafkaError::MetadataFetch(Code::InvalidTopic));
        }
        handles.0.push(handle);
    }
    let limit = limit.as_millis().try_into().unwrap_or(i32::MAX);
    let mut metadata = ptr::null();
    // SAFETY: the client is alive for the whole call, which writes a pointer into our variable. With 0 and no topic it
    // asks for the topics that the client has handles of.
    let code =
        unsafe { rd::rd_kafka_metadata(client.native_ptr(), 0, ptr::null_mut(), &mut metadata, limit) };
    if code != RD_KAFKA_RESP_ERR_NO_ERROR {
        return Err(KafkaError::MetadataFetch(code.into()));
    }
    let length = |count: i32| usize::try_from(count).unwrap_or_default();
    // SAFETY: without an error the pointer is to metadata that we own until we free it, once, after the last use. Its
    // arrays have the stated lengths and are not null (empty ones may be, and are not read); its names end with a NUL.
    unsafe {
        let answer = &*metadata;
        let is_starting = answer.broker_cnt == 0;
        let mut topics = BTreeMap::new();
        for at in 0..length(answer.topic_cnt) {
            let topic = &*answer.topics.add(at);
            let name = CStr::from_ptr(topic.topic).to_string_lossy();
            // The client also asks for topics of earlier requests.
            if !names.contains(&&*name) {
                continue;
            }
            let found = if topic.err == RD_KAFKA_RESP_ERR_NO_ERROR {
                let count = length(topic.partition_cnt);
                let partitions =
                    if count == 0 { &[] } else { slice::from_raw_parts(topic.partitions, count) };
                Ok(TopicMetadata {
                    partitions: partitions.iter().map(|partition| partition.id).collect(),
                    has_leaders: partitions.iter().all(|partition| partition.leader >= 0),
                })
            } else {
                Err(topic.err.into())
            };
            topics.insert(name.into_owned(), found);
        }
        rd::rd_kafka_metadata_destroy(metadata);
        if is_starting { Err(KafkaError::MetadataFetch(Code::BrokerNotAvailable)) } else { Ok(topics) }
    }
}

/// Handles that keep topics known to a client while they live.
struct TopicHandles(Vec<*mut rd::rd_kafka_topic_t>);

impl Drop for TopicHandles {
    fn drop(&mut self) {
        for handle in &self.0 {
            // SAFETY: each belongs to a client that outlives this, and is destroyed once.
            unsafe { rd::rd_kafka_topic_destroy(*handle) };
        }
    }
}

/// The end of a partition as of the last fetch response; `None` before the first.
pub(super) fn fetched_end<C: ClientContext>(client: &Client<C>, topic: &str, partition: i32) -> Option<i64> {
    let topic = CString::new(topic).ok()?;
    let (mut low, mut high) = (-1, -1);
    // SAFETY: the client and the name outlive the call, which writes two numbers into our variables.
    let code = unsafe {
        rd::rd_kafka_get_watermark_offsets(
            client.native_ptr(),
            topic.as_ptr(),
            partition,
            &mut low,
            &mut high,
        )
    };
    (code == RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
}

/// The generation of the client's group; `None` while it is not a member.
pub(super) fn group_generation<C: ClientContext>(client: &Client<C>) -> Option<i32> {
    // SAFETY: the client is alive for the whole call. The returned metadata, if any, is ours, is only read, and is freed
    // once.
    let generation = unsafe {
        let metadata = rd::rd_kafka_consumer_group_metadata(client.native_ptr());
        if metadata.is_null() {
            return None;
        }
        let generation = rd::rd_kafka_consumer_group_metadata_generation_id(metadata);
        rd::rd_kafka_consumer_group_metadata_destroy(metadata);
        generation
    };
    (generation >= 0).then_some(generation)
}

/// librdkafka's `murmur2` partitioner, to compare ours with.
#[cfg(test)]
pub(super) fn murmur2_partition(key: &[u8], partitions: i32) -> i32 {
    use rdkafka::bindings::rd_kafka_msg_partitioner_murmur2;
    // SAFETY: the key is readable for the given length; for a key that is not null the function hashes it and touches
    // neither the topic nor the opaques, which may therefore be null.
    unsafe {
        rd_kafka_msg_partitioner_murmur2(
            std::ptr::null(),
            key.as_ptr().cast(),
            key.len(),
            partitions,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    }
}

/// Makes a producer fail fatally, as a broker's answer would.
#[cfg(test)]
pub(super) fn fail_fatally<C: ClientContext>(client: &Client<C>) {
    use rdkafka::bindings::{rd_kafka_resp_err_t, rd_kafka_test_fatal_error};
    // SAFETY: the client is alive for the whole call, which copies the text.
    unsafe {
        rd_kafka_test_fatal_error(
            client.native_ptr(),
            rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
            c"made by a test".as_ptr(),
        );
    }
}
