//! CRC32C by folding, 256 bytes at a time, where the processor multiplies 512 bits without carries
//! (AVX-512 with VPCLMULQDQ).
//!
//! Data can be moved `d` bits towards the end of the input, onto other data, after multiplication by x to
//! the power of `d` modulo the polynomial: the CRC stays the same. Four registers are each folded onto the
//! 256 bytes behind them. In the end, their sixteen lanes of 128 bits are folded onto the last one.
//! Leading zeros do not change a CRC that begins with 0, so an input that is no multiple of 256 bytes is
//! padded in front.
//! Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"
//! (Intel, 2009).

use std::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128,
    _mm512_castsi512_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32,
    _mm512_loadu_si512, _mm512_maskz_expandloadu_epi64, _mm512_maskz_mov_epi64, _mm512_set_epi64,
    _mm512_setzero_si512, _mm512_ternarylogic_epi64,
};

use super::x86::keys;

/// Words of one register.
const WIDTH: usize = 8;
/// Words of all four registers.
const STEP: usize = 4 * WIDTH;

/// Returns the CRC of words, starting from 0: the same as the CRC instruction over all words in turn.
#[target_feature(enable = "sse4.2,avx512f,vpclmulqdq")]
#[inline]
pub(super) fn by_folding(words: &[[u8; 8]]) -> u64 {
    let (lead, steps) = words.split_at(words.len() % STEP);
    let mut lead = lead.rchunks(WIDTH);
    let mut behind = || match lead.next() {
        Some(words) => at_the_end(words),
        None => _mm512_setzero_si512(),
    };
    let (mut d, mut c, mut b, mut a) = (behind(), behind(), behind(), behind());
    let on = all(keys(STEP));
    for step in steps.as_chunks::<STEP>().0 {
        if let [first, second, third, fourth] = step.as_chunks::<WIDTH>().0 {
            a = fold(a, on, whole(first));
            b = fold(b, on, whole(second));
            c = fold(c, on, whole(third));
            d = fold(d, on, whole(fourth));
        }
    }
    let cd = fold(c, all(keys(WIDTH)), d);
    let bcd = fold(b, all(keys(2 * WIDTH)), cd);
    let one = fold(a, all(keys(3 * WIDTH)), bcd);
    // The last lane stays in place.
    let ([a, b], [c, d], [e, f]) = (keys(6), keys(4), keys(2));
    let last = _mm512_maskz_mov_epi64(0b1100_0000, one);
    let lanes = fold(one, _mm512_set_epi64(0, 0, f, e, d, c, b, a), last);
    let [first, second] = [
        _mm512_castsi512_si128(lanes),
        _mm512_extracti32x4_epi32::<1>(lanes),
    ];
    let [third, last] = [
        _mm512_extracti32x4_epi32::<2>(lanes),
        _mm512_extracti32x4_epi32::<3>(lanes),
    ];
    let lane = _mm_xor_si128(_mm_xor_si128(first, second), _mm_xor_si128(third, last));
    let crc = _mm_crc32_u64(0, _mm_cvtsi128_si64(lane) as u64);
    _mm_crc32_u64(crc, _mm_extract_epi64::<1>(lane) as u64)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn all([first, second]: [i64; 2]) -> __m512i {
    let (a, b) = (first, second);
    _mm512_set_epi64(b, a, b, a, b, a, b, a)
}

/// Moves each lane by its keys, and combines it with `onto`.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn fold(lanes: __m512i, keys: __m512i, onto: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(lanes, keys);
    let second = _mm512_clmulepi64_epi128::<0x11>(lanes, keys);
    // Exclusive or of all three.
    _mm512_ternarylogic_epi64::<0x96>(first, second, onto)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn whole(words: &[[u8; 8]; WIDTH]) -> __m512i {
    // SAFETY: exactly the 64 borrowed bytes are read, which need not be aligned. Exercised by
    // `crc::tests::crc_matches_reference_at_any_length`.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

/// Loads at most 8 words into the end of a register, behind zeros.
#[target_feature(enable = "avx512f")]
#[inline]
fn at_the_end(words: &[[u8; 8]]) -> __m512i {
    let count = words.len().min(WIDTH);
    let places = (0xff_u16 << (WIDTH - count)) as u8;
    // SAFETY: the number of words read is the number of bits set, at most the words borrowed; they need
    // not be aligned. Exercised by `crc::tests::crc_matches_reference_at_any_length`.
    unsafe { _mm512_maskz_expandloadu_epi64(places, words.as_ptr().cast()) }
}
