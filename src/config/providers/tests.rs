use std::fs;

use super::*;

fn environment() -> Vec<(String, String)> {
    [("TOKEN", "hunter2"), ("NESTED", "${env:TOKEN}"), ("EMPTY", "")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn configured(pairs: &[(&str, &str)]) -> (Providers, Problems) {
    let mut problems = Problems::default();
    let providers = Providers::configured(&settings(pairs), environment(), &mut problems);
    (providers, problems)
}

fn resolved(providers: &Providers, text: &str) -> Result<String, String> {
    providers.resolve(text).map(|value| value.text.reveal().to_owned()).map_err(|error| error.to_string())
}

#[test]
fn references_resolve_from_environment_properties_files_and_directories() {
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
        ("${env:MISSING}".to_owned(), "MISSING is not set to UTF-8 text"),
        ("${vault:a:b}".to_owned(), "no config provider `vault`"),
        ("${TOKEN}".to_owned(), "not a reference"),
        ("${env:TOKEN".to_owned(), "not a reference"),
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
fn a_file_outside_the_allowed_paths_is_refused_even_through_a_link() {
    let inside = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(inside.path().join("good"), "1").unwrap();
    fs::write(outside.path().join("bad"), "2").unwrap();
    std::os::unix::fs::symlink(outside.path().join("bad"), inside.path().join("link")).unwrap();
    let root = inside.path().to_str().unwrap();
    let (providers, problems) = configured(&[("config.providers.dir.param.allowed.paths", root)]);

    assert!(problems.is_empty(), "{problems}");
    assert_eq!(resolved(&providers, &format!("${{dir:{root}:good}}")).as_deref(), Ok("1"));
    for reference in [format!("${{dir:{root}:link}}"), format!("${{dir:{}:bad}}", outside.path().display())] {
        let error = resolved(&providers, &reference).unwrap_err();
        assert!(error.contains("outside the provider's allowed.paths"), "{error}");
    }
}

#[test]
fn a_variable_outside_the_allowlist_is_refused() {
    let (providers, problems) =
        configured(&[("config.providers.env.param.allowlist.pattern", "TOK|TRIB_.*")]);

    assert!(problems.is_empty(), "{problems}");
    assert!(resolved(&providers, "${env:TOKEN}").unwrap_err().contains("outside the provider's allowlist"));
}

#[test]
fn kafkas_provider_classes_are_taken_under_any_name() {
    let (providers, problems) = configured(&[
        ("config.providers", "environment"),
        (
            "config.providers.environment.class",
            "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        ),
    ]);

    assert!(problems.is_empty(), "{problems}");
    assert_eq!(resolved(&providers, "${environment:TOKEN}").as_deref(), Ok("hunter2"));
}

#[test]
fn only_listed_providers_exist_and_without_a_list_the_standard_ones() {
    let table = [
        (&[][..], true, true),
        (&[("config.providers", "env")], true, false),
        (&[("config.providers", "dir")], false, true),
        (&[("config.providers", "")], false, false),
    ];

    for (pairs, env, dir) in table {
        let (providers, problems) = configured(pairs);
        let exists = |reference: &str| {
            !resolved(&providers, reference).is_err_and(|error| error.contains("no config provider"))
        };

        assert!(problems.is_empty(), "{problems}");
        assert_eq!((exists("${env:TOKEN}"), exists("${dir:/none:a}")), (env, dir), "{pairs:?}");
    }
}

#[test]
fn wrong_provider_settings_are_all_reported() {
    let (_, problems) = configured(&[
        ("config.providers", "env,vault"),
        ("config.providers.other.class", "com.example.VaultConfigProvider"),
        ("config.providers.env.param.allowlist.pattern", "("),
        ("config.providers.file.param.allowed.paths", "relative"),
        ("config.providers.file.param.ttl", "1"),
        ("config.providers.nobody.param.allowed.paths", "/x"),
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
            "config.providers.nobody.param.allowed.paths"
        ]
    );
}

#[test]
fn the_environment_is_not_shown_by_debug() {
    let shown = format!("{:?}", Providers::new(environment()));

    assert!(!shown.contains("hunter2"), "{shown}");
}
