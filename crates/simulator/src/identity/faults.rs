//! Fault rules of the identity provider, with the effects of API faults.

use axum::response::Response;

use super::IdentityProvider;
use crate::{
    core::Core,
    effect::{replacement, spoil},
    knobs::{Effect, IdentityEndpoint, IdentityFault},
    random::Random,
};

/// The random stream of these faults.
const PURPOSE: u64 = 0x6964_6661_756c_7400;

/// The fault that applies to a request, already counted.
pub(super) struct ActiveFault(Option<IdentityFault>);

impl ActiveFault {
    /// Draws the fault for a request to this endpoint.
    pub(super) fn new(core: &Core, on: IdentityEndpoint) -> Self {
        let fits = |fault: &IdentityFault| fault.on == on && fault.times != Some(0);
        // Counting may copy all knobs, so look for a rule first.
        if !core.knobs().identity.faults.iter().any(fits) {
            return Self(None);
        }
        Self(core.use_up(|knobs| {
            let fault = knobs.faults.iter_mut().find(|fault| fits(fault))?;
            fault.times = fault.times.map(|times| times.saturating_sub(1));
            Some(fault.clone())
        }))
    }

    /// The answer that replaces any work.
    pub(super) async fn before(&self, identity: &IdentityProvider) -> Option<Response> {
        match &self.0 {
            Some(IdentityFault { after_work: false, effect: Effect::Delay(latency), .. }) => {
                tokio::time::sleep(identity.latency(latency)).await;
                None
            }
            Some(IdentityFault { after_work: false, effect, .. }) => replacement(effect),
            _ => None,
        }
    }

    /// The answer after the work, and whether it is unchanged.
    pub(super) async fn after(self, identity: &IdentityProvider, answer: Response) -> (Response, bool) {
        let Some(IdentityFault { effect, after_work, .. }) = self.0 else { return (answer, true) };
        if let Effect::Delay(latency) = &effect {
            if after_work {
                tokio::time::sleep(identity.latency(latency)).await;
            }
            return (answer, true);
        }
        if let Some(answer) = replacement(&effect) {
            return (answer, false);
        }
        let mut random = Random::new(identity.core.seed(), PURPOSE);
        (spoil(&effect, answer, &mut random).await, false)
    }
}
