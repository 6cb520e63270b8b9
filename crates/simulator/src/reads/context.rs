//! The `context` header each endpoint requires.

use super::ApiError;
use crate::{
    call::SentContext,
    catalog::Resource,
    clock::Ticks,
    knobs::{CompaniesContext, CompanyContext, ReadKnobs},
    world::{CompanyNumber, World},
};

const WANTS_COMPANY: &str = "expected a JSON object with one member clientId, the company's correlationId";

/// For a company's data: the company, which must exist and not be deleted at the moment that is read; otherwise the status is
/// `unknown`. A replica that does not have it yet answers as for an unknown company.
pub(super) fn company(
    world: &World,
    context: &SentContext,
    as_of: Option<Ticks>,
    unknown: u16,
) -> Result<CompanyNumber, ApiError> {
    let SentContext::Company(id) = context else { return Err(refuse(context, WANTS_COMPANY)) };
    world
        .company(id)
        .filter(|&company| world.company_lived(company, as_of))
        .ok_or_else(|| ApiError::api(unknown, format!("the company {id:?} in header context is not known")))
}

/// For the list of companies.
pub(super) fn company_list(context: &SentContext, wanted: CompaniesContext) -> Result<(), ApiError> {
    use CompaniesContext::{Absent, Either, None};
    match (context, wanted) {
        (SentContext::Absent, Absent | Either) | (SentContext::None, None | Either) => Ok(()),
        (_, Either) => Err(refuse(context, "expected none, or no such header")),
        (_, Absent) => Err(refuse(context, "expected no such header")),
        (_, None) => Err(refuse(context, "expected none")),
    }
}

/// For a record: the company to look in; `None` for companies and tenant-wide resources.
pub(super) fn record(
    world: &World,
    context: &SentContext,
    resource: Resource,
    id: &str,
    as_of: Option<Ticks>,
    knobs: &ReadKnobs,
) -> Result<Option<CompanyNumber>, ApiError> {
    let unknown = knobs.unknown_company.get();
    if resource == Resource::Companies {
        let wanted = knobs.records.company_context;
        company_record(context, wanted)?;
        return match context {
            // The read itself finds out whether the company exists.
            SentContext::Company(client) if client != id => {
                company(world, context, as_of, unknown)?;
                // Another company's record is reported as unknown.
                Err(unknown_record(resource, id, knobs))
            }
            _ => Ok(None),
        };
    }
    if world.is_tenant_wide(resource) {
        return match context {
            SentContext::None => Ok(None),
            context => Err(refuse(context, "expected none, because these records belong to no company")),
        };
    }
    company(world, context, as_of, unknown).map(Some)
}

/// For a company's own record.
fn company_record(context: &SentContext, wanted: CompanyContext) -> Result<(), ApiError> {
    use CompanyContext::{Absent, Any, Company, None};
    match (context, wanted) {
        (SentContext::Company(_), Company | Any)
        | (SentContext::None, None | Any)
        | (SentContext::Absent, Absent | Any) => Ok(()),
        (_, Company | Any) => Err(refuse(context, WANTS_COMPANY)),
        (_, None) => Err(refuse(context, "expected none")),
        (_, Absent) => Err(refuse(context, "expected no such header")),
    }
}

/// The error for an id that the caller may not read.
pub(super) fn unknown_record(resource: Resource, id: &str, knobs: &ReadKnobs) -> ApiError {
    let message = format!("there is no {} with correlationId {id:?}", resource.singular());
    ApiError::missing(&knobs.records, &message)
}

fn refuse(context: &SentContext, expected: &str) -> ApiError {
    let message = match context {
        SentContext::Absent => format!("header context is missing: {expected}"),
        SentContext::None => format!("header context is none: {expected}"),
        SentContext::Company(_) => format!("header context names a company: {expected}"),
        SentContext::Invalid(why) => format!("header context is not valid, {why}: {expected}"),
    };
    ApiError::api(400, message)
}
