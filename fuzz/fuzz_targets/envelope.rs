//! A signed accounting body, to an address with a resource and to one without.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tributary::{model::AccountingResource, webhooks::delivery::Family};
use tributary_fuzz::{check, delivery};

fuzz_target!(|body: &[u8]| {
    for resource in [None, Some(AccountingResource::Customers)] {
        check(&delivery(Family::Accounting { resource }, body));
    }
    // Nor is anything read from a disk believed.
    drop(tributary::webhooks::delivery::Delivery::from_entry(body.to_vec().into()));
});
