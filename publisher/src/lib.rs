//! The publisher: exchange feeds in, numbered and repairable datagrams out, on every channel and
//! fan-out of a config. The stream itself reports what a source or the publisher lost.
//!
//! ```text
//! input ─ feed thread ─ queue ─┐                       ┌ fan-outs (multicast)
//! your handler ─────── queue ─┴ publish thread ─ ring ┴ repair thread ─ TCP
//! ```
//!
//! [`Publisher`] serves handlers of your own in this process: open it, ask it for a
//! [`ChannelWriter`], and publish DBN records. [`InlinePublisher`] does the same on the thread of
//! its handler. The binary `tickcast-publisher` runs the inputs of a config.
//!
//! The folders from top to bottom; each imports only folders that stand below it:
//!
//! 1. `api`: the types that a handler links
//! 2. `run`: assembles the threads from the parts below, and ends them
//! 3. `recovery`: the epoch file, and the rings that outlive a restart
//! 4. `publish`: the way of a record from its source to the ring and the fan-outs
//! 5. `standby`: mirroring another publisher, and taking over from it
//! 6. `repair`: the repair thread, with its access control and audit
//! 7. `ingest`: the inputs, and the queue to the publish thread
//! 8. `admin`: the admin port, the command endpoints, metrics and summaries
//! 9. `state`: counters and flags that threads share
//! 10. `plan`: the config, resolved and checked
//! 11. `config`: the config as it is written
//! 12. `error`: why a publisher does not start, or stops

mod admin;
mod api;
pub mod config;
pub mod error;
mod ingest;
mod plan;
mod publish;
mod recovery;
mod repair;
mod run;
mod standby;
mod state;

pub use admin::monitor::{ChannelStatus, PublisherMonitor};
pub use admin::summary::{self, PublisherSummary};
pub use api::{ChannelWriter, InlineChannel, InlinePublisher, Publisher, quote, trade};
pub use config::Config;
pub use error::{ChannelClaimError, ConfigError, PublisherError, WriteError};
pub use state::source_loss::{SourceLoss, SourceLossReason, Unread};
pub use state::subscriber_latency::{StageStatus, SubscriberLatency};
pub use state::subscribers::SubscriberStatus;
pub use state::{InputLineCounters, SourceCounters, SourceShared};
pub use tickcast_reliability::control::Instrument;
pub use tickcast_reliability::record;
pub use tickcast_reliability::types::{SourceId, SourcePosition};

/// Parts for the binary, the tools and the tests. They may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::config::schema::schema;
    pub use crate::config::settings::Setting;
    pub use crate::ingest::announced::KnownSymbols;
    pub use crate::plan::Plan;
    pub use crate::publish::channel::ChannelDriver;
    pub use crate::run::command_line::CommandLine;
    pub use crate::run::comparison::compare_with_running;
    pub use crate::run::others::find as find_others;
    pub use crate::run::preflight::preflight;
    pub use crate::run::reload::{ReloadHooks, SetLog};
    pub use crate::run::service::Service;
    pub use crate::run::service_manager::ServiceManager;
    pub use crate::state::ChannelShared;
    pub use crate::state::audit_limits::AuditFilter;
    pub use crate::state::audit_log::{AuditFile, lines_lost};

    /// Addresses and secrets of HTTP endpoints, and a bounded request.
    pub mod http {
        pub use tickcast_http::{EndpointAddress, Token, ask};
    }
}
