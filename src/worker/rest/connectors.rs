//! `/connectors` and everything below it.

use std::collections::BTreeMap;

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::Response,
};

use super::{
    answer::{Refusal, empty, json},
    request::{Body, Name, Query, TaskNumber},
};
use crate::{
    config::connector::TargetState,
    worker::herder::{Herder, Info},
};

type Answer = Result<Response, Refusal>;

pub(super) async fn list(State(herder): State<Herder>, query: Query) -> Answer {
    match query.all("expand") {
        None => Ok(json(200, &herder.names().await?)),
        Some(expand) => {
            let wants = |what: &str| expand.iter().any(|value| value.eq_ignore_ascii_case(what));
            Ok(json(200, &herder.expanded(wants("info"), wants("status")).await?))
        }
    }
}

pub(super) async fn create(State(herder): State<Herder>, body: Body) -> Answer {
    let (name, config, initial) = body.creation()?;
    let info = herder.create(&name, config, initial).await?;
    Ok(created(&herder, &info))
}

pub(super) async fn info(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.info(&name).await?))
}

pub(super) async fn delete(State(herder): State<Herder>, Name(name): Name) -> Answer {
    herder.delete(&name).await?;
    Ok(empty(204))
}

pub(super) async fn config(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.config(&name).await?))
}

pub(super) async fn put_config(State(herder): State<Herder>, Name(name): Name, body: Body) -> Answer {
    let (info, is_new) = herder.put_config(&name, body.config()?).await?;
    Ok(if is_new { created(&herder, &info) } else { json(200, &info) })
}

pub(super) async fn patch_config(State(herder): State<Herder>, Name(name): Name, body: Body) -> Answer {
    Ok(json(200, &herder.patch_config(&name, body.patch()?).await?))
}

pub(super) async fn status(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.status(&name).await?))
}

pub(super) async fn tasks(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.tasks(&name).await?))
}

/// Kafka Connect dropped this one with 4.0; older tools still ask.
pub(super) async fn task_configs(State(herder): State<Herder>, Name(name): Name) -> Answer {
    let tasks = herder.tasks(&name).await?.into_iter();
    let configs: BTreeMap<String, _> =
        tasks.map(|task| (format!("{}-{}", task.id.connector, task.id.task), task.config)).collect();
    Ok(json(200, &configs))
}

pub(super) async fn task_status(
    State(herder): State<Herder>,
    Name(name): Name,
    TaskNumber(task): TaskNumber,
) -> Answer {
    Ok(json(200, &herder.task_status(&name, task).await?))
}

pub(super) async fn restart_task(
    State(herder): State<Herder>,
    Name(name): Name,
    TaskNumber(task): TaskNumber,
) -> Answer {
    herder.restart_task(&name, task).await?;
    Ok(empty(204))
}

pub(super) async fn restart(State(herder): State<Herder>, Name(name): Name, query: Query) -> Answer {
    let (tasks, only_failed) = (query.flag("includeTasks", false), query.flag("onlyFailed", false));
    let status = herder.restart(&name, tasks, only_failed).await?;
    Ok(if tasks || only_failed { json(202, &status) } else { empty(204) })
}

pub(super) async fn pause(State(herder): State<Herder>, Name(name): Name) -> Answer {
    herder.set_target(&name, TargetState::Paused).await?;
    Ok(empty(202))
}

pub(super) async fn resume(State(herder): State<Herder>, Name(name): Name) -> Answer {
    herder.set_target(&name, TargetState::Running).await?;
    Ok(empty(202))
}

pub(super) async fn stop(State(herder): State<Herder>, Name(name): Name) -> Answer {
    herder.set_target(&name, TargetState::Stopped).await?;
    Ok(empty(204))
}

pub(super) async fn topics(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.topics(&name).await?))
}

pub(super) async fn reset_topics(State(herder): State<Herder>, Name(name): Name) -> Answer {
    herder.reset_topics(&name).await?;
    Ok(empty(202))
}

pub(super) async fn offsets(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.offsets(&name).await?))
}

pub(super) async fn alter_offsets(State(herder): State<Herder>, Name(name): Name, body: Body) -> Answer {
    Ok(json(200, &herder.alter_offsets(&name, body.offsets()?).await?))
}

pub(super) async fn reset_offsets(State(herder): State<Herder>, Name(name): Name) -> Answer {
    Ok(json(200, &herder.reset_offsets(&name).await?))
}

fn created(herder: &Herder, info: &Info) -> Response {
    let mut response = json(201, info);
    // A name that cannot stand in a header has been refused before: what is left is percent-encoded here.
    if let Ok(location) = HeaderValue::try_from(location(herder.url(), &info.name)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn location(url: &str, name: &str) -> String {
    let mut location = format!("{}/connectors/", url.trim_end_matches('/'));
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                location.push(char::from(byte))
            }
            other => location.push_str(&format!("%{other:02X}")),
        }
    }
    location
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_leads_back_to_any_name() {
        let table = [
            ("t1", "http://w:8083/connectors/t1"),
            ("a b/c", "http://w:8083/connectors/a%20b%2Fc"),
            ("ä?", "http://w:8083/connectors/%C3%A4%3F"),
        ];

        for (name, expected) in table {
            assert_eq!(location("http://w:8083/", name), expected);
        }
    }
}
