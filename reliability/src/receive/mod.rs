//! One channel of a subscriber: from datagrams, and the messages of the repair connection, to records
//! in order (docs/PROTOCOL.md §5).
//!
//! [`Receiver`] takes the inputs. Each piece of its state has one owner:
//!
//! - `lines`: which lines are heard; `liveness`: whether the publisher and its multicast are
//! - `stream`: the sequences of the epoch that is followed, composed of
//!     - `join`: the epoch, the beginning, the repair connection
//!     - `extent`: what is known to have been sent, from `progress`, the reports to the publisher;
//!       `confirmed`, how far multicast may run ahead of the repair path, and the proof of an impostor; and
//!       `end`, the end of the session
//!     - `recovery`, composed of `repair`: missing sequences (`gaps`, `contested`), when they are given up
//!       (`deadlines`), and when and where to request them (`requests`); and of `reassembly`: delivery in
//!       order, from the `window` of early datagrams, to the stream of the application (`in_order`). That
//!       keeps what was delivered (`remembered`) and reported (`revocable`) lately, in case an impostor sent
//!       it
//! - `rdma_read` and `inbox`: memory shared with the publisher

mod config;
mod confirmed;
mod contested;
mod deadlines;
mod end;
mod extent;
mod gaps;
mod in_order;
mod inbox;
mod join;
mod lines;
mod liveness;
mod mirror;
mod path;
mod progress;
mod rdma_read;
mod reassembly;
mod receiver;
mod recovery;
mod remembered;
mod repair;
mod replayed_records;
mod requests;
mod revocable;
mod stream;
mod window;

pub use self::config::{ReceiverConfig, ReceiverConfigError, RepairOrder};
pub use self::inbox::{InboxState, InboxView, InboxWanted};
pub use self::join::Welcomed;
pub use self::mirror::{Mirror, MirrorError, MirrorHost, Mirrored, NotPromoted, Promotion};
pub(crate) use self::path::ArrivalPath;
pub use self::rdma_read::RemoteOp;
pub(crate) use self::rdma_read::{ReadRoom, Readable};
pub(crate) use self::receiver::ChannelHealth;
pub use self::receiver::Receiver;
pub use self::requests::{PathHealth, RepairRequests};

#[cfg(test)]
mod tests {
    mod fast_path;
}
