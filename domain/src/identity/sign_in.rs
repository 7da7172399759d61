//! Signing in with a key of one's own: a passport signs a challenge, and gets a token that ends by itself.
//!
//! The private key stays with whoever has the passport; the cluster knows the public one, set by an administrator. Gateways make
//! challenges (who it is for, until when, and a nonce, under a seal of their own) and look at those before they ask for a token. Invariants:
//! * A token is opened by the passport's key as it is in the entry that opens it, whatever a gateway saw before.
//! * It may do what the passport may, and ends with it; and it ends at its instant.
//! * There is a bound to the tokens of one passport that live at a time, and ended ones are removed by the next sign-in.

use ed25519_dalek::{Signature, VerifyingKey};
use serde::{Deserialize, Serialize};

use super::{Passport, Token, check_hash, check_name, list, needs_admin};
use crate::key::Key;
use crate::limit::{SIGN_IN_CHALLENGE_BYTES_MAX, SIGN_IN_TOKEN_MS, SIGN_IN_TOKENS_MAX};
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

/// The key of one passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignInKey {
    pub tenant: String,
    pub passport: String,
    /// Ed25519, 32 bytes in hex.
    pub public_key: String,
    pub set_at: UnixMs,
}

impl Record for SignInKey {
    const KIND: Kind = Kind::SignInKey;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

/// Tokens that were opened by a challenge, by passport and hash.
fn opened(tenant: &str, passport: &str) -> Key {
    kind_prefix(tenant, Kind::SignInToken).text(passport)
}

/// What the passport's key signs of a challenge.
pub fn challenge_bytes(challenge: &str) -> Vec<u8> {
    [b"quorate passport challenge 1\0".as_slice(), challenge.as_bytes()].concat()
}

/// Whether this public key, in hex, has signed the challenge; the signature is in hex too.
pub fn is_signed(public_key: &str, challenge: &str, signature: &str) -> bool {
    let key = hex::decode(public_key).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let key = key.and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok());
    let signature = hex::decode(signature).ok().and_then(|bytes| Signature::from_slice(&bytes).ok());
    key.zip(signature).is_some_and(|(key, signature)| key.verify_strict(&challenge_bytes(challenge), &signature).is_ok())
}

/// Sets the key of a passport, or takes it away. Its tokens stay. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetSignInKey {
    pub tenant: String,
    pub passport: String,
    /// `None` takes it away.
    pub public_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignInKeySet {
    pub public_key: Option<String>,
    /// False when it was so already.
    pub changed: bool,
}

impl SetSignInKey {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SignInKeySet> {
        if let Some(refusal) =
            needs_admin(at).or_else(|| check_name("passport", &self.passport)).or_else(|| check_name("tenant", &self.tenant))
        {
            return Ok(Err(refusal));
        }
        let may_reach = at.caller.tenant == CLUSTER || at.caller.tenant == self.tenant;
        let passport: Option<Passport> = if may_reach { tx.get(&self.tenant, &Key::new().text(&self.passport))? } else { None };
        let Some(passport) = passport else { return Ok(Err(Refusal::not_found("passport", self.passport))) };
        if passport.revoked_at.is_some() {
            return Ok(Err(Refusal::Revoked { passport: self.passport }));
        }
        let known: Option<SignInKey> = tx.get(&self.tenant, &Key::new().text(&self.passport))?;
        let public_key = self.public_key.map(|key| key.to_lowercase());
        if known.as_ref().map(|known| &known.public_key) == public_key.as_ref() {
            return Ok(Ok(SignInKeySet { public_key, changed: false }));
        }
        match (&public_key, known) {
            (None, Some(known)) => tx.delete(&known),
            (None, None) => {}
            (Some(text), _) => {
                let bytes = hex::decode(text).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
                if bytes.is_none_or(|bytes| VerifyingKey::from_bytes(&bytes).is_err()) {
                    return Ok(Err(Refusal::invalid("public_key", "is no Ed25519 public key, 32 bytes in hex")));
                }
                tx.put(&SignInKey { tenant: self.tenant, passport: self.passport, public_key: text.clone(), set_at: at.wall });
            }
        }
        Ok(Ok(SignInKeySet { public_key, changed: true }))
    }
}

/// The key of a passport of any tenant. Asked by gateways, as the system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetSignInKey {
    pub tenant: String,
    pub passport: String,
}

impl GetSignInKey {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Option<SignInKey>> {
        if at.caller.tenant != CLUSTER {
            return Ok(Err(Refusal::Denied { problem: "keys of passports are for gateways to ask for".into() }));
        }
        if let Some(refusal) = check_name("passport", &self.passport).or_else(|| check_name("tenant", &self.tenant)) {
            return Ok(Err(refusal));
        }
        Ok(Ok(view.get(&self.tenant, &Key::new().text(&self.passport))?))
    }
}

/// Opens a token for the caller, who has no other credential than the signature. The gateway has found the challenge to be its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenToken {
    pub challenge: String,
    /// Ed25519 over [`challenge_bytes`], in hex.
    pub signature: String,
    /// [`super::token_hash`] of the token's text.
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenOpened {
    pub expires_at: UnixMs,
}

impl OpenToken {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<TokenOpened> {
        let (tenant, passport) = (&at.caller.tenant, &at.caller.passport);
        if let Some(refusal) = check_hash(&self.hash) {
            return Ok(Err(refusal));
        }
        let key: Option<SignInKey> = tx.get(tenant, &Key::new().text(passport))?;
        let known: Option<Passport> = tx.get(tenant, &Key::new().text(passport))?;
        let is_fit = self.challenge.len() <= SIGN_IN_CHALLENGE_BYTES_MAX
            && known.is_some_and(|known| known.revoked_at.is_none())
            && key.is_some_and(|key| is_signed(&key.public_key, &self.challenge, &self.signature));
        if !is_fit {
            // Whether there is such a passport, and whether it has a key, is not told apart.
            return Ok(Err(Refusal::Denied { problem: "the challenge is not signed by a key of that passport".into() }));
        }
        if tx.get::<Token>(CLUSTER, &Key::new().text(&self.hash))?.is_some() {
            return Ok(Err(Refusal::Denied { problem: "that token is in use; make another".into() }));
        }
        let live = remove_ended(tx, tenant, passport, at.wall)?;
        if live >= SIGN_IN_TOKENS_MAX {
            let what = format!("the list of tokens that `{passport}` has signed in for");
            return Ok(Err(Refusal::Full { what, limit: SIGN_IN_TOKENS_MAX as u64, retry_after_ms: SIGN_IN_TOKEN_MS / 10 }));
        }
        let expires_at = UnixMs(at.wall.0.saturating_add(SIGN_IN_TOKEN_MS));
        tx.put_index(list::by_passport(tenant, passport).text(&self.hash), self.hash.as_bytes());
        tx.put_index(opened(tenant, passport).text(&self.hash), self.hash.as_bytes());
        tx.put(&Token {
            hash: self.hash,
            tenant: tenant.clone(),
            passport: passport.clone(),
            created_at: at.wall,
            expires_at: Some(expires_at),
            revoked_at: None,
        });
        Ok(Ok(TokenOpened { expires_at }))
    }
}

/// Removes those of a passport's tokens that have ended; answers how many live.
fn remove_ended(tx: &mut impl Tx, tenant: &str, passport: &str, now: UnixMs) -> Result<usize, StorageError> {
    let (rows, _) = tx.page_bytes(Table::Index, &opened(tenant, passport), None, SIGN_IN_TOKENS_MAX)?;
    let mut live = 0;
    for (_, hash) in rows {
        let hash = String::from_utf8_lossy(&hash).into_owned();
        let token: Option<Token> = tx.get(CLUSTER, &Key::new().text(&hash))?;
        let token = token.ok_or_else(|| StorageError::corrupt(format!("an index row points to no token `{hash}`")))?;
        if token.revoked_at.is_none() && token.expires_at.is_some_and(|end| end > now) {
            live += 1;
            continue;
        }
        tx.delete_index(opened(tenant, passport).text(&hash));
        tx.delete_index(list::by_passport(tenant, passport).text(&hash));
        tx.delete(&token);
    }
    Ok(live)
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::*;
    use crate::identity::{PutToken, ResolveToken, system, token_hash};
    use crate::passport::RevokePassport;
    use crate::transcript::{World, person};
    use crate::{Principal, Tier};

    fn key(byte: u8) -> SigningKey {
        SigningKey::from_bytes(&[byte; 32])
    }

    fn public(byte: u8) -> String {
        hex::encode(key(byte).verifying_key().as_bytes())
    }

    /// Mara of acme, who has a passport and the key 1.
    fn world() -> World {
        let mut world = World::new();
        let put = PutToken {
            hash: token_hash("long"),
            tenant: "acme".into(),
            passport: "mara".into(),
            tier: Tier::Verified,
            scopes: ["crux-mcp.query_facts".to_string()].into(),
            expires_at: None,
        };
        world.call("0s", system(), None, put).unwrap();
        set(&mut world, Some(public(1))).unwrap();
        world
    }

    fn set(world: &mut World, public_key: Option<String>) -> Result<SignInKeySet, Refusal> {
        world.call("0s", person("olga"), None, SetSignInKey { tenant: "acme".into(), passport: "mara".into(), public_key })
    }

    fn stranger(passport: &str) -> Principal {
        Principal { tenant: "acme".into(), passport: passport.into(), tier: Tier::Unverified, scopes: Default::default() }
    }

    fn sign_in(world: &mut World, at: &str, who: &str, by: u8, token: &str) -> Result<TokenOpened, Refusal> {
        let challenge = format!("challenge of {token}");
        let signature = hex::encode(key(by).sign(&challenge_bytes(&challenge)).to_bytes());
        world.call(at, stranger(who), None, OpenToken { challenge, signature, hash: token_hash(token) })
    }

    fn resolve(world: &mut World, at: &str, token: &str) -> Option<Principal> {
        world.ask(at, system(), ResolveToken { hash: token_hash(token) }).unwrap().principal
    }

    #[test]
    fn a_signed_challenge_opens_a_token_of_the_passport_that_ends_by_itself() {
        let mut world = world();
        sign_in(&mut world, "1s", "mara", 1, "short").unwrap();
        let found = resolve(&mut world, "2s", "short").unwrap();
        assert_eq!(
            (found.passport.as_str(), found.tier, found.scopes.len()),
            ("mara", Tier::Verified, 1),
            "what the passport may, and no more"
        );
        assert!(resolve(&mut world, &format!("{}ms", 1_000 + SIGN_IN_TOKEN_MS), "short").is_none());
        assert!(resolve(&mut world, "1h", "long").is_some());
    }

    #[test]
    fn no_other_key_no_other_passport_and_no_passport_without_a_key_opens_one() {
        let mut world = world();
        let told = |refused: Result<TokenOpened, Refusal>| refused.unwrap_err().to_string();
        let same = "the challenge is not signed by a key of that passport";
        assert_eq!(told(sign_in(&mut world, "1s", "mara", 2, "a")), same);
        assert_eq!(told(sign_in(&mut world, "1s", "jon", 1, "a")), same, "nobody");
        assert!(set(&mut world, None).unwrap().changed && !set(&mut world, None).unwrap().changed);
        assert_eq!(told(sign_in(&mut world, "2s", "mara", 1, "a")), same);
        assert!(set(&mut world, Some("00".into())).is_err());
        assert!(matches!(
            world.call("2s", person("mara"), None, SetSignInKey { tenant: "acme".into(), passport: "mara".into(), public_key: None }),
            Err(Refusal::Denied { .. })
        ));
        let asked = world.ask("3s", person("mara"), GetSignInKey { tenant: "acme".into(), passport: "mara".into() });
        assert!(matches!(asked, Err(Refusal::Denied { .. })));
    }

    #[test]
    fn a_revocation_of_the_passport_ends_its_tokens_and_its_signing_in() {
        let mut world = world();
        sign_in(&mut world, "1s", "mara", 1, "short").unwrap();
        world.call("2s", person("olga"), None, RevokePassport { target: Some("mara".into()), reason: None }).unwrap();
        assert!(resolve(&mut world, "3s", "short").is_none());
        assert!(sign_in(&mut world, "4s", "mara", 1, "again").is_err());
        assert!(matches!(set(&mut world, Some(public(2))), Err(Refusal::Revoked { .. })));
    }

    #[test]
    fn the_tokens_of_one_passport_are_bounded_and_ended_ones_make_room() {
        let mut world = world();
        for n in 0..SIGN_IN_TOKENS_MAX {
            sign_in(&mut world, "1s", "mara", 1, &format!("t{n}")).unwrap();
        }
        assert!(matches!(sign_in(&mut world, "2s", "mara", 1, "more"), Err(Refusal::Full { .. })));
        sign_in(&mut world, &format!("{}ms", 1_001 + SIGN_IN_TOKEN_MS), "mara", 1, "later").unwrap();
        let tokens = crate::identity::ListTokens { passport: "mara".into(), limit: 100, cursor: None };
        assert_eq!(world.ask("1h", person("olga"), tokens).unwrap().tokens.len(), 2, "the long one and the last one");
    }
}
