//! Tokens.

use super::*;
use crate::transcript::{World, person};

fn token(tier: Tier, scopes: &[&str]) -> PutToken {
    PutToken {
        hash: token_hash(&format!("{tier:?} {scopes:?}")),
        tenant: "acme".into(),
        passport: "mara".into(),
        tier,
        scopes: scopes.iter().map(|scope| scope.to_string()).collect(),
        expires_at: None,
    }
}

#[test]
fn a_token_changes_neither_tier_nor_scopes_of_a_passport_that_exists() {
    let mut world = World::new();
    let mut put = |token: PutToken| world.call("0s", person("olga"), None, token);
    put(token(Tier::Verified, &["a", "b"])).unwrap();
    for other in [token(Tier::Operator, &["a", "b"]), token(Tier::Unverified, &["a", "b"]), token(Tier::Verified, &["a"])] {
        let problem = "passport `mara` exists with tier `verified` and scopes a, b: make a token with the same, or another passport";
        assert_eq!(put(other), Err(Refusal::Denied { problem: problem.into() }));
    }
    assert_eq!(put(token(Tier::Verified, &["a", "b"])).unwrap().passport, "mara");
    let passport = world.ask("0s", person("olga"), GetPassport { passport: "mara".into() }).unwrap();
    assert_eq!((passport.tier, passport.scopes.len()), (Tier::Verified, 2));
}
