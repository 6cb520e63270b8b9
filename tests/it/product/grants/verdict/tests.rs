//! The judge on made-up histories.

use std::time::Duration;

use provider::{
    auth::Area,
    auth::grant::{Grant, GrantLogin, RefreshBase, RefreshCause, RefreshIntent, RefreshOrigin},
};
use simulator::identity::AnswerFate;

use super::*;

crate::tests! {
    plain a_sound_history_has_no_faults;
    plain every_kind_of_fault_is_found;
}

const MINUTE: i64 = 60_000;

/// The records of one login, of provider and topic.
struct MadeHistory {
    issued: Vec<Issued>,
    exchanges: Vec<Exchange>,
    written: Vec<CommittedGrant>,
    kills: Vec<(i64, i64)>,
}

impl MadeHistory {
    /// After a login that was issued `token-0`.
    fn new() -> Self {
        let mut made = Self { issued: vec![], exchanges: vec![], written: vec![], kills: vec![] };
        made.gives(0);
        let login = GrantLogin {
            id: "login".into(),
            at_ms: 0,
            subject: "someone".into(),
            shown: None,
            client_id: "client".into(),
            auth_url: "https://login.example.com".into(),
            origins: Vec::new(),
            tenant: None,
        };
        made.write(0, Grant::log_in(None, "north", Area::Accounting, login, issued(0)).unwrap());
        made
    }

    fn gives(&mut self, number: u32) {
        let (token, at) = (format!("token-{number}"), Ticks(0));
        self.issued.push(Issued { grant: 1, kind: "refresh", token, at, expires: at, used: None });
    }

    fn write(&mut self, at_ms: i64, grant: Grant) {
        self.written.push(CommittedGrant { at_ms, grant });
    }

    fn last(&self) -> Grant {
        self.written.last().unwrap().grant.clone()
    }

    fn base(&self) -> RefreshBase {
        let last = self.last();
        last.base(last.intent().unwrap())
    }

    /// Writes an intent for the present token, or a recovery if there is one already.
    fn begin(&mut self, at_ms: i64, id: &str) {
        let origin = RefreshOrigin { worker: "one:1".into(), begun_ms: at_ms };
        let intent = RefreshIntent {
            id: id.into(),
            cause: RefreshCause::Due,
            origin,
            window_ms: 5_000,
            withdrawn: false,
        };
        let last = self.last();
        let begun = match last.intent() {
            Some(_) => last.recover(&self.base(), Duration::from_secs(60), intent),
            None => last.begin(last.serial, intent),
        };
        self.write(at_ms, begun.unwrap());
    }

    fn present(&mut self, at_ms: i64, number: u32, outcome: ExchangeOutcome) {
        let (at, token) = (Ticks(at_ms * (SECOND / 1_000)), format!("token-{number}"));
        let (kind, answer) = (ExchangeKind::Refresh, AnswerFate::Sent);
        self.exchanges.push(Exchange { at, kind, grant: Some(1), token, outcome, answer });
        if outcome == ExchangeOutcome::Rotated {
            self.gives(number + 1);
        }
    }

    fn answer(&mut self, at_ms: i64, number: u32) {
        let answered = self.last().answer(&self.base(), issued(number)).unwrap();
        self.write(at_ms, answered);
    }

    fn lose(&mut self, at_ms: i64) {
        let lost = self.last().lose(&self.base(), "invalid_grant", at_ms).unwrap();
        self.write(at_ms, lost);
    }

    fn judged(&self) -> GrantVerdict {
        let Self { issued, exchanges, kills, .. } = self;
        let mut verdict = GrantVerdict::default();
        verdict.add(&GrantHistory { issued, exchanges, kills }, "north", &self.written, &[1]);
        verdict
    }
}

fn issued(number: u32) -> provider::auth::grant::IssuedTokens {
    provider::auth::grant::IssuedTokens {
        access: format!("access-{number}").into(),
        expires_in: None,
        refresh: Some(format!("token-{number}").into()),
        scopes: None,
        at_ms: 0,
    }
}

async fn a_sound_history_has_no_faults() {
    let mut made = MadeHistory::new();
    // One success, one kill before the request, one kill after the rotation.
    made.begin(MINUTE, "a");
    made.present(MINUTE + 10, 0, ExchangeOutcome::Rotated);
    made.answer(MINUTE + 20, 1);
    made.begin(2 * MINUTE, "b");
    made.kills.push((2 * MINUTE + 5, 2 * MINUTE + 6));
    made.begin(3 * MINUTE, "c");
    made.present(3 * MINUTE + 10, 1, ExchangeOutcome::Rotated);
    made.answer(3 * MINUTE + 20, 2);
    made.begin(4 * MINUTE, "d");
    made.present(4 * MINUTE + 10, 2, ExchangeOutcome::Rotated);
    made.kills.push((4 * MINUTE + 20, 4 * MINUTE + 21));
    made.begin(5 * MINUTE, "e");
    made.present(5 * MINUTE + 10, 2, ExchangeOutcome::Reused);
    made.lose(5 * MINUTE + 20);

    let verdict = made.judged();

    assert!(verdict.faults.is_empty(), "{verdict}");
    let GrantVerdict { refreshes, recovered, cut, lost, again, .. } = verdict;
    assert_eq!((refreshes, recovered, cut, lost, again), (3, 1, 1, 1, 1));
}

async fn every_kind_of_fault_is_found() {
    type Story = fn(&mut MadeHistory);
    let stories: [(&str, Story); 6] = [
        ("0 intents written", |made| {
            made.present(MINUTE, 0, ExchangeOutcome::Rotated);
            made.begin(MINUTE + 1, "a");
            made.answer(MINUTE + 2, 1);
        }),
        ("no worker was killed between", |made| {
            made.begin(MINUTE, "a");
            made.present(MINUTE + 10, 0, ExchangeOutcome::Rotated);
            made.begin(2 * MINUTE, "b");
            made.present(2 * MINUTE + 10, 0, ExchangeOutcome::Reused);
            made.lose(2 * MINUTE + 20);
        }),
        ("was shown again after", |made| {
            made.begin(MINUTE, "a");
            made.present(MINUTE + 10, 0, ExchangeOutcome::Rotated);
            made.kills.push((MINUTE + 20, MINUTE + 21));
            made.begin(MINUTE + 1_000, "b");
            made.present(MINUTE + 1_010, 0, ExchangeOutcome::Reused);
            made.lose(MINUTE + 1_020);
        }),
        ("though no worker was killed", |made| {
            made.begin(MINUTE, "a");
            made.present(MINUTE + 10, 0, ExchangeOutcome::Rotated);
            made.lose(MINUTE + 20);
        }),
        ("is lost true, but what followed is in the topic", |made| {
            made.begin(MINUTE, "a");
            made.present(MINUTE + 10, 0, ExchangeOutcome::Rotated);
            made.lose(MINUTE + 15);
            let (last, begun) = (made.last(), made.written[1].grant.clone());
            let base = begun.base(begun.intent().unwrap());
            made.write(MINUTE + 20, last.answer(&base, issued(1)).unwrap());
        }),
        ("is lost false, but what followed was issued", |made| {
            made.begin(MINUTE, "a");
            made.present(MINUTE + 10, 0, ExchangeOutcome::Rotated);
            made.kills.push((MINUTE + 20, MINUTE + 21));
        }),
    ];
    for (fault, story) in stories {
        let mut made = MadeHistory::new();

        story(&mut made);

        let faults = made.judged().faults;
        assert!(faults.iter().any(|found| found.contains(fault)), "{fault}: {faults:?}");
    }
}
