//! A real browser without a window, driven over WebDriver: what a person at a login page does.
//!
//! Debian's `chromium-driver` brings both; `tests/peers/browser` installs it and names the driver in
//! `TRIBUTARY_TEST_BROWSER`. WebDriver is JSON over HTTP, so an HTTP client is all it takes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::process::Process;
use super::{Error, Result, run_directory};

/// A browser's first start on a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a page may take.
const PAGE_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at a page.
const STEP: Duration = Duration::from_millis(50);
/// The member under which WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// One browser with one tab, ended when dropped.
pub(crate) struct Browser {
    http: reqwest::Client,
    session: String,
    driver: Process,
}

impl Browser {
    /// A new browser with nothing in it.
    pub(crate) async fn start(name: &str) -> Result<Self> {
        let directory = run_directory::create(name)?;
        let mut command =
            Command::new(std::env::var_os("TRIBUTARY_TEST_BROWSER").unwrap_or_else(|| "chromedriver".into()));
        command.arg("--port=0");
        let driver = Process::spawn("chromedriver", command, &directory.join("chromedriver.log"))?;
        let mut port = None;
        driver
            .ready(START_LIMIT, async || {
                port = port_of(&driver.said());
                port.is_some()
            })
            .await?;
        let http = reqwest::Client::builder().no_proxy().timeout(START_LIMIT).build().map_err(failed)?;
        let base = format!("http://127.0.0.1:{}", port.unwrap_or_default());
        let mut browser = Self { http, session: base, driver };
        let answer = browser.post("/session", &capabilities(&directory)).await?;
        let id = answer["sessionId"].as_str().ok_or_else(|| Error(format!("no session: {answer}")))?;
        browser.session = format!("{}/session/{id}", browser.session);
        Ok(browser)
    }

    /// Goes to an address and waits for its page.
    pub(crate) async fn open(&self, address: &str) -> Result<()> {
        self.post("/url", &json!({ "url": address })).await.map(drop)
    }

    /// Presses what a selector finds first.
    pub(crate) async fn press(&self, selector: &str) -> Result<()> {
        let found = self.post("/element", &json!({ "using": "css selector", "value": selector })).await?;
        let element =
            found[ELEMENT].as_str().ok_or_else(|| Error(format!("no element: {found}")))?.to_owned();
        self.post(&format!("/element/{element}/click"), &json!({})).await.map(drop)
    }

    /// Waits for a page with this title; what a person reads on it.
    pub(crate) async fn text_of(&self, title: &str) -> Result<String> {
        let end = Instant::now() + PAGE_LIMIT;
        loop {
            let is = self.get("/title").await?;
            if is == json!(title) {
                let script = json!({ "script": "return document.body.innerText", "args": [] });
                let text = self.post("/execute/sync", &script).await?;
                return Ok(text.as_str().unwrap_or_default().to_owned());
            }
            if Instant::now() > end {
                return Err(Error(format!("no page {title:?}; the last one was {is}")));
            }
            tokio::time::sleep(STEP).await;
        }
    }

    async fn get(&self, path: &str) -> Result<Value> {
        self.value(self.http.get(format!("{}{path}", self.session))).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.value(self.http.post(format!("{}{path}", self.session)).json(body)).await
    }

    async fn value(&self, request: reqwest::RequestBuilder) -> Result<Value> {
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let mut body: Value = answer.json().await.map_err(failed)?;
        if status.is_success() {
            return Ok(body["value"].take());
        }
        Err(self.driver.error(&format!("the browser refuses: {}", body["value"]["message"])))
    }
}

impl Drop for Browser {
    /// The driver ends with the test; the browser is the driver's child and would outlive it.
    fn drop(&mut self) {
        let Ok(address) = url::Url::parse(&self.session) else { return };
        let Some(place) = address.socket_addrs(|| None).ok().and_then(|found| found.first().copied()) else {
            return;
        };
        let Ok(mut driver) = TcpStream::connect(place) else { return };
        driver.set_read_timeout(Some(PAGE_LIMIT)).ok();
        let request =
            format!("DELETE {} HTTP/1.1\r\nhost: {place}\r\nconnection: close\r\n\r\n", address.path());
        if driver.write_all(request.as_bytes()).is_ok() {
            // It answers when the browser has ended.
            driver.read_to_end(&mut Vec::new()).ok();
        }
    }
}

fn port_of(said: &str) -> Option<u16> {
    let (_, rest) = said.split_once("started successfully on port ")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// No window, an empty profile, and no sandbox, which root may not have.
fn capabilities(directory: &Path) -> Value {
    let profile = format!("--user-data-dir={}", directory.join("profile").display());
    let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile];
    json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": arguments } } } })
}

fn failed(error: reqwest::Error) -> Error {
    Error(format!("drive the browser: {error}"))
}
