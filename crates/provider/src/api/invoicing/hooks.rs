//! Invoicing webhooks. The provider does not document its responses, so they are read leniently.

use reqwest::Method;
use serde_json::{Value, json};

use base::secret::Secret;
use model::InvoicingHook;

use super::Invoicing;
use crate::api::{
    CallOptions, Error, body,
    call::{ApiCall, ApiResponse},
    error::Cause,
};

const HOOKS: &str = "invoicing/api/webhooks";

/// A webhook to create.
#[derive(Debug, Clone)]
pub struct NewHook {
    /// Receiver URL.
    pub uri: String,
    /// Entity and action.
    pub hook: InvoicingHook,
    /// Secret that signs deliveries.
    pub secret: Secret,
    /// Whether it starts paused.
    pub is_paused: bool,
    /// Name of the receiving application.
    pub application_name: String,
    /// Free text.
    pub description: String,
}

/// A webhook as the provider returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Its id.
    pub id: Option<String>,
    /// Receiver URL.
    pub uri: Option<String>,
    /// Entity, by the provider's name.
    pub entity: Option<String>,
    /// Action, by the provider's name.
    pub action: Option<String>,
    /// Whether it is paused.
    pub is_paused: Option<bool>,
    /// Name of the receiving application.
    pub application_name: Option<String>,
    /// Free text.
    pub description: Option<String>,
}

impl Invoicing {
    /// The webhooks of the company.
    pub async fn hooks(&self, options: &CallOptions) -> Result<Vec<Hook>, Error> {
        self.0.core.call(&self.0.call(Method::GET, HOOKS), options, read_hooks).await
    }

    /// Creates a webhook, through `invoicing.egress.proxy` if it is set: the provider compares the receiver's address with the
    /// client's. The webhook works once its receiver has answered the echo.
    ///
    /// # Errors
    /// See [`Error`]. Unless [`Error::acted`] is [`crate::api::Acted::No`], a webhook may exist.
    pub async fn create_hook(&self, new: &NewHook, options: &CallOptions) -> Result<Option<Hook>, Error> {
        let body = Some(json!({
            "uri": new.uri,
            "entity": new.hook.entity.provider_name(),
            "action": new.hook.action.provider_name(),
            "secret": new.secret.reveal(),
            "isPaused": new.is_paused,
            "applicationName": new.application_name,
            "description": new.description,
        }));
        let hide = vec![&new.secret];
        let call = ApiCall { body, hide, egress: true, ..self.0.call(Method::POST, HOOKS) };
        let parse = |answer: &ApiResponse| Ok(body::parse(&answer.body).ok().as_ref().and_then(Hook::read));
        self.0.core.call(&call, options, parse).await
    }

    /// Deletes a webhook.
    pub async fn delete_hook(&self, id: &str, options: &CallOptions) -> Result<(), Error> {
        let call = self.0.call(Method::DELETE, format!("{HOOKS}/{{id}}"));
        self.0.core.call(&ApiCall { id: id.into(), ..call }, options, |_| Ok(())).await
    }
}

impl Hook {
    /// Reads the known members of an object, except for the secret.
    fn read(value: &Value) -> Option<Self> {
        let members = value.as_object()?;
        let find = |name: &str| {
            members.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        };
        let text = |name: &str| match find(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        Some(Self {
            id: text("id"),
            uri: text("uri"),
            entity: text("entity"),
            action: text("action"),
            is_paused: find("isPaused").and_then(Value::as_bool),
            application_name: text("applicationName"),
            description: text("description"),
        })
    }
}

/// The rows of an array, or of the only array in an object: the provider does not document which.
fn read_hooks(answer: &ApiResponse) -> Result<Vec<Hook>, Cause> {
    // Reading anything else as an empty list would report every hook as lost.
    let json = answer.documented()?;
    if body::is_empty(json) {
        return Ok(Vec::new());
    }
    let rows = match body::parse::<Value>(json)? {
        Value::Null => Vec::new(),
        Value::Array(rows) => rows,
        Value::Object(members) => {
            let mut lists = members.into_iter().filter_map(|(_, value)| match value {
                Value::Array(rows) => Some(rows),
                _ => None,
            });
            match (lists.next(), lists.next()) {
                (Some(rows), None) => rows,
                _ => return Err(Cause::Malformed { what: "it holds no array, or more than one".into() }),
            }
        }
        _ => return Err(Cause::Malformed { what: "it is not a list".into() }),
    };
    let rows = rows.iter().enumerate().map(|(place, row)| {
        let what = || format!("row {} is not a JSON object", place + 1);
        Hook::read(row).ok_or_else(|| Cause::Malformed { what: what() })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hook_members_are_found_in_any_case() {
        let read = Hook::read(&json!({
            "Id": 7, "uri": "https://a", "Entity": "Customer", "action": null, "isPaused": true,
            "secret": "hunter2", "more": {}
        }));

        let hook = read.unwrap();

        assert_eq!((hook.id.as_deref(), hook.entity.as_deref()), (Some("7"), Some("Customer")));
        assert_eq!((hook.action.as_deref(), hook.is_paused), (None, Some(true)));
        assert!(!format!("{hook:?}").contains("hunter2"));
        assert_eq!(Hook::read(&json!([])), None);
    }

    #[test]
    fn hooks_are_the_rows_of_the_only_array() {
        let read = |body| read_hooks(&ApiResponse::of(body));

        for (body, count) in [
            ("", 0),
            ("null", 0),
            ("[]", 0),
            (r#"[{"id":1},{"id":2}]"#, 2),
            (r#"{"items":[{"id":1}],"total":1}"#, 1),
        ] {
            assert_eq!(read(body).unwrap().len(), count, "{body}");
        }
        for body in ["{}", r#"{"a":[],"b":[]}"#, "7", "[7]", r#"{"items":[7]}"#, "[", "\"x\""] {
            assert!(matches!(read(body), Err(Cause::Malformed { .. })), "{body}");
        }
    }
}
