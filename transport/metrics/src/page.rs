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

/// One series.
#[derive(Debug)]
struct Series {
    place: Labels,
    own: Option<(&'static str, &'static str)>,
    value: u64,
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
        let kind = match self.family.is_counter() {
            true => MetricType::Counter,
            false => MetricType::Gauge,
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
            match unit {
                Some(Unit::Seconds) => self.encode_value(encoder, series.value as f64 / 1e6)?,
                _ => self.encode_value(encoder, series.value)?,
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
        let is_it = |entry: &Entry| std::ptr::eq(entry.family, family);
        let at = self.entries.iter().position(is_it).unwrap_or_else(|| {
            self.entries.push(Entry {
                prefix: part.prefix,
                family,
                help: match family.feed {
                    FedBy::One(_) => meaning,
                    FedBy::By { help, .. } => help,
                },
                series: Vec::new(),
            });
            self.entries.len() - 1
        });
        self.entries[at].series.push(Series {
            place: place.clone(),
            own,
            value,
        });
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
