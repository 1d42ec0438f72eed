//! The instruments that an event of a source concerns, by name.

use std::collections::BTreeMap;
use std::fmt;

use tickcast_subscriber::record::{InstrumentDefMsg, RecordRef, SymbolMappingMsg};
use tickcast_subscriber::{ChannelId, Event, StreamEvent};
use tickcast_tools::support::plain::{Plain, listed};

/// Instruments whose names are remembered.
const NAMES_MAX: usize = 1 << 16;
/// Instruments that one line names.
const SHOWN_MAX: usize = 5;

/// The names of instruments, as the records so far give them.
#[derive(Debug, Default)]
pub(super) struct Instruments(BTreeMap<(ChannelId, u32), String>);

/// The instruments of one event, as the end of its line.
pub(super) struct Concerned<'a> {
    names: &'a Instruments,
    channel: ChannelId,
    /// The ids; `None` if the event is of no source.
    ids: Option<&'a [u32]>,
}

impl Instruments {
    /// Takes the name that a record gives its instrument, if any.
    pub(super) fn learn(&mut self, channel: ChannelId, record: RecordRef<'_>) {
        let name = match record.get::<InstrumentDefMsg>() {
            Some(definition) => definition.raw_symbol().ok(),
            None => (record.get::<SymbolMappingMsg>()).and_then(|it| it.stype_in_symbol().ok()),
        };
        let key = (channel, record.header().instrument_id);
        let has_room = self.0.len() < NAMES_MAX || self.0.contains_key(&key);
        if let Some(name) = name.filter(|name| !name.is_empty() && has_room) {
            self.0.insert(key, name.to_owned());
        }
    }

    /// Returns the instruments that an event concerns.
    pub(super) const fn of<'a>(&'a self, channel: ChannelId, event: &'a Event) -> Concerned<'a> {
        Concerned {
            names: self,
            channel,
            ids: ids(event),
        }
    }
}

impl fmt::Display for Concerned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = match self.ids {
            None => return Ok(()),
            Some([]) => return f.write_str("; concerns all instruments of the source"),
            Some(ids) => ids,
        };
        let names = ids
            .iter()
            .map(|id| match self.names.0.get(&(self.channel, *id)) {
                Some(name) => Plain(name).to_string(),
                None => format!("instrument {id}"),
            });
        write!(f, "; concerns {}", listed(names, SHOWN_MAX))
    }
}

/// Returns the ids of the instruments that an event of a source concerns; none: all of the source.
const fn ids(event: &Event) -> Option<&[u32]> {
    match event {
        Event::Stream(
            StreamEvent::SourceLost { instruments, .. }
            | StreamEvent::SourceSilent { instruments, .. }
            | StreamEvent::SourceBack { instruments, .. },
        ) => Some(instruments.as_slice()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_char;

    use tickcast_reliability::record::{RType, RecordBatch, RecordHeader};
    use tickcast_subscriber::{Nanos, SourceId};

    use super::*;

    const CHANNEL: ChannelId = ChannelId(1);

    fn silent(instruments: Vec<u32>) -> Event {
        Event::Stream(StreamEvent::SourceSilent {
            source: SourceId(1),
            since: Nanos::ZERO,
            instruments,
        })
    }

    /// Takes a symbol mapping of an instrument.
    fn learn(names: &mut Instruments, id: u32, name: &str) {
        let mut mapping = SymbolMappingMsg {
            hd: RecordHeader::new::<SymbolMappingMsg>(RType::SymbolMapping as u8, 1, id, 0),
            ..SymbolMappingMsg::default()
        };
        for (to, from) in mapping.stype_in_symbol.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        let mut batch = RecordBatch::with_capacity(1);
        batch.put(&mapping);
        batch
            .records()
            .for_each(|record| names.learn(CHANNEL, record));
    }

    #[test]
    fn event_of_a_source_names_a_few_instruments() {
        let mut names = Instruments::default();
        for (id, name) in [(7, "ZVZZT"), (9, "OLD"), (9, "ZXZZT"), (8, "")] {
            learn(&mut names, id, name);
        }
        let said = |ids| names.of(CHANNEL, &silent(ids)).to_string();
        assert_eq!(said(vec![]), "; concerns all instruments of the source");
        assert_eq!(said(vec![9]), "; concerns ZXZZT");
        let five = "; concerns ZVZZT, instrument 8, ZXZZT, instrument 1, instrument 2";
        assert_eq!(said(vec![7, 8, 9, 1, 2]), five);
        let many = said((7..50).collect());
        assert!(
            many.ends_with("instrument 10, instrument 11 and 38 more"),
            "{many}"
        );
        let other = names.of(ChannelId(2), &silent(vec![7])).to_string();
        assert_eq!(other, "; concerns instrument 7", "names are of one channel");
        assert_eq!(names.of(CHANNEL, &Event::Live).to_string(), "");
    }
}
