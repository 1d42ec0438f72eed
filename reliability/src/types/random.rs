//! Random numbers that a seed repeats.

/// Returns the next number of SplitMix64. It is good enough to spread timers and to number sessions, and
/// needs one word of state.
#[must_use]
pub const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_returns_the_reference_numbers_of_seed_zero() {
        // By the reference implementation.
        let published: [u64; 3] = [
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f,
        ];
        let mut state = 0;
        assert_eq!([(); 3].map(|()| split_mix(&mut state)), published);
    }
}
