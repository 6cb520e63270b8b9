//! Tests of the simulated provider against the provider's document, over HTTP.
//!
//! They are a second reading of the document, not of the simulator's code, so that a misreading in one of them shows. Each test
//! starts its own simulator ([`start`]) with a small world and a frozen clock and uses it like any client ([`Client`]); what no
//! client can know it asks the simulator's handle.

mod admission;
mod control;
mod delivery;
mod exchanges;
mod gateway;
mod identity;
pub(crate) mod invoicing;
mod lists;
mod moving;
mod process;
mod reads;
pub(crate) mod receiver;
mod tokens;
mod webhooks;
mod world;

use std::{fmt::Write as _, sync::Arc, time::Duration};

use reqwest::{Method, header::HeaderMap, redirect};
use serde_json::{Value, json};
use simulator::{
    Simulator,
    clock::{SECOND, Ticks, midnight},
    settings::{Settings, WorldSettings},
};

use url::form_urlencoded;

use crate::support::{harness::Test, traced};

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        admission::tests(),
        control::tests(),
        delivery::tests(),
        exchanges::tests(),
        gateway::tests(),
        identity::tests(),
        invoicing::tests(),
        lists::tests(),
        moving::tests(),
        process::tests(),
        reads::tests(),
        tokens::tests(),
        webhooks::tests(),
        world::tests(),
    ];
    parts.into_iter().flatten().collect()
}

/// The subscription key of every simulator.
pub(crate) const KEY: &str = "simulated-subscription-key";
/// Documented scopes of the accounting API.
pub(crate) const ACCOUNTING_SCOPES: [&str; 6] = [
    "offline_access",
    "openid",
    "SVC.ES.NEWPOL.COR.API",
    "SVC.ES.NEWPOL.ACC.API",
    "SVC.ES.NEWPOL.MNG.API",
    "SVC.ES.Webhooks",
];
/// Documented scopes of the payroll API.
pub(crate) const PAYROLL_SCOPES: [&str; 4] = ["offline_access", "openid", "IDInfo", "SVC.ES.EquipoContex"];
/// The document's table of resources.
pub(crate) const RESOURCES: [(&str, &str); 19] = [
    ("accounts", "/accounting/api/accounts"),
    ("charges", "/accounting/api/charges"),
    ("payments", "/accounting/api/payments"),
    ("customers", "/accounting/api/customers"),
    ("suppliers", "/accounting/api/suppliers"),
    ("inputInvoices", "/accounting/api/inputInvoices"),
    ("issuedInvoices", "/accounting/api/issuedInvoices"),
    ("journals", "/accounting/api/journals"),
    ("companies", "/accounting/api/companies"),
    ("accountingYears", "/accounting/api/accountingYears"),
    ("persons", "/accounting-core/api/persons"),
    ("corporateLegalEntities", "/accounting-core/api/corporateLegalEntities"),
    ("individualLegalEntities", "/accounting-core/api/individualLegalEntities"),
    ("activities", "/accounting-core/api/activities"),
    ("estimations", "/accounting-core/api/activities/estimations"),
    ("legalEntityLicences", "/accounting-core/api/legalEntityLicences"),
    ("prorates", "/accounting-core/api/activities/prorates"),
    ("incomeAllocationLegalEntities", "/accounting-core/api/incomeAllocationLegalEntities"),
    ("integrationFiles", "/accounting-import/api/integrationFiles"),
];

/// The moment at which the clock of every test is frozen.
pub(crate) fn noon() -> Ticks {
    Ticks(midnight(2026, 11, 15).unwrap().0 + 12 * 3_600 * SECOND)
}

/// Starts a simulator with a small world at [`noon`].
pub(crate) async fn start(adjust: impl FnOnce(&mut Settings)) -> Simulator {
    let world = WorldSettings {
        companies: 3,
        customers: 4,
        accounts: 4,
        others: 2,
        payroll_companies: 5,
        invoicing_entities: 2,
        ..WorldSettings::default()
    };
    let mut settings = Settings { world, frozen_at: Some(noon()), ..Settings::default() };
    adjust(&mut settings);
    let client_secret = settings.client.secret.clone();
    let simulator = Simulator::start(settings).await.unwrap();
    traced::hide("the subscription key", KEY);
    traced::hide("the client secret", &client_secret);
    let provider = Arc::clone(simulator.provider());
    traced::hide_later(move || {
        let issued = provider.identity.issued().into_iter();
        issued.map(|one| (format!("a {} token or code", one.kind), one.token)).collect()
    });
    simulator
}

/// The same, and a client for it.
async fn started(
    client: impl FnOnce(&Simulator) -> Client,
    adjust: impl FnOnce(&mut Settings),
) -> (Simulator, Client) {
    let simulator = start(adjust).await;
    let client = client(&simulator);
    (simulator, client)
}

/// Advances the provider's clock.
pub(crate) fn pass(simulator: &Simulator, seconds: i64) {
    simulator.provider().clock.advance(seconds * SECOND);
}

/// A client that sends only what is set here.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Does not follow redirects.
    pub(crate) http: reqwest::Client,
    /// Base address without a slash at the end.
    pub(crate) base: String,
    /// `Ocp-Apim-Subscription-Key`.
    pub(crate) key: Option<String>,
    /// `Authorization`, verbatim.
    pub(crate) authorization: Option<String>,
    /// `context`, verbatim.
    pub(crate) context: Option<String>,
    /// Further headers.
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Client {
    /// With a key and a token for the accounting API, and no `context`.
    pub(crate) fn accounting(simulator: &Simulator) -> Self {
        Self::with_scopes(simulator, &ACCOUNTING_SCOPES)
    }

    /// With a key and a token for the payroll API.
    pub(crate) fn payroll(simulator: &Simulator) -> Self {
        Self::with_scopes(simulator, &PAYROLL_SCOPES)
    }

    /// With a key and a token for these scopes.
    pub(crate) fn with_scopes(simulator: &Simulator, scopes: &[&str]) -> Self {
        let (access, _) = simulator.provider().identity.grant(scopes);
        Self { key: Some(KEY.to_owned()), authorization: Some(bearer(&access)), ..Self::bare(simulator) }
    }

    /// Without headers.
    pub(crate) fn bare(simulator: &Simulator) -> Self {
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .timeout(Duration::from_secs(30));
        if let Some(certificate) = simulator.certificate() {
            let certificate = reqwest::Certificate::from_pem(certificate.as_bytes()).unwrap();
            builder = builder.tls_certs_only([certificate]);
        }
        let base = simulator.base_url().as_str().trim_end_matches('/').to_owned();
        Self {
            http: builder.build().unwrap(),
            base,
            key: None,
            authorization: None,
            context: None,
            headers: Vec::new(),
        }
    }

    /// The same with this `context`.
    pub(crate) fn context(&self, context: &str) -> Self {
        Self { context: Some(context.to_owned()), ..self.clone() }
    }

    /// The same with the `context` of a company.
    pub(crate) fn company(&self, id: &str) -> Self {
        self.context(&json!({ "clientId": id }).to_string())
    }

    /// The same with this access token.
    pub(crate) fn token(&self, access: &str) -> Self {
        Self { authorization: Some(bearer(access)), ..self.clone() }
    }

    /// The same with one more header.
    pub(crate) fn header(&self, name: &'static str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name, value.to_owned()));
        client
    }

    /// GET of a path and query below the base address.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    /// POST of a JSON body.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, Some(body)).await
    }

    /// PUT of a JSON body.
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, Some(body)).await
    }

    /// DELETE.
    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None).await
    }

    /// POST of a form, without other headers.
    pub(crate) async fn form(&self, path: &str, fields: &[(&str, &str)]) -> Result<Answer, reqwest::Error> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.http.post(format!("{}{path}", self.base));
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        Answer::read(request.send().await?).await
    }

    /// Any request, which must get an answer.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        self.try_send(method.clone(), path, body.map(ToString::to_string))
            .await
            .unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    /// Any request with any body; it may get no answer.
    pub(crate) async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Answer, reqwest::Error> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        request = request.header("content-type", "application/json");
        let named = [
            ("ocp-apim-subscription-key", &self.key),
            ("authorization", &self.authorization),
            ("context", &self.context),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        Answer::read(request.send().await?).await
    }

    /// Correlation ids in the list of companies.
    pub(crate) async fn companies(&self) -> Vec<String> {
        ids(&Self { context: None, ..self.clone() }.get("/accounting/api/companies").await.rows())
    }
}

/// Percent-encodes an id as a path segment.
pub(crate) fn segment(id: &str) -> String {
    id.bytes().fold(String::new(), |mut text, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            byte => write!(text, "%{byte:02X}").unwrap(),
        }
        text
    })
}

/// Correlation ids of the rows of a list.
pub(crate) fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| row["correlationId"].as_str().unwrap().to_owned()).collect()
}

/// `Authorization` for an access token.
pub(crate) fn bearer(access: &str) -> String {
    format!("Bearer {access}")
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status.
    pub(crate) status: u16,
    /// HTTP version.
    pub(crate) version: reqwest::Version,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// Body.
    pub(crate) body: String,
}

impl Answer {
    /// Reads an answer to its end.
    pub(crate) async fn read(response: reqwest::Response) -> Result<Self, reqwest::Error> {
        let (status, version) = (response.status().as_u16(), response.version());
        let headers = response.headers().clone();
        Ok(Self { status, version, headers, body: response.text().await? })
    }

    /// The JSON body of a 200.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The JSON body, whatever the status.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The rows of a list.
    #[track_caller]
    pub(crate) fn rows(&self) -> Vec<Value> {
        self.ok().as_array().unwrap_or_else(|| panic!("no list: {self:?}")).clone()
    }

    /// A header's text.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}
