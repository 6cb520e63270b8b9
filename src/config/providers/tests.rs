use std::fs;

use super::*;
use crate::config::samples::properties;

fn environment() -> Vec<(String, String)> {
    [("TOKEN", "hunter2"), ("NESTED", "${env:TOKEN}"), ("EMPTY", "")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// The scopes of the worker and of connectors, and what is wrong with the settings.
fn scopes(pairs: &[(&str, &str)]) -> (Providers, Providers, Problems) {
    let (mut problems, settings) = (Problems::default(), properties(pairs));
    let mut own = Providers::new(environment());
    own.configure(&settings, &mut problems);
    let connectors = own.for_connectors(&settings, None, &mut problems, &mut Vec::new());
    (own, connectors, problems)
}

fn resolved(providers: &Providers, text: &str) -> Result<String, String> {
    providers.resolve(text).map(|resolved| resolved.text.reveal().to_owned())
}

#[test]
fn references_resolve_from_all_standard_providers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    fs::write(directory.path().join("a.properties"), "key=one\nwith\\:colon=two\n").unwrap();
    fs::write(directory.path().join("token"), "three\n\n").unwrap();
    let providers = Providers::new(environment());
    let table = [
        ("plain".to_owned(), "plain"),
        ("${env:TOKEN}".to_owned(), "hunter2"),
        ("a${env:TOKEN}b${env:TOKEN}".to_owned(), "ahunter2bhunter2"),
        // No recursion: what a reference yields is taken as it is.
        ("${env:NESTED}".to_owned(), "${env:TOKEN}"),
        ("$ {env:TOKEN} }".to_owned(), "$ {env:TOKEN} }"),
        (format!("${{file:{path}/a.properties:key}}"), "one"),
        (format!("${{file:{path}/a.properties:with:colon}}"), "two"),
        // One newline is the editor's, the second is the value's.
        (format!("${{dir:{path}:token}}"), "three\n"),
    ];

    for (text, expected) in table {
        assert_eq!(resolved(&providers, &text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn a_reference_that_does_not_resolve_is_an_error_that_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    fs::write(directory.path().join("a.properties"), "key=one").unwrap();
    fs::write(directory.path().join("broken"), "key=\\u12").unwrap();
    fs::write(directory.path().join("latin1"), b"caf\xe9").unwrap();
    fs::write(directory.path().join("large"), vec![b'x'; FILE_LIMIT as usize + 1]).unwrap();
    let providers = Providers::new(environment());
    let table = [
        ("${env:MISSING}".to_owned(), "MISSING is not set"),
        ("${vault:a:b}".to_owned(), "no config provider `vault`"),
        ("${TOKEN}".to_owned(), "does not begin a reference"),
        ("${env:TOKEN".to_owned(), "does not begin a reference"),
        ("${file:key}".to_owned(), "needs a path"),
        (format!("${{file:{path}/none:key}}"), "cannot read"),
        (format!("${{file:{path}/a.properties:none}}"), "has no key `none`"),
        (format!("${{file:{path}/broken:key}}"), "not a properties file"),
        (format!("${{file:{path}:key}}"), "cannot read"),
        (format!("${{dir:{path}:latin1}}"), "not UTF-8"),
        (format!("${{dir:{path}:large}}"), "larger than"),
        (format!("${{dir:{path}:../etc/passwd}}"), "not the name of a file"),
        (format!("${{dir:{path}:..}}"), "not the name of a file"),
    ];

    for (text, expected) in table {
        let error = resolved(&providers, &text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn pipes_and_devices_are_refused_without_blocking() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let root = directory.path().display();
    let (own, _, _) = scopes(&[]);
    let (_, connectors, _) =
        scopes(&[("config.providers", "dir"), ("config.providers.dir.param.allowed.paths", "/")]);

    for providers in [own, connectors] {
        for reference in
            ["${dir:/dev:ptmx}".to_owned(), "${dir:/dev:zero}".to_owned(), format!("${{dir:{root}:pipe}}")]
        {
            let error = resolved(&providers, &reference).unwrap_err();
            assert!(error.contains("cannot read"), "{reference}: {error}");
        }
    }
}

#[test]
fn connectors_get_no_provider_without_an_allow_list() {
    let table = [
        (&[][..], false),
        (&[("config.providers", "env,file,dir")], false),
        (&[("config.providers", "env"), ("config.providers.env.param.allowlist.pattern", "")], false),
        (&[("config.providers", "env"), ("config.providers.env.param.allowlist.pattern", "TOK.*")], true),
    ];

    for (pairs, open) in table {
        let (own, connectors, problems) = scopes(pairs);

        assert!(problems.is_empty(), "{problems}");
        assert_eq!(resolved(&own, "${env:TOKEN}").as_deref(), Ok("hunter2"), "the worker's own file");
        assert_eq!(resolved(&connectors, "${env:TOKEN}").is_ok(), open, "{pairs:?}");
        for reference in ["${file:/etc/hostname:a}", "${dir:/etc:hostname}"] {
            let error = resolved(&connectors, reference).unwrap_err();
            assert!(error.contains("is closed to connectors") && error.contains("allowed.paths"), "{error}");
        }
    }
}

#[test]
fn a_path_outside_the_allowed_ones_is_refused_unseen() {
    let inside = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(inside.path().join("good"), "1").unwrap();
    fs::write(outside.path().join("bad"), "2").unwrap();
    std::os::unix::fs::symlink(outside.path().join("bad"), inside.path().join("link")).unwrap();
    let root = inside.path().to_str().unwrap();
    let (_, providers, problems) =
        scopes(&[("config.providers", "dir"), ("config.providers.dir.param.allowed.paths", root)]);

    assert!(problems.is_empty(), "{problems}");
    assert_eq!(resolved(&providers, &format!("${{dir:{root}:good}}")).as_deref(), Ok("1"));
    let outside = outside.path().display();
    for reference in [
        format!("${{dir:{root}:link}}"),
        format!("${{dir:{outside}:bad}}"),
        format!("${{dir:{outside}:not-there}}"),
        "${dir:/not/there:either}".to_owned(),
        // It would resolve, and reveal that the outer directory exists.
        format!("${{dir:{outside}/..{root}:good}}"),
    ] {
        let error = resolved(&providers, &reference).unwrap_err();
        assert!(error.contains("outside the provider's allowed.paths"), "{error}");
    }
}

#[test]
fn a_variable_outside_the_allowlist_is_refused() {
    let (_, providers, problems) = scopes(&[
        ("config.providers", "env"),
        ("config.providers.env.param.allowlist.pattern", "TOK|TRIB_.*"),
    ]);

    assert!(problems.is_empty(), "{problems}");
    assert!(resolved(&providers, "${env:TOKEN}").unwrap_err().contains("outside the provider's allowlist"));
}

#[test]
fn the_workers_own_secrets_are_closed_to_connectors() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    for (name, text) in
        [("grant-key", "1"), ("tls.key", "2"), ("shared.properties", "grant=3\nhooks=4"), ("hooks", "5")]
    {
        fs::write(directory.path().join(name), text).unwrap();
    }
    fs::create_dir(directory.path().join("state")).unwrap();
    fs::write(directory.path().join("state/grants.json"), "6").unwrap();
    fs::hard_link(directory.path().join("tls.key"), directory.path().join("alias")).unwrap();
    std::os::unix::fs::symlink("grant-key", directory.path().join("link")).unwrap();
    let (grant_key, password) =
        (format!("${{dir:{root}:grant-key}}"), format!("${{file:{root}/shared.properties:grant}}"));
    let (tls, state) = (format!("{root}/tls.key"), format!("{root}/state"));
    let (own, providers, problems) = scopes(&[
        ("config.providers", "env,file,dir"),
        ("config.providers.env.param.allowlist.pattern", ".*"),
        ("config.providers.file.param.allowed.paths", "/"),
        ("config.providers.dir.param.allowed.paths", "/"),
        ("grant.encryption.key", &grant_key),
        ("admin.auth.password", &password),
        ("sasl.password", "${env:TOKEN}"),
        ("webhook.ssl.key.location", &tls),
        ("state.dir", &state),
    ]);
    assert!(problems.is_empty(), "{problems}");

    for open in [format!("${{file:{root}/shared.properties:hooks}}"), format!("${{dir:{root}:hooks}}")] {
        assert!(resolved(&providers, &open).is_ok(), "{open}");
    }
    for reference in [
        "${env:TOKEN}".to_owned(),
        "${env:CONNECT_ADMIN_AUTH_PASSWORD}".to_owned(),
        "${env:TRIBUTARY_PASSWORD}".to_owned(),
        "${dir:/proc/self:environ}".to_owned(),
        password.clone(),
        grant_key.clone(),
        format!("${{dir:{root}:link}}"),
        format!("${{dir:{root}:alias}}"),
        format!("${{dir:{root}:tls.key}}"),
        format!("${{file:{root}/tls.key:2}}"),
        format!("${{dir:{root}:shared.properties}}"),
        format!("${{dir:{root}/state:grants.json}}"),
    ] {
        assert_eq!(resolved(&providers, &reference).unwrap_err(), WORKER_SECRET, "{reference}");
    }
    assert_eq!(resolved(&own, &grant_key).as_deref(), Ok("1"));
}

#[test]
fn only_the_form_of_an_unresolved_reference_is_checked() {
    let (_, providers, _) = scopes(&[
        ("config.providers", "env,dir"),
        ("config.providers.env.param.allowlist.pattern", ".*"),
        ("config.providers.dir.param.allowed.paths", "/"),
    ]);
    let providers = providers.unresolved();

    for reference in ["${env:TOKEN}", "${env:MISSING}", "${dir:/etc:hostname}", "${dir:/not/there:a}"] {
        assert_eq!(resolved(&providers, reference).as_deref(), Ok(""), "{reference}");
    }
    assert!(resolved(&providers, "${dir:a}").is_err());
}

#[test]
fn kafkas_provider_classes_are_taken_under_any_name() {
    let (own, connectors, problems) = scopes(&[
        ("config.providers", "environment"),
        (
            "config.providers.environment.class",
            "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        ),
        ("config.providers.environment.param.allowlist.pattern", "TOKEN"),
    ]);

    assert!(problems.is_empty(), "{problems}");
    for providers in [own, connectors] {
        assert_eq!(resolved(&providers, "${environment:TOKEN}").as_deref(), Ok("hunter2"));
    }
}

#[test]
fn wrong_provider_settings_are_all_reported() {
    let (_, _, problems) = scopes(&[
        ("config.providers", "env,file,vault"),
        ("config.providers.other.class", "com.example.VaultConfigProvider"),
        ("config.providers.env.param.allowlist.pattern", "("),
        ("config.providers.file.param.allowed.paths", "relative"),
        ("config.providers.file.param.ttl", "1"),
        ("config.providers.unlisted.param.allowed.paths", "/x"),
    ]);

    let keys: Vec<_> = problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "config.providers.vault.class",
            "config.providers.other.class",
            "config.providers.env.param.allowlist.pattern",
            "config.providers.file.param.allowed.paths",
            "config.providers.file.param.ttl",
            "config.providers.unlisted.param.allowed.paths"
        ]
    );
}

#[test]
fn the_environment_is_not_shown_by_debug() {
    let shown = format!("{:?}", Providers::new(environment()));

    assert!(!shown.contains("hunter2"), "{shown}");
}
