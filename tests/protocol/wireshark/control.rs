//! The fields of control messages, as our decoder reads them.

use serde_json::Value;
use tickcast_reliability::control::{
    Announced, BODY_LEN_MAX_TO_SUBSCRIBER, CURSOR_LEN, FRAME_HEAD_LEN, Grant, Message,
    MirrorRefused, Mirroring, Progress, Refused, RemoteAccess, Status,
};
use tickcast_reliability::types::{RecordNumber, SequenceRange};
use tickcast_subscriber::Stage;

use super::records::date;
use super::shown::Expected;
use super::tshark::sort_json;
use super::{datagram, names};

/// Returns what `tshark` must show of a stream of whole frames.
pub(super) fn expected(stream: &[u8]) -> Expected {
    let (mut expected, mut rest) = (Expected::default(), stream);
    let read = |bytes| Message::read(bytes, BODY_LEN_MAX_TO_SUBSCRIBER).expect("a message");
    // A recording may end within a frame, which is not shown.
    while let Some((channel, message, len)) = read(rest) {
        let (frame, behind) = rest.split_at(len);
        let (kind, messages) = (frame[4], names::messages());
        let name = &messages[&kind.into()];
        expected.text(
            "tickcast_control",
            format_args!("tickcast control message: {name}"),
        );
        expected.text("tickcast_control.length", len - FRAME_HEAD_LEN);
        expected.named("tickcast_control.type", kind.into(), kind, &messages);
        expected.bytes("tickcast_control.reserved", &frame[5..6]);
        expected.text("tickcast_control.channel", channel);
        show(&message, &frame[FRAME_HEAD_LEN..], &mut expected);
        rest = behind;
    }
    sort_json(&mut expected.fields);
    expected
}

fn show(message: &Message<'_>, body: &[u8], expected: &mut Expected) {
    let field = |name: &str| format!("tickcast_control.{name}");
    match message {
        Message::Join(join) => show_json(&serde_json::to_value(join), expected),
        Message::Welcome(welcome) => show_json(&serde_json::to_value(welcome), expected),
        Message::Rejected(rejected) => show_json(&serde_json::to_value(rejected), expected),
        Message::Nack {
            epoch,
            class,
            ranges,
        } => {
            expected.text(&field("epoch"), epoch);
            expected.named(
                &field("class"),
                *class as u64,
                *class as u8,
                &names::classes(),
            );
            expected.bytes(&field("reserved"), &body[9..10]);
            expected.text(&field("n"), ranges.len());
            expected.bytes(&field("reserved"), &body[12..16]);
            for range in ranges {
                let SequenceRange { first, last } = range;
                expected.text(&field("range"), range);
                expected.text(&field("first"), first);
                expected.text(&field("last"), last);
            }
            expected.bytes(&field("later_fields"), &body[16 + 16 * ranges.len()..]);
        }
        Message::Datagram(bytes) => expected.extend(datagram::expected(bytes, bytes.len())),
        Message::Refused(refused) => {
            let Refused {
                epoch,
                range,
                reason,
                retry_after_us,
                oldest,
                oldest_record,
            } = *refused;
            expected.text(&field("epoch"), epoch);
            expected.text(&field("first"), range.first);
            expected.text(&field("last"), range.last);
            expected.text(&field("oldest"), oldest);
            let unknown = (oldest_record == RecordNumber(0)).then_some("unknown");
            expected.maybe_noted(&field("oldest_record"), oldest_record, unknown);
            expected.text(&field("retry_after_us"), retry_after_us);
            expected.named(
                &field("reason"),
                reason as u64,
                reason as u8,
                &names::refusals(),
            );
            expected.bytes(&field("reserved"), &body[45..48]);
            expected.bytes(&field("later_fields"), &body[48..]);
        }
        Message::Progress(progress) => {
            let Progress {
                epoch,
                sequence,
                lost_records,
                heard,
                sent_at,
                read_bytes,
            } = *progress;
            expected.text(&field("epoch"), epoch);
            expected.text(&field("sequence"), sequence);
            expected.text(&field("lost_records"), lost_records);
            expected.text(&field("heard"), heard);
            expected.text(&field("sent_at"), sent_at);
            // A peer without READ omits this field, which reads as 0.
            if body.len() >= 48 {
                expected.text(&field("read_bytes"), read_bytes);
                expected.bytes(&field("later_fields"), &body[48..]);
            }
        }
        Message::Status(status) => {
            let Status {
                epoch,
                newest,
                oldest,
                next_record,
                echo,
                answered_at,
                ended,
            } = *status;
            expected.text(&field("epoch"), epoch);
            expected.text(&field("newest"), newest);
            expected.text(&field("oldest"), oldest);
            expected.text(&field("next_record"), next_record);
            expected.text(&field("echo"), echo);
            expected.noted(&field("answered_at"), answered_at, date(answered_at.0));
            expected.text(&field("status_flags"), format_args!("{:#04x}", body[48]));
            expected.flag(&field("status_flags.ended"), ended);
            expected.bytes(&field("reserved"), &body[49..56]);
            expected.bytes(&field("later_fields"), &body[56..]);
        }
        Message::Leave => expected.bytes(&field("later_fields"), body),
        Message::Grant(grant) => {
            let Grant {
                epoch,
                attempt,
                ring,
                tokens,
                cursor,
            } = *grant;
            expected.text(&field("epoch"), epoch);
            expected.text(&field("attempt"), attempt);
            expected.text(
                &field("ring_address"),
                format_args!("{:#018x}", ring.address),
            );
            expected.text(&field("ring_len"), ring.len);
            expected.text(&field("tokens"), tokens);
            expected.text(&field("ring_key"), format_args!("{:#010x}", ring.key));
            expected.bytes(&field("reserved"), &body[44..48]);
            // A publisher without cursors omits these fields.
            if body.len() >= 72 {
                let none = RemoteAccess {
                    address: 0,
                    len: 0,
                    key: 0,
                };
                let cursor = cursor.unwrap_or(none);
                assert!([0, CURSOR_LEN as u64].contains(&cursor.len), "{cursor:?}");
                expected.text(
                    &field("cursor_address"),
                    format_args!("{:#018x}", cursor.address),
                );
                expected.text(&field("cursor_len"), cursor.len);
                expected.text(&field("cursor_key"), format_args!("{:#010x}", cursor.key));
                expected.bytes(&field("reserved"), &body[68..72]);
                expected.bytes(&field("later_fields"), &body[72..]);
            }
        }
        Message::Mirror(mirroring) => {
            let Mirroring {
                epoch,
                attempt,
                inbox,
            } = *mirroring;
            expected.text(&field("epoch"), epoch);
            expected.text(&field("attempt"), attempt);
            expected.text(
                &field("inbox_address"),
                format_args!("{:#018x}", inbox.address),
            );
            expected.text(&field("inbox_len"), inbox.len);
            expected.text(&field("inbox_key"), format_args!("{:#010x}", inbox.key));
            expected.bytes(&field("reserved"), &body[36..40]);
            expected.bytes(&field("later_fields"), &body[40..]);
        }
        Message::Key(announced) => {
            let Announced { epoch, of } = announced;
            expected.text(&field("epoch"), *epoch);
            expected.text(&field("number"), of.number);
            expected.bytes(&field("key"), of.key.bytes());
            expected.bytes(&field("later_fields"), &body[48..]);
        }
        Message::Latency(report) => {
            let words = report.to_words();
            expected.text(&field("interval"), words[0]);
            let unknown = report.clock_limit.is_none().then_some("unknown");
            expected.maybe_noted(&field("clock_limit"), words[1], unknown);
            let numbers = ["samples", "p50", "p99", "p999", "max"];
            for (stage, words) in Stage::ALL.iter().zip(words[2..].as_chunks::<5>().0) {
                for (number, word) in numbers.iter().zip(words) {
                    expected.text(&field(&format!("{}_{number}", stage.name())), word);
                }
            }
            expected.bytes(&field("later_fields"), &body[216..]);
        }
        Message::MirrorRefused(refused) => {
            let MirrorRefused {
                epoch,
                attempt,
                reason,
            } = *refused;
            expected.text(&field("epoch"), epoch);
            expected.text(&field("attempt"), attempt);
            let names = names::mirror_refusals();
            expected.named(
                &field("mirror_refusal"),
                reason as u64,
                reason as u8,
                &names,
            );
            expected.bytes(&field("reserved"), &body[17..24]);
            expected.bytes(&field("later_fields"), &body[24..]);
        }
    }
}

/// Expects the path of each value of a JSON body.
fn show_json(value: &serde_json::Result<Value>, expected: &mut Expected) {
    let value = value.as_ref().expect("our types are JSON");
    show_value(value, "", expected);
}

fn show_value(value: &Value, path: &str, expected: &mut Expected) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                show_value(value, &format!("{path}/{name}"), expected);
            }
        }
        Value::Array(values) => {
            for value in values {
                show_value(value, &format!("{path}/[]"), expected);
            }
        }
        _ => {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned);
            let shown = format!("Path with value: {path}:{text}");
            expected.text("json.path_with_value", shown);
        }
    }
}

/// Returns the frames of a stream.
pub(super) fn frames_of(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut frames, mut rest) = (Vec::new(), stream);
    while let Ok(Some((_, _, len))) = Message::read(rest, BODY_LEN_MAX_TO_SUBSCRIBER) {
        let (frame, behind) = rest.split_at(len);
        frames.push(frame.to_vec());
        rest = behind;
    }
    assert!(rest.is_empty(), "the stream is whole frames");
    frames
}
