//! Accounting webhooks: subscribe, read, change and delete. All calls have `context: none`.

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use base::secret::Secret;
use model::{AccountingResource, WebhookId};

use super::{
    Accounting, CallOptions, Error,
    address::ContextHeader,
    body,
    call::{ApiCall, ApiResponse},
    error::{AnsweredBy, Cause},
};

/// The body of a subscribe call.
#[derive(Debug, Clone)]
pub struct SubscribeRequest {
    /// `thirdPartyApplicationName`.
    pub application: String,
    /// Receiver URL.
    pub url: String,
    /// Secret that signs deliveries.
    pub secret: Secret,
    /// Semantic names of the events.
    pub events: Vec<String>,
}

/// The result that an operation reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// `responseState`: 3 subscribed, 4 unsubscribed, 5 deleted, 7 enabled or disabled. `None` if the body is empty.
    pub state: Option<i64>,
    /// The webhook's id.
    pub webhook: Option<WebhookId>,
    /// Redacted error messages; empty on success.
    pub errors: Vec<String>,
}

/// A webhook as the provider returns it, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// `thirdPartyApplicationName`.
    #[serde(rename = "thirdPartyApplicationName")]
    pub application: Option<String>,
    /// Receiver URL.
    pub url: Option<String>,
    /// Whether deliveries are enabled.
    #[serde(rename = "isActive")]
    pub active: Option<bool>,
    /// Whether it is deleted.
    #[serde(rename = "isDeleted")]
    pub deleted: Option<bool>,
    /// Subscribed events.
    #[serde(default, deserialize_with = "body::or_default")]
    pub events: Vec<EventType>,
}

/// An event descriptor of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventType {
    /// `semanticName`: application, domain, resource and type, joined by dots.
    pub semantic_name: Option<String>,
}

/// The response to a change of URL, which the provider does not document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UrlChange {
    /// A result of an operation.
    Operation(Operation),
    /// The webhook.
    Webhook(Box<Webhook>),
    /// Neither.
    Nothing,
}

impl Accounting {
    /// Semantic names of a resource's events.
    pub async fn event_names(
        &self,
        resource: AccountingResource,
        options: &CallOptions,
    ) -> Result<Vec<String>, Error> {
        let call = self.webhook_call(Method::GET, resource, "events");
        self.0.core.call(&call, options, |answer| body::rows(answer.documented()?)).await
    }

    /// Subscribes. The webhook works once its receiver has accepted an `Acknowledge`.
    ///
    /// # Errors
    /// See [`Error`]. Unless [`Error::acted`] is [`super::Acted::No`], a webhook may exist.
    pub async fn subscribe(
        &self,
        resource: AccountingResource,
        subscription: &SubscribeRequest,
        options: &CallOptions,
    ) -> Result<Operation, Error> {
        let body = Some(json!({
            "thirdPartyApplicationName": subscription.application,
            "url": subscription.url,
            "secret": subscription.secret.reveal(),
            "eventTypes": subscription.events,
        }));
        let hide = vec![&subscription.secret];
        let call = ApiCall { body, hide, ..self.webhook_call(Method::POST, resource, "subscribe") };
        self.0.core.call(&call, options, read_operation).await
    }

    /// A webhook by its id.
    pub async fn webhook(
        &self,
        resource: AccountingResource,
        id: &WebhookId,
        options: &CallOptions,
    ) -> Result<Webhook, Error> {
        let call = ApiCall { id: id.as_str().into(), ..self.webhook_call(Method::GET, resource, "{id}") };
        let parse = |answer: &ApiResponse| body::parse(&body::object(answer.documented()?)?);
        self.ask_about(resource, &call, options, parse).await
    }

    /// Enables or disables a webhook.
    pub async fn set_enabled(
        &self,
        resource: AccountingResource,
        id: &WebhookId,
        enable: bool,
        options: &CallOptions,
    ) -> Result<Operation, Error> {
        let body = Some(json!({ "webhookId": id, "enable": enable }));
        let call = self.webhook_call(Method::PUT, resource, "status/{id}");
        let call = ApiCall { id: id.as_str().into(), body, ..call };
        self.ask_about(resource, &call, options, read_operation).await
    }

    /// Moves a webhook to another URL, whose receiver must accept an `Acknowledge`.
    pub async fn change_url(
        &self,
        resource: AccountingResource,
        id: &WebhookId,
        url: &str,
        options: &CallOptions,
    ) -> Result<UrlChange, Error> {
        let body = Some(json!({ "webhookId": id, "url": url }));
        let call = self.webhook_call(Method::PUT, resource, "change/{id}");
        let call = ApiCall { id: id.as_str().into(), body, ..call };
        // Any 2xx is a success, whatever its body.
        self.ask_about(resource, &call, options, |answer| Ok(changed(&answer.body, &answer.secrets))).await
    }

    /// Deletes a webhook.
    pub async fn delete_webhook(
        &self,
        resource: AccountingResource,
        id: &WebhookId,
        options: &CallOptions,
    ) -> Result<Operation, Error> {
        let call = self.webhook_call(Method::DELETE, resource, "delete/{id}");
        let call = ApiCall { id: id.as_str().into(), ..call };
        self.ask_about(resource, &call, options, read_operation).await
    }

    /// Calls about one webhook. The document shows no body for 404 and 410, so if the origin of such an answer is unknown, the
    /// event names are read: if the resource answers there, its path works and the API itself answered.
    async fn ask_about<T>(
        &self,
        resource: AccountingResource,
        call: &ApiCall<'_>,
        options: &CallOptions,
        parse: impl Fn(&ApiResponse) -> Result<T, Cause>,
    ) -> Result<T, Error> {
        match self.0.core.call(call, options, parse).await {
            Err(error) if error.missing() == Some(AnsweredBy::Unknown) => {
                let is_known = self.event_names(resource, options).await.is_ok();
                Err(if is_known { error.by_api() } else { error })
            }
            other => other,
        }
    }

    fn webhook_call(&self, method: Method, resource: AccountingResource, below: &str) -> ApiCall<'_> {
        let call = self.0.call(method, format!("{}/webhooks/{below}", resource.path()));
        ApiCall { context: ContextHeader::None, ..call }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OperationAnswer {
    response_state: Option<i64>,
    webhook_id: Option<String>,
    errors: Option<Vec<Value>>,
}

impl OperationAnswer {
    fn operation(self, secrets: &[&Secret]) -> Operation {
        Operation {
            state: self.response_state,
            webhook: self.webhook_id.and_then(|id| WebhookId::new(id).ok()),
            errors: self.errors.unwrap_or_default().iter().map(|error| short(error, secrets)).collect(),
        }
    }
}

fn read_operation(answer: &ApiResponse) -> Result<Operation, Cause> {
    let json = answer.json()?;
    if body::is_empty(json) {
        return Ok(Operation { state: None, webhook: None, errors: Vec::new() });
    }
    Ok(body::parse::<OperationAnswer>(&body::object(json)?)?.operation(&answer.secrets))
}

fn changed(body: &[u8], secrets: &[&Secret]) -> UrlChange {
    match body::parse::<serde_json::Map<String, Value>>(body) {
        Ok(members) if members.contains_key("responseState") => {
            let result = body::parse::<OperationAnswer>(body);
            result.map_or(UrlChange::Nothing, |result| UrlChange::Operation(result.operation(secrets)))
        }
        Ok(members) if members.get("id").is_some_and(Value::is_string) => {
            body::parse(body).map_or(UrlChange::Nothing, |webhook| UrlChange::Webhook(Box::new(webhook)))
        }
        _ => UrlChange::Nothing,
    }
}

/// An undocumented error value in a few words.
fn short(error: &Value, secrets: &[&Secret]) -> String {
    let words = match error {
        Value::String(text) => body::cleaned_excerpt(text, secrets),
        Value::Object(_) | Value::Array(_) => body::excerpt(error.to_string().as_bytes(), secrets),
        // Values without text are shown as they are.
        other => body::cleaned_excerpt(&other.to_string(), secrets),
    };
    words.map_or_else(|| "an error without words".to_owned(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_change_is_read_in_every_shape() {
        let operation = Operation { state: Some(7), webhook: WebhookId::new("w").ok(), errors: Vec::new() };
        let done = changed(br#"{"responseState":7,"webhookId":"w","errors":[]}"#, &[]);
        assert_eq!(done, UrlChange::Operation(operation));

        let UrlChange::Webhook(webhook) = changed(br#"{"id":"w","url":"https://a","isActive":false}"#, &[])
        else {
            panic!("no webhook");
        };
        assert_eq!((webhook.url.as_deref(), webhook.active), (Some("https://a"), Some(false)));

        for body in ["", "null", "true", "OK", "{}", r#"{"responseState":"x"}"#, r#"{"id":7}"#] {
            assert_eq!(changed(body.as_bytes(), &[]), UrlChange::Nothing, "{body}");
        }
    }

    #[test]
    fn operation_errors_of_any_type_become_short_texts() {
        let result: OperationAnswer = serde_json::from_str(
            r#"{"responseState":0,"errors":[{"code":"A","message":"url is wrong"},"bare",{"x":{"y":"deep"}},7,{}]}"#,
        )
        .unwrap();

        let operation = result.operation(&[]);

        assert_eq!(operation.errors, ["url is wrong", "bare", "deep", "7", "an error without words"]);
        assert_eq!(operation.webhook, None);
    }

    #[test]
    fn errors_of_an_operation_are_redacted() {
        let secrets = [Secret::new("my-signing-secret-2024")];
        let body = r#"{"responseState":0,"errors":["secret 'my-signing-secret-2024' was\u0007 used",
            {"message":"'my-signing-secret-2024'"},["my-signing-secret-2024"]]}"#;

        let answer = ApiResponse { secrets: secrets.iter().collect(), ..ApiResponse::of(body) };
        let operation = read_operation(&answer).unwrap();

        assert_eq!(operation.errors, ["secret '[hidden]' was used", "'[hidden]'", "[hidden]"]);
        let UrlChange::Operation(changed) = changed(body.as_bytes(), &[&secrets[0]]) else { panic!("none") };
        assert_eq!(changed, operation);
    }

    #[test]
    fn an_empty_success_is_accepted() {
        let nothing = Operation { state: None, webhook: None, errors: Vec::new() };

        assert_eq!(read_operation(&ApiResponse::of("")).unwrap(), nothing);
        assert!(read_operation(&ApiResponse::of("[]")).is_err());
    }

    #[test]
    fn a_webhook_is_read_without_its_secret() {
        let record =
            br#"{"id":"w","secret":"hunter2","events":[{"semanticName":"Svc.A","secret":"hunter2"}]}"#;

        let webhook: Webhook = body::parse(record).unwrap();

        assert!(!format!("{webhook:?}").contains("hunter2"), "{webhook:?}");
        assert_eq!(webhook.events[0].semantic_name.as_deref(), Some("Svc.A"));
    }
}
