//! State shared by a publisher's threads: counters with one writer each, flags, and rare messages
//! between threads. No lock is taken per tick.

pub(crate) mod audit_limits;
pub(crate) mod audit_log;
pub(crate) mod command;
pub(crate) mod endpoint_counters;
pub(crate) mod foreign;
pub(crate) mod hand_over;
pub(crate) mod hearing;
pub(crate) mod journal;
pub(crate) mod losses;
pub(crate) mod positions;
pub(crate) mod reload;
pub(crate) mod rounds;
pub(crate) mod source_loss;
pub(crate) mod source_memory;
pub(crate) mod standby;
pub(crate) mod standby_view;
pub(crate) mod subscriber_latency;
pub(crate) mod subscribers;
pub(crate) mod thread;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;
use serde_json::Value;
use tickcast_feeds::source::{Decoder, MessageCounts};
use tickcast_reliability::control::Instrument;
use tickcast_reliability::ring::RingReader;
use tickcast_reliability::serve::RepairConfig;
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RepairCounters, RepairServiceCounters, SenderCounters, Sequence,
    SourceId, SourcePosition,
};
use tickcast_transport::SendStats;
use tickcast_transport::verbs::port_events::PortEvents;

use crate::config::Config;
use crate::config::settings::shown;
use crate::plan::{ChannelPlan, FanOutPlan};
use crate::state::endpoint_counters::AllEndpointCounters;
use crate::state::foreign::ForeignTable;
use crate::state::hearing::Hearing;
use crate::state::losses::LossTable;
use crate::state::reload::Reloads;
use crate::state::rounds::Rounds;
use crate::state::source_memory::SourceMemory;
use crate::state::standby::StandbyState;
use crate::state::subscribers::Subscribers;

tickcast_reliability::counters! {
    /// Counters of one source.
    pub struct SourceCounters {
        /// Packets received (UDP payloads, or messages of a file).
        source_packets,
        /// Bytes of received packets.
        source_bytes,
        /// Messages that became records.
        source_messages,
        /// Records decoded.
        source_records,
        /// Gaps in the source's sequence; the stream reports each.
        source_gaps,
        /// Messages missing in those gaps.
        source_missing_messages,
        /// Times that the venue restarted its sequence.
        source_resets,
        /// Times that the venue opened another session.
        source_session_changes,
        /// Times that the venue ended a session.
        source_session_ends,
        /// Messages received before: from the other line, or resent.
        source_duplicates,
        /// Messages that came after they had been passed over.
        source_late,
        /// Messages that differ from those that another line brought under the same numbers.
        source_conflicting,
        /// Packets of another feed.
        source_foreign,
        /// Times that a line fell silent while another was heard.
        source_line_stops,
        /// Times that the whole source fell silent; the stream reports each.
        source_silences,
        /// Packets or messages that could not be parsed, and losses of unreadable bytes of a file.
        source_malformed,
        /// Messages that are well-formed and of an unknown type.
        source_unknown_messages,
        /// Messages that refer to an unknown order.
        source_unknown_orders,
        /// Quantities that exceeded their field and were saturated.
        source_saturated,
        /// Files that ended within a record.
        source_truncated,
        /// Frames of a file that carry the feed; messages of a file without frames.
        source_used_frames,
        /// Frames of a capture that are known to carry no feed.
        source_harmless_frames,
        /// Frames of a capture that belong to another protocol, destination or feed.
        source_foreign_frames,
        /// Frames of a capture that could not be read whole.
        source_damaged_frames,
        /// Bytes of a file that could not be read.
        source_damaged_bytes,
        /// Errors for which a file that was read to its end is not whole; the log states each.
        source_faults,
        /// Times that a wait of a paced file was cut to 10 s.
        source_capped_waits,
        /// Frames of a capture skipped: not UDP, fragmented, damaged, or of an unsupported link type.
        source_skipped_frames,
        /// Frames of a capture that were cut off when captured.
        source_snapped,
        /// Packets of a capture without the time stamp that the config asks for.
        source_unstamped,
        /// Packets skipped before the feed's format was recognised.
        source_unrecognised_packets,
        /// Messages lost because the queue to the publish thread was full; the stream reports them.
        source_overflow_messages,
        /// Messages of instruments that no channel carries.
        source_unrouted_messages,
        /// Packets dropped by the kernel for lack of receive buffer.
        source_kernel_dropped,
        /// Connections of a `records` input accepted.
        source_connections,
        /// Connections of a `records` input refused or closed: a second writer, or invalid data.
        source_refused_connections,
        /// Packets that exceed the receive buffers.
        source_oversize,
        /// Packets from addresses that the config does not name.
        source_unknown_senders,
        /// Errors that ended the source early.
        source_errors,
        /// 1 if the source has ended (a gauge).
        source_ended,
    }
}

tickcast_reliability::counters! {
    /// Counters of one line of one source.
    pub struct InputLineCounters {
        /// Packets of the source that the line brought.
        input_line_packets,
        /// Messages that the line brought first.
        input_line_first,
        /// Messages that came after they had been passed over.
        input_line_late,
        /// Messages that had been delivered before.
        input_line_duplicates,
        /// Messages of packets of another feed or session.
        input_line_foreign,
        /// Messages that the line left out.
        input_line_missing,
        /// Packets that a message came after its place, at most (a gauge).
        input_line_reorder_depth,
        /// Microseconds of lag behind the first copy: the median, rounded up to a power of two (a gauge).
        input_line_skew_p50_us,
        /// Microseconds of lag that a hundredth of the copies exceed, rounded up likewise (a gauge).
        input_line_skew_p99_us,
        /// 1 while the line is silent and another is heard (a gauge).
        input_line_stopped,
    }
}

tickcast_reliability::counters! {
    /// Counters of one line of one fan-out.
    pub struct LineCounters {
        /// Datagrams passed to the network.
        line_datagrams,
        /// Bytes passed to the network.
        line_bytes,
        /// Calls to the system that sent something.
        line_batches,
        /// 1 if runs of datagrams go to the kernel as one buffer, GSO (a gauge).
        line_gso,
        /// Runs of datagrams sent as one buffer.
        line_gso_runs,
        /// Datagrams sent in such runs.
        line_gso_datagrams,
        /// Bytes of zeros that pad datagrams of a run to one length.
        line_gso_padding_bytes,
        /// Runs that the kernel refused to split; GSO pauses after each.
        line_gso_refused,
        /// Times that the send buffer was full.
        line_stalls,
        /// Datagrams of the stream that the network refused: no room in the interface's queue, or no
        /// route.
        line_refused,
        /// Datagrams of heartbeats and multicast repair that found no room or were refused.
        line_unpinned_sends_dropped,
        /// Datagrams dropped at a reset of the fan-out, or returned unsent by a device.
        line_flushed,
        /// Datagrams of the stream that were not passed to the line, because it held up the ring and was
        /// reset. It continues with the newest.
        line_skipped,
        /// Times that a device returned all sends, because it failed or had to restart.
        line_restarts,
        /// Error number of the system, the most recent one; 0 for none (a gauge).
        line_last_errno,
    }
}

impl LineCounters {
    /// Copies a transport's counts.
    pub fn set(&self, stats: &SendStats) {
        self.line_datagrams.set(stats.datagrams);
        self.line_bytes.set(stats.bytes);
        self.line_batches.set(stats.batches);
        self.line_gso.set(stats.gso.into());
        self.line_gso_runs.set(stats.runs);
        self.line_gso_datagrams.set(stats.run_datagrams);
        self.line_gso_padding_bytes.set(stats.padding_bytes);
        self.line_gso_refused.set(stats.runs_refused);
        self.line_stalls.set(stats.stalls);
        self.line_refused.set(stats.refused);
        self.line_unpinned_sends_dropped
            .set(stats.unpinned_sends_dropped);
        self.line_flushed.set(stats.flushed);
        self.line_restarts.set(stats.restarts);
        self.line_last_errno
            .set(stats.last_errno.unsigned_abs().into());
    }
}

tickcast_reliability::counters! {
    /// The latency log.
    pub struct LatencyLogMetrics {
        /// Times that an interval could not be written to the latency log; the next one has its samples.
        latency_log_failures,
        /// Datagrams whose latency was not recorded, because their slots were overwritten before.
        latency_log_skipped,
    }
}

/// State of a source, shared by all threads.
pub struct SourceShared {
    /// Number of the source.
    pub source: SourceId,
    /// Counters of the source.
    pub counters: SourceCounters,
    /// Counters of each line of the source; none for a source without lines.
    pub lines: Vec<InputLineCounters>,
    /// Facts with which a later publisher continues it; set where its epoch can continue.
    pub(crate) memory: OnceLock<SourceMemory>,
    /// When it was heard last; `None` for a source whose silence means nothing.
    hearing: Option<Hearing>,
    types: [AtomicU64; 256],
    foreign: Mutex<ForeignTable>,
    /// The packets in that table, readable without the lock.
    foreign_packets: AtomicU64,
}

impl SourceShared {
    /// Creates the state of a source without counts.
    #[must_use]
    pub fn new(source: SourceId, lines: usize) -> Self {
        Self {
            source,
            counters: SourceCounters::default(),
            lines: (0..lines).map(|_| InputLineCounters::default()).collect(),
            memory: OnceLock::new(),
            hearing: None,
            types: [const { AtomicU64::new(0) }; 256],
            foreign: Mutex::default(),
            foreign_packets: AtomicU64::new(0),
        }
    }

    /// Copies the foreign packets of a live source, if there are new ones.
    pub(crate) fn set_foreign(&self, table: &ForeignTable) {
        if self.foreign_packets.load(Relaxed) != table.packets() {
            self.foreign_packets.store(table.packets(), Relaxed);
            self.foreign().copy(table);
        }
    }

    /// Returns the foreign packets of a live source by destination and sender.
    pub(crate) fn foreign(&self) -> MutexGuard<'_, ForeignTable> {
        locked(&self.foreign)
    }

    /// Keeps when the source and its lines were heard last; it is listened to since `now`.
    #[must_use]
    pub(crate) fn heard_since(self, now: Nanos) -> Self {
        let hearing = Some(Hearing::new(self.lines.len(), now));
        Self { hearing, ..self }
    }

    /// Returns when a live source was heard last; `None` for a source whose silence means nothing.
    pub(crate) const fn hearing(&self) -> Option<&Hearing> {
        self.hearing.as_ref()
    }

    /// Copies a decoder's counts of its lines.
    pub fn set_lines(&self, decoder: &dyn Decoder) {
        for (index, counters) in self.lines.iter().enumerate() {
            let stats = decoder.line(index);
            counters.input_line_packets.set(stats.packets);
            counters.input_line_first.set(stats.first);
            counters.input_line_late.set(stats.late);
            counters.input_line_duplicates.set(stats.duplicates);
            counters.input_line_foreign.set(stats.foreign);
            counters.input_line_missing.set(stats.missing);
            counters.input_line_reorder_depth.set(stats.reorder_depth);
            counters.input_line_skew_p50_us.set(stats.skew_us(0.5));
            counters.input_line_skew_p99_us.set(stats.skew_us(0.99));
            counters.input_line_stopped.set(stats.is_stopped.into());
        }
    }

    /// Copies a decoder's message counts by type.
    pub fn set_types(&self, counts: &MessageCounts) {
        for (kind, count) in counts.iter() {
            self.types[usize::from(kind)].store(count, Relaxed);
        }
    }

    /// Returns the message types received, in readable form, with their counts.
    #[must_use]
    pub fn types(&self) -> Vec<(String, u64)> {
        let all = (0..=u8::MAX).zip(&self.types);
        let seen = all
            .map(|(kind, n)| (kind, n.load(Relaxed)))
            .filter(|(_, n)| *n > 0);
        seen.map(|(kind, n)| (char::from(kind).escape_default().to_string(), n))
            .collect()
    }
}

/// An access by RDMA that subscribers are not offered, although the config asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Withheld {
    /// The access.
    pub(crate) what: RdmaAccess,
    /// The channel of a ring.
    pub(crate) channel: Option<ChannelId>,
    /// The interface that does not offer it.
    pub(crate) interface: String,
    /// The reason, with its remedy.
    pub(crate) why: String,
}

/// An access by RDMA that the config can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RdmaAccess {
    /// Connections for repair.
    Connection,
    /// READs of a ring.
    Ring,
    /// Cursors that subscribers write.
    Cursor,
}

/// Maximum number of instruments in a channel's directory: twice as many as ITCH can number.
const INSTRUMENTS_MAX: usize = 131_072;

/// The instruments of a channel.
#[derive(Debug, Default)]
pub struct InstrumentTable {
    instruments: Vec<Instrument>,
    places: HashMap<u32, usize>,
    /// Increases with every change.
    pub version: u64,
}

impl InstrumentTable {
    /// Adds an instrument, or changes its symbol.
    pub fn put(&mut self, instrument: Instrument) {
        match self.places.get(&instrument.id) {
            Some(&at) if self.instruments[at] == instrument => return,
            Some(&at) => self.instruments[at] = instrument,
            // Beyond this limit, WELCOME would exceed the length a subscriber accepts; the stream
            // still names it.
            None if self.instruments.len() >= INSTRUMENTS_MAX => return,
            None => {
                self.places.insert(instrument.id, self.instruments.len());
                self.instruments.push(instrument);
            }
        }
        self.version += 1;
    }

    /// Returns all instruments, in the order of announcement.
    #[must_use]
    pub fn instruments(&self) -> &[Instrument] {
        &self.instruments
    }
}

/// Numbers of samples of each stage of latency: the n-th counts those below 2^n ns that no other one counts.
pub(crate) type LatencyCounts = BTreeMap<String, Vec<u64>>;

/// State of a channel, shared by all threads.
pub struct ChannelShared {
    /// The channel's plan.
    pub plan: ChannelPlan,
    /// The publish side's counters.
    pub sender: Arc<SenderCounters>,
    /// The repair side's counters.
    pub repair: Arc<RepairCounters>,
    /// Counters of every line of every fan-out, as the publish thread sends.
    pub lines: Vec<Vec<LineCounters>>,
    /// Counters of the lines that multicast repairs go out on.
    pub repair_lines: Vec<Vec<LineCounters>>,
    /// The reader of the channel's ring.
    pub ring: RingReader,
    /// Sealed position of each source when a restart continued the ring.
    pub resumed: OnceLock<Vec<(SourceId, SourcePosition)>>,
    /// Published part of the epoch before a restart, if the ring was continued.
    pub before: OnceLock<PublishedBefore>,
    /// Subscribers that have joined; set by the repair service.
    pub subscribers: AtomicU32,
    /// The advised hold-off, in microseconds; set by the repair service.
    pub hold_off_us: AtomicU32,
    latency: Mutex<Option<LatencyCounts>>,
    directory: Mutex<InstrumentTable>,
    digest: Mutex<Option<Result<String, &'static str>>>,
}

impl ChannelShared {
    /// Creates the state of a channel before any message.
    #[must_use]
    pub fn new(plan: ChannelPlan, ring: RingReader) -> Self {
        let lines = || {
            let of = |fan_out: &FanOutPlan| {
                let lines = 0..fan_out.lines();
                lines.map(|_| LineCounters::default()).collect()
            };
            plan.fan_outs.iter().map(of).collect()
        };
        Self {
            lines: lines(),
            repair_lines: lines(),
            sender: Arc::default(),
            repair: Arc::default(),
            ring,
            resumed: OnceLock::new(),
            before: OnceLock::new(),
            subscribers: AtomicU32::new(0),
            hold_off_us: AtomicU32::new(0),
            latency: Mutex::default(),
            directory: Mutex::default(),
            digest: Mutex::default(),
            plan,
        }
    }

    /// Sets the samples of latency so far.
    pub(crate) fn set_latency(&self, counts: LatencyCounts) {
        *locked(&self.latency) = Some(counts);
    }

    /// Returns the samples of latency so far; `None` without a latency log.
    pub(crate) fn latency(&self) -> Option<LatencyCounts> {
        locked(&self.latency).clone()
    }

    /// Returns the known instruments.
    pub fn directory(&self) -> MutexGuard<'_, InstrumentTable> {
        locked(&self.directory)
    }

    /// Sets the digest of the records published so far, or the reason for having none.
    pub fn set_digest(&self, digest: Result<String, &'static str>) {
        *locked(&self.digest) = Some(digest);
    }

    /// Returns the digest of all records of the epoch once the session has ended, or the reason for
    /// having none.
    #[must_use]
    pub fn digest(&self) -> Option<Result<String, &'static str>> {
        locked(&self.digest).clone()
    }
}

/// The published part of an epoch before this publisher continued it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PublishedBefore {
    /// The last sequence sealed.
    pub sealed: Sequence,
    /// Records published.
    pub published_records: u64,
}

/// State shared by all threads of a publisher.
pub struct Shared {
    /// The publisher's name.
    pub name: String,
    /// The epoch of all channels.
    pub epoch: Epoch,
    /// The channels, in the order of the config.
    pub channels: Vec<Arc<ChannelShared>>,
    /// The index of each channel in `channels`.
    by_id: BTreeMap<ChannelId, usize>,
    /// The sources, in the order of the config.
    pub sources: Vec<Arc<SourceShared>>,
    /// The repair service's counters.
    pub service: Arc<RepairServiceCounters>,
    /// The endpoints' counters.
    pub(crate) endpoints: AllEndpointCounters,
    /// Progress of the publish and the repair thread.
    pub(crate) rounds: Rounds,
    /// The counters of the latency log.
    pub(crate) latency_log: LatencyLogMetrics,
    /// The events of the RDMA ports that send channels.
    pub(crate) port_events: PortEvents,
    /// Distinct subscribers that are joined now and follow every channel that they asked for.
    pub joined: AtomicU32,
    stop: Arc<AtomicBool>,
    /// Whether it stops without END.
    abandoned: AtomicBool,
    /// Time to wait after END, in nanoseconds.
    linger_ns: AtomicU64,
    ended: AtomicBool,
    all_reached_end: AtomicBool,
    shut_down: AtomicBool,
    subscribers: Mutex<Subscribers>,
    losses: Mutex<LossTable>,
    /// The standby that has taken over.
    pub(crate) handed_over_to: OnceLock<String>,
    /// Accesses by RDMA that are not offered; set by the repair service.
    pub(crate) withheld: OnceLock<Vec<Withheld>>,
    /// Hand-over requests that were refused.
    pub(crate) hand_overs_refused: AtomicU64,
    /// Reloads of the config.
    pub(crate) reloads: Reloads,
    /// Budgets that the repair thread has yet to take over.
    budgets: Mutex<Option<RepairConfig>>,
    /// Whether there are any; the repair thread needs one load to check.
    has_budgets: AtomicBool,
    /// The config, as clients may see it.
    config: Mutex<Value>,
    /// Standby state, if the publisher is or was a standby.
    pub(crate) standby: Option<Arc<StandbyState>>,
    /// Shared state after a standby's promotion.
    promoted: OnceLock<Arc<Self>>,
}

impl Shared {
    /// Creates the state before any event. Setting `stop` ends the session.
    #[must_use]
    pub fn new(
        name: String,
        epoch: Epoch,
        channels: Vec<Arc<ChannelShared>>,
        sources: Vec<Arc<SourceShared>>,
        stop: Arc<AtomicBool>,
        linger: Nanos,
    ) -> Self {
        Self {
            name,
            epoch,
            by_id: (channels.iter().zip(0..))
                .map(|(channel, at)| (channel.plan.id, at))
                .collect(),
            port_events: PortEvents::open(ports_of(&channels)),
            channels,
            sources,
            service: Arc::default(),
            endpoints: AllEndpointCounters::default(),
            rounds: Rounds::default(),
            latency_log: LatencyLogMetrics::default(),
            joined: AtomicU32::new(0),
            stop,
            abandoned: AtomicBool::new(false),
            linger_ns: AtomicU64::new(linger.0),
            ended: AtomicBool::new(false),
            all_reached_end: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            subscribers: Mutex::default(),
            losses: Mutex::default(),
            handed_over_to: OnceLock::new(),
            withheld: OnceLock::new(),
            hand_overs_refused: AtomicU64::new(0),
            reloads: Reloads::default(),
            budgets: Mutex::default(),
            has_budgets: AtomicBool::new(false),
            config: Mutex::default(),
            standby: None,
            promoted: OnceLock::new(),
        }
    }

    /// Adds the standby state of a publisher that is or was a standby.
    pub(crate) fn of_standby(self, standby: Arc<StandbyState>) -> Self {
        Self {
            standby: Some(standby),
            ..self
        }
    }

    /// Gives the repair thread these budgets, in place of any that wait.
    #[cold]
    pub(crate) fn set_budgets(&self, budgets: RepairConfig) {
        *locked(&self.budgets) = Some(budgets);
        self.has_budgets.store(true, Release);
    }

    /// Takes the budgets that wait.
    #[inline]
    pub(crate) fn take_budgets(&self) -> Option<RepairConfig> {
        if self.has_budgets.load(Relaxed) && self.has_budgets.swap(false, AcqRel) {
            return locked(&self.budgets).take();
        }
        None
    }

    /// Shows this config from now on.
    pub(crate) fn show_config(&self, config: &Config) {
        *locked(&self.config) = shown(config);
    }

    /// Returns the config as clients may see it; null before it is shown.
    pub(crate) fn config(&self) -> Value {
        locked(&self.config).clone()
    }

    /// Returns the index of a channel in [`Self::channels`].
    pub(crate) fn index_of(&self, channel: ChannelId) -> Option<usize> {
        self.by_id.get(&channel).copied()
    }

    /// Sets the shared state of a promoted standby.
    pub(crate) fn promote(&self, to: Arc<Self>) {
        // Set once: there is one promotion.
        let _ = self.promoted.set(to);
    }

    /// Returns the current state: this one, or the state after the promotion.
    pub(crate) fn current(&self) -> &Self {
        self.promoted.get().map_or(self, |promoted| promoted)
    }

    /// Returns whether the inputs should stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Acquire)
    }

    /// Makes the inputs stop and the session end.
    pub fn stop(&self) {
        self.stop.store(true, Release);
    }

    /// Stops like [`Self::stop`], with this linger time after END.
    pub(crate) fn stop_within(&self, linger: Nanos) {
        self.linger_ns.store(linger.0, Relaxed);
        self.stop();
    }

    /// Stops like [`Self::stop`], but without ending the session: subscribers wait for another
    /// epoch.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
        self.stop();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Returns the time to wait after END for subscribers that have not reached it.
    pub(crate) fn linger(&self) -> Nanos {
        Nanos(self.linger_ns.load(Relaxed))
    }

    /// Returns whether END was sealed on every channel.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    pub(crate) fn set_ended(&self) {
        self.ended.store(true, Release);
    }

    /// Returns whether every subscriber has reported END.
    #[must_use]
    pub fn have_all_reached_end(&self) -> bool {
        self.all_reached_end.load(Acquire)
    }

    pub(crate) fn set_all_reached_end(&self, reached: bool) {
        self.all_reached_end.store(reached, Release);
    }

    /// Returns whether the services should stop too.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shut_down.load(Acquire)
    }

    pub(crate) fn shut_down(&self) {
        self.stop();
        self.shut_down.store(true, Release);
    }

    /// Returns the last report of every subscriber, including those that have left.
    pub(crate) fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        locked(&self.subscribers)
    }

    /// Returns the last losses of every subscriber.
    pub(crate) fn losses(&self) -> MutexGuard<'_, LossTable> {
        locked(&self.losses)
    }
}

/// Locks, ignoring poison: a panic ends the process.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the RDMA ports that send these channels, each once.
fn ports_of(channels: &[Arc<ChannelShared>]) -> BTreeSet<(&str, u8)> {
    let fan_outs = channels.iter().flat_map(|channel| &channel.plan.fan_outs);
    let ports = fan_outs.flat_map(|fan_out| match fan_out {
        FanOutPlan::Verbs { ports, .. } => &ports[..],
        _ => &[],
    });
    ports
        .map(|port| (port.device.as_str(), port.port))
        .collect()
}
