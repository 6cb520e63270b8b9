mod answers;
mod levels;
mod tls;

use apache_avro::Schema;

use super::*;

/// A subject like ours.
const SUBJECT: &str = "acme.accounting.customers-value";

const OURS: &str = r#"{"type":"record","name":"Customer","namespace":"io.tributary","fields":[
    {"name":"companyId","type":"string"},
    {"name":"tradeName","type":["null","string"],"default":null}]}"#;
/// What `OURS` cannot read: it wrote no companyId.
const FOREIGN: &str = r#"{"type":"record","name":"Customer","namespace":"io.tributary","fields":[
    {"name":"tradeName","type":["null","string"],"default":null}]}"#;

async fn register(registry: &Registry) -> Result<u32, Error> {
    registry.register(SUBJECT, OURS, &Schema::parse_str(OURS).unwrap()).await
}

/// A port that nothing listens on.
fn dead_url() -> url::Url {
    url::Url::parse("http://127.0.0.1:1").unwrap()
}
