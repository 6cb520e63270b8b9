//! The paths of the API, and the herder's operation for each.

use std::collections::BTreeMap;

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderValue, header},
    middleware::from_fn,
    response::Response,
    routing::{MethodRouter, delete, get, post, put},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use base::metrics;
use model::DesiredRunState;

use super::{
    answer::{Answer, Refusal, done, json, result},
    not_allowed,
    request::{Body, NamePath, Query, RunPath, TaskPath, acceptable},
    security::{Role, record_route},
};
use crate::{
    config::connector::TargetState,
    connect::herder::{CertificateQuery, Herder, Info, RunRequest},
    plugin::Depth,
};

/// The paths of the API.
pub fn router(herder: Herder) -> Router {
    let routes: [(&str, MethodRouter<Herder>); 34] = [
        ("/", get(async |State(herder): State<Herder>| json(200, &herder.server()))),
        ("/connectors", get(list).post(create)),
        (
            "/connectors/{name}",
            get(async |NamePath(herder, name)| result(200, herder.info(&name).await))
                .delete(async |NamePath(herder, name)| done(204, herder.delete(&name).await)),
        ),
        (
            "/connectors/{name}/config",
            get(async |NamePath(herder, name)| result(200, herder.config(&name).await))
                .put(put_config)
                .patch(patch_config),
        ),
        (
            "/connectors/{name}/status",
            get(async |NamePath(herder, name)| result(200, herder.status(&name).await)),
        ),
        (
            "/connectors/{name}/tasks",
            get(async |NamePath(herder, name)| result(200, herder.tasks(&name).await)),
        ),
        ("/connectors/{name}/tasks-config", get(task_configs)),
        (
            "/connectors/{name}/tasks/{task}/status",
            get(async |TaskPath(herder, name, task)| result(200, herder.task_status(&name, task).await)),
        ),
        (
            "/connectors/{name}/tasks/{task}/restart",
            post(async |TaskPath(herder, name, task)| done(204, herder.restart_task(&name, task).await)),
        ),
        ("/connectors/{name}/restart", post(restart)),
        (
            "/connectors/{name}/pause",
            put(async |path: NamePath| set_target(path, TargetState::Paused, 202).await),
        ),
        (
            "/connectors/{name}/resume",
            put(async |path: NamePath| set_target(path, TargetState::Running, 202).await),
        ),
        (
            "/connectors/{name}/stop",
            put(async |path: NamePath| set_target(path, TargetState::Stopped, 204).await),
        ),
        (
            "/connectors/{name}/topics",
            get(async |NamePath(herder, name)| result(200, herder.topics(&name).await)),
        ),
        (
            "/connectors/{name}/topics/reset",
            put(async |NamePath(herder, name)| done(202, herder.reset_topics(&name).await)),
        ),
        (
            "/connectors/{name}/offsets",
            get(async |NamePath(herder, name)| result(200, herder.offsets(&name).await))
                .patch(alter_offsets)
                .merge(delete(async |NamePath(herder, name)| result(200, herder.reset_offsets(&name).await))),
        ),
        (
            "/connectors/{name}/subscriptions",
            get(async |NamePath(herder, name), query: Query| {
                result(200, herder.subscriptions(&name, query.flag("all", false)).await)
            }),
        ),
        (
            "/connectors/{name}/subscriptions/plan",
            get(async |NamePath(herder, name), query: Query| {
                result(200, herder.subscription_plan(&name, query.flag("removed", false)).await)
            }),
        ),
        // 202: the connector's task does it later; the list of subscriptions shows the outcome.
        (
            "/connectors/{name}/subscriptions/apply",
            post(async |NamePath(herder, name)| {
                result(202, herder.request_subscription_change(&name, false).await)
            }),
        ),
        (
            "/connectors/{name}/subscriptions/remove",
            post(async |NamePath(herder, name)| {
                result(202, herder.request_subscription_change(&name, true).await)
            }),
        ),
        (
            "/connectors/{name}/gaps",
            get(async |NamePath(herder, name), query: Query| {
                result(200, herder.gaps(&name, query.flag("all", false)).await)
            }),
        ),
        ("/connectors/{name}/gaps/accept", post(accept_gap)),
        (
            "/connectors/{name}/snapshots",
            get(async |NamePath(herder, name)| result(200, herder.runs(&name).await)).post(start_run),
        ),
        (
            "/connectors/{name}/snapshots/{run}",
            get(async |RunPath(herder, name, run)| result(200, herder.run(&name, &run).await)),
        ),
        (
            "/connectors/{name}/snapshots/{run}/pause",
            put(async |path: RunPath| command_run(path, DesiredRunState::Paused).await),
        ),
        (
            "/connectors/{name}/snapshots/{run}/resume",
            put(async |path: RunPath| command_run(path, DesiredRunState::Running).await),
        ),
        (
            "/connectors/{name}/snapshots/{run}/stop",
            put(async |path: RunPath| command_run(path, DesiredRunState::Stopped).await),
        ),
        ("/connectors/{name}/certificates", get(certificates)),
        (
            "/connector-plugins",
            get(async |State(herder): State<Herder>, query: Query| {
                json(200, &herder.plugins(query.flag("connectorsOnly", true)))
            }),
        ),
        (
            "/connector-plugins/{plugin}/config",
            get(async |NamePath(herder, plugin)| result(200, herder.plugin_config(&plugin))),
        ),
        ("/connector-plugins/{plugin}/config/validate", put(validate)),
        (
            "/admin/declarations",
            get(async |State(herder): State<Herder>| result(200, herder.declarations().await)),
        ),
        ("/admin/loggers", get(async |State(herder): State<Herder>| json(200, &herder.loggers()))),
        (
            "/admin/loggers/{logger}",
            get(async |NamePath(herder, logger)| result(200, herder.logger(&logger))).put(set_logger),
        ),
    ];
    let mut router = Router::new();
    for (path, methods) in routes {
        debug_assert!(metrics::knows_route(path), "{path} is not counted");
        if path != "/" {
            router = router.route(&format!("{path}/"), methods.clone());
        }
        router = router.route(path, methods);
    }
    router
        .route_layer(from_fn(acceptable))
        .route_layer(from_fn(record_route))
        .method_not_allowed_fallback(not_allowed)
        .fallback(async || Refusal::no_path())
        .with_state(herder)
}

async fn list(State(herder): State<Herder>, query: Query) -> Answer {
    let Some(expand) = query.all("expand") else { return result(200, herder.names().await) };
    let wants = |what: &str| expand.iter().any(|value| value.eq_ignore_ascii_case(what));
    result(200, herder.expanded(wants("info"), wants("status")).await)
}

async fn create(State(herder): State<Herder>, body: Body) -> Answer {
    let (name, config, initial) = body.creation()?;
    Ok(created(&herder, &herder.create(&name, config, initial).await?))
}

async fn put_config(NamePath(herder, name): NamePath, body: Body) -> Answer {
    let (info, is_new) = herder.put_config(&name, body.config()?).await?;
    Ok(if is_new { created(&herder, &info) } else { json(200, &info) })
}

async fn patch_config(NamePath(herder, name): NamePath, body: Body) -> Answer {
    result(200, herder.patch_config(&name, body.patch()?).await)
}

/// Kafka Connect removed this path in 4.0; older tools still use it.
async fn task_configs(NamePath(herder, name): NamePath) -> Answer {
    let tasks = herder.tasks(&name).await?.into_iter();
    let configs: BTreeMap<String, _> =
        tasks.map(|task| (format!("{}-{}", task.id.connector, task.id.task), task.config)).collect();
    Ok(json(200, &configs))
}

async fn restart(NamePath(herder, name): NamePath, query: Query) -> Answer {
    let (tasks, only_failed) = (query.flag("includeTasks", false), query.flag("onlyFailed", false));
    let restarted = herder.restart(&name, tasks, only_failed).await;
    if tasks || only_failed { result(202, restarted) } else { done(204, restarted.map(drop)) }
}

async fn set_target(NamePath(herder, name): NamePath, target: TargetState, status: u16) -> Answer {
    done(status, herder.set_target(&name, target).await)
}

async fn alter_offsets(NamePath(herder, name): NamePath, body: Body) -> Answer {
    result(200, herder.alter_offsets(&name, body.offsets()?).await)
}

async fn accept_gap(NamePath(herder, name): NamePath, body: Body) -> Answer {
    result(200, herder.accept_gap(&name, &body.gap()?).await)
}

/// 202: the connector's tasks read later and report their progress.
async fn start_run(NamePath(herder, name): NamePath, body: Option<Body>) -> Answer {
    let request = body.map_or_else(|| Ok(RunRequest::default()), Body::run)?;
    result(202, herder.start_run(&name, request).await)
}

async fn command_run(RunPath(herder, name, run): RunPath, wanted: DesiredRunState) -> Answer {
    result(202, herder.command_run(&name, &run, wanted).await)
}

async fn certificates(NamePath(herder, name): NamePath, query: Query) -> Answer {
    let wanted = CertificateQuery {
        run: query.one("run"),
        list: query.one("list"),
        company: query.one("company"),
        uncertified: query.flag("uncertified", false),
        limit: query.one("limit"),
    };
    result(200, herder.certificates(&name, wanted).await)
}

async fn validate(
    Extension(role): Extension<Role>,
    NamePath(herder, plugin): NamePath,
    body: Body,
) -> Answer {
    let depth = if role == Role::Administrator { Depth::Full } else { Depth::Form };
    result(200, herder.validate(&plugin, body.config()?, depth).await)
}

/// A scope other than `cluster` means this worker, as in Kafka Connect.
async fn set_logger(NamePath(herder, logger): NamePath, query: Query, body: Body) -> Answer {
    let level = body.level()?;
    let scope = query.all("scope").and_then(|values| values.first().copied()).unwrap_or("worker");
    if scope.eq_ignore_ascii_case("cluster") {
        return done(204, herder.set_cluster_logger(&logger, &level).await);
    }
    result(200, herder.set_logger(&logger, &level))
}

fn created(herder: &Herder, info: &Info) -> Response {
    let mut response = json(201, info);
    // Names with control characters are refused at creation; everything else is percent-encoded here.
    if let Ok(location) = HeaderValue::try_from(location(herder.url(), &info.name)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn location(url: &str, name: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    format!("{}/connectors/{}", url.trim_end_matches('/'), utf8_percent_encode(name, ENCODED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_header_percent_encodes_the_name() {
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
