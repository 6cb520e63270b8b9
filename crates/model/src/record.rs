//! Records that we read from the provider, one struct per schema.
//!
//! Text is kept as sent, with parsed fields beside it; members unknown to the schema go to `extra`. `to_json` returns the
//! provider's object, without the parsed fields and the company id, which are ours.

use serde::{Deserialize, Serialize};

use super::{
    AccountingResource, CompanyId, Error, Moment, SchemaKind,
    event::sequence,
    members::{Members, Object, provider_object, without_bom},
};

provider_object! {
    /// An accounting company. See the schema for each field.
    pub struct Company {
        /// Id of the company.
        correlation_id: Option<String> = text "correlationId",
        /// Name for tax purposes.
        vat_name: Option<String> = text "vatName",
        /// Tax number.
        vat_number: Option<String> = text "vatNumber",
        /// State, such as `Enabled`.
        state: Option<String> = text "state",
        /// Chart of accounts in use.
        chart_of_account_id: Option<i64> = integer "chartOfAccountId",
        /// Digits of an account code.
        account_length: Option<i64> = integer "accountLength",
        /// Revision time as the provider sent it: ISO 8601, UTC, up to seven fractional digits.
        version: Option<String> = text "version",
        /// `version` as microseconds since 1970, rounded down.
        version_at: Option<i64> = (micros(version.as_deref())),
        /// Revision number as the provider sent it: digits, to be compared as a number of any length.
        sequence_version: Option<String> = digits "sequenceVersion",
        /// `sequenceVersion` as a number.
        sequence: Option<i64> = (sequence(sequence_version.as_deref())),
    }
}

provider_object! {
    /// A customer of an accounting company. See the schema for each field.
    pub struct Customer(company_id) {
        /// Id of the customer.
        correlation_id: Option<String> = text "correlationId",
        /// Trade name.
        trade_name: Option<String> = text "tradeName",
        /// State, such as `Enabled`.
        state: Option<String> = text "state",
        /// Tax number.
        vat_number: Option<String> = text "vatNumber",
        /// Name for tax purposes.
        vat_name: Option<String> = text "vatName",
        /// Code of the customer's account.
        account_code: Option<String> = text "accountCode",
        /// Id behind the tax number.
        vat_number_correlation_id: Option<String> = text "vatNumberCorrelationId",
        /// Id of the customer's account.
        account_code_correlation_id: Option<String> = text "accountCodeCorrelationId",
        /// Revision time as the provider sent it: ISO 8601, UTC, up to seven fractional digits.
        version: Option<String> = text "version",
        /// `version` as microseconds since 1970, rounded down.
        version_at: Option<i64> = (micros(version.as_deref())),
        /// Revision number as the provider sent it: digits, to be compared as a number of any length.
        sequence_version: Option<String> = digits "sequenceVersion",
        /// `sequenceVersion` as a number.
        sequence: Option<i64> = (sequence(sequence_version.as_deref())),
    }
}

provider_object! {
    /// An account of an accounting company. See the schema for each field.
    pub struct Account(company_id) {
        /// Id of the account.
        correlation_id: Option<String> = text "correlationId",
        /// Account code.
        code: Option<String> = text "code",
        /// Description.
        description: Option<String> = text "description",
        /// State, such as `Enabled` or `Template`.
        state: Option<String> = text "state",
        /// Revision time as the provider sent it: ISO 8601, UTC, up to seven fractional digits.
        version: Option<String> = text "version",
        /// `version` as microseconds since 1970, rounded down.
        version_at: Option<i64> = (micros(version.as_deref())),
        /// Revision number as the provider sent it: digits, to be compared as a number of any length.
        sequence_version: Option<String> = digits "sequenceVersion",
        /// `sequenceVersion` as a number.
        sequence: Option<i64> = (sequence(sequence_version.as_deref())),
    }
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

provider_object! {
    /// A payroll company. See the schema for each field.
    pub struct PayrollCompany {
        /// Code of the company: both parts of the record's key.
        company_code: Option<i64> = integer "companyCode",
        /// Name of the company.
        company_name: Option<String> = text "companyName",
        /// Tax identifier of the company.
        identifier_number: Option<String> = text "identifierNumber",
        /// Time of the last change as the provider sent it: ISO 8601, UTC.
        last_update: Option<String> = text "lastUpdate",
        /// `lastUpdate` as microseconds since 1970.
        last_update_at: Option<i64> = (micros(last_update.as_deref())),
    }
}

impl Company {
    /// Reads one item of the company list.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8]) -> Result<Self, Error> {
        Members::parse(SchemaKind::Company, json).map(Self::from_members)
    }
}

impl Customer {
    /// Reads a customer of `company`.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8], company: &CompanyId) -> Result<Self, Error> {
        Ok(Self::from_members(Members::parse(SchemaKind::Customer, json)?, company))
    }
}

impl Account {
    /// Reads an account of `company`.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8], company: &CompanyId) -> Result<Self, Error> {
        Ok(Self::from_members(Members::parse(SchemaKind::Account, json)?, company))
    }
}

impl Record {
    /// Reads a record of `resource` and `company`.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(json: &[u8], resource: AccountingResource, company: &CompanyId) -> Result<Self, Error> {
        let json = without_bom(json);
        let mut members = Members::parse(SchemaKind::Record, json)?;
        let (version, sequence_version) = (members.text("version"), members.digits("sequenceVersion"));
        Ok(Self {
            company_id: company.clone(),
            resource,
            correlation_id: members.text("correlationId"),
            state: members.text("state"),
            version_at: micros(version.as_deref()),
            version,
            sequence: sequence(sequence_version.as_deref()),
            sequence_version,
            // Never replaces anything: valid JSON is valid UTF-8.
            json: String::from_utf8_lossy(json).into_owned(),
        })
    }

    /// The provider's object, byte for byte.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.json.clone()
    }

    /// The provider's object with its members sorted by name.
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
        Members::parse(SchemaKind::PayrollCompany, json).map(Self::from_members)
    }
}

fn micros(time: Option<&str>) -> Option<i64> {
    Moment::parse(time?).map(Moment::micros)
}
