//! Standing: how many receipts a passport has signed, and the tier that they earn it.

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::stamp::{Principal, Tier};
use crate::tx::{Read, StorageError, Tx};

/// What a passport's receipts have earned it, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reputation {
    Unverified,
    Basic,
    Established,
    Trusted,
    Elite,
}

impl Reputation {
    const THRESHOLDS: [(u64, Reputation); 4] =
        [(2_000, Reputation::Elite), (500, Reputation::Trusted), (100, Reputation::Established), (10, Reputation::Basic)];

    pub fn of(receipts: u64) -> Self {
        Self::THRESHOLDS.into_iter().find(|(least, _)| receipts >= *least).map_or(Self::Unverified, |(_, reputation)| reputation)
    }

    pub fn word(self) -> &'static str {
        match self {
            Reputation::Unverified => "unverified",
            Reputation::Basic => "basic",
            Reputation::Established => "established",
            Reputation::Trusted => "trusted",
            Reputation::Elite => "elite",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Standing {
    pub tenant: String,
    pub passport: String,
    /// Receipts of the tenant's chain that name it as their signer.
    pub receipts: u64,
    /// As last shown; it follows the count when the holder asks.
    pub reputation: Reputation,
}

impl Record for Standing {
    const KIND: Kind = Kind::Standing;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

impl Standing {
    pub(super) fn of(view: &impl Read, tenant: &str, passport: &str) -> Result<Self, StorageError> {
        let known: Option<Self> = view.get(tenant, &Key::new().text(passport))?;
        let (tenant, passport) = (tenant.into(), passport.into());
        Ok(known.unwrap_or(Self { tenant, passport, receipts: 0, reputation: Reputation::Unverified }))
    }

    /// Raises the stored tier to what the receipts have earned; false when it stands there already.
    pub(super) fn rise(&mut self) -> bool {
        let earned = Reputation::of(self.receipts);
        let rises = earned > self.reputation;
        self.reputation = earned.max(self.reputation);
        rises
    }
}

/// Counts a receipt for its signer.
pub(crate) fn count(tx: &mut impl Tx, tenant: &str, signer: &str) -> Result<(), StorageError> {
    let mut standing = Standing::of(tx, tenant, signer)?;
    standing.receipts += 1;
    tx.put(&standing);
    Ok(())
}

/// Whether a caller may change whose identity is whose.
pub(super) fn has_operator_standing(view: &impl Read, caller: &Principal) -> Result<bool, StorageError> {
    has_standing(view, caller, Tier::Elite, Reputation::Trusted)
}

/// Whether a caller is trusted so far by the tier of its credential, or by what its receipts have earned.
pub(crate) fn has_standing(view: &impl Read, caller: &Principal, tier: Tier, reputation: Reputation) -> Result<bool, StorageError> {
    if caller.tier >= tier || caller.may("admin") {
        return Ok(true);
    }
    Ok(Reputation::of(Standing::of(view, &caller.tenant, &caller.passport)?.receipts) >= reputation)
}
