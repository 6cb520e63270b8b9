//! Deliveries of both webhook families: queue, attempts, retries, and the journal of all.

use std::{fmt, sync::Arc};

use axum::http::{HeaderName, HeaderValue};
use bytes::Bytes;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Provider, clock::Ticks, random::Guid, settings::Settings};

/// The queue, the client and the journal.
#[derive(Debug)]
pub struct Deliveries {}

/// Which family a delivery belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Family {
    /// Accounting, core, import.
    Accounting,
    /// Invoicing.
    Invoicing,
}

/// Why it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// To make the contract: only 200 will do.
    Acknowledge,
    /// To tell a change.
    Event,
}

/// A delivery to be made.
#[derive(Debug)]
pub struct Order {
    /// Family.
    pub family: Family,
    /// Webhook or hook.
    pub webhook: Guid,
    /// Why.
    pub purpose: Purpose,
    /// Where to.
    pub url: Url,
    /// What is sent.
    pub body: Body,
    /// Name of the signature header.
    pub signature_header: Option<HeaderName>,
    /// Deliveries with the same lane number are first tried one after the other, in order: (webhook, company).
    pub lane: u64,
    /// Waits before each further attempt, milliseconds.
    pub retries: Arc<[u64]>,
    /// 410 ends the attempts at once.
    pub gone_ends: bool,
    /// What it tells, for the journal.
    pub about: About,
}

/// What is sent, with the value of the signature header if there is one.
pub enum Body {
    /// The same at every attempt.
    Same(Bytes, Option<HeaderValue>),
    /// Written for each attempt, which is counted from 1.
    Numbered(Box<dyn Fn(u32) -> (Bytes, Option<HeaderValue>) + Send + Sync>),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}

/// What a delivery tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Semantic name, or `Customer.Created`.
    pub event: Arc<str>,
    /// Company correlation id, or invoicing tenant.
    pub company: Option<Arc<str>>,
    /// Correlation id or entity id of the record.
    pub record: Option<Arc<str>>,
    /// `SequenceVersion`.
    pub sequence: Option<u64>,
    /// `OutgoingId`; none for invoicing.
    pub outgoing: Option<Guid>,
}

/// A delivery as the journal keeps it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Family.
    pub family: Family,
    /// Webhook or hook.
    pub webhook: Guid,
    /// Why.
    pub purpose: Purpose,
    /// What it tells.
    pub about: About,
    /// When it was ordered.
    pub at: Ticks,
    /// A 64-bit hash of the body of the first attempt, so that two runs can be compared; 0 where none was made.
    pub body_hash: u64,
    /// Every attempt and its answer.
    pub attempts: Vec<Attempt>,
    /// How it ended; `None` while it is on its way.
    pub end: Option<End>,
}

/// One attempt.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// When it was sent.
    pub at: Ticks,
    /// Milliseconds until the answer, or until it was given up.
    pub took: u32,
    /// Status of the answer.
    pub status: Option<u16>,
    /// Why it failed, if not by its status alone: time limit, connection, cookies.
    pub error: Option<String>,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// The receiver has it.
    Accepted,
    /// Every attempt failed.
    GivenUp,
    /// Its webhook was disabled, deleted or moved before it could be delivered.
    Abandoned,
    /// The webhook was not active when it happened: never sent.
    Missed,
    /// A knob lost it.
    Lost,
    /// Too many were waiting.
    Overflown,
}

impl Deliveries {
    /// An empty queue.
    ///
    /// # Errors
    /// The settings' root certificates are no PEM, or no client can be made.
    pub fn new(settings: &Settings) -> Result<Self, super::Error> {
        Ok(Self {})
    }

    /// Takes a delivery; never waits. Its number in the journal. Applies the knobs that lose, duplicate, delay and reorder
    /// (to events, never to an Acknowledge).
    pub fn send(&self, provider: &Provider, order: Order) -> u64 {
        todo!()
    }

    /// Notes an event that was not sent because its webhook is not active.
    pub fn missed(&self, provider: &Provider, family: Family, webhook: Guid, about: About) -> u64 {
        todo!()
    }

    /// The HTTP client that deliveries use: hosts resolved by the knobs, certificates trusted by the settings.
    #[must_use]
    pub fn client(&self, provider: &Provider) -> reqwest::Client {
        todo!()
    }

    /// Deliveries since the start, in order, within the journal's limit: `(number, entry)` from a number on.
    #[must_use]
    pub fn entries(&self, from: u64, limit: usize) -> Vec<(u64, Entry)> {
        todo!()
    }

    /// How many there ever were.
    #[must_use]
    pub fn count(&self) -> u64 {
        todo!()
    }

    /// Resolves once nothing is queued, waiting for a retry or on its way.
    pub async fn idle(&self) {
        todo!()
    }
}

/// Delivers until cancelled.
pub async fn run(provider: Arc<Provider>, stop: CancellationToken) {
    todo!()
}
