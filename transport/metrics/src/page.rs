//! A page of metrics, in one of two formats.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::families::{Family, FedBy, Part};
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

/// The value of a series.
#[derive(Debug)]
enum Value {
    Number(u64),
    Times(Box<TimeBuckets>),
}

/// One series.
#[derive(Debug)]
struct Series {
    place: Labels,
    own: Option<(&'static str, &'static str)>,
    value: Value,
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
                (Value::Number(us), Some(Unit::Seconds)) => {
                    self.encode_value(encoder, *us as f64 / 1e6)?;
                }
                (Value::Number(number), _) => self.encode_value(encoder, *number)?,
            }
        }
        Ok(())
    }

    fn encode_value<V>(&self, mut encoder: MetricEncoder<'_>, value: V) -> std::fmt::Result
    where
        V: prometheus_client::encoding::EncodeCounterValue
            + prometheus_client::encoding::EncodeGaugeValue,
    {
        if self.family.is_counter() {
            encoder.encode_counter::<NoLabelSet, V, u64>(&value, None)
        } else {
            encoder.encode_gauge(&value)
        }
    }
}

/// The metrics of a program at one moment. Families stand in the order in which they first appeared.
///
/// ```
/// use tickcast_metrics::{PageFormat, Labels, Page, families};
/// let mut page = Page::default();
/// let all = Labels::default().with("channel", "all");
/// page.add(&families::PUBLISHER, &all, "refused_budget", "Sequences refused.", 7);
/// let text = page.encode(PageFormat::Prometheus);
/// assert!(text.contains("_refused_sequences_total{channel=\"all\",reason=\"budget\"} 7\n"));
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
        let value = Value::Number(value);
        self.entry(part, family, meaning).series.push(Series {
            place: place.clone(),
            own,
            value,
        });
    }

    /// Returns the function that adds counters with these labels: the argument of the counters' `each`.
    pub fn counters<'a>(
        &'a mut self,
        part: &'static Part,
        place: &'a Labels,
    ) -> impl FnMut(&'static str, &'static str, u64) + 'a {
        move |counter, meaning, value| self.add(part, place, counter, meaning, value)
    }

    /// Adds a histogram to a family of the part. Ignores one that the part's table does not know.
    pub fn add_times(
        &mut self,
        part: &'static Part,
        place: &Labels,
        name: &str,
        times: TimeBuckets,
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
            own: None,
            value: Value::Times(Box::new(times)),
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
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        let encoded = match format {
            PageFormat::Prometheus => prometheus_text::encode(&mut page, &registry),
            PageFormat::OpenMetrics => text::encode(&mut page, &registry),
        };
        debug_assert!(encoded.is_ok(), "writing to a string can't fail");
        page
    }
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
        page.add_times(&SUBSCRIBER, &place, LATENCY, times);
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
}
