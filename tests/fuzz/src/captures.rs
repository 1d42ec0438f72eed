//! Any bytes as a capture file or a file of messages. Reading stays in bounds, every frame is returned or
//! counted, and the result does not depend on how the bytes are split.

use std::io::{Cursor, Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use tickcast_feeds::capture::account::Reason;
use tickcast_feeds::capture::binary_file::{BinaryFile, BinaryFileStats};
use tickcast_feeds::capture::{Capture, CaptureError, CaptureStats};

/// Asserts these invariants of pcap, pcapng and BinaryFILE, with and without gzip:
/// - Frames = datagrams + skipped ones.
/// - A datagram is never longer than its original length.
/// - After an error or the end no more comes.
/// - The account of an uncompressed file that is read to its end has all its bytes.
/// - A file gives the same result whole, in pieces or compressed.
pub fn captures(bytes: &[u8]) {
    // In a damaged gzip file, the chunk size of decompression decides how much comes before the error. It
    // also decides whether the error comes before the file's own end mark.
    let is_gzip = bytes.starts_with(&[0x1f, 0x8b, 8]);
    let is_compressed = is_gzip || is_zstd(bytes);
    for read in [capture, messages] {
        let whole = read(Box::new(Cursor::new(bytes.to_vec())), bytes.len());
        if !is_compressed && !whole.failed {
            assert_eq!(whole.account_bytes(), bytes.len() as u64, "every byte");
        }
        let in_pieces = read(Box::new(pieces(bytes)), bytes.len());
        if is_gzip && (whole.failed || in_pieces.failed) {
            let (some, more) = match whole.given.len() < in_pieces.given.len() {
                true => (&whole.given, &in_pieces.given),
                false => (&in_pieces.given, &whole.given),
            };
            assert!(more.starts_with(some), "as far as it goes");
        } else {
            assert_eq!(whole, in_pieces, "in pieces");
        }
        if !is_gzip && !bytes.is_empty() {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
            gzip.write_all(bytes).expect("memory takes everything");
            let gzip = gzip.finish().expect("memory takes everything");
            let len = gzip.len();
            assert_eq!(whole, read(Box::new(Cursor::new(gzip)), len), "compressed");
        }
    }
}

/// The contents of a file.
#[derive(Debug, PartialEq, Eq)]
struct Gave {
    /// Each datagram with its capture time and its original length.
    given: Vec<(u64, Vec<u8>, usize)>,
    capture: CaptureStats,
    messages: BinaryFileStats,
    failed: bool,
}

impl Gave {
    fn new() -> Self {
        Self {
            given: Vec::new(),
            capture: CaptureStats::default(),
            messages: BinaryFileStats::default(),
            failed: false,
        }
    }

    /// Returns the bytes that the account has.
    fn account_bytes(&self) -> u64 {
        let accounts = [self.capture.account, self.messages.account];
        accounts.iter().map(|account| account.total().bytes).sum()
    }

    /// Records an error, whose text must not be empty.
    fn failed(mut self, error: &CaptureError) -> Self {
        assert!(!error.to_string().is_empty());
        self.failed = true;
        self
    }
}

fn capture(reader: Box<dyn Read + Send>, len: usize) -> Gave {
    let mut gave = Gave::new();
    let mut capture = match Capture::from_reader("bytes", reader) {
        Ok(capture) => capture,
        Err(error) => return gave.failed(&error),
    };
    loop {
        match capture.next() {
            Ok(None) => break,
            Err(error) => {
                gave = gave.failed(&error);
                break;
            }
            Ok(Some(datagram)) => {
                assert!(datagram.payload.len() <= datagram.original_len);
                let payload = datagram.payload.to_vec();
                gave.given
                    .push((datagram.received_at.0, payload, datagram.original_len));
            }
        }
        let stats = capture.stats();
        assert_eq!(stats.frames, stats.account.total().frames);
    }
    assert!(matches!(capture.next(), Ok(None)), "there is no more");
    let stats = *capture.stats();
    assert_eq!(stats.frames, stats.account.total().frames);
    assert_eq!(stats.datagrams, gave.given.len() as u64);
    let snapped = gave
        .given
        .iter()
        .filter(|(_, payload, sent)| payload.len() < *sent);
    assert_eq!(stats.snapped, snapped.count() as u64);
    assert!(stats.truncated <= 1 && capture.position() <= len as u64);
    gave.capture = stats;
    gave
}

fn messages(reader: Box<dyn Read + Send>, len: usize) -> Gave {
    let mut gave = Gave::new();
    let mut file = match BinaryFile::from_reader("bytes", reader) {
        Ok(file) => file,
        Err(error) => return gave.failed(&error),
    };
    loop {
        match file.next() {
            Ok(None) => break,
            Err(error) => {
                gave = gave.failed(&error);
                break;
            }
            Ok(Some(message)) => gave.given.push((0, message.to_vec(), message.len())),
        }
    }
    assert!(matches!(file.next(), Ok(None)), "there is no more");
    let stats = *file.stats();
    assert_eq!(stats.messages, gave.given.len() as u64);
    assert!(stats.truncated <= 1 && file.position() <= len as u64);
    assert!(
        gave.failed || file.position() == len as u64,
        "every byte is read"
    );
    let account = stats.account.total();
    assert_eq!(account.frames, stats.account.of(Reason::Datagram).frames);
    gave.messages = stats;
    gave
}

/// Returns whether a zstd frame begins the file: one with data, or one to be skipped.
const fn is_zstd(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]
    )
}

/// Returns a reader that gives a few bytes at a time.
fn pieces(bytes: &[u8]) -> impl Read + Send + 'static {
    struct Pieces(Cursor<Vec<u8>>, usize);
    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.1 = self.1 % 61 + 7;
            let len = buffer.len().min(self.1);
            self.0.read(&mut buffer[..len])
        }
    }
    Pieces(Cursor::new(bytes.to_vec()), 0)
}
