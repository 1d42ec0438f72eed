//! The probe of a device: does it grant READ and cursors, and refuse what was not granted? A card, its
//! firmware or its driver may lack any of it, and a bind that fails ends a subscriber's connection.
//!
//! The device connects to itself and makes the same calls as a publisher and a subscriber. The result is
//! remembered for the process, so that a standby probes before it is promoted.

mod loopback;

use std::sync::{Arc, Mutex, PoisonError};

use tickcast_reliability::ring::RingMemory;
use tickcast_transport_base::host::mapping::SharedMapping;

use self::loopback::Loopback;
use crate::access::{AccessDefect, AccessProof, Observed};
use crate::audit::{self, AuditEvent};
use crate::device::Device;
use crate::error::VerbsError;
use crate::memory::cursor::{CURSOR_LEN, CURSOR_WORDS, CursorTable};
use crate::memory::window::ReadableMemory;

/// Length of one READ, and of the memory that is granted. As much memory lies behind it.
const PIECE: usize = 64;
const GRANTED: usize = 4096;
/// The byte in granted memory.
const BYTE: u8 = 0xA5;
/// The word that the probe claims a cursor with.
const CLAIM: u64 = 0x7469_636b;

/// The results of probing a port of a device.
struct Known {
    device: String,
    port: u8,
    proof: AccessProof,
    /// Length of the longest window that was bound.
    window_len: usize,
}

/// The devices that this process has probed.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Device {
    /// Returns the accesses to memory that the device grants and refuses as required. Probes it unless the
    /// process did so before. Blocks for milliseconds, and for seconds if the device does not answer.
    #[must_use]
    pub fn prove_access(self: &Arc<Self>) -> AccessProof {
        if let Some(proof) = known(self, |known| known.proof.clone()) {
            return proof;
        }
        // The audit trail is for accesses of peers, and the probe even exceeds its rights.
        let proof = audit::omitting(|| AccessProof::of(&probe_read(self), &probe_cursors(self)));
        let withheld = proof.read().and(proof.cursors()).err();
        let of = audit::Of {
            device: self.name(),
            why: withheld.map(|defect| defect as &dyn std::fmt::Display),
            ..audit::Of::default()
        };
        audit::write_entry(AuditEvent::AccessProbed, of);
        // A port that is down may be probed later; otherwise another probe would find the same.
        if proof.is_conclusive() || self.is_active() {
            remember(self, proof.clone());
        }
        proof
    }

    /// Checks that peers may be offered READ.
    ///
    /// # Errors
    /// [`VerbsError::NotProven`] with the reason if not.
    pub fn check_read(self: &Arc<Self>) -> Result<(), VerbsError> {
        self.judge(self.prove_access().read())
    }

    /// Returns an error for a defect of the device. A device that could not be probed, for example because
    /// its port is down or its host routes nothing to itself, passes with a warning.
    fn judge(&self, proven: Result<(), &AccessDefect>) -> Result<(), VerbsError> {
        let device = self.name();
        match proven {
            Ok(()) => Ok(()),
            Err(defect) if defect.is_conclusive() => Err(VerbsError::NotProven {
                device: device.to_owned(),
                defect: defect.clone(),
            }),
            Err(defect) => {
                tracing::warn!(
                    device,
                    "access to memory is offered by the limits that the device reports, because it can't be probed: {defect}"
                );
                Ok(())
            }
        }
    }

    /// Checks that peers may be offered cursors.
    ///
    /// # Errors
    /// - [`VerbsError::NoAtomics`] if the device has no atomic operations
    /// - [`VerbsError::NotProven`] with the reason otherwise
    pub fn check_cursors(self: &Arc<Self>) -> Result<(), VerbsError> {
        self.check_atomics()?;
        self.judge(self.prove_access().cursors())
    }
}

impl ReadableMemory {
    /// Checks that peers may READ this memory: the device passes its probe and binds a window of this length.
    ///
    /// # Errors
    /// [`VerbsError::NotProven`] with the reason if not.
    pub fn check_grant(self: &Arc<Self>) -> Result<(), VerbsError> {
        let device = self.bindable().device();
        device.check_read()?;
        if device.prove_access().read().is_err() {
            // It can't connect to itself.
            return Ok(());
        }
        if known(device, |known| known.window_len).is_some_and(|len| len >= self.len()) {
            return Ok(());
        }
        audit::omitting(|| bind_whole(device, self)).map_err(|why| VerbsError::NotBindable {
            device: device.name().to_owned(),
            len: self.len(),
            why,
        })?;
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter_mut().find(|known| known.is(device)) {
            known.window_len = known.window_len.max(self.len());
        }
        Ok(())
    }
}

impl Known {
    fn is(&self, device: &Device) -> bool {
        self.device == device.name() && self.port == device.port()
    }
}

fn known<T>(device: &Device, of: impl FnOnce(&Known) -> T) -> Option<T> {
    let all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|known| known.is(device)).map(of)
}

fn remember(device: &Device, proof: AccessProof) {
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|known| !known.is(device));
    all.push(Known {
        device: device.name().to_owned(),
        port: device.port(),
        proof,
        window_len: 0,
    });
}

/// Adds the result of a step. Returns whether the probe goes on, which it does not after a failure.
fn note(steps: &mut Vec<Observed>, observed: Observed) -> bool {
    let goes_on = matches!(observed, Observed::Done);
    steps.push(observed);
    goes_on
}

/// Adds the result of a step that returns something.
fn noted<T>(steps: &mut Vec<Observed>, result: Result<T, String>) -> Option<T> {
    match result {
        Ok(value) => {
            steps.push(Observed::Done);
            Some(value)
        }
        Err(why) => {
            steps.push(Observed::Failed(why));
            None
        }
    }
}

/// Takes the steps of READ, up to the first failure.
fn probe_read(device: &Arc<Device>) -> Vec<Observed> {
    let mut steps = Vec::new();
    // An error ends the probe, and is its last step.
    let _ = try_read(device, &mut steps);
    steps
}

fn try_read(device: &Arc<Device>, steps: &mut Vec<Observed>) -> Option<()> {
    let memory = noted(steps, readable(device))?;
    let mut loopback = noted(steps, Loopback::connect(device))?;
    let (grant, remote) = noted(steps, loopback.grant(&memory))?;
    let read = loopback.read(remote, 0, &[BYTE; PIECE]);
    note(steps, read).then_some(())?;
    noted(steps, loopback.revoke(grant))?;
    let revoked = loopback.read(remote, 0, &[BYTE; PIECE]);
    note(steps, revoked);

    // The device has ended that connection.
    let mut loopback = noted(steps, Loopback::connect(device))?;
    let (_, remote) = noted(steps, loopback.grant(&memory))?;
    let beyond = loopback.read(remote, GRANTED - PIECE / 2, &[BYTE; PIECE]);
    note(steps, beyond);
    Some(())
}

/// Registers memory with more mapped memory behind it.
fn readable(device: &Arc<Device>) -> Result<Arc<ReadableMemory>, String> {
    let mapping = SharedMapping::memfd("probed", 2 * GRANTED).map_err(|error| error.to_string())?;
    // SAFETY: within the mapping, which nobody else has yet. Exercised by
    // `verbs::probe::device_that_passes_its_probe_offers_all`.
    unsafe { mapping.as_ptr().write_bytes(BYTE, 2 * GRANTED) };
    let memory = ReadableMemory::register_part(device, Arc::new(mapping), 0..GRANTED);
    memory.map_err(|error| error.to_string())
}

/// Takes the steps of cursors, up to the first failure.
fn probe_cursors(device: &Arc<Device>) -> Vec<Observed> {
    let mut steps = Vec::new();
    // An error ends the probe, and is its last step.
    let _ = try_cursors(device, &mut steps);
    steps
}

fn try_cursors(device: &Arc<Device>, steps: &mut Vec<Observed>) -> Option<()> {
    let table = CursorTable::register(device, 2).map_err(|error| error.to_string());
    let entries = table.map(|table| table.lease().zip(table.lease()));
    let entries = entries.and_then(|both| both.ok_or_else(|| "it has no entries".into()));
    let (entry, next) = noted(steps, entries)?;
    let mut loopback = noted(steps, Loopback::connect(device))?;
    let remote = noted(steps, loopback.grant_cursor(&entry))?;
    let swapped = match loopback.swap(remote, 0, CLAIM) {
        Observed::Done if entry.load_all()[0] != CLAIM.to_le() => Observed::WrongBytes,
        swapped => swapped,
    };
    note(steps, swapped).then_some(())?;
    let words: [u64; CURSOR_WORDS] = std::array::from_fn(|at| CLAIM + at as u64);
    let written = match loopback.write(remote, words.map(u64::to_le_bytes).as_flattened()) {
        Observed::Done if entry.load_all() != words.map(u64::to_le) => Observed::WrongBytes,
        written => written,
    };
    note(steps, written).then_some(())?;
    let beyond = match loopback.swap(remote, CURSOR_LEN, CLAIM) {
        Observed::Refused if next.load_all() != [0; CURSOR_WORDS] => Observed::WrongBytes,
        beyond => beyond,
    };
    note(steps, beyond);
    Some(())
}

/// Binds a window to the whole memory, as for a subscriber.
fn bind_whole(device: &Arc<Device>, memory: &Arc<ReadableMemory>) -> Result<(), String> {
    let mut loopback = Loopback::connect(device)?;
    loopback.grant(memory).map(drop)
}
