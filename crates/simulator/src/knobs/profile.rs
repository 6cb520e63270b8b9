//! Sets of knobs for what the document leaves open.
//!
//! - **strict**, the default: only what the document says, in its narrowest reading.
//! - **lenient**: the most generous reading.
//! - **drawn**: each open question is answered at random by the seed.
//!
//! A drawn provider has no faults and forgets nothing.

use super::{
    AcknowledgeTime, BadClient, ChangeAnswer, CompaniesContext, DisabledShows, EchoTime, EmptyList,
    ExpiredToken, FirstPage, HttpStatus, InvoicingBody, Knobs, LeftOut, ListOrder, MissingBody, Parameter,
    PayrollTotal, ReceiverPaths, RefreshLife, TimestampEpoch, records::CompanyContext,
};
use crate::{catalog::Resource, random::Random};

/// The random stream of profiles.
const PURPOSE: u64 = 0x0070_726f_6669_6c65;

impl Knobs {
    /// The most generous reading of the document.
    pub fn lenient() -> Self {
        let mut knobs = Self::default();
        let reads = &mut knobs.reads;
        reads.accounting_pagination = true;
        reads.companies_context = CompaniesContext::Either;
        reads.payroll_total = PayrollTotal::Right;
        reads.payroll_paging_required = false;
        reads.first_page = FirstPage::OneOrZero;
        reads.extra_fields = true;
        reads.records.company_context = CompanyContext::Any;
        knobs.accounting.strict_transitions = false;
        knobs.invoicing.receiver_paths = ReceiverPaths::Any;
        knobs
    }

    /// Random answers to what the document leaves open.
    pub fn drawn(seed: u64) -> Self {
        let mut draw = Draw(Random::new(seed, PURPOSE));
        let mut knobs = Self::default();
        let reads = &mut knobs.reads;
        reads.max_page_size = draw.one_of(&[7, 50, 1_000]);
        reads.accounting_pagination = draw.flag();
        reads.empty_list = draw.one_of(&EmptyList::ALL);
        reads.companies_context = draw.one_of(&CompaniesContext::ALL);
        reads.order = draw.one_of(&ListOrder::ALL);
        reads.disabled = draw.one_of(&[DisabledShows::Everywhere, DisabledShows::ById]);
        reads.thin_rows = draw.flag();
        reads.extra_fields = draw.flag();
        reads.template_accounts = draw.one_of(&[0, 3]);
        let refusals = [400, 403, 404].map(|status| HttpStatus::new(status).unwrap_or(HttpStatus::FORBIDDEN));
        reads.unknown_company = draw.one_of(&refusals);
        reads.filter_timestamps = draw.flag();
        reads.payroll_paging_required = draw.flag();
        reads.payroll_filter = draw.one_of(&Parameter::ALL);
        reads.payroll_order = draw.one_of(&[Parameter::Heeded, Parameter::Ignored, Parameter::Refused]);
        reads.payroll_total = draw.one_of(&[PayrollTotal::Right, PayrollTotal::Absent]);
        reads.first_page = draw.one_of(&FirstPage::ALL);
        let records = &mut reads.records;
        records.company_context =
            draw.one_of(&[CompanyContext::Company, CompanyContext::None, CompanyContext::Absent]);
        let statuses = [404, 410].map(|status| HttpStatus::new(status).unwrap_or(HttpStatus::NOT_FOUND));
        records.missing_status = draw.one_of(&statuses);
        records.missing_body = draw.one_of(&MissingBody::ALL);
        // For companies, customers and accounts the document shows both members.
        let shown = [Resource::Companies, Resource::Customers, Resource::Accounts];
        for resource in Resource::ALL.into_iter().filter(|resource| !shown.contains(resource)) {
            if draw.flag() {
                records.without_sequence.insert(resource);
            }
            if draw.flag() {
                records.without_id.insert(resource);
            }
        }
        records.without_last_update = draw.flag();
        records.left_out = draw.one_of(&LeftOut::ALL);
        knobs.gateway.expired_token = draw.one_of(&ExpiredToken::ALL);
        knobs.gateway.gzip = draw.flag();
        let identity = &mut knobs.identity;
        identity.refresh = draw.one_of(&RefreshLife::ALL);
        identity.rotate_absolute = draw.flag();
        identity.omit_unrotated = draw.flag();
        identity.duplicate_id_claim = draw.flag();
        identity.callback_id_token = draw.flag();
        identity.bad_client = draw.one_of(&BadClient::ALL);
        let accounting = &mut knobs.accounting;
        accounting.acknowledge = draw.one_of(&[AcknowledgeTime::AfterAnswer, AcknowledgeTime::BeforeAnswer]);
        accounting.change_answer = draw.one_of(&ChangeAnswer::ALL);
        accounting.strict_transitions = draw.flag();
        accounting.error_objects = draw.flag();
        accounting.timestamp = draw.one_of(&TimestampEpoch::ALL);
        accounting.timestamp_offset = draw.one_of(&[0, 60, 120]);
        let invoicing = &mut knobs.invoicing;
        invoicing.receiver_paths = draw.one_of(&ReceiverPaths::ALL);
        invoicing.echo = draw.one_of(&[EchoTime::AfterAnswer, EchoTime::DuringPost]);
        invoicing.echo_dashes = draw.flag();
        let created = [200, 201, 202, 204].map(|status| HttpStatus::new(status).unwrap_or(HttpStatus::OK));
        invoicing.created_status = draw.one_of(&created);
        invoicing.silent = draw.flag();
        invoicing.body = draw.one_of(&InvoicingBody::ALL);
        invoicing.extra_members = draw.flag();
        invoicing.refresh_once = draw.flag();
        knobs
    }
}

struct Draw(Random);

impl Draw {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        // The index is below the length.
        all[usize::try_from(self.0.below(all.len() as u64)).unwrap_or(0)]
    }

    fn flag(&mut self) -> bool {
        self.one_of(&[false, true])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_provider_and_seeds_differ() {
        assert_eq!(Knobs::drawn(7), Knobs::drawn(7));
        assert!((0..20).any(|seed| Knobs::drawn(seed) != Knobs::drawn(7)));
        assert_ne!(Knobs::lenient(), Knobs::default());
    }
}
