//! The rig, tried on itself: what other tests build on must not be what fails them.

use crate::support::Shared;

crate::tests! {
    real shared_kafka_and_registry_have_addresses;
}

async fn shared_kafka_and_registry_have_addresses(shared: &'static Shared) {
    assert!(shared.bootstrap().contains(':'));
    assert!(shared.registry().starts_with("http"));
}
