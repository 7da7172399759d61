//! The hold-out experiment: what answers cost with their token budgets, and what they would cost without.
//!
//! Gateways answer a sampled share of recalls unshaped (the control arm) and count the tokens of both arms. Kept are counts,
//! sums and sums of squares, all that an estimate and its interval need. Invariant: the sums are of one fraction; with another
//! one the experiment begins anew, since the arms' mix of work would not compare.

use serde::{Deserialize, Serialize};

use crate::flag;
use crate::key::Key;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::Applied;
use crate::stamp::ReadStamp;
use crate::tx::{Read, StorageError, Tx};

/// One arm: enough for its mean and variance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmSums {
    pub n: u64,
    pub tokens: u64,
    /// The sum of each answer's tokens, squared.
    pub squares: u64,
}

impl ArmSums {
    pub fn count(&mut self, tokens: u64) {
        self.add(ArmSums { n: 1, tokens, squares: tokens.saturating_mul(tokens) });
    }

    /// Adds, and stays at the top rather than begin again.
    pub fn add(&mut self, more: ArmSums) {
        self.n = self.n.saturating_add(more.n);
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.squares = self.squares.saturating_add(more.squares);
    }
}

/// What one gateway has sampled since the last time, under one fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// The share of the control arm, in millionths.
    pub fraction_millionths: u64,
    pub control: ArmSums,
    pub treatment: ArmSums,
}

/// The sums of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct HoldOut {
    tenant: String,
    samples: Samples,
}

impl Record for HoldOut {
    const KIND: Kind = Kind::HoldOut;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

pub(super) fn add(tx: &mut impl Tx, tenant: &str, more: Samples) -> Result<(), StorageError> {
    let fraction_millionths = flag::millionths(tx, flag::OUTPUT_HOLDOUT)?;
    if more.fraction_millionths != fraction_millionths || fraction_millionths == 0 {
        // Sampled before the flag was changed, or the gateway has not heard of it yet.
        return Ok(());
    }
    let stored: Option<HoldOut> = tx.get(tenant, &Key::new())?;
    let same = stored.filter(|stored| stored.samples.fraction_millionths == fraction_millionths);
    let mut samples = same.map_or(Samples { fraction_millionths, ..Samples::default() }, |stored| stored.samples);
    samples.control.add(more.control);
    samples.treatment.add(more.treatment);
    tx.put(&HoldOut { tenant: tenant.into(), samples });
    Ok(())
}

/// The sums of the caller's tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetSavings {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Savings {
    /// Of the fraction that is in force; 0 is off.
    pub samples: Samples,
}

impl GetSavings {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Savings> {
        let fraction_millionths = flag::millionths(view, flag::OUTPUT_HOLDOUT)?;
        let stored: Option<HoldOut> = view.get(&at.caller.tenant, &Key::new())?;
        let samples = stored.map(|stored| stored.samples).filter(|samples| samples.fraction_millionths == fraction_millionths);
        Ok(Ok(Savings { samples: samples.unwrap_or(Samples { fraction_millionths, ..Samples::default() }) }))
    }
}
