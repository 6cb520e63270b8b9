//! A login that ends within a week shows in the log, in a metric and in `auth status`.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::scene::GrantScene;
use crate::support::{Result, Shared};

crate::tests! {
    real a_login_ending_within_a_week_shows_in_log_metric_and_status within 180;
}

const LIMIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);
const DAY: f64 = 86_400.0;

async fn a_login_ending_within_a_week_shows_in_log_metric_and_status(shared: &'static Shared) -> Result<()> {
    let scene = GrantScene::start(shared, "grants-warning", 1, &[], |_| {}).await?;
    let lifetime = |days| [("oauth.login.lifetime.days", days)];
    let (long, short) = (lifetime("8"), lifetime("6"));
    tokio::try_join!(scene.connect("long", &long), scene.connect("short", &short))?;

    let numbers = scene.log_in_all(&["long", "short"]).await?;
    let warning = "the login ends soon, and only a person can renew it";
    let lines = until_said(&scene, warning).await?;

    assert_eq!(numbers.len(), 2);
    let (code, table) = scene.auth(&["status"]).await;
    assert_eq!(code, Some(1), "{table}");
    let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(table.contains("log in again") && !line("long").contains("log in again"), "{table}");
    let ends = [until_measured(&scene, "long").await?, until_measured(&scene, "short").await?];
    let now = f64::from(u32::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap());
    for ((name, days), end) in [("long", 8.0), ("short", 6.0)].into_iter().zip(ends) {
        let left = (end - now) / DAY;
        // The provider's time is in whole seconds.
        assert!((days - 0.01..=days + 0.001).contains(&left), "{name} ends in {left} days");
    }
    // Once a day: the worker has checked it more than once by now.
    assert_eq!(lines.len(), 1, "{lines:?}");
    let is_near = ["days=5", "days=6"].iter().any(|days| lines[0].contains(days));
    assert!(lines[0].contains("short") && is_near, "{lines:?}");
    assert!(lines[0].contains("tributary auth login accounting --connector short"), "{lines:?}");
    let said = scene.stage.workers[0].said();
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    Ok(())
}

/// Waits until the worker has logged this; the lines with it.
async fn until_said(scene: &GrantScene, what: &str) -> Result<Vec<String>> {
    let end = Instant::now() + LIMIT;
    loop {
        let said = scene.stage.workers[0].said();
        let lines: Vec<String> = said.lines().filter(|line| line.contains(what)).map(str::to_owned).collect();
        if !lines.is_empty() {
            return Ok(lines);
        }
        if Instant::now() > end {
            return Err(scene.stage.workers[0].error(&format!("it does not say that {what}")));
        }
        sleep(STEP).await;
    }
}

/// Waits until the metrics show when a login ends, in seconds since 1970.
async fn until_measured(scene: &GrantScene, name: &str) -> Result<f64> {
    let end = Instant::now() + LIMIT;
    let wanted = [format!("grant=\"{name}\""), "token=\"login\"".to_owned()];
    loop {
        let expiries = scene.stage.metric(0, "tributary_token_expiry_timestamp_seconds").await?;
        let login = expiries.iter().find(|(labels, _)| wanted.iter().all(|label| labels.contains(label)));
        if let Some((_, ends_at)) = login {
            return Ok(*ends_at);
        }
        if Instant::now() > end {
            return Err(scene.stage.workers[0].error(&format!("no end of {name} in {expiries:?}")));
        }
        sleep(STEP).await;
    }
}
