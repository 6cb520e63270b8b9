//! Output and effect of `auth status` and `auth logout`.

use super::*;

crate::tests! {
    real a_login_that_ends_within_a_week_exits_with_1;
    real a_logout_drops_the_tokens_and_a_login_restores_the_grant;
    real an_unknown_grant_cannot_be_logged_out;
    real only_force_removes_an_unreadable_grant;
    real without_the_key_status_shows_the_fingerprint_and_exits_1;
}

async fn logged_in(scene: &Scene) -> Result<()> {
    let login = scene.login(&[]);
    let callback = scene.enter(&login.address().await?).await;
    scene.get(&callback).await;
    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    Ok(())
}

async fn a_login_that_ends_within_a_week_exits_with_1(shared: &'static Shared) -> Result<()> {
    let day = 86_400 * simulator::clock::SECOND;
    let scene = Scene::new(shared, "auth-week", |settings| settings.frozen_at = None).await;
    // Five and a half days before the end, so that a second more or less does not change the day.
    scene.simulator.provider().clock.skew(-24 * day - day / 2);
    logged_in(&scene).await?;

    let (code, grants) = scene.grants().await;

    let told = (code, grants[0]["daysLeft"].as_i64(), &grants[0]["needsAPerson"]);
    assert_eq!(told, (Some(1), Some(5), &json!(true)), "{grants:?}");
    let table = stdout(&scene.auth(&["status"]).await);
    assert!(table.contains("log in again") && table.contains("SVC.ES.Webhooks"), "{table}");
    assert_eq!(scene.secrets().found_in("the table", table.as_bytes()), Vec::<String>::new());
    Ok(())
}

async fn a_logout_drops_the_tokens_and_a_login_restores_the_grant(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-logout", |_| {}).await;
    logged_in(&scene).await?;

    let output = scene.auth(&["logout", "accounting"]).await;
    let (_, after) = scene.grants().await;
    logged_in(&scene).await?;
    let (code, again) = scene.grants().await;

    assert_eq!(output.status.code(), Some(0), "{}", crate::support::command::stderr(&output));
    assert!(stdout(&output).contains("up to an hour"), "{}", stdout(&output));
    assert_eq!(
        (&after[0]["state"], &after[0]["accessTokenEnds"]),
        (&json!("logged out"), &Value::Null),
        "{after:?}"
    );
    assert_eq!((code, &again[0]["state"]), (Some(0), &json!("ready")), "{again:?}");
    Ok(())
}

async fn without_the_key_status_shows_the_fingerprint_and_exits_1(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-status-key", |_| {}).await;
    logged_in(&scene).await?;
    let (_, known) = scene.grants().await;
    let properties = fs::read_to_string(&scene.config).unwrap();

    let line = format!("grant.encryption.key={ENCRYPTION_KEY}\n");
    for (key, remedy) in [
        ("", "grant.encryption.key is not set here: set it to the key that the workers use"),
        (
            &format!("grant.encryption.key={}\n", "k".repeat(40)),
            "here: set it to the key that the workers use",
        ),
    ] {
        fs::write(&scene.config, properties.replace(&line, key)).unwrap();
        let (code, grants) = scene.grants().await;
        let table = stdout(&scene.auth(&["status"]).await);

        let [grant] = &grants[..] else { panic!("{grants:?}") };
        assert_eq!((code, &grant["state"]), (Some(1), &json!("unreadable")), "{grant}");
        for member in ["grant", "key", "written"] {
            assert_eq!(grant[member], known[0][member], "{grant}");
            assert!(table.contains(grant[member].as_str().unwrap()), "{table}");
        }
        assert!(grant["who"].is_null() && table.contains(remedy), "{table}");
    }
    Ok(())
}

async fn an_unknown_grant_cannot_be_logged_out(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-logout-none", |_| {}).await;

    let without_a_topic = scene.auth(&["logout", "accounting"]).await;
    logged_in(&scene).await?;
    let another = scene.auth(&["logout", "payroll"]).await;

    for output in [without_a_topic, another] {
        let said = crate::support::command::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("auth status"), "{said}");
    }
    Ok(())
}

async fn only_force_removes_an_unreadable_grant(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-force", |_| {}).await;
    logged_in(&scene).await?;
    let other = fs::read_to_string(&scene.config).unwrap().replace(ENCRYPTION_KEY, &"k".repeat(40));
    fs::write(&scene.config, other).unwrap();

    let refused = scene.auth(&["logout", "accounting"]).await;
    let (_, after) = scene.grants().await;
    let removed = scene.auth(&["logout", "accounting", "--force"]).await;

    assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
    assert_eq!(after[0]["state"], "unreadable", "{after:?}");
    assert_eq!(removed.status.code(), Some(0), "{}", crate::support::command::stderr(&removed));
    assert!(stdout(&removed).contains("removed"), "{}", stdout(&removed));
    assert_eq!(scene.grants().await, (Some(0), Vec::new()));
    Ok(())
}
