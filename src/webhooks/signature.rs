//! HMAC-SHA256 over the exact bytes of a body.
//!
//! A header must decode to exactly 32 bytes; anything longer, shorter, repeated or not hexadecimal is no signature. Every secret of a
//! group is tried, also after a match, and compared in constant time, so that the time of an answer reveals nothing about secrets. Bodies
//! are hashed as they arrive and parsed afterwards, except at the shared invoicing address: there the entity of the unverified body is read
//! first, to choose the secrets.

use std::{collections::BTreeSet, fmt, iter};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE, HEXUPPER};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName};
use sha2::Sha256;

use base::secret::Secret;
use model::{Fingerprint, InvoicingAction, InvoicingEntity, InvoicingHook};

use crate::config::connector::{SecretScope, SignatureTrust};

/// The header of accounting deliveries.
pub const ACCOUNTING_HEADER: HeaderName = HeaderName::from_static("svc-webhook-signature");
/// Secrets of fewer bytes are refused: they could be guessed.
pub const SHORTEST_SECRET: usize = 16;
/// Prefix of the digits.
const SCHEME: &[u8] = b"sha256=";
/// Bytes of a signature.
const LENGTH: usize = 32;

/// The signature of a request, not verified yet.
#[derive(Clone, Copy)]
pub struct PresentedSignature([u8; LENGTH]);

/// Whether a signature starts with `sha256=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// It must.
    Required,
    /// It may.
    Optional,
}

impl PresentedSignature {
    /// The signature of a request; `None`: there is none, or several, or it is not 32 bytes in hexadecimal.
    #[must_use]
    pub fn of(headers: &HeaderMap, name: &HeaderName, scheme: Scheme) -> Option<Self> {
        let mut values = headers.get_all(name).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        Self::parse(value.as_bytes(), scheme)
    }

    /// From the text of the header.
    #[must_use]
    pub fn parse(text: &[u8], scheme: Scheme) -> Option<Self> {
        let digits = match (text.strip_prefix(SCHEME), scheme) {
            (Some(digits), _) => digits,
            (None, Scheme::Optional) => text,
            (None, Scheme::Required) => return None,
        };
        HEXLOWER_PERMISSIVE.decode(digits).ok()?.try_into().ok().map(Self)
    }
}

impl fmt::Debug for PresentedSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Presented")
    }
}

/// Secrets that may have signed a body, in the order in which [`RunningHmac::matching`] counts them.
#[derive(Clone)]
pub struct SigningKeys(Vec<Hmac<Sha256>>);

impl SigningKeys {
    /// One key for each secret. The caller has checked their length.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> Self {
        // HMAC takes keys of any length.
        Self(secrets.into_iter().filter_map(|secret| Hmac::new_from_slice(secret).ok()).collect())
    }

    /// The keys of a hook; `None`: those that are the same for all hooks.
    #[must_use]
    pub fn of_hooks(masters: &[MasterSecret<'_>], hook: Option<InvoicingHook>) -> Self {
        let secret = |master: &MasterSecret<'_>| match (master.scope, hook) {
            (SecretScope::Hook, Some(hook)) => Some(master.of(hook)),
            (SecretScope::Connector, None) => Some(master.secret.clone()),
            (SecretScope::Hook, None) | (SecretScope::Connector, Some(_)) => None,
        };
        let secrets: Vec<Secret> = masters.iter().filter_map(secret).collect();
        Self::new(secrets.iter().map(|secret| secret.reveal().as_bytes()))
    }

    /// Starts to hash a body.
    #[must_use]
    pub fn start(&self) -> RunningHmac {
        RunningHmac(self.0.clone())
    }

    /// Starts to hash a body that any of these may have signed. [`RunningHmac::matching`] counts through all of them.
    #[must_use]
    pub fn start_all<'a>(all: impl IntoIterator<Item = &'a Self>) -> RunningHmac {
        RunningHmac(all.into_iter().flat_map(|keys| keys.0.iter().cloned()).collect())
    }

    /// How many secrets there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

/// The hashes of a body that is being read.
#[derive(Clone)]
pub struct RunningHmac(Vec<Hmac<Sha256>>);

impl RunningHmac {
    /// The next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        for mac in &mut self.0 {
            mac.update(bytes);
        }
    }

    /// Number of secrets, which is how often each byte is hashed.
    #[must_use]
    pub fn secrets(&self) -> usize {
        self.0.len()
    }

    /// The index of the first secret that made its signature; `presented` has one for each secret. Every secret is tried, also after a
    /// match.
    #[must_use]
    pub fn matching<'a>(self, presented: impl IntoIterator<Item = &'a PresentedSignature>) -> Option<usize> {
        let mut matching = None;
        for (place, (mac, presented)) in self.0.into_iter().zip(presented).enumerate() {
            let fits = mac.verify_slice(&presented.0).is_ok();
            matching = matching.or(fits.then_some(place));
        }
        matching
    }
}

impl fmt::Debug for RunningHmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({})", self.0.len())
    }
}

/// The header value that the provider would send for a body.
#[must_use]
pub fn sign(secret: &Secret, body: &[u8]) -> String {
    format!("sha256={}", HEXUPPER.encode(&digest(secret, body)))
}

/// The secret of one invoicing hook: HMAC-SHA256 of `Entity:Action`, in the provider's words, under `invoicing.secret`, as 64
/// lower-case hexadecimal digits. That text is what is registered with the hook, and its bytes are what the provider signs
/// with, so the secret that verifies a delivery identifies its hook. 64 is the longest that the provider is known to accept.
#[must_use]
pub fn hook_secret(master: &Secret, entity: InvoicingEntity, action: InvoicingAction) -> Secret {
    let name = format!("{}:{}", entity.provider_name(), action.provider_name());
    Secret::new(HEXLOWER.encode(&digest(master, name.as_bytes())))
}

/// A secret that invoicing hooks are registered with, or that they are derived from.
#[derive(Debug, Clone, Copy)]
pub struct MasterSecret<'a> {
    secret: &'a Secret,
    scope: SecretScope,
}

impl<'a> MasterSecret<'a> {
    /// A secret as `invoicing.secret.scope` says.
    #[must_use]
    pub const fn new(secret: &'a Secret, scope: SecretScope) -> Self {
        Self { secret, scope }
    }

    /// All that deliveries may be signed with; hooks are registered with the first. None if deliveries are not signed. Hooks that are
    /// registered with derived secrets deliver until all have moved to the secret itself, so that both are accepted then.
    #[must_use]
    pub fn all(trust: &'a SignatureTrust) -> Vec<Self> {
        let SignatureTrust::Required { secret, previous_secret, scope, .. } = trust else {
            return Vec::new();
        };
        let both = || iter::once(secret).chain(previous_secret);
        let whole = both().filter(|_| *scope == SecretScope::Connector);
        let whole = whole.map(|secret| Self::new(secret, SecretScope::Connector));
        whole.chain(both().map(|secret| Self::new(secret, SecretScope::Hook))).collect()
    }

    /// The secret of a hook.
    #[must_use]
    pub fn of(&self, hook: InvoicingHook) -> Secret {
        match self.scope {
            SecretScope::Hook => hook_secret(self.secret, hook.entity, hook.action),
            SecretScope::Connector => self.secret.clone(),
        }
    }

    /// Its fingerprint, which is another one if the scope is.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        match self.scope {
            SecretScope::Hook => Fingerprint::of(self.secret.reveal()),
            SecretScope::Connector => Fingerprint::of(&format!("connector:{}", self.secret.reveal())),
        }
    }
}

/// Fingerprints of all that invoicing deliveries may be signed with; that of the empty text if they are not signed. Hooks are
/// registered with the first.
pub(super) fn hook_fingerprints(trust: &SignatureTrust) -> (Fingerprint, BTreeSet<Fingerprint>) {
    let all: Vec<Fingerprint> = MasterSecret::all(trust).iter().map(MasterSecret::fingerprint).collect();
    let first = all.first().cloned().unwrap_or_else(|| Fingerprint::of(""));
    (first.clone(), all.into_iter().chain([first]).collect())
}

/// Fingerprints of the current and the previous secret.
pub(super) fn fingerprints(now: &Secret, previous: Option<&Secret>) -> BTreeSet<Fingerprint> {
    iter::once(now).chain(previous).map(|secret| Fingerprint::of(secret.reveal())).collect()
}

fn digest(secret: &Secret, bytes: &[u8]) -> [u8; LENGTH] {
    let mut mac = SigningKeys::new([secret.reveal().as_bytes()]).start();
    mac.update(bytes);
    mac.0.pop().map(|mac| mac.finalize().into_bytes().into()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"OutgoingId":"1"}"#;
    const SECRET: &str = "a secret of twenty-four b";

    fn matching(secrets: &[&str], text: &str, body: &[u8]) -> Option<usize> {
        let mut running = SigningKeys::new(secrets.iter().map(|secret| secret.as_bytes())).start();
        // In pieces, as bodies arrive.
        body.chunks(5).for_each(|piece| running.update(piece));
        let presented = PresentedSignature::parse(text.as_bytes(), Scheme::Required)?;
        running.matching(iter::repeat(&presented))
    }

    #[test]
    fn a_signature_made_elsewhere_is_recognised() {
        // printf '%s' '{"a":1}' | openssl dgst -sha256 -hmac 'key-key-key-key-'
        let made = "sha256=958C73891296C0D1D89D2D20DD9037B3DD2CB54F731A7862E6A9DFCA953FE6AD";

        assert_eq!(sign(&Secret::new("key-key-key-key-"), br#"{"a":1}"#), made);
        assert_eq!(matching(&["key-key-key-key-"], made, br#"{"a":1}"#), Some(0));
    }

    #[test]
    fn matching_returns_the_index_of_the_secret() {
        let signed = sign(&Secret::new(SECRET), BODY);

        assert_eq!(matching(&[SECRET], &signed, BODY), Some(0));
        assert_eq!(matching(&["another secret of length", SECRET], &signed, BODY), Some(1));
        assert_eq!(matching(&[SECRET, SECRET], &signed, BODY), Some(0));
        assert_eq!(matching(&["another secret of length"], &signed, BODY), None);
        assert_eq!(matching(&[], &signed, BODY), None);
    }

    #[test]
    fn one_changed_byte_anywhere_is_refused() {
        let signed = sign(&Secret::new(SECRET), BODY);
        for place in 0..BODY.len() {
            let mut body = BODY.to_vec();
            body[place] ^= 1;

            assert_eq!(matching(&[SECRET], &signed, &body), None, "byte {place}");
        }
        assert_eq!(matching(&[SECRET], &signed, &BODY[..BODY.len() - 1]), None);
        assert_eq!(matching(&[SECRET], &signed, b""), None);
    }

    #[test]
    fn only_thirty_two_bytes_in_hexadecimal_are_a_signature() {
        let signed = sign(&Secret::new(SECRET), BODY);
        let digits = signed.strip_prefix("sha256=").unwrap();
        for wrong in [
            String::new(),
            "sha256=".to_owned(),
            digits.to_owned(),
            signed[..signed.len() - 1].to_owned(),
            signed[..signed.len() - 2].to_owned(),
            format!("{signed}0"),
            format!("{signed}00"),
            format!("{signed},{signed}"),
            format!(" {signed}"),
            format!("{signed} "),
            signed.replace("sha256=", "SHA256="),
            signed.replace("sha256=", "sha1="),
            format!("sha256=sha256={digits}"),
            format!("sha256={}+0{}", &digits[..2], &digits[4..]),
            format!("sha256={}é", &digits[..62]),
        ] {
            assert!(PresentedSignature::parse(wrong.as_bytes(), Scheme::Required).is_none(), "{wrong}");
        }
        assert!(PresentedSignature::parse(digits.as_bytes(), Scheme::Optional).is_some());
        assert_eq!(matching(&[SECRET], &signed.to_lowercase(), BODY), Some(0));
    }

    #[test]
    fn two_signature_headers_are_none() {
        let signed = sign(&Secret::new(SECRET), BODY);
        let mut headers = HeaderMap::new();
        assert!(PresentedSignature::of(&headers, &ACCOUNTING_HEADER, Scheme::Required).is_none());
        headers.append(ACCOUNTING_HEADER, signed.parse().unwrap());
        assert!(PresentedSignature::of(&headers, &ACCOUNTING_HEADER, Scheme::Required).is_some());
        headers.append(ACCOUNTING_HEADER, signed.parse().unwrap());

        assert!(PresentedSignature::of(&headers, &ACCOUNTING_HEADER, Scheme::Required).is_none());
    }

    #[test]
    fn a_hook_has_the_secret_that_anyone_can_derive_from_the_master() {
        // printf 'Customer:Created' | openssl dgst -sha256 -hmac 'a master secret of thirty-two byte'
        let made = "6ed327064271f8c68c29f0ef791023960975d704ef5547cdcca06030b1495264";
        let master = Secret::new("a master secret of thirty-two byte");

        let secret = hook_secret(&master, InvoicingEntity::Customer, InvoicingAction::Created);

        assert_eq!(secret.reveal(), made);
    }

    #[test]
    fn no_two_hooks_share_a_secret() {
        let master = Secret::new("a master secret of thirty-two byte");
        let hooks =
            InvoicingEntity::all().flat_map(|entity| InvoicingAction::ALL.map(|action| (entity, action)));

        let secrets: std::collections::BTreeSet<String> = hooks
            .clone()
            .map(|(entity, action)| hook_secret(&master, entity, action).reveal().to_owned())
            .collect();

        assert_eq!(secrets.len(), hooks.count());
    }

    #[test]
    fn scope_decides_what_hooks_are_registered_with() {
        let (now, before) = ("a master secret of thirty-two byte", "the one before it, of as many byte");
        let trust = |scope| SignatureTrust::Required {
            header: "ms-signature".into(),
            secret: Secret::new(now),
            previous_secret: Some(Secret::new(before)),
            scope,
        };
        let hook = InvoicingHook::from_slug("customer-created").unwrap();
        let secrets = |trust: &SignatureTrust| -> Vec<String> {
            MasterSecret::all(trust).iter().map(|one| one.of(hook).reveal().to_owned()).collect()
        };
        let derived =
            |master| hook_secret(&Secret::new(master), hook.entity, hook.action).reveal().to_owned();
        let (each, whole) = (trust(SecretScope::Hook), trust(SecretScope::Connector));

        assert_eq!(secrets(&each), [derived(now), derived(before)]);
        assert_eq!(secrets(&whole), [now.to_owned(), before.to_owned(), derived(now), derived(before)]);
        assert!(secrets(&SignatureTrust::Off).is_empty());
        let ((registered, known), (other, wider)) = (hook_fingerprints(&each), hook_fingerprints(&whole));
        assert_eq!((registered, known.len(), wider.len()), (Fingerprint::of(now), 2, 4));
        assert!(!known.contains(&other) && known.is_subset(&wider));
        let unsigned = (Fingerprint::of(""), BTreeSet::from([Fingerprint::of("")]));
        assert_eq!(hook_fingerprints(&SignatureTrust::Off), unsigned);
    }

    #[test]
    fn nothing_of_a_secret_is_shown() {
        let keys = SigningKeys::new([SECRET.as_bytes()]);

        let shown = format!("{keys:?} {:?}", keys.start());

        assert_eq!(shown, "Keys(1) Running(1)");
    }
}
