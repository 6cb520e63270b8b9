//! The payroll API: the list of payroll companies.

use reqwest::Method;

use model::PayrollCompany;

use super::{CallOptions, Error, Page, PageRequest, call::ApiCall, paging, request::AreaClient};

const COMPANIES: &str = "payroll/api/companies";

/// The payroll API with one grant.
#[derive(Debug, Clone)]
pub struct Payroll(pub(super) AreaClient);

/// Selects and orders payroll companies.
#[derive(Debug, Clone, Copy)]
pub struct PayrollRequest<'a> {
    /// The page, which the provider requires.
    pub page: PageRequest,
    /// `filter`, in the provider's grammar: `lastUpdate gt 2024-05-06`.
    pub filter: Option<&'a str>,
    /// `OrderBy`: a field name.
    pub order_by: Option<&'a str>,
}

impl Payroll {
    /// A page of payroll companies.
    pub async fn companies(
        &self,
        wanted: PayrollRequest<'_>,
        options: &CallOptions,
    ) -> Result<Page<PayrollCompany>, Error> {
        let whole = |page| self.companies_numbered(PayrollRequest { page, filter: None, ..wanted }, options);
        let asked = |page| self.companies_numbered(PayrollRequest { page, ..wanted }, options);
        paging::first_page::read(&self.0.core.quirks, COMPANIES, wanted.page, whole, asked).await
    }

    /// A page by the provider's own page number. Without `OrderBy` if the provider rejects it: its document does not list the
    /// fields.
    pub async fn companies_numbered(
        &self,
        wanted: PayrollRequest<'_>,
        options: &CallOptions,
    ) -> Result<Page<PayrollCompany>, Error> {
        let plain = PayrollRequest { order_by: None, ..wanted };
        let refuses_order = || self.0.core.quirks.facts.lock().refuses_order;
        if wanted.order_by.is_none() || refuses_order() {
            return self.numbered(plain, options).await;
        }
        match self.numbered(wanted, options).await {
            // With a filter, the filter may be the reason. Whether `OrderBy` works is known from the unfiltered list.
            Err(refused)
                if wanted.filter.is_none() && matches!(refused.status, Some(400 | 404 | 405 | 422 | 501)) =>
            {
                // If it fails without `OrderBy` too, the order is not the reason.
                let page = self.numbered(plain, options).await.map_err(|_| refused)?;
                self.0.core.quirks.facts.lock().refuses_order = true;
                Ok(page)
            }
            answered => answered,
        }
    }

    async fn numbered(
        &self,
        wanted: PayrollRequest<'_>,
        options: &CallOptions,
    ) -> Result<Page<PayrollCompany>, Error> {
        let query = wanted.page.query(&[("filter", wanted.filter), ("OrderBy", wanted.order_by)]);
        let call = ApiCall { query, ..self.0.call(Method::GET, COMPANIES) };
        let row = PayrollCompany::from_json;
        self.0.core.call(&call, options, |answer| paging::read_page(answer, wanted.page, row)).await
    }
}
