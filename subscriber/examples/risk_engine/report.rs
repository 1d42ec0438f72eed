//! The final output of the engine: a summary in JSON for programs, and a table for people. Money and
//! prices are text with nine places, because JSON numbers are not exact.

use serde_json::{Value, json};

use super::engine::{Engine, Holding, Instrument};
use super::money::decimal;

/// Returns all results by name. Instruments without a mark and without a fill are omitted.
pub(crate) fn summary(engine: &Engine) -> Value {
    let counts = &engine.counts;
    let instruments = by_symbol(engine);
    let frozen = instruments.iter().filter(|i| i.market.is_suspect).count();
    json!({
        "records": counts.records,
        "lost_records": counts.lost_records,
        "losses": counts.losses,
        "repaired_datagrams": counts.repaired,
        "unnamed_records": counts.unnamed,
        "fills": counts.fills,
        "fills_left": engine.fills_left(),
        "breaches": counts.breaches,
        "clears": counts.clears,
        "freezes": counts.freezes,
        "silences": counts.silences,
        "frozen_instruments": frozen,
        "trail": format!("{:016x}", engine.trail),
        "portfolios": engine.portfolios.iter().enumerate().map(|(index, p)| json!({
            "name": p.name,
            "realised": decimal(p.realised),
            "unrealised": decimal(p.unrealised),
            "result": decimal(p.realised + p.unrealised),
            "gross": decimal(p.gross),
            "net": decimal(p.net),
            "frozen": engine.is_frozen(index),
        })).collect::<Vec<_>>(),
        "instruments": instruments.iter().map(|i| json!({
            "symbol": i.symbol,
            "mark": i.market.mark.map(|mark| decimal(mark.into())),
            "exposure": decimal(i.exposure),
            "frozen": i.market.is_suspect,
            "positions": i.holdings.iter().map(|h| position(engine, h)).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

fn position(engine: &Engine, holding: &Holding) -> Value {
    let Holding {
        portfolio,
        position,
        value,
    } = holding;
    json!({
        "portfolio": engine.portfolios[*portfolio].name,
        "quantity": position.quantity,
        "cost": decimal(position.cost),
        "realised": decimal(position.realised),
        "unrealised": decimal(value.unrealised),
        "exposure": decimal(value.exposure),
    })
}

fn by_symbol(engine: &Engine) -> Vec<&Instrument> {
    let concerned = |i: &&Instrument| i.market.mark.is_some() || !i.holdings.is_empty();
    let mut instruments: Vec<_> = engine.instruments.iter().filter(concerned).collect();
    instruments.sort_by(|a, b| a.symbol.cmp(&b.symbol));
    instruments
}

/// Returns a table of the portfolios, with two places.
pub(crate) fn table(engine: &Engine) -> String {
    let short = |amount| {
        let text = decimal(amount);
        text[..text.len() - 7].to_owned()
    };
    let row = |cells: [&str; 6], note: &str| {
        let [name, cells @ ..] = cells;
        let cells: String = cells.iter().map(|cell| format!("{cell:>18}")).collect();
        format!("{name:<16}{cells}{note}\n")
    };
    let head = [
        "portfolio",
        "realised",
        "unrealised",
        "result",
        "gross",
        "net",
    ];
    let mut table = row(head, "");
    for (index, p) in engine.portfolios.iter().enumerate() {
        let result = p.realised + p.unrealised;
        let cells = [p.realised, p.unrealised, result, p.gross, p.net].map(short);
        let [a, b, c, d, e] = &cells;
        let note = if engine.is_frozen(index) {
            "  frozen"
        } else {
            ""
        };
        table += &row([&p.name, a, b, c, d, e], note);
    }
    table
}
