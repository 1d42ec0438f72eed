//! ITCH 5.0 against its layout: the expected records of real packets and hand-made messages, field by
//! field. Expected values were read from the bytes by the layout, not from the decoder's output.

mod records;

use std::path::Path;

use crate::common::{Recorded, data_dir};
use jiff::civil::date;
use proptest::prelude::*;
use tickcast_feeds::{
    capture::{Capture, binary_file::BinaryFile},
    instruments::Symbol,
    itch::{ItchDecoder, ItchSettings, TradeDate},
    source::{Decoder, Incident, Packet, ResumePoint},
};
use tickcast_reliability::record::{
    ImbalanceMsg, InstrumentDefMsg, MboMsg, RecordRef, StatMsg, StatType, StatusMsg,
    SymbolMappingMsg, UNDEF_ORDER_SIZE, UNDEF_PRICE, UNDEF_TIMESTAMP, flags,
};
use tickcast_reliability::types::{Nanos, SourcePosition};

/// 2023-08-22 00:00 in New York, which is at UTC-4 on that day.
const MIDNIGHT: u64 = 1_692_676_800_000_000_000;
const RECEIVED: Nanos = Nanos(MIDNIGHT + 40_000_000_000_000);

fn decoder() -> ItchDecoder {
    ItchDecoder::new(ItchSettings {
        trade_date: TradeDate::Fixed(date(2023, 8, 22)),
        ..ItchSettings::default()
    })
}

/// Returns a record as text: instrument, venue time since midnight, and contents. Prices in 1e-4.
fn words(record: RecordRef<'_>) -> String {
    let price = |p: i64| match p {
        UNDEF_PRICE => "-".to_owned(),
        p if p % 100_000 == 0 => (p / 100_000).to_string(),
        p => format!("{p}e-9"),
    };
    let letter = |c: std::ffi::c_char| char::from(c as u8);
    let at = record.header().ts_event.wrapping_sub(MIDNIGHT);
    let head = format!("{} {at}", record.header().instrument_id);
    if let Some(m) = record.get::<MboMsg>() {
        let size = match m.size {
            UNDEF_ORDER_SIZE => "all".to_owned(),
            size => size.to_string(),
        };
        let mut words = format!(
            "{head} {}{} {} {size}@{}",
            letter(m.action),
            letter(m.side),
            m.order_id,
            price(m.price)
        );
        for (flag, name) in [
            (flags::LAST, " last"),
            (flags::PUBLISHER_SPECIFIC, " partly"),
            (flags::BAD_TS_RECV, " unreceived"),
        ] {
            if m.flags.raw() & flag != 0 {
                words += name;
            }
        }
        words
    } else if let Some(m) = record.get::<SymbolMappingMsg>() {
        assert_eq!(m.stype_in_symbol().unwrap(), m.stype_out_symbol().unwrap());
        format!("{head} is {}", m.stype_out_symbol().unwrap())
    } else if let Some(m) = record.get::<StatusMsg>() {
        let [t, q, s] = [m.is_trading, m.is_quoting, m.is_short_sell_restricted].map(letter);
        format!(
            "{head} {:?} {:?} {t}{q}{s}",
            m.action().unwrap(),
            m.reason().unwrap()
        )
    } else if let Some(m) = record.get::<StatMsg>() {
        let kind = StatType::try_from(m.stat_type).unwrap();
        let quantity = match m.quantity {
            i64::MAX => "-".to_owned(),
            letters if m.stat_flags == b'L' => {
                String::from_utf8(letters.to_be_bytes()[1..].to_vec()).unwrap()
            }
            quantity => quantity.to_string(),
        };
        format!("{head} {kind:?} {} {quantity}", price(m.price))
    } else if let Some(m) = record.get::<ImbalanceMsg>() {
        format!(
            "{head} imbalance {}/{} {}{} ref {} near {} far {} {}{}",
            m.paired_qty,
            m.total_imbalance_qty,
            letter(m.side),
            char::from(m.auction_status),
            price(m.ref_price),
            price(m.cont_book_clr_price),
            price(m.auct_interest_clr_price),
            letter(m.auction_type),
            letter(m.significant_imbalance),
        )
    } else if let Some(m) = record.get::<InstrumentDefMsg>() {
        format!("{head} defines {}", m.raw_symbol().unwrap())
    } else {
        panic!("{record:?}")
    }
}

fn all_words(reported: &Recorded) -> Vec<String> {
    let records = reported
        .messages
        .iter()
        .flat_map(|(_, batch)| batch.records());
    records.map(words).collect()
}

/// Returns the records of one real capture's packets.
fn fixture(name: &str) -> Option<Recorded> {
    let path = data_dir()?.join("nasdaq-itch50-moldudp64").join(name);
    let mut capture = Capture::open(path).unwrap();
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    while let Some(datagram) = capture.next().unwrap() {
        decoder.packet(datagram.packet(), &mut reported);
    }
    Some(reported)
}

macro_rules! fixtures {
    ($($test:ident: $file:literal, $unknown:literal orders unknown, [$($words:literal),+ $(,)?];)+) => {$(
        #[test]
        fn $test() {
            let Some(reported) = fixture(concat!("Nasdaq.Equities.TotalView.Itch.v5.0", $file)) else {
                return;
            };
            assert_eq!(all_words(&reported), [$($words),+]);
            assert_eq!(reported.incidents, vec![Incident::UnknownOrder; $unknown]);
        }
    )+};
}

fixtures! {
    real_adds_without_mpid: ".20230822_AddOrderNoMPID.pcap", 0 orders unknown, [
        "5528 34199999894278 is IVOO", "5528 34199999894278 AB 23508286 1600@873900 last",
        "8554 34199999914224 is RETL", "8554 34199999914224 AA 21361419 100@71700 last",
        "11112 34199999968613 is XLF", "11112 34199999968613 AA 34103800 100@339500 last",
        "11112 34199999982857 AA 34103812 4000@339500 last",
        "9751 34200000084959 is T", "9751 34200000084959 AA 34103828 200@141300 last",
    ];
    real_adds_with_mpid: ".20230822_AddOrderWithMPID.pcap", 0 orders unknown, [
        "1738 34199999977782 is CASY", "1738 34199999977782 AA 18923125 100@2555200 last",
        "10177 34200000089678 is TSVT", "10177 34200000089678 AA 34103852 100@66100 last",
        "3163 34200000098325 is EIDO", "3163 34200000098325 AA 23508474 800@238200 last",
        "8362 34200000151606 is QLYS", "8362 34200000151606 AA 21361463 100@1605800 last",
        "10536 34200000192403 is VCYT", "10536 34200000192403 AA 34103964 100@296400 last",
    ];
    real_crosses: ".20230822_CrossTrade.pcap", 0 orders unknown, [
        "983 34200000483331 is BAC-Q", "983 34200000483331 TN 255550 0@- last",
        "4234 34200000652059 is GCV", "4234 34200000652059 TN 255553 0@- last",
        "8231 34200000781447 is PTGX", "8231 34200000781447 TN 255561 5577@195600 last",
        "8231 34200000781447 OpeningPrice 195600 5577",
        "1382 34200000795685 is BNED", "1382 34200000795685 TN 255562 0@- last",
        "5092 34200001163323 is IBTG", "5092 34200001163323 TN 255582 5379@224800 last",
        "5092 34200001163323 OpeningPrice 224800 5379",
    ];
    real_auction_collars: ".20230822_LULDAuctionCollar.pcap", 0 orders unknown, [
        "11325 34215592415125 is ZXZZT",
        "11325 34215592415125 AuctionCollarReferencePrice 133400 0",
        "11325 34215592415125 AuctionCollarUpperPrice 140100 0",
        "11325 34215592415125 AuctionCollarLowerPrice 109200 0",
        "11320 34216302268913 is ZVZZT",
        "11320 34216302268913 AuctionCollarReferencePrice 270200 0",
        "11320 34216302268913 AuctionCollarUpperPrice 330200 0",
        "11320 34216302268913 AuctionCollarLowerPrice 256700 0",
        "6285 34241583309197 is LTRY",
        "6285 34241583309197 AuctionCollarReferencePrice 38200 0",
        "6285 34241583309197 AuctionCollarUpperPrice 40100 0",
        "6285 34241583309197 AuctionCollarLowerPrice 31200 0",
        "9146 34305956275196 is SHLT",
        "9146 34305956275196 AuctionCollarReferencePrice 78800 0",
        "9146 34305956275196 AuctionCollarUpperPrice 82700 0",
        "9146 34305956275196 AuctionCollarLowerPrice 64400 0",
        "11320 34516303768822 AuctionCollarReferencePrice 270200 1",
        "11320 34516303768822 AuctionCollarUpperPrice 330200 1",
        "11320 34516303768822 AuctionCollarLowerPrice 243200 1",
    ];
    real_participant_positions: ".20230822_MarketParticipantPosition.pcap", 0 orders unknown, [
        "3648 34224468064326 is FDLS",
        "3648 34224468064326 VenueSpecificVolume1 - MAXMYNA",
        "3731 34224494802989 is FGMC",
        "3731 34224494802989 VenueSpecificVolume1 - MAXMYNA",
        "3586 34320828893814 is FBIO",
        "3586 34320828893814 VenueSpecificVolume1 - RILYYNE",
        "9768 34437787611659 is TAN",
        "9768 34437787611659 VenueSpecificVolume1 - NITEYNE",
        "9768 34443930332539 VenueSpecificVolume1 - VIRTYNE",
    ];
    real_imbalances: ".20230822_NetOrderImbalanceIndicator.pcap", 0 orders unknown, [
        "7853 34200000087025 is PFTAW",
        "7853 34200000087025 imbalance 0/0 NO ref - near - far - O ",
        "4316 34200000088833 is GFOR=",
        "4316 34200000088833 imbalance 0/0 NO ref - near - far - O ",
        "6659 34200000092117 is MMM",
        "6659 34200000092117 imbalance 0/0 NO ref - near - far - O ",
        "6462 34200000268978 is MDC",
        "6462 34200000268978 imbalance 1/0 NN ref 464400 near 464400 far 464400 OL",
        "9228 34200000399147 is SKOR",
        "9228 34200000399147 imbalance 1/0 NN ref 462700 near 462700 far 462700 OL",
    ];
    real_trades: ".20230822_NonCrossTrade.pcap", 0 orders unknown, [
        "4499 34200000684713 is GOOGL", "4499 34200000684713 TN 255554 100@1284600 last",
        "6856 34200000971740 is MU", "6856 34200000971740 TN 255569 14@644100 last",
        "8327 34200000991243 is QCOM", "8327 34200000991243 TN 255571 27@1115300 last",
        "749 34200000997052 is ASML", "749 34200000997052 TN 255573 2@6795200 last",
        "749 34200000997052 TN 255574 4@6795200 last",
    ];
    real_cancels: ".20230822_OrderCancel.pcap", 5 orders unknown, [
        "9413 34200002394205 CN 33823232 100@- last partly",
        "4499 34200002464667 CN 23503754 100@- last partly",
        "10636 34200003211026 CN 34083228 200@- last partly",
        "6485 34200006901693 CN 21259975 2000@- last partly",
        "973 34200007174153 CN 18901405 200@- last partly",
    ];
    real_deletes: ".20230822_OrderDelete.pcap", 5 orders unknown, [
        "3353 34199999889645 CN 23442714 all@- last partly",
        "3353 34199999889850 CN 23440170 all@- last partly",
        "3517 34199999896280 CN 23497686 all@- last partly",
        "1109 34199999912765 CN 18906389 all@- last partly",
        "7499 34199999920371 CN 21358375 all@- last partly",
    ];
    real_executions: ".20230822_OrderExecuted.pcap", 5 orders unknown, [
        "2345 34199999934561 TN 255547 25@- partly",
        "2345 34199999934561 FN 23499418 25@- partly",
        "2345 34199999934561 CN 23499418 25@- last partly",
        "9509 34200000403290 TN 255548 2000@- partly",
        "9509 34200000403290 FN 34057696 2000@- partly",
        "9509 34200000403290 CN 34057696 2000@- last partly",
        "9509 34200000403290 TN 255549 200@- partly",
        "9509 34200000403290 FN 34066156 200@- partly",
        "9509 34200000403290 CN 34066156 200@- last partly",
        "608 34200000496208 TN 255551 1@- partly",
        "608 34200000496208 FN 18920949 1@- partly",
        "608 34200000496208 CN 18920949 1@- last partly",
        "11214 34200000566216 TN 255552 699@- partly",
        "11214 34200000566216 FN 26890664 699@- partly",
        "11214 34200000566216 CN 26890664 699@- last partly",
    ];
    real_executions_with_price: ".20230822_OrderExecutedWithPrice.pcap", 5 orders unknown, [
        "5092 34200001163323 FN 19993566 4926@224800 partly",
        "5092 34200001163323 CN 19993566 4926@- last partly",
        "11233 34200001652818 FN 10138168 4@8500 partly",
        "11233 34200001652818 CN 10138168 4@- last partly",
        "9509 34200007615761 TN 256056 100@4411700 partly",
        "9509 34200007615761 FN 34105576 100@4411700 partly",
        "9509 34200007615761 CN 34105576 100@- last partly",
        "9509 34200007615761 TN 256057 100@4411700 partly",
        "9509 34200007615761 FN 34106808 100@4411700 partly",
        "9509 34200007615761 CN 34106808 100@- last partly",
        "6003 34200008266604 TN 256074 72@48500 partly",
        "6003 34200008266604 FN 21364519 72@48500 partly",
        "6003 34200008266604 CN 21364519 72@- last partly",
    ];
    real_replaces: ".20230822_OrderReplace.pcap", 5 orders unknown, [
        "7603 34199999836649 CN 15108479 all@- last partly",
        "7603 34199999839204 CN 15108487 all@- last partly",
        "7603 34199999839753 CN 15108483 all@- last partly",
        "3709 34199999842535 CN 22987054 all@- last partly",
        "310 34199999852428 CN 18188209 all@- last partly",
    ];
    real_short_sale_restrictions: ".20230822_RegSHORestriction.pcap", 0 orders unknown, [
        "9405 34200116533431 is SOPA", "9405 34200116533431 SsrChange None ~~Y",
        "2282 34200150870585 is CPHI", "2282 34200150870585 SsrChange None ~~Y",
        "2453 34200156306992 is CUENW", "2453 34200156306992 SsrChange None ~~Y",
        "6806 34200156507124 is MSGM", "6806 34200156507124 SsrChange None ~~Y",
        "11203 34200161634344 is YCBD-A", "11203 34200161634344 SsrChange None ~~Y",
    ];
    real_trading_actions: ".20230822_StockTradingAction.pcap", 0 orders unknown, [
        "11325 34215592125541 is ZXZZT", "11325 34215592125541 Pause LuldPause NN~",
        "11320 34216302093801 is ZVZZT", "11320 34216302093801 Pause LuldPause NN~",
        "1707 34220599106486 is CAML", "1707 34220599106486 Halt None NN~",
        "6285 34241583109014 is LTRY", "6285 34241583109014 Pause LuldPause NN~",
        "2378 34260849901211 is CSMD", "2378 34260849901211 Halt None NN~",
    ];
    a_real_system_event: ".20230822_SystemEvent.pcap", 0 orders unknown, [
        "0 34200000070384 Trading Scheduled YY~",
    ];
    a_real_add_on_its_line: "_AddOrderNoMpidAttributionMessage.pcap", 0 orders unknown, [
        "5528 34199999894278 is IVOO", "5528 34199999894278 AB 23508286 1600@873900 last",
    ];
    a_real_participant_position_on_its_line:
        "_MarketParticipantPositionMessage.pcap", 0 orders unknown, [
        "3731 34224494802989 is FGMC",
        "3731 34224494802989 VenueSpecificVolume1 - MAXMYNA",
    ];
    a_real_imbalance_on_its_line: "_NetOrderImbalanceIndicatorMessage.pcap", 0 orders unknown, [
        "6462 34200000268978 is MDC",
        "6462 34200000268978 imbalance 1/0 NN ref 464400 near 464400 far 464400 OL",
    ];
    a_real_delete_on_its_line: "_OrderDeleteMessage.pcap", 1 orders unknown, [
        "3517 34199999896280 CN 23497686 all@- last partly",
    ];
    a_real_execution_on_its_line: "_OrderExecutedMessage.pcap", 1 orders unknown, [
        "2345 34199999934561 TN 255547 25@- partly",
        "2345 34199999934561 FN 23499418 25@- partly",
        "2345 34199999934561 CN 23499418 25@- last partly",
    ];
    a_real_replace_on_its_line: "_OrderReplaceMessage.pcap", 1 orders unknown, [
        "7603 34199999836649 CN 15108479 all@- last partly",
    ];
    a_real_trading_action_on_its_line: "_StockTradingActionMessage.pcap", 0 orders unknown, [
        "464 34763322465824 is AMC", "464 34763322465824 Trading None YY~",
    ];
}

#[test]
fn real_packets_keep_sequence_and_capture_time() {
    let name = "Nasdaq.Equities.TotalView.Itch.v5.0_AddOrderNoMpidAttributionMessage.pcap";
    let Some(reported) = fixture(name) else {
        return;
    };
    assert_eq!(reported.positions(), [(0, 14_757_721)]);
    let add = &reported.all::<MboMsg>()[0];
    assert_eq!(add.sequence, 14_757_721);
    // The capture's stamp has nanoseconds: 13:30:00 UTC and 59,094 ns.
    assert_eq!(add.ts_recv, 1_692_711_000_000_059_094);
    assert_eq!(add.ts_in_delta, 59_094 + 105_722);
    assert_eq!(add.hd.publisher_id, 2, "XNAS.ITCH as DBN numbers it");
    assert_eq!(add.hd.ts_event, 1_692_710_999_999_894_278);
}

#[test]
fn unnumbered_converter_packets_are_all_delivered() {
    let name = "Nasdaq.Equities.TotalView.Itch.v5.0.20230822_OrderDelete.pcap";
    let Some(reported) = fixture(name) else {
        return;
    };
    assert_eq!(
        reported.positions(),
        [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    );
}

// Hand-made messages. All fields differ, so that none can be confused with another.

const TIME: u64 = 0x1F_1ACE_D853;

fn message(kind: u8, locate: u16, body: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(locate.to_be_bytes());
    bytes.extend(0xABCD_u16.to_be_bytes());
    bytes.extend(&TIME.to_be_bytes()[2..]);
    for part in body {
        bytes.extend(*part);
    }
    bytes
}

fn add(reference: u64, side: u8, shares: u32, price: u32) -> Vec<u8> {
    let numbers = (
        reference.to_be_bytes(),
        shares.to_be_bytes(),
        price.to_be_bytes(),
    );
    message(
        b'A',
        7,
        &[&numbers.0, &[side], &numbers.1, b"ZVZZT   ", &numbers.2],
    )
}

/// Decodes messages of one stream, the first one at sequence 1.
fn decode(messages: &[Vec<u8>]) -> Recorded {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    for (n, message) in messages.iter().enumerate() {
        decoder.message(
            SourcePosition::new(0, n as u64 + 1),
            RECEIVED,
            message,
            &mut reported,
        );
    }
    assert_eq!(decoder.counts().total(), messages.len() as u64);
    reported
}

/// Returns the last record of these messages as text, without instrument and time.
fn last_words(messages: &[Vec<u8>]) -> Vec<String> {
    let reported = decode(messages);
    let records = reported.messages.last().unwrap().1.records();
    let locate = u16::from_be_bytes([messages[0][1], messages[0][2]]);
    let head = format!("{locate} {TIME} ");
    records
        .map(|record| words(record).strip_prefix(&head).unwrap().to_owned())
        .collect()
}

#[test]
fn adds_say_everything_of_the_order() {
    let words = last_words(&[add(0x0102_0304_0506_0708, b'B', 300, 1_234_500)]);
    assert_eq!(words, ["is ZVZZT", "AB 72623859790382856 300@1234500 last"]);
    let mut attributed = add(5, b'S', 200, 1_000_001);
    attributed[0] = b'F';
    attributed.extend(b"NITE");
    assert_eq!(
        last_words(&[attributed]),
        ["is ZVZZT", "AA 5 200@1000001 last"]
    );
}

#[test]
fn symbol_is_named_once_never_after_directory() {
    let reported = decode(&[add(1, b'B', 1, 1), add(2, b'B', 1, 1)]);
    assert_eq!(reported.all::<SymbolMappingMsg>().len(), 1);
    let mapping = &reported.all::<SymbolMappingMsg>()[0];
    assert_eq!((mapping.hd.instrument_id, mapping.start_ts), (7, MIDNIGHT));
    let reported = decode(&[directory(), add(1, b'B', 1, 1)]);
    assert!(reported.all::<SymbolMappingMsg>().is_empty());
}

fn directory() -> Vec<u8> {
    let (lot, leverage) = (100_u32.to_be_bytes(), 3_u32.to_be_bytes());
    message(
        b'R',
        7,
        &[b"ZVZZT   ", b"GD", &lot, b"YCZ PN 1Y", &leverage, b"N"],
    )
}

#[test]
fn itch_directory_message_defines_instrument() {
    let reported = decode(&[directory()]);
    let definition = &reported.all::<InstrumentDefMsg>()[0];
    assert_eq!(definition.raw_symbol().unwrap(), "ZVZZT");
    assert_eq!(definition.min_lot_size_round_lot, 100);
    assert_eq!(definition.min_trade_vol, 100, "only round lots trade");
    assert_eq!(definition.raw_instrument_id, 7);
    assert_eq!(definition.hd.instrument_id, 7);
    assert_eq!(definition.inst_attrib_value, 3);
    assert_eq!(definition.security_type().unwrap(), "CZ");
    assert_eq!(definition.group().unwrap(), "GDYCZ PN 1YN");
    assert_eq!(definition.hd.ts_event, MIDNIGHT + TIME);
    assert_eq!(definition.ts_recv, RECEIVED.0);
}

#[test]
fn execution_is_trade_fill_cancel_with_one_last() {
    let execute = |shares: u32| {
        let numbers = (
            9_u64.to_be_bytes(),
            shares.to_be_bytes(),
            555_u64.to_be_bytes(),
        );
        message(b'E', 7, &[&numbers.0, &numbers.1, &numbers.2])
    };
    let sell = add(9, b'S', 300, 1_234_500);
    assert_eq!(
        last_words(&[sell.clone(), execute(100)]),
        [
            "TB 555 100@1234500",
            "FA 9 100@1234500",
            "CA 9 100@1234500 last"
        ],
        "the aggressor is on the other side"
    );
    let reported = decode(&[sell.clone(), execute(300), execute(1)]);
    assert_eq!(
        reported.incidents,
        [Incident::UnknownOrder],
        "a filled order is gone"
    );
    assert_eq!(
        last_words(&[sell.clone(), execute(301)]),
        [
            "TB 555 301@1234500",
            "FA 9 301@1234500",
            "CA 9 300@1234500 last"
        ],
        "no book can take off more than there is"
    );
    assert!(matches!(
        decode(&[sell, execute(301)]).incidents[..],
        [Incident::Malformed { .. }]
    ));
}

#[test]
fn execution_with_price_is_trade_only_if_printable() {
    let execute = |printable: &[u8]| {
        let (reference, shares) = (9_u64.to_be_bytes(), 100_u32.to_be_bytes());
        let (number, price) = (555_u64.to_be_bytes(), 1_234_600_u32.to_be_bytes());
        message(b'C', 7, &[&reference, &shares, &number, printable, &price])
    };
    let buy = add(9, b'B', 300, 1_234_500);
    assert_eq!(
        last_words(&[buy.clone(), execute(b"Y")]),
        [
            "TA 555 100@1234600",
            "FB 9 100@1234600",
            "CB 9 100@1234500 last"
        ]
    );
    assert_eq!(
        last_words(&[buy, execute(b"N")]),
        ["FB 9 100@1234600", "CB 9 100@1234500 last"]
    );
}

#[test]
fn cancels_deletes_and_replaces_follow_the_order() {
    let reference = 9_u64.to_be_bytes();
    let cancel = message(b'X', 7, &[&reference, &100_u32.to_be_bytes()]);
    let delete = message(b'D', 7, &[&reference]);
    let buy = add(9, b'B', 300, 1_234_500);
    let cancelled = [buy.clone(), cancel.clone()];
    assert_eq!(last_words(&cancelled), ["CB 9 100@1234500 last"]);
    assert_eq!(
        last_words(&[buy.clone(), cancel, delete.clone()]),
        ["CB 9 200@1234500 last"]
    );
    let (new, shares, price) = (
        10_u64.to_be_bytes(),
        400_u32.to_be_bytes(),
        1_234_700_u32.to_be_bytes(),
    );
    let replace = message(b'U', 7, &[&reference, &new, &shares, &price]);
    let replaced = [buy.clone(), replace.clone()];
    assert_eq!(
        last_words(&replaced),
        ["CB 9 300@1234500", "AB 10 400@1234700 last"]
    );
    let delete_new = message(b'D', 7, &[&new]);
    assert_eq!(
        last_words(&[buy.clone(), replace.clone(), delete_new]),
        ["CB 10 400@1234700 last"],
        "the new order has the old one's side"
    );
    let reported = decode(&[buy, replace, delete]);
    assert_eq!(
        reported.incidents,
        [Incident::UnknownOrder],
        "the old order is gone"
    );
}

#[test]
fn trades_and_crosses_carry_their_match_number_and_no_side() {
    let (zero, shares, price, number) = (
        0_u64.to_be_bytes(),
        600_u32.to_be_bytes(),
        1_234_500_u32.to_be_bytes(),
        777_u64.to_be_bytes(),
    );
    let trade = message(
        b'P',
        7,
        &[&zero, b"B", &shares, b"ZVZZT   ", &price, &number],
    );
    assert_eq!(
        last_words(&[trade]),
        ["is ZVZZT", "TN 777 600@1234500 last"]
    );
    let cross = |shares: u64, kind: &[u8]| {
        message(
            b'Q',
            7,
            &[&shares.to_be_bytes(), b"ZVZZT   ", &price, &number, kind],
        )
    };
    let first = |words: Vec<String>| words[1..].to_vec();
    assert_eq!(
        first(last_words(&[cross(600, b"C")])),
        ["TN 777 600@1234500 last", "ClosePrice 1234500 600"]
    );
    assert_eq!(
        first(last_words(&[cross(1, b"H")])),
        ["TN 777 1@1234500 last", "UncrossingPrice 1234500 1"]
    );
    let huge = cross(5_000_000_000, b"O");
    assert_eq!(
        first(last_words(std::slice::from_ref(&huge))),
        [
            "TN 777 4294967294@1234500 last partly",
            "OpeningPrice 1234500 5000000000"
        ]
    );
    assert_eq!(decode(&[huge]).incidents, [Incident::Saturated]);
    let broken = message(b'B', 7, &[&number]);
    assert_eq!(last_words(&[broken]), ["NN 777 0@- last"]);
}

#[test]
fn imbalances_keep_far_near_and_reference_price_apart() {
    let imbalance = |paired: u64, direction: &[u8]| {
        let (paired, unpaired) = (paired.to_be_bytes(), 70_u64.to_be_bytes());
        let [far, near, reference] = [11_u32, 22, 33].map(u32::to_be_bytes);
        let stock = b"ZVZZT   ";
        message(
            b'I',
            7,
            &[
                &paired, &unpaired, direction, stock, &far, &near, &reference, b"C", b"9",
            ],
        )
    };
    assert_eq!(
        last_words(&[imbalance(60, b"S")])[1],
        "imbalance 60/70 AS ref 33 near 22 far 11 C9"
    );
    assert_eq!(
        last_words(&[imbalance(60, b"B")])[1],
        "imbalance 60/70 BB ref 33 near 22 far 11 C9"
    );
    let huge = imbalance(u64::from(u32::MAX), b"N");
    assert_eq!(
        last_words(std::slice::from_ref(&huge))[1],
        "imbalance 4294967294/70 NN ref 33 near 22 far 11 C9",
        "the highest value would mean that there is none"
    );
    assert_eq!(decode(&[huge]).incidents, [Incident::Saturated]);
}

#[test]
fn trading_state_message_is_decoded_as_status() {
    let status = |kind, body: &[&[u8]]| last_words(&[message(kind, 7, body)])[1].clone();
    let stock: &[u8] = b"ZVZZT   ";
    for (state, reason, words) in [
        (b"H", b"T1  ", "Halt NewsPending NN~"),
        (b"P", b"LUDP", "Pause LuldPause NN~"),
        (b"Q", b"MWCQ", "Quoting MarketWideHaltResumption NY~"),
        (b"T", b"    ", "Trading None YY~"),
        (b"H", b"????", "Halt None NN~"),
    ] {
        assert_eq!(status(b'H', &[stock, state, b" ", reason]), words);
    }
    assert_eq!(status(b'h', &[stock, b"QH"]), "Halt Operational NN~");
    assert_eq!(status(b'h', &[stock, b"QT"]), "Trading Operational YY~");
    assert_eq!(
        status(b'h', &[stock, b"XH"]),
        "None Operational ~~~",
        "another market halts"
    );
    assert_eq!(status(b'Y', &[stock, b"0"]), "SsrChange None ~~N");
    assert_eq!(status(b'Y', &[stock, b"2"]), "SsrChange None ~~Y");
}

#[test]
fn venue_message_is_decoded_for_instrument_zero() {
    let reported = |kind, body: &[&[u8]]| last_words(&[message(kind, 0, body)]);
    for (code, words) in [
        (b"O", "None Scheduled ~~~"),
        (b"S", "PreOpen Scheduled ~~~"),
        (b"Q", "Trading Scheduled YY~"),
        (b"M", "Close Scheduled NN~"),
        (b"E", "PostClose Scheduled NN~"),
        (b"C", "NotAvailableForTrading Scheduled NN~"),
    ] {
        assert_eq!(reported(b'S', &[code]), [words]);
    }
    assert_eq!(reported(b'W', &[b"2"]), ["Halt MarketWideHaltLevel2 N~~"]);
    let levels = [465_012_345_678_u64, 435_000_000_000, 400_000_000_001].map(u64::to_be_bytes);
    assert_eq!(
        reported(b'V', &[&levels[0], &levels[1], &levels[2]]),
        [
            "MwcbLevel1 4650123456780e-9 -",
            "MwcbLevel2 43500000 -",
            "MwcbLevel3 4000000000010e-9 -"
        ]
    );
    let absurd = message(b'V', 0, &[&levels[0], &levels[1], &u64::MAX.to_be_bytes()]);
    assert_eq!(
        last_words(std::slice::from_ref(&absurd))[2],
        "MwcbLevel3 - -"
    );
    assert_eq!(decode(&[absurd]).incidents, [Incident::Saturated]);
}

#[test]
fn auction_and_participant_messages_become_statistics() {
    let stock: &[u8] = b"ZVZZT   ";
    let stats = |kind, body: &[&[u8]]| {
        let message = message(kind, 7, body);
        (
            last_words(std::slice::from_ref(&message))[1..].to_vec(),
            decode(&[message]),
        )
    };
    let [a, b, c, d] = [11_u32, 22, 33, 4].map(u32::to_be_bytes);
    let (words, _) = stats(b'J', &[stock, &a, &b, &c, &d]);
    assert_eq!(
        words,
        [
            "AuctionCollarReferencePrice 11 4",
            "AuctionCollarUpperPrice 22 4",
            "AuctionCollarLowerPrice 33 4"
        ]
    );
    let release = 36_000_u32.to_be_bytes();
    let (words, reported) = stats(b'K', &[stock, &release, b"A", &b]);
    assert_eq!(words, ["VenueSpecificPrice1 22 65"]);
    let stat = &reported.all::<StatMsg>()[0];
    assert_eq!(stat.ts_ref, MIDNIGHT + 36_000_000_000_000);
    assert_eq!(
        (stat.update_action, stat.stat_flags, stat.sequence),
        (1, b'K', 1)
    );
    let (_, reported) = stats(b'K', &[stock, &[0; 4], b"C", &b]);
    let stat = &reported.all::<StatMsg>()[0];
    assert_eq!((stat.ts_ref, stat.update_action), (UNDEF_TIMESTAMP, 2));
    let (words, reported) = stats(b'L', &[b"NITE", stock, b"YNA"]);
    assert_eq!(words, ["VenueSpecificVolume1 - NITEYNA"]);
    assert_eq!(
        reported.all::<StatMsg>()[0].quantity.to_be_bytes(),
        *b"\0NITEYNA"
    );
    let (words, _) = stats(b'N', &[stock, b"A"]);
    assert_eq!(words, ["VenueSpecificVolume1 - 65"]);
}

#[test]
fn direct_listing_prices_map_to_separate_fields() {
    let [min, max, near, lower, upper] = [11_u32, 22, 33, 44, 55].map(u32::to_be_bytes);
    let near_time = 36_000_000_000_001_u64.to_be_bytes();
    let body: [&[u8]; 8] = [
        b"ZVZZT   ",
        b"Y",
        &min,
        &max,
        &near,
        &near_time,
        &lower,
        &upper,
    ];
    let listing = message(b'O', 7, &body);
    let reported = decode(std::slice::from_ref(&listing));
    let record = &reported.all::<ImbalanceMsg>()[0];
    assert_eq!(record.ind_match_price, 3_300_000);
    assert_eq!(
        (record.lower_collar, record.upper_collar),
        (4_400_000, 5_500_000)
    );
    assert_eq!(record.auction_time, MIDNIGHT + 36_000_000_000_001);
    assert_eq!(
        (record.auction_type as u8, record.auction_status),
        (b'O', b'Y')
    );
    assert_eq!(
        last_words(&[listing])[2..],
        ["LowerPriceLimit 11 -", "UpperPriceLimit 22 -"]
    );
}

const LENGTHS: [(u8, usize); 23] = [
    (b'S', 12),
    (b'R', 39),
    (b'H', 25),
    (b'Y', 20),
    (b'L', 26),
    (b'V', 35),
    (b'W', 12),
    (b'K', 28),
    (b'J', 35),
    (b'h', 21),
    (b'A', 36),
    (b'F', 40),
    (b'E', 31),
    (b'C', 36),
    (b'X', 23),
    (b'D', 19),
    (b'U', 35),
    (b'P', 44),
    (b'Q', 40),
    (b'B', 19),
    (b'I', 50),
    (b'N', 20),
    (b'O', 48),
];

#[test]
fn types_are_read_by_length_longer_not_shorter() {
    for (kind, len) in LENGTHS {
        let whole = [&[kind][..], &vec![b'B'; len - 1]].concat();
        let reported = decode(std::slice::from_ref(&whole));
        assert_eq!(reported.messages.len(), 1, "{}", char::from(kind));
        let longer = [&whole[..], b"appended"].concat();
        assert_eq!(
            all_words(&decode(&[longer])),
            all_words(&reported),
            "{}",
            char::from(kind)
        );
        let reported = decode(&[whole[..len - 1].to_vec()]);
        assert!(reported.messages.is_empty());
        let [Incident::UnreadableMessage { position, .. }] = reported.incidents[..] else {
            panic!("{:?}", reported.incidents);
        };
        assert_eq!(position, SourcePosition::new(0, 1));
    }
    let reported = decode(&[b"z-unknown".to_vec()]);
    assert_eq!(
        reported.incidents,
        [Incident::UnknownMessage { kind: b'z' }]
    );
}

#[test]
fn message_bytes_survive_read_and_write() {
    use tickcast_feeds::itch::messages::*;
    macro_rules! survive {
        ($($name:ident),+) => {$({
            let mut bytes = [0; $name::LEN];
            (1..).zip(&mut bytes).for_each(|(n, byte)| *byte = n);
            bytes[0] = $name::KIND;
            if $name::KIND == b'H'
                && let Some(reserved) = bytes.get_mut(20)
            {
                *reserved = b' ';
            }
            assert_eq!($name::read(&bytes).to_bytes(), bytes, stringify!($name));
            let read = ItchMessage::read(&bytes).unwrap();
            assert_eq!(read, ItchMessage::$name($name::read(&bytes)));
            // The first 48 bits of the time are 6, 7, 8, 9, 10, 11.
            let head = Head { locate: 0x0203, tracking: 0x0405, timestamp: 0x0607_0809_0a0b };
            assert_eq!(read.head(), head);
        })+};
    }
    survive!(
        SystemEvent,
        StockDirectory,
        TradingAction,
        RegSho,
        ParticipantPosition,
        DeclineLevels,
        DeclineStatus,
        IpoQuoting,
        AuctionCollar,
        OperationalHalt,
        AddOrder,
        AddOrderMpid,
        OrderExecuted,
        OrderExecutedPrice,
        OrderCancel,
        OrderDelete,
        OrderReplace,
        Trade,
        CrossTrade,
        BrokenTrade,
        Imbalance,
        RetailInterest,
        DirectListing
    );
}

#[test]
fn unknown_receive_time_flags_records() {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    decoder.message(
        SourcePosition::new(0, 1),
        Nanos::ZERO,
        &add(1, b'B', 1, 1),
        &mut reported,
    );
    let record = &reported.all::<MboMsg>()[0];
    assert_eq!(
        (record.ts_recv, record.ts_in_delta),
        (record.hd.ts_event, 0)
    );
    assert!(record.flags.is_bad_ts_recv() && record.flags.is_last());
}

#[test]
fn unknown_day_leaves_venue_times_undefined() {
    let (mut decoder, mut reported) = (
        ItchDecoder::new(ItchSettings::default()),
        Recorded::default(),
    );
    decoder.message(
        SourcePosition::new(0, 1),
        Nanos::ZERO,
        &add(1, b'B', 1, 1),
        &mut reported,
    );
    decoder.message(
        SourcePosition::new(0, 2),
        RECEIVED,
        &add(2, b'B', 1, 1),
        &mut reported,
    );
    let records = reported.all::<MboMsg>();
    let times = |m: &MboMsg| (m.hd.ts_event, m.ts_in_delta);
    assert_eq!(times(&records[0]), (UNDEF_TIMESTAMP, 0));
    assert_eq!(records[1].hd.ts_event, MIDNIGHT + TIME);
}

#[test]
fn full_order_table_refuses_and_orders_are_unknown() {
    let settings = ItchSettings {
        orders_max: 1,
        ..ItchSettings::default()
    };
    let (mut decoder, mut reported) = (ItchDecoder::new(settings), Recorded::default());
    decoder.message(
        SourcePosition::new(0, 1),
        RECEIVED,
        &add(1, b'B', 1, 1),
        &mut reported,
    );
    decoder.message(
        SourcePosition::new(0, 2),
        RECEIVED,
        &add(2, b'B', 1, 1),
        &mut reported,
    );
    assert_eq!((decoder.orders().len(), decoder.orders().refused()), (1, 1));
    decoder.message(
        SourcePosition::new(0, 3),
        RECEIVED,
        &message(b'D', 7, &[&2_u64.to_be_bytes()]),
        &mut reported,
    );
    assert_eq!(reported.incidents, [Incident::UnknownOrder]);
    assert_eq!(reported.all::<MboMsg>()[2].size, UNDEF_ORDER_SIZE);
}

/// Returns a packet of one message.
fn packet(session: u8, sequence: u64, message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![session; 10];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(1_u16.to_be_bytes());
    bytes.extend((message.len() as u16).to_be_bytes());
    bytes.extend(message);
    bytes
}

#[test]
fn trade_date_of_next_session_can_be_set() {
    let (mut decoder, mut reported) = (
        ItchDecoder::new(ItchSettings::default()),
        Recorded::default(),
    );
    let mut send = |decoder: &mut ItchDecoder, session, sequence, received_at| {
        let payload = &packet(session, sequence, &add(sequence, b'B', 1, 1));
        decoder.packet(
            Packet {
                received_at,
                payload,
            },
            &mut reported,
        );
    };
    let day = 86_400_000_000_000;
    send(&mut decoder, b'1', 1, RECEIVED);
    // Received on the next day, but of the same session.
    send(&mut decoder, b'1', 2, Nanos(RECEIVED.0 + day));
    decoder.set_trade_date(TradeDate::Fixed(date(2023, 8, 25)));
    send(&mut decoder, b'1', 3, RECEIVED);
    send(&mut decoder, b'2', 1, RECEIVED);
    let times: Vec<_> = reported.all::<MboMsg>();
    let times: Vec<_> = times.iter().map(|m| m.hd.ts_event).collect();
    let first = MIDNIGHT + TIME;
    assert_eq!(times, [first, first, first, first + 3 * day]);
}

#[test]
fn another_session_begins_with_an_empty_book() {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    for bytes in [
        packet(b'1', 1, &add(1, b'B', 1, 1)),
        packet(b'2', 1, &add(2, b'B', 1, 1)),
    ] {
        decoder.packet(
            Packet {
                received_at: RECEIVED,
                payload: &bytes,
            },
            &mut reported,
        );
    }
    assert!(matches!(
        reported.incidents[..],
        [Incident::SessionChange { .. }]
    ));
    assert_eq!(reported.positions(), [(0, 1), (1, 1)]);
    assert_eq!(decoder.orders().len(), 1);
    assert_eq!(
        reported.all::<SymbolMappingMsg>().len(),
        2,
        "locates are dealt anew"
    );
}

#[test]
fn resumed_itch_decoder_knows_names_and_no_orders() {
    let packet = |sequence: u64, messages: &[Vec<u8>]| {
        let mut bytes = vec![b'1'; 10];
        bytes.extend(sequence.to_be_bytes());
        bytes.extend((messages.len() as u16).to_be_bytes());
        for message in messages {
            bytes.extend((message.len() as u16).to_be_bytes());
            bytes.extend(message);
        }
        bytes
    };
    let take = |decoder: &mut ItchDecoder, reported: &mut Recorded, payload: &[u8]| {
        let received_at = RECEIVED;
        decoder.packet(
            Packet {
                received_at,
                payload,
            },
            reported,
        );
    };
    let (mut killed, mut reported) = (decoder(), Recorded::default());
    assert_eq!(killed.session(), None);
    take(
        &mut killed,
        &mut reported,
        &packet(1, &[add(1, b'B', 5, 1)]),
    );
    let mut resumed = decoder();
    let session = killed.session().unwrap();
    resumed.resume(&ResumePoint {
        session: Some(session.id),
        next: SourcePosition::new(session.ordinal, 2),
        instruments: vec![(7, Symbol(*b"ZVZZT   ")), (70_000, Symbol(*b"A       "))],
        next_id: 1,
        ..ResumePoint::default()
    });
    assert_eq!(resumed.session(), Some(session));
    let mut reported = Recorded::default();
    let delete = message(b'D', 7, &[&1_u64.to_be_bytes()]);
    let messages = [delete, add(2, b'B', 5, 1)];
    take(&mut resumed, &mut reported, &packet(4, &messages));
    let from = SourcePosition::new(0, 2);
    let missed = Incident::Gap { from, missing: 2 };
    assert_eq!(reported.incidents, [missed, Incident::UnknownOrder]);
    assert_eq!(reported.all::<MboMsg>()[0].size, UNDEF_ORDER_SIZE);
    assert!(
        reported.all::<SymbolMappingMsg>().is_empty(),
        "it has its name"
    );
    assert_eq!(resumed.orders().len(), 1);
}

#[test]
fn unnumbered_packets_have_no_session_to_continue() {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    let message = add(1, b'B', 5, 1);
    let mut payload = vec![0; 18];
    payload.extend(1_u16.to_be_bytes());
    payload.extend((message.len() as u16).to_be_bytes());
    payload.extend(&message);
    decoder.packet(
        Packet {
            received_at: RECEIVED,
            payload: &payload,
        },
        &mut reported,
    );
    assert_eq!(reported.positions(), [(0, 1)]);
    assert_eq!(decoder.session(), None);
}

// Whole files.

fn binary_file(path: &Path) -> (ItchDecoder, Recorded, BinaryFile) {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    let mut file = BinaryFile::open(path).unwrap();
    let mut sequence = 0;
    while let Some(message) = file.next().unwrap() {
        sequence += 1;
        decoder.message(
            SourcePosition::new(0, sequence),
            Nanos::ZERO,
            message,
            &mut reported,
        );
    }
    (decoder, reported, file)
}

#[test]
fn first_thousand_messages_of_day_are_directory() {
    let Some(data) = data_dir() else { return };
    let path = data.join("nasdaq-itch50-binaryfile/bbekele_sample.itch");
    let (decoder, reported, file) = binary_file(&path);
    let counts: Vec<_> = decoder.counts().iter().collect();
    assert_eq!(counts, [(b'H', 3), (b'R', 993), (b'S', 1), (b'Y', 3)]);
    assert_eq!((file.stats().messages, file.stats().truncated), (1000, 0));
    assert!(reported.incidents.is_empty());
    let words = all_words(&reported);
    // Read from the first bytes: 0x0a11ea0e8c43, 0x0a53a2887058 and 0x0a53a289933e.
    assert_eq!(
        words[0],
        format!("0 {} None Scheduled ~~~", 0x0a11_ea0e_8c43_u64)
    );
    assert_eq!(words[1], format!("1 {} defines A", 0x0a53_a288_7058_u64));
    assert_eq!(words[2], format!("2 {} defines AA", 0x0a53_a289_933e_u64));
    let second = &reported.all::<InstrumentDefMsg>()[1];
    assert_eq!(second.group().unwrap(), "N NCZ PN 1NN");
    assert_eq!(
        (second.min_lot_size_round_lot, second.inst_attrib_value),
        (100, 1)
    );
}

#[test]
fn sample_without_lengths_has_all_messages() {
    let Some(data) = data_dir() else { return };
    let path = data.join("nasdaq-itch50-binaryfile/ex20101224.TEST_ITCH_50");
    // By the layout: walk the message types, and count references that were never added.
    let bytes = std::fs::read(&path).unwrap();
    let mut at = 0;
    let (mut by_type, mut added, mut unknown) = ([0_u64; 256], std::collections::HashSet::new(), 0);
    while at < bytes.len() {
        let kind = bytes[at + 2];
        let len = LENGTHS.iter().find(|(k, _)| *k == kind).unwrap().1;
        let message = &bytes[at + 2..at + 2 + len];
        by_type[usize::from(kind)] += 1;
        match kind {
            b'A' | b'F' => {
                added.insert(message[11..19].to_vec());
            }
            b'E' | b'C' | b'X' | b'D' => unknown += u32::from(!added.contains(&message[11..19])),
            b'U' => {
                unknown += u32::from(!added.contains(&message[11..19]));
                added.insert(message[19..27].to_vec());
            }
            _ => {}
        }
        at += 2 + len;
    }
    assert_eq!(
        (by_type.iter().sum::<u64>(), unknown),
        (12_012, 117),
        "as the sample is known"
    );
    let (decoder, reported, file) = binary_file(&path);
    assert_eq!((file.stats().messages, file.stats().truncated), (12_012, 0));
    for (kind, count) in (0..=u8::MAX).zip(by_type) {
        assert_eq!(
            decoder.counts().of(kind),
            count,
            "type {}",
            char::from(kind)
        );
    }
    assert_eq!(
        reported.messages.len(),
        12_012,
        "each becomes at least one record"
    );
    assert_eq!(reported.incidents, vec![Incident::UnknownOrder; 117]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_itch_bytes_cause_no_panic(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)
    ) {
        let (mut decoder, mut reported) = (decoder(), Recorded::default());
        for payload in &packets {
            decoder.packet(Packet { received_at: RECEIVED, payload }, &mut reported);
            decoder.message(SourcePosition::new(0, 1), Nanos::ZERO, payload, &mut reported);
        }
    }

    #[test]
    fn damaged_valid_packets_never_panic_or_overdeliver(
        kinds in prop::collection::vec(0_usize..LENGTHS.len(), 1..12),
        fill in any::<u8>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut payload = b"000000000A\0\0\0\0\0\0\0\x01".to_vec();
        payload.extend((kinds.len() as u16).to_be_bytes());
        for &kind in &kinds {
            let (kind, len) = LENGTHS[kind];
            payload.extend((len as u16).to_be_bytes());
            payload.push(kind);
            payload.extend(vec![fill; len - 1]);
        }
        let whole = payload.clone();
        for (at, value) in damage {
            let at = at.index(payload.len());
            payload[at] = value;
        }
        payload.truncate(cut.index(payload.len()) + 1);
        let (mut decoder, mut reported) = (decoder(), Recorded::default());
        decoder.packet(Packet { received_at: RECEIVED, payload: &payload }, &mut reported);
        prop_assert!(reported.messages.len() * 14 <= payload.len());
        decoder.packet(Packet { received_at: RECEIVED, payload: &whole }, &mut reported);
    }
}
