//! The verdict of a chaos run: compares the ledger of each process with the sealed records, record by
//! record.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Serialize;
use tickcast_reliability::types::{ChannelId, Epoch};

use super::ledger::{Line, Span, read};
use super::stage::{CHANNELS, Remains};
use crate::memory::Growth;
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::table::{table, thousands};

/// Totals of one subscriber over all its lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Account {
    pub(crate) lives: u32,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    /// Records that were published between its lives, or at an unheard end of an epoch.
    pub(crate) away: u64,
    /// Records that a later life received again, because it joined at the oldest.
    pub(crate) again: u64,
    /// Epochs whose end it never received, because their publisher died.
    pub(crate) tails: u64,
    /// Channels whose end it has reached in the last epoch.
    pub(crate) ended: u64,
    pub(crate) missing_datagrams: u64,
    pub(crate) missing_recovered: u64,
}

/// The verdict of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Verdict {
    pub(crate) seed: u64,
    /// Number of faults, by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) epochs: usize,
    pub(crate) published: u64,
    pub(crate) refused_starts: u64,
    pub(crate) publisher_lives: u32,
    pub(crate) subscribers: BTreeMap<String, Account>,
    /// Number of spans whose records were compared between processes and found equal.
    pub(crate) spans_compared: u64,
    pub(crate) growth: Vec<(String, Growth)>,
    /// All violations. Empty: the run passes.
    pub(crate) wrong: Vec<String>,
}

impl Verdict {
    /// Compares the ledgers with the results of the run.
    ///
    /// # Errors
    /// [`ToolError::Read`] if a ledger can't be read.
    pub(crate) fn new(seed: u64, folder: &Path, remains: Remains) -> Result<Self, ToolError> {
        let mut compare = Compare {
            sealed: remains.sealed,
            digests: BTreeMap::new(),
            verdict: Self {
                seed,
                refused_starts: remains.refused_starts,
                growth: remains.growth,
                wrong: remains.wrong,
                ..Self::default()
            },
        };
        for (who, lives) in remains.lives {
            if who == "publisher" {
                compare.verdict.publisher_lives = lives;
                continue;
            }
            let mut account = Account {
                lives,
                ..Account::default()
            };
            let mut spans = Vec::new();
            for life in 1..=lives {
                let name = format!("{who}.{life}");
                let path = folder.join(format!("{name}.ledger"));
                let lines = match read(&path) {
                    // The process was killed before it had a ledger.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    lines => lines.map_err(|source| ToolError::Read { path, source })?,
                };
                compare.life(&name, &lines, life == lives, &mut account);
                spans.extend(lines.into_iter().filter_map(|line| match line {
                    Line::Span(span) => Some(span),
                    _ => None,
                }));
            }
            let covered = covered(&spans);
            account.away = compare.sealed.values().sum::<u64>().saturating_sub(covered);
            account.again = (account.delivered + account.lost).saturating_sub(covered);
            if account.ended != CHANNELS.len() as u64 {
                let what = format!("{who} has not reached the end of all channels");
                compare.verdict.wrong.push(what);
            }
            compare.verdict.subscribers.insert(who, account);
        }
        compare.whole(&remains.published);
        Ok(compare.finish())
    }

    /// Returns whether there is no violation.
    pub(crate) const fn holds(&self) -> bool {
        self.wrong.is_empty()
    }
}

/// Returns how many distinct records the spans cover.
fn covered(spans: &[Span]) -> u64 {
    let mut all: Vec<_> = (spans.iter())
        .map(|span| ((span.channel, span.epoch), span.first, span.last))
        .collect();
    all.sort_unstable();
    let (mut count, mut reached) = (0, None);
    for (of, first, last) in all {
        let from = match reached {
            Some((before, end)) if before == of => first.max(end + 1),
            _ => first,
        };
        count += (last + 1).saturating_sub(from);
        let end = last.max(from.saturating_sub(1));
        reached = Some((of, end));
    }
    count
}

/// Position of a process in a channel.
#[derive(Clone, Copy)]
struct At {
    epoch: Epoch,
    last: u64,
    /// Whether the process declared the rest of the epoch lost.
    tail: bool,
    /// Whether any span was written since the join.
    begun: bool,
}

struct Compare {
    sealed: BTreeMap<(ChannelId, Epoch), u64>,
    /// The first digest of each span, and of each whole epoch, with the process that wrote it.
    digests: BTreeMap<(ChannelId, Epoch, u64, u64), (String, String)>,
    verdict: Verdict,
}

impl Compare {
    fn wrong(&mut self, name: &str, what: impl fmt::Display) {
        self.verdict.wrong.push(format!("{name}: {what}"));
    }

    fn life(&mut self, name: &str, lines: &[Line], is_last: bool, account: &mut Account) {
        let mut channels: BTreeMap<ChannelId, At> = BTreeMap::new();
        for line in lines {
            match line {
                Line::Span(span) => {
                    let before = channels.get(&span.channel).copied();
                    self.span(name, span, before);
                    account.delivered += span.delivered;
                    account.lost += span.lost;
                    let at = At {
                        epoch: span.epoch,
                        last: span.last,
                        tail: false,
                        begun: true,
                    };
                    channels.insert(span.channel, at);
                }
                Line::Joined {
                    channel,
                    epoch,
                    next,
                } => {
                    let at = At {
                        epoch: *epoch,
                        last: next - 1,
                        tail: false,
                        begun: false,
                    };
                    // A join repeats if the ring moved on before any record was delivered.
                    if channels.get(channel).is_none_or(|at| !at.begun) {
                        channels.insert(*channel, at);
                    }
                }
                Line::Tail { channel, .. } => {
                    account.tails += 1;
                    if let Some(at) = channels.get_mut(channel) {
                        at.tail = true;
                    }
                }
                Line::Wrong { channel, what } => {
                    self.wrong(name, format_args!("channel {channel}: {what}"));
                }
                Line::Reported { .. } => {}
                Line::Ended {
                    channel,
                    epoch,
                    whole,
                } => {
                    account.ended += u64::from(is_last);
                    self.ended(name, *channel, *epoch, channels.get(channel).copied());
                    if let Some(whole) = whole {
                        self.same(name, (*channel, *epoch, 0, 0), whole);
                    }
                }
                Line::Left { counters } => {
                    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
                    let [detected, recovered] = [of("missing_datagrams"), of("missing_recovered")];
                    let sum = recovered
                        + of("missing_lost")
                        + of("missing_superseded")
                        + of("missing_open");
                    if detected != sum {
                        self.wrong(
                            name,
                            format_args!("{detected} gaps, of which {sum} are accounted for"),
                        );
                    }
                    account.missing_datagrams += detected;
                    account.missing_recovered += recovered;
                }
            }
        }
    }

    fn span(&mut self, name: &str, span: &Span, before: Option<At>) {
        let Span {
            channel,
            epoch,
            first,
            last,
            ..
        } = *span;
        if span.delivered + span.lost != last + 1 - first {
            self.wrong(
                name,
                format_args!("delivered and lost are not all there is in {span:?}"),
            );
        }
        match before {
            Some(at) if at.epoch == epoch && (at.last + 1 != first || at.tail) => {
                self.wrong(
                    name,
                    format_args!("record {} was followed by {span:?}", at.last),
                );
            }
            Some(at) if at.epoch > epoch => {
                self.wrong(
                    name,
                    format_args!("epoch {} was followed by {span:?}", at.epoch),
                );
            }
            // The process lived through the end of an epoch.
            Some(at) if at.epoch < epoch => {
                let whole = self
                    .sealed
                    .get(&(channel, at.epoch))
                    .is_some_and(|sealed| *sealed == at.last);
                if !at.tail && !whole {
                    self.wrong(
                        name,
                        format_args!(
                            "was not told that epoch {} went on behind record {}",
                            at.epoch, at.last
                        ),
                    );
                }
                if first != 1 {
                    self.wrong(
                        name,
                        format_args!("epoch {epoch} begins with record {first}"),
                    );
                }
            }
            _ => {}
        }
        let sealed = self.sealed.get(&(channel, epoch)).copied();
        if sealed.is_none_or(|sealed| sealed < last) {
            let what = format!("{span:?} was never published, but up to {sealed:?}");
            self.wrong(name, what);
        }
        if let Some(digest) = &span.digest {
            self.same(name, (channel, epoch, first, last), digest);
        }
    }

    /// Checks that all processes have the same digest for the same records.
    fn same(&mut self, name: &str, what: (ChannelId, Epoch, u64, u64), digest: &str) {
        match self.digests.get(&what) {
            None => drop(self.digests.insert(what, (digest.into(), name.into()))),
            Some((theirs, _)) if theirs == digest => self.verdict.spans_compared += 1,
            Some((_, other)) => {
                let what = format!("has other records than {other} in {what:?}");
                self.wrong(name, what);
            }
        }
    }

    /// Checks that the process reached the publisher's last record.
    fn ended(&mut self, name: &str, channel: ChannelId, epoch: Epoch, at: Option<At>) {
        let last = self.sealed.iter().rfind(|((of, _), _)| *of == channel);
        let expected = last.map(|((_, epoch), sealed)| (*epoch, *sealed));
        let reached = at.map(|at| (at.epoch, at.last));
        if reached != expected || expected.is_none_or(|(last, _)| last != epoch) {
            self.wrong(
                name,
                format_args!(
                    "channel {channel} ended at {reached:?}, and was published to {expected:?}"
                ),
            );
        }
    }

    /// Checks the publisher's own digest of the last epoch.
    fn whole(&mut self, published: &serde_json::Value) {
        let channels = published["channels"].as_array().map_or(&[][..], |all| all);
        if channels.len() != CHANNELS.len() {
            self.wrong("publisher", "left no summary of all channels");
        }
        for channel in channels {
            let id = channel["id"].as_u64().unwrap_or(0);
            let digest = channel["digest"].as_str().unwrap_or("none");
            let of = self
                .digests
                .keys()
                .filter(|(of, .., last)| u64::from(of.0) == id && *last == 0);
            if let Some(what) = of.max_by_key(|(_, epoch, ..)| *epoch).copied() {
                self.same("publisher", what, digest);
            }
        }
    }

    fn finish(mut self) -> Verdict {
        let leaks = self
            .verdict
            .growth
            .iter()
            .filter(|(_, growth)| growth.is_a_leak());
        let leaks: Vec<_> = leaks
            .map(|(name, it)| {
                format!(
                    "{name}: held {} KiB, and later {} KiB, at most {} KiB",
                    it.early_kib, it.late_kib, it.most_kib
                )
            })
            .collect();
        self.verdict.wrong.extend(leaks);
        self.verdict.published = self.sealed.values().sum();
        let epochs: std::collections::BTreeSet<_> =
            self.sealed.keys().map(|(_, epoch)| *epoch).collect();
        self.verdict.epochs = epochs.len();
        self.verdict
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = table(&[
            "",
            "lives",
            "delivered",
            "declared lost",
            "not there",
            "again",
            "tails",
            "gaps",
            "recovered",
            "not recovered",
        ]);
        for (name, it) in &self.subscribers {
            let numbers = [
                u64::from(it.lives),
                it.delivered,
                it.lost,
                it.away,
                it.again,
                it.tails,
                it.missing_datagrams,
                it.missing_recovered,
                it.missing_datagrams.saturating_sub(it.missing_recovered),
            ];
            rows.add_row(std::iter::once(name.clone()).chain(numbers.map(thousands)));
        }
        writeln!(
            f,
            "{rows}\nIn each row, delivered + declared lost + not there - again = {} records published.\n\
             Not there: published before a life joined, between two lives, or behind a tail. Again: a life that \
             began with the oldest had records of the life before.\n\
             Gaps are datagrams, of lives that ended by themselves: one that was killed can't say.",
            thousands(self.published)
        )?;
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(kind, n)| format!("{kind} {n}"))
            .collect();
        writeln!(f, "happened: {}", faults.join(", "))?;
        writeln!(
            f,
            "{} records in {} epochs of a publisher with {} lives; {} starts without room on the file system; {} spans of records compared",
            thousands(self.published),
            self.epochs,
            self.publisher_lives,
            self.refused_starts,
            thousands(self.spans_compared),
        )?;
        let (grown_up, young): (Vec<_>, Vec<_>) =
            self.growth.iter().partition(|(_, it)| it.is_grown_up());
        for (name, it) in grown_up {
            writeln!(
                f,
                "memory of {name} in {} s: {} KiB, later {} KiB, at most {} KiB",
                it.life_s,
                thousands(it.early_kib),
                thousands(it.late_kib),
                thousands(it.most_kib)
            )?;
        }
        let most = young.iter().map(|(_, it)| it.most_kib).max();
        writeln!(
            f,
            "memory of {} that did not live as long: {} KiB at most",
            young.len(),
            thousands(most.unwrap_or(0))
        )?;
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        if self.holds() {
            write!(
                f,
                "It adds up for every subscriber, to the record (seed {}).",
                self.seed
            )
        } else {
            write!(f, "It does NOT add up (seed {}).", self.seed)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EPOCHS: [Epoch; 2] = [Epoch(5), Epoch(6)];

    fn span(channel: u16, epoch: Epoch, first: u64, last: u64, lost: u64) -> Line {
        Line::Span(Span {
            channel: ChannelId(channel),
            epoch,
            first,
            last,
            delivered: last + 1 - first - lost,
            lost,
            digest: (lost == 0).then(|| format!("{epoch}/{first}..{last}")),
        })
    }

    /// Returns the ledger of a life through two epochs, with the first one up to record 90 of 100.
    fn life() -> Vec<Line> {
        let of = |id: u16| {
            let channel = ChannelId(id);
            let [before, now] = EPOCHS;
            vec![
                Line::Joined {
                    channel,
                    epoch: before,
                    next: 11,
                },
                span(id, before, 11, 50, 0),
                span(id, before, 51, 90, 7),
                Line::Tail {
                    channel,
                    epoch: before,
                },
                span(id, now, 1, 200, 0),
                Line::Ended {
                    channel,
                    epoch: now,
                    whole: Some("whole".into()),
                },
            ]
        };
        let counters = [
            ("missing_datagrams", 9),
            ("missing_recovered", 4),
            ("missing_lost", 5),
        ];
        let counters = counters.map(|(name, n)| (name.to_owned(), n)).into();
        [of(1), of(2), vec![Line::Left { counters }]].concat()
    }

    /// Returns the verdict on two subscribers, after `spoil` has changed the second one's ledger and the
    /// results of the run.
    fn verdict(spoil: impl FnOnce(&mut Vec<Line>, &mut Remains)) -> Verdict {
        let folder = tempfile::tempdir().expect("a folder");
        let sealed = [(1, 0, 100), (2, 0, 100), (1, 1, 200), (2, 1, 200)];
        let sealed = sealed.map(|(id, epoch, last)| ((ChannelId(id), EPOCHS[epoch]), last));
        let channel = |id| json!({"id": id, "digest": "whole"});
        let mut remains = Remains {
            sealed: sealed.into(),
            lives: [("publisher", 3), ("s1", 1), ("s2", 1)]
                .map(|(name, n)| (name.into(), n))
                .into(),
            published: json!({"channels": [channel(1), channel(2)]}),
            ..Remains::default()
        };
        let mut second = life();
        spoil(&mut second, &mut remains);
        for (name, lines) in [("s1.1", life()), ("s2.1", second)] {
            let lines: Vec<_> = lines
                .iter()
                .map(|it| json!(it).to_string() + "\n")
                .collect();
            std::fs::write(folder.path().join(format!("{name}.ledger")), lines.concat())
                .expect("written");
        }
        Verdict::new(1, folder.path(), remains).expect("the ledgers are read")
    }

    #[test]
    fn delivered_and_declared_lost_are_all() {
        let all = verdict(|_, _| {});
        assert!(all.holds(), "{all}");
        let account = Account {
            lives: 1,
            delivered: 546,
            lost: 14,
            away: 40,
            again: 0,
            tails: 2,
            ended: 2,
            missing_datagrams: 9,
            missing_recovered: 4,
        };
        assert_eq!(all.subscribers["s2"], account);
        let sum = account.delivered + account.lost + account.away - account.again;
        assert_eq!(sum, all.published);
        let table = all.to_string();
        assert!(
            table.contains("not there - again = 600 records published"),
            "{table}"
        );
        // Two spans and the whole of each channel against the other subscriber, and the whole against the
        // publisher.
        assert_eq!((all.spans_compared, all.published, all.epochs), (8, 600, 2));
    }

    #[test]
    fn records_of_two_lives_are_covered_once() {
        let span = |channel, first, last| match span(channel, EPOCHS[0], first, last, 0) {
            Line::Span(span) => span,
            line => panic!("{line:?} is no span"),
        };
        let spans = [
            span(1, 5, 9),
            span(1, 1, 6),
            span(1, 2, 3),
            span(1, 20, 20),
            span(2, 1, 4),
        ];
        assert_eq!(covered(&spans), 9 + 1 + 4);
    }

    #[test]
    fn whatever_is_missing_twice_or_otherwise_is_found() {
        type Spoil = fn(&mut Vec<Line>, &mut Remains);
        fn of(line: &mut Line) -> &mut Span {
            match line {
                Line::Span(span) => span,
                line => panic!("{line:?} is no span"),
            }
        }
        let cases: [(&str, Spoil); 15] = [
            ("was followed by", |lines, _| drop(lines.remove(1))),
            ("was followed by", |lines, _| {
                lines.insert(2, lines[1].clone());
            }),
            ("are not all there is", |lines, _| {
                of(&mut lines[2]).lost += 1;
            }),
            ("are not all there is", |lines, _| {
                of(&mut lines[2]).delivered -= 1;
            }),
            ("has other records than s1.1", |lines, _| {
                of(&mut lines[1]).digest = Some("x".into());
            }),
            ("was not told that epoch 5 went on", |lines, _| {
                drop(lines.remove(3));
            }),
            ("begins with record 2", |lines, _| {
                of(&mut lines[4]).first = 2;
                of(&mut lines[4]).delivered -= 1;
            }),
            ("was never published", |_, remains| {
                remains.sealed.insert((ChannelId(1), EPOCHS[0]), 89);
            }),
            ("was followed by", |lines, _| lines.swap(2, 4)),
            ("and was published to", |_, remains| {
                remains.sealed.insert((ChannelId(2), EPOCHS[1]), 201);
            }),
            ("has not reached the end", |lines, _| drop(lines.remove(5))),
            ("are accounted for", |lines, _| {
                *lines.last_mut().expect("it left") = Line::Left {
                    counters: [("missing_datagrams".to_owned(), 1)].into(),
                };
            }),
            ("has other records than s1.1 in", |_, remains| {
                remains.published["channels"][1]["digest"] = json!("other");
            }),
            ("left no summary", |_, remains| {
                remains.published = json!(null);
            }),
            (
                "held 1000 KiB, and later 1010 KiB, at most 1020 KiB",
                |_, remains| {
                    let growth = Growth {
                        life_s: 600,
                        early_kib: 1_000,
                        late_kib: 1_010,
                        most_kib: 1_020,
                    };
                    remains.growth.push(("s1.1".into(), growth));
                },
            ),
        ];
        for (n, (found, spoil)) in cases.into_iter().enumerate() {
            let wrong = verdict(spoil).wrong;
            assert!(
                wrong.iter().any(|it| it.contains(found)),
                "case {n}, {found}: {wrong:#?}"
            );
        }
    }
}
