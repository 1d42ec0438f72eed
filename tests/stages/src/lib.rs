//! The stages that a tick passes from an exchange's packet to the application, each as a piece of
//! work of its own, defined once: `counts` counts their instructions against a committed table, the
//! benchmarks time them (docs/PERFORMANCE.md).
//!
//! All of it is synthetic and decided by no chance: no capture, no clock, no thread but where a
//! stage is the whole product. Datagrams are full for an MTU of 1500: 25 records of 56 bytes.

pub mod callgrind;
mod decoding;
mod pair;
mod paths;
mod product;
mod publishing;
mod receiving;
mod repairing;
mod rings;
pub mod table;
mod wire;

/// A stage, ready to run.
pub trait Work {
    /// What comes before each run and is no part of the stage: neither counted nor timed.
    fn prepare(&mut self);
    /// Does the stage's work, some hundred times at least. How many operations that were.
    fn run(&mut self) -> u64;
}

/// A stage, or what this host lacks that it needs.
pub type Opened = Result<Box<dyn Work>, String>;

/// What a stage is.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Its name in the table and among the benchmarks.
    pub name: &'static str,
    /// What one operation is.
    pub per: &'static str,
    /// Makes it ready.
    pub open: fn() -> Opened,
    /// Whether its count follows from the code alone. A stage in which sockets, threads or the clock have
    /// a part is reported only: its count differs from run to run and from kernel to kernel.
    pub is_exact: bool,
}

const fn stage(name: &'static str, per: &'static str, open: fn() -> Opened) -> Stage {
    Stage {
        name,
        per,
        open,
        is_exact: true,
    }
}

/// A stage that the host has a part in.
const fn hosted(name: &'static str, per: &'static str, open: fn() -> Opened) -> Stage {
    Stage {
        is_exact: false,
        ..stage(name, per, open)
    }
}

/// Every stage, in the order in which a tick passes them.
pub const STAGES: &[Stage] = &[
    stage("decode-itch", "message", decoding::itch),
    stage("decode-tops", "message", decoding::tops),
    stage("decode-deep", "message", decoding::deep),
    stage("header-encode", "header", wire::encode),
    stage("header-decode", "header", wire::decode),
    stage("crc-full", "datagram of 25", wire::crc_full),
    stage("crc-one", "datagram of 1", wire::crc_one),
    stage("pack-full", "record", rings::pack_full),
    stage("pack-one", "record", rings::pack_one),
    stage("packed-full", "record", publishing::full),
    stage("packed-one", "record", publishing::one),
    stage("recorded-pack-full", "record", publishing::recorded_full),
    stage("recorded-pack-one", "record", publishing::recorded_one),
    stage("ring-write", "datagram of 25", rings::write),
    stage("ring-read", "datagram of 25", rings::read),
    stage("shm-read", "datagram of 25", rings::read_shared),
    hosted("udp-send", "datagram of 25", paths::send),
    hosted("udp-receive", "datagram of 25", paths::receive),
    stage("window-in-order", "record", receiving::in_order),
    stage("window-one", "record", receiving::one),
    stage("recorded-in-order", "record", receiving::recorded_in_order),
    stage("recorded-one", "record", receiving::recorded_one),
    stage("window-whole", "record", receiving::whole),
    stage("window-loss", "record", receiving::loss),
    stage("nack-one", "lost datagram", repairing::one),
    stage("nack-burst", "lost datagram", repairing::burst),
    stage("path-cores", "record", paths::cores),
    hosted("path-udp", "record", paths::udp),
    stage("path-shm", "record", paths::shm),
    hosted("path-udp-one", "record", paths::udp_one),
    stage("path-shm-one", "record", paths::shm_one),
    hosted("product-udp", "record", product::udp),
    hosted("product-udp-runs", "record", product::udp_runs),
    hosted("product-shm", "record", product::shm),
    hosted("recorded-udp", "record", product::recorded),
    hosted(
        "recorded-publisher-udp",
        "record",
        product::recorded_publisher,
    ),
];

/// A stage's work as two functions over what it keeps.
struct Steps<S> {
    state: S,
    prepare: fn(&mut S),
    run: fn(&mut S) -> u64,
}

impl<S> Work for Steps<S> {
    fn prepare(&mut self) {
        (self.prepare)(&mut self.state);
    }

    fn run(&mut self) -> u64 {
        (self.run)(&mut self.state)
    }
}

fn steps<S: 'static>(state: S, prepare: fn(&mut S), run: fn(&mut S) -> u64) -> Opened {
    Ok(Box::new(Steps {
        state,
        prepare,
        run,
    }))
}

/// Runs a stage. What is counted is what happens in here ([`callgrind`]).
#[inline(never)]
pub fn measured(work: &mut dyn Work) -> u64 {
    work.run()
}
