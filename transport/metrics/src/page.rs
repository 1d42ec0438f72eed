//! A page of metrics, in one of two formats.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::CounterWithExemplar;
use prometheus_client::registry::{Registry, Unit};

use crate::families::{Family, FedBy, OwnLabels, Part};
use crate::labels::{Labels, SeriesLabels};
use crate::process;

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl PageFormat {
    /// Returns the best format for a request with this `Accept` header.
    #[must_use]
    pub fn accepted(header: &str) -> Self {
        if header.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Returns the content type of a page.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Upper bounds of a histogram's buckets in nanoseconds: from 1 us to 10 s, by 1, 2.5 and 5.
const BOUNDS_NS: [u64; 22] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Samples of time, counted in buckets.
///
/// ```
/// # use tickcast_metrics::TimeBuckets;
/// let mut buckets = TimeBuckets::default();
/// buckets.record(1_500, 2);
/// assert_eq!(buckets.count(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct TimeBuckets {
    /// Samples in each bucket, and above the last bound.
    counts: [u64; BOUNDS_NS.len() + 1],
    /// Sum in nanoseconds.
    sum: f64,
}

impl TimeBuckets {
    /// Adds `count` samples of this many nanoseconds.
    pub fn record(&mut self, value_ns: u64, count: u64) {
        self.counts[BOUNDS_NS.partition_point(|bound| *bound < value_ns)] += count;
        self.sum += value_ns as f64 * count as f64;
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let bounds = BOUNDS_NS.iter().map(|bound| *bound as f64 / 1e9);
        let bounds = bounds.chain([f64::MAX]);
        let buckets: Vec<_> = bounds.zip(self.counts).collect();
        encoder.encode_histogram::<NoLabelSet>(self.sum / 1e9, self.count(), &buckets, None)
    }
}

/// A datagram that a counter or a histogram counted, as an example. Only OpenMetrics shows it.
///
/// ```
/// use tickcast_metrics::{Exemplar, Labels, Page, PageFormat, families};
/// let mut page = Page::default();
/// let place = Labels::default().with("channel", "all");
/// page.add(&families::PUBLISHER, &place, "nacked", "Sequences.", 7);
/// let last = Exemplar { epoch: 1, sequence: 640, value: 2.0, at_utc_ns: Some(1_500_000_000) };
/// page.exemplify(&families::PUBLISHER, &place, "nacked", last);
/// let text = page.encode(PageFormat::OpenMetrics);
/// assert!(text.contains(" 7 # {epoch=\"1\",sequence=\"640\"} 2.0 1.5\n"), "{text}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// Epoch of the datagram.
    pub epoch: u64,
    /// Its sequence, the first of several.
    pub sequence: u64,
    /// Number that it added, or its seconds in a histogram.
    pub value: f64,
    /// Nanoseconds since 1970 at which it was counted, where that is known.
    pub at_utc_ns: Option<u64>,
}

impl Exemplar {
    fn at(&self) -> Option<SystemTime> {
        let at = Duration::from_nanos(self.at_utc_ns?);
        Some(SystemTime::UNIX_EPOCH + at)
    }

    /// Returns it as the crate encodes it.
    fn of_counter(&self) -> CounterWithExemplar<[(&'static str, u64); 2], f64, AtomicU64> {
        let counter = CounterWithExemplar::default();
        let labels = [("epoch", self.epoch), ("sequence", self.sequence)];
        counter.inc_by(self.value, Some(labels), self.at());
        counter
    }

    /// Returns the end of a bucket's line. The crate encodes exemplars of its own histograms alone.
    fn end_of_bucket(&self) -> String {
        let at = self.at_utc_ns.map(|ns| format!(" {:?}", ns as f64 / 1e9));
        format!(
            " # {{epoch=\"{}\",sequence=\"{}\"}} {:?}{}",
            self.epoch,
            self.sequence,
            self.value,
            at.unwrap_or_default()
        )
    }
}

/// The value of a series.
#[derive(Debug)]
enum Value {
    Number(u64),
    Nanoseconds(u64),
    Times(Box<TimeBuckets>),
}

/// One series.
#[derive(Debug)]
struct Series {
    place: Labels,
    own: OwnLabels,
    value: Value,
    exemplar: Option<Exemplar>,
}

/// The series of one family.
#[derive(Debug)]
struct Entry {
    prefix: &'static str,
    family: &'static Family,
    help: &'static str,
    series: Vec<Series>,
}

impl Entry {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let stem = self.family.stem();
        let bytes = stem.strip_suffix("_bytes").map(|it| (it, Unit::Bytes));
        let seconds = || stem.strip_suffix("_seconds").map(|it| (it, Unit::Seconds));
        let (stem, unit) = match bytes.or_else(seconds) {
            Some((stem, unit)) => (stem, Some(unit)),
            None => (stem, None),
        };
        let kind = match self.family.feed {
            FedBy::Histograms(_) => MetricType::Histogram,
            _ if self.family.is_counter() => MetricType::Counter,
            _ => MetricType::Gauge,
        };
        let name = format!("{}{stem}", self.prefix);
        let mut help = self.help.replace(" (a gauge)", "");
        if unit == Some(Unit::Seconds) {
            help = help.replace("Microseconds", "Seconds");
            help = help.replace("Nanoseconds", "Seconds");
        }
        let mut encoder = encoder.encode_descriptor(&name, &help, unit.as_ref(), kind)?;
        for series in &self.series {
            let labels = SeriesLabels {
                place: &series.place,
                own: series.own,
            };
            let encoder = encoder.encode_family(&labels)?;
            match (&series.value, &unit) {
                (Value::Times(times), _) => times.encode(encoder)?,
                (Value::Nanoseconds(ns), _) => {
                    self.encode_value(encoder, *ns as f64 / 1e9, None)?;
                }
                (Value::Number(us), Some(Unit::Seconds)) => {
                    self.encode_value(encoder, *us as f64 / 1e6, None)?;
                }
                (Value::Number(number), _) => {
                    self.encode_value(encoder, *number, series.exemplar)?;
                }
            }
        }
        Ok(())
    }

    fn encode_value<V>(
        &self,
        mut encoder: MetricEncoder<'_>,
        value: V,
        exemplar: Option<Exemplar>,
    ) -> std::fmt::Result
    where
        V: prometheus_client::encoding::EncodeCounterValue
            + prometheus_client::encoding::EncodeGaugeValue,
    {
        match exemplar {
            _ if !self.family.is_counter() => encoder.encode_gauge(&value),
            None => encoder.encode_counter::<NoLabelSet, V, u64>(&value, None),
            Some(exemplar) => {
                let exemplar = exemplar.of_counter();
                let (_, exemplar) = exemplar.get();
                encoder.encode_counter(&value, exemplar.as_ref())
            }
        }
    }

    /// Returns the start of a bucket's line, and the exemplars of all buckets in the order of their lines.
    fn exemplars(&self) -> Option<(String, Vec<Option<Exemplar>>)> {
        self.series.iter().find_map(|series| match series.value {
            Value::Times(_) => series.exemplar,
            Value::Number(_) | Value::Nanoseconds(_) => None,
        })?;
        let of = |series: &Series| {
            let of_value = series.exemplar.map(|it| (bucket_of_s(it.value), it));
            (0..=BOUNDS_NS.len()).map(move |bucket| match of_value {
                Some((at, exemplar)) if at == bucket => Some(exemplar),
                _ => None,
            })
        };
        let start = format!("{}{}_bucket{{", self.prefix, self.family.name);
        Some((start, self.series.iter().flat_map(of).collect()))
    }
}

/// Returns the bucket of this many seconds.
fn bucket_of_s(value: f64) -> usize {
    BOUNDS_NS.partition_point(|bound| *bound as f64 / 1e9 < value)
}

/// The metrics of a program at one moment. Families stand in the order in which they first appeared.
///
/// ```
/// use tickcast_metrics::{PageFormat, Labels, Page, families};
/// let mut page = Page::default();
/// let all = Labels::default().with("channel", "all");
/// page.add(&families::PUBLISHER, &all, "refused_budget", "Sequences refused.", 7);
/// let text = page.encode(PageFormat::Prometheus);
/// assert!(text.contains("_unanswered_sequences_total{channel=\"all\",reason=\"budget\"} 7\n"));
/// ```
#[derive(Debug, Default)]
pub struct Page {
    entries: Vec<Entry>,
}

impl Page {
    /// Adds the value of a counter. Ignores one that the part's table does not know.
    pub fn add(
        &mut self,
        part: &'static Part,
        place: &Labels,
        counter: &str,
        meaning: &'static str,
        value: u64,
    ) {
        let Some((at, own)) = part.find(counter) else {
            debug_assert!(false, "{counter} has no family in {}", part.prefix);
            return;
        };
        let family = &part.families[at];
        let value = match counter.ends_with("_ns") {
            true => Value::Nanoseconds(value),
            false => Value::Number(value),
        };
        self.entry(part, family, meaning).series.push(Series {
            place: place.clone(),
            own,
            value,
            exemplar: None,
        });
    }

    /// Sets the exemplar of a counter that was added with these labels. Ignores it otherwise.
    pub fn exemplify(
        &mut self,
        part: &'static Part,
        place: &Labels,
        counter: &str,
        exemplar: Exemplar,
    ) {
        let found = part.find(counter).and_then(|(at, own)| {
            let family = &part.families[at];
            let mut entries = self.entries.iter_mut();
            let entry = entries.find(|entry| std::ptr::eq(entry.family, family))?;
            let mut series = entry.series.iter_mut().rev();
            series.find(|series| series.own == own && series.place == *place)
        });
        if let Some(series) = found {
            series.exemplar = Some(exemplar);
        }
    }

    /// Returns the function that adds counters with these labels: the argument of the counters' `each`.
    pub fn counters<'a>(
        &'a mut self,
        part: &'static Part,
        place: &'a Labels,
    ) -> impl FnMut(&'static str, &'static str, u64) + 'a {
        move |counter, meaning, value| self.add(part, place, counter, meaning, value)
    }

    /// Adds a histogram to a family of the part, with a sample as exemplar. Ignores one that the part's table
    /// does not know.
    pub fn add_times(
        &mut self,
        part: &'static Part,
        place: &Labels,
        name: &str,
        times: TimeBuckets,
        exemplar: Option<Exemplar>,
    ) {
        let found = part.families.iter().find_map(|family| match family.feed {
            FedBy::Histograms(help) if family.name == name => Some((family, help)),
            _ => None,
        });
        let Some((family, help)) = found else {
            debug_assert!(false, "{name} is no histogram of {}", part.prefix);
            return;
        };
        self.entry(part, family, help).series.push(Series {
            place: place.clone(),
            own: &[],
            value: Value::Times(Box::new(times)),
            exemplar,
        });
    }

    fn entry(
        &mut self,
        part: &'static Part,
        family: &'static Family,
        meaning: &'static str,
    ) -> &mut Entry {
        let is_it = |entry: &Entry| std::ptr::eq(entry.family, family);
        let at = self.entries.iter().position(is_it).unwrap_or_else(|| {
            self.entries.push(Entry {
                prefix: part.prefix,
                family,
                help: match family.feed {
                    FedBy::One(_) => meaning,
                    FedBy::By { help, .. } | FedBy::Histograms(help) => help,
                },
                series: Vec::new(),
            });
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }

    /// Returns the page as text.
    #[must_use]
    pub fn encode(self, format: PageFormat) -> String {
        let exemplars: Vec<_> = self.entries.iter().filter_map(Entry::exemplars).collect();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        let encoded = match format {
            PageFormat::Prometheus => prometheus_text::encode(&mut page, &registry),
            PageFormat::OpenMetrics => text::encode(&mut page, &registry),
        };
        debug_assert!(encoded.is_ok(), "writing to a string can't fail");
        match format {
            PageFormat::Prometheus => page,
            PageFormat::OpenMetrics => exemplars.iter().fold(page, |page, (start, of_lines)| {
                with_exemplars(&page, start, of_lines)
            }),
        }
    }
}

/// Returns the page with exemplars at the ends of the lines that begin so, in their order.
fn with_exemplars(page: &str, start: &str, of_lines: &[Option<Exemplar>]) -> String {
    let mut of_lines = of_lines.iter();
    let mut all = String::with_capacity(page.len() + 100);
    for line in page.lines() {
        all.push_str(line);
        let exemplar = match line.starts_with(start) {
            true => of_lines.next().copied().flatten(),
            false => None,
        };
        all.extend(exemplar.map(|it| it.end_of_bucket()));
        all.push('\n');
    }
    all
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let kind = MetricType::Info;
        let help = "Version of this program.";
        encoder
            .encode_descriptor("tickcast_build", help, None, kind)?
            .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        if let Some(started) = process::started() {
            let help = "Seconds since 1970 at which the process started.";
            let (name, unit) = ("process_start_time", Unit::Seconds);
            encoder
                .encode_descriptor(name, help, Some(&unit), MetricType::Gauge)?
                .encode_gauge(&started)?;
        }
        let mut entries = self.entries.iter();
        entries.try_for_each(|entry| entry.encode(&mut encoder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::{LATENCY, SUBSCRIBER};

    #[test]
    fn bucket_includes_its_bound_and_buckets_add_up() {
        let mut times = TimeBuckets::default();
        for (value_ns, count) in [(0, 1), (1_000, 1), (1_001, 3), (10_000_000_001, 2)] {
            times.record(value_ns, count);
        }
        let mut page = Page::default();
        let place = Labels::default().with("stage", "repair");
        page.add_times(&SUBSCRIBER, &place, LATENCY, times, None);
        let text = page.encode(PageFormat::Prometheus);
        let value = |series: &str| {
            let series = format!("tickcast_subscriber_latency_seconds_{series} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&*series));
            line.unwrap_or_else(|| panic!("no {series} in {text}"))
                .to_owned()
        };
        let bucket = |le: &str| value(&format!("bucket{{stage=\"repair\",le=\"{le}\"}}"));
        assert_eq!(bucket("1e-06"), "2");
        assert_eq!(bucket("2.5e-06"), "5");
        assert_eq!(bucket("10"), "5");
        assert_eq!(bucket("+Inf"), "7");
        assert_eq!(value("count{stage=\"repair\"}"), "7");
        assert!(value("sum{stage=\"repair\"}").starts_with("20.00000400"));
    }

    #[test]
    fn exemplar_stands_at_its_bucket_in_open_metrics_alone() {
        let page = || {
            let mut page = Page::default();
            for (stage, exemplar) in [("repair", None), ("replayed", Some(2e-6))] {
                let mut times = TimeBuckets::default();
                times.record(2_000, 1);
                let exemplar = exemplar.map(|value| Exemplar {
                    epoch: 5,
                    sequence: 9,
                    value,
                    at_utc_ns: None,
                });
                let place = Labels::default().with("stage", stage);
                page.add_times(&SUBSCRIBER, &place, LATENCY, times, exemplar);
            }
            page
        };
        let text = page().encode(PageFormat::OpenMetrics);
        let with_one: Vec<&str> = text.lines().filter(|line| line.contains(" # {")).collect();
        let expected = "tickcast_subscriber_latency_seconds_bucket{le=\"0.0000025\",stage=\"replayed\"} 1 # \
                        {epoch=\"5\",sequence=\"9\"} 2e-6";
        assert_eq!(with_one, [expected]);
        let plain = page().encode(PageFormat::Prometheus);
        assert!(!plain.contains(" # {"), "{plain}");
        let (_, without) = text.split_once("# HELP tickcast_sub").expect("the family");
        let without = without.replace(" # {epoch=\"5\",sequence=\"9\"} 2e-6", "");
        assert!(without.matches("_bucket{").count() == 2 * (BOUNDS_NS.len() + 1));
        assert!(text.ends_with("\n# EOF\n"));
    }
}
