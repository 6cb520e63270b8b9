//! Avro records as a topic has them, under a schema as a registry has it.

use model::SchemaKind;
use tributary::avro::{decode_with, frame_value, schemas::embedded};

/// One byte chooses the kind of record. The text of the writer's schema follows, up to a zero byte; none means today's own schema.
/// The rest is the framed record. Returns whether a record came out.
///
/// # Panics
/// A record that was decoded is not the same after it was encoded and decoded again.
pub fn avro(input: &[u8]) -> bool {
    let Some((&kind, rest)) = input.split_first() else { return false };
    let kind = SchemaKind::ALL[usize::from(kind) % SchemaKind::ALL.len()];
    let Some(end) = rest.iter().position(|&byte| byte == 0) else { return false };
    let (Ok(schema), framed) = (std::str::from_utf8(&rest[..end]), &rest[end + 1..]) else { return false };
    let ours = embedded(kind).expect("an embedded schema").text;

    let Ok((id, value)) = decode_with(kind, if schema.is_empty() { ours } else { schema }, framed) else {
        return false;
    };

    assert_eq!(value.schema(), kind);
    let again = frame_value(id, &value).expect("a record of today's schema");
    assert_eq!(decode_with(kind, ours, &again).expect("our own record"), (id, value));
    true
}
