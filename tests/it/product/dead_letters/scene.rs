//! A topic of dead letters on the shared cluster, in the format that the module `webhooks::dead_letter` documents.

use std::fs;
use std::process::Output;
use std::sync::Arc;

use bytes::Bytes;
use kafka::Producer;
use model::{AccountingResource, EncodedRecord, InvoicingAction, InvoicingEntity, InvoicingHook, Topic};
use provider::auth::seal::Keyring;
use sha2::{Digest as _, Sha256};
use tributary::{
    publish::{DeadLetters, LetterSigner, Original, PublishFailure, PublishStage},
    webhooks::delivery::{ApiFamily, DeliveryContext},
};

use crate::support::{
    Shared,
    command::tributary,
    place::{PARTITIONS, Place},
};

/// Topic of customers' events.
pub(super) const EVENTS: Topic = Topic::AccountingEvents(AccountingResource::Customers);
/// Topic of invoicing customers' events.
pub(super) const INVOICING: Topic = Topic::InvoicingEvents(InvoicingEntity::Customer);

/// `grant.encryption.key` of the worker that wrote the letters, and of the command.
pub(super) const KEY: &str = "an-encryption-key-of-more-than-32-characters";

pub(super) type LetterHeaders = Vec<(&'static str, Bytes)>;

pub(super) struct LetterScene {
    pub(super) place: Place,
    config: String,
    producer: Producer,
    letters: DeadLetters,
}

impl LetterScene {
    pub(super) async fn set(shared: &Shared, name: &str) -> Self {
        let place = Place::on(shared, name).unwrap();
        place.open(&place.layout([EVENTS, INVOICING])).await.unwrap();
        let config = place.state_dir.join("worker.properties");
        let lines = format!(
            "bootstrap.servers={}\nvalue.converter.schema.registry.url={}\nstate.dir={}\ngrant.encryption.key={KEY}\n",
            shared.bootstrap(),
            shared.registry(),
            place.state_dir.join("state").display()
        );
        fs::write(&config, lines).unwrap();
        let letters = DeadLetters {
            topic: place.name(Topic::DeadLetters).into(),
            partitions: PARTITIONS,
            connector: "hooks".to_owned(),
            task: 0,
            logged: false,
            prefix: place.prefix.clone(),
            signer: signer(KEY),
        };
        Self { config: config.display().to_string(), producer: place.producer(), letters, place }
    }

    /// A file of a connector with this name, of the letters' prefix.
    pub(super) fn connector(&self, name: &str) -> String {
        let config = serde_json::json!({
            "connector.class": "WebhookSource",
            "topic.prefix": self.place.prefix.to_string(),
            "accounting.resources": "customers",
            "accounting.secret": "a-secret-of-more-than-thirty-two-bytes",
            "subscriptions.manage": "false",
        });
        let path = self.place.state_dir.join("connector.json");
        fs::write(&path, serde_json::json!({ "name": name, "config": config }).to_string()).unwrap();
        path.display().to_string()
    }

    /// Runs `tributary dead-letters …` on this topic.
    pub(super) async fn run(&self, arguments: &[&str]) -> Output {
        let which = ["--config", &self.config, "--topic", &self.letters.topic];
        self.run_alone(&[arguments, &which].concat()).await
    }

    /// The same without naming the topic.
    pub(super) async fn run_alone(&self, arguments: &[&str]) -> Output {
        tributary(&[&["dead-letters"], arguments].concat(), &[]).await
    }

    /// Changes how further letters are written, for example as by another worker.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut DeadLetters)) {
        change(&mut self.letters);
    }

    /// Sets the command's encryption keys.
    pub(super) fn set_keys(&self, lines: &str) {
        let text = fs::read_to_string(&self.config).unwrap();
        let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("grant.encryption.key")).collect();
        fs::write(&self.config, format!("{}\n{lines}", kept.join("\n"))).unwrap();
    }

    pub(super) fn config(&self) -> &str {
        &self.config
    }

    /// Headers of a delivery of accounting events.
    pub(super) fn accounting(&self) -> LetterHeaders {
        self.context(ApiFamily::Accounting { resource: None })
    }

    /// Headers of a delivery of an invoicing hook.
    pub(super) fn invoicing(&self) -> LetterHeaders {
        let hook = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created };
        self.context(ApiFamily::Invoicing { hook: Some(hook.into()), tenants: Arc::default() })
    }

    fn context(&self, family: ApiFamily) -> LetterHeaders {
        let context = DeliveryContext {
            connector: self.letters.connector.as_str().into(),
            prefix: self.letters.prefix.to_string().into(),
            dead_letter_topic: self.letters.topic.to_string().into(),
            received_at: 1_790_000_000_000_000,
            traceparent: None,
            content_ids: true,
            family,
        };
        vec![
            ("tributary.received.at", Bytes::from(context.received_at.to_string())),
            ("tributary.delivery", Bytes::from(serde_json::to_vec(&context).unwrap())),
        ]
    }

    /// A letter with these bytes.
    pub(super) fn letter(&self, class: &'static str, headers: &LetterHeaders, body: &[u8]) -> EncodedRecord {
        let failure = PublishFailure {
            stage: PublishStage::Read,
            class,
            message: "what was wrong then".to_owned(),
            causes: Vec::new(),
        };
        let value = Bytes::copy_from_slice(body);
        let original = Original { key: Bytes::from_static(b"hooks"), value, place: None };
        self.letters.record(&original, None, &failure, headers)
    }

    /// The same in pieces of this many bytes.
    pub(super) fn pieces(
        &self,
        id: &str,
        size: usize,
        headers: &LetterHeaders,
        body: &[u8],
    ) -> Vec<EncodedRecord> {
        let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
        let of = body.len().div_ceil(size);
        let piece = |(place, part): (usize, &[u8])| {
            // Only the first piece describes the delivery.
            let mut headers = if place == 0 { headers.clone() } else { Vec::new() };
            headers.extend([
                ("tributary.letter", Bytes::from(id.to_owned())),
                ("tributary.piece", Bytes::from(format!("{}/{of}", place + 1))),
                ("tributary.letter.size", Bytes::from(body.len().to_string())),
                ("tributary.letter.sha256", Bytes::from(digest.clone())),
            ]);
            self.letter("kafka::Error::RecordRefused", &headers, part)
        };
        body.chunks(size).enumerate().map(piece).collect()
    }

    /// Writes a record and returns its place.
    pub(super) async fn write(&self, record: EncodedRecord) -> String {
        let ack = self.producer.send(record).unwrap().await.unwrap();
        format!("{}@{}", ack.partition, ack.offset)
    }
}

/// Signs with this key.
pub(super) fn signer(key: &str) -> LetterSigner {
    LetterSigner::new(Some(Arc::new(Keyring::new(&key.into(), None, "group").unwrap())))
}

/// A change of a customer, as the provider writes it.
pub(super) fn change(id: &str, company: &str) -> String {
    format!(
        r#"{{"WebhookId":"w","OutgoingId":"{id}","TenantId":"7",
            "ExtraPartitionInformation":{{"PartitionClientId":"{company}","UserName":"a user"}},
            "EventType":{{"AppName":"Svc","Domain":"ACC","Resource":"Customers","EventType":"CustomerUpdated",
            "SemanticName":"Svc.ACC.Customers.CustomerUpdated"}},"Timestamp":638505760891234567,
            "JsonData":"{{\"CorrelationId\":\"c-1\",\"SequenceVersion\":\"5\"}}"}}"#
    )
}
