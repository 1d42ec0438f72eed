//! The fields of a datagram, as our decoder reads them.

use tickcast_reliability::record::{AlignedCopy, RecordError, Records};
use tickcast_reliability::types::{Epoch, Nanos, Sequence, SourceId};
use tickcast_reliability::wire::authentication::TAG_LEN;
use tickcast_reliability::wire::{
    CrcVerdict, Datagram, HEADER_LEN, Header, Heartbeat, Kind, MAGIC, StreamEvent, WIRE_VERSION,
    WireError, datagram_flags, relay_flags,
};

use super::names;
use super::records::{self, date};
use super::shown::{Expected, words};

/// Returns what `tshark` must show of a datagram of which the first bytes were captured.
pub(super) fn expected(bytes: &[u8], captured: usize) -> Expected {
    let mut expected = Expected::default();
    let mut aligned = AlignedCopy::default();
    let datagram = match Datagram::parse(aligned.of(bytes)) {
        Ok(datagram) => datagram,
        Err(error) => {
            expected.any_text("tickcast");
            if bytes.len() >= 2 {
                expected.text("tickcast.magic", format_args!("{:#06x}", u16_at(bytes, 0)));
            }
            expected.then.push(expert_of(&error).to_owned());
            return expected;
        }
    };
    expected.text(
        "tickcast",
        format_args!("tickcast datagram: {}", summary(&datagram)),
    );
    let cut = datagram.bytes().len() > captured;
    show_header(&datagram, cut, &mut expected);
    if cut {
        expected.any_text("tickcast.cut");
        return expected;
    }
    let extensions = &datagram.bytes()[HEADER_LEN..datagram.header().header_len.into()];
    let is_tagged = datagram.header().flags & datagram_flags::TAGGED != 0;
    let extensions = match extensions.split_first_chunk::<TAG_LEN>() {
        Some((tag, behind)) if is_tagged => {
            expected.bytes("tickcast.tag", tag);
            behind
        }
        _ => extensions,
    };
    expected.bytes("tickcast.extensions", extensions);
    match datagram.header().kind {
        Kind::Data => show_records(&datagram, &mut expected),
        Kind::Event => show_event(datagram.payload(), &mut expected),
        Kind::Heartbeat => show_heartbeat(datagram.payload(), &mut expected),
        Kind::End => expected.bytes("tickcast.later_fields", datagram.payload()),
    }
    if expected.then.is_empty() {
        expected.bytes("tickcast.padding", &bytes[datagram.bytes().len()..captured]);
    }
    expected
}

/// Returns the note of the dissector on bytes that are no datagram.
fn expert_of(error: &WireError) -> &'static str {
    match error {
        WireError::Short { .. } => "tickcast.short",
        WireError::Magic { .. } => "tickcast.bad_magic",
        WireError::Version { .. } => "tickcast.bad_version",
        WireError::Kind { .. } => "tickcast.bad_kind",
        WireError::Length { .. } => "tickcast.bad_length",
        WireError::Zero { .. } => "tickcast.zero",
        other => panic!("the dissector has no note for {other:?}"),
    }
}

fn summary(datagram: &Datagram<'_>) -> String {
    let header = datagram.header();
    let kind = words(&header.kind);
    let place = format!(
        "channel {} epoch {} sequence {}",
        header.channel, header.epoch, header.sequence
    );
    let mut summary = format!("{kind} {place}");
    if header.kind == Kind::Data {
        summary += &format!(" count {}", header.count);
    }
    if header.relay & relay_flags::RETRANSMITTED != 0 {
        summary += " retransmitted";
    }
    if datagram.verdict() == CrcVerdict::Bad {
        summary += " CRC wrong";
    }
    summary
}

fn show_header(datagram: &Datagram<'_>, cut: bool, expected: &mut Expected) {
    // Exhaustive: a field that is missing here does not compile.
    let Header {
        kind,
        channel,
        count,
        epoch,
        sequence,
        first_record,
        source_position,
        sent_at,
        retained,
        source,
        payload_len,
        flags,
        header_len,
        relay,
    } = *datagram.header();
    expected.text("tickcast.magic", format_args!("{MAGIC:#06x}"));
    expected.text("tickcast.version", WIRE_VERSION);
    expected.named("tickcast.kind", kind as u64, kind as u8, &names::kinds());
    expected.text("tickcast.channel", channel);
    expected.text("tickcast.count", count);
    expected.text("tickcast.epoch", epoch);
    expected.text("tickcast.sequence", sequence);
    expected.text("tickcast.first_record", first_record);
    expected.noted(
        "tickcast.source_position",
        source_position.0,
        source_position,
    );
    expected.noted("tickcast.sent_at", sent_at, date(sent_at.0));
    expected.text("tickcast.retained", retained);
    expected.text("tickcast.source", source);
    expected.text("tickcast.payload_len", payload_len);
    expected.text("tickcast.flags", format_args!("{flags:#06x}"));
    expected.flag(
        "tickcast.flags.snapshot",
        flags & datagram_flags::SNAPSHOT != 0,
    );
    expected.flag(
        "tickcast.flags.last_of_burst",
        flags & datagram_flags::LAST_OF_BURST != 0,
    );
    expected.flag("tickcast.flags.tagged", flags & datagram_flags::TAGGED != 0);
    expected.noted(
        "tickcast.header_len",
        header_len / 8,
        format_args!("{header_len} bytes"),
    );
    expected.text("tickcast.relay", format_args!("{relay:#04x}"));
    expected.flag(
        "tickcast.relay.retransmitted",
        relay & relay_flags::RETRANSMITTED != 0,
    );
    expected.text("tickcast.relay.hops", relay & relay_flags::HOPS);
    let crc = format!("{:#010x}", datagram.crc());
    match datagram.verdict() {
        _ if cut => expected.noted("tickcast.crc", crc, "not checked"),
        CrcVerdict::Good => expected.noted("tickcast.crc", crc, "right"),
        CrcVerdict::Bad | CrcVerdict::Unauthenticated => {
            expected.noted("tickcast.crc", crc, "wrong");
            expected.any_text("tickcast.bad_crc");
        }
    }
    if let Some(oldest) = datagram.header().oldest() {
        expected.text("tickcast.oldest", oldest);
    }
}

fn show_records(datagram: &Datagram<'_>, expected: &mut Expected) {
    let (payload, first) = (datagram.payload(), datagram.header().first_record);
    let error = datagram.records().err();
    // The records before an error are shown.
    let (whole, count) = match error {
        None => (payload, datagram.header().count.into()),
        Some(RecordError::Count { found, .. }) => (payload, found),
        Some(
            RecordError::Truncated { index, offset, .. }
            | RecordError::Unknown { index, offset, .. },
        ) => (&payload[..offset], index),
        Some(error) => panic!("{error}"),
    };
    let records = Records::check(whole, count).expect("these are whole");
    for (number, record) in records.enumerate() {
        let number = first.0.wrapping_add(number as u64);
        let rtype = record.header().rtype;
        let name = &records::types()[&rtype.into()];
        expected.text("tickcast.record", format_args!("record {number}: {name}"));
        expected.text("tickcast.record.number", number);
        records::expect(record, expected);
    }
    if error.is_some() {
        expected.bytes("tickcast.payload", &payload[whole.len()..]);
        expected.then.push("tickcast.unreadable".to_owned());
    }
}

fn show_heartbeat(payload: &[u8], expected: &mut Expected) {
    let Some(heartbeat) = Heartbeat::parse(payload) else {
        expected.then.push("tickcast.bad_body".to_owned());
        return;
    };
    let Heartbeat {
        next_interval_us,
        hold_off_us,
        subscribers,
        state,
        config_hash,
    } = heartbeat;
    expected.text("tickcast.heartbeat.next_interval_us", next_interval_us);
    expected.text("tickcast.heartbeat.hold_off_us", hold_off_us);
    expected.text("tickcast.heartbeat.subscribers", subscribers);
    expected.named(
        "tickcast.heartbeat.state",
        state as u64,
        state as u8,
        &names::states(),
    );
    expected.bytes("tickcast.heartbeat.reserved", &payload[13..16]);
    expected.text(
        "tickcast.heartbeat.config_hash",
        format_args!("{:#018x}", config_hash.0),
    );
    expected.bytes("tickcast.later_fields", &payload[Heartbeat::LEN..]);
}

fn show_event(payload: &[u8], expected: &mut Expected) {
    let Some(event) = StreamEvent::parse(payload) else {
        expected.then.push("tickcast.bad_body".to_owned());
        return;
    };
    let [kind, second, third] = [0, 2, 4].map(|at| u16_at(payload, at));
    expected.named("tickcast.event.type", kind.into(), kind, &names::events());
    match event {
        StreamEvent::SourceLost {
            source,
            reason,
            from,
            messages,
            instruments,
        } => {
            let name = "tickcast.source_lost";
            let reason = reason as u16;
            let names = names::source_losses();
            expected.named(&format!("{name}.reason"), reason.into(), reason, &names);
            expected.text(&format!("{name}.source"), source);
            expected.text(&format!("{name}.n"), instruments.len());
            expected.noted(&format!("{name}.from"), from.0, from);
            let unknown = (messages == StreamEvent::MESSAGES_UNKNOWN).then_some("unknown");
            expected.maybe_noted(&format!("{name}.messages"), messages, unknown);
            show_instruments(name, &instruments, payload, expected);
        }
        StreamEvent::SourceSilent {
            source,
            since,
            instruments,
        } => {
            show_silence(
                "tickcast.source_silent",
                source,
                since,
                &instruments,
                payload,
                expected,
            );
        }
        StreamEvent::SourceBack {
            source,
            since,
            instruments,
        } => {
            show_silence(
                "tickcast.source_back",
                source,
                since,
                &instruments,
                payload,
                expected,
            );
        }
        StreamEvent::EpochOpened {
            reason: _,
            previous,
            previous_last,
        } => {
            let name = "tickcast.epoch_opened";
            let reasons = names::epoch_reasons();
            expected.named(&format!("{name}.reason"), second.into(), second, &reasons);
            let reasons = names::restart_reasons();
            expected.named(
                &format!("{name}.restart_reason"),
                third.into(),
                third,
                &reasons,
            );
            expected.bytes(&format!("{name}.reserved"), &payload[6..8]);
            let none = (previous == Epoch::NONE).then_some("none");
            expected.maybe_noted(&format!("{name}.previous"), previous, none);
            let unknown = (previous_last == Sequence::NONE).then_some("unknown");
            expected.maybe_noted(&format!("{name}.previous_last"), previous_last, unknown);
            expected.bytes("tickcast.event.padding", &payload[24..]);
        }
    }
}

fn show_silence(
    name: &str,
    source: SourceId,
    since: Nanos,
    instruments: &[u32],
    payload: &[u8],
    expected: &mut Expected,
) {
    // The reason is 0 and ignored.
    expected.text(&format!("{name}.reason"), u16_at(payload, 2));
    expected.text(&format!("{name}.source"), source);
    expected.text(&format!("{name}.n"), instruments.len());
    let date = match since {
        Nanos::ZERO => "unknown".to_owned(),
        since => date(since.0),
    };
    expected.noted(&format!("{name}.since"), since, date);
    expected.bytes(&format!("{name}.reserved"), &payload[16..24]);
    show_instruments(name, instruments, payload, expected);
}

fn show_instruments(name: &str, instruments: &[u32], payload: &[u8], expected: &mut Expected) {
    for instrument in instruments {
        expected.text(&format!("{name}.instrument"), instrument);
    }
    let behind = 24 + 4 * instruments.len();
    expected.bytes("tickcast.event.padding", &payload[behind..]);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
