//! A simulated market, and the decoder that reads it, hold in the last hour of a day what they held in its
//! first minute.

use jiff::civil::date;
use tickcast_feeds::itch::{ItchDecoder, ItchSettings, TradeDate};
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::units::{Nanos, SourcePosition};

struct Counting(u64);

impl Sink for Counting {
    fn message(&mut self, _: SourcePosition, _: &RecordBatch) {
        self.0 += 1;
    }

    fn incident(&mut self, _: Incident) {}
}

#[test]
fn neither_the_simulated_market_nor_its_decoder_allocates_once_it_runs() {
    let config = SimulatorConfig {
        symbols: 200,
        messages: 0,
        duration_ms: 3_600_000,
        ..SimulatorConfig::default()
    };
    for seed in [1, 7] {
        let mut simulator = Simulator::new(&config, seed).unwrap();
        let mut decoder = ItchDecoder::new(ItchSettings {
            trade_date: TradeDate::Fixed(date(2025, 3, 7)),
            expect_from_one: true,
            ..ItchSettings::default()
        });
        let mut seen = Counting(0);
        let mut until = |messages: u64| {
            while seen.0 < messages {
                let packet = simulator.next_packet().expect("an hour of trading");
                let packet = Packet {
                    received_at: Nanos(1 + packet.at.0),
                    payload: packet.payload,
                };
                decoder.packet(packet, &mut seen);
            }
        };
        // The opening: instruments become known.
        until(10_000);
        let counted = allocation_counter::measure(|| until(3_000_000));
        assert_eq!(counted.count_total, 0, "seed {seed}: {counted:?}");
    }
}
