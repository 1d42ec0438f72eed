//! Settings of the simulator, with a check that makes every value usable before it starts.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A simulated market. Every field has a default; unknown ones are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatorConfig {
    /// How many symbols, 1 to 65,535.
    pub symbols: u16,
    /// Names of the first symbols, 1 to 8 printable ASCII characters; the others are AAAA, AAAB, …
    pub names: Vec<String>,
    /// MoldUDP64 session, 1 to 10 printable ASCII characters.
    pub session: String,
    /// Trading ends once this many messages were sent, opening included; the messages that close the
    /// day come on top. 0: no bound.
    pub messages: u64,
    /// Trading ends after this much simulated time. 0: no bound.
    ///
    /// A bounded market also ends at midnight. Without either bound, trading never ends: its stamps go
    /// on beyond midnight, and begin again at 0 after 2^48 ns (78 hours).
    pub duration_ms: u64,
    /// When the stream begins, in seconds since midnight in New York.
    pub begins_at_s: u32,
    /// When orders arrive.
    pub arrivals: Arrivals,
    /// Kinds of arrivals.
    pub mix: Mix,
    /// Orders that a book has on average.
    pub depth: u32,
    /// Lowest price that a symbol starts at, in cents.
    pub price_min_cents: u32,
    /// Highest price that a symbol starts at, in cents.
    pub price_max_cents: u32,
    /// Share of new orders that carry an MPID, 0 to 1.
    pub attributed: f64,
    /// Trading pauses per million arrivals.
    pub pauses_per_million: f64,
    /// How long a pause lasts.
    pub pause_ms: u64,
    /// Longest UDP payload, in bytes, 128 to 65,507.
    pub payload_max: u16,
    /// A packet takes in what arrives within this span of its first message.
    pub coalesce_us: u64,
}

/// Self-exciting arrivals of one symbol.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Arrivals {
    /// Arrivals per second without excitement, averaged over all symbols.
    pub base_per_s: f64,
    /// Further arrivals that one brings on average: 0 is a Poisson process; below 1, or the
    /// market explodes. The mean rate is `base_per_s / (1 - branching)`.
    pub branching: f64,
    /// How fast excitement decays; 1000 remembers about a millisecond.
    pub decay_per_s: f64,
    /// How unequal symbols are: the n-th's base rate goes with n^-skew. 0 makes all alike.
    pub skew: f64,
}

/// Weights of what an arrival does. Adds and deletes lean against each other, so that books keep
/// their depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mix {
    /// A new order.
    pub add: f64,
    /// Part of an order is cancelled.
    pub cancel: f64,
    /// An order is deleted.
    pub delete: f64,
    /// An order is replaced.
    pub replace: f64,
    /// An order that is matched at once, as far as it goes.
    pub execute: f64,
    /// A trade with an order that is not displayed.
    pub hidden: f64,
}

impl Default for SimulatorConfig {
    fn default() -> Self {
        Self {
            symbols: 100,
            names: Vec::new(),
            session: "TICKCAST".to_owned(),
            messages: 0,
            duration_ms: 0,
            begins_at_s: 34_200,
            arrivals: Arrivals::default(),
            mix: Mix::default(),
            depth: 40,
            price_min_cents: 500,
            price_max_cents: 50_000,
            attributed: 0.2,
            pauses_per_million: 5.0,
            pause_ms: 1_000,
            payload_max: 1_400,
            coalesce_us: 20,
        }
    }
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            base_per_s: 50.0,
            branching: 0.7,
            decay_per_s: 1_000.0,
            skew: 0.8,
        }
    }
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            add: 44.0,
            cancel: 4.0,
            delete: 36.0,
            replace: 8.0,
            execute: 7.0,
            hidden: 1.0,
        }
    }
}

/// Why a simulation cannot start. The fault is in the config.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SimulatorError {
    /// A number lies outside its range.
    #[error("simulator: {field} is {value}; it must be {range}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Its valid range.
        range: &'static str,
    },
    /// The session cannot be sent.
    #[error("simulator: session {session:?} must be 1 to 10 printable ASCII characters")]
    Session {
        /// The session.
        session: String,
    },
    /// A symbol cannot be sent.
    #[error("simulator: name {name:?} must be 1 to 8 printable ASCII characters without spaces")]
    Name {
        /// The name.
        name: String,
    },
    /// A symbol is named twice.
    #[error("simulator: name {name:?} is given twice; remove one")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// More names than symbols.
    #[error("simulator: {names} names for {symbols} symbols; raise symbols or remove names")]
    TooManyNames {
        /// Names given.
        names: usize,
        /// Symbols wanted.
        symbols: u16,
    },
}

impl SimulatorConfig {
    /// Checks that a simulation of this config can start.
    ///
    /// # Errors
    /// [`SimulatorError`] names the first field that is wrong, its value, and what it may be.
    pub fn check(&self) -> Result<(), SimulatorError> {
        let Arrivals {
            base_per_s,
            branching,
            decay_per_s,
            skew,
        } = self.arrivals;
        let mix = self.mix;
        let weights = [
            mix.add,
            mix.cancel,
            mix.delete,
            mix.replace,
            mix.execute,
            mix.hidden,
        ];
        let weight = weights.into_iter().fold(0.0, f64::min);
        let session = self.session.as_bytes();
        let (rate, share) = ("above 0 and at most 1000000000", "from 0 to 1");
        let in_rate = |value: f64| value > 0.0 && value <= 1e9;
        let in_share = |value: f64| (0.0..=1.0).contains(&value);
        let ranges: [(&'static str, f64, bool, &'static str); 14] = [
            (
                "symbols",
                self.symbols.into(),
                self.symbols > 0,
                "from 1 to 65535",
            ),
            (
                "begins_at_s",
                self.begins_at_s.into(),
                self.begins_at_s < 86_000,
                "below 86000",
            ),
            ("arrivals.base_per_s", base_per_s, in_rate(base_per_s), rate),
            (
                "arrivals.branching",
                branching,
                (0.0..1.0).contains(&branching),
                "at least 0 and below 1: from 1 on, arrivals grow without end",
            ),
            (
                "arrivals.decay_per_s",
                decay_per_s,
                in_rate(decay_per_s),
                rate,
            ),
            (
                "arrivals.skew",
                skew,
                (0.0..=4.0).contains(&skew),
                "from 0 to 4",
            ),
            (
                "mix",
                weight,
                weight >= 0.0 && weights.iter().all(|w| w.is_finite()),
                "all at least 0",
            ),
            (
                "mix.add",
                mix.add,
                mix.add > 0.0 && mix.add.is_finite(),
                "above 0",
            ),
            (
                "mix.delete",
                mix.delete,
                mix.delete > 0.0 && mix.delete.is_finite(),
                "above 0",
            ),
            (
                "depth",
                self.depth.into(),
                (2..=100_000).contains(&self.depth),
                "from 2 to 100000",
            ),
            (
                "price_min_cents",
                self.price_min_cents.into(),
                (100..=self.price_max_cents).contains(&self.price_min_cents)
                    && self.price_max_cents <= 10_000_000,
                "from 100 to price_max_cents, and that at most 10000000",
            ),
            (
                "attributed",
                self.attributed,
                in_share(self.attributed),
                share,
            ),
            (
                "pauses_per_million",
                self.pauses_per_million,
                (0.0..=1_000_000.0).contains(&self.pauses_per_million),
                "from 0 to 1000000",
            ),
            (
                "payload_max",
                self.payload_max.into(),
                (128..=65_507).contains(&self.payload_max),
                "from 128 to 65507",
            ),
        ];
        for (field, value, holds, range) in ranges {
            if !holds {
                return Err(SimulatorError::Range {
                    field,
                    value,
                    range,
                });
            }
        }
        let is_printable = |text: &[u8], max| {
            (1..=max).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
        };
        if !is_printable(session, 10) {
            return Err(SimulatorError::Session {
                session: self.session.clone(),
            });
        }
        if self.names.len() > usize::from(self.symbols) {
            return Err(SimulatorError::TooManyNames {
                names: self.names.len(),
                symbols: self.symbols,
            });
        }
        let mut seen = HashSet::new();
        for name in &self.names {
            if !is_printable(name.as_bytes(), 8) {
                return Err(SimulatorError::Name { name: name.clone() });
            }
            if !seen.insert(name) {
                return Err(SimulatorError::DuplicateName { name: name.clone() });
            }
        }
        Ok(())
    }

    /// Whether trading goes on until the simulator is dropped.
    #[must_use]
    pub const fn is_endless(&self) -> bool {
        self.messages == 0 && self.duration_ms == 0
    }

    /// Returns the name of every symbol, those given first.
    #[must_use]
    pub fn symbol_names(&self) -> Vec<String> {
        let names = self.all_names().into_iter();
        let unpadded = |name: [u8; 8]| String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
        names.map(unpadded).collect()
    }

    /// The name of every symbol, padded with spaces, those given first.
    pub(super) fn all_names(&self) -> Vec<[u8; 8]> {
        let padded = |name: &[u8]| {
            let mut stock = [b' '; 8];
            stock[..name.len()].copy_from_slice(name);
            stock
        };
        let given: Vec<_> = self.names.iter().map(|n| padded(n.as_bytes())).collect();
        let taken: HashSet<_> = given.iter().copied().collect();
        let letter = |n: u32| b'A' + (n % 26) as u8;
        let made = (0..26_u32.pow(4))
            .map(|n| padded(&[n / 17_576, n / 676, n / 26, n].map(letter)))
            .filter(|name| !taken.contains(name));
        given
            .iter()
            .copied()
            .chain(made)
            .take(self.symbols.into())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(&mut SimulatorConfig)) -> String {
        let mut config = SimulatorConfig::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn simulator_defaults_pass_and_config_faults_are_named() {
        assert_eq!(SimulatorConfig::default().check(), Ok(()));
        assert!(fault(|c| c.arrivals.branching = 1.0).contains("arrivals.branching is 1"));
        assert!(fault(|c| c.arrivals.branching = f64::NAN).contains("arrivals.branching"));
        assert!(fault(|c| c.arrivals.base_per_s = 0.0).contains("arrivals.base_per_s"));
        assert!(fault(|c| c.arrivals.decay_per_s = -1.0).contains("arrivals.decay_per_s"));
        assert!(fault(|c| c.arrivals.skew = f64::INFINITY).contains("arrivals.skew"));
        assert!(fault(|c| c.symbols = 0).contains("symbols is 0"));
        assert!(fault(|c| c.mix.cancel = -1.0).contains("mix"));
        assert!(fault(|c| c.mix.execute = f64::NAN).contains("mix"));
        assert!(fault(|c| c.mix.add = 0.0).contains("mix.add"));
        assert!(fault(|c| c.depth = 1).contains("depth"));
        assert!(fault(|c| c.price_min_cents = 60_000).contains("price_min_cents"));
        assert!(fault(|c| c.attributed = 1.5).contains("attributed"));
        assert!(fault(|c| c.pauses_per_million = -1.0).contains("pauses_per_million"));
        assert!(fault(|c| c.payload_max = 100).contains("payload_max is 100"));
        assert!(fault(|c| c.begins_at_s = 90_000).contains("begins_at_s"));
        assert!(fault(|c| c.session = "ELEVENCHARS".into()).contains("ELEVENCHARS"));
        assert!(fault(|c| c.names = vec!["A B".into()]).contains("A B"));
        assert!(fault(|c| c.names = vec!["X".into(), "X".into()]).contains("twice"));
        assert!(fault(|c| c.names = vec!["X".into(); 101]).contains("101 names"));
    }

    #[test]
    fn simulator_config_limits_are_exact() {
        type Set = fn(&mut SimulatorConfig, f64);
        let limits: [(Set, &[f64], &[f64]); 15] = [
            (|c, n| c.symbols = n as u16, &[1.0, 65_535.0], &[0.0]),
            (|c, n| c.begins_at_s = n as u32, &[85_999.0], &[86_000.0]),
            (
                |c, n| c.arrivals.base_per_s = n,
                &[1e9, 1e-9],
                &[0.0, 1.1e9],
            ),
            (|c, n| c.arrivals.decay_per_s = n, &[1e9], &[0.0, 1.1e9]),
            (|c, n| c.arrivals.branching = n, &[0.0, 0.9], &[-0.1, 1.0]),
            (|c, n| c.arrivals.skew = n, &[0.0, 4.0], &[-0.1, 4.1]),
            (|c, n| c.mix.cancel = n, &[0.0, 9.0], &[-0.1, f64::INFINITY]),
            (|c, n| c.mix.hidden = n, &[0.0], &[-0.1, f64::INFINITY]),
            (|c, n| c.mix.add = n, &[0.1], &[0.0, f64::INFINITY]),
            (|c, n| c.mix.delete = n, &[0.1], &[0.0, f64::INFINITY]),
            (|c, n| c.depth = n as u32, &[2.0, 1e5], &[1.0, 100_001.0]),
            (|c, n| c.price_min_cents = n as u32, &[100.0], &[99.0]),
            (|c, n| c.price_max_cents = n as u32, &[1e7], &[10_000_001.0]),
            (|c, n| c.attributed = n, &[0.0, 1.0], &[-0.1, 1.1]),
            (
                |c, n| c.payload_max = n as u16,
                &[128.0, 65_507.0],
                &[127.0, 65_508.0],
            ),
        ];
        for (index, (set, accepted, refused)) in limits.into_iter().enumerate() {
            let check = |value: f64| {
                let mut config = SimulatorConfig::default();
                config.names.clear();
                set(&mut config, value);
                config.check()
            };
            for value in accepted {
                assert_eq!(check(*value), Ok(()), "{index}");
            }
            for value in refused {
                assert!(check(*value).is_err(), "{index}: {value}");
            }
        }
        let pauses = |n: f64| fault(|c| c.pauses_per_million = n);
        assert!(pauses(1_000_001.0).contains("1000000"));
        let mut config = SimulatorConfig {
            symbols: 2,
            names: vec!["EIGHTBIG".into(), "X".into()],
            session: "TENLETTERS".into(),
            pauses_per_million: 1_000_000.0,
            ..SimulatorConfig::default()
        };
        assert_eq!(config.check(), Ok(()), "as many and as long as allowed");
        config.names.push("Y".into());
        assert!(config.check().is_err(), "a name too many");
        assert!(fault(|c| c.names = vec!["NINECHARS".into()]).contains("NINECHARS"));
        assert!(fault(|c| c.names = vec![String::new()]).contains("name"));
        assert!(fault(|c| c.session = String::new()).contains("session"));
    }

    #[test]
    fn market_without_messages_and_duration_is_endless() {
        for (messages, duration_ms, is_endless) in
            [(0, 0, true), (1, 0, false), (0, 1, false), (1, 1, false)]
        {
            let config = SimulatorConfig {
                messages,
                duration_ms,
                ..SimulatorConfig::default()
            };
            assert_eq!(config.is_endless(), is_endless);
        }
    }

    #[test]
    fn simulator_config_fills_defaults_and_refuses_unknown() {
        let config: SimulatorConfig =
            serde_json::from_str(r#"{"symbols": 3, "arrivals": {"branching": 0.5}}"#).unwrap();
        let arrivals = Arrivals {
            branching: 0.5,
            ..Arrivals::default()
        };
        assert_eq!((config.symbols, config.arrivals), (3, arrivals));
        let unknown = serde_json::from_str::<SimulatorConfig>(r#"{"arrivals": {"branchng": 1}}"#);
        assert!(unknown.unwrap_err().to_string().contains("branchng"));
    }

    #[test]
    fn simulator_symbol_names_are_unique() {
        let config = SimulatorConfig {
            symbols: u16::MAX,
            names: vec!["ZVZZT".into(), "AAAC".into()],
            ..SimulatorConfig::default()
        };
        let names = config.all_names();
        assert_eq!(
            names[..4],
            [*b"ZVZZT   ", *b"AAAC    ", *b"AAAA    ", *b"AAAB    "]
        );
        assert_eq!(
            names[4], *b"AAAD    ",
            "a name that was given is not made again"
        );
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), 65_535);
        assert_eq!(config.symbol_names()[..3], ["ZVZZT", "AAAC", "AAAA"]);
    }
}
