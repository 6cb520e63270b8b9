//! Rules for names and other short texts.

use std::path::Path;

use url::Url;

use model::{CompanyId, TenantId};

use super::{
    address::http_url,
    cron::Schedule,
    key::{Rule, Violation},
};

/// Longest topic prefix: with the longest name we append it still fits into Kafka's 249 characters.
const MAX_PREFIX_BYTES: usize = 180;

pub(crate) const PLAIN: Rule = Rule::custom("text without control characters, at most 255 bytes", |text| {
    sound(text.len() <= 255 && !text.chars().any(char::is_control), "it contains one, or is longer")
});

pub(crate) const HOST: Rule =
    Rule::custom("a host name or address", |text| only_letters_digits_or(text, ".-_:"));

pub(crate) const HOST_OR_ANY: Rule = Rule::custom("host names, without port, or *", |text| match text {
    "*" => Ok(()),
    name => only_letters_digits_or(name, ".-_"),
})
.remedy("write for example connect.example.com");

pub(crate) const TOPIC: Rule =
    Rule::custom("a topic name: letters, digits, dots, dashes and underscores, at most 249", |text| {
        topic(text, 249)
    });

pub(crate) const TOPIC_PREFIX: Rule = Rule::custom(
    "a prefix of topic names: letters, digits, dots, dashes and underscores, at most 180, no dot at either \
     end",
    |text| {
        topic(text, MAX_PREFIX_BYTES)?;
        sound(!text.starts_with('.') && !text.ends_with('.'), "it begins or ends with a dot")
    },
)
.remedy("write for example acme");

pub(crate) const PROVIDER: Rule =
    Rule::custom("the name of a config provider: letters, digits, dashes and underscores", |text| {
        only_letters_digits_or(text, "-_")
    });

pub(crate) const USER_INFO: Rule = Rule::custom("name:password", |text| {
    sound(text.split_once(':').is_some_and(|(name, _)| !name.is_empty()), "it has no name or no colon")
})
.remedy("put the name, a colon and the password into one secret");

pub(crate) const ADVERTISED_URL: Rule =
    Rule::custom("an https:// address on port 443, because the provider delivers nowhere else", |text| {
        advertised_url(text).map(drop)
    })
    .remedy("write for example https://hooks.example.com");

pub(crate) const STATE_DIR: Rule =
    Rule::custom("the path of a directory, or of one that can be created", directory)
        .remedy("name a directory; it is created at start");

pub(crate) const CONNECTORS_DIR: Rule =
    Rule::custom("the path of a directory", directory).remedy("create the directory, or correct the path");

pub(crate) const LOG_FILTER: Rule =
    Rule::custom("a log filter such as info or info,tributary::kafka=debug", |text| {
        tracing_subscriber::EnvFilter::try_new(text).map(drop).map_err(|_| "it cannot be parsed".into())
    });

pub(crate) const SEGMENT: Rule =
    Rule::custom("one path segment: letters, digits, dashes and underscores", |text| {
        only_letters_digits_or(text, "-_")
    });

/// A grant's name becomes part of file names, followed by an id and an extension.
pub(crate) const GRANT: Rule = Rule::custom("at most 128 letters, digits, dashes and underscores", |text| {
    only_letters_digits_or(text, "-_")?;
    sound(text.len() <= 128, "it is longer")
});

pub(crate) const HEADER: Rule =
    Rule::custom("the name of an HTTP header", |text| only_letters_digits_or(text, "!#$%&'*+-.^_`|~"));

pub(crate) const VERSION: Rule = Rule::custom("letters, digits, dots and dashes, or nothing", |text| {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    sound(text.len() <= 64 && text.chars().all(letter), "it has other characters, or is longer than 64")
});

pub(crate) const TENANT: Rule = Rule::custom(
    "tenant=company, the TenantId of the invoicing API and the company's correlation id",
    |text| tenant(text).map(drop),
)
.remedy("write for example 1234=acc:17:CM:9f2c");

pub(crate) const CRON: Rule = Rule::custom(
    "a cron expression of five fields in UTC: minute, hour, day of month, month, day of week",
    |text| Schedule::parse(text).map(drop),
)
.remedy("write for example 30 3 * * 0 for Sundays at 03:30");

pub(crate) const REDIRECT: Rule =
    Rule::custom("an https:// address, or http://localhost for tests", |text| {
        let url = Url::parse(text).map_err(|_| "it is not an address")?;
        let local = url.scheme() == "http" && url.host_str() == Some("localhost");
        sound(local || url.scheme() == "https" || url.scheme() == "urn", "it is neither")
    })
    .remedy("write exactly the address that is registered for the OAuth client");

pub(crate) const ORIGIN: Rule =
    Rule::custom("an origin such as https://tools.example.com:8443, or *", |text| {
        let whole = text == "*" || http_url(text).is_ok_and(|url| url.origin().ascii_serialization() == text);
        sound(whole, "it is neither")
    })
    .remedy("write scheme, host and port as the browser sends them, without a path");

pub(crate) const PROXY: Rule = Rule::custom("the http:// or https:// address of a proxy", |text| {
    let url = http_url(text)?;
    sound(url.path() == "/", "it has a path")
})
.remedy("write for example http://proxy:3128");

pub(crate) fn advertised_url(text: &str) -> Result<Url, Violation> {
    let url = http_url(text)?;
    sound(url.scheme() == "https", "it is not https")?;
    sound(url.port_or_known_default() == Some(443), "it has another port")?;
    sound(url.username().is_empty() && url.password().is_none(), "it holds credentials")?;
    Ok(url)
}

pub(crate) fn tenant(text: &str) -> Result<(TenantId, CompanyId), Violation> {
    let (tenant, company) = text.split_once('=').unwrap_or_default();
    let pair = TenantId::new(tenant.trim()).ok().zip(CompanyId::new(company.trim()).ok());
    pair.ok_or("one of them is missing".into())
}

/// A directory, or a path that does not exist yet: a missing mount does not stop a worker, which warns and checks again.
fn directory(text: &str) -> Result<(), Violation> {
    sound(!Path::new(text).exists() || Path::new(text).is_dir(), "it is not a directory")
}

fn topic(text: &str, limit: usize) -> Result<(), Violation> {
    let good =
        text.len() <= limit && text != "." && text != ".." && only_letters_digits_or(text, ".-_").is_ok();
    sound(good, "it is not")
}

/// At least one character, all of them ASCII letters, digits or `others`.
fn only_letters_digits_or(text: &str, others: &str) -> Result<(), Violation> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    sound(!text.is_empty() && text.chars().all(is_letter), "it has other characters")
}

fn sound(condition: bool, otherwise: &'static str) -> Result<(), Violation> {
    if condition { Ok(()) } else { Err(otherwise.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::key::{ConfigKey, Type};

    #[test]
    fn longest_topic_prefix_makes_topics() {
        assert!(model::TopicPrefix::new("a".repeat(MAX_PREFIX_BYTES)).is_ok());
    }

    #[test]
    fn each_rule_accepts_only_valid_texts() {
        let table: &[(Rule, &[&str], &[&str])] = &[
            (TOPIC, &["a", "acme.dead-letters", "A_1"], &["", ".", "..", "a b", "ä", "a/b"]),
            (TOPIC_PREFIX, &["acme", "acme.prod"], &["acme.", ".acme", "a b"]),
            (HEADER, &["ms-signature"], &["", "ms signature", "a:b"]),
            (VERSION, &["2.0", ""], &["2 0", "2\n"]),
            (SEGMENT, &["Invoicing"], &["", "a/b", "a b", ".."]),
            (TENANT, &["1=acc:17:CM:9f2c", " 1 = a "], &["1", "=a", "1="]),
            (USER_INFO, &["a:b", "a:"], &["a", ":b"]),
            (CRON, &["30 3 * * 0"], &["", "60 * * * *"]),
            (
                ADVERTISED_URL,
                &["https://hooks.example.com", "https://h:443/base"],
                &["http://hooks.example.com", "https://h:8443", "https://user:pw@h", "https://h/?a=b", "h"],
            ),
            (
                REDIRECT,
                &["https://a/b", "http://localhost:7777/cb"],
                &["http://127.0.0.1:7777/cb", "http://a/b"],
            ),
            (
                ORIGIN,
                &["*", "https://tools.example.com", "http://localhost:3000"],
                &[
                    "tools.example.com",
                    "https://tools.example.com/",
                    "https://tools.example.com:443",
                    "*.example.com",
                ],
            ),
            (PROXY, &["http://proxy:3128"], &["socks5://proxy", "http://proxy/path"]),
            (LOG_FILTER, &["info", "info,tributary::kafka=debug"], &["info,=,=", "a=loud"]),
        ];

        for (rule, good, bad) in table {
            let key = ConfigKey::new(Type::String, "key").rule(*rule);
            for text in *good {
                assert!(key.check(text).is_ok(), "{text:?} should be {}", key.valid_values());
            }
            for text in *bad {
                assert!(key.check(text).is_err(), "{text:?} should not be {}", key.valid_values());
            }
        }
    }
}
