use super::*;
use crate::config::{key::Rule, samples::properties};

const COUNT: ConfigKey = ConfigKey::new(Type::Int, "count").or("7").rule(Rule::Range(1, 9));
const SECRET: ConfigKey = ConfigKey::new(Type::Password, "secret").rule(Rule::Size(8, 64));
const WORDS: ConfigKey = ConfigKey::new(Type::List, "words").or("a,b").rule(Rule::OneOf(&["a", "b"]));
const ADDRESS: ConfigKey = ConfigKey::new(Type::String, "address").rule(Rule::OneOf(&["x"]));
const NAME: ConfigKey = ConfigKey::new(Type::String, "name").required();

fn providers() -> Providers {
    let variables = [
        ("PASSWORD", "hunter2-hunter2"),
        ("SHORT", "hunter2"),
        ("EMPTY", ""),
        ("PADDED", " hunter2-hunter2\n"),
    ];
    Providers::new(variables.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

#[test]
fn an_empty_value_is_unset_but_an_empty_list_is_a_list() {
    let (values, providers) = (properties(&[("count", " "), ("words", "")]), providers());
    let mut reader = SettingsReader::new(&values, &providers);

    assert_eq!(reader.value::<i32>(&COUNT), 7);
    assert!(reader.list(&WORDS).is_empty());
    assert!(reader.finish(()).is_ok());
}

#[test]
fn all_problems_are_kept_and_none_shows_a_secret() {
    let values = properties(&[
        ("count", "${env:SHORT}"),
        ("secret", "${env:SHORT}"),
        ("words", "a,c"),
        ("address", "http://user:hunter2@host"),
    ]);
    let providers = providers();
    let mut reader = SettingsReader::new(&values, &providers);

    reader.value::<i32>(&COUNT);
    reader.secret(&SECRET);
    reader.list(&WORDS);
    reader.text(&ADDRESS);
    reader.text(&NAME);
    let problems = reader.finish(()).unwrap_err();

    insta::assert_snapshot!(problems, @r"
    count: must not hold a reference: references are for keys of type password; write the value itself; a secret belongs into a key of type password
    secret: must be 8 to 64 bytes long; make a new one, for example with `openssl rand -hex 32`
    words: must be one of a, b, item 2; write a or b
    address: must be one of x; write x
    name: is required; set it
    ");
}

#[test]
fn a_resolved_value_is_trimmed_like_a_literal_one() {
    let (values, providers) = (properties(&[("secret", "${env:PADDED}")]), providers());
    let mut reader = SettingsReader::new(&values, &providers);

    assert_eq!(reader.secret(&SECRET).unwrap().reveal(), "hunter2-hunter2");
}

#[test]
fn a_secret_that_resolves_to_nothing_is_refused() {
    for value in ["${env:EMPTY}", ""] {
        let (values, providers) = (properties(&[("secret", value)]), providers());
        let mut reader = SettingsReader::new(&values, &providers);

        assert!(reader.secret(&SECRET).is_none());

        assert!(reader.finish(()).unwrap_err().to_string().contains("is empty"), "{value:?}");
    }
}

#[test]
fn a_literal_secret_warns_or_is_refused_as_the_policy_says() {
    let values = properties(&[("secret", "hunter2-hunter2")]);
    let mut strict = providers();
    strict.policy = SecretsPolicy::References;
    let lenient = providers();

    let mut reader = SettingsReader::new(&values, &lenient);
    reader.secret(&SECRET);
    let ((), warnings) = reader.finish(()).unwrap();
    let mut reader = SettingsReader::new(&values, &strict);
    reader.secret(&SECRET);
    let problems = reader.finish(()).unwrap_err();

    assert_eq!(warnings.len(), 1);
    assert!(!warnings[0].to_string().contains("hunter2"));
    assert!(
        problems.to_string().starts_with("secret: must not contain a secret as plain text"),
        "{problems}"
    );
}

#[test]
fn literal_secret_like_a_reference_is_not_shown() {
    let (values, providers) = (properties(&[("secret", "hunter2${pass:word}")]), providers());
    let mut reader = SettingsReader::new(&values, &providers);

    reader.secret(&SECRET);

    let message = reader.finish(()).unwrap_err().to_string();
    assert!(
        !message.contains("hunter2") && !message.contains("pass:") && !message.contains("`pass`"),
        "{message}"
    );
}

#[test]
fn unresolved_secret_has_a_valid_placeholder() {
    let values = properties(&[("secret", "${env:SHORT}")]);
    let providers = providers().unresolved();
    let mut reader = SettingsReader::new(&values, &providers);

    let secret = reader.secret(&SECRET).unwrap();

    assert!(!secret.reveal().contains("hunter2"));
    assert!(reader.finish(()).is_ok());
}
