//! What is fixed when a simulator starts. What may change while it runs is in [`super::knobs`].

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
};

use super::{catalog::Resource, clock::Ticks, knobs::Knobs};

/// The most companies a first world has.
pub const MAX_COMPANIES: u32 = 1_000_000;
/// The most records of all kinds together a first world has: half a gigabyte of rows.
pub const MAX_RECORDS: u64 = 20_000_000;

defaults! {
    /// How a simulator starts.
    #[derive(Debug, Clone)]
    pub struct Settings {
        /// Where it listens; port 0 takes a free one.
        pub address: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        /// Serves HTTPS with this certificate, or with one made up at the start.
        pub tls: Tls = Tls::Off,
        /// The world it begins with.
        pub world: WorldSettings = WorldSettings::default(),
        /// Where its clock stands until moved; without it, it runs with the machine's.
        pub frozen_at: Option<Ticks> = None,
        /// Subscription keys it knows.
        pub subscription_keys: Vec<String> = vec!["simulated-subscription-key".to_owned()],
        /// The OAuth client it knows.
        pub client: Client = Client {
            id: "simulated-client".to_owned(),
            secret: "simulated-secret".to_owned(),
        },
        /// `iss` of its tokens, and the issuer of its discovery document: on another host than the identity provider.
        pub issuer: String = "https://cloud-login.example/auth/core".to_owned(),
        /// Tenant of the accounting and payroll data.
        pub tenant: String = "tenant-1".to_owned(),
        /// The account that logs in to invoicing.
        pub invoicing: InvoicingAccount = InvoicingAccount {
            mail: "ana@example.com".to_owned(),
            password: "simulated-password".to_owned(),
        },
        /// Certificates (PEM) by which it trusts webhook receivers, beside the platform's.
        pub receiver_roots: Vec<String> = Vec::new(),
        /// How many entries each journal (deliveries, requests, tokens) keeps; the oldest go first.
        pub journal_limit: usize = 100_000,
        /// The first setting of everything that may change later.
        pub knobs: Knobs = Knobs::default(),
    }
}

/// Whether and with what it serves HTTPS.
#[derive(Debug, Clone, Default)]
pub enum Tls {
    /// Plain HTTP.
    #[default]
    Off,
    /// A certificate for localhost, made at the start; [`super::Simulator::certificate`] tells it.
    Generated,
    /// This chain and key, as PEM.
    Given {
        /// Certificate chain.
        certificate: String,
        /// Private key.
        key: String,
    },
}

defaults! {
    /// Size and seed of the first world; up to [`MAX_RECORDS`] records in all.
    #[derive(Debug, Clone)]
    pub struct WorldSettings {
        /// Everything that looks random follows from it.
        pub seed: u64 = 1,
        /// Accounting companies, up to [`MAX_COMPANIES`].
        pub companies: u32 = 10,
        /// Customers of each company.
        pub customers: u32 = 20,
        /// Accounts of each company.
        pub accounts: u32 = 20,
        /// Records of each other resource in each company; companies themselves not counted.
        pub others: u32 = 2,
        /// Payroll companies.
        pub payroll_companies: u32 = 10,
        /// Invoicing companies of the account, each a tenant of its own.
        pub invoicing_companies: u32 = 1,
        /// Entities of each kind in each invoicing company.
        pub invoicing_entities: u32 = 5,
        /// Resources whose records belong to no company: read with `context: none`, events without `PartitionClientId`.
        pub tenant_resources: BTreeSet<Resource> = BTreeSet::new(),
        /// Earlier states kept of each record, for stale reads and for going back.
        pub history: usize = 8,
    }
}

/// An OAuth client.
#[derive(Debug, Clone)]
pub struct Client {
    /// `client_id`.
    pub id: String,
    /// `client_secret`.
    pub secret: String,
}

/// The mail and password of the invoicing login.
#[derive(Debug, Clone)]
pub struct InvoicingAccount {
    /// `mail`.
    pub mail: String,
    /// `password`.
    pub password: String,
}
