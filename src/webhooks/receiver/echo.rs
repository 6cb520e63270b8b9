//! The echo of an invoicing address: the provider sends a GUID and expects it back.
//!
//! Only a GUID is echoed, as it was written; nothing else is reflected.

use uuid::Uuid;

/// The GUID of a query with exactly one `echo`; `None`: there is none, or several, or the value is no GUID.
pub(super) fn asked(query: Option<&str>) -> Option<&str> {
    let mut values = query?.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name == "echo").then_some(value)
    });
    let (value, None) = (values.next()?, values.next()) else { return None };
    is_guid(value).then_some(value)
}

/// 32 hexadecimal digits with all dashes or none, without braces or `urn:`.
fn is_guid(text: &str) -> bool {
    matches!(text.len(), 32 | 36) && Uuid::try_parse(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_echoed_as_it_was_written() {
        for guid in [
            "0123456789abcdef0123456789abcdef",
            "0123456789ABCDEF0123456789abcdef",
            "01234567-89ab-cdef-0123-456789ABCDEF",
        ] {
            assert_eq!(asked(Some(&format!("echo={guid}"))), Some(guid));
            assert_eq!(asked(Some(&format!("a=b&echo={guid}&c"))), Some(guid));
        }
    }

    #[test]
    fn nothing_but_one_guid_is_echoed() {
        let guid = "0123456789abcdef0123456789abcdef";
        for query in [
            None,
            Some(String::new()),
            Some("echo".to_owned()),
            Some("echo=".to_owned()),
            Some(format!("Echo={guid}")),
            Some(format!("echo={guid}&echo={guid}")),
            Some(format!("echo={guid}&echo")),
            Some(format!("echo={guid}0")),
            Some(format!("echo={}", &guid[1..])),
            Some(format!("echo={guid} ")),
            Some(format!("echo={{{guid}}}")),
            Some(format!("echo=%30{}", &guid[1..])),
            Some(format!("echo=g{}", &guid[1..])),
            Some(format!("echo=-{}", &guid[1..])),
            Some("echo=012345678-9ab-cdef-0123-456789ABCDEF".to_owned()),
            Some("echo=01234567-89ab-cdef-0123-456789ABCDE-".to_owned()),
            Some("echo=0123456789abcdef0123456789abcdef0123".to_owned()),
            Some("echo=<script>alert(1)</script>".to_owned()),
            Some(format!("echo=é{}", &guid[2..])),
        ] {
            assert_eq!(asked(query.as_deref()), None, "{query:?}");
        }
    }
}
