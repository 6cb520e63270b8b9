//! `/connectors/{name}/snapshots` and `/connectors/{name}/certificates`: ours, beside Kafka Connect's.

use axum::{extract::State, response::Response};

use model::Wanted;

use super::{
    answer::{Refusal, json},
    request::{Body, Name, Query, Run},
};
use crate::worker::herder::{CertificateQuery, Herder, RunRequest};

type Answer = Result<Response, Refusal>;

pub(super) async fn list(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.runs(&name).await?))
}

/// Accepted, not done: the connector's tasks read, and write how far they are.
pub(super) async fn start(State(herder): State<Herder>, Name(name): Name, body: Option<Body>) -> Answer {
    let request = match body {
        Some(body) => body.run()?,
        None => RunRequest::default(),
    };
    Ok(json(202, &herder.start_run(&name, request).await?))
}

pub(super) async fn one(State(herder): State<Herder>, Name(name): Name, Run(run): Run) -> Answer {
    Ok(json(200, &herder.run(&name, &run).await?))
}

pub(super) async fn pause(State(herder): State<Herder>, Name(name): Name, Run(run): Run) -> Answer {
    Ok(json(202, &herder.order_run(&name, &run, Wanted::Paused).await?))
}

pub(super) async fn resume(State(herder): State<Herder>, Name(name): Name, Run(run): Run) -> Answer {
    Ok(json(202, &herder.order_run(&name, &run, Wanted::Running).await?))
}

pub(super) async fn stop(State(herder): State<Herder>, Name(name): Name, Run(run): Run) -> Answer {
    Ok(json(202, &herder.order_run(&name, &run, Wanted::Stopped).await?))
}

pub(super) async fn certificates(State(herder): State<Herder>, Name(name): Name, query: Query) -> Answer {
    let wanted = CertificateQuery {
        run: query.one("run"),
        list: query.one("list"),
        company: query.one("company"),
        uncertified: query.flag("uncertified", false),
        limit: query.one("limit"),
    };
    Ok(json(200, &herder.certificates(&name, wanted).await?))
}
