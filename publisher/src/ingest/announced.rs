//! The symbols that inputs announce and that are known before the run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tickcast_feeds::instruments::Instruments;
use tickcast_feeds::source::{Incident, Packet, Sink};
use tickcast_feeds::venues::Settings;
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::SourcePosition;
use tickcast_transport::host::files::is_pipe;

use super::{Packets, open_file};

use crate::config::{ChannelConfig, InputConfig};
use crate::error::PublisherError;
use crate::plan::routing::{Router, SymbolRule};

/// Maximum number of packets read from a file: venues announce their instruments before they trade.
const PACKETS_MAX: usize = 200_000;

/// Symbols that are known before the inputs run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownSymbols {
    /// The symbols.
    pub symbols: BTreeSet<String>,
    /// Whether the inputs announce no other symbols.
    pub is_complete: bool,
    /// Files that were not read, because reading a pipe waits for its writer and takes its bytes.
    pub pipes: Vec<PathBuf>,
}

impl KnownSymbols {
    /// Collects the symbols of all inputs, except those that read pipes.
    ///
    /// # Errors
    /// Returns [`PublisherError::Capture`] or [`PublisherError::Recording`] if a file can't be
    /// read.
    pub fn of(inputs: &[InputConfig]) -> Result<Self, PublisherError> {
        let mut known = Self {
            symbols: BTreeSet::new(),
            is_complete: true,
            pipes: Vec::new(),
        };
        for input in inputs {
            known.is_complete &= known.add(input)?;
        }
        Ok(known)
    }

    /// Returns the number of symbols that each pattern of the channels matches, one line each, and a line
    /// for each file that was not read.
    #[must_use]
    pub fn matches(&self, channels: &[ChannelConfig]) -> String {
        let (mut text, mut doubtful) = (String::new(), String::new());
        let count = self.symbols.len();
        for pipe in &self.pipes {
            text += &format!(
                "symbols: {} is a pipe, which is not examined\n",
                pipe.display()
            );
        }
        text += &match (self.symbols.is_empty(), self.is_complete) {
            (true, _) => return text + "symbols: no input announces any before it runs\n",
            (_, true) => format!("symbols: the inputs announce {count}\n"),
            (_, false) => format!("symbols: {count} are known before the inputs run\n"),
        };
        let rules = |channel: &ChannelConfig| -> Vec<SymbolRule> {
            let rules = channel.symbols.iter();
            rules
                .filter_map(|text| SymbolRule::parse(text).ok())
                .collect()
        };
        let all: Vec<SymbolRule> = channels.iter().flat_map(rules).collect();
        let is_named = |symbol: &&String| all.iter().any(|rule| rule.takes(symbol));
        for channel in channels {
            for (pattern, rule) in channel.symbols.iter().zip(rules(channel)) {
                let matched = match rule {
                    SymbolRule::Rest => count - self.symbols.iter().filter(is_named).count(),
                    rule => self.symbols.iter().filter(|it| rule.takes(it)).count(),
                };
                let name = &channel.name;
                text += &format!("  channel {name}: {pattern} matches {matched}\n");
                if matched == 0 && self.is_complete {
                    doubtful += &format!("warning: channel {name}: {pattern} matches no symbol\n");
                }
            }
        }
        text + &doubtful
    }

    /// Adds the symbols of an input, and returns whether these are all.
    fn add(&mut self, input: &InputConfig) -> Result<bool, PublisherError> {
        let input = match input {
            InputConfig::Simulator(input) => {
                self.symbols.extend(input.market.symbol_names());
                return Ok(true);
            }
            InputConfig::Capture(input) => input,
            _ => return Ok(false),
        };
        let pipes = input.files.iter().filter(|file| is_pipe(file)).cloned();
        let read = self.pipes.len();
        self.pipes.extend(pipes);
        if self.pipes.len() > read {
            return Ok(false);
        }
        let settings = Settings {
            instruments: Instruments::new(1, Instruments::DEFAULT_LIMIT),
            ..Settings::default()
        };
        let failed = |source| PublisherError::Capture {
            source_id: input.source.0,
            source,
        };
        let mut packets = open_file(input, settings)?;
        let mut sink = Announcements {
            router: Router::to(0),
            symbols: &mut self.symbols,
        };
        for _ in 0..PACKETS_MAX {
            match &mut packets {
                Packets::Capture(recording, decoder) => {
                    let Some(packet) = recording.next().map_err(failed)? else {
                        decoder.finish(&mut sink);
                        return Ok(true);
                    };
                    let line = packet.line;
                    let packet = Packet {
                        received_at: packet.received_at,
                        payload: packet.payload,
                    };
                    decoder.line_packet(line, packet.received_at, packet, &mut sink);
                }
                Packets::BinaryFile(file, decoder) => {
                    let number = file.stats().messages + 1;
                    let Some(message) = file.next().map_err(failed)? else {
                        return Ok(true);
                    };
                    let position = SourcePosition::new(0, number);
                    decoder.message(position, Default::default(), message, &mut sink);
                }
                // `open_file` opens no other.
                _ => return Ok(false),
            }
        }
        Ok(false)
    }
}

/// Collects the symbols that records announce.
struct Announcements<'a> {
    router: Router,
    symbols: &'a mut BTreeSet<String>,
}

impl Sink for Announcements<'_> {
    fn message(&mut self, _: SourcePosition, records: &RecordBatch) {
        let Self { router, symbols } = self;
        router.route(records.into(), |announced| {
            symbols.insert(announced.instrument.symbol);
        });
    }

    fn incident(&mut self, _: Incident) {}
}
