//! One call with the tokens of a login, so that the person sees at once whether the API accepts them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use base::{
    retry::{ErrorChain, Retry},
    secret::Secret,
};
use provider::{
    Provider,
    api::{ApiOptions, Budget, CallOptions, Client, Error, PageRequest, PayrollRequest, Priority, Rates},
    auth::{self, Access, Area, Tokens, grant::Grant, http::ProviderClock},
};

use crate::cli::table::harmless;

const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// One row is enough.
const FIRST_ROW: PageRequest = PageRequest { number: 1, size: 1 };

/// Requests the first company from the area's API and returns the result as one line.
pub(super) async fn first_company(
    area: Area,
    provider: &Provider,
    clock: &ProviderClock,
    grant: &Grant,
) -> String {
    let client = match Client::new(&ApiOptions::from(provider), Budget::new(Rates::default()), clock.clone())
    {
        Ok(client) => client,
        Err(cause) => {
            let words = harmless(&ErrorChain(&cause).to_string());
            return format!("warning: the grant is stored, but the {area} API was not called: {words}");
        }
    };
    match request_first(area, &client, grant).await {
        Ok(Some(name)) => format!("the {area} API answers: its first company is {}", harmless(&name)),
        Ok(None) if area == Area::Invoicing => format!("the {area} API answers"),
        Ok(None) => format!("the {area} API answers: it lists no company"),
        Err(error) => {
            let words = harmless(&ErrorChain(&error).to_string());
            format!("warning: the grant is stored, but a call to the {area} API failed: {words}")
        }
    }
}

async fn request_first(area: Area, client: &Client, grant: &Grant) -> Result<Option<String>, Error> {
    let Some(tokens) = LoginToken::of(grant).map(Arc::new) else { return Ok(None) };
    let ask = CallOptions::within(Priority::Webhook, CALL_TIMEOUT);
    match area {
        Area::Accounting => {
            let page = client.accounting(tokens).companies_numbered(FIRST_ROW, &ask).await?;
            Ok(page.rows.into_iter().find_map(|company| company.vat_name))
        }
        Area::Payroll => {
            let wanted = PayrollRequest { page: FIRST_ROW, filter: None, order_by: None };
            let page = client.payroll(tokens).companies_numbered(wanted, &ask).await?;
            Ok(page.rows.into_iter().find_map(|company| company.company_name))
        }
        // Invoicing has no list of companies, so list the hooks.
        Area::Invoicing => client.invoicing(tokens).hooks(&ask).await.map(|_| None),
    }
}

/// Provides only the access token of a grant as it is, and never refreshes it.
#[derive(Debug)]
pub(in crate::cli) struct LoginToken {
    area: Area,
    access: Access,
}

impl LoginToken {
    /// `None` if the grant has no tokens.
    pub(in crate::cli) fn of(grant: &Grant) -> Option<Self> {
        let tokens = grant.tokens()?;
        let header = Secret::new(format!("Bearer {}", tokens.access.reveal()));
        let expires_ms = Some(tokens.access_expires_ms);
        Some(Self { area: grant.area, access: Access { header, serial: grant.serial, expires_ms } })
    }
}

#[async_trait]
impl Tokens for LoginToken {
    async fn token(&self, _: Instant) -> Result<Access, auth::Error> {
        Ok(self.access.clone())
    }

    async fn instead_of(&self, _: &Access, _: Instant) -> Result<Access, auth::Error> {
        Err(auth::Error::Login {
            area: self.area.name(),
            source: "the API refuses the token of the login".into(),
            retry: Retry::Never,
        })
    }
}
