//! A worker with scripted answers, for tests of commands that call one.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tokio::net::TcpListener;

/// The requests that a worker got, and its answers: for each path in order, the last one repeatedly.
#[derive(Clone, Default)]
pub(crate) struct Script {
    asked: Arc<Mutex<Vec<(String, String)>>>,
    answers: Arc<Mutex<Vec<(String, u16, Value)>>>,
}

impl Script {
    /// With these answers: a method and the beginning of a path, a status, a body.
    pub(crate) fn answering(answers: &[(&str, u16, Value)]) -> Self {
        let answers =
            answers.iter().map(|(asked, status, body)| ((*asked).to_owned(), *status, body.clone()));
        Self { answers: Arc::new(Mutex::new(answers.collect())), ..Self::default() }
    }

    /// Starts to serve; the address.
    pub(crate) async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }

    /// Every request, with its body.
    pub(crate) fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(State(script): State<Script>, method: Method, uri: Uri, body: Bytes) -> Response {
    let asked = format!("{method} {uri}");
    script.asked.lock().unwrap().push((asked.clone(), String::from_utf8_lossy(&body).into_owned()));
    let mut answers = script.answers.lock().unwrap();
    let mut fitting = answers.iter().enumerate().filter(|(_, (path, ..))| asked.starts_with(path.as_str()));
    let Some((at, (_, status, body))) = fitting.next() else { return StatusCode::NOT_FOUND.into_response() };
    let (is_last, status, body) = (fitting.next().is_none(), *status, body.to_string());
    if !is_last {
        answers.remove(at);
    }
    let json = [("content-type", "application/json")];
    (StatusCode::from_u16(status).unwrap(), json, body).into_response()
}
