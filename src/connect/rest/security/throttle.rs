//! Failed logins per client address: after a few failures the address has to wait, longer after each further one.
//!
//! ```text
//! failures   1 … 4   5     6      7      8      9 and more
//! wait       none    5 s   10 s   20 s   40 s   60 s
//! ```
//!
//! - While an address waits, at most one of its passwords per second is compared, without deriving a hash: the right one succeeds.
//! - An address never makes another one wait. IPv6 addresses of one /64 count as one.
//! - A successful login clears the failures of its user and of unknown users, but not those of the other user: otherwise the
//!   reader could guess the administrator's password without limit.
//! - Memory is bounded: above [`MAX_ADDRESSES`] the address with the oldest last failure is dropped.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use server::origin::network;

use super::Role;

/// Failures after which an address waits.
const FAILURE_LIMIT: u32 = 5;
/// Wait after failure number [`FAILURE_LIMIT`]; each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// Longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time between two password comparisons of an address that waits.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Failures are dropped this long after the last one.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Limit on the remembered addresses, of about 100 bytes each.
const MAX_ADDRESSES: usize = 4096;

/// Failures of all addresses.
#[derive(Debug, Default)]
pub(super) struct Throttle(Mutex<HashMap<Option<IpAddr>, LoginFailures>>);

#[derive(Debug)]
struct LoginFailures {
    administrator: u32,
    reader: u32,
    /// With unknown user names.
    unknown: u32,
    last: Instant,
    /// No password is checked before then, except against the known digest (see [`Throttle::may_probe`]).
    until: Instant,
    /// When the next such check is allowed.
    probe: Instant,
}

impl LoginFailures {
    fn count(&self) -> u32 {
        self.administrator.saturating_add(self.reader).saturating_add(self.unknown)
    }

    fn of(&mut self, role: Option<Role>) -> &mut u32 {
        match role {
            Some(Role::Administrator) => &mut self.administrator,
            Some(Role::Reader) => &mut self.reader,
            None => &mut self.unknown,
        }
    }

    fn is_stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= FORGET_AFTER
    }
}

impl Throttle {
    /// How long an address has to wait; `None` if it may try now.
    fn wait(&self, client: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let failures = self.0.lock();
        let wait = failures.get(&client.map(network))?.until.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// Whether an address that has to wait may compare one password with the last right one: once a second, so that an
    /// attacker who shares an operator's address cannot lock the operator out.
    fn may_probe(&self, client: Option<IpAddr>, now: Instant) -> bool {
        let mut all = self.0.lock();
        let Some(failures) = all.get_mut(&client.map(network)).filter(|failures| failures.probe <= now)
        else {
            return false;
        };
        failures.probe = now + PROBE_INTERVAL;
        true
    }

    fn failed(&self, client: Option<IpAddr>, role: Option<Role>, now: Instant) {
        let client = client.map(network);
        let mut all = self.0.lock();
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&client) {
            all.retain(|_, failures| !failures.is_stale(now));
            let oldest = all.iter().min_by_key(|(_, failures)| failures.last).map(|(client, _)| *client);
            if let Some(oldest) = oldest.filter(|_| all.len() >= MAX_ADDRESSES) {
                all.remove(&oldest);
            }
        }
        let none =
            || LoginFailures { administrator: 0, reader: 0, unknown: 0, last: now, until: now, probe: now };
        let failures = all.entry(client).or_insert_with(none);
        if failures.is_stale(now) {
            *failures = none();
        }
        let count = failures.of(role);
        *count = count.saturating_add(1);
        (failures.last, failures.until) = (now, now + wait_after(failures.count()));
    }

    fn succeeded(&self, client: Option<IpAddr>, role: Role) {
        let client = client.map(network);
        let mut all = self.0.lock();
        let Some(failures) = all.get_mut(&client) else { return };
        (*failures.of(Some(role)), failures.unknown) = (0, 0);
        if failures.count() == 0 {
            all.remove(&client);
        }
    }
}

fn wait_after(failures: u32) -> Duration {
    match failures.checked_sub(FAILURE_LIMIT) {
        None => Duration::ZERO,
        Some(more) => {
            FIRST_WAIT.saturating_mul(1_u32.checked_shl(more).unwrap_or(u32::MAX)).min(LONGEST_WAIT)
        }
    }
}

/// One login attempt.
#[derive(Debug, Clone)]
pub(super) struct LoginAttempt {
    pub(super) throttle: Arc<Throttle>,
    /// `None` if the address is unknown.
    pub(super) client: Option<IpAddr>,
    /// The user's role; `None` for an unknown user.
    pub(super) role: Option<Role>,
}

impl LoginAttempt {
    /// How long the client has to wait before a password is checked; `None` if it may try now.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.throttle.wait(self.client, Instant::now())
    }

    /// Whether a client that has to wait may compare a password without deriving a hash.
    pub(super) fn may_probe(&self) -> bool {
        self.throttle.may_probe(self.client, Instant::now())
    }

    /// Counts the outcome. Returns whether the login succeeds: an unknown user has no right password.
    pub(super) fn finish(&self, is_right: bool) -> bool {
        match self.role {
            Some(role) if is_right => {
                self.throttle.succeeded(self.client, role);
                true
            }
            role => {
                self.throttle.failed(self.client, role, Instant::now());
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMINISTRATOR: Option<Role> = Some(Role::Administrator);

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn waiting_address_has_one_comparison_a_second() {
        let (throttle, client, begun) = (Throttle::default(), address("192.0.2.1"), Instant::now());
        for _ in 0..FAILURE_LIMIT {
            throttle.failed(client, ADMINISTRATOR, begun);
        }
        assert!(throttle.wait(client, begun).is_some());

        let probes =
            [0, 0, 999, 1_000, 1_500].map(|ms| throttle.may_probe(client, begun + Duration::from_millis(ms)));

        assert_eq!(probes, [true, false, false, true, false]);
    }

    #[test]
    fn waits_double_up_to_a_cap_and_failures_are_forgotten() {
        let (throttle, client) = (Throttle::default(), address("192.0.2.1"));
        let mut now = Instant::now();

        let mut waits = Vec::new();
        for _ in 0..10 {
            throttle.failed(client, ADMINISTRATOR, now);
            let wait = throttle.wait(client, now).unwrap_or_default();
            now += wait;
            waits.push(wait.as_secs());
            assert_eq!(throttle.wait(client, now), None, "the wait is over");
        }
        assert_eq!(waits, [0, 0, 0, 0, 5, 10, 20, 40, 60, 60]);

        now += FORGET_AFTER;
        throttle.failed(client, ADMINISTRATOR, now);
        assert_eq!(throttle.wait(client, now), None);
        assert_eq!(wait_after(u32::MAX), LONGEST_WAIT);
    }

    #[test]
    fn failures_of_one_address_delay_no_other() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for client in ["192.0.2.1", "2001:db8::1", "127.0.0.1"] {
            for _ in 0..FAILURE_LIMIT {
                throttle.failed(address(client), None, now);
            }
        }

        let table = [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.2.2", false),
            ("2001:db8::ffff", true),
            ("2001:db8:0:1::1", false),
            ("127.0.0.1", true),
            ("::1", false),
        ];
        for (client, waits) in table {
            assert_eq!(throttle.wait(address(client), now).is_some(), waits, "{client}");
        }
        assert_eq!(throttle.wait(None, now), None);
    }

    #[test]
    fn success_clears_failures_of_its_user_only() {
        let (throttle, client, now) = (Throttle::default(), address("192.0.2.1"), Instant::now());
        let fail = |role, times| (0..times).for_each(|_| throttle.failed(client, role, now));

        fail(ADMINISTRATOR, FAILURE_LIMIT - 2);
        fail(Some(Role::Reader), 1);
        throttle.succeeded(client, Role::Reader);
        fail(ADMINISTRATOR, 1);
        assert!(throttle.wait(client, now).is_none(), "the reader's failure is cleared");
        fail(ADMINISTRATOR, 1);
        assert!(throttle.wait(client, now).is_some(), "the reader cannot guess without end");

        throttle.succeeded(client, Role::Administrator);
        assert!(throttle.0.lock().is_empty());
        fail(None, FAILURE_LIMIT - 1);
        throttle.succeeded(client, Role::Reader);
        assert!(throttle.0.lock().is_empty(), "a misspelt name is forgiven");
    }

    #[test]
    fn many_addresses_take_bounded_memory() {
        let (throttle, begun) = (Throttle::default(), Instant::now());
        let client = |number: usize| Some(IpAddr::from(u32::try_from(number).unwrap().to_be_bytes()));
        for number in 0..MAX_ADDRESSES + 10 {
            throttle.failed(client(number), None, begun + Duration::from_micros(number as u64));
        }

        let all = throttle.0.lock();
        assert_eq!(all.len(), MAX_ADDRESSES);
        assert!(!all.contains_key(&client(9)) && all.contains_key(&client(10)), "the oldest went");
    }
}
