//! A minimal parser of PromQL: finds the metrics of a query with their matchers, and the labels to group by. `promtool` checks the rest of
//! the syntax (`tests/tools/check.sh`).

use std::iter::Peekable;
use std::str::Chars;

/// A metric in a query.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueriedMetric {
    pub(crate) metric: String,
    /// The function whose first argument it starts, if there is one.
    pub(crate) function: Option<String>,
    pub(crate) matchers: Vec<Matcher>,
}

/// `label="value"`, or with `!=`, `=~`, `!~`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matcher {
    pub(crate) label: String,
    pub(crate) is_pattern: bool,
    pub(crate) value: String,
}

impl Matcher {
    /// Every value that it names; none if a pattern is more than alternatives, or a variable of the dashboard.
    pub(crate) fn values(&self) -> Vec<&str> {
        let is_plain = |value: &str| !value.contains(['$', '*', '+', '(', '[', '\\']);
        match (self.is_pattern, is_plain(&self.value)) {
            (true, true) => self.value.split('|').collect(),
            (false, true) => vec![&self.value],
            (_, false) => Vec::new(),
        }
    }
}

/// The names in a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PromQuery {
    pub(crate) metrics: Vec<QueriedMetric>,
    /// Labels to group by or to join on.
    pub(crate) labels: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PromToken {
    Word(String),
    Text(String),
    /// A number, a duration, or a variable of the dashboard.
    Other,
    Sign(char),
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 6] = ["and", "or", "unless", "offset", "bool", "atan2"];
/// Words that may be followed by `by` instead of a bracket.
const AGGREGATIONS: [&str; 7] = ["sum", "min", "max", "avg", "count", "group", "topk"];

impl PromQuery {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let tokens = tokens(text)?;
        let mut query = Self::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            let word = match token {
                PromToken::Word(word) => word.as_str(),
                PromToken::Sign('{') => return Err(format!("a selector without a name: {text}")),
                _ => continue,
            };
            let opens = tokens.get(at) == Some(&PromToken::Sign('('));
            if GROUPING.contains(&word) {
                if opens {
                    at += 1;
                    while let Some(token) = tokens.get(at).filter(|token| **token != PromToken::Sign(')')) {
                        if let PromToken::Word(label) = token {
                            query.labels.push(label.clone());
                        }
                        at += 1;
                    }
                }
                continue;
            }
            if opens || OPERATORS.contains(&word) || AGGREGATIONS.contains(&word) {
                continue;
            }
            let function = match at.checked_sub(3).map(|before| &tokens[before..at - 1]) {
                Some([PromToken::Word(function), PromToken::Sign('(')]) => Some(function.clone()),
                _ => None,
            };
            let mut matchers = Vec::new();
            if tokens.get(at) == Some(&PromToken::Sign('{')) {
                at += 1;
                while tokens.get(at) != Some(&PromToken::Sign('}')) {
                    let (matcher, next) =
                        matcher(&tokens, at).ok_or_else(|| format!("no matcher: {text}"))?;
                    matchers.push(matcher);
                    at = next;
                }
                at += 1;
            }
            query.metrics.push(QueriedMetric { metric: word.to_owned(), function, matchers });
        }
        Ok(query)
    }
}

/// A matcher and the position of the next one.
fn matcher(tokens: &[PromToken], at: usize) -> Option<(Matcher, usize)> {
    let (is_pattern, length) = match tokens.get(at + 1..at + 3)? {
        [PromToken::Sign('=' | '!'), PromToken::Sign('~')] => (true, 2),
        [PromToken::Sign('!'), PromToken::Sign('=')] => (false, 2),
        [PromToken::Sign('='), _] => (false, 1),
        _ => return None,
    };
    let [PromToken::Word(label), PromToken::Text(value)] = [tokens.get(at)?, tokens.get(at + 1 + length)?]
    else {
        return None;
    };
    let end = at + 2 + length;
    let comma = usize::from(tokens.get(end) == Some(&PromToken::Sign(',')));
    Some((Matcher { label: label.clone(), is_pattern, value: value.clone() }, end + comma))
}

fn tokens(text: &str) -> Result<Vec<PromToken>, String> {
    let mut letters = text.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(letter) = letters.next() {
        tokens.push(match letter {
            ' ' | '\n' | '\t' => continue,
            'a'..='z' | 'A'..='Z' | '_' | ':' => PromToken::Word(word(letter, &mut letters)),
            '0'..='9' | '$' => {
                while letters
                    .next_if(|next| next.is_ascii_alphanumeric() || ['_', '.'].contains(next))
                    .is_some()
                {}
                PromToken::Other
            }
            '"' => {
                let mut value = String::new();
                loop {
                    match letters.next().ok_or_else(|| format!("a text does not end: {text}"))? {
                        '"' => break,
                        '\\' => value.extend(letters.next()),
                        other => value.push(other),
                    }
                }
                PromToken::Text(value)
            }
            sign => PromToken::Sign(sign),
        });
    }
    Ok(tokens)
}

fn word(first: char, letters: &mut Peekable<Chars<'_>>) -> String {
    let mut word = String::from(first);
    while let Some(next) = letters.next_if(|next| next.is_ascii_alphanumeric() || ['_', ':'].contains(next)) {
        word.push(next);
    }
    word
}

crate::tests! {
    plain query_parser_finds_metrics_and_labels;
}

async fn query_parser_finds_metrics_and_labels() {
    let text = r#"histogram_quantile(0.99, sum by (le, family) (rate(a_bucket{instance=~"$instance",le!="5"}[5m])))
        / on (family) group_left max(b > 0) and c offset 5m unless absent(d{x=~"e|f"}) or vector(0) < 7 * 86400"#;

    let query = PromQuery::parse(text).unwrap();

    let named: Vec<(&str, Option<&str>)> =
        query.metrics.iter().map(|one| (one.metric.as_str(), one.function.as_deref())).collect();
    assert_eq!(named, [("a_bucket", Some("rate")), ("b", Some("max")), ("c", None), ("d", Some("absent"))]);
    assert_eq!(query.labels, ["le", "family", "family"]);
    let [variable, bound] = &query.metrics[0].matchers[..] else { panic!("{query:?}") };
    assert_eq!((variable.label.as_str(), variable.values()), ("instance", Vec::new()));
    assert_eq!((bound.label.as_str(), bound.values()), ("le", vec!["5"]));
    assert_eq!(query.metrics[3].matchers[0].values(), ["e", "f"]);
    for bad in [r#"{job="x"}"#, r#"a{b="c}"#, "a{b}", "a{b=1}"] {
        assert!(PromQuery::parse(bad).is_err(), "{bad}");
    }
}
