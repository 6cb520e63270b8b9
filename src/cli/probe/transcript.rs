//! A redacted transcript of a probe: JSON lines, which `tributary simulate --transcript` replays.
//!
//! The first line is `{"transcript": 1}`, each further one a request with its answers. Kept are paths, queries (which are the probe's
//! own), status, times, `sequenceVersion`, names of events and members, the words of an error that decide its verdict, headers about
//! content type, pages, limits and date. Every other text and payroll code is replaced, and every other number is 0.
//!
//! The same value gets the same pseudonym, so that ids of rows and paths still match. Pseudonyms are random, and sorted as the values
//! are, so that orders stay. The mapping exists only while the file is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use serde_json::{Map, Value, json};

use base::random;
use model::Moment;
use provider::api::RawAnswer;

use super::{
    questions::{UNKNOWN_ID, is_semantic_name},
    session::{ContextForm, RecordedExchange, ahead_ms, limit_headers},
};

/// Version of the format.
const VERSION: u32 = 1;

/// A value that is replaced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PrivateValue {
    Number(i64),
    Text(String),
}

/// Pseudonyms by value.
type Pseudonyms = BTreeMap<PrivateValue, Value>;

/// Writes the exchanges. `company` was named on the command line; a replay has to name its pseudonym, which is in the first line.
pub(super) fn write(tape: &[RecordedExchange], company: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let mut originals = BTreeSet::new();
    for exchange in tape {
        line(exchange, &mut |original| {
            originals.insert(original.clone());
            Value::Null
        });
    }
    originals.extend(company.map(|company| PrivateValue::Text(company.to_owned())));
    let pseudonyms = pseudonyms(originals)?;
    let mut replace = |original: &PrivateValue| pseudonyms.get(original).cloned().unwrap_or_default();
    let company = company.map(|company| replace(&PrivateValue::Text(company.to_owned())));
    writeln!(out, "{}", json!({ "transcript": VERSION, "company": company }))?;
    for exchange in tape {
        writeln!(out, "{}", line(exchange, &mut replace))?;
    }
    Ok(())
}

/// Random values in the order of the originals: texts of hexadecimal digits, and whole numbers.
fn pseudonyms(originals: BTreeSet<PrivateValue>) -> io::Result<Pseudonyms> {
    let mut drawn = BTreeSet::new();
    // Twice the same value is all but impossible.
    for _ in 0..originals.len() + 8 {
        let number = u64::from_be_bytes(random::bytes::<8>().map_err(io::Error::other)?);
        drawn.insert(number >> 16);
    }
    let named = originals.into_iter().zip(drawn).map(|(original, number)| {
        let pseudonym = match original {
            PrivateValue::Number(_) => json!(number),
            PrivateValue::Text(_) => json!(format!("{number:012x}")),
        };
        (original, pseudonym)
    });
    Ok(named.collect())
}

/// An exchange whose values are replaced.
fn line(exchange: &RecordedExchange, replace: &mut dyn FnMut(&PrivateValue) -> Value) -> Value {
    let request = &exchange.request;
    let mut id = |id: &str| match id {
        "" | UNKNOWN_ID => json!(id),
        id => replace(&PrivateValue::Text(id.to_owned())),
    };
    let context = match &request.context {
        ContextForm::Absent => Value::Null,
        ContextForm::None => json!("none"),
        ContextForm::Company(company) => json!({ "clientId": id(company) }),
    };
    let (id, query): (_, BTreeMap<_, _>) = (id(&request.id), request.query.iter().cloned().collect());
    let has_names = request.path.ends_with("/webhooks/events");
    let answers: Vec<Value> =
        exchange.answers.iter().map(|answer| redacted(answer, has_names, replace)).collect();
    json!({ "path": request.path, "id": id, "query": query, "context": context, "answers": answers })
}

fn redacted(answer: &RawAnswer, has_names: bool, replace: &mut dyn FnMut(&PrivateValue) -> Value) -> Value {
    let mut headers = limit_headers(answer);
    headers.extend(answer.header("content-type").map(|kind| ("content-type".to_owned(), kind.to_owned())));
    headers.extend(answer.header("x-pagination").map(|text| ("x-pagination".to_owned(), numbers_only(text))));
    // A date would be over when it is replayed.
    let date = |name: &str| answer.header(name).and_then(Moment::parse_http);
    let wait = date("retry-after").zip(date("date")).map(|(end, now)| (end.micros() - now.micros()).max(0));
    headers.extend(wait.map(|micros| ("retry-after".to_owned(), (micros / 1_000_000).to_string())));
    // The replay dates its answers by its own clock and this difference.
    let mut line = json!({ "status": answer.status, "headers": headers, "aheadMs": ahead_ms(answer) });
    match answer.json() {
        _ if answer.is_empty() => {}
        Some(body) => line["json"] = value("", body, has_names, replace),
        None => line["text"] = json!("(left out)"),
    }
    line
}

/// A header with a JSON object, of which whole numbers are kept.
fn numbers_only(text: &str) -> String {
    let members = serde_json::from_str::<Map<String, Value>>(text);
    let kept = |members: Map<String, Value>| {
        let kept = members.into_iter().filter(|(name, value)| is_plain(name) && value.is_u64());
        Value::Object(kept.collect()).to_string()
    };
    members.map_or_else(|_| "(left out)".to_owned(), kept)
}

/// A value of a body, under the name of its member.
fn value(
    member: &str,
    original: Value,
    has_names: bool,
    replace: &mut dyn FnMut(&PrivateValue) -> Value,
) -> Value {
    match original {
        Value::Null | Value::Bool(_) => original,
        Value::Number(number) => match (member, number.as_i64()) {
            ("httpCode" | "statusCode", Some(100..=599)) => Value::Number(number),
            ("companyCode", Some(code)) => replace(&PrivateValue::Number(code)),
            _ => json!(0),
        },
        Value::String(text) => {
            if let Some(decisive) = decisive_words(&text).filter(|_| member == "message") {
                return Value::String(decisive);
            }
            let is_number = || text.len() <= 20 && text.bytes().all(|one| one.is_ascii_digit());
            let is_kept = text.is_empty()
                || Moment::parse(&text).is_some()
                || (member == "sequenceVersion" && is_number())
                || (has_names && is_semantic_name(&text));
            if is_kept { Value::String(text) } else { replace(&PrivateValue::Text(text)) }
        }
        Value::Array(values) => {
            values.into_iter().map(|one| value(member, one, has_names, replace)).collect()
        }
        Value::Object(members) => {
            let odd =
                |place: usize, name: String| if is_plain(&name) { name } else { format!("member{place}") };
            let members = members.into_iter().enumerate();
            let members = members.map(|(place, (name, one))| {
                let one = value(&name, one, has_names, replace);
                (odd(place, name), one)
            });
            Value::Object(members.collect())
        }
    }
}

/// The words of an error that decide its verdict; `None` if it has none.
fn decisive_words(message: &str) -> Option<String> {
    let message = message.to_ascii_lowercase();
    let words: Vec<&str> = message.split_whitespace().collect();
    let mut pairs = words.windows(2).filter(|pair| pair[1].starts_with("second"));
    let wait = pairs.find_map(|pair| pair[0].parse::<u32>().ok());
    let known = ["subscription key", "call volume quota"].into_iter().filter(|known| message.contains(known));
    let kept: Vec<String> =
        known.map(str::to_owned).chain(wait.map(|wait| format!("try again in {wait} seconds"))).collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

/// Whether the name of a member is an identifier. Another may be data.
fn is_plain(name: &str) -> bool {
    name.len() <= 64 && name.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '_' | '$'))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use provider::{api::ReadTimes, auth::Area};

    use super::*;
    use crate::cli::probe::session::ProbeRequest;

    fn exchange(path: &str, id: &str, body: &Value) -> RecordedExchange {
        let now = SystemTime::now();
        let times = ReadTimes { sent: now, answered: now, date: Some(now), age: None };
        let header = |name: &'static str, value: &'static str| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
        };
        let headers = [
            header("content-type", "application/json"),
            header("x-pagination", r#"{"totalCount":2,"next":"https://a/Ana"}"#),
            header("set-cookie", "session=Ana"),
            header("retry-after", "7"),
        ];
        let body = body.to_string().into();
        let answer = RawAnswer { status: 200, headers: headers.into_iter().collect(), body, times };
        let request = ProbeRequest {
            area: Area::Accounting,
            path: path.to_owned(),
            id: id.to_owned(),
            query: vec![("pageNumber", "1".to_owned())],
            context: ContextForm::Company("company-1".to_owned()),
        };
        RecordedExchange { request, answers: vec![answer] }
    }

    fn written(tape: &[RecordedExchange]) -> (String, Vec<Value>) {
        let mut out = Vec::new();
        write(tape, None, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (text, lines)
    }

    #[test]
    fn ids_match_and_orders_stay_under_pseudonyms() {
        let rows = json!([
            { "correlationId": "a-1", "companyCode": 7, "sequenceVersion": "12", "lastUpdate": "2024-05-06T07:08:09Z" },
            { "correlationId": "b-2", "companyCode": 90, "sequenceVersion": "x", "lastUpdate": "2024-05-06" },
        ]);
        let record = json!({ "correlationId": "b-2", "blocked": true, "vatName": "" });

        let (text, lines) = written(&[exchange("list", "", &rows), exchange("list/{id}", "b-2", &record)]);

        let rows = &lines[1]["answers"][0]["json"];
        let (one, other) =
            (rows[0]["correlationId"].as_str().unwrap(), rows[1]["correlationId"].as_str().unwrap());
        assert!(one < other && rows[0]["companyCode"].as_i64() < rows[1]["companyCode"].as_i64(), "{text}");
        assert_eq!(
            (&lines[2]["id"], &lines[2]["answers"][0]["json"]["correlationId"]),
            (&json!(other), &json!(other))
        );
        assert_eq!(lines[1]["context"], lines[2]["context"]);
        assert_eq!(
            (&rows[0]["sequenceVersion"], &rows[0]["lastUpdate"]),
            (&json!("12"), &json!("2024-05-06T07:08:09Z"))
        );
        assert!(rows[0]["companyCode"] != 7 && rows[1]["companyCode"] != 90, "{text}");
        for hidden in ["a-1", "b-2", "company-1", "2024-05-06\"", "\"x\""] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        assert_eq!(
            lines[2]["answers"][0]["json"],
            json!({ "correlationId": other, "blocked": true, "vatName": "" })
        );
    }

    #[test]
    fn the_words_that_decide_a_verdict_are_kept() {
        for (message, kept) in [
            ("Access denied due to invalid subscription key of Ana.", Some("subscription key")),
            ("Rate limit is exceeded. Try again in 17 seconds.", Some("try again in 17 seconds")),
            ("Out of call volume quota, Ana.", Some("call volume quota")),
            ("Ana owes 1234", None),
        ] {
            assert_eq!(decisive_words(message).as_deref(), kept);
        }
        let body =
            json!({ "statusCode": 401, "message": "Ana needs a subscription key", "vatName": "17 seconds" });

        let (text, lines) = written(&[exchange("accounts", "", &body)]);

        assert_eq!(lines[1]["answers"][0]["json"]["message"], "subscription key");
        assert!(!text.contains("Ana") && !text.contains("17 seconds"), "{text}");
    }

    #[test]
    fn names_amounts_and_other_headers_are_left_out() {
        let body = json!({
            "vatName": "Ana S.L.", "total": 1234.5, "Ana's balance": 5, "tags": ["Ana", 5], "httpCode": 422,
            "message": "Ana owes 1234", "Svc.ACC.Ana": "Svc.ACC.Accounts.AccountCreated",
        });

        let (text, lines) =
            written(&[exchange("accounts", "", &body), exchange("accounts/webhooks/events", "", &body)]);

        assert!(["Ana", "owes", "1234.5"].iter().all(|hidden| !text.contains(hidden)), "{text}");
        let answer = &lines[1]["answers"][0];
        let numbers = answer["json"].as_object().unwrap().values().filter_map(Value::as_i64);
        assert_eq!(numbers.collect::<BTreeSet<_>>(), BTreeSet::from([0, 422]));
        let headers = json!({ "content-type": "application/json", "retry-after": "7", "x-pagination": r#"{"totalCount":2}"# });
        assert_eq!(answer["headers"], headers);
        assert!(lines[2].to_string().contains("Svc.ACC.Accounts.AccountCreated"), "{text}");
        assert!(!lines[1].to_string().contains("AccountCreated"), "{text}");
    }
}
