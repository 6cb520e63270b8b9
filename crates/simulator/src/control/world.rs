//! Changing the world by hand: steps, single records, going back.

use std::sync::Arc;

use axum::{Router, body::Bytes, extract::State, routing::post};
use serde::Deserialize;
use serde_json::json;

use super::{
    body::{ControlError, ControlResult, Path, done, parse},
    seconds,
};
use crate::{
    Provider,
    catalog::{Action, Entity, Kind, Resource},
    clock::Ticks,
    knobs::ListOrder,
    reads,
    world::Change,
};

/// The most changes of one call.
const MAX_STEPS: u64 = 1_000_000;

pub(super) fn router() -> Router<Arc<Provider>> {
    Router::new()
        .route("/_control/step", post(step))
        .route("/_control/records/{resource}", post(create))
        .route("/_control/records/{resource}/{id}/{kind}", post(act))
        .route("/_control/companies/{id}/restore", post(restore))
        .route("/_control/payroll", post(create_payroll))
        .route("/_control/payroll/{code}/{kind}", post(act_payroll))
        .route("/_control/invoicing", post(act_invoicing))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    changes: u64,
}

async fn step(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let steps: Steps = parse(&body)?;
    if steps.changes > MAX_STEPS {
        return Err(ControlError::bad(&format!("changes is at most {MAX_STEPS} a call")));
    }
    provider.step(steps.changes).await;
    let total = provider.world().changes();
    Ok(done(&json!({ "changes": total })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Created {
    /// Correlation id of the company; none for companies and tenant-wide resources.
    company: Option<String>,
}

async fn create(
    State(provider): State<Arc<Provider>>,
    Path(resource): Path<Resource>,
    body: Bytes,
) -> ControlResult {
    let wanted: Created = parse(&body)?;
    let id = provider.change(|world, clock| {
        let company = match &wanted.company {
            None => None,
            Some(id) => match world.company(id) {
                None => return (Err(ControlError::missing(&format!("no company {id:?}"))), Vec::new()),
                found => found,
            },
        };
        match world.create(resource, company, clock) {
            None => (Err(ControlError::bad(&format!("{resource} cannot be created there"))), Vec::new()),
            Some(change) => (Ok(world.id(change.place)), vec![Change::Record(change)]),
        }
    })?;
    Ok(done(&json!({ "id": id })))
}

async fn act(
    State(provider): State<Arc<Provider>>,
    Path((resource, id, kind)): Path<(Resource, String, Kind)>,
) -> ControlResult {
    let sequence = provider.change(|world, clock| {
        let Some((place, _)) = world.find(resource, &id) else {
            return (Err(ControlError::missing(&format!("no record {id:?} in {resource}"))), Vec::new());
        };
        match world.act(place, kind, clock) {
            None => (Err(refused(resource, kind)), Vec::new()),
            Some(change) => (Ok(change.row.sequence), vec![Change::Record(change)]),
        }
    })?;
    Ok(done(&json!({ "sequenceVersion": sequence })))
}

fn refused(resource: Resource, kind: Kind) -> ControlError {
    let offered = resource.kinds();
    ControlError::bad(&format!(
        "{kind:?} does not fit: the record is gone, or {resource} offers only {offered:?}"
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Restore {
    /// Back to how it was so long ago, by the provider's clock.
    seconds_ago: f64,
}

async fn restore(
    State(provider): State<Arc<Provider>>,
    Path(id): Path<String>,
    body: Bytes,
) -> ControlResult {
    let wanted: Restore = parse(&body)?;
    let ago = seconds(wanted.seconds_ago)?;
    let changed = provider.change(|world, clock| {
        let Some(company) = world.company(&id) else {
            return (Err(ControlError::missing(&format!("no company {id:?}"))), Vec::new());
        };
        // Counted from the last change on, and under the world's lock: 0 seconds ago undoes nothing.
        let to = Ticks(clock.latest().0.saturating_sub(ago));
        (Ok(world.restore(company, to)), Vec::new())
    })?;
    Ok(done(&json!({ "records": changed })))
}

async fn create_payroll(State(provider): State<Arc<Provider>>) -> ControlResult {
    payroll_change(&provider, None, Kind::Created)
}

async fn act_payroll(
    State(provider): State<Arc<Provider>>,
    Path((code, kind)): Path<(u32, Kind)>,
) -> ControlResult {
    let index = {
        let world = provider.world();
        let rows = world.payroll(ListOrder::Created);
        rows.iter().map(|row| row.index).find(|&index| reads::payroll_code(world.seed(), index) == code)
    };
    let index = index.ok_or_else(|| ControlError::missing(&format!("no payroll company {code}")))?;
    payroll_change(&provider, Some(index), kind)
}

fn payroll_change(provider: &Provider, index: Option<u32>, kind: Kind) -> ControlResult {
    let (row, seed) = provider.change(|world, clock| {
        let row = world.act_payroll(index, kind, clock);
        ((row, world.seed()), Vec::new())
    });
    let row = row
        .ok_or_else(|| ControlError::bad(&format!("{kind:?} does not fit a payroll company that is gone")))?;
    let code = reads::payroll_code(seed, row.index);
    Ok(done(&json!({ "companyCode": code, "lastUpdate": row.updated.iso_milliseconds() })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvoicingAct {
    /// Number of the invoicing company, from 0.
    #[serde(default)]
    company: u32,
    entity: Entity,
    action: Action,
}

async fn act_invoicing(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let wanted: InvoicingAct = parse(&body)?;
    if !wanted.entity.offers(wanted.action) {
        return Err(ControlError::bad(&format!("{:?} is never {:?}", wanted.entity, wanted.action)));
    }
    let id = provider.change(|world, clock| {
        match world.act_invoicing(wanted.company, wanted.entity, wanted.action, clock) {
            None => (None, Vec::new()),
            Some(change) => (Some(change.id.clone()), vec![Change::Invoicing(change)]),
        }
    });
    let id =
        id.ok_or_else(|| ControlError::missing("no such invoicing company, or nothing left to change"))?;
    Ok(done(&json!({ "entityId": id })))
}
