//! Self-tests: breaches that each rule must find, and code that it must allow.

use super::{NOT_OURS, assert_none, check, check_manifest, cycles, unshared};

pub(super) async fn upward_import_is_found_however_it_is_written() {
    for (path, text) in [
        ("src/config/name.rs", "use crate::avro::Schemas;"),
        ("src/config/name.rs", "use crate::{\n    config::Key,\n    avro::{Schemas, Error},\n};"),
        ("src/config/name.rs", "use super::super::avro;"),
        ("src/config/name.rs", "use super::{Key, super::avro::Schemas};"),
        ("src/cycles.rs", "use super::avro;"),
        ("src/cycles.rs", "fn wait() { let error = crate :: avro :: Error; }"),
        ("src/cycles.rs", "#[cfg(test)]\nmod tests {\n    use super::super::avro;\n}"),
        ("src/avro/mod.rs", "pub(crate) use crate::publish::Publisher;"),
        ("src/avro/mod.rs", "use crate::r#publish;"),
        ("src/avro/mod.rs", "fn all() { for name in crate::publish::names() {} }"),
        ("src/config/mod.rs", "type Text<'a> = &'a str; use crate::avro;"),
    ] {
        let faults = check(path, text);
        let count = faults.iter().filter(|fault| fault.contains("imports go down only")).count();
        assert_eq!(count, 1, "{path}: {text}: {faults:?}");
    }
}

pub(super) async fn sideways_import_is_found_unless_it_is_its_own_module() {
    for (path, text) in [
        ("src/webhooks/receiver.rs", "use crate::records::Fetch;"),
        ("src/spool/mod.rs", "use crate::avro::Ids;"),
        ("src/connect/rest/mod.rs", "use crate::webhooks::receiver;"),
        ("src/cli/mod.rs", "use crate::*;"),
        ("src/cli/mod.rs", "use crate::{config, *};"),
    ] {
        assert_eq!(check(path, text).len(), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("src/spool/mod.rs", "use crate::{config, spool::Entry, spool::queue, store::Database,};"),
        ("src/spool/mod.rs", "use kafka::Client;"),
        ("src/cycles.rs", "mod tests {\n    use super::*;\n}"),
        ("src/store/image.rs", "use super::Error;"),
        ("src/main.rs", "use tributary::cli;"),
        ("crates/kafka/src/lib.rs", "pub use crate::client::Client;"),
    ] {
        assert_none(check(path, text));
    }
}

pub(super) async fn text_and_comments_are_no_import() {
    assert_none(check(
        "src/config/name.rs",
        r##"
        //! See [`crate::worker`].
        /* use crate::worker; /* nested */ use crate::worker; */
        const ONE: &str = "use crate::worker; \" crate::worker";
        const TWO: &str = r#"crate::worker " rdkafka::Message"#;
        const THREE: (char, char, u8) = ('"', '\'', b'"');
        pub(in crate::config) fn four<'a>() {}
        "##,
    ));
}

pub(super) async fn crate_outside_its_home_is_found() {
    for (path, text) in [
        ("src/publish/publisher.rs", "use rdkafka::Message;"),
        ("src/spool/writer.rs", "use fjall::Database;"),
        ("src/worker/mod.rs", "fn send(client: &reqwest::Client) {}"),
        ("src/worker/mod.rs", "use simulator::Provider;"),
        ("crates/provider/src/lib.rs", "use rdkafka_sys as sys;"),
        ("crates/kafka/src/producer.rs", "use reqwest::Client;"),
        ("crates/kafka/src/producer.rs", "metrics::counter!(\"a\").increment(1);"),
        ("crates/base/src/retry.rs", "use metrics::{Unit, gauge};"),
    ] {
        assert_eq!(check(path, text).len(), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("src/cli/demo/start.rs", "use reqwest::Client; use simulator::Provider;"),
        ("crates/kafka/src/producer.rs", "use rdkafka::Message;"),
        ("crates/kafka/src/oauth.rs", "use reqwest::Client;"),
        ("crates/kafka/src/oauth/mod.rs", "use reqwest::Client;"),
        ("crates/base/src/metrics/mod.rs", "use metrics::{Unit, counter, gauge};"),
        ("crates/kafka/src/producer.rs", "fn sent() { metrics::record_published(); let counter = 1; }"),
    ] {
        assert_none(check(path, text));
    }
}

pub(super) async fn module_or_crate_without_a_place_is_found() {
    assert_eq!(check("src/utils/mod.rs", "fn one() {}").len(), 1);
    assert_eq!(check("src/worker/mod.rs", "use crate::utils::one;").len(), 1);
    assert_eq!(check_manifest("utils", "[package]").len(), 1);
    assert_none(check_manifest(NOT_OURS, "[package]"));
}

pub(super) async fn super_super_out_of_a_room_is_found() {
    for (path, text) in [
        ("src/connect/herder/x/y.rs", "use super::super::super::records::Reader;"),
        ("src/connect/herder/edit.rs", "use super::super::records;"),
        ("src/connect/herder/edit.rs", "use super::{Herder, super::records};"),
        ("src/connect/health.rs", "mod tests {\n    use super::super::records;\n}"),
        ("crates/kafka/src/group/poll.rs", "use super::super::served;"),
    ] {
        assert_eq!(check(path, text).len(), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("src/connect/herder/x/y.rs", "use super::super::edit;"),
        ("src/connect/herder/edit.rs", "mod tests {\n    use super::super::Herder;\n}"),
        ("src/connect/herder/edit.rs", "use super::Herder; pub(in super::super) struct Edit;"),
        ("src/connect/herder/mod.rs", "use super::records;"),
        ("crates/kafka/src/group/poll/wait.rs", "use super::super::lease;"),
    ] {
        assert_none(check(path, text));
    }
}

pub(super) async fn forbidden_dependency_in_a_manifest_is_found() {
    for (name, manifest) in [
        ("model", "[dependencies]\nbase.workspace = true"),
        ("kafka", "[dependencies]\nprovider = { path = \"../provider\" }"),
        ("kafka", "[dependencies]\nhttp = { package = \"tributary-server\", path = \"../server\" }"),
        ("simulator", "[dependencies.model]\nworkspace = true"),
        ("simulator", "[target.'cfg(unix)'.dependencies]\ntributary-base = \"1\""),
        ("provider", "[dependencies]\ntributary = { path = \"../..\" }"),
    ] {
        assert_eq!(check_manifest(name, manifest).len(), 1, "{name}: {manifest}");
    }
    for (name, manifest) in [
        ("kafka", "[dependencies]\nbase.workspace = true\nmodel.workspace = true\nurl = \"2\""),
        ("kafka", "[dev-dependencies]\nsimulator.workspace = true\n[dev-dependencies.server]"),
        ("kafka", "[dependencies]\n# server\n[features]\nserver = []"),
    ] {
        assert_none(check_manifest(name, manifest));
    }
}

pub(super) async fn what_a_crate_does_not_share_is_found() {
    const TESTED: &str = "default-members = [\".\", \"crates/kafka\"]";
    const LINTS: &str = "[lints]\nworkspace = true";
    for (name, manifest) in [
        ("kafka", "[dependencies]\nurl.workspace = true".to_owned()),
        ("kafka", format!("[dev-dependencies]\nurl = \"2\"\n\n{LINTS}")),
        ("server", LINTS.to_owned()),
    ] {
        assert_eq!(unshared(name, &manifest, TESTED).len(), 1, "{name}: {manifest}");
    }
    let shared = format!("[dependencies]\nurl = {{ workspace = true, optional = true }} # why\n\n{LINTS}");
    assert_none(unshared("kafka", &shared, TESTED));
}

pub(super) async fn cycle_is_found_at_each_level() {
    let root = tree(&[
        ("src/spool/mod.rs", "use crate::store::Fjall;"),
        ("src/store/mod.rs", "fn one() {}\nfn two() { crate::spool::open(); }"),
    ]);
    let inner = tree(&[
        ("src/connect/herder/mod.rs", "use super::{rest::{Answer}, state};"),
        ("src/connect/state/mod.rs", "use crate::connect::rest;"),
        ("src/connect/rest/mod.rs", ""),
        ("src/connect/rest/call.rs", "use super::super::herder;"),
    ]);
    let krate = tree(&[
        ("crates/kafka/src/group/mod.rs", "use crate::served;"),
        ("crates/kafka/src/served.rs", "fn one() { super::group::two(); }"),
    ]);
    let behind_the_parent = tree(&[
        ("crates/kafka/src/lib.rs", "mod group;\nmod served;\npub use served::Served as Serving;"),
        ("crates/kafka/src/group/mod.rs", "use crate::Serving;"),
        ("crates/kafka/src/served.rs", "fn one() { super::group::two(); }"),
    ]);
    let inner_of_provider = tree(&[
        ("crates/provider/src/auth/keys.rs", "use super::token;"),
        ("crates/provider/src/auth/token.rs", "use crate::auth::keys;"),
    ]);

    for (files, cycle) in [
        (
            root,
            "tributary: modules form a cycle: spool -> store (src/spool/mod.rs:1) -> spool (src/store/mod.rs:2)",
        ),
        (
            inner,
            "tributary: modules form a cycle: connect::herder -> connect::rest (src/connect/herder/mod.rs:1) \
             -> connect::herder (src/connect/rest/call.rs:1)",
        ),
        (
            krate,
            "kafka: modules form a cycle: group -> served (crates/kafka/src/group/mod.rs:1) \
             -> group (crates/kafka/src/served.rs:1)",
        ),
        (
            behind_the_parent,
            "kafka: modules form a cycle: group -> served (crates/kafka/src/group/mod.rs:1) \
             -> group (crates/kafka/src/served.rs:1)",
        ),
        (
            inner_of_provider,
            "provider: modules form a cycle: auth::keys -> auth::token (crates/provider/src/auth/keys.rs:1) \
             -> auth::keys (crates/provider/src/auth/token.rs:1)",
        ),
    ] {
        assert_eq!(cycles::check(&files, &[]), [cycle]);
    }
    let parent_and_child = tree(&[
        ("src/connect/mod.rs", "pub use self::state::State;"),
        ("src/connect/state/mod.rs", "use super::Worker;"),
    ]);
    assert_none(cycles::check(&parent_and_child, &[]));
}

pub(super) async fn cycle_through_unit_tests_does_not_count() {
    for path in ["tests.rs", "tests/order.rs", "stub.rs", "samples.rs"] {
        let path = format!("src/connect/state/{path}");
        let files = tree(&[
            ("src/connect/herder/mod.rs", "use super::state;"),
            ("src/connect/state/mod.rs", "#[cfg(test)]\nmod tests {\n    use crate::connect::herder;\n}"),
            (&path, "use crate::connect::herder;"),
        ]);
        assert_none(cycles::check(&files, &[]));
    }
}

pub(super) async fn known_cycle_may_only_shrink() {
    let files = tree(&[
        ("crates/kafka/src/group.rs", "use crate::served;"),
        ("crates/kafka/src/served.rs", "use crate::{group, client};"),
        ("crates/kafka/src/client.rs", "use crate::served;"),
        ("crates/kafka/src/error.rs", ""),
    ]);

    assert_none(cycles::check(&files, &[("kafka", &["client", "group", "served"])]));
    let grown = cycles::check(&files, &[("kafka", &["group", "served"])]);
    assert!(matches!(grown.as_slice(), [fault] if fault.contains("cycle: client -> served (")), "{grown:?}");
    let stale = cycles::check(&files, &[("kafka", &["client", "error", "group", "served"])]);
    assert!(matches!(stale.as_slice(), [fault] if fault.contains("error is no longer")), "{stale:?}");
    let of_another_crate = cycles::check(&files, &[("model", &["client", "group", "served"])]);
    assert_eq!(of_another_crate.len(), 4, "{of_another_crate:?}");
}

fn tree(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}
