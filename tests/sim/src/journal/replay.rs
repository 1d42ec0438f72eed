//! Runs of the simulation whose cores are recorded, and run again from their records: they must give
//! the same outputs, to the byte, and come to the same state.

use tickcast_journal::explain::explain;
use tickcast_journal::layout::{FILE_HEAD_LEN, SEGMENTS};
use tickcast_journal::{
    EntryBody, Journal, JournalReadError, Journaled, JournaledPublisher, Stopped, replay,
    replay_publisher,
};
use tickcast_reliability::control::RefusalReason;
use tickcast_reliability::publish::PublisherCore;
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::Sequence;
use tickcast_reliability::wire::{Datagram, SEQUENCE_OFFSET};

use crate::actors::publisher::Publisher;
use crate::faults::plan::Plan;
use crate::feed::flight_record::SHORT_LEN;
use crate::world::run_for_cores;

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Records run to their end.
    pub replayed: u64,
    /// Of those, records whose beginning had been overwritten.
    pub overwritten: u64,
    /// Records of standbys, which can be run up to where the mirror begins.
    pub standbys: u64,
    /// Records that begin nowhere: the state did not fit what room they have, or it is a standby's.
    pub unsnapped: u64,
    /// Inputs run.
    pub inputs: u64,
    /// Bytes of outputs in words that were compared.
    pub words: u64,
    /// Records of publishers run to their end, each from every segment that it has.
    pub republished: u64,
    /// Of those, runs that did not begin with the core.
    pub overwritten_publishers: u64,
    /// Sequences that repair services gave or refused, as their records say and their counters.
    pub served: u64,
    /// Inputs of those runs.
    pub republished_inputs: u64,
}

/// Room for a run of any profile, as a rule.
const WHOLE_LEN: usize = 48 << 20;

/// Runs the seed with every subscriber recorded, then every record, and compares. Every third seed
/// has so little room that the beginning is overwritten, where the run is long.
///
/// # Errors
/// The first thing that was not the same.
pub fn replay_seed(seed: u64) -> Result<Seen, String> {
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
    let mut seen = Seen::default();
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

/// Runs the record of a publisher's core from each of its segments, and compares it with the core.
///
/// # Errors
/// The first thing that was not the same.
pub fn republish(core: &mut JournaledPublisher, seen: &mut Seen) -> Result<(), String> {
    let recorder = core.stop_recording().ok_or("it is not recorded")?;
    let inputs = recorder.inputs();
    let mut bytes = recorder.into_bytes();
    // What is left of a record when its first segments are overwritten, one more each time.
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

/// The generation of a segment, and where it stands.
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

/// Whether two cores stand alike, and have sealed alike; published messages are not recorded.
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

/// Explains the record of a repair service, and holds it against what was counted.
///
/// # Errors
/// What differs.
fn serve_again(publisher: Publisher, seen: &mut Seen) -> Result<(), String> {
    let mut repair = publisher.repair;
    let recorder = repair.stop_recording().ok_or("it is not recorded")?;
    let recording = match Journal::read(recorder.into_bytes()) {
        Ok(recording) => recording,
        // Nobody came.
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
    let told = [
        serving.given,
        refused(RefusalReason::Window),
        refused(RefusalReason::Ahead),
        refused(RefusalReason::Budget),
        refused(RefusalReason::TooSlow),
    ];
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
    if told != counted {
        return Err(format!("its record says {told:?} of {counted:?}"));
    }
    seen.served += told.iter().sum::<u64>();
    Ok(())
}

/// Runs the record of a core, and compares it with the core.
///
/// # Errors
/// The first thing that was not the same.
pub fn replay_core(mut core: Journaled<SubscriberCore>, seen: &mut Seen) -> Result<(), String> {
    let recorder = core.stop_recording().ok_or("it is not recorded")?;
    let (inputs, log) = (recorder.inputs(), recorder.outputs().log().to_owned());
    let digest = recorder.outputs().digest();
    if inputs == 0 {
        return Ok(());
    }
    let recording = Journal::read(recorder.into_bytes()).map_err(|e| e.to_string())?;
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

/// Where two logs part.
fn parting(one: &str, other: &str) -> String {
    let lines = one.lines().zip(other.lines()).enumerate();
    let parted = lines.skip_while(|(_, (a, b))| a == b).take(3);
    let words = parted.map(|(nth, (a, b))| format!("line {nth}\n  then:  {a}\n  again: {b}\n"));
    words.collect()
}
