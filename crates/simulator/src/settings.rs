//! Settings, which are fixed at the start. What may change later is in [`super::knobs`].

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use super::{catalog::Resource, clock::Ticks, knobs::Knobs, transcript::Transcript};

/// Companies in the initial world at most.
pub const MAX_COMPANIES: u32 = 1_000_000;
/// Records in the initial world at most: half a gigabyte of rows.
pub const MAX_RECORDS: u64 = 20_000_000;

defaults! {
    /// Settings of a simulator.
    #[derive(Debug, Clone)]
    pub struct Settings {
        /// Address to listen on; port 0 takes a free one.
        pub address: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        /// Whether to serve HTTPS, and with which certificate.
        pub tls: Tls = Tls::Off,
        /// The initial world.
        pub world: WorldSettings = WorldSettings::default(),
        /// Freezes the clock at a moment until it is moved; without it, the clock runs with the machine's.
        pub frozen_at: Option<Ticks> = None,
        /// Valid subscription keys.
        pub subscription_keys: Vec<String> = vec!["simulated-subscription-key".to_owned()],
        /// The OAuth client.
        pub client: OAuthClient = OAuthClient {
            id: "simulated-client".to_owned(),
            secret: "simulated-secret".to_owned(),
        },
        /// Issuer in tokens and in the discovery document; another host than the identity provider's.
        pub issuer: String = "https://cloud-login.example/auth/core".to_owned(),
        /// Tenant of the accounting and payroll data.
        pub tenant: String = "tenant-1".to_owned(),
        /// The account of the invoicing login.
        pub invoicing: InvoicingAccount = InvoicingAccount {
            mail: "ana@example.com".to_owned(),
            password: "simulated-password".to_owned(),
        },
        /// Certificates (PEM) to trust for webhook receivers, besides the platform's.
        pub receiver_roots: Vec<String> = Vec::new(),
        /// Entries that each journal (deliveries, requests, tokens) keeps; the oldest are dropped first.
        pub journal_limit: usize = 100_000,
        /// The initial knobs.
        pub knobs: Knobs = Knobs::default(),
        /// Recorded answers that the APIs give instead of their own.
        pub transcript: Option<Arc<Transcript>> = None,
    }
}

/// Whether to serve HTTPS, and with which certificate.
#[derive(Debug, Clone, Default)]
pub enum Tls {
    /// Plain HTTP.
    #[default]
    Off,
    /// A certificate for localhost, generated at the start; see [`super::Simulator::certificate`].
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
    /// Size and seed of the initial world; at most [`MAX_RECORDS`] records.
    #[derive(Debug, Clone)]
    pub struct WorldSettings {
        /// The seed of everything random.
        pub seed: u64 = 1,
        /// Accounting companies, at most [`MAX_COMPANIES`].
        pub companies: u32 = 10,
        /// Customers per company.
        pub customers: u32 = 20,
        /// Accounts per company.
        pub accounts: u32 = 20,
        /// Records per company of each other resource except companies.
        pub others: u32 = 2,
        /// Payroll companies.
        pub payroll_companies: u32 = 10,
        /// Invoicing companies of the account, each with its own tenant.
        pub invoicing_companies: u32 = 1,
        /// Entities of each kind per invoicing company.
        pub invoicing_entities: u32 = 5,
        /// Resources whose records belong to no company: they are read with `context: none`, and their events have no
        /// `PartitionClientId`.
        pub tenant_resources: BTreeSet<Resource> = BTreeSet::new(),
        /// Earlier states kept per record, for stale reads and restores.
        pub history: usize = 8,
    }
}

/// An OAuth client.
#[derive(Debug, Clone)]
pub struct OAuthClient {
    /// `client_id`.
    pub id: String,
    /// `client_secret`.
    pub secret: String,
}

/// Mail and password of the invoicing login.
#[derive(Debug, Clone)]
pub struct InvoicingAccount {
    /// `mail`.
    pub mail: String,
    /// `password`.
    pub password: String,
}
