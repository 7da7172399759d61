//! Gaps: what was asked for and not found, so that somebody can write it down.
//!
//! A gap is the words alone that no result held, never the whole question, since everyone in the tenant can read it. The last so
//! many are kept; the same words again count up, and are noted at most once an hour.

use serde::{Deserialize, Serialize};

use super::words::{folded_name, pieces};
use crate::cursor::Cursors;
use crate::event;
use crate::fact::Room;
use crate::identity::check_text;
use crate::key::Key;
use crate::limit::{SEARCH_GAP_AGAIN_MS, SEARCH_GAP_BYTES_MAX, SEARCH_GAPS_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// Words that nothing was found for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    pub tenant: String,
    pub gap_id: String,
    pub words: String,
    /// How often it was noted.
    pub times: u64,
    pub first_at: UnixMs,
    pub last_at: UnixMs,
    /// Of the last note: its place among others.
    pub revision: Revision,
}

impl Record for Gap {
    const KIND: Kind = Kind::SearchGap;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.gap_id)
    }
}

impl Gap {
    fn order(&self) -> Key {
        kind_prefix(&self.tenant, Kind::SearchGapOrder).number_descending(self.revision.0)
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    tenant: String,
    count: u64,
}

impl Record for Kept {
    const KIND: Kind = Kind::SearchGapsKept;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// The words as they are noted: each once, sorted, as many as there is room for.
fn words_of(gaps: &[String]) -> String {
    let mut words: Vec<String> = gaps.iter().map(|gap| folded_name(gap)).collect();
    words.sort_unstable();
    words.dedup();
    let mut text = String::new();
    for word in words.iter().filter(|word| word.len() < SEARCH_GAP_BYTES_MAX) {
        if text.len() + 1 + word.len() > SEARCH_GAP_BYTES_MAX {
            break;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text += word;
    }
    text
}

fn gap_id(words: &str) -> String {
    format!("gap_{}", &blake3::hash(words.as_bytes()).to_hex()[..16])
}

/// The words that should be noted, unless they were lately.
pub(super) fn to_note(view: &impl Read, at: &ReadStamp, gaps: &[String]) -> Result<Option<String>, StorageError> {
    let words = words_of(gaps);
    let known: Option<Gap> = view.get(&at.caller.tenant, &Key::new().text(&gap_id(&words)))?;
    let lately = known.is_some_and(|gap| gap.last_at.0.saturating_add(SEARCH_GAP_AGAIN_MS) > at.wall.0);
    Ok((!words.is_empty() && !lately).then_some(words))
}

/// Notes words that nothing was found for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordGap {
    pub words: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GapRecorded {
    pub gap_id: String,
    pub times: u64,
}

impl RecordGap {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<GapRecorded> {
        if let Some(refusal) = check_text("words", &self.words) {
            return Ok(Err(refusal));
        }
        let words = words_of(&self.words.split_whitespace().map(Into::into).collect::<Vec<_>>());
        if words.is_empty() {
            return Ok(Err(Refusal::invalid("words", "must not be empty")));
        }
        let (tenant, gap_id) = (at.caller.tenant.clone(), gap_id(&words));
        let known: Option<Gap> = tx.get(&tenant, &Key::new().text(&gap_id))?;
        let (first_at, times) = known.as_ref().map_or((at.wall, 1), |gap| (gap.first_at, gap.times + 1));
        match &known {
            Some(gap) => tx.delete_index(gap.order()),
            None => make_room(tx, &tenant)?,
        }
        let gap = Gap { tenant, gap_id, words, times, first_at, last_at: at.wall, revision: at.revision };
        tx.put_index(gap.order(), gap.id().as_bytes());
        tx.put(&gap);
        event::emit(tx, at, "gap.noted", &gap.gap_id, serde_json::json!({ "times": times }))?;
        Ok(Ok(GapRecorded { gap_id: gap.gap_id, times }))
    }
}

/// Counts one more, and drops the one that was noted the longest ago when there are too many.
fn make_room(tx: &mut impl Tx, tenant: &str) -> Result<(), StorageError> {
    let mut kept: Kept = tx.get(tenant, &Key::new())?.unwrap_or(Kept { tenant: tenant.into(), count: 0 });
    if kept.count < SEARCH_GAPS_MAX {
        kept.count += 1;
        tx.put(&kept);
        return Ok(());
    }
    let order = kind_prefix(tenant, Kind::SearchGapOrder);
    let last = tx.scan_bytes(Table::Index, order.as_bytes(), &order.after_prefix(), Direction::Descending, 1)?;
    if let Some((_, id)) = last.first()
        && let Some(oldest) = tx.get::<Gap>(tenant, &Key::new().raw(id))?
    {
        tx.delete_index(oldest.order());
        tx.delete(&oldest);
    }
    Ok(())
}

/// Gaps, the last noted first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListGaps {
    /// Words of which a gap has to hold one.
    pub query: Option<String>,
    pub limit: u64,
    #[serde(default)]
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    pub gaps: Vec<Gap>,
    /// There while there are more than the reply holds.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// What a gap takes of a reply beside its words.
const GAP_ROW_BYTES: usize = 160;

impl ListGaps {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Gaps> {
        if let Some(refusal) = self.query.as_deref().and_then(|query| check_text("query", query)) {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("gaps", &at.caller, &self.query);
        let (limit, position) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(page) => page,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let wanted: Vec<String> = self.query.iter().flat_map(|query| pieces(query)).flat_map(|piece| piece.whole).collect();
        let tenant = &at.caller.tenant;
        let order = kind_prefix(tenant, Kind::SearchGapOrder);
        // Gaps that are noted again meanwhile move before the place of a cursor; those of the page before are not shown twice.
        let from = position.as_ref().map_or_else(|| order.clone(), |revision| order.clone().raw(revision).byte(0));
        let rows = view.scan_bytes(Table::Index, from.as_bytes(), &order.after_prefix(), Direction::Ascending, SEARCH_GAPS_MAX as usize)?;
        let (mut gaps, mut room, mut last) = (Vec::new(), Room::of(None, None), None);
        for (_, id) in rows {
            let gap: Option<Gap> = view.get(tenant, &Key::new().raw(&id))?;
            let gap = gap.ok_or_else(|| StorageError::corrupt("a row points to no gap"))?;
            if !wanted.is_empty() && !wanted.iter().any(|word| gap.words.contains(word.as_str())) {
                continue;
            }
            let fits = gaps.len() < limit && room.take(gap.words.len() + GAP_ROW_BYTES, false) == Ok(true);
            if let (false, Some(last)) = (fits, &last) {
                return Ok(Ok(Gaps { gaps, next_cursor: Some(cursors.seal(Key::as_bytes(last))) }));
            }
            last = Some(Key::new().number_descending(gap.revision.0));
            gaps.push(gap);
        }
        Ok(Ok(Gaps { gaps, next_cursor: None }))
    }
}
