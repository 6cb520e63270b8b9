//! The accounting API: lists of companies, customers and accounts, and every record by its id.

use bytes::Bytes;
use reqwest::Method;
use tokio::time::Instant;

use base::retry::Retry;
use model::{Account, AccountingResource, Company, CompanyId, Customer, RecordId};

use super::{
    CallOptions, Error, Page, PageRequest, ReadTimes,
    address::ContextHeader,
    body,
    call::ApiCall,
    error::{AnsweredBy, Cause},
    paging,
    request::AreaClient,
};

/// The accounting API with one grant.
#[derive(Debug, Clone)]
pub struct Accounting(pub(super) AreaClient);

/// A record as the provider returned it.
#[derive(Debug, Clone)]
pub struct Document {
    /// One JSON object, byte for byte.
    pub json: Bytes,
    /// When it was read.
    pub times: ReadTimes,
}

impl Document {
    /// Whether it is the record with this id: it has no other id.
    #[must_use]
    pub fn is_of(&self, id: &RecordId) -> bool {
        #[derive(serde::Deserialize)]
        struct Identified {
            #[serde(default, rename = "correlationId")]
            id: serde_json::Value,
        }
        let read = serde_json::from_slice::<Identified>(&self.json);
        read.is_ok_and(|read| read.id.as_str().is_none_or(|own| own.is_empty() || own == id.as_str()))
    }
}

impl Accounting {
    /// A page of the grant's companies.
    pub async fn companies(&self, page: PageRequest, options: &CallOptions) -> Result<Page<Company>, Error> {
        let path = AccountingResource::Companies.path();
        let numbered = |page| self.companies_numbered(page, options);
        paging::first_page::read(&self.0.core.quirks, &path, page, numbered, numbered).await
    }

    /// A page of companies by the provider's own page number.
    pub async fn companies_numbered(
        &self,
        page: PageRequest,
        options: &CallOptions,
    ) -> Result<Page<Company>, Error> {
        let known = self.0.core.quirks.facts.lock().none_for_companies;
        let none = known.unwrap_or(false);
        let read = async |none| {
            let context = if none { ContextHeader::None } else { ContextHeader::Absent };
            let read = self
                .numbered(AccountingResource::Companies, context, page, options, &Company::from_json)
                .await;
            if read.is_ok() {
                self.0.core.quirks.facts.lock().none_for_companies = Some(none);
            }
            read
        };
        match read(none).await {
            // Page 0 is read only after page 1 was answered, and may be rejected for its number.
            Err(error) if page.number > 0 && may_be_about_context(&error, known.is_some()) => {
                // If both fail, the first refusal is the relevant one.
                read(!none).await.map_err(|other| if other.status == error.status { error } else { other })
            }
            first => first,
        }
    }

    /// A page of a company's customers.
    pub async fn customers(
        &self,
        company: &CompanyId,
        page: PageRequest,
        options: &CallOptions,
    ) -> Result<Page<Customer>, Error> {
        self.list(AccountingResource::Customers, company, page, options, Customer::from_json).await
    }

    /// A page of a company's accounts. Templates have no id.
    pub async fn accounts(
        &self,
        company: &CompanyId,
        page: PageRequest,
        options: &CallOptions,
    ) -> Result<Page<Account>, Error> {
        self.list(AccountingResource::Accounts, company, page, options, Account::from_json).await
    }

    /// A record by its id; `company` is `None` for records without one, and is ignored for a company's own record, which uses the
    /// `context` that the provider accepts.
    ///
    /// # Errors
    /// See [`Error`]. On a path that has returned a record before, a 404 or 410 of unknown origin counts as the API's.
    pub async fn record(
        &self,
        resource: AccountingResource,
        company: Option<&CompanyId>,
        id: &RecordId,
        options: &CallOptions,
    ) -> Result<Document, Error> {
        let read = if resource == AccountingResource::Companies {
            self.company(id, options).await
        } else {
            let context =
                company.map_or(ContextHeader::None, |company| ContextHeader::Company(company.as_str()));
            self.record_with(resource, context, id, options).await
        };
        match read {
            Ok(record) => {
                if record.is_of(id) {
                    let answered = (Instant::now(), company.cloned(), id.clone());
                    self.0.core.quirks.facts.lock().paths.insert(resource, answered);
                }
                Ok(record)
            }
            Err(error)
                if error.missing() == Some(AnsweredBy::Unknown) && self.answered_at(resource).is_some() =>
            {
                Err(error.by_api())
            }
            Err(error) => Err(error),
        }
    }

    /// When the by-id path of a resource last returned a record, since this worker started.
    pub fn answered_at(&self, resource: AccountingResource) -> Option<Instant> {
        self.0.core.quirks.facts.lock().paths.get(&resource).map(|(at, ..)| *at)
    }

    /// The last record that the by-id path of a resource returned, since this worker started, with its company.
    pub fn last_record(&self, resource: AccountingResource) -> Option<(Option<CompanyId>, RecordId)> {
        let facts = self.0.core.quirks.facts.lock();
        facts.paths.get(&resource).map(|(_, company, id)| (company.clone(), id.clone()))
    }

    /// A company by its id, with the `context` that worked before. If a refusal may be about the context, the others are tried
    /// once.
    async fn company(&self, id: &RecordId, options: &CallOptions) -> Result<Document, Error> {
        let resource = AccountingResource::Companies;
        let known = self.0.core.quirks.facts.lock().company_context;
        let first = known.unwrap_or_default();
        let forms = ContextHeader::of_company(id.as_str());
        let read = async |form: usize| {
            let read = self.record_with(resource, forms[form], id, options).await;
            if read.is_ok() {
                self.0.core.quirks.facts.lock().company_context = Some(form);
            }
            read
        };
        let mut refused = match read(first).await {
            Err(error) if may_be_about_context(&error, known.is_some()) => error,
            read => return read,
        };
        for form in (0..forms.len()).filter(|form| *form != first) {
            match read(form).await {
                Ok(record) => return Ok(record),
                // This context is a guess, so the first refusal stands unless a retry can help.
                Err(error) if !may_be_about_context(&error, false) => {
                    return Err(if error.retry() == Retry::Never { refused } else { error });
                }
                // The first refusal stands, unless it is about the request and this one is about the record.
                Err(error) => {
                    if known.is_none() && refused.status == Some(400) && error.missing().is_some() {
                        refused = error;
                    }
                }
            }
        }
        Err(refused)
    }

    async fn record_with(
        &self,
        resource: AccountingResource,
        context: ContextHeader<'_>,
        id: &RecordId,
        options: &CallOptions,
    ) -> Result<Document, Error> {
        let call = self.0.call(Method::GET, format!("{}/{{id}}", resource.path()));
        let call = ApiCall { id: id.as_str().into(), context, ..call };
        self.0
            .core
            .call(&call, options, |answer| {
                Ok(Document { json: body::object(answer.documented()?)?, times: answer.times })
            })
            .await
    }

    /// A page of a company's list.
    async fn list<T>(
        &self,
        resource: AccountingResource,
        company: &CompanyId,
        page: PageRequest,
        options: &CallOptions,
        row: fn(&[u8], &CompanyId) -> Result<T, model::Error>,
    ) -> Result<Page<T>, Error> {
        let (context, row) = (ContextHeader::Company(company.as_str()), |json: &[u8]| row(json, company));
        let numbered = |page| self.numbered(resource, context, page, options, &row);
        paging::first_page::read(&self.0.core.quirks, &resource.path(), page, numbered, numbered).await
    }

    /// A page by the provider's own page number.
    async fn numbered<T>(
        &self,
        resource: AccountingResource,
        context: ContextHeader<'_>,
        page: PageRequest,
        options: &CallOptions,
        row: &impl Fn(&[u8]) -> Result<T, model::Error>,
    ) -> Result<Page<T>, Error> {
        let call = ApiCall { query: page.query(&[]), context, ..self.0.call(Method::GET, resource.path()) };
        self.0.core.call(&call, options, |answer| paging::read_page(answer, page, row)).await
    }
}

/// Whether a refusal may be about `context`. The provider does not document how it says so, so until one context has worked this
/// may be any answer that is not clearly about something else.
fn may_be_about_context(error: &Error, known: bool) -> bool {
    let elsewhere = matches!(
        error.cause,
        Cause::Key | Cause::Token { .. } | Cause::Quota { .. } | Cause::Throttled { .. } | Cause::Redirect
    );
    match error.status {
        Some(400) => true,
        Some(300..=500) => !known && !elsewhere,
        _ => false,
    }
}
