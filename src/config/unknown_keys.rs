//! Keys that no declaration covers. A misspelled key is refused, because otherwise the setting would silently have no effect.

use super::{key::ConfigKey, reader::SettingsReader};

/// The keys that one kind of configuration accepts, ignores or refuses.
pub(crate) struct KnownKeys {
    /// What is being configured, as it follows "is not a key of".
    pub(crate) subject: &'static str,
    /// Keys declared for it.
    pub(crate) declared: &'static [&'static [ConfigKey]],
    /// Keys declared for other configurations, with the name of that configuration.
    pub(crate) declared_elsewhere: &'static [(&'static [ConfigKey], &'static str)],
    /// Kafka Connect features that are refused, with the reason and remedy. A name with a trailing dot matches everything below it.
    pub(crate) unsupported: &'static [(&'static str, &'static str, &'static str)],
    /// Kafka Connect keys and removed keys of ours that are accepted without effect, with the reason.
    pub(crate) ignored: &'static [(&'static str, &'static str)],
    /// Undeclared keys that other code reads and checks.
    pub(crate) is_read_elsewhere: fn(&str) -> bool,
}

/// Prefixes under which every key is ours, so that an unknown one can only be a mistake.
const OWN_PREFIXES: &str = "accounting. admin.auth. application. body. budget. clock. connectors. enrich. epoch. gap. grant. intake. \
    invoicing. listeners. log. oauth. page. payroll. provider. secrets. shutdown. snapshot. source. spool. \
    state. stream. subscriptions. topic.creation. tombstones. webhook. work.";

/// Largest edit distance between a misspelled key and the suggested one: letters inserted, left out, changed or swapped.
const SUGGESTION_DISTANCE: usize = 2;

/// Reports every key that this configuration does not have. Values are not shown: a misspelled secret is still a secret.
pub(crate) fn check(reader: &mut SettingsReader<'_>, keys: &KnownKeys) {
    let declared = || keys.declared.iter().copied().flatten().map(|key| key.name);
    for name in reader.values().keys() {
        if declared().any(|declared| declared == name) {
            continue;
        }
        let matching = |pattern: &str| matches_pattern(pattern, name);
        if let Some((_, reason, remedy)) = keys.unsupported.iter().find(|(pattern, ..)| matching(pattern)) {
            reader.problems.add(name, *reason, *remedy);
            continue;
        }
        if let Some((_, reason)) = keys.ignored.iter().find(|(pattern, _)| matching(pattern)) {
            reader.warn(name, format!("has no effect here: {reason}"));
            continue;
        }
        let mut elsewhere = keys.declared_elsewhere.iter();
        let remedy =
            if let Some((_, place)) = elsewhere.find(|(keys, _)| keys.iter().any(|key| key.name == name)) {
                format!("move it to {place}")
            } else if let Some(near) = closest_key(declared(), name) {
                format!("did you mean {near}?")
            } else if (keys.is_read_elsewhere)(name) {
                continue;
            } else if OWN_PREFIXES.split(' ').any(|prefix| name.starts_with(prefix)) {
                "remove it; `tributary config reference` lists every key".to_owned()
            } else {
                reader.warn(name, format!("is not a key of {} and has no effect", keys.subject));
                continue;
            };
        reader.problems.add(name, format!("is not a key of {}", keys.subject), remedy);
    }
}

/// Whether a pattern matches this name: the name itself, or with a trailing dot everything below it.
pub(crate) fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('.') {
        Some(stem) => name == stem || name.starts_with(pattern),
        None => name == pattern,
    }
}

/// As [`matches_pattern`], for patterns separated by blanks.
pub(crate) fn matches_any(patterns: &str, name: &str) -> bool {
    patterns.split(' ').any(|pattern| matches_pattern(pattern, name))
}

fn closest_key<'a>(known: impl Iterator<Item = &'a str>, name: &str) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(candidate, name), candidate))
        .filter(|(distance, _)| *distance <= SUGGESTION_DISTANCE)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The known word that an unknown one probably misspells. A third of its letters may be wrong, since these words are few and
/// differ widely; case is ignored.
pub(crate) fn closest_word<'a>(known: impl Iterator<Item = &'a str>, word: &str) -> Option<&'a str> {
    let word = word.to_lowercase();
    let near = |candidate: &'a str| {
        let limit = SUGGESTION_DISTANCE.max(candidate.chars().count() / 3);
        let distance = strsim::damerau_levenshtein(&candidate.to_lowercase(), &word);
        (distance <= limit).then_some((distance, candidate))
    };
    known.filter_map(near).min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{Providers, key::Type};

    const KNOWN: &[ConfigKey] = &[ConfigKey::new(Type::String, "invoicing.secret")];
    const OTHER: &[ConfigKey] = &[ConfigKey::new(Type::String, "page.size")];
    const KEYS: KnownKeys = KnownKeys {
        subject: "WebhookSource",
        declared: &[KNOWN],
        declared_elsewhere: &[(OTHER, "a RecordSource")],
        unsupported: &[("transforms.", "is not supported", "remove it")],
        ignored: &[("plugin.path", "there are no plugins to load")],
        is_read_elsewhere: |name| name.starts_with("producer."),
    };

    #[test]
    fn only_similar_words_are_suggested() {
        let words = ["customers", "accounts", "Created", "SaleInvoice"];
        let table = [
            ("costumer", Some("customers")),
            ("CUSTOMERS", Some("customers")),
            ("acounts", Some("accounts")),
            ("create", Some("Created")),
            ("sales-invoice", Some("SaleInvoice")),
            ("journal", None),
            ("", None),
        ];
        for (word, expected) in table {
            assert_eq!(closest_word(words.into_iter(), word), expected, "{word}");
        }
    }

    #[test]
    fn each_unknown_key_gets_the_right_message() {
        let table = [
            ("invoicing.secret", ""),
            ("producer.linger.ms", ""),
            ("topics", "warning: topics: is not a key of WebhookSource and has no effect"),
            ("plugin.path", "warning: plugin.path: has no effect here: there are no plugins to load"),
            ("transforms", "transforms: is not supported; remove it"),
            ("transforms.a.type", "transforms.a.type: is not supported; remove it"),
            ("transformsx", "warning: transformsx: is not a key of WebhookSource and has no effect"),
            ("page.size", "page.size: is not a key of WebhookSource; move it to a RecordSource"),
            (
                "invoicing.secert",
                "invoicing.secert: is not a key of WebhookSource; did you mean invoicing.secret?",
            ),
            (
                "invoicing.colour",
                "invoicing.colour: is not a key of WebhookSource; \
                 remove it; `tributary config reference` lists every key",
            ),
        ];

        for (name, expected) in table {
            let values = BTreeMap::from([(name.to_owned(), "hunter2".to_owned())]);
            let providers = Providers::new([]);
            let mut reader = SettingsReader::new(&values, &providers);
            check(&mut reader, &KEYS);

            let message = match reader.finish(()) {
                Ok(((), warnings)) => warnings.iter().map(|warning| format!("warning: {warning}")).collect(),
                Err(problems) => problems.to_string(),
            };
            assert_eq!(message, expected);
            assert!(!message.contains("hunter2"));
        }
    }
}
