//! Publishes the records of a letter with the same publisher as the workers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::OnceCell, time::timeout};

use base::retry::ErrorChain;
use kafka::{Admin, ConsumerRecord, Producer, ProducerOptions};
use model::{Outgoing, Topic};

use super::trust;
use crate::{
    avro,
    cli::{
        CommandError, Result,
        dead_letters::{DeadLetterTopic, ReplayScope},
        failure, outside,
        scratch::ScratchDirectory,
    },
    publish::{self, Layout, Publisher},
    webhooks::{
        dead_letter::{self, LetterPosition},
        delivery::Delivery,
    },
};

const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) enum ReplayOutcome {
    /// The published records; empty if there was nothing to publish.
    Published(Vec<String>),
    /// Why the letter still fails.
    Refused(String),
}

pub(super) struct Republisher<'a> {
    letters: &'a DeadLetterTopic,
    owner: ReplayScope,
    dry_run: bool,
    clients: OnceCell<ReplayClients>,
    publishers: HashMap<Topic, Arc<Publisher>>,
}

/// Created on first use.
struct ReplayClients {
    producer: Arc<Producer>,
    ids: avro::Ids,
    /// Not the schema ids of a worker on this machine.
    _state: ScratchDirectory,
}

impl<'a> Republisher<'a> {
    pub(super) fn new(letters: &'a DeadLetterTopic, owner: ReplayScope, dry_run: bool) -> Self {
        Self { letters, owner, dry_run, clients: OnceCell::new(), publishers: HashMap::new() }
    }

    /// Reads a letter again and publishes its records. An error affects all letters and ends the replay.
    pub(super) async fn publish(
        &mut self,
        place: LetterPosition,
        first: &ConsumerRecord,
        body: Bytes,
    ) -> Result<ReplayOutcome> {
        let delivery = match dead_letter::delivery(&first.headers, body) {
            Ok(delivery) => delivery,
            Err(unusable) => return Ok(ReplayOutcome::Refused(format!("it cannot be replayed: {unusable}"))),
        };
        if let Some(reason) = trust::foreign(&delivery.context, &first.headers, &self.owner) {
            return Ok(ReplayOutcome::Refused(trust::named(&self.letters.topic, place, &reason)));
        }
        let prefix = self.owner.prefix.clone();
        let records = match records(&delivery, dead_letter::text(&first.headers, dead_letter::RECORD)) {
            Ok(records) => records,
            Err(reason) => return Ok(ReplayOutcome::Refused(reason)),
        };
        let describe = |record: &Outgoing| {
            let topic = record.topic.name(&prefix);
            format!("{topic}, key {}, tributary.id {}", record.key.as_str(), record.meta.id)
        };
        let described = records.iter().map(describe).collect();
        if self.dry_run {
            return Ok(ReplayOutcome::Published(described));
        }
        // Encode all records before sending the first, so that a delivery with a refused record is not published in part.
        for record in &records {
            let publisher = self.publisher(record.topic).await?;
            match publisher.preparer().prepare(record) {
                Err(error) if error.concerns_one_record() => {
                    return Ok(ReplayOutcome::Refused(ErrorChain(&error).to_string()));
                }
                prepared => drop(prepared?),
            }
        }
        for record in &records {
            let publisher = self.publisher(record.topic).await?;
            let publishing = timeout(PUBLISH_TIMEOUT, publisher.publish(record)).await;
            match publishing.map_err(|_| unacknowledged(&record.topic.name(&prefix)))? {
                Ok(_) => {}
                Err(error) if is_final(&error) => {
                    return Ok(ReplayOutcome::Refused(ErrorChain(&error).to_string()));
                }
                Err(error) => return Err(outside(error)),
            }
        }
        self.mark(place, first.key.clone().unwrap_or_default(), records.len()).await?;
        Ok(ReplayOutcome::Published(described))
    }

    async fn mark(&self, place: LetterPosition, key: Bytes, records: usize) -> Result {
        let topic = Arc::clone(&self.letters.topic);
        let mut mark = dead_letter::mark(Arc::clone(&topic), place, key, records);
        self.letters.signer.sign(&mut mark);
        let sent = self.clients().await?.producer.send(mark).map_err(|refused| outside(refused.error))?;
        timeout(PUBLISH_TIMEOUT, sent).await.map_err(|_| unacknowledged(&topic))?.map(drop).map_err(outside)
    }

    /// The publisher of a topic; creates the topic and registers its schema, as a start of the connector does.
    async fn publisher(&mut self, topic: Topic) -> Result<Arc<Publisher>> {
        if let Some(publisher) = self.publishers.get(&topic) {
            return Ok(Arc::clone(publisher));
        }
        let worker = &self.letters.worker;
        let layout = Layout {
            // Not the topic in the letter: a letter must not choose which topics are created.
            dead_letters: self.letters.topic.to_string(),
            create: worker.topic_creation,
            ..Layout::new(self.owner.prefix.clone(), [topic])
        };
        let admin = Admin::Real(worker.kafka.clone());
        let clients = self.clients().await?;
        let opened = publish::open(&layout, &admin, &clients.ids).await?;
        let publisher = Arc::new(Publisher::new(opened.preparer, Arc::clone(&clients.producer)));
        self.publishers.insert(topic, Arc::clone(&publisher));
        Ok(publisher)
    }

    async fn clients(&self) -> Result<&ReplayClients> {
        let worker = &self.letters.worker;
        let make = async || {
            let state = ScratchDirectory::create("replay")?;
            let registry = avro::Registry::new(&worker.registry)?;
            let producer = Producer::new(&worker.kafka, &ProducerOptions::default())?;
            let ids = avro::Ids::open(registry, &state.0).await;
            Ok::<_, CommandError>(ReplayClients { producer: Arc::new(producer), ids, _state: state })
        };
        self.clients.get_or_try_init(make).await
    }
}

fn unacknowledged(topic: &str) -> CommandError {
    let limit = PUBLISH_TIMEOUT.as_secs();
    failure(format!(
        "publish to {topic}: no acknowledgement from Kafka within {limit} s; run the replay again"
    ))
}

/// The records of a delivery; if the letter is for a single record, only that one.
fn records(delivery: &Delivery, only: Option<&str>) -> Result<Vec<Outgoing>, String> {
    let mut records = Vec::new();
    for part in delivery.read().parts {
        records.extend(part.content.map_err(|error| ErrorChain(&error).to_string())?);
    }
    if let Some(id) = only {
        records.retain(|record| record.meta.id == id);
        if records.is_empty() {
            return Err(format!("the delivery has no record {id}"));
        }
    }
    Ok(records)
}

/// Whether the error concerns only this record.
fn is_final(error: &publish::Error) -> bool {
    match error {
        publish::Error::Convert { source, .. } => source.concerns_one_record(),
        publish::Error::Produce { source, .. } => source.refuses_record(),
        _ => false,
    }
}
