//! Rules that the grid must satisfy whatever its figures are. They bound the NACKs and repairs for
//! a common loss, of single sequences or of a run. They also ensure that a receiver does not pay
//! for the loss of another.

use super::{GridRow, Loss};

/// Average number of NACK messages for one sequence that all of a large group missed, when the
/// repair reaches them. When the repair is lost to all as well, each receiver sends one more.
const NACKS_MAX: u64 = 16;
/// Average number of NACK messages for such a sequence when the repairs are lost to all: the
/// hold-off widens then.
const NACKS_MAX_OF_ALL: u64 = 64;
/// NACK messages of a large group for one run that all missed.
const NACKS_FOR_RUN_MAX: u64 = 16;
/// NACK messages of each receiver for one run, without a hold-off.
const NACKS_EACH_MAX: u64 = 2;
/// NACK messages of each receiver of a large group for a long run, which is not completely repaired
/// within the hold-off.
const NACKS_EACH_OF_LONG_MAX: u64 = 4;
/// Unicast and multicast repairs of one sequence of a run that a whole group missed: one for each
/// early requester, before there are enough for a multicast, and the multicast.
const LOST_TOGETHER_MAX: u64 = 4;
/// Number of sequences of a long run.
const LONG_MIN: u64 = 2_000;
/// Repair time of a lone loss in a large group, as a multiple of the time with a lone receiver: a
/// hold-off of up to two and a half round trips, and the repair.
const SLOWER_MAX: u64 = 4;

/// Returns the rules that these rows break.
#[must_use]
pub fn broken(rows: &[GridRow]) -> Vec<String> {
    let mut found = Vec::new();
    for row in rows {
        let alone = rows.iter().find(|other| {
            let (a, b) = (row.cell, other.cell);
            b.receivers == 1
                && (a.loss, a.per_mille, a.multicast) == (b.loss, b.per_mille, b.multicast)
        });
        let mut must = |holds: bool, what: &str| {
            if !holds {
                found.push(format!("{:?}: {what}", row.cell));
            }
        };
        let (cell, t) = (row.cell, &row.tally);
        must(
            row.violation.is_none(),
            row.violation.as_deref().unwrap_or_default(),
        );
        must(
            t.records == t.published * cell.receivers as u64 && t.unrecoverable.is_empty(),
            "everything is delivered to everyone",
        );
        let large = cell.multicast && cell.receivers >= 100;
        let distinct = t.repairs.sequences.len() as u64;
        must(
            // At a low rate, a short run may have no loss.
            distinct > 0 || cell.per_mille < 50,
            "something is missed",
        );
        if large && cell.loss == Loss::Common {
            let lost_again = t.multicast_repairs.saturating_sub(distinct);
            let most = NACKS_MAX * distinct + lost_again * cell.receivers as u64;
            let most = most.min(NACKS_MAX_OF_ALL * distinct);
            must(
                t.nack_messages <= most,
                "a common loss costs at most 16 NACKs, where its repair is not lost",
            );
            // A repair is lost to all as often as a fresh datagram, and is then repeated.
            let most = distinct + distinct * 2 * u64::from(cell.per_mille) / 1_000 + 1;
            must(
                (distinct..=most).contains(&t.multicast_repairs),
                "one multicast for a common loss",
            );
        }
        if matches!(cell.loss, Loss::Run | Loss::Long) {
            let receivers = cell.receivers as u64;
            let nacks = match (large, cell.loss) {
                (true, Loss::Long) => NACKS_EACH_OF_LONG_MAX * receivers,
                (true, _) => NACKS_FOR_RUN_MAX,
                (false, _) => NACKS_EACH_MAX * receivers,
            };
            let repairs = match cell.multicast {
                true => LOST_TOGETHER_MAX.min(receivers),
                false => receivers,
            };
            must(
                t.nack_messages <= nacks,
                "a run costs a large group 16 NACKs, a small one two each, a long one four each",
            );
            must(
                t.answered + t.multicast_repairs <= repairs * distinct,
                "four repairs for each sequence of a run, one each without multicast",
            );
        }
        if cell.loss == Loss::Long {
            must(distinct >= LONG_MIN, "a long run is 2,000 sequences");
        }
        if cell.loss == Loss::One {
            must(
                t.multicast_repairs == 0 && t.duplicates == 0,
                "nobody else hears of a lone loss",
            );
            let alone = alone.map_or(0, |alone| alone.tally.repairs.percentile(50));
            must(
                alone == 0 || t.repairs.percentile(50) <= SLOWER_MAX * alone,
                "a lone loss is repaired about as soon in a large group",
            );
        }
        if large && cell.loss == Loss::Each && cell.per_mille == 1 {
            let heard = t.sealed * cell.receivers as u64;
            must(
                t.duplicates * 20 <= heard,
                "one in twenty repairs at most comes to who needs none",
            );
        }
    }
    found
}
