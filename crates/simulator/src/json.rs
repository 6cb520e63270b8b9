//! JSON written straight into a buffer: no tree, no formatting machinery, because lists and deliveries are the hot path.

/// Appends text as a JSON string, with its quotes.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escaped(out, text);
    out.push(b'"');
}

/// Appends text as the inside of a JSON string. What needs no escape goes as it is, in runs.
pub(super) fn escaped(out: &mut Vec<u8>, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    let mut written = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[written..at]);
        written = at + 1;
        match byte {
            b'"' => out.extend_from_slice(br#"\""#),
            b'\\' => out.extend_from_slice(br"\\"),
            b'\n' => out.extend_from_slice(br"\n"),
            b'\r' => out.extend_from_slice(br"\r"),
            b'\t' => out.extend_from_slice(br"\t"),
            byte => {
                out.extend_from_slice(br"\u00");
                out.push(DIGITS[usize::from(byte >> 4)]);
                out.push(DIGITS[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[written..]);
}

/// Appends a whole number.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    digits(out, value, 1);
}

/// Appends a whole number with zeros in front up to a width (20 at most).
pub(super) fn digits(out: &mut Vec<u8>, mut value: u64, width: usize) {
    let mut buffer = [b'0'; 20];
    let mut at = buffer.len();
    while value > 0 {
        at -= 1;
        buffer[at] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    out.extend_from_slice(&buffer[at.min(buffer.len().saturating_sub(width))..]);
}

/// Appends a number of hundredths as a decimal with two places, trailing zeros kept: `-1200.50`.
pub(super) fn hundredths(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    let value = value.unsigned_abs();
    number(out, value / 100);
    out.push(b'.');
    digits(out, value % 100, 2);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn any_text_reads_back_as_it_was() {
        let every_control: String = (0..0x20_u8).map(char::from).collect();
        let cases = [
            "",
            "plain",
            "\"",
            "\\",
            "a\"b\\c\nd\re\tf",
            "\u{7f}\u{80}\u{2028}\u{feff}",
            "Muñoz 東京 🚀 👩‍👩‍👧",
            "\"quotes at both ends\"",
            &every_control,
        ];
        for case in cases {
            let json = written(|out| text(out, case));

            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), case, "{json}");
        }
    }

    proptest! {
        #[test]
        fn whatever_text_reads_back_as_it_was(case in any::<String>()) {
            let json = written(|out| text(out, &case));

            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), case);
        }
    }

    #[test]
    fn characters_without_need_are_not_escaped() {
        assert_eq!(written(|out| text(out, "ñ🚀/'<\u{7f}")), "\"ñ🚀/'<\u{7f}\"");
        assert_eq!(written(|out| text(out, "\u{1}\u{1f}\n")), r#""\u0001\u001f\n""#);
    }

    #[test]
    fn numbers_are_written_whole_and_padded() {
        let numbers = [(0, 1, "0"), (7, 1, "7"), (7, 3, "007"), (1_234, 3, "1234"), (0, 4, "0000")];
        for (value, width, expected) in numbers {
            assert_eq!(written(|out| digits(out, value, width)), expected);
        }
        assert_eq!(written(|out| number(out, u64::MAX)), u64::MAX.to_string());
        assert_eq!(written(|out| digits(out, 5, 99)), "00000000000000000005");
    }

    #[test]
    fn decimals_keep_their_zeros_and_their_sign() {
        let decimals = [(0, "0.00"), (5, "0.05"), (-5, "-0.05"), (120_050, "1200.50"), (-100, "-1.00")];
        for (value, expected) in decimals {
            assert_eq!(written(|out| hundredths(out, value)), expected);
        }
        assert_eq!(written(|out| hundredths(out, i64::MIN)), "-92233720368547758.08");
    }
}
