//! The login with mail and password, and the choice of a company.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use serde::Serialize;
use serde_json::Value;

use super::{FIRST_COMPANY, Invoicing, Refusal};
use crate::{
    Provider,
    answer::bytes_answer,
    random::{Random, mix},
};

/// What company names are drawn for.
const NAMES: u64 = 0x696e_765f_6e61_6d65;
const FIRST_WORDS: [&str; 6] = ["Bodegas", "Talleres", "Comercial", "Cerámicas", "Transportes", "Librería"];
const LAST_WORDS: [&str; 6] = ["Ibáñez", "del Norte", "Peña", "Muñoz", "Ría Alta", "Vidal"];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Login<'a> {
    token: String,
    refresh_token: &'a str,
    mail: &'a str,
    locale: &'static str,
    name: &'static str,
    id: u32,
    version: &'static str,
    is_advisor: bool,
    companies: Vec<Company>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Company {
    id: u32,
    name: String,
    #[serde(rename = "idCDA")]
    id_cda: String,
    default: bool,
    company_status: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Chosen<'a> {
    company_status: u32,
    token: String,
    refresh_token: &'a str,
    product_type: u32,
}

/// POST INV/users/login.
pub(super) async fn login(State(provider): State<Arc<Provider>>, body: Bytes) -> Result<Response, Refusal> {
    let body: Value = parse(&body)?;
    let text = |name: &str| {
        let found = body.get(name).and_then(Value::as_str);
        found.ok_or_else(|| Refusal::new(400, format!("{name}: a string is needed")))
    };
    let (mail, password) = (text("mail")?, text("password")?);
    let account = &provider.settings.invoicing;
    if mail != account.mail || password != account.password {
        return Err(Refusal::new(401, "mail or password is wrong"));
    }

    let tokens = provider.invoicing.tokens.login(None, &provider.knobs().invoicing, provider.clock.now());
    let companies = 0..provider.settings.world.invoicing_companies;
    Ok(json(&Login {
        token: format!("Bearer {}", tokens.access),
        refresh_token: &tokens.refresh,
        mail,
        locale: "es-ES",
        name: "Ana",
        id: 1,
        version: "2.0",
        is_advisor: false,
        companies: companies.map(|number| company(&provider.invoicing, number)).collect(),
    }))
}

/// POST INV/companies/{companyId}/select.
pub(super) async fn select(
    State(provider): State<Arc<Provider>>,
    id: Result<Path<String>, PathRejection>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let number = id.ok().and_then(|Path(id)| id.parse::<u32>().ok()?.checked_sub(FIRST_COMPANY));
    let number = number.filter(|&number| number < provider.settings.world.invoicing_companies);
    let number = number.ok_or_else(|| Refusal::new(404, "there is no such company"))?;
    let Value::String(refresh) = parse(&body)? else {
        return Err(Refusal::new(400, "body: the refreshToken as a JSON string is needed"));
    };

    let (knobs, now) = (provider.knobs(), provider.clock.now());
    let tokens = provider.invoicing.tokens.choose(&refresh, number, &knobs.invoicing, now);
    let tokens = tokens.ok_or_else(|| Refusal::new(401, "the refreshToken is not valid"))?;
    Ok(json(&Chosen {
        company_status: 1,
        token: format!("Bearer {}", tokens.access),
        refresh_token: &tokens.refresh,
        product_type: 1,
    }))
}

fn company(invoicing: &Invoicing, number: u32) -> Company {
    let mut random = Random::new(invoicing.seed ^ mix(u64::from(number)), NAMES);
    let mut word = |words: [&'static str; 6]| words[random.below(6) as usize];
    Company {
        id: Invoicing::company_id(number),
        name: format!("{} {} {number}", word(FIRST_WORDS), word(LAST_WORDS)),
        id_cda: invoicing.tenant(number),
        default: number == 0,
        company_status: 1,
    }
}

fn parse(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::new(400, format!("body: no JSON: {error}")))
}

fn json(answer: &impl Serialize) -> Response {
    bytes_answer(200, serde_json::to_vec(answer).unwrap_or_default())
}
