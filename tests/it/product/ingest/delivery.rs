//! Deliveries by the provider's documentation, signed without the product's code.

use serde_json::json;
use sha2::{Digest as _, Sha256};

/// A change of a customer, or an Acknowledge.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(super) id: String,
    pub(super) company: &'static str,
    event: &'static str,
    sequence: u32,
    user: String,
    write: WriteIds,
}

/// The ids of the write that a delivery reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteIds {
    pub(super) process: &'static str,
    pub(super) conversation: &'static str,
}

/// The write of deliveries that name no other.
const WRITE: WriteIds =
    WriteIds { process: "4f4f3c92-2f2a-4c5e-8c5e-1f0f6f1f0f6f", conversation: "conversation-1" };

impl Delivery {
    pub(crate) fn change(id: &str, company: &'static str, sequence: u32) -> Self {
        let (event, user) = ("CustomerUpdated", "user-1".to_owned());
        Self { id: id.to_owned(), company, event, sequence, user, write: WRITE }
    }

    /// The same change by a user with this name.
    pub(super) fn by(self, user: String) -> Self {
        Self { user, ..self }
    }

    /// The outcome of a write.
    pub(super) fn outcome(id: &str, company: &'static str, event: &'static str, write: WriteIds) -> Self {
        Self { event, write, ..Self::change(id, company, 7) }
    }

    pub(super) fn acknowledge(id: &str) -> Self {
        Self { event: "Acknowledge", ..Self::change(id, "", 0) }
    }

    pub(crate) fn body(&self) -> String {
        let Self { id, company, event, sequence, user, write: WriteIds { process, conversation } } = self;
        let asks = *event == "Acknowledge";
        let data = match *event {
            "Acknowledge" => json!({ "Arguments": "Acknowledge" }),
            // The document does not show its members.
            "ErrorOccurred" => json!({
                "CorrelationId": "customer:1", "SvcProcessId": process, "ErrorCode": 409,
                "ErrorMessage": "the code exists",
            }),
            _ => json!({
                "CorrelationId": "customer:1", "Version": "03/14/2025 09:26:53.5897932",
                "SequenceVersion": sequence.to_string(), "SvcSourceInterface": "Api",
                "SvcProcessId": process, "SvcSourceAction": "Update",
            }),
        };
        let partition = match asks {
            true => json!({}),
            false => json!({ "PartitionClientId": company, "UserName": "someone" }),
        };
        json!({
            "WebhookId": "webhook-1", "OutgoingId": id, "ConversationId": conversation, "TenantId": "tenant-1",
            "ExtraPartitionInformation": partition,
            "EventType": {
                "AppName": "Svc", "Domain": "ACC", "Resource": "Customers", "EventType": event,
                "SemanticName": format!("Svc.ACC.Customers.{event}"),
            },
            "Timestamp": 638_774_908_135_897_932_i64, "JsonData": data.to_string(), "UserIdentifier": user,
        })
        .to_string()
    }
}

/// The value of the signature header of an accounting delivery.
pub(crate) fn signature(secret: &str, body: &str) -> String {
    format!("sha256={}", hex(&hmac(secret.as_bytes(), body.as_bytes())).to_uppercase())
}

/// In lower case.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// RFC 2104 with SHA-256, for keys no longer than a block.
pub(super) fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0_u8; 64];
    block[..key.len()].copy_from_slice(key);
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}
