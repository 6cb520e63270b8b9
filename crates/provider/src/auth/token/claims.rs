//! What a token says, once it is trusted: every claim of the provider's table by a name of its own, and all others.

use std::fmt;

use serde_json::{Map, Value};

/// The claims of a token that was good. A claim of another type than the table's is as good as missing, and stands among
/// [`Claims::others`].
#[derive(Clone, PartialEq)]
pub struct Claims {
    /// `$id`; the last one where there are two.
    pub id: Option<String>,
    /// `iss`.
    pub issuer: Option<String>,
    /// `aud`, one or several.
    pub audiences: Vec<String>,
    /// `exp`, in milliseconds since 1970.
    pub ends_ms: i64,
    /// `nbf`, in seconds since 1970.
    pub begins: Option<i64>,
    /// `auth_time`: when the person logged in, in seconds since 1970.
    pub authenticated: Option<i64>,
    /// `client_id`.
    pub client: Option<String>,
    /// `scope`.
    pub scopes: Vec<String>,
    /// `sub`: who has logged in.
    pub subject: Option<String>,
    /// `idp`.
    pub identity_provider: Option<String>,
    /// `given_name`.
    pub given_name: Option<String>,
    /// `lang`.
    pub language: Option<String>,
    /// `email`.
    pub email: Option<String>,
    /// `svc.es.modules`, taken apart.
    pub modules: Vec<String>,
    /// `svc.es.clientid`: the tenant.
    pub tenant: Option<String>,
    /// `svc.es.idcda`.
    pub account: Option<String>,
    /// `svc.es.keyusercorrelationid`.
    pub key_user: Option<String>,
    /// `svc.es.equipouserid`.
    pub team_user: Option<String>,
    /// `svc.es.secondclientid`.
    pub second_tenant: Option<String>,
    /// `usr`.
    pub user: Option<String>,
    /// `owapp`.
    pub owning_application: Option<String>,
    /// `mem`.
    pub member: Option<String>,
    /// `oun`.
    pub organisational_unit: Option<String>,
    /// `amr`: how the person has shown who they are.
    pub methods: Vec<String>,
    /// All that have no name here.
    pub others: Map<String, Value>,
}

impl Claims {
    /// Takes the claims out of a payload whose end is known.
    pub(super) fn read(mut payload: Map<String, Value>, ends_ms: i64) -> Self {
        payload.remove("exp");
        let modules = take_text(&mut payload, "svc.es.modules").unwrap_or_default();
        let mut text = |name| take_text(&mut payload, name);
        Self {
            id: text("$id"),
            issuer: text("iss"),
            client: text("client_id"),
            subject: text("sub"),
            identity_provider: text("idp"),
            given_name: text("given_name"),
            language: text("lang"),
            email: text("email"),
            tenant: text("svc.es.clientid"),
            account: text("svc.es.idcda"),
            key_user: text("svc.es.keyusercorrelationid"),
            team_user: text("svc.es.equipouserid"),
            second_tenant: text("svc.es.secondclientid"),
            user: text("usr"),
            owning_application: text("owapp"),
            member: text("mem"),
            organisational_unit: text("oun"),
            modules: modules
                .split(';')
                .map(str::trim)
                .filter(|module| !module.is_empty())
                .map(str::to_owned)
                .collect(),
            audiences: take_list(&mut payload, "aud", one),
            scopes: take_list(&mut payload, "scope", words),
            methods: take_list(&mut payload, "amr", one),
            begins: take_seconds(&mut payload, "nbf"),
            authenticated: take_seconds(&mut payload, "auth_time"),
            ends_ms,
            others: payload,
        }
    }

    /// A text among the others.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.others.get(name).and_then(Value::as_str)
    }
}

/// Names of people stay out of logs.
impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims")
            .field("issuer", &self.issuer)
            .field("audiences", &self.audiences)
            .field("ends_ms", &self.ends_ms)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// The words of one text, or the texts of a list.
pub(in crate::auth) fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split_whitespace().map(str::to_owned).collect(),
        other => list(other),
    }
}

/// One text, or the texts of a list.
fn one(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        other => list(other),
    }
}

fn list(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Takes a text out; anything else stays.
fn take_text(payload: &mut Map<String, Value>, name: &str) -> Option<String> {
    payload.get(name)?.is_string().then(|| payload.remove(name))?.and_then(|value| match value {
        Value::String(text) => Some(text),
        _ => None,
    })
}

fn take_list(payload: &mut Map<String, Value>, name: &str, read: fn(&Value) -> Vec<String>) -> Vec<String> {
    let found = payload.get(name).map(read).unwrap_or_default();
    if !found.is_empty() {
        payload.remove(name);
    }
    found
}

fn take_seconds(payload: &mut Map<String, Value>, name: &str) -> Option<i64> {
    let number = payload.get(name)?.as_number()?;
    let seconds = number.as_i64().or_else(|| number.as_f64().map(|seconds| seconds as i64))?;
    payload.remove(name);
    Some(seconds)
}
