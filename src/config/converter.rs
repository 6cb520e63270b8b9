//! Converter classes: accepted under the names that Kafka Connect configurations use, if they match what we write.

use super::key::{Rule, Violation};

pub(crate) const KEY: Rule = Rule::custom(
    "StringConverter, because keys are UTF-8 text: a schema id in them would change every key \
           after a move to another registry, and break compaction",
    |class| one_of(class, &["StringConverter"]),
)
.remedy("write org.apache.kafka.connect.storage.StringConverter, or remove the key");

pub(crate) const VALUE: Rule =
    Rule::custom("AvroConverter, because values are Avro in Confluent's wire format", |class| {
        one_of(class, &["AvroConverter"])
    })
    .remedy("write io.confluent.connect.avro.AvroConverter, or remove the key");

pub(crate) const HEADER: Rule =
    Rule::custom("SimpleHeaderConverter or StringConverter, because headers are UTF-8 text", |class| {
        one_of(class, &["SimpleHeaderConverter", "StringConverter"])
    })
    .remedy("write org.apache.kafka.connect.storage.SimpleHeaderConverter, or remove the key");

/// Compares the simple class name, so that the package may be left out.
fn one_of(class: &str, names: &[&str]) -> Result<(), Violation> {
    let simple = class.rsplit('.').next().unwrap_or(class);
    if names.contains(&simple) { Ok(()) } else { Err("this class is not supported".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::key::{ConfigKey, Type};

    #[test]
    fn only_text_keys_and_avro_values_are_taken() {
        let table = [
            (KEY, "org.apache.kafka.connect.storage.StringConverter", true),
            (KEY, "StringConverter", true),
            (KEY, "io.confluent.connect.avro.AvroConverter", false),
            (VALUE, "io.confluent.connect.avro.AvroConverter", true),
            (VALUE, "org.apache.kafka.connect.json.JsonConverter", false),
            (HEADER, "org.apache.kafka.connect.storage.SimpleHeaderConverter", true),
            (HEADER, "org.apache.kafka.connect.converters.ByteArrayConverter", false),
        ];

        for (rule, class, sound) in table {
            let key = ConfigKey::new(Type::Class, "converter").rule(rule);
            assert_eq!(key.check(class).is_ok(), sound, "{class}");
        }
    }
}
