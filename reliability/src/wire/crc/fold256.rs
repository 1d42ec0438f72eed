//! CRC32C by folding 256 bits at once beside three streams, where the processor multiplies so many bits
//! without carries (AVX2 with VPCLMULQDQ, and no AVX-512).
//!
//! A processor multiplies 256 bits every two cycles. Folding alone thus is no faster than the streams, but
//! other units of the processor do it: the first half of the words is folded while the streams take the
//! second. The method is that of `fold512`. Four registers are each folded onto the 128 bytes behind them.
//! In the end, their eight lanes of 128 bits are folded onto the last one.

use std::arch::x86_64::{
    __m256i, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128,
    _mm256_blend_epi32, _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_set_epi64x, _mm256_setzero_si256, _mm256_xor_si256,
};

use super::x86::{behind, by_words, keys};

/// Words of one register.
const WIDTH: usize = 4;
/// Words of all four registers.
const STEP: usize = 4 * WIDTH;
/// Words of each stream beside a step: as many as take its time, at a word a cycle in all.
const BESIDE: usize = 5;

/// Extends the CRC by words, of which there may be as many as `SHIFTS` has.
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
#[inline]
pub(super) fn by_folding(crc: u64, words: &[[u8; 8]]) -> u64 {
    let (folded, streamed) = words.split_at(words.len() / 2 / STEP * STEP);
    let Some((first, steps)) = folded.as_chunks::<STEP>().0.split_first() else {
        return by_words(crc, words);
    };
    let [mut a, mut b, mut c, mut d] = registers(first);
    a = _mm256_xor_si256(a, _mm256_set_epi64x(0, 0, 0, crc as i64));
    let on = all(keys(STEP));
    let third = streamed.len() / 3;
    let (first, behind_first) = streamed.split_at(third);
    let (second, behind_second) = behind_first.split_at(third);
    let (last, left) = behind_second.split_at(third);
    let (mut x, mut y, mut z) = (0, 0, 0);
    let mut stream = |first: &[[u8; 8]], second: &[[u8; 8]], last: &[[u8; 8]]| {
        for ((first, second), last) in first.iter().zip(second).zip(last) {
            x = _mm_crc32_u64(x, u64::from_le_bytes(*first));
            y = _mm_crc32_u64(y, u64::from_le_bytes(*second));
            z = _mm_crc32_u64(z, u64::from_le_bytes(*last));
        }
    };
    // A third of the streamed words has enough for each step, because they are half of all or more.
    let streams = (first.as_chunks::<BESIDE>().0.iter())
        .zip(second.as_chunks::<BESIDE>().0)
        .zip(last.as_chunks::<BESIDE>().0);
    for (step, ((first, second), last)) in steps.iter().zip(streams) {
        let [ahead, next, third, fourth] = registers(step);
        a = fold(a, on, ahead);
        b = fold(b, on, next);
        c = fold(c, on, third);
        d = fold(d, on, fourth);
        stream(first, second, last);
    }
    let taken = steps.len() * BESIDE;
    stream(
        first.get(taken..).unwrap_or_default(),
        second.get(taken..).unwrap_or_default(),
        last.get(taken..).unwrap_or_default(),
    );
    let cd = fold(c, all(keys(WIDTH)), d);
    let bcd = fold(b, all(keys(2 * WIDTH)), cd);
    let one = fold(a, all(keys(3 * WIDTH)), bcd);
    // The last lane stays in place.
    let [a, b] = keys(2);
    let last = _mm256_blend_epi32::<0b1111_0000>(_mm256_setzero_si256(), one);
    let lanes = fold(one, _mm256_set_epi64x(0, 0, b, a), last);
    let lane = _mm_xor_si128(
        _mm256_castsi256_si128(lanes),
        _mm256_extracti128_si256::<1>(lanes),
    );
    let crc = _mm_crc32_u64(0, _mm_cvtsi128_si64(lane) as u64);
    let crc = _mm_crc32_u64(crc, _mm_extract_epi64::<1>(lane) as u64);
    let parts = [
        (crc, streamed.len()),
        (x, behind_first.len()),
        (y, behind_second.len()),
    ];
    behind(parts) ^ by_words(z, left)
}

#[target_feature(enable = "avx2")]
#[inline]
fn all([first, second]: [i64; 2]) -> __m256i {
    _mm256_set_epi64x(second, first, second, first)
}

/// Moves each lane by its keys, and combines it with `onto`.
#[target_feature(enable = "avx2,vpclmulqdq")]
#[inline]
fn fold(lanes: __m256i, keys: __m256i, onto: __m256i) -> __m256i {
    let first = _mm256_clmulepi64_epi128::<0x00>(lanes, keys);
    let second = _mm256_clmulepi64_epi128::<0x11>(lanes, keys);
    _mm256_xor_si256(_mm256_xor_si256(first, onto), second)
}

#[target_feature(enable = "avx2")]
#[inline]
fn registers(words: &[[u8; 8]; STEP]) -> [__m256i; 4] {
    let begin: *const __m256i = words.as_ptr().cast();
    // SAFETY: exactly the 128 borrowed bytes are read, which need not be aligned. Exercised by
    // `crc::tests::folds_match_crc_by_words_at_any_place`.
    unsafe {
        [
            _mm256_loadu_si256(begin),
            _mm256_loadu_si256(begin.add(1)),
            _mm256_loadu_si256(begin.add(2)),
            _mm256_loadu_si256(begin.add(3)),
        ]
    }
}
