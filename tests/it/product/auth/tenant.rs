//! The tenant that a person chooses at the provider: bound to the grant, shown, and changed on request only.

use super::*;
use crate::support::login::enter;

crate::tests! {
    real another_tenant_is_refused_without_replace within 180;
    real login_without_a_tenant_is_unknown_and_can_be_bound within 180;
    real a_tenant_outlives_a_logout within 120;
}

/// Ways to bring the code back, as options of the command.
const WAYS: [&[&str]; 2] = [&[], &["--paste"]];

impl Scene {
    /// From now on the person chooses this tenant; empty for tokens without one.
    fn choose(&self, tenant: &str) {
        self.simulator.provider().turn(|knobs| knobs.identity.tenant = Some(tenant.to_owned()));
    }

    /// Logs in with these options. Returns the exit code and everything that command and browser show.
    async fn attempt(&self, options: &[&str]) -> Result<(Option<i32>, String)> {
        let login = self.login(options);
        let mut address = login.address().await?;
        let page = if options.contains(&"--paste") {
            address.query_pairs_mut().append_pair("auto", "1");
            let (_, page) = self.get(&address).await;
            let code = page.split_once("<code>").unwrap().1.split_once("</code>").unwrap().0;
            login.process.write_line(code)?;
            String::new()
        } else {
            self.get(&enter(&self.http, &address).await).await.1
        };
        let code = login.code().await?;
        assert_eq!(self.leaks(&login), Vec::<String>::new());
        Ok((code, login.said() + &page))
    }

    /// The grant in `auth status --json`, and its line in the table.
    async fn shown(&self) -> (Value, String) {
        let (_, grants) = self.grants().await;
        let [grant] = &grants[..] else { panic!("{grants:?}") };
        let table = stdout(&self.auth(&["status"]).await);
        let head = table.lines().next().unwrap_or_default();
        assert!(head.contains("  TENANT  "), "{table}");
        let line = table.lines().find(|line| line.starts_with("accounting ")).unwrap();
        (grant.clone(), line.to_owned())
    }
}

async fn another_tenant_is_refused_without_replace(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-tenant", |_| {}).await;
    let (code, said) = scene.attempt(&[]).await?;
    assert!(code == Some(0) && said.contains("(tenant: tenant-1)"), "{said}");
    let (before, line) = scene.shown().await;
    assert!(before["tenant"] == "tenant-1" && line.contains("  tenant-1  "), "{before} {line}");

    scene.choose("tenant-2");
    for way in WAYS {
        let (code, said) = scene.attempt(way).await?;

        assert_eq!(code, Some(1), "{way:?}: {said}");
        let refusal = "the grant accounting is unchanged: the new token is for the tenant tenant-2, but the grant is bound to \
                       the tenant tenant-1";
        assert!(said.contains(refusal) && said.contains("--replace"), "{way:?}: {said}");
        assert!(!said.contains("logged in as") && !said.contains("Logged in"), "{way:?}: {said}");
        let (after, _) = scene.shown().await;
        assert_eq!((&after["tenant"], &after["written"]), (&before["tenant"], &before["written"]), "{way:?}");
    }

    let (code, said) = scene.attempt(&["--replace"]).await?;
    assert!(code == Some(0) && said.contains("(tenant: tenant-2)"), "{said}");
    let (after, line) = scene.shown().await;
    assert!(after["tenant"] == "tenant-2" && line.contains("  tenant-2  "), "{after} {line}");
    Ok(())
}

async fn login_without_a_tenant_is_unknown_and_can_be_bound(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-tenant-none", |_| {}).await;
    scene.choose("");
    let (code, said) = scene.attempt(&[]).await?;
    assert!(code == Some(0) && said.contains("(tenant: unknown)"), "{said}");
    let (grant, line) = scene.shown().await;
    assert!(grant["tenant"].is_null() && line.contains("  unknown  "), "{grant} {line}");

    scene.choose("tenant-2");
    let (code, said) = scene.attempt(&[]).await?;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(scene.shown().await.0["tenant"], "tenant-2");

    scene.choose("");
    let (code, said) = scene.attempt(&[]).await?;
    assert!(code == Some(1) && said.contains("names no tenant") && said.contains("--replace"), "{said}");
    assert_eq!(scene.shown().await.0["tenant"], "tenant-2");
    let (code, said) = scene.attempt(&["--replace"]).await?;
    assert_eq!(code, Some(0), "{said}");
    assert!(scene.shown().await.0["tenant"].is_null());
    Ok(())
}

async fn a_tenant_outlives_a_logout(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-tenant-logout", |_| {}).await;
    let (code, said) = scene.attempt(&[]).await?;
    assert_eq!(code, Some(0), "{said}");
    let output = scene.auth(&["logout", "accounting"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));

    scene.choose("tenant-2");
    let (code, said) = scene.attempt(&[]).await?;

    assert!(code == Some(1) && said.contains("tenant-1") && said.contains("--replace"), "{said}");
    let (grant, line) = scene.shown().await;
    assert!(grant["state"] == "logged out" && grant["tenant"] == "tenant-1", "{grant} {line}");
    Ok(())
}
