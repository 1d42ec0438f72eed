//! Records and events as lines, as text and as JSON.

use std::fmt;

use serde_json::{Value, json};
use tickcast_reliability::types::MessageCount;
use tickcast_subscriber::record::{
    ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RecordRef, StatMsg, StatusMsg,
    SymbolMappingMsg, TradeMsg, UNDEF_PRICE,
};
use tickcast_subscriber::{Event, Loss, Position, StreamEvent, Via};
use tickcast_tools::support::plain::Plain;

/// A record as a line of text.
pub(super) struct Text<'a>(pub(super) &'a Position, pub(super) RecordRef<'a>);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(position, record) = self;
        let header = record.header();
        write!(
            f,
            "{}:{} #{} {} {}",
            position.channel,
            position.sequence,
            position.record,
            header.ts_event,
            header.instrument_id
        )?;
        if position.quality.repaired {
            f.write_str(" (repaired)")?;
        }
        let sided = |f: &mut fmt::Formatter<'_>, name, action, side, size: u32, price| {
            write!(
                f,
                " {name} {}{} {size} @ {}",
                Plain(char_of(action)),
                Plain(char_of(side)),
                Price(price)
            )
        };
        if let Some(mbo) = record.get::<MboMsg>() {
            sided(f, "mbo", mbo.action, mbo.side, mbo.size, mbo.price)?;
            return write!(f, " order {} flags {:#04x}", mbo.order_id, mbo.flags.raw());
        }
        if let Some(trade) = record.get::<TradeMsg>() {
            return sided(
                f,
                "trade",
                trade.action,
                trade.side,
                trade.size,
                trade.price,
            );
        }
        if let Some(quote) = record.get::<Mbp1Msg>() {
            let [level] = &quote.levels;
            let (bid, ask) = (Price(level.bid_px), Price(level.ask_px));
            return write!(
                f,
                " quote {bid} x {} / {ask} x {}",
                level.bid_sz, level.ask_sz
            );
        }
        write!(f, " {}", name(*record))?;
        if let Some(status) = record.get::<StatusMsg>() {
            write!(f, " action {} reason {}", status.action, status.reason)?;
        }
        if let Some(imbalance) = record.get::<ImbalanceMsg>() {
            let price = Price(imbalance.ref_price);
            write!(f, " paired {} reference {price}", imbalance.paired_qty)?;
        }
        if let Some(stat) = record.get::<StatMsg>() {
            write!(f, " type {} price {}", stat.stat_type, Price(stat.price))?;
        }
        symbol(*record).map_or(Ok(()), |symbol| write!(f, " {}", Plain(symbol)))
    }
}

/// Returns a record as a JSON object: its position and its fields.
pub(super) fn json(position: &Position, record: RecordRef<'_>) -> Value {
    let header = record.header();
    let mut all = place(position);
    put(
        &mut all,
        json!({
            "record": position.record,
            "type": name(record),
            "instrument": header.instrument_id,
            "ts_event": header.ts_event,
        }),
    );
    if let Some(mbo) = record.get::<MboMsg>() {
        put(
            &mut all,
            json!({
                "action": char_of(mbo.action), "side": char_of(mbo.side), "price": price(mbo.price),
                "size": mbo.size, "order_id": mbo.order_id, "flags": mbo.flags.raw(),
                "ts_recv": mbo.ts_recv, "venue_sequence": mbo.sequence,
            }),
        );
    } else if let Some(trade) = record.get::<TradeMsg>() {
        put(
            &mut all,
            json!({
                "action": char_of(trade.action), "side": char_of(trade.side),
                "price": price(trade.price), "size": trade.size, "flags": trade.flags.raw(),
                "ts_recv": trade.ts_recv, "venue_sequence": trade.sequence,
            }),
        );
    } else if let Some(quote) = record.get::<Mbp1Msg>() {
        let [level] = &quote.levels;
        put(
            &mut all,
            json!({
                "bid_price": price(level.bid_px), "bid_size": level.bid_sz,
                "ask_price": price(level.ask_px), "ask_size": level.ask_sz,
                "flags": quote.flags.raw(), "ts_recv": quote.ts_recv,
            }),
        );
    } else if let Some(status) = record.get::<StatusMsg>() {
        put(
            &mut all,
            json!({"action": status.action, "reason": status.reason}),
        );
    } else if let Some(imbalance) = record.get::<ImbalanceMsg>() {
        put(
            &mut all,
            json!({
                "reference_price": price(imbalance.ref_price), "paired": imbalance.paired_qty,
                "imbalance": imbalance.total_imbalance_qty, "side": char_of(imbalance.side),
            }),
        );
    } else if let Some(stat) = record.get::<StatMsg>() {
        put(
            &mut all,
            json!({
                "stat": stat.stat_type, "price": price(stat.price), "quantity": stat.quantity,
            }),
        );
    }
    if let Some(symbol) = symbol(record) {
        put(&mut all, json!({"symbol": symbol}));
    }
    all
}

/// Returns an event as a JSON object.
pub(super) fn event(position: &Position, kind: &str, event: &Event) -> Value {
    let mut all = place(position);
    put(&mut all, json!({"event": kind, "text": event.to_string()}));
    match event {
        Event::Lost(loss) => {
            let Loss {
                sequences,
                records,
                cause,
            } = loss;
            let last = (!sequences.is_open()).then_some(sequences.last);
            let sequences = json!({"first": sequences.first, "last": last});
            let lost = json!({"sequences": sequences, "records": records, "cause": cause});
            put(&mut all, json!({ "lost": lost }));
        }
        Event::LossCorrected {
            sequences,
            reported,
            records,
        } => {
            let corrected = json!({
                "sequences": sequences, "reported": reported, "records": records,
            });
            put(&mut all, json!({ "loss_corrected": corrected }));
        }
        Event::Stream(StreamEvent::SourceLost {
            source,
            messages,
            from,
            instruments,
            ..
        }) => {
            let messages = MessageCount(*messages).known();
            let lost = json!({
                "source": source, "from": from.to_string(), "messages": messages,
                "instruments": instruments,
            });
            put(&mut all, json!({ "source_lost": lost }));
        }
        Event::Stream(StreamEvent::SourceSilent {
            source,
            since,
            instruments,
        }) => {
            let silent = json!({"source": source, "since": since, "instruments": instruments});
            put(&mut all, json!({ "source_silent": silent }));
        }
        Event::Stream(StreamEvent::SourceBack {
            source,
            since,
            instruments,
        }) => {
            let back = json!({"source": source, "since": since, "instruments": instruments});
            put(&mut all, json!({ "source_back": back }));
        }
        _ => {}
    }
    all
}

fn place(position: &Position) -> Value {
    let via = match position.via {
        Via::Line(line) => line.to_string(),
        Via::Repair => "repair".into(),
    };
    json!({
        "channel": position.channel,
        "epoch": position.epoch,
        "sequence": position.sequence,
        "via": via,
        "repaired": position.quality.repaired,
        "after_loss": position.quality.after_loss,
        "sent_at": position.sent_at,
    })
}

fn put(all: &mut Value, more: Value) {
    if let (Value::Object(all), Value::Object(more)) = (all, more) {
        all.extend(more);
    }
}

/// A price in units of 1e-9, as a decimal number.
struct Price(i64);

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == UNDEF_PRICE {
            return f.write_str("-");
        }
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, part) = (
            self.0.unsigned_abs() / 1_000_000_000,
            self.0.unsigned_abs() % 1_000_000_000,
        );
        let digits = format!("{part:09}");
        // Show at least two decimals, and no trailing zeros beyond them.
        let kept = digits.trim_end_matches('0').len().max(2);
        write!(f, "{sign}{whole}.{}", &digits[..kept])
    }
}

fn price(price: i64) -> Value {
    if price == UNDEF_PRICE {
        Value::Null
    } else {
        Price(price).to_string().into()
    }
}

#[expect(clippy::cast_sign_loss, reason = "DBN keeps ASCII letters in a C char")]
const fn char_of(c: std::ffi::c_char) -> char {
    (c as u8) as char
}

fn name(record: RecordRef<'_>) -> &'static str {
    match record.header().rtype().map(|rtype| rtype as u8) {
        Ok(0x00) => "trade",
        Ok(0x01) => "quote",
        Ok(0x12) => "status",
        Ok(0x13) => "definition",
        Ok(0x14) => "imbalance",
        Ok(0x16) => "symbol",
        Ok(0x18) => "statistic",
        Ok(0xa0) => "mbo",
        _ => "record",
    }
}

fn symbol(record: RecordRef<'_>) -> Option<&str> {
    if let Some(definition) = record.get::<InstrumentDefMsg>() {
        return definition.raw_symbol().ok();
    }
    record.get::<SymbolMappingMsg>()?.stype_out_symbol().ok()
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::delivery::LossCause;
    use tickcast_reliability::delivery::Quality;
    use tickcast_reliability::types::{
        ChannelId, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
    };
    use tickcast_reliability::wire::SourceLossReason;

    use super::*;

    #[test]
    fn unknown_numbers_are_null() {
        let position = Position {
            channel: ChannelId(1),
            epoch: Epoch(1),
            sequence: Sequence(2),
            record: RecordNumber(3),
            via: Via::Repair,
            quality: Quality::default(),
            source: SourceId(1),
            source_position: SourcePosition::new(0, 8),
            sent_at: Nanos(4),
            received_at: Nanos(5),
            missing_for: Nanos::ZERO,
        };
        let lost = |last| {
            let sequences = SequenceRange::new(Sequence(3), Sequence(last)).unwrap();
            let loss = Loss {
                sequences,
                records: None,
                cause: LossCause::PublisherDead,
            };
            event(&position, "lost", &Event::Lost(loss))
        };
        assert_eq!(lost(7)["lost"]["sequences"], json!({"first": 3, "last": 7}));
        let open = lost(u64::MAX);
        assert_eq!(open["lost"]["sequences"], json!({"first": 3, "last": null}));
        let source_lost = Event::Stream(StreamEvent::SourceLost {
            source: SourceId(1),
            reason: SourceLossReason::Gap,
            from: SourcePosition::new(0, 9),
            messages: u64::MAX,
            instruments: vec![7, 9],
        });
        let unknown = event(&position, "stream", &source_lost);
        assert_eq!(unknown["source_lost"]["messages"], Value::Null);
        assert_eq!(unknown["source_lost"]["instruments"], json!([7, 9]));
        for line in [open, unknown] {
            assert!(!line.to_string().contains(&u64::MAX.to_string()), "{line}");
        }
    }

    #[test]
    fn price_is_printed_exactly_with_two_decimals_or_more() {
        let shown =
            [1_500_000_000, -250_000_000, 12_345_600_000, 1, 0].map(|p| Price(p).to_string());
        assert_eq!(shown, ["1.50", "-0.25", "12.3456", "0.000000001", "0.00"]);
        assert_eq!(Price(UNDEF_PRICE).to_string(), "-");
    }
}
