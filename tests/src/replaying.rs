//! Runs of the simulation whose cores are recorded, and run again from their records: they must give
//! the same outputs, to the byte, and come to the same state.

use tickcast_reliability::recorder::{
    RecordOrigin, RecordedCore, Recorder, Recording, Stopped, layout::RECORD_LEN_MIN, replay,
};

use crate::plan::Plan;
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
}

/// Enough for a run of any profile, as a rule, and for few of them.
const WHOLE_LEN: usize = 48 << 20;
const SHORT_LEN: usize = RECORD_LEN_MIN;

/// Records a core from now on, in so many bytes, with all its outputs in words.
pub(crate) fn record(core: &mut RecordedCore, len: usize) {
    let origin = RecordOrigin {
        name: "simulated".into(),
        ..RecordOrigin::default()
    };
    // A record of at least the least length can be kept.
    if let Ok(mut recorder) = Recorder::new(Box::new(vec![0; len]), &origin) {
        recorder.keep_log();
        core.record(recorder);
    }
}

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
    let (outcome, cores) = run_for_cores(plan);
    if let Some(violation) = outcome.violation {
        return Err(violation);
    }
    let mut seen = Seen::default();
    for (nth, core) in cores.into_iter().enumerate() {
        let of = |what: String| format!("core {nth} of {}: {what}", outcome.profile);
        replay_core(core, &mut seen).map_err(of)?;
    }
    Ok(seen)
}

/// Runs the record of a core, and compares it with the core.
///
/// # Errors
/// The first thing that was not the same.
pub fn replay_core(mut core: RecordedCore, seen: &mut Seen) -> Result<(), String> {
    let recorder = core.stop_recording().ok_or("it is not recorded")?;
    let (inputs, log) = (recorder.inputs(), recorder.outputs().log().to_owned());
    let digest = recorder.outputs().digest();
    if inputs == 0 {
        return Ok(());
    }
    let recording = Recording::read(recorder.into_bytes()).map_err(|e| e.to_string())?;
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
    let values = |core: &RecordedCore| {
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
