//! What goes wrong when programs ask: rules of the knobs, with the effects that API requests meet, too.

use axum::response::Response;

use super::Identity;
use crate::{
    core::Core,
    effect::{instead, spoil},
    knobs::{Effect, Endpoint, IdentityFault},
    random::Random,
};

/// Keeps what is drawn here apart from everything else drawn under the seed.
const PURPOSE: u64 = 0x6964_6661_756c_7400;

/// The fault that hits a request now, counted; nothing happens otherwise.
pub(super) struct ActiveFault(Option<IdentityFault>);

impl ActiveFault {
    /// For a request to this endpoint.
    pub(super) fn new(core: &Core, on: Endpoint) -> Self {
        let fits = |fault: &IdentityFault| fault.on == on && fault.times != Some(0);
        // Using one up may copy all knobs, so this first looks whether there is one.
        if !core.knobs().identity.faults.iter().any(fits) {
            return Self(None);
        }
        Self(core.use_up(|knobs| {
            let fault = knobs.faults.iter_mut().find(|fault| fits(fault))?;
            fault.times = fault.times.map(|times| times.saturating_sub(1));
            Some(fault.clone())
        }))
    }

    /// What is answered before any work, if so.
    pub(super) async fn before(&self, identity: &Identity) -> Option<Response> {
        match &self.0 {
            Some(IdentityFault { after_work: false, effect: Effect::Delay(latency), .. }) => {
                tokio::time::sleep(identity.latency(latency)).await;
                None
            }
            Some(IdentityFault { after_work: false, effect, .. }) => instead(effect),
            _ => None,
        }
    }

    /// What becomes of the answer once the work was done, and whether it still is the right one.
    pub(super) async fn after(self, identity: &Identity, answer: Response) -> (Response, bool) {
        let Some(IdentityFault { effect, after_work, .. }) = self.0 else { return (answer, true) };
        if let Effect::Delay(latency) = &effect {
            if after_work {
                tokio::time::sleep(identity.latency(latency)).await;
            }
            return (answer, true);
        }
        if let Some(instead) = instead(&effect) {
            return (instead, false);
        }
        let mut random = Random::new(identity.core.seed(), PURPOSE);
        (spoil(&effect, answer, &mut random).await, false)
    }
}
