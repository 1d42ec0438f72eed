//! Runs of the simulation with recorded cores, replayed from their records. A replay must produce
//! the same outputs, byte for byte, and end in the same state.

use tickcast_journal::explain::explain;
use tickcast_journal::layout::{FILE_HEAD_LEN, SEGMENTS};
use tickcast_journal::{
    EntryBody, Journal, JournalReadError, Journaled, JournaledPublisher, Stopped, replay,
    replay_publisher,
};
use tickcast_reliability::control::{Message, RefusalReason};
use tickcast_reliability::publish::PublisherCore;
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::Sequence;
use tickcast_reliability::wire::{Datagram, SEQUENCE_OFFSET};

use crate::actors::publisher::PublisherActor;
use crate::faults::plan::Plan;
use crate::feed::journal::SHORT_LEN;
use crate::world::run_for_cores;

/// Numbers of the records and inputs that were replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// Records replayed to their end.
    pub replayed: u64,
    /// Replayed records whose beginning had been overwritten.
    pub overwritten: u64,
    /// Records of standbys, which can be replayed up to the start of the mirror.
    pub standbys: u64,
    /// Records without a start: the snapshot did not fit, or the record is a standby's.
    pub unsnapped: u64,
    /// Inputs replayed.
    pub inputs: u64,
    /// Bytes of output logs compared.
    pub words: u64,
    /// Replays of publishers' records to their end, counted once for each segment they started
    /// from.
    pub republished: u64,
    /// Replays of publishers that did not start with the core.
    pub overwritten_publishers: u64,
    /// Sequences that repair services repaired or refused, according to their records and their
    /// counters.
    pub served: u64,
    /// Inputs of the publishers' replays.
    pub republished_inputs: u64,
}

/// Length in bytes of a record that usually holds a whole run of any profile.
const WHOLE_LEN: usize = 48 << 20;

/// Runs the seed with every core recorded, replays every record, and compares. For every third seed
/// the records are so short that long runs overwrite their beginning.
///
/// # Errors
/// A violation in the run, or the first difference in a replay.
pub fn replay_seed(seed: u64) -> Result<ReplayCounts, String> {
    let len = if seed.is_multiple_of(3) {
        SHORT_LEN
    } else {
        WHOLE_LEN
    };
    let plan = Plan {
        recorded: Some(len),
        ..Plan::of(seed, None, None)
    };
    let (outcome, cores, publishers) = run_for_cores(plan);
    if let Some(violation) = outcome.violation {
        return Err(violation);
    }
    let mut seen = ReplayCounts::default();
    for (nth, core) in cores.into_iter().enumerate() {
        let of = |what: String| format!("core {nth} of {}: {what}", outcome.profile);
        replay_core(core, &mut seen).map_err(of)?;
    }
    for (nth, mut publisher) in publishers.into_iter().enumerate() {
        let of = |what: String| format!("publisher {nth} of {}: {what}", outcome.profile);
        for feed in &mut publisher.feeds {
            republish(&mut feed.core, &mut seen).map_err(of)?;
        }
        serve_again(publisher, &mut seen).map_err(of)?;
    }
    Ok(seen)
}

/// Replays the record of a publisher's core from each of its segments, and compares the result with
/// the core.
///
/// # Errors
/// A record that can't be replayed, or the first difference.
pub fn republish(core: &mut JournaledPublisher, seen: &mut ReplayCounts) -> Result<(), String> {
    let journal = core.take_journal().ok_or("it has no journal")?;
    let inputs = journal.inputs();
    let mut bytes = journal.into_bytes();
    // Each round erases the oldest segment and replays the rest.
    loop {
        let recording = match Journal::read(bytes.clone()) {
            Ok(recording) => recording,
            Err(JournalReadError::Empty) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let replayed = replay_publisher(&recording);
        match replayed.stopped {
            None => {}
            Some(Stopped::NoSnapshot) => {
                seen.unsnapped += 1;
                return Ok(());
            }
            Some(stopped) => return Err(format!("{stopped:?}")),
        }
        if let Some(difference) = replayed.difference {
            return Err(format!("{difference:?} of {inputs} inputs"));
        }
        if replayed.first_input + replayed.inputs != inputs {
            let (first, run) = (replayed.first_input, replayed.inputs);
            return Err(format!("{run} from {first} on of {inputs} inputs were run"));
        }
        let again = replayed.core.ok_or("there is no core")?;
        same_publisher(core, &again, &recording)?;
        seen.republished += 1;
        seen.republished_inputs += replayed.inputs;
        seen.overwritten_publishers += u64::from(!recording.is_whole());
        let oldest = (0..SEGMENTS).map(|nth| segment_of(&bytes, nth));
        let oldest = oldest.filter(|(generation, _)| *generation > 0).min();
        let Some((_, at)) = oldest else {
            return Ok(());
        };
        bytes[at..at + 8].fill(0);
    }
}

/// Returns the generation of a segment, and its offset.
fn segment_of(bytes: &[u8], nth: usize) -> (u64, usize) {
    let word = |at: usize| {
        bytes[at..]
            .first_chunk()
            .copied()
            .map_or(0, u64::from_le_bytes)
    };
    let at = FILE_HEAD_LEN + nth * word(16) as usize;
    (word(at), at)
}

/// Checks that two cores have the same state and sealed the same datagrams. Published messages are
/// not recorded, so their count is ignored.
fn same_publisher(
    core: &PublisherCore,
    again: &PublisherCore,
    recording: &Journal,
) -> Result<(), String> {
    if format!("{core:?}") != format!("{again:?}") {
        return Err(format!("the cores differ:\n{core:?}\n{again:?}"));
    }
    let values = |core: &PublisherCore| {
        let mut values = Vec::new();
        core.counters().each(|name, _, value| {
            if name != "published_messages" {
                values.push((name, value));
            }
        });
        values
    };
    let (first, second) = (values(core), values(again));
    if let Some((one, other)) = first.iter().zip(&second).find(|(one, other)| one != other) {
        return Err(format!("{one:?} is {other:?} in the replay"));
    }
    let sealed = |core: &PublisherCore, sequence: Sequence| {
        let datagram = Datagram::parse(core.slot(sequence)?).ok()?;
        Some(*datagram.header())
    };
    for entry in recording.entries().filter_map(Result::ok) {
        let EntryBody::Sealed(_, header) = entry.what else {
            continue;
        };
        let at = header[SEQUENCE_OFFSET..].first_chunk().copied();
        let at = Sequence(at.map_or(0, u64::from_le_bytes));
        let (one, other) = (sealed(core, at), sealed(again, at));
        if one != other {
            return Err(format!("{at} is {one:?}, and {other:?} in the replay"));
        }
    }
    Ok(())
}

/// Explains the record of a repair service, and compares it with the counters.
///
/// # Errors
/// A damaged record, or counts that differ.
fn serve_again(publisher: PublisherActor, seen: &mut ReplayCounts) -> Result<(), String> {
    let mut repair = publisher.repair;
    let journal = repair.take_journal().ok_or("it has no journal")?;
    let recording = match Journal::read(journal.into_bytes()) {
        Ok(recording) => recording,
        // No peer connected.
        Err(JournalReadError::Empty) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !recording.is_whole() {
        return Ok(());
    }
    let explained = explain(std::slice::from_ref(&recording)).remove(0);
    if let Some(damaged) = explained.damaged {
        return Err(damaged);
    }
    let serving = explained.serving.unwrap_or_default();
    let refused = |reason| serving.refused.get(&reason).copied().unwrap_or(0);
    let reasons = [
        RefusalReason::Window,
        RefusalReason::Ahead,
        RefusalReason::Budget,
        RefusalReason::TooSlow,
    ];
    let [window, ahead, budget, too_slow] = reasons.map(refused);
    let reported = [serving.given, window, ahead, budget, too_slow];
    let mut counted = [0; 5];
    for feed in &publisher.feeds {
        let of = &feed.repair;
        let each = [
            of.answered.get(),
            of.refused_window.get(),
            of.refused_ahead.get(),
            of.refused_budget.get(),
            of.refused_too_slow.get(),
        ];
        counted
            .iter_mut()
            .zip(each)
            .for_each(|(sum, it)| *sum += it);
    }
    // The counters leave out what a request claims beyond the length of a ring.
    for entry in recording.entries().flatten() {
        if let EntryBody::Said(_, channel, Message::Refused(refused)) = entry.what
            && let Some(feed) = publisher.feeds.iter().find(|it| it.channel == channel)
        {
            let beyond = refused
                .range
                .len()
                .saturating_sub(feed.core.ring().geometry().slots());
            let at = reasons.iter().position(|it| *it == refused.reason);
            at.into_iter().for_each(|at| counted[1 + at] += beyond);
        }
    }
    if reported != counted {
        return Err(format!("its record says {reported:?} of {counted:?}"));
    }
    seen.served += reported.iter().sum::<u64>();
    Ok(())
}

/// Replays the record of a subscriber's core, and compares the result with the core.
///
/// # Errors
/// A record that can't be replayed, or the first difference.
pub fn replay_core(
    mut core: Journaled<SubscriberCore>,
    seen: &mut ReplayCounts,
) -> Result<(), String> {
    let journal = core.take_journal().ok_or("it has no journal")?;
    let (inputs, log) = (journal.inputs(), journal.outputs().log().to_owned());
    let digest = journal.outputs().digest();
    if inputs == 0 {
        return Ok(());
    }
    let recording = Journal::read(journal.into_bytes()).map_err(|e| e.to_string())?;
    let replayed = replay(
        &recording,
        true,
        &mut |_: tickcast_reliability::delivery::Item<'_>| (),
    );
    if let Some(difference) = replayed.difference {
        let again = replayed
            .core
            .and_then(|it| Some(it.outputs()?.log().to_owned()));
        return Err(format!(
            "{difference:?}\n{}",
            parting(&log, &again.unwrap_or_default())
        ));
    }

    match replayed.stopped {
        None => {}
        Some(Stopped::Unrecorded(_)) => {
            seen.standbys += 1;
            return Ok(());
        }
        Some(Stopped::NoSnapshot) => {
            seen.unsnapped += 1;
            return Ok(());
        }
        Some(stopped) => return Err(format!("{stopped:?}")),
    }
    let again = replayed.core.ok_or("there is no core")?;
    let outputs = again.outputs().ok_or("nothing came out")?;
    seen.replayed += 1;
    seen.overwritten += u64::from(!recording.is_whole());
    seen.inputs += replayed.inputs;
    seen.words += outputs.log().len() as u64;
    if replayed.first_input + replayed.inputs != inputs {
        return Err(format!("{} of {inputs} inputs were run", replayed.inputs));
    }
    if !log.ends_with(outputs.log()) || (recording.is_whole() && log != outputs.log()) {
        return Err(parting(&log, outputs.log()));
    }
    if outputs.digest() != digest {
        return Err("the outputs are the same and their digests are not".into());
    }
    if format!("{core:?}") != format!("{again:?}") {
        return Err(format!("the cores differ:\n{core:?}\n{again:?}"));
    }
    let values = |core: &Journaled<SubscriberCore>| {
        let mut values = Vec::new();
        for counters in core.counters() {
            counters.each(|name, _, value| values.push((name, value)));
        }
        values
    };
    let (first, second) = (values(&core), values(&again));
    match first.iter().zip(&second).find(|(one, other)| one != other) {
        Some((one, other)) => Err(format!("{one:?} is {other:?} in the replay")),
        None => Ok(()),
    }
}

/// Returns the first lines in which two logs differ.
fn parting(one: &str, other: &str) -> String {
    let lines = one.lines().zip(other.lines()).enumerate();
    let parted = lines.skip_while(|(_, (a, b))| a == b).take(3);
    let words = parted.map(|(nth, (a, b))| format!("line {nth}\n  then:  {a}\n  again: {b}\n"));
    words.collect()
}
