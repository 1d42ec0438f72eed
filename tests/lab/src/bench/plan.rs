//! All measures in one table, which the run, its report and `--list` share.

use serde::Serialize;

use super::protocol::{Among, Feed, Load, Loss};

/// Where the processes of a measure run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// Two namespaces with a pair of devices between them.
    Veth,
    /// One namespace each, and a bridge in a namespace of its own.
    Bridge,
    /// This host, over shared memory.
    Host,
}

/// The path of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// From a sender to receivers.
    There,
    /// From a sender to a receiver and back.
    ThereAndBack,
}

/// One measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Measure {
    /// Its name: the kind, then the variant.
    pub(crate) id: &'static str,
    /// Its title for people.
    pub(crate) title: &'static str,
    pub(crate) place: Place,
    pub(crate) way: Way,
    pub(crate) mtu: usize,
    pub(crate) receivers: usize,
    pub(crate) spread: Among,
    pub(crate) load: Load,
    pub(crate) loss: Option<Loss>,
    /// Contenders that take turns, in this order.
    pub(crate) contenders: &'static [&'static str],
    /// Whether it is part of the quick run.
    pub(crate) is_quick: bool,
}

impl Measure {
    /// Returns whether it needs the capture of a real exchange.
    pub(crate) const fn needs_capture(&self) -> bool {
        matches!(
            self.load,
            Load::Feed {
                feed: Feed::Tops16,
                ..
            }
        )
    }

    /// Returns the ticks a second of its schedule, over the whole span. `None`: its schedule takes no
    /// time, or it has none.
    pub(crate) fn scheduled_per_s(&self) -> Option<f64> {
        let Load::Paced { ticks, .. } = self.load else {
            return None;
        };
        let span_ns = self.load.due_ns(ticks.max(1));
        (span_ns > 0).then(|| ticks as f64 * 1e9 / span_ns as f64)
    }

    /// Returns whether its main figure is the rate, not the latency.
    pub(crate) const fn is_flood(&self) -> bool {
        matches!(self.load, Load::Flood { .. } | Load::Feed { .. })
    }
}

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Size {
    /// Reliable figures.
    Full,
    /// Within three minutes.
    Quick,
    /// Only a check that everything runs: the figures mean nothing.
    Tiny,
}

impl Size {
    /// Returns the number of turns of a contender at a measure with a mark, or at one without.
    pub(crate) const fn rounds(self, is_judged: bool) -> usize {
        match self {
            Self::Full => 7,
            Self::Quick if is_judged => 3,
            Self::Quick | Self::Tiny => 1,
        }
    }

    /// Returns the length of a turn of a rate measure.
    const fn turn_ms(self) -> u64 {
        match self {
            Self::Full => 1_500,
            Self::Quick => 400,
            Self::Tiny => 20,
        }
    }

    fn flood(self, mtu: usize) -> Load {
        // A tiny flood ends by count, so that tests know the result; the other sizes end by time.
        let (for_ms, ticks_max) = match self {
            Self::Tiny => (60_000, 20_000),
            _ => (self.turn_ms(), u64::MAX),
        };
        Load::Flood {
            for_ms,
            ticks_max,
            // 1024 datagrams, which a receive buffer of 4 MiB holds, or as many bytes.
            window: if mtu > 1_500 { 27_000 } else { 25_600 },
        }
    }

    const fn paced(self, rate_per_s: u64, burst: u64) -> Load {
        let ticks = rate_per_s * self.turn_ms() / 1_000;
        Load::Paced {
            rate_per_s,
            burst,
            ticks: if matches!(self, Self::Tiny) && ticks > 2_000 {
                2_000
            } else {
                ticks
            },
        }
    }

    /// Returns a load like [`Self::paced`], but long enough that many ticks are lost.
    const fn lossy(self, rate_per_s: u64) -> Load {
        match self.paced(rate_per_s, 1) {
            Load::Paced {
                rate_per_s,
                burst,
                ticks,
            } => Load::Paced {
                rate_per_s,
                burst,
                ticks: ticks * 2,
            },
            other => other,
        }
    }

    const fn feed(self, feed: Feed, symbols: u16) -> Load {
        Load::Feed {
            feed,
            symbols,
            messages: match self {
                Self::Full => 4_000_000,
                Self::Quick => 1_000_000,
                Self::Tiny => 20_000,
            },
            window: 25_600,
        }
    }
}

const UDP: &[&str] = &[
    "tickcast",
    "aeron",
    "floor",
    "tickcast-no-gso",
    "floor-no-gso",
];
const FAST: &[&str] = &["tickcast", "aeron", "floor"];
const LOSSY: &[&str] = &["tickcast", "aeron", "aeron-defaults"];
const ALONE: &[&str] = &["tickcast"];
const FED: &[&str] = &["tickcast", "tickcast-shm"];
const HOST: &[&str] = &["tickcast-shm", "aeron-ipc", "iceoryx2"];

const MEDIUM: u64 = 20_000;

/// Returns all measures, in the order of a run.
pub(crate) fn all(size: Size) -> Vec<Measure> {
    let over_veth = |id, title, load, contenders, is_quick| Measure {
        id,
        title,
        place: Place::Veth,
        way: Way::There,
        mtu: 1_500,
        receivers: 1,
        spread: Among::ONE,
        load,
        loss: None,
        contenders,
        is_quick,
    };
    let jumbo = |id, title, is_quick| Measure {
        mtu: 9_000,
        ..over_veth(id, title, size.flood(9_000), UDP, is_quick)
    };
    let bridged = |id, title, mtu, receivers: usize, is_quick| Measure {
        place: Place::Bridge,
        mtu,
        receivers,
        ..over_veth(id, title, size.flood(mtu), FAST, is_quick)
    };
    let lossy = |id, title, rate, per_s, is_quick| Measure {
        loss: Some(Loss { rate, seed: 1 }),
        ..over_veth(id, title, size.lossy(per_s), LOSSY, is_quick)
    };
    let in_host = |id, title, way, load| Measure {
        place: Place::Host,
        way,
        ..over_veth(id, title, load, HOST, true)
    };
    let among = |id, title, spread, is_quick| Measure {
        spread,
        ..over_veth(id, title, size.flood(1_500), ALONE, is_quick)
    };
    let channels = |channels| Among {
        channels,
        ..Among::ONE
    };
    let symbols = |symbols| Among {
        symbols,
        ..Among::ONE
    };
    let subscribers = |subscribers| Among {
        subscribers,
        ..Among::ONE
    };
    vec![
        over_veth(
            "throughput-1500-1",
            "Throughput over a veth pair, MTU 1500, one subscriber",
            size.flood(1_500),
            UDP,
            true,
        ),
        jumbo(
            "throughput-9000-1",
            "Throughput over a veth pair, MTU 9000, one subscriber",
            true,
        ),
        bridged(
            "throughput-1500-2",
            "Throughput over a bridge, MTU 1500, two subscribers, each",
            1_500,
            2,
            false,
        ),
        bridged(
            "throughput-1500-4",
            "Throughput over a bridge, MTU 1500, four subscribers, each",
            1_500,
            4,
            true,
        ),
        bridged(
            "throughput-9000-2",
            "Throughput over a bridge, MTU 9000, two subscribers, each",
            9_000,
            2,
            false,
        ),
        bridged(
            "throughput-9000-4",
            "Throughput over a bridge, MTU 9000, four subscribers, each",
            9_000,
            4,
            false,
        ),
        over_veth(
            "latency-100k",
            "One way at 100,000 a second, one record a datagram",
            size.paced(100_000, 1),
            FAST,
            true,
        ),
        over_veth(
            "latency-500k",
            "One way at 500,000 a second",
            size.paced(500_000, 1),
            FAST,
            false,
        ),
        over_veth(
            "latency-1m",
            "One way at 1,000,000 a second",
            size.paced(1_000_000, 1),
            FAST,
            true,
        ),
        over_veth(
            "latency-2m",
            "One way at 2,000,000 a second",
            size.paced(2_000_000, 1),
            FAST,
            true,
        ),
        over_veth(
            "latency-bursts",
            "One way at 1,000,000 a second in bursts of 1,000",
            size.paced(1_000_000, 1_000),
            FAST,
            false,
        ),
        Measure {
            way: Way::ThereAndBack,
            ..over_veth(
                "rtt",
                "There and back at 20,000 a second",
                size.paced(MEDIUM, 1),
                FAST,
                true,
            )
        },
        lossy(
            "loss-0.1",
            "0.1 % of datagrams lost, at 100,000 a second",
            0.001,
            100_000,
            true,
        ),
        lossy(
            "loss-1",
            "1 % of datagrams lost, at 100,000 a second",
            0.01,
            100_000,
            false,
        ),
        lossy(
            "loss-5",
            "5 % of datagrams lost, at 20,000 a second",
            0.05,
            MEDIUM,
            true,
        ),
        in_host(
            "host-throughput",
            "Throughput within one host",
            Way::There,
            size.flood(9_000),
        ),
        in_host(
            "host-rtt",
            "There and back within one host, at 20,000 a second",
            Way::ThereAndBack,
            size.paced(MEDIUM, 1),
        ),
        over_veth(
            "feed-simulator",
            "Exchange simulator, decoded, published and delivered, over a veth pair",
            size.feed(Feed::Simulator, 500),
            FED,
            true,
        ),
        over_veth(
            "feed-tops16",
            "IEX TOPS 1.6, decoded, published and delivered, over a veth pair",
            size.feed(Feed::Tops16, 0),
            FED,
            true,
        ),
        over_veth(
            "feed-symbols-10",
            "Exchange simulator of 10 symbols, decoded, published and delivered",
            size.feed(Feed::Simulator, 10),
            FED,
            false,
        ),
        over_veth(
            "feed-symbols-8000",
            "Exchange simulator of 8,000 symbols, decoded, published and delivered",
            size.feed(Feed::Simulator, 8_000),
            FED,
            false,
        ),
        among(
            "channels-8",
            "Throughput, the ticks among 8 channels of one publisher and one subscriber",
            channels(8),
            false,
        ),
        among(
            "channels-64",
            "Throughput, the ticks among 64 channels of one publisher and one subscriber",
            channels(64),
            true,
        ),
        among(
            "symbols-1k",
            "Throughput, the ticks among 1,000 instruments",
            symbols(1_000),
            false,
        ),
        among(
            "symbols-100k",
            "Throughput, the ticks among 100,000 instruments",
            symbols(100_000),
            true,
        ),
        among(
            "subscribers-8",
            "Throughput to 8 subscribers of one process, each",
            subscribers(8),
            false,
        ),
        among(
            "subscribers-64",
            "Throughput to 64 subscribers of one process, each",
            subscribers(64),
            true,
        ),
        among(
            "subscribers-128",
            "Throughput to 128 subscribers of one process, each",
            subscribers(128),
            false,
        ),
    ]
}

/// Returns the measures of a run of this size, or all those whose name contains one of `only`.
pub(crate) fn chosen(size: Size, only: &[String]) -> Vec<Measure> {
    let wanted = |measure: &Measure| {
        if only.is_empty() {
            return measure.is_quick || size == Size::Full;
        }
        only.iter().any(|text| measure.id.contains(text.as_str()))
    };
    all(size).into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn measure_ids_are_unique() {
        let names: BTreeSet<_> = all(Size::Full).iter().map(|m| m.id).collect();
        assert_eq!(names.len(), all(Size::Full).len());
    }

    #[test]
    fn paced_load_has_scheduled_rate_flood_has_none() {
        let of = |id| all(Size::Full).into_iter().find(|m| m.id == id).unwrap();
        let mut lossy = of("loss-5");
        let wanted = lossy.scheduled_per_s().unwrap();
        assert!((20_000.0..20_001.0).contains(&wanted), "{wanted}");
        assert_eq!(of("throughput-1500-1").scheduled_per_s(), None);
        lossy.load = Load::Paced {
            rate_per_s: 20_000,
            burst: 1_000,
            ticks: 1_000,
        };
        assert_eq!(lossy.scheduled_per_s(), None, "all are due at once");
    }

    #[test]
    fn name_filter_selects_measures_beyond_quick_set() {
        let of = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(ToString::to_string).collect();
            let all = chosen(Size::Quick, &only);
            all.iter().map(|m| m.id).collect::<Vec<_>>()
        };
        assert_eq!(of(&["rtt"]), ["rtt", "host-rtt"]);
        assert_eq!(
            of(&["500k"]),
            ["latency-500k"],
            "although no quick run has it"
        );
        assert!(!of(&[]).contains(&"latency-500k"));
        assert!(of(&["nothing"]).is_empty());
    }
}
