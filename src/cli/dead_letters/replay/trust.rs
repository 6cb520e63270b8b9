//! Letters that a replay accepts: signed by a worker, for the given prefix and connector.
//!
//! Anyone who may write to the dead-letter topic can write a letter with any content. Replayed records look like those of the worker,
//! so a replay trusts only signatures.

use bytes::Bytes;

use crate::{
    cli::dead_letters::ReplayScope,
    publish::{LetterSignature, PREFIX},
    webhooks::{
        dead_letter::{self, LetterPosition},
        delivery::DeliveryContext,
    },
};

/// Why a letter with this signature is refused; `None` if it is trusted.
pub(super) fn distrust(signature: &LetterSignature, trust_unsigned: bool) -> Option<String> {
    match signature {
        LetterSignature::Signed => None,
        LetterSignature::Unsigned if trust_unsigned => None,
        LetterSignature::Unsigned => Some(
            "it has no signature, so any writer of the topic may have written it; add --trust-unsigned only if a \
             worker without grant.encryption.key or of an earlier version wrote it"
                .to_owned(),
        ),
        LetterSignature::Forged => Some(
            "its signature does not match its content, so no worker wrote it in this form; it cannot be replayed: find out who \
             else writes to the topic"
                .to_owned(),
        ),
        LetterSignature::UnknownKey { kid } => Some(format!(
            "it is signed with the key {kid}, which is neither grant.encryption.key nor its previous one here; set \
             grant.encryption.key.previous to the key of the worker that wrote it"
        )),
    }
}

/// Why a letter is outside the scope of the replay; `None` if it is inside.
pub(super) fn foreign(
    context: &DeliveryContext,
    headers: &[(String, Bytes)],
    owner: &ReplayScope,
) -> Option<String> {
    let DeliveryContext { prefix, connector, .. } = context;
    // A letter of an earlier version does not name its prefix in a header.
    let named_prefix = dead_letter::text(headers, PREFIX).unwrap_or(prefix);
    let named_connector = dead_letter::text(headers, "__connect.errors.connector.name").unwrap_or(connector);
    if *named_prefix != **prefix || *named_connector != **connector {
        return Some(format!(
            "its headers name topic.prefix {named_prefix} and connector {named_connector}, its delivery {prefix} and \
             {connector}; it cannot be replayed: find out who else writes to the topic"
        ));
    }
    if **prefix != *owner.prefix.as_str() {
        let own = &owner.prefix;
        return Some(format!(
            "it belongs to topic.prefix {prefix}, and this replay publishes for {own} alone; replay it with --prefix {prefix}"
        ));
    }
    let own = owner.connector.as_ref().filter(|own| ***own != **connector)?;
    Some(format!(
        "it belongs to connector {connector}, and this replay publishes for {own} alone; replay it with --connector {connector}"
    ))
}

/// The reason with the full place of the letter.
pub(super) fn named(topic: &str, place: LetterPosition, reason: &str) -> String {
    format!("{topic}, partition {}, offset {}: {reason}", place.partition, place.offset)
}

#[cfg(test)]
mod tests {
    use model::TopicPrefix;

    use super::*;
    use crate::webhooks::delivery::ApiFamily;

    fn context(prefix: &str, connector: &str) -> DeliveryContext {
        DeliveryContext {
            connector: connector.into(),
            prefix: prefix.into(),
            dead_letter_topic: "somewhere".into(),
            received_at: 0,
            traceparent: None,
            content_ids: true,
            family: ApiFamily::Accounting { resource: None },
        }
    }

    fn headers(prefix: &'static str, connector: &'static str) -> Vec<(String, Bytes)> {
        let header = |name: &str, text: &'static str| (name.to_owned(), Bytes::from_static(text.as_bytes()));
        vec![header(PREFIX, prefix), header("__connect.errors.connector.name", connector)]
    }

    #[test]
    fn only_signed_letters_are_trusted_by_default() {
        let unknown = LetterSignature::UnknownKey { kid: "0123456789abcdef".to_owned() };
        for (signature, trust_unsigned, expected) in [
            (LetterSignature::Signed, false, None),
            (LetterSignature::Unsigned, true, None),
            (LetterSignature::Unsigned, false, Some("--trust-unsigned")),
            (LetterSignature::Forged, false, Some("does not match")),
            (LetterSignature::Forged, true, Some("does not match")),
            (unknown.clone(), true, Some("0123456789abcdef")),
        ] {
            let reason = distrust(&signature, trust_unsigned);
            match expected {
                None => assert_eq!(reason, None, "{signature}"),
                Some(part) => {
                    assert!(reason.as_ref().is_some_and(|reason| reason.contains(part)), "{reason:?}")
                }
            }
        }
    }

    #[test]
    fn a_letter_of_another_prefix_or_connector_is_foreign() {
        let owner = |connector: Option<&str>| ReplayScope {
            prefix: TopicPrefix::new("acme").unwrap(),
            connector: connector.map(str::to_owned),
        };
        let (any, hooks) = (owner(None), owner(Some("hooks")));
        let own = context("acme", "hooks");

        assert_eq!(foreign(&own, &headers("acme", "hooks"), &any), None);
        assert_eq!(foreign(&own, &headers("acme", "hooks"), &hooks), None);
        assert_eq!(foreign(&own, &[], &hooks), None, "an earlier version writes fewer headers");
        assert_eq!(foreign(&context("acme", "other"), &[], &any), None, "any connector of the prefix");
        for (context, headers, owner, part) in [
            (context("other", "hooks"), headers("other", "hooks"), &any, "topic.prefix other"),
            (context("acme.eu", "hooks"), headers("acme.eu", "hooks"), &hooks, "topic.prefix acme.eu"),
            (context("acme", "other"), headers("acme", "other"), &hooks, "connector other"),
            (context("acme", "hooks"), headers("other", "hooks"), &any, "headers name topic.prefix other"),
            (context("other", "hooks"), headers("acme", "hooks"), &any, "headers name topic.prefix acme"),
            (context("acme", "hooks"), headers("acme", "other"), &any, "connector other"),
        ] {
            let reason = foreign(&context, &headers, owner).unwrap();
            assert!(reason.contains(part), "{part} is not in: {reason}");
        }
    }
}
