//! Passports and their tokens, as an operator sees them. A token is named by its hash; its text is nowhere.

use serde::{Deserialize, Serialize};

use super::{Passport, Token, check_name};
use crate::cursor::Cursors;
use crate::key::Key;
use crate::record::{CLUSTER, Kind, ReadRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, UnixMs};
use crate::tx::{Read, StorageError, Table};

/// Tokens of a passport, by hash. Those that were put before this index was kept come into it when they are put again.
pub(super) fn by_passport(tenant: &str, passport: &str) -> Key {
    kind_prefix(tenant, Kind::TokenByPassport).text(passport)
}

fn needs_admin(caller: &Principal) -> Option<Refusal> {
    (!caller.may("admin")).then(|| Refusal::Denied { problem: "this needs the scope `admin`".into() })
}

/// Passports of the caller's tenant, by name. An operator's question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListPassports {
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passports {
    pub passports: Vec<Passport>,
    pub next_cursor: Option<String>,
}

impl ListPassports {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Passports> {
        let cursors = Cursors::of("passports", &at.caller, &());
        let checked = cursors.page(self.limit, self.cursor.as_deref());
        let (limit, from) = match (needs_admin(&at.caller), checked) {
            (Some(refusal), _) | (None, Err(refusal)) => return Ok(Err(refusal)),
            (None, Ok(checked)) => checked,
        };
        let order = kind_prefix(&at.caller.tenant, Kind::Passport);
        let from = from.map(|position| order.clone().raw(&position).into_bytes());
        let page = view.page::<Passport>(&at.caller.tenant, &Key::new(), from.as_deref(), limit)?;
        let next_cursor = page.next.map(|next| cursors.seal(&next[order.as_bytes().len()..]));
        Ok(Ok(Passports { passports: page.items, next_cursor }))
    }
}

/// Tokens of one passport of the caller's tenant, ended ones too. An operator's question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListTokens {
    pub passport: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenRow {
    pub hash: String,
    pub created_at: UnixMs,
    pub expires_at: Option<UnixMs>,
    pub revoked_at: Option<UnixMs>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    pub tokens: Vec<TokenRow>,
    pub next_cursor: Option<String>,
}

impl ListTokens {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Tokens> {
        let cursors = Cursors::of("tokens", &at.caller, &self.passport);
        let checked = cursors.page(self.limit, self.cursor.as_deref());
        let (limit, from) = match (needs_admin(&at.caller).or_else(|| check_name("passport", &self.passport)), checked) {
            (Some(refusal), _) | (None, Err(refusal)) => return Ok(Err(refusal)),
            (None, Ok(checked)) => checked,
        };
        let order = by_passport(&at.caller.tenant, &self.passport);
        let from = from.map(|position| order.clone().raw(&position).into_bytes());
        let (rows, next) = view.page_bytes(Table::Index, &order, from.as_deref(), limit)?;
        let mut tokens = Vec::new();
        for (_, hash) in rows {
            let hash = String::from_utf8_lossy(&hash);
            let token: Option<Token> = view.get(CLUSTER, &Key::new().text(&hash))?;
            let token = token.ok_or_else(|| StorageError::corrupt(format!("an index row points to no token `{hash}`")))?;
            let Token { hash, created_at, expires_at, revoked_at, .. } = token;
            tokens.push(TokenRow { hash, created_at, expires_at, revoked_at });
        }
        let next_cursor = next.map(|next| cursors.seal(&next[order.as_bytes().len()..]));
        Ok(Ok(Tokens { tokens, next_cursor }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;
    use crate::identity::{PutToken, RevokeToken, token_hash};
    use crate::transcript::{World, person};

    fn admin() -> Principal {
        Principal { scopes: ["admin".to_string()].into(), tier: Tier::Operator, ..person("olga") }
    }

    fn put(world: &mut World, passport: &str, token: &str) {
        let command = PutToken {
            hash: token_hash(token),
            tenant: admin().tenant,
            passport: passport.into(),
            tier: Tier::Verified,
            scopes: Default::default(),
            expires_at: None,
        };
        world.call("0s", admin(), None, command).unwrap();
    }

    #[test]
    fn an_operator_sees_the_passports_and_tokens_of_the_tenant_and_nobody_else_does() {
        let mut world = World::new();
        for (passport, token) in [("mara", "t1"), ("mara", "t2"), ("jon", "t3"), ("jon", "t3")] {
            put(&mut world, passport, token);
        }
        world.call("1s", admin(), None, RevokeToken { hash: token_hash("t1") }).unwrap();
        let first = world.ask("2s", admin(), ListPassports { limit: 1, cursor: None }).unwrap();
        let second = world.ask("2s", admin(), ListPassports { limit: 9, cursor: first.next_cursor.clone() }).unwrap();
        let names: Vec<String> = first.passports.into_iter().chain(second.passports).map(|passport| passport.name).collect();
        assert_eq!((names, second.next_cursor), (vec!["jon".to_string(), "mara".into()], None));

        let ask = |passport: &str| ListTokens { passport: passport.into(), limit: 9, cursor: None };
        let found = world.ask("2s", admin(), ask("mara")).unwrap().tokens;
        let revoked: Vec<String> = found.iter().filter(|token| token.revoked_at.is_some()).map(|token| token.hash.clone()).collect();
        assert_eq!((found.len(), revoked), (2, vec![token_hash("t1")]));
        assert_eq!(world.ask("2s", admin(), ask("jon")).unwrap().tokens.len(), 1, "putting it again changes nothing");

        let stranger = Principal { tenant: "other".into(), ..admin() };
        assert_eq!(world.ask("2s", stranger.clone(), ask("mara")).unwrap().tokens, []);
        assert_eq!(world.ask("2s", stranger, ListPassports { limit: 9, cursor: None }).unwrap().passports, []);
        assert!(world.ask("2s", person("mara"), ask("mara")).is_err());
        assert!(world.ask("2s", person("mara"), ListPassports { limit: 9, cursor: None }).is_err());
    }
}
