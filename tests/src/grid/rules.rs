//! What must hold in the grid, whatever its figures are: common loss costs a large group a handful
//! of questions and about one repair by multicast; and nobody pays for what another one lost.

use super::{Loss, Row};

/// NACK messages for one sequence that all of a large group missed, on average, when the repair
/// reaches them. When that is lost to all as well, all of them ask once.
const NACKS_MAX: u64 = 16;
/// The same with the repairs lost to all: then the hold-off widens.
const NACKS_MAX_OF_ALL: u64 = 64;
/// Repairs, by unicast and by multicast, of one sequence of a long run that all of a large group
/// missed: those who asked before there were enough for a multicast, and the multicast.
const LOST_TOGETHER_MAX: u64 = 4;
/// What a lone loss takes in a large group, in times of what it takes a lone receiver: a hold-off
/// of up to two and a half round trips, and the repair.
const SLOWER_MAX: u64 = 4;

/// What does not hold.
#[must_use]
pub fn broken(rows: &[Row]) -> Vec<String> {
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
            // A low rate may spare a short run.
            distinct > 0 || cell.per_mille < 50,
            "something is missed",
        );
        if large && cell.loss == Loss::Common {
            let lost_again = t.multicast_repairs.saturating_sub(distinct);
            let most = NACKS_MAX * distinct + lost_again * cell.receivers as u64;
            let most = most.min(NACKS_MAX_OF_ALL * distinct);
            must(
                t.nack_messages <= most,
                "a handful of NACKs for a common loss",
            );
            // A repair is lost to all as often as a fresh datagram, and then repeated.
            let most = distinct + distinct * 2 * u64::from(cell.per_mille) / 1_000 + 1;
            must(
                (distinct..=most).contains(&t.multicast_repairs),
                "one multicast for a common loss",
            );
        }
        if large && cell.loss == Loss::Run {
            must(
                t.answered + t.multicast_repairs <= LOST_TOGETHER_MAX * distinct,
                "a handful of repairs for each sequence of a long run",
            );
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
