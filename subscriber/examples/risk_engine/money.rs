//! Exact fixed point in 1e-9, the form of prices and money.

/// One unit of currency.
pub(crate) const UNIT: i128 = 1_000_000_000;

/// Returns an amount in 1e-9 as a decimal with all nine places.
pub(crate) fn decimal(amount_e9: i128) -> String {
    let sign = if amount_e9 < 0 { "-" } else { "" };
    let (whole, rest) = (
        amount_e9.unsigned_abs() / UNIT as u128,
        amount_e9.unsigned_abs() % UNIT as u128,
    );
    format!("{sign}{whole}.{rest:09}")
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn amounts_are_written_with_all_their_places_and_one_sign() {
        assert_eq!(decimal(0), "0.000000000");
        assert_eq!(decimal(-1), "-0.000000001");
        assert_eq!(decimal(12_345_000_000_007), "12345.000000007");
        assert_eq!(decimal(-2_500_000_000), "-2.500000000");
    }
}
