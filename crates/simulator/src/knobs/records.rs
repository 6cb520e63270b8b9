//! Reads of one record by its id, and members that records may leave out.

use std::collections::BTreeSet;

use super::Status;
use crate::catalog::Resource;

knobs! {
    /// Reads of one record by its id, and members that records may leave out. The document shows the members of companies, customers,
    /// accounts and payroll companies, and no error body.
    pub struct RecordKnobs {
        /// `context` on a read of a company by its id.
        pub company_context: CompanyContext = CompanyContext::Company,
        /// Status for a record that is deleted or never was, and for a webhook that never was: 404 or 410.
        pub missing_status: Status = Status::NOT_FOUND,
        /// Body of that answer.
        pub missing_body: MissingBody = MissingBody::Api,
        /// Resources whose records, read by id, leave out `sequenceVersion`.
        pub without_sequence: BTreeSet<Resource> = BTreeSet::new(),
        /// Resources whose records, read by id, leave out `correlationId`.
        pub without_id: BTreeSet<Resource> = BTreeSet::new(),
        /// Payroll companies leave out `lastUpdate`.
        pub without_last_update: bool = false,
        /// What stands in the place of a member that is left out; also of the `correlationId` of an account template.
        pub left_out: LeftOut = LeftOut::Absent,
    }
}

choices! { "camelCase";
    /// `context` on a read of a company by its id.
    pub enum CompanyContext {
        /// It must name a company, as the document says for reads after an event.
        Company,
        /// It must be `none`.
        None,
        /// It must be absent.
        Absent,
        /// Any of these.
        Any,
    }

    /// The body of an answer for a record that is not there.
    pub enum MissingBody {
        /// JSON of the API: `ok` and `httpCode`.
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

    /// What stands in the place of a member that is left out.
    #[derive(Default)]
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
}
