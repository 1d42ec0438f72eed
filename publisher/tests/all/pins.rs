//! Slots that a transport still reads are not overwritten before it releases them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tickcast_publisher::Config;
use tickcast_publisher::internal::{ChannelDriver, ChannelShared, Plan};
use tickcast_reliability::publish::PublisherConfig;
use tickcast_reliability::record::{MboMsg, RType, RecordBatch, RecordHeader};
use tickcast_reliability::ring::{RingIdentity, RingWriter};
use tickcast_reliability::types::{
    Epoch, Nanos, Now, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::{FanOut, FanOutError, Posted, SendStats, Slots};

const SLOTS: u64 = 64;

/// Accepts everything and completes nothing, like a stalled device.
struct StandsStill {
    /// The oldest pinned sequence; 0: none.
    pinned: Arc<AtomicU64>,
    stats: [SendStats; 1],
}

impl FanOut for StandsStill {
    fn post(&mut self, _: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        let _ =
            self.pinned
                .compare_exchange(0, range.first.0, Ordering::Relaxed, Ordering::Relaxed);
        Ok(Posted {
            last: Some(range.last),
            stalled: false,
        })
    }

    fn completed(&mut self) -> Option<Sequence> {
        None
    }

    fn send_copy(&mut self, _: &[u8]) -> Result<bool, FanOutError> {
        Ok(true)
    }

    fn reset(&mut self) {
        self.pinned.store(0, Ordering::Relaxed);
    }

    fn datagram_len_max(&self) -> usize {
        1024
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}

#[test]
fn pinned_slots_are_released_before_overwrite() {
    let config = json!({
        "name": "pins", "interface": "lo",
        "channels": [{
            "id": 1, "name": "all", "slot_len": 1024, "slots": SLOTS, "fan_out_margin_slots": 2,
            "peak_datagrams_per_s": 10,
            "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }],
        }],
        "inputs": [{ "source": 1, "kind": "simulator", "messages": 10 }],
    });
    let plan = Plan::new(Config::parse(&config.to_string()).unwrap()).unwrap();
    let plan = plan.channels.into_iter().next().unwrap();
    let memory = SharedMapping::memfd("pins", plan.geometry.bytes()).unwrap();
    let identity = RingIdentity {
        channel: plan.id,
        epoch: Epoch(1),
        config_hash: plan.config_hash,
        boot_id: [0; 16],
        fan_outs: 1,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    };
    let ring = RingWriter::create(Arc::new(memory), plan.geometry, identity).unwrap();
    let core = PublisherConfig {
        fan_out_margin_slots: plan.fan_out_margin_slots,
        ..PublisherConfig::default()
    };
    let shared = Arc::new(ChannelShared::new(plan, ring.reader()));
    let pinned = Arc::new(AtomicU64::new(0));
    let fan_out = StandsStill {
        pinned: Arc::clone(&pinned),
        stats: [SendStats::default()],
    };
    let now = Now {
        monotonic: Nanos(1),
        utc: Nanos(1),
    };
    let fan_outs: Vec<Box<dyn FanOut>> = vec![Box::new(fan_out)];
    let mut driver = ChannelDriver::new(core, ring, fan_outs, false, shared, now.monotonic);
    let mut message = RecordBatch::default();
    message.put(&MboMsg {
        hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, 7, 0),
        ..MboMsg::default()
    });
    let mut resets = 0;
    for round in 0..4 {
        // One burst between two sends, four times as long as the ring.
        for n in 0..4 * SLOTS {
            let at = SourcePosition::new(0, round * 4 * SLOTS + n + 1);
            driver
                .publish((&message).into(), SourceId(1), at, now)
                .unwrap();
            driver.flush(now);
            let first = pinned.load(Ordering::Relaxed);
            assert!(
                first == 0 || driver.sealed().0 < first + SLOTS,
                "{} was sealed over {first}, which is pinned",
                driver.sealed()
            );
        }
        resets += u32::from(round > 0 && pinned.load(Ordering::Relaxed) == 0);
        driver.drive(now).unwrap();
        assert!(pinned.load(Ordering::Relaxed) > 0, "it was posted");
    }
    assert_eq!(resets, 3);
}
