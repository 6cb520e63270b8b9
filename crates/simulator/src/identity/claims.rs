//! The payloads of tokens: every claim of the document's table, with its type.

use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use crate::{
    clock::Ticks,
    random::{Guid, Random},
    settings::Settings,
};

/// Scopes of the document that tell an accounting token.
pub(super) const ACCOUNTING: [&str; 4] =
    ["SVC.ES.NEWPOL.COR.API", "SVC.ES.NEWPOL.ACC.API", "SVC.ES.NEWPOL.MNG.API", "SVC.ES.Webhooks"];
/// Scopes of the document that tell a payroll token.
pub(super) const PAYROLL: [&str; 2] = ["IDInfo", "SVC.ES.EquipoContex"];
/// Scopes of both.
pub(super) const COMMON: [&str; 2] = ["offline_access", "openid"];

/// The one user there is. Who it is follows from the seed, so that every run has the same one.
#[derive(Debug)]
pub(super) struct User {
    issuer: String,
    client: String,
    tenant: String,
    email: String,
    subject: Guid,
    /// Number of the customer account.
    account: u64,
    key_user: Guid,
    team_user: u64,
    second_client: u64,
    /// `usr`, `owapp`, `mem` and `oun`.
    others: [Guid; 4],
}

/// What a token says about its grant.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenFacts<'a> {
    /// Number of the access token.
    pub(super) number: u64,
    pub(super) scopes: &'a [String],
    /// When the user logged in.
    pub(super) login: Ticks,
    /// When the token begins.
    pub(super) from: Ticks,
    /// When it ends.
    pub(super) until: Ticks,
}

/// What an identity token came with, which it tells the hash of.
#[derive(Debug, Clone, Copy)]
pub(super) enum HashedToken<'a> {
    Access(&'a str),
    Code(&'a str),
}

impl User {
    pub(super) fn new(settings: &Settings) -> Self {
        /// "user" in ASCII: no other stream has this purpose.
        const PURPOSE: u64 = 0x7573_6572;
        let mut random = Random::new(settings.world.seed, PURPOSE);
        Self {
            issuer: settings.issuer.clone(),
            client: settings.client.id.clone(),
            tenant: settings.tenant.clone(),
            email: settings.invoicing.mail.clone(),
            subject: random.guid(),
            account: random.below(1_000_000),
            key_user: random.guid(),
            team_user: random.below(1_000_000),
            second_client: random.below(1_000_000),
            others: [random.guid(), random.guid(), random.guid(), random.guid()],
        }
    }

    /// `sub`.
    pub(super) fn subject(&self) -> String {
        self.subject.to_string()
    }

    /// Payload of an access token. It begins with `$id`; with `twice`, that member is there two times.
    pub(super) fn access(&self, facts: TokenFacts<'_>, twice: bool) -> String {
        let [usr, owapp, mem, oun] = self.others;
        let mut claims = json!({
            "iss": self.issuer,
            "aud": format!("{}/resources", self.issuer),
            "exp": facts.until.seconds(),
            "nbf": facts.from.seconds(),
            "client_id": self.client,
            "scope": facts.scopes,
            "sub": self.subject,
            "auth_time": facts.login.seconds(),
            "idp": "idsrv",
            "svc.es.clientid": self.tenant,
            "svc.es.idcda": format!("{:06}", self.account),
            "usr": usr,
            "owapp": owapp,
            "mem": mem,
            "oun": oun,
            "amr": ["password"],
        });
        if has(facts.scopes, &ACCOUNTING) {
            claims["given_name"] = json!("Ana");
            claims["lang"] = json!("es");
            claims["email"] = json!(self.email);
            claims["svc.es.modules"] = json!("COR;ACC;MNG;WHK");
            claims["svc.es.keyusercorrelationid"] = json!(self.key_user);
        }
        if has(facts.scopes, &PAYROLL) {
            claims["svc.es.equipouserid"] = json!(self.team_user.to_string());
            claims["svc.es.secondclientid"] = json!(self.second_client.to_string());
        }
        let id = format!("\"$id\":\"{}\",", facts.number).repeat(if twice { 2 } else { 1 });
        claims.to_string().replacen('{', &format!("{{{id}"), 1)
    }

    /// Payload of an identity token that came with an access token or a code.
    pub(super) fn identity(
        &self,
        facts: TokenFacts<'_>,
        beside: HashedToken<'_>,
        nonce: Option<&str>,
    ) -> String {
        let (name, text) = match beside {
            HashedToken::Access(token) => ("at_hash", token),
            HashedToken::Code(code) => ("c_hash", code),
        };
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let half = hash.as_ref().get(..16).unwrap_or_default();
        let mut claims = json!({
            "iss": self.issuer,
            "aud": self.client,
            "exp": facts.until.seconds(),
            "nbf": facts.from.seconds(),
            "iat": facts.from.seconds(),
            "sub": self.subject,
            "auth_time": facts.login.seconds(),
            "idp": "idsrv",
            "amr": ["password"],
        });
        claims[name] = json!(URL_SAFE_NO_PAD.encode(half));
        if let Some(nonce) = nonce {
            claims["nonce"] = json!(nonce);
        }
        claims.to_string()
    }

    /// Whom the login page greets.
    pub(super) fn name(&self) -> (&str, &str) {
        (&self.email, &self.tenant)
    }
}

/// Whether any of these was granted.
fn has(granted: &[String], any: &[&str]) -> bool {
    granted.iter().any(|scope| any.contains(&scope.as_str()))
}
