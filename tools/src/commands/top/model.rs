//! Two successive pages of each publisher become rows with rates. Without I/O or a clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

use super::status::{InputLine, Loss, Losses, ReportedLatency, Status};

/// Rates kept for the sparkline of a publisher.
pub(crate) const RATES_MAX: usize = 60;

/// The pages of one poll of a publisher, or the reason why there are none.
pub(crate) type Polled = Result<(Status, Losses), String>;

/// A publisher.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PublisherRow {
    /// Address, as given.
    pub(crate) target: String,
    /// Why its values are missing or old; `None` while it answers, and before its first poll has ended.
    pub(crate) problem: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) epoch: Option<u64>,
    /// `connecting`, `publishing`, `ended`, `handed_over`, or `unreachable`.
    pub(crate) state: &'static str,
    pub(crate) records: u64,
    pub(crate) records_per_s: Option<f64>,
    pub(crate) subscribers: usize,
    /// Reports of subscribers for which its page has no room.
    pub(crate) reports_not_listed: usize,
    pub(crate) nacked: u64,
    pub(crate) repairs: u64,
    pub(crate) repairs_per_s: Option<f64>,
    pub(crate) refused: u64,
    pub(crate) lost_records: u64,
}

/// A channel of a publisher.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ChannelRow {
    pub(crate) publisher: String,
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) sealed: u64,
    pub(crate) records: u64,
    pub(crate) records_per_s: Option<f64>,
    pub(crate) sealed_bytes_per_s: Option<f64>,
    pub(crate) ring_holds_s: f64,
    pub(crate) skipped_datagrams: u64,
    pub(crate) nacked: u64,
    pub(crate) repairs: u64,
    pub(crate) repair_bytes_per_s: Option<f64>,
    pub(crate) pending: u64,
    pub(crate) refused: u64,
    pub(crate) refused_budget: u64,
}

/// A line of a channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LineRow {
    pub(crate) publisher: String,
    pub(crate) channel: String,
    /// Index among the lines of all fan-outs of the channel.
    pub(crate) line: usize,
    pub(crate) datagrams: u64,
    pub(crate) datagrams_per_s: Option<f64>,
    pub(crate) sent_bytes_per_s: Option<f64>,
    pub(crate) stalls: u64,
    pub(crate) refused: u64,
    pub(crate) last_errno: u64,
}

/// A source of a publisher.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SourceRow {
    pub(crate) publisher: String,
    pub(crate) source: u16,
    pub(crate) messages: u64,
    pub(crate) messages_per_s: Option<f64>,
    pub(crate) age_us: Option<u64>,
    pub(crate) silent: bool,
    pub(crate) ended: bool,
    pub(crate) gaps: u64,
    pub(crate) missing_messages: u64,
    pub(crate) overflow_messages: u64,
    pub(crate) lines: Vec<InputLine>,
}

/// A subscriber on one channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SubscriberRow {
    pub(crate) publisher: String,
    pub(crate) name: String,
    pub(crate) channel: String,
    pub(crate) channel_id: u16,
    pub(crate) joined: bool,
    pub(crate) follows: bool,
    pub(crate) sequence: u64,
    pub(crate) heard: u64,
    pub(crate) datagrams_per_s: Option<f64>,
    pub(crate) lag: u64,
    /// Lag in time, at the rate of the channel.
    pub(crate) lag_ms: Option<f64>,
    /// Losses not settled yet.
    pub(crate) open: usize,
    pub(crate) lost_records: u64,
    /// Its latency in its last interval; `None` where it reports none.
    pub(crate) latency: Option<ReportedLatency>,
    /// The last losses, oldest first.
    pub(crate) losses: Vec<Loss>,
}

/// The rows of all publishers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rows {
    pub(crate) publishers: Vec<PublisherRow>,
    pub(crate) channels: Vec<ChannelRow>,
    pub(crate) lines: Vec<LineRow>,
    pub(crate) sources: Vec<SourceRow>,
    pub(crate) subscribers: Vec<SubscriberRow>,
}

/// A page, and when it arrived.
#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    status: Status,
}

/// The newest two pages of one publisher.
#[derive(Clone, Debug)]
struct Watched {
    target: String,
    problem: Option<String>,
    before: Option<Sample>,
    now: Option<Sample>,
    losses: Vec<Loss>,
    rates: VecDeque<u64>,
}

/// All publishers that are watched.
#[derive(Clone, Debug)]
pub(crate) struct Model(Vec<Watched>);

impl Model {
    /// Watches these addresses, of which nothing is known yet.
    pub(crate) fn new(targets: &[String]) -> Self {
        let watched = targets.iter().map(|target| Watched {
            target: target.clone(),
            problem: None,
            before: None,
            now: None,
            losses: Vec::new(),
            rates: VecDeque::new(),
        });
        Self(watched.collect())
    }

    /// Takes the answer of a publisher, which arrived at `at`.
    pub(crate) fn take(&mut self, publisher: usize, at: Duration, polled: Polled) {
        let Some(of) = self.0.get_mut(publisher) else {
            return;
        };
        match polled {
            Ok((status, losses)) => {
                let now = Sample { at, status };
                of.before = of.now.take().filter(|before| before.leads_to(&now));
                of.now = Some(now);
                of.losses = losses.losses;
                of.problem = None;
                if of.rates.len() == RATES_MAX {
                    of.rates.pop_front();
                }
                let rate = of.rate(|it| Some(it.published_records)).unwrap_or(0.0);
                of.rates.push_back(rate as u64);
            }
            // The last values stay on show, without rates.
            Err(problem) => {
                of.before = None;
                of.problem = Some(problem);
                of.rates.clear();
            }
        }
    }

    /// Returns whether any publisher has answered its last poll.
    pub(crate) fn any_answers(&self) -> bool {
        self.0
            .iter()
            .any(|it| it.problem.is_none() && it.now.is_some())
    }

    /// Returns the records per second of each publisher over time, oldest first.
    pub(crate) fn rates(&self) -> impl Iterator<Item = (&str, Vec<u64>)> {
        let each = self.0.iter();
        each.map(|it| (&*it.target, it.rates.iter().copied().collect()))
    }

    /// Returns the rows of all publishers, in the order given.
    pub(crate) fn rows(&self) -> Rows {
        let mut rows = Rows::default();
        for watched in &self.0 {
            watched.add_to(&mut rows);
        }
        rows
    }
}

impl Sample {
    /// Returns whether the counters of `later` continue these: the same process, in the same epoch.
    fn leads_to(&self, later: &Self) -> bool {
        let (before, now) = (&self.status, &later.status);
        before.name == now.name
            && before.epoch == now.epoch
            && before.published_records <= now.published_records
            && self.at < later.at
    }
}

impl Watched {
    /// Returns the increase of a counter per second; `None` without two pages of one process.
    fn rate(&self, of: impl Fn(&Status) -> Option<u64>) -> Option<f64> {
        let (before, now) = (self.before.as_ref()?, self.now.as_ref()?);
        let increase = of(&now.status)?.checked_sub(of(&before.status)?)?;
        let elapsed = now.at.checked_sub(before.at)?.as_secs_f64();
        (elapsed > 0.0).then(|| increase as f64 / elapsed)
    }

    fn add_to(&self, rows: &mut Rows) {
        let publisher = self.target.clone();
        let status = self.now.as_ref().map(|now| &now.status);
        let channels = || status.into_iter().flat_map(|it| &it.channels);
        let subscribers = || status.into_iter().flat_map(|it| &it.subscribers);
        let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0, u64::saturating_add);
        let repairs = |it: &Status| Some(sum(&mut it.channels.iter().map(|of| of.repairs())));
        rows.publishers.push(PublisherRow {
            target: publisher.clone(),
            problem: self.problem.clone(),
            name: status.map(|it| it.name.clone()),
            epoch: status.map(|it| it.epoch),
            state: match status {
                _ if self.problem.is_some() => "unreachable",
                None => "connecting",
                Some(it) if it.handed_over_to.is_some() => "handed_over",
                Some(it) if it.ended => "ended",
                Some(_) => "publishing",
            },
            records: status.map_or(0, |it| it.published_records),
            records_per_s: self.rate(|it| Some(it.published_records)),
            subscribers: subscribers().filter(|it| it.joined).count(),
            reports_not_listed: status.map_or(0, |it| it.subscribers_not_listed),
            nacked: sum(&mut channels().map(|it| it.nacked)),
            repairs: status.and_then(repairs).unwrap_or(0),
            repairs_per_s: self.rate(repairs),
            refused: sum(&mut channels().map(|it| it.refused())),
            lost_records: sum(&mut subscribers().map(|it| it.lost_records)),
        });
        for (at, channel) in channels().enumerate() {
            let rate = |of: fn(&super::status::Channel) -> u64| {
                self.rate(|it| it.channels.get(at).map(of))
            };
            rows.channels.push(ChannelRow {
                publisher: publisher.clone(),
                id: channel.id,
                name: channel.name.clone(),
                sealed: channel.sealed,
                records: channel.published_records,
                records_per_s: rate(|it| it.published_records),
                sealed_bytes_per_s: rate(|it| it.sealed_bytes),
                ring_holds_s: channel.ring_holds_s,
                skipped_datagrams: channel.skipped_datagrams,
                nacked: channel.nacked,
                repairs: channel.repairs(),
                repair_bytes_per_s: rate(|it| it.budgeted_bytes()),
                pending: channel.pending,
                refused: channel.refused(),
                refused_budget: channel.refused_budget,
            });
            for (line, of) in channel.lines.iter().enumerate() {
                let rate = |count: fn(&super::status::Line) -> u64| {
                    self.rate(|it| it.channels.get(at)?.lines.get(line).map(count))
                };
                rows.lines.push(LineRow {
                    publisher: publisher.clone(),
                    channel: channel.name.clone(),
                    line,
                    datagrams: of.datagrams,
                    datagrams_per_s: rate(|it| it.datagrams),
                    sent_bytes_per_s: rate(|it| it.bytes),
                    stalls: of.stalls,
                    refused: of.refused,
                    last_errno: of.last_errno,
                });
            }
        }
        for (at, source) in status.into_iter().flat_map(|it| &it.sources).enumerate() {
            rows.sources.push(SourceRow {
                publisher: publisher.clone(),
                source: source.source,
                messages: source.messages_total,
                messages_per_s: self.rate(|it| Some(it.sources.get(at)?.messages_total)),
                age_us: source.age_us,
                silent: source.silent.unwrap_or(false),
                ended: source.ended > 0,
                gaps: source.gaps,
                missing_messages: source.missing_messages,
                overflow_messages: source.overflow_messages,
                lines: source.lines.clone(),
            });
        }
        self.add_subscribers(rows);
    }

    fn add_subscribers(&self, rows: &mut Rows) {
        let Some(Sample { status, .. }) = &self.now else {
            return;
        };
        // A name on a channel may stand for several connections, whose counters can't be told apart.
        let mut names = BTreeMap::<(&str, u16), usize>::new();
        for it in &status.subscribers {
            *names.entry((&it.name, it.channel)).or_default() += 1;
        }
        let mut losses = BTreeMap::<(&str, u16), Vec<Loss>>::new();
        for loss in &self.losses {
            let of = losses.entry((&loss.subscriber, loss.channel)).or_default();
            of.push(loss.clone());
        }
        let before = self.before.as_ref().map(|it| &it.status.subscribers);
        let mut sequences = BTreeMap::<(&str, u16), u64>::new();
        for it in before.into_iter().flatten().filter(|it| it.follows) {
            sequences.insert((&it.name, it.channel), it.sequence);
        }
        let elapsed = || {
            let (before, now) = (self.before.as_ref()?, self.now.as_ref()?);
            now.at.checked_sub(before.at).map(|it| it.as_secs_f64())
        };
        for it in &status.subscribers {
            let key = (&*it.name, it.channel);
            let is_only = names.get(&key) == Some(&1);
            let earlier = sequences.get(&key).filter(|_| is_only && it.follows);
            let passed = earlier.and_then(|earlier| it.sequence.checked_sub(*earlier));
            let per_s = passed.zip(elapsed()).map(|(passed, s)| passed as f64 / s);
            let channel_at = status.channels.iter().position(|of| of.id == it.channel);
            let sealed_per_s =
                channel_at.and_then(|at| self.rate(|of| of.channels.get(at).map(|it| it.sealed)));
            let lag_s = sealed_per_s.filter(|it| *it > 0.0);
            let lag_ms = lag_s.map(|rate| it.lag as f64 * 1e3 / rate);
            let losses = losses.get(&key).cloned().unwrap_or_default();
            rows.subscribers.push(SubscriberRow {
                publisher: self.target.clone(),
                name: it.name.clone(),
                channel: channel_at.map_or_else(
                    || it.channel.to_string(),
                    |at| status.channels[at].name.clone(),
                ),
                channel_id: it.channel,
                joined: it.joined,
                follows: it.follows,
                sequence: it.sequence,
                heard: it.heard,
                datagrams_per_s: per_s,
                lag: it.lag,
                lag_ms,
                open: losses.iter().filter(|it| it.outcome == "open").count(),
                lost_records: it.lost_records,
                latency: it.latency.clone(),
                losses,
            });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::super::status::tests::{loss, page};
    use super::*;

    pub(crate) fn polled(page: &Value, losses: &[Value]) -> Polled {
        let losses = json!({ "losses": losses });
        let status = Status::parse(&page.to_string()).unwrap();
        Ok((status, Losses::parse(&losses.to_string()).unwrap()))
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn model() -> Model {
        Model::new(&["a:1".into(), "b:1".into()])
    }

    #[test]
    fn two_pages_give_rates_of_every_row() {
        let mut model = model();
        model.take(0, s(10), polled(&page(5, 1_000), &[]));
        assert_eq!(model.rows().publishers[0].records_per_s, None);
        model.take(
            0,
            s(12),
            polled(&page(5, 3_000), &[loss(40, "open"), loss(90, "lost")]),
        );
        let rows = model.rows();
        let publisher = &rows.publishers[0];
        assert_eq!(publisher.records_per_s, Some(1_000.0));
        assert_eq!(
            (publisher.repairs, publisher.repairs_per_s),
            (24, Some(0.0))
        );
        assert_eq!((publisher.refused, publisher.subscribers), (6, 1));
        assert_eq!(rows.channels[0].sealed_bytes_per_s, Some(50_000.0));
        assert_eq!(rows.lines[0].datagrams_per_s, Some(100.0));
        assert_eq!(rows.sources[0].messages_per_s, Some(1_000.0));
        assert_eq!(rows.sources[0].age_us, Some(1_500));
        let subscriber = &rows.subscribers[0];
        assert_eq!(subscriber.channel, "equities");
        assert_eq!(subscriber.datagrams_per_s, Some(100.0));
        // 5 sequences at 100 sequences a second.
        assert_eq!((subscriber.lag, subscriber.lag_ms), (5, Some(50.0)));
        assert_eq!((subscriber.losses.len(), subscriber.open), (2, 1));
        let latency = subscriber.latency.as_ref().and_then(|it| it.delivered());
        assert_eq!(latency.map(|it| it.p99_ns), Some(21_000));
    }

    #[test]
    fn restarted_publisher_resets_rates() {
        for (epoch, records) in [(6, 9_000), (5, 500)] {
            let mut model = model();
            model.take(0, s(1), polled(&page(5, 1_000), &[]));
            model.take(0, s(2), polled(&page(epoch, records), &[]));
            let rows = model.rows();
            assert_eq!(rows.publishers[0].records_per_s, None);
            assert_eq!(rows.subscribers[0].datagrams_per_s, None);
            model.take(0, s(3), polled(&page(epoch, records + 100), &[]));
            assert_eq!(model.rows().publishers[0].records_per_s, Some(100.0));
        }
    }

    #[test]
    fn missing_publisher_is_a_row_and_returns() {
        let mut model = model();
        let rows = model.rows().publishers;
        assert!(
            rows.iter()
                .all(|it| it.state == "connecting" && it.problem.is_none())
        );
        assert!(!model.any_answers());
        model.take(0, s(1), polled(&page(5, 1_000), &[]));
        model.take(1, s(1), Err("connection refused".into()));
        assert!(model.any_answers());
        let row = model.rows().publishers.remove(1);
        assert_eq!((row.state, row.name), ("unreachable", None));
        assert_eq!(row.problem.as_deref(), Some("connection refused"));
        model.take(0, s(2), Err("timed out".into()));
        assert!(!model.any_answers());
        let rows = model.rows();
        assert_eq!(rows.publishers[0].records, 1_000, "its last values stay");
        assert_eq!(rows.publishers[0].state, "unreachable");
        model.take(0, s(3), polled(&page(5, 2_000), &[]));
        let row = &model.rows().publishers[0];
        // The rate is that of the whole time between the two answers.
        let expected = ("publishing", Some(500.0));
        assert_eq!((row.state, row.records_per_s), expected);
        model.take(1, s(3), polled(&page(7, 2_000), &[]));
        assert_eq!(model.rows().publishers[1].epoch, Some(7));
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let mut model = model();
        model.take(0, s(1), polled(&page(5, 1_000), &[]));
        let mut hostile = page(5, 2_000);
        for pointer in [
            "/nacked",
            "/answered",
            "/answered_by_multicast",
            "/refused_window",
        ] {
            *hostile
                .pointer_mut(&format!("/channels/0{pointer}"))
                .unwrap() = u64::MAX.into();
        }
        hostile["subscribers"][0]["lag"] = u64::MAX.into();
        hostile["subscribers"][0]["channel"] = 9.into();
        model.take(0, s(2), polled(&hostile, &[]));
        let rows = model.rows();
        assert_eq!(rows.publishers[0].repairs, u64::MAX);
        assert_eq!(rows.subscribers[0].channel, "9");
        for _ in 0..2 * RATES_MAX as u64 {
            model.take(0, s(3), polled(&page(5, 2_000), &[]));
        }
        assert!(model.rates().all(|(_, rates)| rates.len() <= RATES_MAX));
    }
}
