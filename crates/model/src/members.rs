//! Splits a JSON object into members without losing anything, and writes it again.
//!
//! [`Members`] holds an object's members in order, including repeated ones, each with its raw text. A typed field takes the last
//! member of its name, as JSON parsers do, if it has the expected type; [`Members::rest`] puts all others into the `extra` map
//! of our schemas. [`Object`] writes the object.
//!
//! Labels of `extra`, one-to-one with (name, occurrence):
//!
//! - the last or only member of a name: the name, with each `#` doubled;
//! - earlier ones: the same, then `#1`, `#2` … in the order they came;
//! - a name that is not Unicode (a lone surrogate escape): `#`, then its JSON text with quotes, each `#`
//!   doubled.
//!
//! Not kept: the order of members with different names, white space between them, and the escaping of strings that became typed
//! fields. Only the levels in our schemas are parsed; values in `extra` are skipped without recursion, so their depth needs no
//! stack, and their size is bounded by the caller's limit on the body.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
};

use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use super::{Error, SchemaKind};

/// Declares a struct for an object of the provider that parses and writes it. A field is parsed and written by the method of that
/// name of [`Members`] and [`Object`], or computed from earlier fields; `extra` holds all other members.
macro_rules! provider_object {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(($company:ident))? {
            $(
                $(#[$doc:meta])*
                $field:ident: $type:ty = $($kind:ident $member:literal)? $(($computed:expr))?,
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                /// Correlation id of the company the record belongs to: the company part of the record's key.
                pub $company: $crate::CompanyId,
            )?
            $($(#[$doc])* pub $field: $type,)*
            /// What no other field holds.
            pub extra: $crate::Extra,
        }

        impl $name {
            pub(crate) fn from_members(
                mut members: $crate::members::Members<'_>,
                $($company: &$crate::CompanyId,)?
            ) -> Self {
                $(let $field = $(members.$kind($member))? $($computed)?;)*
                Self { $($company: $company.clone(),)? $($field,)* extra: members.rest() }
            }

            /// The provider's object.
            #[must_use]
            pub fn to_json(&self) -> String {
                $crate::members::Object::with(&self.extra)$($(.$kind($member, &self.$field))?)*.finish()
            }
        }
    };
}
pub(super) use provider_object;

/// An object of the provider that is a member of another one.
pub(super) trait NestedObject {
    fn read(members: Members<'_>) -> Self;
    fn write(&self) -> String;
}

/// Lets structs of [`provider_object!`] be fields of others.
macro_rules! nested_objects {
    ($($name:ident),+) => {
        $(impl $crate::members::NestedObject for $name {
            fn read(members: $crate::members::Members<'_>) -> Self {
                Self::from_members(members)
            }

            fn write(&self) -> String {
                self.to_json()
            }
        })+
    };
}
pub(super) use nested_objects;

/// JSON text by label. See the module's head.
pub type Extra = BTreeMap<String, String>;

/// The members of one object. See the module's head.
#[derive(Default)]
pub(super) struct Members<'a>(Vec<ObjectMember<'a>>);

struct ObjectMember<'a> {
    label: Cow<'a, str>,
    value: &'a RawValue,
    taken: bool,
}

impl<'a> Members<'a> {
    pub(super) fn parse(schema: SchemaKind, json: &'a [u8]) -> Result<Self, Error> {
        let json = without_bom(json);
        // Checked here because serde_json's error would quote the value.
        let first = json.iter().find(|byte| !byte.is_ascii_whitespace());
        if first.is_some_and(|byte| *byte != b'{') && serde_json::from_slice::<&RawValue>(json).is_ok() {
            return Err(Error::NotAnObject { schema });
        }
        serde_json::from_slice(json).map_err(|error| Error::Malformed {
            schema,
            line: error.line(),
            column: error.column(),
        })
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.take(name, |value| decoded(value.get()).map(Cow::into_owned))
    }

    /// Takes text. Unquoted digits are read but not taken: their JSON stays in `extra`, so that [`Object::digits`] writes a number
    /// again.
    pub(super) fn digits(&mut self, name: &str) -> Option<String> {
        self.text(name).or_else(|| {
            let json = self.last(name)?.value.get();
            json.bytes().all(|byte| byte.is_ascii_digit()).then(|| json.to_owned())
        })
    }

    /// Whether there is a non-null value, taken or not.
    pub(super) fn has_value(&self, name: &str) -> bool {
        self.last(name).is_some_and(|member| member.value.get() != "null")
    }

    /// Takes a number only if it is an `i64` that is written the same way again.
    pub(super) fn integer(&mut self, name: &str) -> Option<i64> {
        self.take(name, |value| match value.get() {
            // The only other spelling of an integer without fraction and exponent.
            "-0" => None,
            text => text.parse().ok(),
        })
    }

    /// Takes any non-null value, as JSON text.
    pub(super) fn json(&mut self, name: &str) -> Option<String> {
        self.take(name, |value| (value.get() != "null").then(|| value.get().to_owned()))
    }

    /// Takes an object.
    pub(super) fn nested<T: NestedObject>(&mut self, name: &str) -> Option<T> {
        self.take(name, object).map(T::read)
    }

    /// Takes an array only if every element is an object.
    pub(super) fn each<T: NestedObject>(&mut self, name: &str) -> Option<Vec<T>> {
        self.take(name, objects).map(|objects| objects.into_iter().map(T::read).collect())
    }

    /// Takes an array only if every element is an object, and not if it is empty.
    pub(super) fn some_objects(&mut self, name: &str) -> Option<Vec<Members<'a>>> {
        self.take(name, |value| objects(value).filter(|objects| !objects.is_empty()))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|member| member.label == name)
    }

    /// Everything that was not taken.
    pub(super) fn rest(self) -> Extra {
        let mut extra = Extra::new();
        if self.0.iter().all(|member| member.taken) {
            return extra;
        }
        let mut remaining: HashMap<&str, (usize, usize)> = HashMap::new();
        for member in &self.0 {
            remaining.entry(&member.label).or_default().1 += 1;
        }
        for member in &self.0 {
            let (seen, total) = remaining.entry(&member.label).or_default();
            *seen += 1;
            if member.taken {
                continue;
            }
            let label = if seen == total {
                member.label.clone().into_owned()
            } else {
                format!("{}#{seen}", member.label)
            };
            extra.insert(label, member.value.get().to_owned());
        }
        extra
    }

    fn last(&self, name: &str) -> Option<&ObjectMember<'a>> {
        self.0.iter().rev().find(|member| member.label == name)
    }

    fn take<T>(&mut self, name: &str, read: impl FnOnce(&'a RawValue) -> Option<T>) -> Option<T> {
        let member = self.0.iter_mut().rev().find(|member| member.label == name)?;
        let value = read(member.value)?;
        member.taken = true;
        Some(value)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> de::Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                // Most objects have fewer members; growing from zero would move each member several times.
                let mut members = Vec::with_capacity(12);
                while let Some((name, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
                    members.push(ObjectMember { label: label(name.get()), value, taken: false });
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

/// An object being written. Members are sorted by name.
#[derive(Default)]
pub(super) struct Object(BTreeMap<(String, usize), String>);

/// Position of the last member of a name, after all earlier ones.
const LAST: usize = usize::MAX;

impl Object {
    pub(super) fn with(extra: &Extra) -> Self {
        Self(extra.iter().map(|(label, json)| (occurrence(label), json.clone())).collect())
    }

    pub(super) fn text(self, name: &str, value: &Option<String>) -> Self {
        self.json(name, value.as_deref().map(quoted))
    }

    /// As [`Object::text`], unless `extra` has the original member.
    pub(super) fn digits(mut self, name: &str, value: &Option<String>) -> Self {
        if let Some(text) = value {
            self.0.entry((quoted(name), LAST)).or_insert_with(|| quoted(text));
        }
        self
    }

    pub(super) fn integer(self, name: &str, value: &Option<i64>) -> Self {
        self.json(name, value.map(|number| number.to_string()))
    }

    pub(super) fn nested<T: NestedObject>(self, name: &str, value: &Option<T>) -> Self {
        self.json(name, value.as_ref().map(T::write))
    }

    pub(super) fn each<T: NestedObject>(self, name: &str, values: &Option<Vec<T>>) -> Self {
        let array = |values: &Vec<T>| {
            let values: Vec<_> = values.iter().map(T::write).collect();
            format!("[{}]", values.join(","))
        };
        self.json(name, values.as_ref().map(array))
    }

    pub(super) fn json(mut self, name: &str, value: Option<String>) -> Self {
        if let Some(json) = value {
            self.0.insert((quoted(name), LAST), json);
        }
        self
    }

    pub(super) fn finish(self) -> String {
        let members: Vec<_> = self.0.into_iter().map(|((name, _), json)| format!("{name}:{json}")).collect();
        format!("{{{}}}", members.join(","))
    }
}

/// JSON without a byte order mark, which JSON parsers refuse.
pub(super) fn without_bom(json: &[u8]) -> &[u8] {
    json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json)
}

fn object(value: &RawValue) -> Option<Members<'_>> {
    value.get().starts_with('{').then(|| serde_json::from_str(value.get()).ok()).flatten()
}

fn objects(value: &RawValue) -> Option<Vec<Members<'_>>> {
    let elements: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
    elements.into_iter().map(object).collect()
}

/// The text of a JSON string; `None` if it is not a string or not Unicode.
fn decoded(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(json).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn label(name: &str) -> Cow<'_, str> {
    match decoded(name) {
        Some(text) if text.contains('#') => Cow::Owned(text.replace('#', "##")),
        Some(text) => text,
        None => Cow::Owned(format!("#{}", name.replace('#', "##"))),
    }
}

/// Parses a label: the name as JSON text, and its position among members of that name.
fn occurrence(label: &str) -> (String, usize) {
    let (raw, escaped) = match label.strip_prefix('#') {
        Some(rest) if rest.starts_with('"') => (true, rest),
        _ => (false, label),
    };
    let mut name = String::with_capacity(escaped.len());
    let mut place = LAST;
    let mut rest = escaped;
    while let Some((before, after)) = rest.split_once('#') {
        name.push_str(before);
        if let Some(after) = after.strip_prefix('#') {
            name.push('#');
            rest = after;
        } else {
            // Labels that `Members` did not make may not be numbers; they are kept as the last of their name.
            place = after.parse().unwrap_or(LAST);
            rest = "";
        }
    }
    name.push_str(rest);
    (if raw { name } else { quoted(&name) }, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(json: &str) -> Members<'_> {
        Members::parse(SchemaKind::Customer, json.as_bytes()).unwrap()
    }

    fn extra(json: &str) -> Vec<(String, String)> {
        members(json).rest().into_iter().collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, json)| ((*name).to_owned(), (*json).to_owned())).collect()
    }

    #[test]
    fn only_members_of_the_expected_type_are_taken() {
        let mut object = members(r#"{"a":"x","b":null,"c":7,"d":7.0,"e":-0,"f":"\ud800","g":{"h":1}}"#);

        assert_eq!(object.text("a").as_deref(), Some("x"));
        assert_eq!(object.text("b"), None);
        assert_eq!(object.integer("c"), Some(7));
        assert_eq!(object.integer("d"), None);
        assert_eq!(object.integer("e"), None);
        assert_eq!(object.text("f"), None);
        assert_eq!(object.text("g"), None);
        assert_eq!(object.text("missing"), None);
        let rest: Vec<_> = object.rest().into_iter().collect();
        assert_eq!(
            rest,
            pairs(&[("b", "null"), ("d", "7.0"), ("e", "-0"), ("f", r#""\ud800""#), ("g", r#"{"h":1}"#)])
        );
    }

    #[test]
    fn unquoted_digits_are_written_as_a_number_again() {
        for (json, read) in [
            (r#"{"n":42}"#, Some("42")),
            (r#"{"n":"42"}"#, Some("42")),
            (r#"{"n":123456789012345678901234567890}"#, Some("123456789012345678901234567890")),
            (r#"{"n":-1}"#, None),
            (r#"{"n":4.2}"#, None),
            (r#"{"n":null}"#, None),
        ] {
            let mut object = members(json);

            let digits = object.digits("n");

            assert_eq!(digits.as_deref(), read, "{json}");
            assert_eq!(Object::with(&object.rest()).digits("n", &digits).finish(), json);
        }
    }

    #[test]
    fn byte_order_mark_is_skipped() {
        let json = "\u{feff}{\"a\":\"x\"}";

        assert_eq!(members(json).text("a").as_deref(), Some("x"));
    }

    #[test]
    fn last_repeated_member_wins_and_the_others_are_kept() {
        let mut object = members(r##"{"$id":"1","x":0,"$id":2,"$id":"3"}"##);

        assert_eq!(object.text("$id").as_deref(), Some("3"));
        let rest: Vec<_> = object.rest().into_iter().collect();
        assert_eq!(rest, pairs(&[("$id#1", "\"1\""), ("$id#2", "2"), ("x", "0")]));
    }

    #[test]
    fn labels_of_repeated_members_never_collide_with_names() {
        let labels =
            extra(r##"{"a#1":1,"a":2,"a":3,"a#":4,"a#":5,"":6,"":7,"#\"":8,"\ud800":9,"\ud800":10}"##);

        assert_eq!(
            labels,
            pairs(&[
                ("", "7"),
                ("#\"\\ud800\"", "10"),
                ("#\"\\ud800\"#1", "9"),
                ("##\"", "8"),
                ("#1", "6"),
                ("a", "3"),
                ("a##", "5"),
                ("a###1", "4"),
                ("a##1", "1"),
                ("a#1", "2"),
            ])
        );
    }

    #[test]
    fn repeated_members_keep_their_order() {
        let json = format!("{{{}}}", (0..25).map(|n| format!("\"a\":{n}")).collect::<Vec<_>>().join(","));

        assert_eq!(Object::with(&members(&json).rest()).finish(), json);
    }

    #[test]
    fn raw_text_is_kept_verbatim() {
        let json = r#"{"n":1.50e+3,"o":{ "b":1, "b":2,"c":[ ] },"s":"\u0041"}"#;

        assert_eq!(Object::with(&members(json).rest()).finish(), json);
    }

    #[test]
    fn deeply_nested_value_is_kept() {
        let json = format!("{{\"deep\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));

        assert_eq!(Object::with(&members(&json).rest()).finish(), json);
    }

    #[test]
    fn error_has_the_position_but_not_the_content() {
        for (json, expected) in [
            ("\"secret\"", "parse Customer: the JSON is not an object"),
            (" [1]", "parse Customer: the JSON is not an object"),
            ("secret", "parse Customer: broken JSON at line 1, column 1"),
            ("{\"secret\":", "parse Customer: broken JSON at line 1, column 10"),
            ("{\"a\":1} secret", "parse Customer: broken JSON at line 1, column 9"),
            ("", "parse Customer: broken JSON at line 1, column 0"),
        ] {
            let error = Members::parse(SchemaKind::Customer, json.as_bytes()).err().unwrap();

            assert_eq!(error.to_string(), expected, "{json}");
        }
        assert!(Members::parse(SchemaKind::Customer, b"{\"a\":\"\xff\"}").is_err());
    }
}
