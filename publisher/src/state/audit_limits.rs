//! The limits of the audit file. A stranger at the control port causes entries by connecting again and
//! again, so each origin has a burst of them and a rate. A line per second states how many were left out.
//! Entries about rights are never left out.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use tickcast_log::LogLimit;
use tickcast_reliability::types::{Nanos, PeerOrigin};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};

/// Entries of one origin at once: a host may run hundreds of subscribers, which join together.
const BURST: u64 = 1_000;
/// Entries of one origin sustained.
const PER_SECOND: f64 = 0.1;
/// Origins with limits of their own. All others share one.
const ORIGINS_MAX: usize = 256;
/// Counts that a report lists.
const LISTED_MAX: usize = 4;

/// The kinds of entries that a peer causes at will, and that change no right.
const LIMITED: [&str; 13] = [
    "joined",
    "left",
    "replay_joined",
    "nack_joined",
    "read_joined",
    "mirror_refused",
    "turned_away",
    "closed",
    "connection_accepted",
    "connection_up",
    "connection_closed",
    "queue_pair_destroyed",
    "peer_refused",
];

/// Per process: there is one audit trail.
static LIMITS: LazyLock<Mutex<AuditLimits>> = LazyLock::new(Mutex::default);
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns what was left out of the audit file since the last call, as text; `None` if nothing was.
pub(crate) fn take_omitted() -> Option<String> {
    let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
    limits.take_omitted(now())
}

fn now() -> Nanos {
    Nanos(u64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Passes the entries that the limits allow, and all those about rights.
#[derive(Clone, Copy, Debug)]
pub struct AuditFilter;

impl<S> Filter<S> for AuditFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let mut entry = Entry::default();
        event.record(&mut entry);
        let Some(kind) = entry.kind else {
            return true;
        };
        let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        limits.allow(now(), kind, entry.origin)
    }
}

/// The fields of an entry that decide.
#[derive(Default)]
struct Entry {
    /// Its kind, if that is limited.
    kind: Option<&'static str>,
    origin: Option<PeerOrigin>,
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "what" {
            self.kind = LIMITED.into_iter().find(|kind| *kind == value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "peer" && self.kind.is_some() {
            // Debug: an address is passed on so, whatever its type.
            let peer = format!("{value:?}").parse::<SocketAddr>();
            self.origin = peer.ok().map(|peer| PeerOrigin::of(peer.ip()));
        }
    }
}

/// The limits of the origins that entries were about lately.
#[derive(Debug)]
struct AuditLimits {
    limits: BTreeMap<PeerOrigin, LogLimit>,
    /// The limit of entries without an origin, and of the origins beyond those that have their own.
    others: LogLimit,
    /// Entries left out since the last report; `None` stands for the others.
    omitted: BTreeMap<(Option<PeerOrigin>, &'static str), u64>,
}

impl Default for AuditLimits {
    fn default() -> Self {
        Self {
            limits: BTreeMap::new(),
            others: LogLimit::new(BURST, PER_SECOND),
            omitted: BTreeMap::new(),
        }
    }
}

impl AuditLimits {
    /// Returns whether an entry of this kind may be written. Counts it as left out otherwise.
    fn allow(&mut self, now: Nanos, kind: &'static str, origin: Option<PeerOrigin>) -> bool {
        let has_room = self.limits.len() < ORIGINS_MAX;
        let own = origin.filter(|origin| has_room || self.limits.contains_key(origin));
        let limit = match own {
            None => &mut self.others,
            Some(origin) => {
                (self.limits.entry(origin)).or_insert_with(|| LogLimit::new(BURST, PER_SECOND))
            }
        };
        let allowed = limit.allow_at(now);
        if !allowed {
            *self.omitted.entry((own, kind)).or_default() += 1;
        }
        allowed
    }

    /// Returns what was left out since the last call, and forgets the origins whose burst is whole again.
    fn take_omitted(&mut self, now: Nanos) -> Option<String> {
        self.limits.retain(|_, limit| !limit.is_unused_at(now));
        let omitted = std::mem::take(&mut self.omitted);
        let mut most: Vec<_> = omitted.into_iter().map(|(of, count)| (count, of)).collect();
        most.sort_unstable_by(|a, b| b.cmp(a));
        let unlisted = most.split_off(most.len().min(LISTED_MAX));
        let mut text = String::new();
        for (count, (origin, kind)) in most {
            let separator = if text.is_empty() { "" } else { ", " };
            text += &match origin {
                Some(origin) => format!("{separator}{count} {kind} from {origin}"),
                None => format!("{separator}{count} {kind} from others"),
            };
        }
        let rest: u64 = unlisted.iter().map(|(count, _)| count).sum();
        if rest > 0 {
            text += &format!(", {rest} more");
        }
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(last: u16) -> Option<PeerOrigin> {
        let [high, low] = last.to_be_bytes();
        Some(PeerOrigin::of([10, 0, high, low].into()))
    }

    fn allowed(
        limits: &mut AuditLimits,
        now: Nanos,
        origin: Option<PeerOrigin>,
        count: u64,
    ) -> u64 {
        (0..count)
            .filter(|_| limits.allow(now, "turned_away", origin))
            .count() as u64
    }

    #[test]
    fn flooding_origin_takes_no_audit_entries_of_others() {
        let mut limits = AuditLimits::default();
        let now = Nanos::from_secs(100);
        assert_eq!(allowed(&mut limits, now, of(1), 5_000), BURST);
        assert_eq!(allowed(&mut limits, now, of(2), 700), 700);
        assert!(!limits.allow(now, "left", of(1)));
        assert_eq!(
            limits.take_omitted(now).as_deref(),
            Some("4000 turned_away from 10.0.0.1, 1 left from 10.0.0.1")
        );
        assert_eq!(limits.take_omitted(now), None);
        let later = Nanos::from_secs(1_100);
        assert_eq!(allowed(&mut limits, later, of(1), 5_000), 100);
    }

    /// An attacker may have any number of addresses.
    #[test]
    fn origins_beyond_the_table_share_one_limit() {
        let mut limits = AuditLimits::default();
        let now = Nanos::from_secs(100);
        let all: u64 = (0..2_000)
            .map(|host| allowed(&mut limits, now, of(host), BURST + 10))
            .sum();
        assert_eq!(all, (ORIGINS_MAX as u64 + 1) * BURST);
        assert_eq!(limits.limits.len(), ORIGINS_MAX);
        let omitted = limits.take_omitted(now).unwrap();
        assert!(omitted.contains("turned_away from others"), "{omitted}");
        assert!(
            omitted.ends_with(" more") && omitted.len() < 250,
            "{omitted}"
        );
        // An address keeps its place until its burst is whole again.
        limits.take_omitted(Nanos::from_secs(9_000));
        assert_eq!(limits.limits.len(), ORIGINS_MAX);
        limits.take_omitted(Nanos::from_secs(20_000));
        assert!(limits.limits.is_empty());
    }

    #[test]
    fn entries_about_rights_are_never_limited() {
        for kind in [
            "banned",
            "unbanned",
            "denied",
            "allowed",
            "read_denied",
            "ring_granted",
            "cursor_granted",
            "mirror_granted",
            "window_bound",
            "window_revoked",
            "access_violation",
            "promoted",
            "omitted",
        ] {
            assert!(!LIMITED.contains(&kind), "{kind}");
        }
    }
}
