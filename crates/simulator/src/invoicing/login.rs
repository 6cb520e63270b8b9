//! The login with mail and password, and the selection of a company.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use serde_json::{Value, json};

use super::{ApiError, FIRST_COMPANY, InvoicingService};
use crate::{
    answer::json_answer,
    random::{Random, mix},
};

/// The random stream of company names.
const NAMES: u64 = 0x696e_765f_6e61_6d65;
const FIRST_WORDS: [&str; 6] = ["Bodegas", "Talleres", "Comercial", "Cerámicas", "Transportes", "Librería"];
const LAST_WORDS: [&str; 6] = ["Ibáñez", "del Norte", "Peña", "Muñoz", "Ría Alta", "Vidal"];

/// POST INV/users/login.
pub(super) async fn login(
    State(invoicing): State<Arc<InvoicingService>>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: Value = parse(&body)?;
    let text = |name: &str| {
        let found = body.get(name).and_then(Value::as_str);
        found.ok_or_else(|| ApiError::api(400, format!("{name}: a string is needed")))
    };
    let (mail, password) = (text("mail")?, text("password")?);
    let account = &invoicing.core.settings.invoicing;
    if mail != account.mail || password != account.password {
        return Err(ApiError::api(401, "mail or password is wrong"));
    }

    let tokens = invoicing.tokens.login(&invoicing.core.knobs().invoicing, invoicing.core.clock.now());
    let companies = 0..invoicing.core.settings.world.invoicing_companies;
    Ok(json_answer(
        200,
        &json!({
            "token": format!("Bearer {}", tokens.access),
            "refreshToken": tokens.refresh,
            "mail": mail,
            "locale": "es-ES",
            "name": "Ana",
            "id": 1,
            "version": "2.0",
            "isAdvisor": false,
            "companies": companies.map(|number| company(&invoicing, number)).collect::<Vec<_>>(),
        }),
    ))
}

/// POST INV/companies/{companyId}/select.
pub(super) async fn select(
    State(invoicing): State<Arc<InvoicingService>>,
    id: Result<Path<String>, PathRejection>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let number = id.ok().and_then(|Path(id)| id.parse::<u32>().ok()?.checked_sub(FIRST_COMPANY));
    let number = number.filter(|&number| number < invoicing.core.settings.world.invoicing_companies);
    let number = number.ok_or_else(|| ApiError::api(404, "there is no such company"))?;
    let Value::String(refresh) = parse(&body)? else {
        return Err(ApiError::api(400, "body: the refreshToken as a JSON string is needed"));
    };

    let (knobs, now) = (invoicing.core.knobs(), invoicing.core.clock.now());
    let tokens = invoicing.tokens.choose(&refresh, number, &knobs.invoicing, now);
    let tokens = tokens.ok_or_else(|| ApiError::api(401, "the refreshToken is not valid"))?;
    let token = format!("Bearer {}", tokens.access);
    let refresh = tokens.refresh;
    let chosen = json!({ "companyStatus": 1, "token": token, "refreshToken": refresh, "productType": 1 });
    Ok(json_answer(200, &chosen))
}

fn company(invoicing: &InvoicingService, number: u32) -> Value {
    let mut random = Random::new(invoicing.core.seed() ^ mix(u64::from(number)), NAMES);
    let mut word = |words: [&'static str; 6]| words[random.below(6) as usize];
    json!({
        "id": InvoicingService::company_id(number),
        "name": format!("{} {} {number}", word(FIRST_WORDS), word(LAST_WORDS)),
        "idCDA": invoicing.tenant(number),
        "default": number == 0,
        "companyStatus": 1,
    })
}

fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::api(400, format!("body: no JSON: {error}")))
}
