//! The CRC32C that seals a slot: at memory speed, over two pieces that need not be adjacent.
//!
//! The CRC instruction takes 8 bytes a cycle, but has a latency of three cycles. The bytes behind the
//! header are therefore processed in three parallel streams, a third of the words each. The four parts
//! are combined by carry-less multiplication: appending `n` words to a CRC multiplies it by a constant,
//! `SHIFTS[n]`. Source: Gopal et al., "Fast CRC computation for iSCSI polynomial using CRC32
//! instruction" (Intel, 2011). For the reason for an own implementation see docs/decisions/0013.
//!
//! Where the processor multiplies 512 or 256 bits at once, long inputs are folded instead (`fold512`,
//! `fold256`). A processor without SSE 4.2 or PCLMULQDQ uses the crate `crc32c`. All give the same result.

use crate::wire::{HEADER_LEN, RELAY_OFFSET};

#[cfg(target_arch = "x86_64")]
mod fold256;
#[cfg(target_arch = "x86_64")]
mod fold512;

/// Returns the CRC32C of a header up to its relay byte, or including it, and of the bytes behind it.
#[inline]
pub(crate) fn crc32c_of(header: &[u8; HEADER_LEN], with_relay: bool, rest: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: the processor has the features of the target function, which was just detected.
        // Exercised by `tests::crc_matches_reference_at_any_length`.
        return unsafe { x86::by_streams(header, with_relay, rest) };
    }
    plainly(header, with_relay, rest)
}

fn plainly(header: &[u8; HEADER_LEN], with_relay: bool, rest: &[u8]) -> u32 {
    let covered = &header[..RELAY_OFFSET + usize::from(with_relay)];
    crc32c::crc32c_append(crc32c::crc32c(covered), rest)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u64, _mm_cvtsi64_si128,
        _mm_cvtsi128_si64, _mm_xor_si128,
    };

    use super::{HEADER_LEN, RELAY_OFFSET, fold256, fold512};

    /// The polynomial of CRC32C, bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    /// Maximum words per call of the streams: those of a slot of 9,000 bytes.
    const WORDS_MAX: usize = 1120;
    /// Minimum words per stream.
    const STREAM_MIN: usize = 6;
    /// Minimum words for three streams.
    const SHORT: usize = 3 * STREAM_MIN;
    /// Minimum words for folding: below it, three streams are at least as fast.
    const FOLDED_MIN: usize = 100;
    /// Words of a stream in one step.
    const STEP: usize = 8;

    /// At `n`: x to the power of 64 `n` − 33 modulo the polynomial, bits reversed. The CRC instruction over
    /// the product with it appends `n` words to a CRC; `n` is not 0.
    static SHIFTS: [u32; WORDS_MAX + 1] = {
        let mut shifts = [1 /* x to the power of 31 */; WORDS_MAX + 1];
        let mut n = 2;
        while n < shifts.len() {
            let (mut shift, mut bits) = (shifts[n - 1], 64);
            while bits > 0 {
                shift = (shift >> 1) ^ (POLYNOMIAL * (shift & 1));
                bits -= 1;
            }
            shifts[n] = shift;
            n += 1;
        }
        shifts
    };

    /// A way to fold, for processors that have its instructions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Fold {
        /// 256 bits at once: AVX2 with VPCLMULQDQ.
        By256,
        /// 512 bits at once: AVX-512 with VPCLMULQDQ.
        By512,
    }

    impl Fold {
        /// Returns the fastest fold of this processor.
        #[inline]
        pub(super) fn fastest() -> Option<Self> {
            // Asked first, so that a processor without it takes no further step.
            if !is_x86_feature_detected!("vpclmulqdq") {
                return None;
            }
            [Self::By512, Self::By256]
                .into_iter()
                .find(|fold| fold.has_registers())
        }

        /// Returns all folds of this processor, for tests.
        #[cfg(test)]
        pub(super) fn all() -> Vec<Self> {
            let mut all = vec![Self::By256, Self::By512];
            all.retain(|fold| is_x86_feature_detected!("vpclmulqdq") && fold.has_registers());
            all
        }

        /// Returns whether a processor with VPCLMULQDQ has the registers for it.
        fn has_registers(self) -> bool {
            match self {
                Self::By256 => is_x86_feature_detected!("avx2"),
                Self::By512 => is_x86_feature_detected!("avx512f"),
            }
        }
    }

    /// Returns the CRC like [`super::crc32c_of`], by streams.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(super) fn by_streams(header: &[u8; HEADER_LEN], with_relay: bool, rest: &[u8]) -> u32 {
        const _: () = assert!(RELAY_OFFSET == 7 * 8 + 3);
        let [words @ .., [a, b, c, relay, ..]] = header.as_chunks::<8>().0 else {
            return 0; // a header has 8 words
        };
        let head = by_words(u32::MAX.into(), words) as u32;
        let mut head = _mm_crc32_u8(_mm_crc32_u16(head, u16::from_le_bytes([*a, *b])), *c);
        if with_relay {
            head = _mm_crc32_u8(head, *relay);
        }
        let (words, tail) = rest.as_chunks();
        let crc = match words.len() {
            // One or two records.
            ..SHORT => by_words(head.into(), words),
            _ => long(head.into(), words),
        };
        !(by_bytes(crc, tail) as u32)
    }

    /// Extends the CRC by any number of words: by folding where available and worthwhile, else by streams.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    #[inline(never)]
    fn long(crc: u64, words: &[[u8; 8]]) -> u64 {
        if words.len() >= FOLDED_MIN
            && let Some(fold) = Fold::fastest()
        {
            // SAFETY: the processor has the fold, which was just detected. Exercised by
            // `tests::folds_match_crc_by_words_at_any_place`, where it has one.
            return unsafe { folded(fold, crc, words) };
        }
        by_thirds(crc, words)
    }

    /// Extends the CRC by any number of words, by this fold.
    ///
    /// # Safety
    /// The processor has the fold, and SSE 4.2.
    #[inline]
    pub(super) unsafe fn folded(fold: Fold, crc: u64, words: &[[u8; 8]]) -> u64 {
        // SAFETY: the caller vouches for the features of the target functions. A processor with
        // VPCLMULQDQ has PCLMULQDQ. Exercised by `tests::folds_match_crc_by_words_at_any_place`.
        unsafe {
            match fold {
                Fold::By256 => folded_by_256(crc, words),
                Fold::By512 => folded_by_512(crc, words),
            }
        }
    }

    #[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
    #[inline(never)]
    fn folded_by_256(crc: u64, words: &[[u8; 8]]) -> u64 {
        words
            .chunks(WORDS_MAX)
            .fold(crc, |crc, words| fold256::by_folding(crc, words))
    }

    #[target_feature(enable = "sse4.2,pclmulqdq,avx512f,vpclmulqdq")]
    #[inline(never)]
    fn folded_by_512(crc: u64, words: &[[u8; 8]]) -> u64 {
        words.chunks(WORDS_MAX).fold(crc, |crc, words| {
            behind([(crc, words.len())]) ^ fold512::by_folding(words)
        })
    }

    /// Returns the factors for the two words of a lane to move them by `words` words. The first word is one
    /// word ahead of the second.
    pub(super) const fn keys(words: usize) -> [i64; 2] {
        [SHIFTS[words + 1] as i64, SHIFTS[words] as i64]
    }

    /// Combines the CRCs, each extended by the given number of words.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    #[inline]
    pub(super) fn behind<const N: usize>(crcs: [(u64, usize); N]) -> u64 {
        let mut moved = _mm_cvtsi64_si128(0);
        for (crc, over) in crcs {
            let shift = _mm_cvtsi64_si128(SHIFTS[over].into());
            let product = _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(crc as i64), shift);
            moved = _mm_xor_si128(moved, product);
        }
        _mm_crc32_u64(0, _mm_cvtsi128_si64(moved) as u64)
    }

    /// Extends the CRC by any number of words, by three streams.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    #[inline]
    pub(super) fn by_thirds(crc: u64, words: &[[u8; 8]]) -> u64 {
        words
            .chunks(WORDS_MAX)
            .fold(crc, |crc, words| by_three(crc, words))
    }

    /// Extends the CRC by at most [`WORDS_MAX`] words, by three streams.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    #[inline]
    fn by_three(crc: u64, words: &[[u8; 8]]) -> u64 {
        let third = words.len() / 3;
        if third < STREAM_MIN {
            return by_words(crc, words);
        }
        let (first, behind_first) = words.split_at(third);
        let (second, behind_second) = behind_first.split_at(third);
        let (last, left) = behind_second.split_at(third);
        let (mut a, mut b, mut c) = (0, 0, 0);
        let mut step = |x: &[[u8; 8]], y: &[[u8; 8]], z: &[[u8; 8]]| {
            for ((x, y), z) in x.iter().zip(y).zip(z) {
                a = _mm_crc32_u64(a, u64::from_le_bytes(*x));
                b = _mm_crc32_u64(b, u64::from_le_bytes(*y));
                c = _mm_crc32_u64(c, u64::from_le_bytes(*z));
            }
        };
        let [first, second, last] = [first, second, last].map(|stream| stream.as_chunks::<STEP>());
        for ((x, y), z) in first.0.iter().zip(second.0).zip(last.0) {
            step(x, y, z);
        }
        step(first.1, second.1, last.1);
        let c = by_words(c, left);
        let parts = [
            (crc, words.len()),
            (a, behind_first.len()),
            (b, behind_second.len()),
        ];
        behind(parts) ^ c
    }

    #[target_feature(enable = "sse4.2,pclmulqdq")]
    #[inline]
    pub(super) fn by_words(crc: u64, words: &[[u8; 8]]) -> u64 {
        let on = |crc, word: &[u8; 8]| _mm_crc32_u64(crc, u64::from_le_bytes(*word));
        let (fours, rest) = words.as_chunks::<4>();
        let crc = fours
            .iter()
            .fold(crc, |crc, four| four.iter().fold(crc, on));
        rest.iter().fold(crc, on)
    }

    #[target_feature(enable = "sse4.2,pclmulqdq")]
    #[inline]
    fn by_bytes(crc: u64, bytes: &[u8]) -> u64 {
        let on = |crc, byte: &u8| _mm_crc32_u8(crc, *byte);
        bytes.iter().fold(crc as u32, on).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bytes without short repetitions.
    fn bytes(len: usize) -> Vec<u8> {
        let words = (1..=len.div_ceil(8) as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn crc_matches_reference_at_any_length() {
        let all = bytes(70_000);
        let (header, rest) = all.split_first_chunk().expect("there are more");
        // Check the crate against the bitwise definition (RFC 3720, B.4).
        let bitwise = all[..100].iter().fold(u32::MAX, |crc, byte| {
            let step = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc))
        });
        assert_eq!(crc32c::crc32c(&all[..100]), !bitwise);
        let lens = (0..2_000).chain(8_900..9_100).chain([17_933, 65_535]);
        for len in lens {
            for with_relay in [false, true] {
                // Vary the address.
                let rest = &rest[len % 9..][..len];
                let expected = plainly(header, with_relay, rest);
                assert_eq!(crc32c_of(header, with_relay, rest), expected, "{len} bytes");
            }
        }
    }

    /// Returns the CRC of words by the definition of the instruction (RFC 3720, B.4), bit by bit.
    #[cfg(target_arch = "x86_64")]
    fn by_bits(crc: u64, words: &[[u8; 8]]) -> u64 {
        let step = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
        let on = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
        words.as_flattened().iter().fold(crc as u32, on).into()
    }

    /// Returns the words at this byte of a buffer, so that they have any alignment.
    #[cfg(target_arch = "x86_64")]
    fn words_at(bytes: &[u8], at: usize, count: usize) -> &[[u8; 8]] {
        bytes[at..][..8 * count].as_chunks().0
    }

    /// Every fold of this processor, also one that it would not choose.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn folds_match_crc_by_words_at_any_place() {
        let all = bytes(20_100);
        let check = |fold, crc, words: &[[u8; 8]], expected| {
            // SAFETY: the processor has the fold, and none has VPCLMULQDQ without SSE 4.2. Exercised
            // here.
            let folded = unsafe { x86::folded(fold, crc, words) };
            let count = words.len();
            assert_eq!(folded, expected, "{fold:?}: {count} words behind {crc:#x}");
        };
        for fold in x86::Fold::all() {
            for count in (1..300).chain(1_100..1_200).chain([2_240, 2_241, 2_400]) {
                let words = words_at(&all, count % 61, count);
                for crc in [0, 1, 0xffff_ffff, 0x8765_4321] {
                    // SAFETY: the processor has SSE 4.2 and PCLMULQDQ, because it has VPCLMULQDQ.
                    // Exercised here.
                    let expected = unsafe { x86::by_thirds(crc, words) };
                    check(fold, crc, words, expected);
                }
            }
            for seed in 1..=400_u64 {
                let mut state = seed;
                let mut random = |below: u64| {
                    // A step of SplitMix64.
                    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    (mixed >> 32) % below
                };
                let (at, count) = (random(100) as usize, random(250) as usize + 1);
                let (crc, words) = (random(1 << 32), words_at(&all, at, count));
                check(fold, crc, words, by_bits(crc, words));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn fold_of_512_bits_is_preferred() {
        let all = x86::Fold::all();
        assert_eq!(x86::Fold::fastest(), all.last().copied());
    }

    #[test]
    fn crc_changes_with_any_flipped_bit() {
        let header = [7; HEADER_LEN];
        let mut rest = bytes(1_400);
        let whole = crc32c_of(&header, false, &rest);
        for bit in 0..rest.len() * 8 {
            rest[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(crc32c_of(&header, false, &rest), whole, "bit {bit}");
            rest[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
