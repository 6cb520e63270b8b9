//! The same login in a real browser, with its cookies, redirects and handling of `localhost`.

use super::*;
use crate::support::browser::Browser;

crate::tests! {
    real a_browser_login_shows_its_result within 180 given "TRIBUTARY_TEST_BROWSER";
    real a_rejected_browser_login_shows_the_reason within 180 given "TRIBUTARY_TEST_BROWSER";
}

async fn a_browser_login_shows_its_result(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-browser", |_| {}).await;
    let browser = Browser::start("auth-browser").await?;
    let login = scene.login(&[]);

    browser.open(login.address().await?.as_str()).await?;
    browser.press("button").await?;
    let page = browser.text_of("Logged in - Tributary").await?;

    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    let (code, grants) = scene.grants().await;
    assert_eq!((code, &grants[0]["state"]), (Some(0), &json!("ready")), "{grants:?}");
    assert!(page.contains(grants[0]["who"].as_str().unwrap()), "{page}");
    assert_eq!(scene.leaks(&login), Vec::<String>::new());
    Ok(())
}

async fn a_rejected_browser_login_shows_the_reason(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-browser-refused", |settings| {
        settings.knobs.identity.refuse_login = Some("no licence for <this> product".to_owned());
    })
    .await;
    let browser = Browser::start("auth-browser-refused").await?;
    let login = scene.login(&[]);

    browser.open(login.address().await?.as_str()).await?;
    browser.press("button").await?;
    let page = browser.text_of("Not logged in - Tributary").await?;

    assert!(page.contains("no licence for <this> product"), "{page}");
    assert_eq!(login.code().await?, Some(1), "{}", login.said());
    assert_eq!(scene.grants().await, (Some(0), Vec::new()));
    Ok(())
}
