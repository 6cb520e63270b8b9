//! Records read by id, and members that records may omit.

use std::collections::BTreeSet;

use super::HttpStatus;
use crate::catalog::Resource;

knobs! {
    /// Records read by id, and members that records may omit. The document shows the members of companies, customers, accounts
    /// and payroll companies, and no error body.
    pub struct RecordKnobs {
        /// `context` on a read of a company by its id.
        pub company_context: CompanyContext = CompanyContext::Company,
        /// Status for a record that is deleted or unknown, and for an unknown webhook: 404 or 410.
        pub missing_status: HttpStatus = HttpStatus::NOT_FOUND,
        /// Body of that answer.
        pub missing_body: MissingBody = MissingBody::Api,
        /// Resources whose records omit `sequenceVersion` when read by id.
        pub without_sequence: BTreeSet<Resource> = BTreeSet::new(),
        /// Resources whose records omit `correlationId` when read by id.
        pub without_id: BTreeSet<Resource> = BTreeSet::new(),
        /// Payroll companies omit `lastUpdate`.
        pub without_last_update: bool = false,
        /// What replaces an omitted member; also the `correlationId` of an account template.
        pub left_out: LeftOut = LeftOut::Absent,
    }
}

choices! { "camelCase";
    /// `context` on a read of a company by its id.
    pub enum CompanyContext {
        /// It must name a company, as the document says of reads after an event.
        Company,
        /// It must be `none`.
        None,
        /// It must be absent.
        Absent,
        /// Any of these.
        Any,
    }

    /// The body of an answer for a missing record.
    pub enum MissingBody {
        /// JSON of the API: `ok` and `httpCode`.
        Api,
        /// Other JSON.
        Json,
        /// JSON as the gateway writes it: `statusCode` and `message`.
        Gateway,
        /// No body.
        Empty,
        /// Plain text.
        Text,
        /// An HTML page.
        Html,
    }

    /// What replaces an omitted member.
    #[derive(Default)]
    pub enum LeftOut {
        /// Nothing.
        #[default]
        Absent,
        /// `null`.
        Null,
        /// An empty string.
        Empty,
        /// A string that is neither a number nor a time; an id is empty instead.
        Unreadable,
    }
}
