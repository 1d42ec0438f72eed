//! The two input files of the engine: fills and limits. The format is plain CSV: a header, no quotes, no
//! spaces. An invalid line is an error that names the line.
//!
//! - Fills: `after,portfolio,symbol,side,quantity,price_e9`. A fill takes place after record number
//!   `after` of the channel and before the next one (0: before the first). Every engine and every
//!   recomputation therefore applies it at the same place. `side` is `buy` or `sell`.
//! - Limits: `subject,name,limit,value`. `instrument,<symbol>,exposure,<value>` bounds the size of
//!   the net exposure of all portfolios. `portfolio,<name>,<gross|net|loss>,<value>` bounds that
//!   portfolio. The name `*` applies to all names without a limit. Values are whole units of currency.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::str::FromStr;

use super::money::UNIT;
use super::position::{PRICE_MAX, QUANTITY_MAX};

const FILLS: &str = "after,portfolio,symbol,side,quantity,price_e9";
const LIMITS: &str = "subject,name,limit,value";

/// An error in an input file, with its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InputError {
    line: usize,
    what: String,
}

impl Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for InputError {}

/// A fill: a purchase or a sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) after: u64,
    pub(crate) portfolio: String,
    pub(crate) symbol: String,
    /// The quantity; negative for a sale.
    pub(crate) quantity: i64,
    /// The price in 1e-9.
    pub(crate) price: i64,
}

/// Reads fills, in the order in which they take place.
pub(crate) fn fills(text: &str) -> Result<Vec<Fill>, InputError> {
    let mut held = HashMap::<_, u64>::new();
    let mut fills = Vec::new();
    for (line, fields) in rows(text, FILLS)? {
        let wrong = |what: String| InputError { line, what };
        let [after, portfolio, symbol, side, quantity, price] = fields;
        let quantity_max = QUANTITY_MAX as i64;
        let size: i64 = number(line, "quantity", quantity, 1, quantity_max)?;
        let total = held.entry((portfolio, symbol)).or_default();
        *total = total.saturating_add(size.unsigned_abs());
        if *total > QUANTITY_MAX {
            let what = format!("{portfolio} trades more than {QUANTITY_MAX} of {symbol}");
            return Err(wrong(what));
        }
        fills.push(Fill {
            after: number(line, "after", after, 0, u64::MAX)?,
            portfolio: portfolio.to_owned(),
            symbol: symbol.to_owned(),
            quantity: match side {
                "buy" => size,
                "sell" => -size,
                _ => return Err(wrong(format!("side is {side:?}, must be buy or sell"))),
            },
            price: number(line, "price_e9", price, -PRICE_MAX, PRICE_MAX)?,
        });
    }
    // The sort is stable: fills at the same place stay in the order of the file.
    fills.sort_by_key(|fill| fill.after);
    Ok(fills)
}

/// Returns one fill as a line of the file; see [`header`].
pub(crate) fn line(fill: &Fill) -> String {
    let side = if fill.quantity < 0 { "sell" } else { "buy" };
    format!(
        "{},{},{},{side},{},{}\n",
        fill.after,
        fill.portfolio,
        fill.symbol,
        fill.quantity.abs(),
        fill.price
    )
}

/// Returns the first line of a fills file.
pub(crate) fn header() -> String {
    format!("{FILLS}\n")
}

/// The subject of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The size of an instrument's net exposure.
    Exposure,
    /// The sum of the sizes of a portfolio's exposures.
    Gross,
    /// The size of the sum of a portfolio's exposures.
    Net,
    /// The loss of a portfolio, realised and unrealised.
    Loss,
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exposure => "exposure",
            Self::Gross => "gross",
            Self::Net => "net",
            Self::Loss => "loss",
        })
    }
}

/// The limits as written in the file.
#[derive(Debug, Default)]
pub(crate) struct Limits(HashMap<(Kind, String), i128>);

impl Limits {
    /// Reads limits. A later limit replaces an earlier one on the same subject.
    pub(crate) fn read(text: &str) -> Result<Self, InputError> {
        let mut limits = HashMap::new();
        for (line, [subject, name, limit, value]) in rows(text, LIMITS)? {
            let kind = match (subject, limit) {
                ("instrument", "exposure") => Kind::Exposure,
                ("portfolio", "gross") => Kind::Gross,
                ("portfolio", "net") => Kind::Net,
                ("portfolio", "loss") => Kind::Loss,
                _ => {
                    let what = format!(
                        "there is no limit {limit:?} on {subject:?}: write instrument and \
                         exposure, or portfolio and gross, net or loss"
                    );
                    return Err(InputError { line, what });
                }
            };
            let value: u64 = number(line, "value", value, 0, u64::MAX)?;
            limits.insert((kind, name.to_owned()), i128::from(value) * UNIT);
        }
        Ok(Self(limits))
    }

    /// Returns the limit on `name`, in 1e-9.
    pub(crate) fn of(&self, kind: Kind, name: &str) -> Option<i128> {
        let by_name = self.0.get(&(kind, name.to_owned()));
        by_name
            .or_else(|| self.0.get(&(kind, "*".to_owned())))
            .copied()
    }
}

/// Returns the lines after the header, split into `N` fields, with their line numbers.
fn rows<'a, const N: usize>(
    text: &'a str,
    header: &str,
) -> Result<Vec<(usize, [&'a str; N])>, InputError> {
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    if lines.next().is_none_or(|(_, first)| first != header) {
        let what = format!("the first line must be {header}");
        return Err(InputError { line: 1, what });
    }
    let split = |(line, text): (usize, &'a str)| {
        let fields: Vec<_> = text.split(',').collect();
        let fields = fields.try_into().map_err(|fields: Vec<_>| InputError {
            line,
            what: format!("{} fields, must be {N}: {header}", fields.len()),
        });
        fields.map(|fields| (line, fields))
    };
    lines.map(split).collect()
}

fn number<T: FromStr + PartialOrd + Display>(
    line: usize,
    name: &str,
    text: &str,
    min: T,
    max: T,
) -> Result<T, InputError> {
    match text.parse() {
        Ok(number) if number >= min && number <= max => Ok(number),
        _ => Err(InputError {
            line,
            what: format!("{name} is {text:?}, must be from {min} to {max}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_come_back_in_the_order_in_which_they_take_place() {
        let text = header() + "7,a,X,buy,5,10\n3,b,Y,sell,6,-20\n7,a,X,sell,1,30\n";
        let read = fills(&text).unwrap();
        let brief: Vec<_> = read
            .iter()
            .map(|f| (f.after, f.quantity, f.price))
            .collect();
        assert_eq!(brief, [(3, -6, -20), (7, 5, 10), (7, -1, 30)]);
        let written: String = read.iter().map(line).collect();
        assert_eq!(fills(&(header() + &written)).unwrap(), read);
    }

    #[test]
    fn invalid_fill_is_refused_with_its_line_number() {
        let refused = |row: &str| fills(&(header() + "1,a,X,buy,5,10\n" + row)).unwrap_err();
        for (row, what) in [
            ("1,a,X,bought,5,10", "side is \"bought\""),
            ("1,a,X,buy,0,10", "quantity is \"0\""),
            ("1,a,X,buy,5,1.5", "price_e9 is \"1.5\""),
            ("-1,a,X,buy,5,10", "after is \"-1\""),
            ("1,a,X,buy,5", "5 fields, must be 6"),
            ("1,a,X,buy,68719476736,10", "trades more than"),
            ("1,a,X,buy,5,10000000000000001", "price_e9"),
        ] {
            let text = refused(row).to_string();
            assert!(
                text.starts_with("line 3: ") && text.contains(what),
                "{text}"
            );
        }
        assert!(
            fills("1,a,X,buy,5,10\n")
                .unwrap_err()
                .to_string()
                .contains("first line")
        );
    }

    #[test]
    fn named_limit_overrides_wildcard_limit() {
        let text = "subject,name,limit,value\nportfolio,*,gross,100\nportfolio,a,gross,7\n";
        let limits = Limits::read(text).unwrap();
        assert_eq!(limits.of(Kind::Gross, "a"), Some(7 * UNIT));
        assert_eq!(limits.of(Kind::Gross, "b"), Some(100 * UNIT));
        assert_eq!(limits.of(Kind::Net, "a"), None);
        let wrong = Limits::read("subject,name,limit,value\nportfolio,a,delta,7\n");
        assert!(wrong.unwrap_err().to_string().contains("\"delta\""));
    }
}
