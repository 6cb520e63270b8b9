//! The strict, the lenient and drawn providers: every finding is what the knobs say.

use simulator::catalog::Resource;
use simulator::knobs::{
    CompaniesContext, CompanyContext, EmptyList, FirstPage, Knobs, ListOrder, MissingBody, Parameter,
    PayrollTotal,
};

use super::{COMPANIES, MORE, ProbeScene};
use crate::support::Result;
use crate::support::drawn::{self, DrawnProvider};

crate::tests! {
    plain every_finding_is_what_the_knobs_say limit (60 * u64::from(drawn::count()));
}

async fn every_finding_is_what_the_knobs_say() -> Result<()> {
    drawn::try_all(agrees).await
}

async fn agrees(provider: DrawnProvider) -> Result<()> {
    let scene = ProbeScene::new(&format!("probe-{}", provider.name), &[], |settings| {
        provider.apply(settings);
    })
    .await;
    let knobs = scene.simulator.provider().knobs();

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    let found = report.findings();
    for (question, about, expected) in expected(&knobs) {
        let found = report.found(question, &about);
        assert!(found.starts_with(&expected), "{question} of {about}: {found:?}, not {expected:?}");
    }
    // It reports the order of the three other lists, too.
    assert_eq!(found.len(), expected(&knobs).len() + 3, "{found:#?}");
    assert_eq!((code, report.unanswered()), (Some(0), Vec::new()));
    let limit = knobs.reads.max_page_size;
    let settings = if limit < 100 {
        serde_json::json!({ "page.size": limit.to_string() })
    } else {
        serde_json::json!({})
    };
    assert_eq!(*report.settings(), settings);
    Ok(())
}

/// Questions, subjects and how the answers begin.
fn expected(knobs: &Knobs) -> Vec<(&'static str, String, String)> {
    let reads = &knobs.reads;
    let mut all = Vec::new();
    let mut expect =
        |question, about: &str, found: &str| all.push((question, about.to_owned(), found.to_owned()));
    let api_400 = "400 with the API's JSON";
    let refused = format!("refused: {api_400}");
    expect(
        "company-list-context",
        "companies",
        match reads.companies_context {
            CompaniesContext::Absent => "not sent",
            CompaniesContext::None => "none",
            CompaniesContext::Either => "not sent or none",
        },
    );
    let accounts = MORE + reads.template_accounts;
    for (list, length) in
        [("companies", COMPANIES), ("customers", MORE), ("accounts", accounts), ("payroll", MORE)]
    {
        expect("list", list, "offered");
        expect(
            "first-page",
            list,
            match reads.first_page {
                FirstPage::One => "1; page 0 is answered 400",
                FirstPage::OneOrZero => "1; page 0 is the same",
                FirstPage::OneZeroEmpty => "1; page 0 is empty",
                FirstPage::OneZeroFails => "1; page 0 is answered 500",
                FirstPage::Zero => "0",
            },
        );
        let is_cut = length > reads.max_page_size;
        let size = match is_cut {
            true => format!("{}; a larger pageSize is cut", reads.max_page_size),
            false => format!("at least {length}"),
        };
        expect("page-size", list, &size);
        let is_sent = match list {
            "payroll" => reads.payroll_total != PayrollTotal::Absent,
            _ => reads.accounting_pagination,
        };
        expect(
            "pagination-header",
            list,
            match (is_sent, is_cut) {
                (false, _) => "not sent",
                (true, true) => "sent; totalCount not checked",
                (true, false) => "sent; totalCount is right",
            },
        );
    }
    let empty = match reads.empty_list {
        EmptyList::Array => "[]",
        EmptyList::Nothing => "no body",
        EmptyList::Null => "null",
    };
    expect("empty-list", "companies", empty);
    expect("empty-list", "payroll", empty);
    expect(
        "order",
        "customers",
        // Nothing was changed, so the order of changes is that of creation.
        match reads.order {
            ListOrder::Created | ListOrder::Changed => "ascending by version, sequenceVersion",
            ListOrder::Newest => "descending by version, sequenceVersion",
            ListOrder::Scattered => "",
        },
    );
    expect(
        "payroll-order",
        "payroll",
        match reads.payroll_order {
            Parameter::Heeded => "applied, ascending",
            Parameter::Ignored => "ignored",
            Parameter::Empty => "empties the list",
            Parameter::Refused => &refused,
        },
    );
    let no_stamps = format!("applied; a timestamp is {refused}");
    expect(
        "payroll-filter",
        "payroll",
        match (reads.payroll_filter, reads.filter_timestamps) {
            (Parameter::Heeded, true) => "applied; timestamps are accepted",
            (Parameter::Heeded, false) => &no_stamps,
            (Parameter::Ignored, _) => "ignored",
            (Parameter::Empty, _) => "empties the list",
            (Parameter::Refused, _) => &refused,
        },
    );
    let required = format!("required: {api_400}");
    expect("payroll-paging", "payroll", if reads.payroll_paging_required { &required } else { "optional" });
    for api in ["accounting", "accounting-core", "accounting-import"] {
        expect("unknown-path", api, "404 with the gateway's JSON");
    }
    expect("unknown-company", "customers", &format!("{} with the API's JSON", reads.unknown_company.get()));
    expect(
        "company-by-id-context",
        "companies",
        match reads.records.company_context {
            CompanyContext::Company => "the company",
            CompanyContext::None => "none",
            CompanyContext::Absent => "not sent",
            CompanyContext::Any => "the company or none or not sent",
        },
    );
    let body = match reads.records.missing_body {
        MissingBody::Api => "the API's JSON",
        MissingBody::Json => "other JSON",
        MissingBody::Gateway => "the gateway's JSON",
        MissingBody::Empty => "no body",
        MissingBody::Text => "text",
        MissingBody::Html => "an HTML page",
    };
    let missing = format!("{} with {body}", reads.records.missing_status.get());
    let members = if reads.thin_rows { "less than the record" } else { "the whole record" };
    for resource in ["companies", "customers", "accounts"] {
        expect("missing-record", resource, &missing);
        expect("row-members", resource, members);
    }
    for resource in Resource::ALL {
        let name = kebab(resource.path().rsplit('/').next().unwrap());
        if resource != Resource::Companies {
            expect("by-id-path", &name, "known; context: the company");
        }
        let names = resource.kinds().map(|kind| resource.semantic_name(kind));
        expect("event-names", &name, &names.join(", "));
    }
    expect("clock", "all answers", "the same, to a second");
    expect("rate-limit-headers", "all answers", "none");
    all
}

/// `inputInvoices` as `input-invoices`.
fn kebab(name: &str) -> String {
    let letters = name.chars().flat_map(|letter| {
        let dash = letter.is_ascii_uppercase().then_some('-');
        dash.into_iter().chain([letter.to_ascii_lowercase()])
    });
    letters.collect()
}
