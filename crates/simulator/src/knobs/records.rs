//! Reads of one record by its id, and members that records may leave out.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Status;
use crate::catalog::Resource;

/// Reads of one record by its id, and members that records may leave out. The document shows the members of companies, customers,
/// accounts and payroll companies, and no error body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RecordKnobs {
    /// `context` on a read of a company by its id.
    pub company_context: CompanyContext,
    /// Status for a record that is deleted or never was, and for a webhook that never was: 404 or 410.
    pub missing_status: Status,
    /// Body of that answer.
    pub missing_body: MissingBody,
    /// Resources whose records, read by id, leave out `sequenceVersion`.
    pub without_sequence: BTreeSet<Resource>,
    /// Resources whose records, read by id, leave out `correlationId`.
    pub without_id: BTreeSet<Resource>,
    /// Payroll companies leave out `lastUpdate`.
    pub without_last_update: bool,
    /// What stands in the place of a member that is left out; also of the `correlationId` of an account template.
    pub left_out: LeftOut,
}

impl Default for RecordKnobs {
    fn default() -> Self {
        Self {
            company_context: CompanyContext::Company,
            missing_status: Status::NOT_FOUND,
            missing_body: MissingBody::Api,
            without_sequence: BTreeSet::new(),
            without_id: BTreeSet::new(),
            without_last_update: false,
            left_out: LeftOut::Absent,
        }
    }
}

/// `context` on a read of a company by its id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CompanyContext {
    /// It must name a company, as the document says for reads after an event.
    #[default]
    Company,
    /// It must be `none`.
    None,
    /// It must be absent.
    Absent,
    /// Any of these.
    Any,
}

/// The body of an answer for a record that is not there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MissingBody {
    /// JSON of the API: `ok` and `httpCode`.
    #[default]
    Api,
    /// Other JSON.
    Json,
    /// JSON as the gateway writes it: `statusCode` and `message`.
    Gateway,
    /// Nothing.
    Empty,
    /// Plain text.
    Text,
    /// A page.
    Html,
}

impl MissingBody {
    /// Every body.
    pub const ALL: [Self; 6] = [Self::Api, Self::Json, Self::Gateway, Self::Empty, Self::Text, Self::Html];
}

/// What stands in the place of a member that is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeftOut {
    /// Nothing.
    #[default]
    Absent,
    /// `null`.
    Null,
    /// An empty text.
    Empty,
    /// A text that is neither a number nor a time; an id is empty then.
    Unreadable,
}

impl LeftOut {
    /// Every form.
    pub const ALL: [Self; 4] = [Self::Absent, Self::Null, Self::Empty, Self::Unreadable];
}
