//! One declaration per configuration key.
//!
//! A [`ConfigKey`] declares a setting: name, type, default, rule and documentation.
//! Parsing, validation, Connect's `KeyDef` answers and the generated reference all read the same declaration, so they
//! cannot drift apart. Declarations are in `keys!` blocks, grouped as the reference shows them.

use serde::Serialize;

use super::problem::Problem;

pub(crate) use self::rule::{Rule, Violation};

mod rule;

/// What a value is, in Kafka Connect's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Type {
    /// `true` or `false`, in any case.
    Boolean,
    /// Text.
    String,
    /// 32-bit whole number.
    Int,
    /// 16-bit whole number.
    Short,
    /// 64-bit whole number.
    Long,
    /// Number with a fraction.
    Double,
    /// Comma-separated texts; blanks around each are dropped.
    List,
    /// Name of a class, as Kafka Connect names plugins.
    Class,
    /// Text that is never shown: a secret.
    Password,
}

/// How likely a user has to set a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Importance {
    /// Nearly every installation sets the key.
    High,
    /// Many do.
    Medium,
    /// The default nearly always fits.
    Low,
}

/// How wide a form field for the value should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Width {
    /// No hint.
    None,
    /// A number or a word.
    Short,
    /// A name or an address.
    Medium,
    /// A list.
    Long,
}

/// What applies when a key is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The key must be set.
    Required,
    /// No default: the feature is off, or another setting applies; the documentation says which.
    Unset,
    /// This text, as if the user had set it.
    Text(&'static str),
}

/// The declaration of one key; see the module's documentation.
#[derive(Debug, Clone, Copy)]
pub struct ConfigKey {
    /// Full name, as written in a file.
    pub name: &'static str,
    /// Type of the value.
    pub kind: Type,
    /// What applies when it is not set.
    pub fallback: Fallback,
    /// How likely a user has to set it.
    pub importance: Importance,
    /// What it does: unit, range and why, in a sentence or two.
    pub documentation: &'static str,
    /// Heading in forms and in the reference.
    pub group: &'static str,
    /// Hint for forms.
    pub width: Width,
    /// Keys whose meaning depends on this one.
    pub dependents: &'static [&'static str],
    /// What the value, or each item of a list, must satisfy beyond its type.
    pub(crate) rule: Rule,
    /// Whether a list must have an item.
    pub(crate) not_empty: bool,
    /// Whether an empty text is a value, rather than unset.
    pub(crate) is_emptiable: bool,
}

impl ConfigKey {
    /// An optional key without a rule; the `const` methods below refine it.
    pub(crate) const fn new(kind: Type, name: &'static str) -> Self {
        let width = match kind {
            Type::Boolean | Type::Int | Type::Short | Type::Long | Type::Double => Width::Short,
            Type::String | Type::Class | Type::Password => Width::Medium,
            Type::List => Width::Long,
        };
        Self {
            name,
            kind,
            fallback: Fallback::Unset,
            importance: Importance::Medium,
            documentation: "",
            group: "",
            width,
            dependents: &[],
            rule: Rule::Any,
            not_empty: false,
            is_emptiable: false,
        }
    }

    pub(crate) const fn required(mut self) -> Self {
        self.fallback = Fallback::Required;
        self
    }

    pub(crate) const fn or(mut self, default: &'static str) -> Self {
        self.fallback = Fallback::Text(default);
        self
    }

    pub(crate) const fn high(mut self) -> Self {
        self.importance = Importance::High;
        self
    }

    pub(crate) const fn low(mut self) -> Self {
        self.importance = Importance::Low;
        self
    }

    pub(crate) const fn rule(mut self, rule: Rule) -> Self {
        self.rule = rule;
        self
    }

    pub(crate) const fn not_empty(mut self) -> Self {
        self.not_empty = true;
        self
    }

    pub(crate) const fn or_empty(mut self) -> Self {
        self.is_emptiable = true;
        self
    }

    pub(crate) const fn dependents(mut self, names: &'static [&'static str]) -> Self {
        self.dependents = names;
        self
    }

    /// The lines of a doc comment, each with the blank that follows its slashes.
    pub(crate) const fn documentation(mut self, lines: &'static str) -> Self {
        self.documentation = lines.split_at(1).1;
        self
    }

    pub(crate) const fn group(mut self, group: &'static str) -> Self {
        self.group = group;
        self
    }

    /// The default as text, if there is one.
    #[must_use]
    pub fn default_value(&self) -> Option<&'static str> {
        match self.fallback {
            Fallback::Text(text) => Some(text),
            Fallback::Required | Fallback::Unset => None,
        }
    }

    /// The name shown in forms: `tasks.max` is "Tasks max".
    #[must_use]
    pub fn display_name(&self) -> String {
        let words = self.name.replace(['.', '_'], " ");
        let mut letters = words.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
    }

    /// What a value must be, for the reference and for forms; empty if any text is valid.
    #[must_use]
    pub fn valid_values(&self) -> String {
        self.rule.describe(self.kind)
    }

    /// The closed set of values, if there is one.
    #[must_use]
    pub fn recommended_values(&self) -> &'static [&'static str] {
        match (self.kind, self.rule) {
            (_, Rule::OneOf(words)) => words,
            (Type::Boolean, _) => &["true", "false"],
            _ => &[],
        }
    }

    /// Checks a trimmed value against type and rule. The problem never contains the value; for a list it gives the item's position.
    pub(crate) fn check(&self, value: &str) -> Result<(), Problem> {
        let broken = |rule: String| Problem::new(self.name, rule, self.remedy());
        let items: Vec<&str> = if self.kind == Type::List { items(value).collect() } else { vec![value] };
        if self.not_empty && items.is_empty() {
            return Err(broken("must have at least one item".to_owned()));
        }
        for (index, item) in items.iter().enumerate() {
            let checked = rule::check_type(self.kind, item).and_then(|()| self.rule.check(item));
            if let Err(detail) = checked {
                let place = if items.len() > 1 { format!(", item {}", index + 1) } else { String::new() };
                return Err(broken(format!("{detail}{place}")));
            }
        }
        Ok(())
    }

    /// Whether the value is the path of a file that must exist.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.rule, Rule::File)
    }

    /// How to correct a value that breaks the rule.
    pub(crate) fn remedy(&self) -> String {
        match (self.rule, self.fallback) {
            (Rule::Custom { remedy, .. }, _) if !remedy.is_empty() => remedy.to_owned(),
            (Rule::OneOf(words), _) => format!("write {}", words.join(" or ")),
            (Rule::File, _) => "create the file, or correct the path or its permissions".to_owned(),
            (Rule::Size(..), _) => "make a new one, for example with `openssl rand -hex 32`".to_owned(),
            (_, Fallback::Text(default)) => format!("correct it, or remove the key to get {default}"),
            (_, Fallback::Unset) => "correct it, or remove the key".to_owned(),
            (_, Fallback::Required) => "correct it".to_owned(),
        }
    }
}

/// The items of a list value: split at commas, trimmed, empty ones dropped.
pub(crate) fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Declares keys as constants, under group headings, and `KEYS` with all of them in that order. The doc comment of a key is its
/// documentation.
macro_rules! keys {
    ($($group:literal { $(
        $(#[doc = $line:literal])+
        $id:ident = $kind:ident($name:literal)$(.$refine:ident($($argument:expr),*))*;
    )* })*) => {
        $($(pub(crate) const $id: $crate::config::ConfigKey =
            $crate::config::ConfigKey::new($crate::config::Type::$kind, $name)
                .documentation(concat!($($line),+))
                .group($group)
                $(.$refine($($argument),*))*;)*)*
        /// Every key declared in this file, in the order the reference shows them.
        pub(crate) const KEYS: &[$crate::config::ConfigKey] = &[$($($id),*),*];
    };
}
pub(crate) use keys;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_wrong_type_or_outside_its_rule_is_refused() {
        let range = ConfigKey::new(Type::Int, "n").rule(Rule::Range(1, 9));
        let words = ConfigKey::new(Type::String, "w").rule(Rule::OneOf(&["text", "json"]));
        let list = ConfigKey::new(Type::List, "l").rule(Rule::OneOf(&["a", "b"]));
        let some = ConfigKey::new(Type::List, "s").not_empty();
        let rate = ConfigKey::new(Type::Double, "d").rule(Rule::Positive);
        let secret = ConfigKey::new(Type::Password, "s").rule(Rule::Size(4, 6));
        let table = [
            (range, "1", true),
            (range, "9", true),
            (range, "0", false),
            (range, "10", false),
            (range, "zero", false),
            (range, "1.5", false),
            (range, "99999999999", false),
            (words, "json", true),
            (words, "JSON", false),
            (list, "a, b", true),
            (list, "", true),
            (list, "a,c", false),
            (some, "a", true),
            (some, "", false),
            (some, " , ", false),
            (rate, "0.5", true),
            (rate, "0", false),
            (rate, "NaN", false),
            (rate, "inf", false),
            (secret, "abcd", true),
            (secret, "abc", false),
            (secret, "abcdefg", false),
            (ConfigKey::new(Type::Boolean, "b"), "TRUE", true),
            (ConfigKey::new(Type::Boolean, "b"), "yes", false),
            (ConfigKey::new(Type::Short, "r"), "40000", false),
        ];

        for (key, value, sound) in table {
            assert_eq!(key.check(value).is_ok(), sound, "{} = {value}", key.name);
        }
    }

    #[test]
    fn pipe_is_refused_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let key = ConfigKey::new(Type::String, "f").rule(Rule::File);

        let broken = key.check(pipe.to_str().unwrap()).unwrap_err();

        assert!(broken.rule.starts_with("must be the path of a readable file"), "{}", broken.rule);
    }

    #[test]
    fn names_for_people_come_from_the_key() {
        assert_eq!(ConfigKey::new(Type::Int, "tasks.max").display_name(), "Tasks max");
    }
}
