use super::*;
use crate::plugin::{
    Depth,
    samples::{object, properties},
};

fn plugin() -> TestSource {
    TestSource { providers: Providers::new([]), group: "group".to_owned() }
}

fn with(pairs: &[(&str, &str)]) -> Properties {
    let mut config = properties(&[("name", "t"), ("connector.class", "TestSource"), ("topic", "numbers")]);
    config.extend(properties(pairs));
    config
}

#[test]
fn valid_configuration_gives_as_many_tasks_as_allowed() {
    let config = with(&[("tasks.max", "3"), ("messages", "100"), ("secret", "hunter2")]);

    let answer = plugin().validate(&config, Depth::Full);

    assert_eq!(answer.error_count, 0, "{answer:?}");
    assert_eq!(plugin().task_configs("t", &config).unwrap(), vec![config.clone(); 3]);
    assert_eq!(
        plugin().transactional_ids("t", &config, &Past::default()),
        ["group-t-0", "group-t-1", "group-t-2"]
    );
}

#[test]
fn tasks_of_a_connector_are_limited() {
    let config = with(&[("tasks.max", "10000")]);

    assert_eq!(plugin().task_configs("t", &config).unwrap().len(), MOST_TASKS as usize);
}

#[test]
fn transactional_ids_include_tasks_of_an_earlier_larger_set() {
    let config = with(&[("tasks.max", "1")]);
    let counted = |task: u64| Past { tasks: 0, partitions: vec![object(&[("task", task.into())])] };

    assert_eq!(plugin().transactional_ids("t", &config, &Past { tasks: 3, ..Past::default() }).len(), 3);
    assert_eq!(plugin().transactional_ids("t", &config, &counted(7)).last().unwrap(), "group-t-7");
    assert_eq!(plugin().transactional_ids("t", &config, &counted(u64::MAX)).len(), 1, "never a task of ours");
    assert_eq!(
        plugin().transactional_ids("t", &config, &counted(u64::from(u32::MAX) - 1)).len(),
        MOST_TASKS as usize
    );
}

#[test]
fn secret_is_hidden_in_answers() {
    let answer = plugin().validate(&with(&[("secret", "hunter2"), ("tasks.max", "zero")]), Depth::Full);

    let secret = answer.configs.iter().find(|entry| entry.definition.name == "secret").unwrap();
    assert_eq!(secret.value.value.as_deref(), Some(base::secret::HIDDEN));
    assert!(!serde_json::to_string(&answer).unwrap().contains("hunter2"));
}

#[test]
fn invalid_values_are_refused_with_their_key() {
    for (key, value) in [
        ("topic", "no spaces"),
        ("messages", "0"),
        ("fail.kind", "sometimes"),
        ("panic.after", "-1"),
        ("tasks.max", "0"),
        ("secret", "${env:NOT_SET}"),
        ("mesages", "5"),
        ("connector.class", "RecordSource"),
        ("name", "another"),
    ] {
        let failure = plugin().task_configs("t", &with(&[(key, value)])).unwrap_err();

        assert!(failure.message.contains(key), "{key}: {failure}");
        assert_eq!(failure.retry, Retry::Never);
    }
}

#[test]
fn failure_settings_are_parsed() {
    let read = |pairs: &[(&str, &str)]| keys::read("t", &with(pairs), &Providers::new([])).unwrap();

    assert_eq!(read(&[]).failure, None);
    assert_eq!(read(&[("fail.after", "5")]).failure, Some((5, Retry::Never)));
    assert_eq!(read(&[("fail.after", "0"), ("fail.kind", "passing")]).failure, Some((0, Retry::Later)));
    assert_eq!(read(&[("panic.after", "7")]).panic_after, Some(7));
}

#[test]
fn offsets_of_another_form_are_refused() {
    let (task, count) = (object(&[("task", 0.into())]), object(&[("count", 5.into())]));

    assert!(plugin().check_offsets(&[(task.clone(), Some(count.clone())), (task.clone(), None)]).is_ok());
    for (partition, offset) in [(count.clone(), count), (task.clone(), task.clone())] {
        assert!(plugin().check_offsets(&[(partition, Some(offset))]).is_err());
    }
}
