//! The schemas of `schemas/*.avsc`, embedded in the binary, parsed and resolved once.
//!
//! The text is registered byte for byte; its SHA-256 distinguishes versions of a schema in the id cache. A test proves that every
//! schema parses; the error type covers a failure anyway, so that nothing here can panic.

use std::sync::{Arc, OnceLock};

use apache_avro::{Schema, reader::datum::GenericDatumReader, writer::datum::GenericDatumWriter};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use model::SchemaKind;

use super::Error;

/// One embedded schema.
#[derive(Debug)]
pub struct Embedded {
    /// Which one.
    pub kind: SchemaKind,
    /// The file's text: this is registered, never Avro's canonical form.
    pub text: &'static str,
    /// The same, parsed.
    pub schema: Schema,
    /// SHA-256 of the text, in lowercase hex: distinguishes its versions.
    pub fingerprint: String,
}

/// SHA-256 of a schema's text, in lowercase hex.
fn fingerprint(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

/// The schema of this kind.
pub fn embedded(kind: SchemaKind) -> Result<&'static Embedded, Error> {
    static PARSED: ByKind<Embedded> = [const { OnceLock::new() }; SchemaKind::ALL.len()];
    let parse = || {
        let text = text(kind);
        let schema = Schema::parse_str(text).map_err(|error| broken(kind, error))?;
        Ok(Embedded { kind, text, schema, fingerprint: fingerprint(text) })
    };
    PARSED[kind as usize].get_or_init(parse).as_ref().map_err(Error::clone)
}

/// Writer and reader for the current schema of a kind, with names resolved: resolving per record would cost as much as writing it.
pub(crate) struct Codec {
    pub(crate) writer: GenericDatumWriter<'static>,
    pub(crate) reader: GenericDatumReader<'static>,
}

/// The codec of this kind.
pub(crate) fn codec(kind: SchemaKind) -> Result<&'static Codec, Error> {
    static CODECS: ByKind<Codec> = [const { OnceLock::new() }; SchemaKind::ALL.len()];
    let resolve = || {
        let schema = &embedded(kind)?.schema;
        let writer = GenericDatumWriter::builder(schema).human_readable(false).build();
        let reader = GenericDatumReader::builder(schema).human_readable(false).build();
        let failed = |error| broken(kind, error);
        Ok(Codec { writer: writer.map_err(failed)?, reader: reader.map_err(failed)? })
    };
    CODECS[kind as usize].get_or_init(resolve).as_ref().map_err(Error::clone)
}

/// One value per kind, created on first use.
type ByKind<T> = [OnceLock<Result<T, Error>>; SchemaKind::ALL.len()];

fn text(kind: SchemaKind) -> &'static str {
    match kind {
        SchemaKind::AccountingEvent => include_str!("../../schemas/AccountingEvent.avsc"),
        SchemaKind::InvoicingEvent => include_str!("../../schemas/InvoicingEvent.avsc"),
        SchemaKind::Company => include_str!("../../schemas/Company.avsc"),
        SchemaKind::Customer => include_str!("../../schemas/Customer.avsc"),
        SchemaKind::Account => include_str!("../../schemas/Account.avsc"),
        SchemaKind::Record => include_str!("../../schemas/Record.avsc"),
        SchemaKind::PayrollCompany => include_str!("../../schemas/PayrollCompany.avsc"),
        SchemaKind::Certificate => include_str!("../../schemas/Certificate.avsc"),
    }
}

fn broken(kind: SchemaKind, error: apache_avro::Error) -> Error {
    Error::Malformed {
        attempt: format!("load the embedded schema {}", kind.name()),
        rule: "it is not a valid Avro schema".into(),
        source: Some(Arc::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_schema_parses_and_has_its_kinds_name() {
        for kind in SchemaKind::ALL {
            let embedded = embedded(kind).unwrap();

            let name = embedded.schema.name().unwrap();
            assert_eq!((name.name(), name.namespace()), (kind.name(), Some("io.tributary")));
            assert!(codec(kind).is_ok());
        }
    }

    #[test]
    fn a_fingerprint_is_the_sha_256_of_the_text_in_hex() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(fingerprint("abc"), known);
    }
}
