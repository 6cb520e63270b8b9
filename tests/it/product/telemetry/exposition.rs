//! Prometheus' text format, parsed a little more strictly than by Prometheus: no series twice, no sample without help and type, no family in
//! two places.

use std::collections::{BTreeMap, BTreeSet};

/// Samples by series: the name with its labels in alphabetical order.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    samples: BTreeMap<String, f64>,
}

impl Exposition {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if !text.ends_with('\n') {
            return Err("the last line does not end".to_owned());
        }
        let mut read = Self::default();
        let (mut helped, mut typed) = (BTreeSet::new(), BTreeMap::new());
        let mut family = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let fault = |what: &str| format!("{what}: {line}");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').ok_or_else(|| fault("no help"))?;
                if !helped.insert(name.to_owned()) || help.trim().is_empty() {
                    return Err(fault("help is empty, or there twice"));
                }
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| fault("no type"))?;
                let known = ["counter", "gauge", "histogram"].contains(&kind);
                if !known
                    || !helped.contains(name)
                    || typed.insert(name.to_owned(), kind.to_owned()).is_some()
                {
                    return Err(fault("type is unknown, without help, or there twice"));
                }
                name.clone_into(&mut family);
                continue;
            }
            let (series, name, value) = sample(line).ok_or_else(|| fault("no sample"))?;
            let base = match typed.get(&family).map(String::as_str) {
                Some("histogram") => ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .ok_or_else(|| fault("no part of a histogram"))?,
                _ => name.as_str(),
            };
            if base != family {
                return Err(fault(&format!("a sample among those of {family}")));
            }
            if read.samples.insert(series, value).is_some() {
                return Err(fault("a series is there twice"));
            }
        }
        Ok(read)
    }

    /// The value of a series, its labels in alphabetical order.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        self.samples.get(series).copied()
    }

    /// Every series whose text contains this.
    pub(crate) fn naming(&self, text: &str) -> Vec<&str> {
        self.samples.keys().map(String::as_str).filter(|series| series.contains(text)).collect()
    }
}

/// Series, name and value of a line.
fn sample(line: &str) -> Option<(String, String, f64)> {
    let end = line.find(|letter: char| !(letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':')))?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let sound = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            if key.is_empty() || !key.chars().all(sound) {
                return None;
            }
            let mut value = String::new();
            let mut letters = after.char_indices();
            let close = loop {
                match letters.next()? {
                    (at, '"') => break at,
                    (_, '\\') => match letters.next()?.1 {
                        'n' => value.push('\n'),
                        escaped @ ('"' | '\\') => value.push(escaped),
                        _ => return None,
                    },
                    (_, letter) => value.push(letter),
                }
            };
            if labels.insert(key.to_owned(), value).is_some() {
                return None;
            }
            rest = &after[close + 1..];
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    Some((format!("{name}{{{}}}", labels.join(",")), name.to_owned(), value))
}

crate::tests! {
    plain a_page_that_breaks_the_format_is_found;
}

async fn a_page_that_breaks_the_format_is_found() {
    let head = "# HELP a_total A.\n# TYPE a_total counter\n";
    let sound = format!("{head}a_total{{x=\"q\\\"\\n\",a=\"1\"}} 2\n");
    assert_eq!(Exposition::parse(&sound).unwrap().value("a_total{a=1,x=q\"\n}"), Some(2.0));

    for bad in [
        "a_total 1\n",
        &format!("{head}a_total 1"),
        &format!("{head}a_total 1\na_total 2\n"),
        &format!("{head}b_total 1\n"),
        &format!("{head}a_total{{x=\"1}} 1\n"),
        &format!("{head}a_total{{x-y=\"1\"}} 1\n"),
        &format!("{head}a_total one\n"),
        &format!("{head}{head}"),
        "# TYPE a_total counter\na_total 1\n",
    ] {
        assert!(Exposition::parse(bad).is_err(), "{bad}");
    }
}
