//! Notifications of hooks: flat as in the document, or wrapped as the software behind the provider sends them.
//!
//! Their content follows from the seed and the number of the change, so every hook gets the same. A wrapped body contains the
//! number of its attempt, so each attempt has its own signature.

use std::sync::Arc;

use aws_lc_rs::hmac;
use axum::http::HeaderName;
use bytes::Bytes;
use serde_json::{Value, json};

use super::InvoicingService;
use crate::{
    catalog::Action,
    deliveries::{About, DeliveryBody, DeliveryOrder, Family, Purpose, signature},
    knobs::{InvoicingBody, InvoicingKnobs},
    random::{Guid, Random, mix},
    world::EntityChange,
};

/// The random streams of values and message ids.
const VALUES: u64 = 0x696e_765f_7661_6c75;
const MESSAGES: u64 = 0x696e_765f_6d65_7373;

/// Names that break careless parsers: accents, quotes, ampersands.
const NAMES: [&str; 6] =
    ["Ibáñez e Hijos", "Peña & Cía", "\"El Sur\" S.L.", "Talleres Núñez", "López / Vidal", "Acme"];
const APPLICATIONS: [&str; 3] = ["Web", "Mobile", "Api"];

impl InvoicingService {
    /// Sends a change to its hooks. For hooks that are paused or not effective the journal gets a missed delivery.
    pub(crate) fn announce(&self, change: &EntityChange) {
        let hooks = self.hooks.all(|hook| hook.is_about(change));
        if hooks.is_empty() {
            return;
        }
        let knobs = self.core.knobs();
        let knobs = &knobs.invoicing;
        let event = format!("{:?}.{:?}", change.entity, change.action).into();
        let about = About {
            company: Some(self.tenant_of(change, knobs).into()),
            record: Some(change.id.as_str().into()),
            ..About::new(&event)
        };
        // An invalid name sends no signature.
        let header = HeaderName::from_bytes(knobs.signature_header.as_bytes()).ok();
        let retries: Arc<[u64]> = knobs.retries.as_slice().into();
        let notification = Arc::new(self.notification(change, &self.core.settings.invoicing.mail, knobs));
        // All hooks get the same bytes; only their signatures differ.
        let flat: Option<Bytes> = (knobs.body == InvoicingBody::Flat)
            .then(|| serde_json::to_vec(&*notification).unwrap_or_default().into());

        for hook in hooks {
            if !hook.active() {
                self.deliveries.missed(Family::Invoicing, hook.id, about.clone());
                continue;
            }
            let signed = header.is_some();
            let body = match &flat {
                Some(flat) => DeliveryBody::Same(flat.clone(), signed.then(|| signature(&hook.key, flat))),
                None => {
                    let id = Guid::nth(self.core.seed() ^ mix(hook.id.0 as u64), MESSAGES, change.number);
                    wrapped(id, Arc::clone(&notification), hook.key, signed)
                }
            };
            let order = DeliveryOrder {
                family: Family::Invoicing,
                webhook: hook.id,
                purpose: Purpose::Event,
                url: hook.url,
                body,
                signature_header: header.clone(),
                // A hook belongs to one company, so its id alone identifies the lane.
                lane: hook.id.0 as u64,
                retries: Arc::clone(&retries),
                gone_ends: true,
                about: about.clone(),
            };
            self.deliveries.send(order);
        }
    }

    fn notification(&self, change: &EntityChange, mail: &str, knobs: &InvoicingKnobs) -> Value {
        let mut random = Random::new(self.core.seed() ^ mix(change.number), VALUES);
        let by_account = random.chance(0.8);
        let colleague = random.below(20);
        let application = random.below(APPLICATIONS.len() as u64) as usize;
        let mut notification = json!({
            "Entity": change.entity,
            "EntityId": change.id,
            "TenantId": self.tenant_of(change, knobs),
            "User": if by_account { mail.to_owned() } else { format!("user{colleague}@example.com") },
            "Changes": changes(change, &mut random),
        });
        if knobs.body == InvoicingBody::Wrapped {
            notification["Action"] = json!(change.action);
        } else if knobs.extra_members {
            notification["Host"] = json!("invoicing.example");
            notification["SourceApplication"] = json!(APPLICATIONS[application]);
        }
        notification
    }
}

/// An indented body for each attempt.
fn wrapped(id: Guid, notification: Arc<Value>, key: hmac::Key, signed: bool) -> DeliveryBody {
    DeliveryBody::Numbered(Box::new(move |attempt| {
        let envelope = json!({ "Id": id.simple(), "Attempt": attempt, "Properties": {}, "Notifications": [*notification] });
        let body: Bytes = serde_json::to_vec_pretty(&envelope).unwrap_or_default().into();
        let signature = signed.then(|| signature(&key, &body));
        (body, signature)
    }))
}

/// All fields of a new entity, some of a changed one, none of a deleted one.
fn changes(change: &EntityChange, random: &mut Random) -> Vec<Value> {
    const FIELDS: [&str; 5] = ["Code", "Name", "Date", "Total", "Paid"];
    let (first, count) = match change.action {
        Action::Created => (0, FIELDS.len()),
        Action::Updated => (random.below(5) as usize, 1 + random.below(5) as usize),
        Action::Deleted => (0, 0),
    };
    let chosen = FIELDS.into_iter().cycle().skip(first).take(count);
    chosen.map(|name| json!({ "Name": name, "Value": value(name, change, random) })).collect()
}

fn value(name: &str, change: &EntityChange, random: &mut Random) -> String {
    match name {
        "Total" => format!("{}.{:02}", random.below(100_000), random.below(100)),
        "Date" => change.at.iso().chars().take(10).collect(),
        "Name" => NAMES[random.below(NAMES.len() as u64) as usize].to_owned(),
        "Paid" => random.chance(0.5).to_string(),
        _ => format!("{:06}", random.below(1_000_000)),
    }
}
