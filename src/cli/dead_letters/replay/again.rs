//! From a letter to records in Kafka, by the one way there is to publish.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::OnceCell, time::timeout};

use base::retry::Chain;
use kafka::{Admin, Producer, ProducerOptions, Received};
use model::{Outgoing, Topic};

use super::trust;
use crate::{
    avro,
    cli::{
        Failure, Result,
        dead_letters::{Letters, Owner},
        failure, outside,
        scratch::ScratchDirectory,
    },
    publish::{self, Layout, Publisher},
    webhooks::{
        dead_letter::{self, LetterPosition},
        delivery::Delivery,
    },
};

/// How long Kafka may take to acknowledge a record.
const PUBLISH_LIMIT: Duration = Duration::from_secs(30);

pub(super) enum Became {
    /// These records; none where there was nothing to publish.
    Published(Vec<String>),
    /// The same as before, or worse.
    Refused(String),
}

pub(super) struct Again<'a> {
    letters: &'a Letters,
    owner: Owner,
    dry_run: bool,
    means: OnceCell<Means>,
    publishers: HashMap<Topic, Arc<Publisher>>,
}

/// What it takes to publish, made when it is needed.
struct Means {
    producer: Arc<Producer>,
    ids: avro::Ids,
    /// The ids of a worker on this machine are its own.
    _state: ScratchDirectory,
}

impl<'a> Again<'a> {
    pub(super) fn new(letters: &'a Letters, owner: Owner, dry_run: bool) -> Self {
        Self { letters, owner, dry_run, means: OnceCell::new(), publishers: HashMap::new() }
    }

    /// Reads a letter again and publishes what it says now. An error keeps everything else from being published too.
    pub(super) async fn publish(
        &mut self,
        place: LetterPosition,
        first: &Received,
        body: Bytes,
    ) -> Result<Became> {
        let delivery = match dead_letter::delivery(&first.headers, body) {
            Ok(delivery) => delivery,
            Err(unusable) => return Ok(Became::Refused(format!("it cannot be replayed: {unusable}"))),
        };
        if let Some(reason) = trust::foreign(&delivery.context, &first.headers, &self.owner) {
            return Ok(Became::Refused(trust::named(&self.letters.topic, place, &reason)));
        }
        let prefix = self.owner.prefix.clone();
        let records = match records(&delivery, dead_letter::text(&first.headers, dead_letter::RECORD)) {
            Ok(records) => records,
            Err(reason) => return Ok(Became::Refused(reason)),
        };
        let told = |record: &Outgoing| {
            let topic = record.topic.name(&prefix);
            format!("{topic}, key {}, tributary.id {}", record.key.as_str(), record.meta.id)
        };
        let told = records.iter().map(told).collect();
        if self.dry_run {
            return Ok(Became::Published(told));
        }
        // All of them are made before the first is sent: a delivery of which one is refused is not published in part.
        for record in &records {
            let publisher = self.publisher(record.topic).await?;
            match publisher.preparer().prepare(record) {
                Err(error) if error.concerns_one_record() => {
                    return Ok(Became::Refused(Chain(&error).to_string()));
                }
                made => drop(made?),
            }
        }
        for record in &records {
            let publisher = self.publisher(record.topic).await?;
            let publishing = timeout(PUBLISH_LIMIT, publisher.publish(record)).await;
            match publishing.map_err(|_| unacknowledged(&record.topic.name(&prefix)))? {
                Ok(_) => {}
                Err(error) if is_final(&error) => return Ok(Became::Refused(Chain(&error).to_string())),
                Err(error) => return Err(outside(error)),
            }
        }
        self.mark(place, first.key.clone().unwrap_or_default(), records.len()).await?;
        Ok(Became::Published(told))
    }

    async fn mark(&self, place: LetterPosition, key: Bytes, records: usize) -> Result {
        let topic = Arc::clone(&self.letters.topic);
        let mut mark = dead_letter::mark(Arc::clone(&topic), place, key, records);
        self.letters.signer.sign(&mut mark);
        let sent = self.means().await?.producer.send(mark).map_err(|refused| outside(refused.error))?;
        timeout(PUBLISH_LIMIT, sent).await.map_err(|_| unacknowledged(&topic))?.map(drop).map_err(outside)
    }

    /// Publishes to one topic, which is created and whose schema is registered as a start of the connector would.
    async fn publisher(&mut self, topic: Topic) -> Result<Arc<Publisher>> {
        if let Some(publisher) = self.publishers.get(&topic) {
            return Ok(Arc::clone(publisher));
        }
        let worker = &self.letters.worker;
        let layout = Layout {
            // Not the one that the letter names: a letter must not choose which topics are created.
            dead_letters: self.letters.topic.to_string(),
            create: worker.topic_creation,
            ..Layout::new(self.owner.prefix.clone(), [topic])
        };
        let admin = Admin::Real(worker.kafka.clone());
        let means = self.means().await?;
        let opened = publish::open(&layout, &admin, &means.ids).await?;
        let publisher = Arc::new(Publisher::new(opened.preparer, Arc::clone(&means.producer)));
        self.publishers.insert(topic, Arc::clone(&publisher));
        Ok(publisher)
    }

    async fn means(&self) -> Result<&Means> {
        let worker = &self.letters.worker;
        let make = async || {
            let state = ScratchDirectory::create("replay")?;
            let registry = avro::Registry::new(&worker.registry)?;
            let producer = Producer::new(&worker.kafka, &ProducerOptions::default())?;
            let ids = avro::Ids::open(registry, &state.0).await;
            Ok::<_, Failure>(Means { producer: Arc::new(producer), ids, _state: state })
        };
        self.means.get_or_try_init(make).await
    }
}

fn unacknowledged(topic: &str) -> Failure {
    let limit = PUBLISH_LIMIT.as_secs();
    failure(format!(
        "publish to {topic}: Kafka has not acknowledged it within {limit} s; run the replay again"
    ))
}

/// What a delivery says now; of a letter that stands for one record, that one.
fn records(delivery: &Delivery, only: Option<&str>) -> Result<Vec<Outgoing>, String> {
    let mut records = Vec::new();
    for part in delivery.read().parts {
        records.extend(part.content.map_err(|error| Chain(&error).to_string())?);
    }
    if let Some(id) = only {
        records.retain(|record| record.meta.id == id);
        if records.is_empty() {
            return Err(format!("the delivery has no record {id}"));
        }
    }
    Ok(records)
}

/// Whether the record itself is at fault.
fn is_final(error: &publish::Error) -> bool {
    match error {
        publish::Error::Convert { source, .. } => source.concerns_one_record(),
        publish::Error::Produce { source, .. } => source.refuses_record(),
        _ => false,
    }
}
