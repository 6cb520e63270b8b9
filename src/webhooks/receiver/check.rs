//! What makes a body trustworthy, found out while it is read or once it is complete.

use std::collections::BTreeMap;

use base::metrics::RefusalReason;
use model::{InvoicingEvent, InvoicingHook};

use super::{body, budget::Unverified};
use crate::webhooks::signature::{Keys, Presented, Running};

/// Largest body at the shared address that is tried with the secrets of every entity, in bytes. The provider names the entity in
/// each body; a larger one is tried with the secrets of that entity alone, so that a forged one costs as much as an accounting
/// delivery of the same size.
const ANY_ENTITY_LIMIT: usize = 32 * 1024;

/// See the module's head.
#[derive(Debug)]
pub(super) enum Check<'a> {
    /// A signature over all bytes, by one of a few secrets, each of which hashes the body as it comes.
    Signature {
        /// The secrets, having seen what was read so far.
        running: Running,
        /// What the sender claims.
        presented: Presented,
        /// The hook whose secrets these are, for deliveries at its own address.
        hook: Option<InvoicingHook>,
    },
    /// A signature by the secret of any hook, for deliveries at the shared address. Nothing is hashed before the body is
    /// complete: it says which secrets to try first.
    AnyHook {
        /// The secrets of each.
        keys: &'a BTreeMap<InvoicingHook, Keys>,
        /// What the sender claims.
        presented: Presented,
    },
    /// Where it comes from, which was looked at before.
    Source {
        /// The hook whose own address it came to.
        hook: Option<InvoicingHook>,
    },
}

/// A body is trustworthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verified {
    /// The hook whose secret or address says so.
    pub(super) hook: Option<InvoicingHook>,
    /// Place of the secret: 0 for the one of now, 1 for the one before it.
    pub(super) secret: usize,
}

impl<'a> Check<'a> {
    pub(super) fn signature(keys: &Keys, presented: Presented, hook: Option<InvoicingHook>) -> Self {
        Self::Signature { running: keys.start(), presented, hook }
    }

    /// Whether it takes any hashing.
    pub(super) const fn hashes(&self) -> bool {
        !matches!(self, Self::Source { .. })
    }

    /// What hashes a body as it comes.
    pub(super) const fn running(&mut self) -> Option<&mut Running> {
        match self {
            Self::Signature { running, .. } => Some(running),
            Self::AnyHook { .. } | Self::Source { .. } => None,
        }
    }

    /// Whether all that was read is trustworthy; `body` is it, where it was kept.
    ///
    /// # Errors
    /// Its source has used up what is hashed for it.
    pub(super) async fn finish(
        self,
        body: Option<&[u8]>,
        held: &mut Unverified,
    ) -> Result<Option<Verified>, RefusalReason> {
        match (self, body) {
            (Self::Signature { running, presented, hook }, _) => {
                Ok(running.matching(&presented).map(|secret| Verified { hook, secret }))
            }
            (Self::AnyHook { keys, presented }, Some(body)) => any_hook(keys, presented, body, held).await,
            (Self::AnyHook { .. }, None) => Ok(None),
            (Self::Source { hook }, _) => Ok(Some(Verified { hook, secret: 0 })),
        }
    }
}

/// Tries the hooks of the entity that a body names, at most six secrets, then all others where the body is small: the provider
/// does not document that a delivery names the entity of its hook.
async fn any_hook(
    keys: &BTreeMap<InvoicingHook, Keys>,
    presented: Presented,
    body: &[u8],
    held: &mut Unverified,
) -> Result<Option<Verified>, RefusalReason> {
    let entity = InvoicingEvent::entity_named(body);
    let (named, others): (Vec<_>, Vec<_>) = keys.iter().partition(|(hook, _)| Some(hook.entity) == entity);
    let others = if body.len() <= ANY_ENTITY_LIMIT { others } else { Vec::new() };
    for group in [named, others] {
        let mut running = Keys::start_all(group.iter().map(|(_, keys)| *keys));
        body::hash(body, &mut running, held, &mut 0).await?;
        let Some(mut secret) = running.matching(&presented) else { continue };
        for (hook, keys) in group {
            if secret < keys.count() {
                return Ok(Some(Verified { hook: Some(*hook), secret }));
            }
            secret -= keys.count();
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use base::secret::Secret;
    use model::InvoicingEntity;

    use super::{
        super::{budget::Budget, sources::HashLimit},
        *,
    };
    use crate::webhooks::signature::{Scheme, hook_secret, sign};

    const MASTERS: [&str; 2] = ["the invoicing secret of today...", "the invoicing secret before it.."];

    fn secret(master: usize, hook: InvoicingHook) -> Secret {
        hook_secret(&Secret::new(MASTERS[master]), hook.entity, hook.action)
    }

    /// Two secrets for each of all hooks, as while they are rotated.
    fn keys() -> BTreeMap<InvoicingHook, Keys> {
        let hooks = InvoicingEntity::all()
            .flat_map(|entity| entity.actions().iter().map(move |&action| InvoicingHook { entity, action }));
        let keys = |hook| {
            Keys::new([0, 1].map(|master| secret(master, hook)).each_ref().map(|one| one.reveal().as_bytes()))
        };
        hooks.map(|hook| (hook, keys(hook))).collect()
    }

    /// What comes of a body, and how many secrets hashed it.
    async fn tried(body: &[u8], signature: &str) -> (Option<Verified>, usize) {
        let limit = HashLimit { burst: 1 << 40, per_second: 0, free: 0 };
        let budget = Budget::new(1 << 20, 1 << 20, limit);
        let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut held = budget.enter(body.len(), source).unwrap();
        let keys = keys();
        let presented = Presented::parse(signature.as_bytes(), Scheme::Required).unwrap();

        let check = Check::AnyHook { keys: &keys, presented };
        let verified = check.finish(Some(body), &mut held).await.unwrap();

        (verified, held.hashed_bytes() / body.len())
    }

    #[tokio::test]
    async fn a_body_that_names_its_entity_is_tried_with_six_keys() {
        for form in [
            r#"{"Entity":"Product"}"#,
            r#"{"Id":"1","Notifications":[{"Entity":"Product","Action":"Created"}]}"#,
        ] {
            for hook in keys().into_keys().filter(|hook| hook.entity == InvoicingEntity::Product) {
                for master in [0, 1] {
                    let signature = sign(&secret(master, hook), form.as_bytes());

                    let found = tried(form.as_bytes(), &signature).await;

                    assert_eq!(found, (Some(Verified { hook: Some(hook), secret: master }), 6), "{form}");
                }
            }
        }
    }

    #[tokio::test]
    async fn every_hook_verifies_whatever_its_body_names() {
        let bodies = [
            r#"{"Entity":"Customer"}"#,
            r#"{"Entity":"Something new"}"#,
            r#"{"EntityId":"1"}"#,
            r#"{"Notifications":[{"Action":"Created"}]}"#,
            r#"{"Notifications":7}"#,
            "no JSON",
        ];
        for body in bodies {
            for hook in keys().into_keys() {
                let signature = sign(&secret(1, hook), body.as_bytes());

                let (verified, _) = tried(body.as_bytes(), &signature).await;

                assert_eq!(verified, Some(Verified { hook: Some(hook), secret: 1 }), "{body}");
            }
            let forged = sign(&Secret::new(MASTERS[0]), body.as_bytes());
            assert_eq!(tried(body.as_bytes(), &forged).await, (None, 2 * keys().len()), "{body}");
        }
    }

    #[tokio::test]
    async fn a_large_body_is_tried_with_the_keys_of_its_entity() {
        for (entity, expected) in [("Customer", 6), ("Something new", 0)] {
            let body = format!(r#"{{"Entity":"{entity}","More":"{}"}}"#, "x".repeat(ANY_ENTITY_LIMIT));
            let forged = sign(&Secret::new(MASTERS[0]), body.as_bytes());

            assert_eq!(tried(body.as_bytes(), &forged).await, (None, expected), "{entity}");
        }
    }

    #[tokio::test]
    async fn a_spent_source_is_refused_before_the_next_piece_is_hashed() {
        let budget = Budget::new(1 << 20, 1 << 20, HashLimit { burst: 100, per_second: 0, free: 0 });
        let mut held = budget.enter(0, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let (keys, body) = (keys(), br#"{"EntityId":"1"}"#);
        let presented = Presented::parse(sign(&Secret::new("x"), body).as_bytes(), Scheme::Required).unwrap();

        let first = Check::AnyHook { keys: &keys, presented }.finish(Some(body), &mut held).await;
        let second = Check::AnyHook { keys: &keys, presented }.finish(Some(body), &mut held).await;

        assert!(matches!((first, second), (Ok(None), Err(RefusalReason::Throttled))));
    }
}
