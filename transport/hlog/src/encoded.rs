//! The histogram of a line, encoded in base64. It is decoded within bounds that its own head can't raise.

use std::io::{self, Read};

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError as Base64Error, Engine as _};
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{DeserializeError, Deserializer};
use thiserror::Error;

/// First bytes of a histogram of version 2, uncompressed.
const V2: [u8; 4] = 0x1c84_9313_u32.to_be_bytes();
/// First bytes of a compressed one. Its length follows, and then the other form.
const V2_COMPRESSED: [u8; 4] = 0x1c84_9314_u32.to_be_bytes();
/// Bytes before the counts of an uncompressed histogram.
const HEAD_LEN: usize = 40;
/// Significant digits of the finest histogram that is read. One of five digits may take 70 MB, whatever the
/// length of its line.
const DIGITS_MAX: u32 = 4;
/// Bytes of the longest histogram that is read, uncompressed: 65 times 16,384 counts of 9 bytes, and a head.
pub(crate) const HISTOGRAM_LEN_MAX: u64 = 10 << 20;
/// A count that no histogram has, and that the deserializer can't negate.
const COUNT_IMPOSSIBLE: [u8; 9] = [0xff; 9];

/// Reason that a histogram can't be decoded.
#[derive(Debug, Error)]
pub(crate) enum DecodeError {
    #[error("it is no base64 ({0})")]
    Base64(#[from] Base64Error),
    #[error("it can't be uncompressed ({0})")]
    Compression(#[from] io::Error),
    #[error("it is none of HdrHistogram's version 2")]
    Version,
    #[error("it has more than {HISTOGRAM_LEN_MAX} bytes")]
    Long,
    #[error("it is cut off")]
    Short,
    #[error("it has {0} significant digits, and at most {DIGITS_MAX} are read")]
    Digits(u32),
    #[error("one of its counts is impossible")]
    Count,
    #[error("{0}")]
    Contents(DeserializeError),
}

/// Decodes histograms. It takes memory by the bytes that a histogram has, never by those that it claims.
#[derive(Default)]
pub(crate) struct Decoder {
    deserializer: Deserializer,
    uncompressed: Vec<u8>,
}

impl Decoder {
    /// Returns the histogram of a line.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if it is damaged or beyond the bounds.
    pub(crate) fn decode(&mut self, coded: &str) -> Result<Histogram<u64>, DecodeError> {
        let bytes = STANDARD.decode(coded)?;
        let mut whole = match bytes.strip_prefix(&V2_COMPRESSED) {
            Some(rest) => {
                let compressed = rest.get(4..).ok_or(DecodeError::Short)?;
                uncompress(compressed, &mut self.uncompressed)?;
                &self.uncompressed
            }
            None => &*bytes,
        };
        check(whole)?;
        let decoded = self.deserializer.deserialize(&mut whole);
        decoded.map_err(DecodeError::Contents)
    }
}

/// Uncompresses into `whole`, up to the first byte too many.
fn uncompress(compressed: &[u8], whole: &mut Vec<u8>) -> io::Result<()> {
    whole.clear();
    let mut limited = ZlibDecoder::new(compressed).take(HISTOGRAM_LEN_MAX + 1);
    limited.read_to_end(whole).map(drop)
}

/// Checks an uncompressed histogram before the deserializer takes memory for all that the head claims.
fn check(whole: &[u8]) -> Result<(), DecodeError> {
    if whole.len() as u64 > HISTOGRAM_LEN_MAX {
        return Err(DecodeError::Long);
    }
    if !whole.starts_with(&V2) {
        return Err(DecodeError::Version);
    }
    let (head, counts) = whole.split_at_checked(HEAD_LEN).ok_or(DecodeError::Short)?;
    let word = |at: usize| {
        head[at..]
            .first_chunk()
            .map_or(0, |it| u32::from_be_bytes(*it))
    };
    let (len, digits) = (word(4), word(12));
    if u64::from(len) > counts.len() as u64 {
        return Err(DecodeError::Short);
    }
    if digits > DIGITS_MAX {
        return Err(DecodeError::Digits(digits));
    }
    // Only the last of the nine bytes of a number can be 0xff and end it, so no possible counts hold these.
    if counts.windows(9).any(|it| it == COUNT_IMPOSSIBLE) {
        return Err(DecodeError::Count);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer, V2Serializer};

    use super::*;

    /// Returns a histogram with this head and these counts.
    fn v2(len: u32, digits: u32, high: u64, counts: &[u8]) -> Vec<u8> {
        let mut bytes = [V2, len.to_be_bytes(), [0; 4], digits.to_be_bytes()].concat();
        for long in [1, high, 1.0_f64.to_bits()] {
            bytes.extend(long.to_be_bytes());
        }
        bytes.extend(counts);
        bytes
    }

    fn compressed(whole: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(whole).unwrap();
        let body = encoder.finish().unwrap();
        let len = (body.len() as u32).to_be_bytes();
        [&V2_COMPRESSED[..], &len, &body].concat()
    }

    fn decoded(bytes: &[u8]) -> Result<Histogram<u64>, DecodeError> {
        Decoder::default().decode(&STANDARD.encode(bytes))
    }

    #[test]
    fn histogram_of_up_to_four_digits_is_decoded_in_both_forms() {
        let mut decoder = Decoder::default();
        for (digits, high) in [(0, 2), (3, 3_600_000_000_000), (4, u64::MAX / 2)] {
            let mut histogram = Histogram::<u64>::new_with_bounds(1, high, digits).unwrap();
            histogram.record_n(1, 5).unwrap();
            histogram.record_n(high, 7).unwrap();
            let mut plain = Vec::new();
            V2Serializer::new()
                .serialize(&histogram, &mut plain)
                .unwrap();
            let mut deflated = Vec::new();
            V2DeflateSerializer::new()
                .serialize(&histogram, &mut deflated)
                .unwrap();
            for bytes in [plain, deflated] {
                let found = decoder.decode(&STANDARD.encode(bytes)).unwrap();
                assert!(found == histogram, "{digits} digits");
            }
        }
        // Every count of the largest histogram fits, at its greatest length.
        let counts = 65 * 16_384_u64;
        assert!(HEAD_LEN as u64 + 9 * counts <= HISTOGRAM_LEN_MAX);
    }

    #[test]
    fn length_claimed_by_head_takes_no_memory() {
        let claimed = v2(u32::MAX, 3, 3_600_000, &[]);
        for bytes in [compressed(&claimed), claimed] {
            let error = decoded(&bytes).unwrap_err();
            assert!(matches!(error, DecodeError::Short), "{error}");
        }
    }

    #[test]
    fn compressed_zeros_are_uncompressed_to_the_bound_only() {
        let bomb = compressed(&v2(100 << 20, 3, 3_600_000, &vec![0; 100 << 20]));
        assert!(bomb.len() < 1 << 20);
        let mut decoder = Decoder::default();
        let error = decoder.decode(&STANDARD.encode(bomb)).unwrap_err();
        assert!(matches!(error, DecodeError::Long), "{error}");
        assert_eq!(decoder.uncompressed.len() as u64, HISTOGRAM_LEN_MAX + 1);
    }

    #[test]
    fn histogram_of_five_digits_or_more_is_refused() {
        for digits in [5, 6, u32::MAX] {
            let error = decoded(&v2(0, digits, u64::MAX, &[])).unwrap_err();
            assert!(matches!(error, DecodeError::Digits(it) if it == digits));
        }
    }

    #[test]
    fn damaged_histogram_is_a_typed_error() {
        for bytes in [
            &b""[..],
            &V2,
            &V2_COMPRESSED,
            &[0; 64],
            &v2(9, 3, 3_600_000, &COUNT_IMPOSSIBLE),
            &v2(1, 3, 3_600_000, &[0x80]),
            &v2(3, 3, 1, &[2, 2, 2]),
            &v2(4, 0, 2, &[0xff, 0xff, 0x7f, 2]),
            &compressed(b"short"),
            &[&V2_COMPRESSED[..], &[0, 0, 0, 9], b"no zlib.."].concat(),
        ] {
            assert!(decoded(bytes).is_err(), "{bytes:x?}");
        }
    }
}
