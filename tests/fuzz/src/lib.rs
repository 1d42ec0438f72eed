//! One function for each kind of external input. It takes any bytes and panics only if an invariant is
//! broken: external input must never cause a panic, a hang or a silent loss.
//!
//! A fuzzer calls these functions (`make fuzz`), and a test calls each with its committed corpus. Each
//! function's docs state its invariants; docs/VERIFICATION.md has the table.

mod admin;
mod bytes;
mod captures;
mod config;
mod control;
pub mod corpus;
mod datagram;
mod feeds;
mod held;
mod hostile_publisher;
mod journal;
mod mapped;
mod mutation;
#[path = "../../../reliability/tests/pair/mod.rs"]
mod pair;
mod receive_core;
mod ring;
mod spoilt;
#[path = "../../../reliability/tests/receiving/world.rs"]
#[allow(dead_code, unused_qualifications, reason = "tests use the rest of it")]
mod world;

pub use admin::admin;
pub use captures::captures;
pub use config::config;
pub use control::control;
pub use datagram::datagram;
pub use feeds::{iex_deep, iex_tops, itch, moldudp64};
pub use hostile_publisher::hostile_publisher;
pub use journal::journal;
pub use mapped::mapped;
pub use mutation::Mutation;
pub use receive_core::receive_core;
pub use ring::ring;

/// One kind of external input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the function, and of its folder in the corpus.
    pub name: &'static str,
    /// Takes any bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 14] = [
    Target {
        name: "datagram",
        run: datagram,
    },
    Target {
        name: "control",
        run: control,
    },
    Target {
        name: "moldudp64",
        run: moldudp64,
    },
    Target {
        name: "itch",
        run: itch,
    },
    Target {
        name: "iex_tops",
        run: iex_tops,
    },
    Target {
        name: "iex_deep",
        run: iex_deep,
    },
    Target {
        name: "captures",
        run: captures,
    },
    Target {
        name: "config",
        run: config,
    },
    Target {
        name: "receive_core",
        run: receive_core,
    },
    Target {
        name: "ring",
        run: ring,
    },
    Target {
        name: "mapped",
        run: mapped,
    },
    Target {
        name: "hostile_publisher",
        run: hostile_publisher,
    },
    Target {
        name: "journal",
        run: journal,
    },
    Target {
        name: "admin",
        run: admin,
    },
];

/// Limit of an input's length. Longer inputs are cut, because they reach no new code and take longer.
pub const INPUT_LEN_MAX: usize = 16 << 10;

impl Target {
    /// Returns the target of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Runs the target with at most [`INPUT_LEN_MAX`] bytes of `bytes`.
    pub fn take(&self, bytes: &[u8]) {
        (self.run)(&bytes[..bytes.len().min(INPUT_LEN_MAX)]);
    }
}
