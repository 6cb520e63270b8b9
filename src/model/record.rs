//! Records as the provider's reads show them, one struct per schema.
//!
//! Text stays as sent, typed twins stand beside it, and what a schema does not know goes to `extra`; `to_json` gives the
//! provider's object back, without the twins and without the company id, which are ours.

use serde::{Deserialize, Serialize};

use super::{
    AccountingResource, CompanyId, Error, Extra, Moment, SchemaKind,
    event::sequence,
    members::{Members, Object},
};

/// An accounting company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct Company {
    pub correlation_id: Option<String>,
    pub vat_name: Option<String>,
    pub vat_number: Option<String>,
    pub state: Option<String>,
    pub chart_of_account_id: Option<i64>,
    pub account_length: Option<i64>,
    pub version: Option<String>,
    pub version_at: Option<i64>,
    pub sequence_version: Option<String>,
    pub sequence: Option<i64>,
    pub extra: Extra,
}

/// A customer of an accounting company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct Customer {
    pub company_id: CompanyId,
    pub correlation_id: Option<String>,
    pub trade_name: Option<String>,
    pub state: Option<String>,
    pub vat_number: Option<String>,
    pub vat_name: Option<String>,
    pub account_code: Option<String>,
    pub vat_number_correlation_id: Option<String>,
    pub account_code_correlation_id: Option<String>,
    pub version: Option<String>,
    pub version_at: Option<i64>,
    pub sequence_version: Option<String>,
    pub sequence: Option<i64>,
    pub extra: Extra,
}

/// An account of an accounting company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct Account {
    pub company_id: CompanyId,
    pub correlation_id: Option<String>,
    pub code: Option<String>,
    pub description: Option<String>,
    pub state: Option<String>,
    pub version: Option<String>,
    pub version_at: Option<i64>,
    pub sequence_version: Option<String>,
    pub sequence: Option<i64>,
    pub extra: Extra,
}

/// A record of a resource whose members are not documented. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct Record {
    pub company_id: CompanyId,
    pub resource: AccountingResource,
    pub correlation_id: Option<String>,
    pub state: Option<String>,
    pub version: Option<String>,
    pub version_at: Option<i64>,
    pub sequence_version: Option<String>,
    pub sequence: Option<i64>,
    pub json: String,
}

/// A payroll company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct PayrollCompany {
    pub company_code: Option<i64>,
    pub company_name: Option<String>,
    pub identifier_number: Option<String>,
    pub last_update: Option<String>,
    pub last_update_at: Option<i64>,
    pub extra: Extra,
}

impl Company {
    /// Reads one item of the company list.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8]) -> Result<Self, Error> {
        let mut members = Members::parse(SchemaKind::Company, json)?;
        let revision = Revision::take(&mut members);
        Ok(Self {
            correlation_id: members.take_text("correlationId"),
            vat_name: members.take_text("vatName"),
            vat_number: members.take_text("vatNumber"),
            state: members.take_text("state"),
            chart_of_account_id: members.take_integer("chartOfAccountId"),
            account_length: members.take_integer("accountLength"),
            version: revision.version,
            version_at: revision.version_at,
            sequence_version: revision.sequence_version,
            sequence: revision.sequence,
            extra: members.rest(),
        })
    }

    /// The provider's object again.
    #[must_use]
    pub fn to_json(&self) -> String {
        Object::with(&self.extra)
            .text("correlationId", self.correlation_id.as_deref())
            .text("vatName", self.vat_name.as_deref())
            .text("vatNumber", self.vat_number.as_deref())
            .text("state", self.state.as_deref())
            .integer("chartOfAccountId", self.chart_of_account_id)
            .integer("accountLength", self.account_length)
            .text("version", self.version.as_deref())
            .text("sequenceVersion", self.sequence_version.as_deref())
            .finish()
    }
}

impl Customer {
    /// Reads a customer of `company`.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8], company: &CompanyId) -> Result<Self, Error> {
        let mut members = Members::parse(SchemaKind::Customer, json)?;
        let revision = Revision::take(&mut members);
        Ok(Self {
            company_id: company.clone(),
            correlation_id: members.take_text("correlationId"),
            trade_name: members.take_text("tradeName"),
            state: members.take_text("state"),
            vat_number: members.take_text("vatNumber"),
            vat_name: members.take_text("vatName"),
            account_code: members.take_text("accountCode"),
            vat_number_correlation_id: members.take_text("vatNumberCorrelationId"),
            account_code_correlation_id: members.take_text("accountCodeCorrelationId"),
            version: revision.version,
            version_at: revision.version_at,
            sequence_version: revision.sequence_version,
            sequence: revision.sequence,
            extra: members.rest(),
        })
    }

    /// The provider's object again.
    #[must_use]
    pub fn to_json(&self) -> String {
        Object::with(&self.extra)
            .text("correlationId", self.correlation_id.as_deref())
            .text("tradeName", self.trade_name.as_deref())
            .text("state", self.state.as_deref())
            .text("vatNumber", self.vat_number.as_deref())
            .text("vatName", self.vat_name.as_deref())
            .text("accountCode", self.account_code.as_deref())
            .text("vatNumberCorrelationId", self.vat_number_correlation_id.as_deref())
            .text("accountCodeCorrelationId", self.account_code_correlation_id.as_deref())
            .text("version", self.version.as_deref())
            .text("sequenceVersion", self.sequence_version.as_deref())
            .finish()
    }
}

impl Account {
    /// Reads an account of `company`.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8], company: &CompanyId) -> Result<Self, Error> {
        let mut members = Members::parse(SchemaKind::Account, json)?;
        let revision = Revision::take(&mut members);
        Ok(Self {
            company_id: company.clone(),
            correlation_id: members.take_text("correlationId"),
            code: members.take_text("code"),
            description: members.take_text("description"),
            state: members.take_text("state"),
            version: revision.version,
            version_at: revision.version_at,
            sequence_version: revision.sequence_version,
            sequence: revision.sequence,
            extra: members.rest(),
        })
    }

    /// The provider's object again.
    #[must_use]
    pub fn to_json(&self) -> String {
        Object::with(&self.extra)
            .text("correlationId", self.correlation_id.as_deref())
            .text("code", self.code.as_deref())
            .text("description", self.description.as_deref())
            .text("state", self.state.as_deref())
            .text("version", self.version.as_deref())
            .text("sequenceVersion", self.sequence_version.as_deref())
            .finish()
    }
}

impl Record {
    /// Reads a record of `resource` and `company`.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8], resource: AccountingResource, company: &CompanyId) -> Result<Self, Error> {
        let mut members = Members::parse(SchemaKind::Record, json)?;
        let revision = Revision::take(&mut members);
        Ok(Self {
            company_id: company.clone(),
            resource,
            correlation_id: members.take_text("correlationId"),
            state: members.take_text("state"),
            version: revision.version,
            version_at: revision.version_at,
            sequence_version: revision.sequence_version,
            sequence: revision.sequence,
            // Nothing is replaced: what parsed as JSON is Unicode.
            json: String::from_utf8_lossy(json).into_owned(),
        })
    }

    /// The provider's object again, to the byte.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.json.clone()
    }
}

impl PayrollCompany {
    /// Reads one item of the payroll company list.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8]) -> Result<Self, Error> {
        let mut members = Members::parse(SchemaKind::PayrollCompany, json)?;
        let last_update = members.take_text("lastUpdate");
        Ok(Self {
            company_code: members.take_integer("companyCode"),
            company_name: members.take_text("companyName"),
            identifier_number: members.take_text("identifierNumber"),
            last_update_at: micros(last_update.as_deref()),
            last_update,
            extra: members.rest(),
        })
    }

    /// The provider's object again.
    #[must_use]
    pub fn to_json(&self) -> String {
        Object::with(&self.extra)
            .integer("companyCode", self.company_code)
            .text("companyName", self.company_name.as_deref())
            .text("identifierNumber", self.identifier_number.as_deref())
            .text("lastUpdate", self.last_update.as_deref())
            .finish()
    }
}

/// The two members every accounting record has, with their typed twins.
struct Revision {
    version: Option<String>,
    version_at: Option<i64>,
    sequence_version: Option<String>,
    sequence: Option<i64>,
}

impl Revision {
    fn take(members: &mut Members<'_>) -> Self {
        let version = members.take_text("version");
        let sequence_version = members.take_text("sequenceVersion");
        Self {
            version_at: micros(version.as_deref()),
            version,
            sequence: sequence(sequence_version.as_deref()),
            sequence_version,
        }
    }
}

fn micros(time: Option<&str>) -> Option<i64> {
    Moment::parse(time?).map(Moment::micros)
}
