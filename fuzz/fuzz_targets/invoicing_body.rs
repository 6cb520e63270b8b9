//! A signed invoicing body, of a hook that is known and of one that is not.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tributary::{
    model::{InvoicingAction, InvoicingEntity, InvoicingHook},
    webhooks::delivery::Family,
};
use tributary_fuzz::{check, delivery};

fuzz_target!(|body: &[u8]| {
    let hook = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created };
    for hook in [None, Some(hook.into())] {
        check(&delivery(Family::Invoicing { hook, tenants: Arc::default() }, body));
    }
});
