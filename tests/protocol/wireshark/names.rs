//! The names of numbers on the wire, found by showing every number to our decoder.

use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, ControlError, Message};
use tickcast_reliability::types::{Epoch, Nanos, Sequence, SourceId, SourcePosition};
use tickcast_reliability::wire::{Datagram, EpochReason, Heartbeat, SourceLossReason, StreamEvent};

use super::sealed::sealed;
use super::shown::{Names, words};

/// Numbers of 16 bits beyond the known ones.
const CODES: std::ops::Range<u16> = 0..300;

fn of_bytes(name: impl Fn(u8) -> Option<String>) -> Names {
    let each = (0..=u8::MAX).filter_map(|byte| Some((byte.into(), name(byte)?)));
    each.collect()
}

fn of_codes(name: impl Fn(u16) -> Option<String>) -> Names {
    let each = CODES.filter_map(|code| Some((code.into(), name(code)?)));
    each.collect()
}

/// Returns the names of datagram kinds.
pub(super) fn kinds() -> Names {
    of_bytes(|byte| {
        let mut bytes = sealed(0, &[]);
        bytes[3] = byte;
        let datagram = Datagram::parse(&bytes).ok()?;
        Some(words(&datagram.header().kind))
    })
}

/// Returns the names of publisher states.
pub(super) fn states() -> Names {
    of_bytes(|byte| {
        let mut body = [0; Heartbeat::LEN];
        body[12] = byte;
        Some(words(&Heartbeat::parse(&body)?.state))
    })
}

/// Returns an event of this type, reason and restart reason, if our decoder knows it.
fn event(of: [u16; 3]) -> Option<StreamEvent> {
    let mut body = of.map(u16::to_le_bytes).concat();
    body.resize(24, 0);
    StreamEvent::parse(&body)
}

/// Returns the names of event types.
pub(super) fn events() -> Names {
    let name = |event| match event {
        StreamEvent::SourceLost { .. } => "source lost".to_owned(),
        StreamEvent::EpochOpened { .. } => "epoch opened".to_owned(),
        StreamEvent::SourceSilent { .. } => "source silent".to_owned(),
        StreamEvent::SourceBack { .. } => "source back".to_owned(),
    };
    of_codes(|code| event([code, 1, 0]).map(name))
}

/// Returns the names of the reasons of a source loss.
pub(super) fn source_losses() -> Names {
    of_codes(|code| match event([1, code, 0])? {
        StreamEvent::SourceLost { reason, .. } => Some(words(&reason)),
        other => panic!("{other:?} is no source loss"),
    })
}

fn epoch_reason(reason: u16, restart: u16) -> Option<EpochReason> {
    match event([2, reason, restart])? {
        StreamEvent::EpochOpened { reason, .. } => Some(reason),
        other => panic!("{other:?} opens no epoch"),
    }
}

/// Returns the names of the reasons of an opened epoch.
pub(super) fn epoch_reasons() -> Names {
    of_codes(|code| Some(words(&epoch_reason(code, 0)?)))
}

/// Returns the names of the reasons of a restart that could not continue.
pub(super) fn restart_reasons() -> Names {
    let restart = EpochReason::Restart as u16;
    let mut names = of_codes(|code| {
        let reason = epoch_reason(restart, code)?;
        (reason != EpochReason::Restart).then(|| words(&reason))
    });
    names.insert(0, "not told".to_owned());
    names
}

/// Returns one event of each kind and reason.
pub(super) fn each_event() -> Vec<StreamEvent> {
    let (source, since) = (SourceId(0x0102), Nanos(1_700_000_000_123_456_789));
    let lost = |reason, messages, instruments| StreamEvent::SourceLost {
        source,
        reason,
        from: SourcePosition::new(0x0304, 0x0506_0708_090a),
        messages,
        instruments,
    };
    let silent = |since, instruments| StreamEvent::SourceSilent {
        source,
        since,
        instruments,
    };
    let back = |since, instruments| StreamEvent::SourceBack {
        source,
        since,
        instruments,
    };
    let mut events = vec![
        lost(SourceLossReason::Gap, 17, vec![]),
        lost(
            SourceLossReason::Overflow,
            u64::MAX,
            vec![7, 300_000, u32::MAX],
        ),
        lost(SourceLossReason::Malformed, 0, (0..128).collect()),
        silent(since, vec![1]),
        silent(since, vec![]),
        back(since, vec![1, 2]),
        back(Nanos::ZERO, vec![]),
    ];
    events.extend(EpochReason::ALL.map(|reason| StreamEvent::EpochOpened {
        reason,
        previous: Epoch(u64::from(reason as u16) - 1),
        previous_last: Sequence(10 * (u64::from(reason as u16) - 1)),
    }));
    events
}

/// Returns what `found` makes of our decoder's reading of a message with this body.
fn read<T>(kind: u8, body: &[u8], found: impl FnOnce(Result<Message<'_>, ControlError>) -> T) -> T {
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend([kind, 0, 0, 0]);
    frame.extend(body);
    let read = Message::read(&frame, BODY_LEN_MAX_TO_SUBSCRIBER);
    found(read.map(|whole| whole.expect("the frame is whole").1))
}

/// Returns the names of message types.
pub(super) fn messages() -> Names {
    of_bytes(|kind| {
        read(kind, &[], |message| match message {
            Ok(Message::Datagram(_)) => Some("DATAGRAM".to_owned()),
            Ok(Message::Leave) => Some("LEAVE".to_owned()),
            Ok(other) => panic!("{other:?} needs no body"),
            Err(ControlError::Body { message, .. }) => Some(message.to_owned()),
            Err(ControlError::Type { .. }) => None,
            Err(other) => panic!("{other}"),
        })
    })
}

/// Returns the names of a byte in the body of a message, as far as our decoder takes it.
fn in_body(kind: u8, len: usize, at: usize, name: fn(Message<'_>) -> String) -> Names {
    of_bytes(|byte| {
        let mut body = vec![0; len];
        body[at] = byte;
        read(kind, &body, |message| message.ok().map(name))
    })
}

/// Returns the names of the classes of a NACK.
pub(super) fn classes() -> Names {
    in_body(4, 16, 8, |message| match message {
        Message::Nack { class, .. } => words(&class),
        other => panic!("{other:?}"),
    })
}

/// Returns the names of the reasons of a refusal.
pub(super) fn refusals() -> Names {
    in_body(6, 48, 44, |message| match message {
        Message::Refused(refused) => words(&refused.reason),
        other => panic!("{other:?}"),
    })
}

/// Returns the names of the reasons for which nothing is written to a standby.
pub(super) fn mirror_refusals() -> Names {
    in_body(12, 24, 16, |message| match message {
        Message::MirrorRefused(refused) => words(&refused.reason),
        other => panic!("{other:?}"),
    })
}
