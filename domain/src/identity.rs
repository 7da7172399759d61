//! Who is who: passports, and the tokens that stand for them.
//!
//! A token is stored as the BLAKE3 of its text, never as the text. Invariants:
//! * The tenant, tier and scopes of a caller come from its token, never from arguments.
//! * A revoked passport decides nothing any more: the machine checks it when the entry applies, not when it was sent. A revoked token
//!   alone is the gateways' to refuse, who believe one for less than a second: an entry says who called and not by which token.

mod list;
mod sign_in;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::list::{ListPassports, ListTokens, Passports, TokenRow, Tokens};
pub use self::sign_in::{GetSignInKey, OpenToken, SetSignInKey, SignInKey, SignInKeySet, TokenOpened, challenge_bytes, is_signed};
use crate::flag;
use crate::key::Key;
use crate::limit::{NAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Scope, Stamp, Tier, UnixMs};
use crate::tenant::refuse_arriving;
use crate::tx::{Read, StorageError, Tx};

/// An agent's or a person's identity in one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passport {
    pub tenant: String,
    pub name: String,
    pub tier: Tier,
    pub scopes: BTreeSet<Scope>,
    pub revoked_at: Option<UnixMs>,
    /// Its moves of work wait for a person.
    #[serde(default)]
    pub agent_work_gate: bool,
}

impl Record for Passport {
    const KIND: Kind = Kind::Passport;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.name)
    }
}

/// A bearer token, by its hash. Cluster-wide: a token is looked up before its tenant is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Token {
    hash: String,
    tenant: String,
    passport: String,
    created_at: UnixMs,
    expires_at: Option<UnixMs>,
    revoked_at: Option<UnixMs>,
}

impl Record for Token {
    const KIND: Kind = Kind::Token;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new().text(&self.hash)
    }
}

/// The hash under which a token is stored: BLAKE3 in hex.
pub fn token_hash(token: &str) -> String {
    blake3::hash(token.as_bytes()).to_hex().to_string()
}

/// The name of a signing key: the first 16 hex digits of the BLAKE3 of its public bytes.
pub fn key_fingerprint(public: &[u8]) -> String {
    blake3::hash(public).to_hex()[..16].to_string()
}

/// The machine's own caller, for bootstrap and ticks.
pub fn system() -> Principal {
    Principal { tenant: CLUSTER.into(), passport: "system".into(), tier: Tier::Operator, scopes: ["*".to_string()].into() }
}

/// Whether a passport was revoked, and revocation is enforced. Nothing but an explicit `revoked_at` makes it so.
pub(crate) fn is_revoked(view: &(impl Read + ?Sized), tenant: &str, passport: &str) -> Result<bool, StorageError> {
    let passport: Option<Passport> = view.get(tenant, &Key::new().text(passport))?;
    Ok(passport.is_some_and(|passport| passport.revoked_at.is_some()) && flag::is_on(view, flag::PASSPORT_REVOCATION)?)
}

/// Refuses a caller whose passport was revoked, whatever its token said when the call was sent.
pub(crate) fn check_caller(view: &(impl Read + ?Sized), caller: &Principal) -> Result<Option<Refusal>, StorageError> {
    let is_revoked = is_revoked(view, &caller.tenant, &caller.passport)?;
    Ok(is_revoked.then(|| Refusal::Revoked { passport: caller.passport.clone() }))
}

pub(crate) fn needs_admin(at: &Stamp) -> Option<Refusal> {
    (!at.caller.may("admin")).then(|| Refusal::Denied { problem: "this needs the scope `admin`".into() })
}

/// Refuses a tenant named in the arguments that is not the caller's, whether it exists or not.
pub(crate) fn check_tenant(caller: &Principal, claim: Option<&str>) -> Option<Refusal> {
    let claim = claim.filter(|claim| *claim != caller.tenant)?;
    Some(check_name("tenant_id", claim).unwrap_or_else(|| Refusal::not_found("tenant", claim)))
}

/// The same where a tenant has to be named: `local` is whoever's it is who asks.
pub(crate) fn check_named_tenant(caller: &Principal, claim: &str) -> Option<Refusal> {
    check_tenant(caller, Some(claim).filter(|claim| *claim != "local"))
}

/// Refuses a name in the arguments that claims to be the caller and is not.
pub(crate) fn check_self(caller: &Principal, field: &str, claim: &str) -> Option<Refusal> {
    let problem = || format!("`{field}` is not the caller, who is `{}`", caller.passport);
    (claim != caller.passport).then(|| Refusal::Denied { problem: problem() })
}

/// Whether the caller has a passport of its own. The machine itself has none.
pub(crate) fn is_there(view: &(impl Read + ?Sized), caller: &Principal) -> Result<bool, StorageError> {
    let passport: Option<Passport> = view.get(&caller.tenant, &Key::new().text(&caller.passport))?;
    Ok(passport.is_some())
}

/// Whether the caller's moves of work wait for a person.
pub(crate) fn is_gated(view: &(impl Read + ?Sized), caller: &Principal) -> Result<bool, StorageError> {
    let passport: Option<Passport> = view.get(&caller.tenant, &Key::new().text(&caller.passport))?;
    Ok(passport.is_some_and(|passport| passport.agent_work_gate))
}

/// Checks free text that is kept beside a decision.
pub(crate) fn check_text(field: &str, text: &str) -> Option<Refusal> {
    if text.contains('\0') {
        return Some(Refusal::invalid(field, "must not hold a NUL"));
    }
    (text.len() > TEXT_BYTES_MAX).then(|| {
        let (size, limit) = (text.len() as u64, TEXT_BYTES_MAX as u64);
        Refusal::TooLong { field: field.into(), size, limit, unit: "bytes".into() }
    })
}

/// Checks a name that becomes part of a key and of other people's screens. Who asks for one is held to the same rule, so that
/// no question reaches the state whose answer is known.
pub fn check_name(field: &str, name: &str) -> Option<Refusal> {
    if name.trim().is_empty() {
        return Some(Refusal::invalid(field, "must not be empty"));
    }
    check_name_start(field, name)
}

/// Checks what names may begin with; it may be empty.
pub(crate) fn check_name_start(field: &str, name: &str) -> Option<Refusal> {
    if name.len() > NAME_BYTES_MAX {
        let (size, limit) = (name.len() as u64, NAME_BYTES_MAX as u64);
        return Some(Refusal::TooLong { field: field.into(), size, limit, unit: "bytes".into() });
    }
    if name.chars().any(char::is_control) {
        return Some(Refusal::invalid(field, "must not hold control characters"));
    }
    None
}

fn check_hash(hash: &str) -> Option<Refusal> {
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (!is_hash).then(|| Refusal::invalid("hash", "must be 64 hex digits, the BLAKE3 of the token"))
}

/// Creates a passport if it is new, and a token that stands for it. Repeating it changes nothing, and tier and scopes of a
/// passport that exists have to be the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutToken {
    /// [`token_hash`] of the token's text.
    pub hash: String,
    pub tenant: String,
    pub passport: String,
    pub tier: Tier,
    pub scopes: BTreeSet<Scope>,
    pub expires_at: Option<UnixMs>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenPut {
    pub tenant: String,
    pub passport: String,
}

impl PutToken {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<TokenPut> {
        if let Some(refusal) =
            needs_admin(at).or_else(|| check_name("passport", &self.passport)).or_else(|| check_name("tenant", &self.tenant))
        {
            return Ok(Err(refusal));
        }
        if at.caller.tenant != CLUSTER && at.caller.tenant != self.tenant {
            return Ok(Err(Refusal::Denied { problem: "tokens can be made for your own tenant only".into() }));
        }
        if let Some(refusal) = refuse_arriving(tx, &self.tenant)? {
            return Ok(Err(refusal));
        }
        if let Some(refusal) = check_hash(&self.hash) {
            return Ok(Err(refusal));
        }
        let known: Option<Token> = tx.get(CLUSTER, &Key::new().text(&self.hash))?;
        if let Some(known) = known
            && (known.tenant != self.tenant || known.passport != self.passport || known.revoked_at.is_some())
        {
            return Ok(Err(Refusal::Denied { problem: "that token is in use or revoked; make another".into() }));
        }
        let passport: Option<Passport> = tx.get(&self.tenant, &Key::new().text(&self.passport))?;
        if passport.as_ref().is_some_and(|passport| passport.revoked_at.is_some()) {
            return Ok(Err(Refusal::Revoked { passport: self.passport }));
        }
        // A new token must not change what the old ones may do.
        if let Some(known) = passport.as_ref().filter(|known| known.tier != self.tier || known.scopes != self.scopes) {
            let scopes: Vec<&str> = known.scopes.iter().map(String::as_str).collect();
            let problem = format!(
                "passport `{}` exists with tier `{}` and scopes {}: make a token with the same, or another passport",
                known.name,
                known.tier.word(),
                scopes.join(", ")
            );
            return Ok(Err(Refusal::Denied { problem }));
        }
        tx.put(&Passport {
            tenant: self.tenant.clone(),
            name: self.passport.clone(),
            tier: self.tier,
            scopes: self.scopes,
            revoked_at: None,
            agent_work_gate: passport.is_some_and(|passport| passport.agent_work_gate),
        });
        tx.put_index(list::by_passport(&self.tenant, &self.passport).text(&self.hash), self.hash.as_bytes());
        tx.put(&Token {
            hash: self.hash,
            tenant: self.tenant.clone(),
            passport: self.passport.clone(),
            created_at: at.wall,
            expires_at: self.expires_at,
            revoked_at: None,
        });
        Ok(Ok(TokenPut { tenant: self.tenant, passport: self.passport }))
    }
}

/// Sets whether a passport's moves of work wait for a person. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetWorkGate {
    pub tenant: String,
    pub passport: String,
    pub gated: bool,
}

impl SetWorkGate {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Passport> {
        if let Some(refusal) = needs_admin(at).or_else(|| check_name("passport", &self.passport)) {
            return Ok(Err(refusal));
        }
        let may_reach = at.caller.tenant == CLUSTER || at.caller.tenant == self.tenant;
        let passport: Option<Passport> = if may_reach { tx.get(&self.tenant, &Key::new().text(&self.passport))? } else { None };
        let Some(passport) = passport else { return Ok(Err(Refusal::not_found("passport", self.passport))) };
        let passport = Passport { agent_work_gate: self.gated, ..passport };
        tx.put(&passport);
        Ok(Ok(passport))
    }
}

/// Ends one token at once, on every gateway. The passport and its other tokens stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RevokeToken {
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenRevoked {
    pub tenant: String,
    pub passport: String,
}

impl RevokeToken {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<TokenRevoked> {
        if let Some(refusal) = needs_admin(at).or_else(|| check_hash(&self.hash)) {
            return Ok(Err(refusal));
        }
        let token: Option<Token> = tx.get(CLUSTER, &Key::new().text(&self.hash))?;
        let Some(mut token) = token.filter(|token| at.caller.tenant == CLUSTER || token.tenant == at.caller.tenant) else {
            return Ok(Err(Refusal::not_found("token", self.hash)));
        };
        token.revoked_at = token.revoked_at.or(Some(at.wall));
        tx.put(&token);
        Ok(Ok(TokenRevoked { tenant: token.tenant, passport: token.passport }))
    }
}

/// Who a token stands for. Asked by gateways, as the system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResolveToken {
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenResolved {
    /// `None` for a token that is unknown, expired or revoked; these are not told apart.
    pub principal: Option<Principal>,
}

impl ResolveToken {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<TokenResolved> {
        let token: Option<Token> = view.get(CLUSTER, &Key::new().text(&self.hash))?;
        let alive = token.filter(|token| token.revoked_at.is_none() && token.expires_at.is_none_or(|end| end > at.wall));
        let Some(token) = alive else { return Ok(Ok(TokenResolved { principal: None })) };
        if is_revoked(view, &token.tenant, &token.passport)? {
            return Ok(Ok(TokenResolved { principal: None }));
        }
        let passport: Option<Passport> = view.get(&token.tenant, &Key::new().text(&token.passport))?;
        let principal = passport.map(|passport| Principal {
            tenant: passport.tenant,
            passport: passport.name,
            tier: passport.tier,
            scopes: passport.scopes,
        });
        Ok(Ok(TokenResolved { principal }))
    }
}

/// One passport of the caller's tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetPassport {
    pub passport: String,
}

impl GetPassport {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Passport> {
        if let Some(refusal) = check_name("passport_id", &self.passport) {
            return Ok(Err(refusal));
        }
        let passport: Option<Passport> = view.get(&at.caller.tenant, &Key::new().text(&self.passport))?;
        Ok(passport.ok_or_else(|| Refusal::not_found("passport", self.passport)))
    }
}
