//! Reads through the router, as the gateway would pass them on.

mod lists;
mod payroll;
mod records;

use std::{net::SocketAddr, sync::Arc};

use axum::{Router, body::Body, http::Request};
use serde_json::Value;
use tower_service::Service as _;

use crate::simulator::{
    Provider,
    catalog::{Area, Resource},
    clock::{Ticks, midnight},
    gateway::{Call, Context},
    knobs::ReadKnobs,
    reads::{Shape, write_record},
    settings::{Settings, WorldSettings},
    world::{CompanyNumber, Naming, Place, Row},
};

/// A provider whose clock stands, and the routes of reads.
struct Rig {
    provider: Arc<Provider>,
    router: Router,
}

/// An answer.
struct Answer {
    status: u16,
    body: Vec<u8>,
    pagination: Option<Value>,
    content_type: String,
}

impl Rig {
    fn new() -> Self {
        Self::with(WorldSettings::default())
    }

    fn with(world: WorldSettings) -> Self {
        let frozen_at = Some(Ticks(midnight(2026, 11, 15).unwrap().0));
        let provider = Provider::new(Settings { world, frozen_at, ..Settings::default() }).unwrap();
        let router = super::router().with_state(Arc::clone(&provider));
        Self { provider, router }
    }

    fn turn(&self, change: impl FnOnce(&mut ReadKnobs)) {
        self.provider.turn(|knobs| change(&mut knobs.reads));
    }

    async fn get(&self, target: &str, context: Context) -> Answer {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let call = Call { area: Area::Accounting, caller: None, context, peer };
        let request = Request::get(target).extension(call).body(Body::empty()).unwrap();
        let response = self.router.clone().call(request).await.unwrap();
        let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let pagination = header("x-pagination").map(|text| serde_json::from_str(&text).unwrap());
        let content_type = header("content-type").unwrap_or_default();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec();
        Answer { status, body, pagination, content_type }
    }

    /// The id of a company's own record.
    fn company(&self, number: CompanyNumber) -> String {
        self.id(Resource::Companies, None, number)
    }

    fn context(&self, number: CompanyNumber) -> Context {
        Context::Company(self.company(number))
    }

    fn id(&self, resource: Resource, company: Option<CompanyNumber>, index: u32) -> String {
        self.provider.world().id(Place { resource, company, index })
    }
}

impl Answer {
    fn json(&self) -> Value {
        assert_eq!(self.content_type, "application/json; charset=utf-8");
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn rows(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json().as_array().unwrap().clone()
    }

    /// One text of each row.
    fn texts(&self, name: &str) -> Vec<String> {
        self.rows().iter().map(|row| row[name].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The message of an API error with this status.
    fn refusal(&self, status: u16) -> String {
        let text = String::from_utf8(self.body.clone()).unwrap();
        assert_eq!(self.status, status, "{text}");
        assert!(text.starts_with(&format!(r#"{{"ok":false,"httpCode":{status},"#)), "{text}");
        self.json()["message"].as_str().unwrap().to_owned()
    }
}

/// A record as it is, with the fields it has under default knobs.
fn truth(naming: &Naming, place: Place, row: &Row) -> Vec<u8> {
    let mut out = Vec::new();
    write_record(&mut out, naming, place, row, Shape::default());
    out
}
