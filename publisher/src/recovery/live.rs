//! Live sources that a continued epoch continues: their last sealed messages are in the rings, and
//! their sessions and instruments in [`SourcesFile`], which the rings complete.

use thiserror::Error;
use tickcast_feeds::instruments::{Instruments, Symbol};
use tickcast_feeds::source::ResumePoint;
use tickcast_feeds::venues::Format;
use tickcast_reliability::control::Instrument;
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::types::{SourceId, SourcePosition};
use tickcast_reliability::wire::{Kind, SourceLossReason, StreamEvent};

use crate::config::{Config, InputConfig, UdpInputConfig};
use crate::ingest::{INSTRUMENTS_PER_INPUT, instrument_base};
use crate::plan::routing::instrument_named;
use crate::recovery::sources_file::{NotKept, SourcesFile};
use crate::state::positions::{Positions, position_of};
use crate::state::source_memory::SourceFacts;

/// A live source that continues.
#[derive(Debug)]
pub(crate) struct ResumedSource {
    /// Place of the input in the config.
    pub(crate) input: usize,
    /// The format of its packets.
    pub(crate) format: Format,
    /// The point from which its decoder continues.
    pub(crate) at: ResumePoint,
    /// Its last position on any channel, or for none.
    pub(crate) last: SourcePosition,
    /// The position on each channel up to which no message is open.
    pub(crate) settled: Vec<SourcePosition>,
    /// Its session and instruments.
    pub(crate) facts: SourceFacts,
}

/// The reason why a live source can't continue.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotResumed {
    #[error("its messages since the stop have no numbers")]
    Records,
    #[error("{0}")]
    NotKept(#[from] NotKept),
    #[error("the ring of channel {0} has overwritten what its state lacks")]
    Overwritten(String),
    #[error("its state is of session {kept}, but its last message of session {sealed}")]
    Session { kept: u16, sealed: u16 },
    #[error("its state is of {0}, another format than configured")]
    Format(Format),
    #[error("no instrument ids are left for it in this epoch")]
    Ids,
}

/// Returns the live sources of a config that continue with these rings. A source of which nothing
/// was sealed begins as at a first start.
///
/// # Errors
/// Returns the first source that can't continue, and the reason.
pub(crate) fn resumed(
    config: &Config,
    rings: &[RingWriter],
) -> Result<Vec<ResumedSource>, (SourceId, NotResumed)> {
    let positions: Vec<Positions> = rings.iter().map(|ring| ring.reader().positions()).collect();
    let mut file = None;
    let mut all = Vec::new();
    for (input, of_input) in config.inputs.iter().enumerate() {
        let InputConfig::Udp(udp) = of_input else {
            continue;
        };
        let source = udp.source;
        let channels = 0..rings.len();
        let sealed: Vec<_> = channels
            .map(|at| position_of(&positions, at, source))
            .collect();
        if sealed.iter().all(Option::is_none) {
            continue;
        }
        let file = file.get_or_insert_with(|| {
            let directory = config.state_dir.as_deref().ok_or(NotKept::Missing)?;
            let path = SourcesFile::path(directory, &config.name);
            let epoch = rings.first().map(|ring| ring.identity().epoch);
            SourcesFile::read(&path, epoch.unwrap_or_default())
        });
        let resumed = match file {
            Ok(file) => resumed_source(input, udp, &sealed, file, config, rings),
            Err(why) => Err(why.clone().into()),
        };
        all.push(resumed.map_err(|why| (source, why))?);
    }
    Ok(all)
}

fn resumed_source(
    input: usize,
    udp: &UdpInputConfig,
    sealed: &[Option<SourcePosition>],
    file: &SourcesFile,
    config: &Config,
    rings: &[RingWriter],
) -> Result<ResumedSource, NotResumed> {
    let source = udp.source;
    let mut facts = file.facts(source)?;
    for (ring, channel) in rings.iter().zip(&config.channels) {
        let complete_to = file.complete_to(ring.identity().channel.0);
        if ring.oldest() > complete_to.next() {
            return Err(NotResumed::Overwritten(channel.name.clone()));
        }
    }
    complete(&mut facts, source, file, rings);
    let (format, session) = facts.session.ok_or(NotKept::Session)?;
    if udp.format.of_packets().is_some_and(|it| it != format) {
        return Err(NotResumed::Format(format));
    }
    if facts.is_full {
        return Err(NotKept::Names.into());
    }
    let settled = sealed.iter().map(|sealed| sealed.unwrap_or_default());
    let settled: Vec<_> = settled.map(|sealed| sealed.max(facts.settled)).collect();
    let last = settled.iter().copied().max().unwrap_or_default();
    if session.ordinal != last.ordinal() {
        let (kept, sealed) = (session.ordinal, last.ordinal());
        return Err(NotResumed::Session { kept, sealed });
    }
    let symbol = |id, text: &str| Symbol::from_text(text).map(|symbol| (id, symbol));
    let instruments = facts.instruments();
    let instruments = instruments.filter_map(|it| symbol(it.id, &it.symbol));
    let next_id = next_id(input, &facts).ok_or(NotResumed::Ids)?;
    let at = ResumePoint {
        session: Some(session.id),
        next: last.plus(1),
        end_at: session.end_at,
        sent_at: facts.sent_at,
        instruments: instruments.collect(),
        next_id,
    };
    // The next publisher finds the loss of this start in the rings, and the ids that it skips here.
    (facts.settled, facts.next_id, facts.unnamed) = (last, next_id, 0);
    Ok(ResumedSource {
        input,
        format,
        at,
        last,
        settled,
        facts,
    })
}

/// Returns the lowest id that no subscriber can know: each message lost in the queue may have named
/// an instrument whose later messages were published.
fn next_id(input: usize, facts: &SourceFacts) -> Option<u32> {
    let first = instrument_base(input);
    let limit = Instruments::DEFAULT_LIMIT as u32;
    let range = first..first.checked_add(INSTRUMENTS_PER_INPUT)?;
    let named = facts.instruments().map(|it| it.id);
    let last = named.filter(|id| range.contains(id)).max();
    let unnamed = u32::try_from(facts.unnamed).unwrap_or(u32::MAX).min(limit);
    let next = last.map_or(first, |id| id + 1).max(facts.next_id);
    let next = next.checked_add(unnamed)?;
    (next.checked_add(limit)? <= range.end).then_some(next)
}

/// Adds what the rings say of a source behind the file, in the order of its messages.
fn complete(facts: &mut SourceFacts, source: SourceId, file: &SourcesFile, rings: &[RingWriter]) {
    let mut found: Vec<(SourcePosition, Found)> = Vec::new();
    for ring in rings {
        let complete_to = file.complete_to(ring.identity().channel.0);
        ring.reader().each_held_after(complete_to, |datagram| {
            let header = datagram.header();
            match header.kind {
                Kind::Data if header.source == source => {
                    let records = datagram.records().into_iter().flatten();
                    let named = records.filter_map(instrument_named).map(Found::Named);
                    found.extend(named.map(|named| (header.source_position, named)));
                }
                Kind::Event => {
                    if let Some(StreamEvent::SourceLost {
                        source: of,
                        reason: SourceLossReason::Overflow,
                        from,
                        messages,
                        ..
                    }) = StreamEvent::parse(datagram.payload())
                        && of == source
                    {
                        found.push((from, Found::Lost(messages)));
                    }
                }
                _ => {}
            }
        });
    }
    found.sort_by_key(|(at, _)| *at);
    for (at, found) in found {
        match found {
            Found::Named(instrument) => facts.name(&instrument),
            Found::Lost(messages) => facts.lose(at, messages),
        }
    }
}

/// A fact in a ring.
enum Found {
    Named(Instrument),
    /// Messages from the position on were lost in the queue.
    Lost(u64),
}
