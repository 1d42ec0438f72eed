//! The stages of a tick from an exchange's packet to the application, each as a separate piece of work.
//! Each is defined once: `counts` compares its instructions with a committed table, and the benchmarks
//! time it (docs/PERFORMANCE.md).
//!
//! All input is synthetic and deterministic: no capture, no clock, and no thread except in stages that
//! run the whole product. Datagrams are full for an MTU of 1500: 25 records of 56 bytes.

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
    /// Prepares a run. This part is neither counted nor timed.
    fn prepare(&mut self);
    /// Runs the stage, at least some hundred times. Returns the number of operations.
    fn run(&mut self) -> u64;
}

/// A stage, or the reason why this host can't run it.
pub type Opened = Result<Box<dyn Work>, String>;

/// Description of a stage.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Name in the table and among the benchmarks.
    pub name: &'static str,
    /// The unit of an operation.
    pub per: &'static str,
    /// Prepares the stage.
    pub open: fn() -> Opened,
    /// Whether the count depends on the code alone. A stage with sockets, threads or a clock is only
    /// reported, because its count varies between runs and between kernels.
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

/// Returns a stage whose count depends on the host.
const fn hosted(name: &'static str, per: &'static str, open: fn() -> Opened) -> Stage {
    Stage {
        is_exact: false,
        ..stage(name, per, open)
    }
}

/// Every stage, in the order of a tick's path.
pub const STAGES: &[Stage] = &[
    stage("decode-itch", "message", decoding::itch),
    stage("decode-tops", "message", decoding::tops),
    stage("decode-deep", "message", decoding::deep),
    stage("header-encode", "header", wire::encode),
    stage("header-decode", "header", wire::decode),
    stage("crc-full", "datagram of 25", wire::crc_full),
    stage("crc-one", "datagram of 1", wire::crc_one),
    stage("tag-full", "datagram of 24", wire::tag_full),
    stage("tag-one", "datagram of 1", wire::tag_one),
    stage("pack-full", "record", rings::pack_full),
    stage("pack-one", "record", rings::pack_one),
    stage("packed-full", "record", publishing::full),
    stage("packed-one", "record", publishing::one),
    stage("journaled-pack-full", "record", publishing::journaled_full),
    stage("journaled-pack-one", "record", publishing::journaled_one),
    stage("ring-write", "datagram of 25", rings::write),
    stage("ring-write-tagged", "datagram of 24", rings::write_tagged),
    stage("ring-read", "datagram of 25", rings::read),
    stage("shm-read", "datagram of 25", rings::read_shared),
    hosted("udp-send", "datagram of 25", paths::send),
    hosted("udp-receive", "datagram of 25", paths::receive),
    stage("window-in-order", "record", receiving::in_order),
    stage("window-one", "record", receiving::one),
    stage(
        "journaled-in-order",
        "record",
        receiving::journaled_in_order,
    ),
    stage("journaled-one", "record", receiving::journaled_one),
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
    hosted("journaled-udp", "record", product::journaled),
    hosted(
        "journaled-publisher-udp",
        "record",
        product::journaled_publisher,
    ),
];

/// A stage made of a state and two functions over it.
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

/// Runs a stage. Callgrind counts only the instructions in here ([`callgrind`]).
#[inline(never)]
pub fn measured(work: &mut dyn Work) -> u64 {
    work.run()
}
