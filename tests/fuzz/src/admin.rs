//! Any bytes as a request to the admin port, in pieces as from a network.

use std::io::{self, Read};

use tickcast_publisher::internal::http::{Asked, Method};

use crate::bytes::Bytes;

/// Limit of a request's body. No honest request has a longer one.
const BODY_LEN_MAX: usize = 16 << 10;

/// Asserts these invariants of a request:
/// - It is understood, refused with a status that says why, or never complete.
/// - Pieces of any length give the same result.
/// - Only a `POST` to a path that takes a body yields a body, and its length is bounded.
pub fn admin(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let piece = 1 + usize::from(input.byte());
    let read = |piece| {
        let mut from = Pieces {
            bytes: input.0,
            piece,
        };
        let asked = Asked::read(&mut from, |path| path == "/hand-over");
        asked.map(|asked| (asked.status, asked.method, asked.path, asked.body))
    };
    let (whole, pieces) = (read(usize::MAX), read(piece));
    match (&whole, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        (Err(_), Err(_)) => {}
        _ => panic!("{whole:?} whole, {pieces:?} in pieces of {piece}"),
    }
    if let Ok((status, method, path, body)) = whole {
        assert!(body.len() <= BODY_LEN_MAX, "{}", body.len());
        assert!(body.is_empty() || method == Method::Post && path == "/hand-over");
        assert!(status == "200 OK" || path.is_empty() && body.is_empty());
    }
}

/// Returns some bytes at a time, then nothing for ever.
struct Pieces<'a> {
    bytes: &'a [u8],
    piece: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.piece.min(into.len()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(len);
        into[..len].copy_from_slice(now);
        self.bytes = later;
        Ok(len)
    }
}
