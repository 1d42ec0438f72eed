//! Any bytes as a stream of control frames. The messages do not depend on how the stream is cut, and each
//! is written as it was read (docs/PROTOCOL.md §6).

use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_SUBSCRIBER, ControlError, FRAME_HEAD_LEN, Message,
};
use tickcast_reliability::types::ChannelId;

/// Limit of a body in this target, below the length of an input.
const BODY_LEN_MAX: usize = 1 << 11;

/// Asserts these invariants of a stream:
/// - It gives the same messages and the same final error, whole or in pieces.
/// - A frame is read only when it is whole, and never beyond its length.
/// - No limit is exceeded.
/// - A message encodes to a frame that reads as the same message and encodes to the same bytes.
pub fn control(bytes: &[u8]) {
    let Some((&cut, stream)) = bytes.split_first() else {
        return;
    };
    let (whole, error) = messages(stream, stream.len().max(1));
    let (in_pieces, error_in_pieces) = messages(stream, usize::from(cut) + 1);
    assert_eq!(whole, in_pieces, "in pieces of {}", usize::from(cut) + 1);
    assert_eq!(error, error_in_pieces);
    if let Some(ControlError::TooLong { len, max }) = error {
        assert!(len > max);
    }
}

/// Returns the messages of a stream that arrives `piece` bytes at a time, encoded again as frames.
fn messages(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<ControlError>) {
    let (mut waiting, mut found) = (Vec::new(), Vec::new());
    for piece in stream.chunks(piece) {
        waiting.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match Message::read(&waiting[at..], BODY_LEN_MAX) {
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
                Ok(Some((channel, message, taken))) => {
                    found.push(checked(channel, &message, &waiting[at..at + taken]));
                    at += taken;
                }
            }
        }
        waiting.drain(..at);
    }
    (found, None)
}

/// Returns the message as a frame, after checking that it equals the one it was read from.
fn checked(channel: ChannelId, message: &Message<'_>, frame: &[u8]) -> Vec<u8> {
    let announced = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
    assert_eq!(frame.len(), FRAME_HEAD_LEN + announced);
    assert!(announced <= BODY_LEN_MAX, "{announced} bytes");
    for cut in [0, FRAME_HEAD_LEN - 1, FRAME_HEAD_LEN, frame.len() - 1] {
        let early = Message::read(&frame[..cut.min(frame.len() - 1)], frame.len());
        assert_eq!(early, Ok(None), "{cut} bytes of {}", frame.len());
    }
    let mut written = Vec::new();
    message.write(channel, &mut written);
    let read = Message::read(&written, BODY_LEN_MAX_TO_SUBSCRIBER);
    let read = read.expect("what was written can be read");
    let (channel_read, message_read, taken) = read.expect("it is whole");
    assert_eq!((channel_read, taken), (channel, written.len()));
    assert_eq!(&message_read, message);
    let mut again = Vec::new();
    message_read.write(channel, &mut again);
    assert_eq!(again, written);
    written
}
