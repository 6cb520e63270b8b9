use super::*;

const SEED: u64 = 5;

fn company(index: u32) -> PayrollRow {
    let updated = midnight_of(2026, 11, 15);
    PayrollRow { index, updated, revision: 0, gone: false }
}

fn midnight_of(year: i64, month: i64, day: i64) -> Ticks {
    crate::clock::midnight(year, month, day).unwrap()
}

fn passes(filter: &str, row: &PayrollRow) -> bool {
    Filter::parse(filter, true).unwrap_or_else(|why| panic!("{filter}: {why}")).passes(SEED, row)
}

#[test]
fn dates_and_timestamps_compare_with_the_last_update() {
    // 2026-11-15T00:00:00.000Z.
    let row = company(0);
    let cases = [
        ("lastUpdate gt 2026-11-14", true),
        ("lastUpdate gt 2026-11-15", false),
        ("lastUpdate ge 2026-11-15", true),
        ("lastUpdate eq 2026-11-15", true),
        ("lastUpdate ge 2026-11-16", false),
        ("lastUpdate gt 2026-11-14T23:59:59.999Z", true),
        ("lastUpdate gt 2026-11-14T23:59:59.9999999Z", true),
        ("lastUpdate gt 2026-11-15T00:00:00Z", false),
        ("lastUpdate ge 2026-11-15T00:00:00.0000001Z", false),
        ("lastUpdate eq 2026-11-15T02:00:00+02:00", true),
        ("lastUpdate eq 2026-11-14T18:30:00.0-05:30", true),
        ("lastUpdate gt 2024-02-29", true),
        ("lastUpdate eq null", false),
        ("lastUpdate gt null", false),
    ];
    for (filter, expected) in cases {
        assert_eq!(passes(filter, &row), expected, "{filter}");
    }
}

#[test]
fn texts_compare_by_case_and_a_doubled_quote_is_one() {
    let quoted = |text: &str| text.replace('\'', "''");
    // Among many names there is one with a quote in it.
    let row = (0..1_000).map(company).find(|row| payroll_name(SEED, row).contains('\'')).unwrap();
    let name = quoted(&payroll_name(SEED, &row));
    let identifier = payroll_identifier(SEED, row.index);
    let cases = [
        (format!("companyName eq '{name}'"), true),
        (format!("companyName eq '{}'", name.to_uppercase()), false),
        (format!("companyName eq '{name} '"), false),
        (format!("companyName gt '{name}'"), false),
        (format!("companyName ge '{name}'"), true),
        ("companyName gt ''".to_owned(), true),
        ("contains(companyName,'''')".to_owned(), true),
        (format!("contains(companyName , '{}')", quoted(&payroll_name(SEED, &row)[1..])), true),
        ("contains( companyName,'no such name')".to_owned(), false),
        (format!("contains(identifierNumber,'{}')", &identifier[2..5]), true),
        (format!("identifierNumber eq '{identifier}'"), true),
        ("identifierNumber eq null".to_owned(), false),
    ];
    for (filter, expected) in cases {
        assert_eq!(passes(&filter, &row), expected, "{filter}");
    }
}

#[test]
fn what_is_not_understood_is_refused_with_what_would_be() {
    let cases = [
        ("", "expected a field"),
        ("lastUpdate", "expected eq, ge or gt"),
        ("lastUpdate gt", "expected a value"),
        ("lastUpdate lt 2026-11-15", "expected eq, ge or gt"),
        ("lastUpdate GT 2026-11-15", "expected eq, ge or gt"),
        ("lastupdate gt 2026-11-15", "expected companyCode, companyName, identifierNumber or lastUpdate"),
        ("vatNumber eq 'x'", "expected companyCode"),
        ("lastUpdate gt '2026-11-15'", "expected a date without quotes"),
        ("lastUpdate gt 2026-02-30", "no date of the form YYYY-MM-DD or"),
        ("lastUpdate gt 15-11-2026", "no date of the form"),
        ("lastUpdate gt 2026-11-15T09:00:00", "no date of the form"),
        ("lastUpdate gt 2026-11-15T24:00:00Z", "no date of the form"),
        ("lastUpdate gt 2026-11-15T09:00:00.12345678Z", "no date of the form"),
        ("lastUpdate gt 2026-11-15T09:00:00.Z", "no date of the form"),
        ("lastUpdate gt 2026-11-15T09:00:00Zulu", "no date of the form"),
        ("lastUpdate gt 2026-11-15T09:00:00 02:00", "no date of the form"),
        ("lastUpdate gt 2026-11-15T09:00:00+2:00", "no date of the form"),
        ("lastUpdate gt 2026-11-15T09:00:00+é", "no date of the form"),
        ("companyCode eq 'x'", "expected a number without quotes"),
        ("companyCode eq inf", "no number"),
        ("companyCode eq 1e3", "no number"),
        ("companyCode eq +1", "no number"),
        ("companyCode eq 1.", "no number"),
        ("companyCode eq true", "no number"),
        ("companyName eq x", "no text in single quotes"),
        ("companyName eq 'x", "no closing quote"),
        ("companyName eq 'x''", "no closing quote"),
        ("companyName eq ('x')", "expected a value"),
        ("companyCode eq 1 AND companyCode eq 2", "expected and, or, or the end"),
        ("companyCode eq 1 and", "expected a field"),
        ("companyCode eq 1 companyCode eq 2", "expected and, or, or the end"),
        ("(companyCode eq 1", "expected \")\""),
        ("companyCode eq 1)", "expected and, or, or the end"),
        ("()", "expected a field"),
        ("not companyCode eq 1", "expected companyCode"),
        ("startswith(companyName,'x')", "expected contains"),
        ("contains(companyCode,'1')", "companyCode is no text"),
        ("contains(companyName)", "expected \",\""),
        ("contains(companyName,x)", "expected a text in single quotes"),
        ("contains(companyName,'x'", "expected \")\""),
        ("'x' eq companyName", "expected a field"),
        ("\u{0} \u{202e} 🚀", "is not known"),
    ];
    for (filter, expected) in cases {
        let refused = Filter::parse(filter, true).unwrap_err();

        assert!(refused.contains(expected), "{filter}: {refused}");
    }
}

#[test]
fn depth_and_length_have_bounds_and_long_chains_do_not_count_as_depth() {
    let nested = |depth: usize| format!("{}companyCode eq 1{}", "(".repeat(depth), ")".repeat(depth));
    let chain = |count: usize| vec!["companyCode eq 1"; count].join(" or ");

    assert!(Filter::parse(&nested(32), true).is_ok());
    assert!(Filter::parse(&nested(33), true).unwrap_err().contains("more than 32 deep"));
    assert!(Filter::parse(&chain(200), true).is_ok());
    assert!(Filter::parse(&chain(300), true).unwrap_err().contains("more than 4096"));
}
