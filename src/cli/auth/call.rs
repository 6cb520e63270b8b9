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
    api::{Ask, Budget, Client, Error, Options, PageAsk, PayrollAsk, Priority, Rates},
    auth::{self, Access, Area, Tokens, grant::Grant, http::ProviderClock},
};

use crate::cli::table::harmless;

/// The longest that it may take: the person waits for it.
const LIMIT: Duration = Duration::from_secs(20);
/// One row is proof enough.
const FIRST: PageAsk = PageAsk { number: 1, size: 1 };

/// Asks the area's API for the first company. What came of it, in one line for the person.
pub(super) async fn first_company(
    area: Area,
    provider: &Provider,
    clock: &ProviderClock,
    grant: &Grant,
) -> String {
    let client = match Client::new(&Options::from(provider), Budget::new(Rates::default()), clock.clone()) {
        Ok(client) => client,
        Err(cause) => {
            let words = harmless(&ErrorChain(&cause).to_string());
            return format!("warning: the grant is kept, but the {area} API was not called: {words}");
        }
    };
    match listed(area, &client, grant).await {
        Ok(Some(name)) => format!("the {area} API answers: its first company is {}", harmless(&name)),
        Ok(None) if area == Area::Invoicing => format!("the {area} API answers"),
        Ok(None) => format!("the {area} API answers: it lists no company"),
        Err(error) => {
            let words = harmless(&ErrorChain(&error).to_string());
            format!("warning: the grant is kept, but a call to the {area} API failed: {words}")
        }
    }
}

async fn listed(area: Area, client: &Client, grant: &Grant) -> Result<Option<String>, Error> {
    let Some(tokens) = &grant.tokens else { return Ok(None) };
    let header = Secret::new(format!("Bearer {}", tokens.access.reveal()));
    let access = Access { header, serial: grant.serial, expires_ms: Some(tokens.access_expires_ms) };
    let tokens = Arc::new(Given { area, access });
    let ask = Ask::within(Priority::Webhook, LIMIT);
    match area {
        Area::Accounting => {
            let page = client.accounting(tokens).companies_numbered(FIRST, &ask).await?;
            Ok(page.rows.into_iter().find_map(|company| company.vat_name))
        }
        Area::Payroll => {
            let wanted = PayrollAsk { page: FIRST, filter: None, order_by: None };
            let page = client.payroll(tokens).companies_numbered(wanted, &ask).await?;
            Ok(page.rows.into_iter().find_map(|company| company.company_name))
        }
        // It lists no companies: that it lists its hooks is proof enough.
        Area::Invoicing => client.invoicing(tokens).hooks(&ask).await.map(|_| None),
    }
}

/// The token of the login, and no other.
#[derive(Debug)]
struct Given {
    area: Area,
    access: Access,
}

#[async_trait]
impl Tokens for Given {
    async fn token(&self, _: Instant) -> Result<Access, auth::Error> {
        Ok(self.access.clone())
    }

    async fn instead_of(&self, _: &Access, _: Instant) -> Result<Access, auth::Error> {
        Err(auth::Error::Login {
            area: self.area.name(),
            source: "the API refuses the token that the identity service has just given".into(),
            retry: Retry::Never,
        })
    }
}
