//! Records as the provider's reads show them, one struct per schema.
//!
//! Text stays as sent, typed twins stand beside it, and what a schema does not know goes to `extra`;
//! `to_json` gives the provider's object back, without the twins and without the company id, which are ours.

use serde::{Deserialize, Serialize};

use super::{
    AccountingResource, CompanyId, Error, Extra, Moment, SchemaKind,
    event::sequence,
    members::{Members, Object, without_mark},
};

/// An accounting company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Company {
    /// Id of the company.
    pub correlation_id: Option<String>,
    /// Name for tax purposes.
    pub vat_name: Option<String>,
    /// Tax number.
    pub vat_number: Option<String>,
    /// State, such as `Enabled`.
    pub state: Option<String>,
    /// Chart of accounts in use.
    pub chart_of_account_id: Option<i64>,
    /// Digits of an account code.
    pub account_length: Option<i64>,
    /// Revision time as the provider sent it: ISO 8601, UTC, up to seven fractional digits.
    pub version: Option<String>,
    /// `version` as microseconds since 1970, rounded down.
    pub version_at: Option<i64>,
    /// Revision number as the provider sent it: digits, to be compared as a number of any length.
    pub sequence_version: Option<String>,
    /// `sequenceVersion` as a number.
    pub sequence: Option<i64>,
    /// What no other field holds.
    pub extra: Extra,
}

/// A customer of an accounting company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Customer {
    /// Correlation id of the company the record belongs to: the company part of the record's key.
    pub company_id: CompanyId,
    /// Id of the customer.
    pub correlation_id: Option<String>,
    /// Trade name.
    pub trade_name: Option<String>,
    /// State, such as `Enabled`.
    pub state: Option<String>,
    /// Tax number.
    pub vat_number: Option<String>,
    /// Name for tax purposes.
    pub vat_name: Option<String>,
    /// Code of the customer's account.
    pub account_code: Option<String>,
    /// Id behind the tax number.
    pub vat_number_correlation_id: Option<String>,
    /// Id of the customer's account.
    pub account_code_correlation_id: Option<String>,
    /// Revision time as the provider sent it: ISO 8601, UTC, up to seven fractional digits.
    pub version: Option<String>,
    /// `version` as microseconds since 1970, rounded down.
    pub version_at: Option<i64>,
    /// Revision number as the provider sent it: digits, to be compared as a number of any length.
    pub sequence_version: Option<String>,
    /// `sequenceVersion` as a number.
    pub sequence: Option<i64>,
    /// What no other field holds.
    pub extra: Extra,
}

/// An account of an accounting company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// Correlation id of the company the record belongs to: the company part of the record's key.
    pub company_id: CompanyId,
    /// Id of the account.
    pub correlation_id: Option<String>,
    /// Account code.
    pub code: Option<String>,
    /// Description.
    pub description: Option<String>,
    /// State, such as `Enabled` or `Template`.
    pub state: Option<String>,
    /// Revision time as the provider sent it: ISO 8601, UTC, up to seven fractional digits.
    pub version: Option<String>,
    /// `version` as microseconds since 1970, rounded down.
    pub version_at: Option<i64>,
    /// Revision number as the provider sent it: digits, to be compared as a number of any length.
    pub sequence_version: Option<String>,
    /// `sequenceVersion` as a number.
    pub sequence: Option<i64>,
    /// What no other field holds.
    pub extra: Extra,
}

/// A record of a resource whose members are not documented. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Correlation id of the company the record belongs to: the company part of the record's key.
    pub company_id: CompanyId,
    /// Resource in the words of the topics, such as `input-invoices`.
    pub resource: AccountingResource,
    /// Id of the record.
    pub correlation_id: Option<String>,
    /// State, such as `Enabled`.
    pub state: Option<String>,
    /// Revision time as the provider sent it: ISO 8601, UTC, up to seven fractional digits.
    pub version: Option<String>,
    /// `version` as microseconds since 1970, rounded down.
    pub version_at: Option<i64>,
    /// Revision number as the provider sent it: digits, to be compared as a number of any length.
    pub sequence_version: Option<String>,
    /// `sequenceVersion` as a number.
    pub sequence: Option<i64>,
    /// The whole object as the provider sent it, byte for byte.
    pub json: String,
}

/// A payroll company. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PayrollCompany {
    /// Code of the company: both parts of the record's key.
    pub company_code: Option<i64>,
    /// Name of the company.
    pub company_name: Option<String>,
    /// Tax identifier of the company.
    pub identifier_number: Option<String>,
    /// Time of the last change as the provider sent it: ISO 8601, UTC.
    pub last_update: Option<String>,
    /// `lastUpdate` as microseconds since 1970.
    pub last_update_at: Option<i64>,
    /// What no other field holds.
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
            .digits("sequenceVersion", self.sequence_version.as_deref())
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
            .digits("sequenceVersion", self.sequence_version.as_deref())
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
            .digits("sequenceVersion", self.sequence_version.as_deref())
            .finish()
    }
}

impl Record {
    /// Reads a record of `resource` and `company`.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8], resource: AccountingResource, company: &CompanyId) -> Result<Self, Error> {
        let json = without_mark(json);
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

    /// The provider's object with its members in the order of their names.
    pub(super) fn canonical(&self) -> String {
        let members = Members::parse(SchemaKind::Record, self.json.as_bytes());
        members.map_or_else(|_| self.json.clone(), |members| Object::with(&members.rest()).finish())
    }

    /// Whether the provider sent a value under this name.
    pub(super) fn has_value(&self, name: &str) -> bool {
        Members::parse(SchemaKind::Record, self.json.as_bytes()).is_ok_and(|members| members.has_value(name))
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
        let sequence_version = members.take_digits("sequenceVersion");
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
