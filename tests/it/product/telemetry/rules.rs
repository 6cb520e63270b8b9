//! Parses Prometheus' alerting rules from the subset of YAML that our file uses: keys, quoted and plain texts, blocks. Refuses other
//! YAML, so that nothing is misread; `promtool` reads the file as Prometheus does.

use std::collections::BTreeMap;

/// Keys of a rule and of its sections, such as `expr`, `severity` and `summary`.
pub(crate) type AlertRule = BTreeMap<String, String>;

/// Every rule of a file, in order.
pub(crate) fn parse(text: &str) -> Result<Vec<AlertRule>, String> {
    let mut rules: Vec<AlertRule> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let fault = |what: &str| format!("{what}: {line}");
        let content = line.trim_start();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let item = content.strip_prefix("- ");
        let indent = line.len() - item.unwrap_or(content).len();
        let (key, value) = item.unwrap_or(content).split_once(':').ok_or_else(|| fault("no key"))?;
        let value = match value.trim() {
            block @ ("|-" | ">-") => {
                let mut inner = Vec::new();
                let belongs =
                    |line: &&str| line.trim().is_empty() || line.len() - line.trim_start().len() > indent;
                while let Some(line) = lines.next_if(belongs) {
                    inner.push(line.trim());
                }
                inner.join(if block == "|-" { "\n" } else { " " }).trim().to_owned()
            }
            quoted if quoted.starts_with('\'') => {
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                inner.ok_or_else(|| fault("a text does not end"))?.replace("''", "'")
            }
            plain if plain.starts_with(['"', '&', '*', '!', '{', '[', '|', '>', '%', '@']) => {
                return Err(fault("a form that is not read"));
            }
            plain if plain.contains(": ") || plain.contains(" #") => return Err(fault("to be quoted")),
            plain => plain.to_owned(),
        };
        if item.is_some() && key == "alert" {
            rules.push(AlertRule::new());
        }
        match rules.last_mut() {
            // The next group begins.
            _ if item.is_some() && key == "name" => {}
            Some(rule) if indent > 6 => {
                let before = rule.insert(key.to_owned(), value);
                before.map_or(Ok(()), |_| Err(fault("a key is there twice")))?;
            }
            _ => {}
        }
    }
    Ok(rules)
}

crate::tests! {
    plain rules_are_read_as_they_are_written;
}

async fn rules_are_read_as_they_are_written() {
    let text = "groups:\n  - name: a\n    rules:\n      - alert: One\n        # why\n        expr: |-\n          up\n            == 0\n\
                \x20       for: 1m\n        labels:\n          severity: critical\n        annotations:\n          summary: 'it''s: {{ $value }}'\n\
                \x20 - name: b\n    rules:\n      - alert: Two\n        expr: up > 1\n";

    let rules = parse(text).unwrap();

    let keys = |rule: &AlertRule| rule.keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&rules[0]), "alert annotations expr for labels severity summary");
    assert_eq!((rules[0]["expr"].as_str(), rules[0]["summary"].as_str()), ("up\n== 0", "it's: {{ $value }}"));
    assert_eq!((rules[1]["alert"].as_str(), rules[1]["expr"].as_str()), ("Two", "up > 1"));
    let head = "groups:\n  - name: a\n    rules:\n      - alert: One\n        ";
    for bad in ["expr: {a: b}", "expr", "expr: a: b", "expr: a # b", "expr: 'a", "alert: Two"] {
        assert!(parse(&format!("{head}{bad}\n")).is_err(), "{bad}");
    }
}
