//! The table of all metrics: each family's name, and the counters that feed it.
//!
//! A name says its type and unit: a counter ends in `_total`, bytes in `_bytes`, time in `_seconds`.
//! Counters of time are in microseconds, or in nanoseconds if their name ends in `_ns`. docs/METRICS.md is
//! generated from this table.

/// The labels of a counter that tell it apart from the others of its family.
pub type OwnLabels = &'static [(&'static str, &'static str)];

/// The counters or histograms of a family.
#[derive(Clone, Copy, Debug)]
pub enum FedBy {
    /// One counter; its meaning is the help text.
    One(&'static str),
    /// Several counters, told apart by labels.
    By {
        /// The help text.
        help: &'static str,
        /// Each counter, with its labels.
        counters: &'static [(&'static str, OwnLabels)],
    },
    /// Histograms of time, with this help text.
    Histograms(&'static str),
}

/// A family of series with one name.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name, without the prefix of the part.
    pub name: &'static str,
    /// The counters or histograms that feed it.
    pub feed: FedBy,
}

impl Family {
    /// Returns whether its values only grow.
    #[must_use]
    pub fn is_counter(&self) -> bool {
        self.name.ends_with("_total")
    }

    /// Returns the name without the suffix of counters.
    #[must_use]
    pub fn stem(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }

    /// Returns the labels that this counter has here, none if it feeds the family alone; `None` if it does
    /// not feed the family.
    #[must_use]
    pub fn labels_of(&self, counter: &str) -> Option<OwnLabels> {
        match self.feed {
            FedBy::One(one) => (one == counter).then_some(&[]),
            FedBy::By { counters, .. } => counters
                .iter()
                .find(|(name, _)| *name == counter)
                .map(|(_, labels)| *labels),
            FedBy::Histograms(_) => None,
        }
    }
}

/// The families of one kind of program.
#[derive(Debug)]
pub struct Part {
    /// Prefix of all names.
    pub prefix: &'static str,
    /// The families, in the order of a page.
    pub families: &'static [Family],
}

impl Part {
    /// Returns the index of the family that a counter feeds, and its own labels there.
    #[must_use]
    pub fn find(&self, counter: &str) -> Option<(usize, OwnLabels)> {
        let mut all = self.families.iter().enumerate();
        all.find_map(|(at, family)| Some((at, family.labels_of(counter)?)))
    }
}

const fn one(name: &'static str, counter: &'static str) -> Family {
    let feed = FedBy::One(counter);
    Family { name, feed }
}

const fn by_labels(
    name: &'static str,
    help: &'static str,
    counters: &'static [(&'static str, OwnLabels)],
) -> Family {
    let feed = FedBy::By { help, counters };
    Family { name, feed }
}

/// The family of these counters, told apart by one label.
macro_rules! by {
    ($name:literal, $label:literal, $help:literal, [$($counter:literal => $value:literal,)+]) => {
        by_labels($name, $help, &[$(($counter, &[($label, $value)])),+])
    };
}

/// The family of these counters, told apart by two labels.
macro_rules! by_two {
    ($name:literal, $labels:tt, $help:literal, [$($counter:literal => $values:tt,)+]) => {
        by_labels($name, $help, &[$(($counter, pairs!($labels, $values))),+])
    };
}

macro_rules! pairs {
    (($a:literal, $b:literal), ($x:literal, $y:literal)) => {
        &[($a, $x), ($b, $y)]
    };
}

/// Labels of the control port, where the label of its place names each other endpoint.
const CONTROL: OwnLabels = &[("endpoint", "control")];

macro_rules! control {
    ($reason:literal) => {
        &[("endpoint", "control"), ("reason", $reason)]
    };
}

const fn histograms(name: &'static str, help: &'static str) -> Family {
    let feed = FedBy::Histograms(help);
    Family { name, feed }
}

/// Families of a publisher.
pub static PUBLISHER: Part = Part {
    prefix: "tickcast_publisher_",
    families: &[
        // The process.
        one("epoch", "epoch"),
        one("ended", "ended"),
        by_two!(
            "commands_total",
            ("command", "result"),
            "Commands to the publisher as a whole: a reload of the config, and a hand-over.",
            [
                "reloads_applied" => ("reload", "applied"),
                "reloads_refused" => ("reload", "refused"),
                "hand_overs_refused" => ("hand_over", "refused"),
            ]
        ),
        by!(
            "rdma_port_events_total",
            "event",
            "Events of an RDMA port that sends a channel, counted by its device since the driver was loaded.",
            [
                "port_ecn_marks" => "ecn_mark",
                "port_cnps_sent" => "cnp_sent",
                "port_cnps_handled" => "cnp_handled",
                "port_send_waits" => "send_wait",
                "port_out_of_buffer" => "out_of_buffer",
                "port_send_discards" => "send_discard",
                "port_receive_errors" => "receive_error",
                "port_checksum_errors" => "checksum_error",
                "port_symbol_errors" => "symbol_error",
                "port_link_downs" => "link_down",
            ]
        ),
        by!(
            "log_lost_entries_total",
            "log",
            "Entries that one of the publisher's own logs lacks: lines, events, or samples of latency.",
            [
                "audit_lines_lost" => "audit",
                "events_dropped" => "events",
                "latency_log_skipped" => "latency",
            ]
        ),
        one("latency_log_failures_total", "latency_log_failures"),
        one("subscribers_short_of_end", "subscribers_short_of_end"),
        // Connections.
        by_labels(
            "connections_accepted_total",
            "Connections accepted.",
            &[("connections", CONTROL), ("endpoint_connections", &[])],
        ),
        by_labels(
            "connections_open",
            "Connections open now; of other endpoints than the control port, those that are not answered.",
            &[("connected", CONTROL), ("endpoint_open", &[])],
        ),
        by_labels(
            "connections_closed_total",
            "Connections that the publisher turned away, or that ended before their peer left.",
            &[
                ("access_violations", control!("access_violation")),
                ("protocol_errors", control!("protocol_error")),
                ("overflow_disconnects", control!("answers_unread")),
                ("connections_broken", control!("broken")),
                ("silent_disconnects", control!("silent")),
                ("banned", control!("banned")),
                ("connections_refused", control!("refused")),
                ("connections_per_address_refused", control!("address_limit")),
                ("endpoint_answered", &[("reason", "answered")]),
                ("endpoint_failed", &[("reason", "failed")]),
                ("endpoint_evicted", &[("reason", "evicted")]),
                ("endpoint_refused", &[("reason", "refused")]),
            ],
        ),
        one("requests_denied_total", "endpoint_denied"),
        by!(
            "link_joins_total",
            "link",
            "Further connections that joined their session.",
            [
                "replay_joins" => "replay",
                "nack_link_joins" => "nack",
                "read_joins" => "read",
            ]
        ),
        by_two!(
            "rdma_access_changes_total",
            ("memory", "change"),
            "Changes of the access to memory by RDMA: to rings, cursors, and the inboxes of standbys.",
            [
                "read_grants" => ("ring", "granted"),
                "cursor_grants" => ("cursor", "granted"),
                "cursors_leased" => ("cursor", "leased"),
                "cursors_returned" => ("cursor", "returned"),
                "mirrors_begun" => ("inbox", "begun"),
                "mirrors_refused" => ("inbox", "refused"),
            ]
        ),
        one("cursors_leased", "cursors_live"),
        by!(
            "rdma_access_offered",
            "memory",
            "1 if subscribers are offered the access by RDMA: to READ rings, and to write cursors.",
            [
                "read_offered" => "ring",
                "cursors_offered" => "cursor",
            ]
        ),
        one("joins_rejected_total", "joins_rejected"),
        one("unknown_sessions_total", "unknown_sessions"),
        one("latency_reports_refused_total", "latency_reports_refused"),
        // Channels.
        one("sealed_sequence", "sealed_sequence"),
        one("oldest_sequence", "oldest_sequence"),
        one("published_messages_total", "published_messages"),
        one("published_records_total", "published_records"),
        by!(
            "built_datagrams_total",
            "kind",
            "Datagrams built: of the stream, which the ring holds, and heartbeats.",
            [
                "sealed_datagrams" => "stream",
                "heartbeats" => "heartbeat",
            ]
        ),
        one("sealed_bytes_total", "sealed_bytes"),
        by!(
            "fan_out_datagrams_total",
            "result",
            "Datagrams of the stream due on the lines of all fan-outs.",
            [
                "sent_datagrams" => "sent",
                "skipped_datagrams" => "skipped",
            ]
        ),
        one("fan_out_resets_total", "fan_out_resets"),
        one("oversize_records_total", "oversize_records"),
        one("source_messages_lost_total", "source_messages_lost"),
        // Repair.
        by!(
            "repair_requested_sequences_total",
            "request",
            "Sequences requested by NACK, for the first time or while their answer was on its way.",
            [
                "nacked" => "new",
                "nacks_duplicate" => "repeated",
            ]
        ),
        by!(
            "repair_answered_sequences_total",
            "path",
            "Sequences answered.",
            [
                "answered" => "unicast",
                "answered_by_multicast" => "multicast",
            ]
        ),
        by!(
            "repair_unanswered_sequences_total",
            "reason",
            "Sequences refused, by the reason that the subscriber is told, or cancelled with their connection.",
            [
                "refused_window" => "window",
                "refused_ahead" => "ahead",
                "refused_budget" => "budget",
                "refused_too_slow" => "too_slow",
                "refused_epoch" => "epoch",
                "refused_malformed" => "malformed",
                "repairs_cancelled" => "cancelled",
            ]
        ),
        one("repair_pending_sequences", "pending"),
        one("nacks_received_total", "nack_messages"),
        one("nack_link_nacks_received_total", "nack_link_messages"),
        by!(
            "repair_bytes_total",
            "path",
            "Bytes of repair sent, or granted for READ.",
            [
                "repair_bytes" => "unicast",
                "multicast_repair_bytes" => "multicast",
                "replay_bytes" => "replay",
                "read_tokens_bytes" => "read",
            ]
        ),
        one("lapped_copies_total", "lapped_copies"),
        by!(
            "cursor_reports_total",
            "result",
            "Reports found in subscribers' cursors.",
            [
                "cursor_reports" => "read",
                "cursor_torn" => "torn",
                "cursor_ignored" => "ignored",
            ]
        ),
        by!(
            "mirror_datagrams_total",
            "result",
            "Datagrams for the inboxes of standbys.",
            [
                "mirror_writes" => "written",
                "mirror_writes_skipped" => "skipped",
            ]
        ),
        one("joins_accepted_total", "joins"),
        one("higher_epoch_claims_total", "higher_epoch_claims"),
        one("subscribers", "subscribers"),
        // Lines.
        one("line_sent_datagrams_total", "line_datagrams"),
        one("line_sent_bytes_total", "line_bytes"),
        one("line_send_calls_total", "line_batches"),
        one("line_gso_enabled", "line_gso"),
        by!(
            "line_gso_runs_total",
            "result",
            "Runs of datagrams passed to the kernel as one buffer; GSO pauses after one that it refused.",
            [
                "line_gso_runs" => "sent",
                "line_gso_refused" => "refused",
            ]
        ),
        one("line_gso_datagrams_total", "line_gso_datagrams"),
        one("line_gso_padding_bytes_total", "line_gso_padding_bytes"),
        by!(
            "line_unsent_datagrams_total",
            "reason",
            "Datagrams that the line did not send.",
            [
                "line_refused" => "refused",
                "line_unpinned_sends_dropped" => "unpinned",
                "line_flushed" => "flushed",
                "line_skipped" => "skipped",
            ]
        ),
        by!(
            "line_interruptions_total",
            "cause",
            "Times that the line could not send: the send buffer was full, or the device restarted.",
            [
                "line_stalls" => "full",
                "line_restarts" => "restart",
            ]
        ),
        one("line_last_errno", "line_last_errno"),
        // Sources.
        one("source_received_packets_total", "source_packets"),
        one("source_received_bytes_total", "source_bytes"),
        one("source_messages_total", "source_messages"),
        one("source_records_total", "source_records"),
        by!(
            "source_events_total",
            "event",
            "Events of the source: gaps, silences, changes of the venue's session, and cut waits of a file.",
            [
                "source_gaps" => "gap",
                "source_line_stops" => "line_stopped",
                "source_silences" => "silent",
                "source_resets" => "sequence_reset",
                "source_session_changes" => "session_opened",
                "source_session_ends" => "session_ended",
                "source_capped_waits" => "wait_cut",
            ]
        ),
        by!(
            "source_surplus_messages_total",
            "reason",
            "Messages received again, or after they had been passed over.",
            [
                "source_duplicates" => "duplicate",
                "source_late" => "late",
            ]
        ),
        by!(
            "source_message_faults_total",
            "reason",
            "Messages that are missing, lost, skipped or not exact.",
            [
                "source_unknown_messages" => "unknown_type",
                "source_unknown_orders" => "unknown_order",
                "source_overflow_messages" => "queue_full",
                "source_unrouted_messages" => "unrouted",
                "source_saturated" => "saturated",
                "source_conflicting" => "conflicting",
                "source_missing_messages" => "missing",
            ]
        ),
        by!(
            "source_packet_faults_total",
            "reason",
            "Packets that were not read, or not as the config asks.",
            [
                "source_foreign" => "foreign",
                "source_malformed" => "malformed",
                "source_unstamped" => "unstamped",
                "source_unrecognised_packets" => "unrecognised",
                "source_kernel_dropped" => "kernel_dropped",
                "source_oversize" => "oversize",
                "source_unknown_senders" => "unknown_sender",
            ]
        ),
        by!(
            "source_frames_total",
            "kind",
            "Frames of a file. A frame may be of several kinds.",
            [
                "source_used_frames" => "used",
                "source_harmless_frames" => "harmless",
                "source_foreign_frames" => "foreign",
                "source_damaged_frames" => "damaged",
                "source_skipped_frames" => "skipped",
                "source_snapped" => "cut_off",
            ]
        ),
        one("source_damaged_bytes_total", "source_damaged_bytes"),
        one("source_truncated_files_total", "source_truncated"),
        by!(
            "source_connections_total",
            "result",
            "Connections of a `records` input.",
            [
                "source_connections" => "accepted",
                "source_refused_connections" => "refused",
            ]
        ),
        by!(
            "source_errors_total",
            "effect",
            "Errors that ended the source early, or that leave a file not whole; the log states each.",
            [
                "source_errors" => "ended_early",
                "source_faults" => "not_whole",
            ]
        ),
        one("source_ended", "source_ended"),
        one("source_silent", "source_silent"),
        one("source_age_seconds", "source_age_us"),
        one("source_messages_by_type_total", "source_messages_by_type"),
        // Lines of sources.
        one("input_line_packets_total", "input_line_packets"),
        by!(
            "input_line_messages_total",
            "result",
            "Messages of the source, by what the line contributed.",
            [
                "input_line_first" => "first",
                "input_line_late" => "late",
                "input_line_duplicates" => "duplicate",
                "input_line_foreign" => "foreign",
                "input_line_missing" => "missing",
            ]
        ),
        one("input_line_reorder_depth", "input_line_reorder_depth"),
        by!(
            "input_line_skew_seconds",
            "percentile",
            "Seconds of lag behind the first copy, rounded up to a power of two of microseconds.",
            [
                "input_line_skew_p50_us" => "50",
                "input_line_skew_p99_us" => "99",
            ]
        ),
        one("input_line_stopped", "input_line_stopped"),
        one("input_line_age_seconds", "input_line_age_us"),
        // Subscribers.
        one("subscriber_sequence", "subscriber_sequence"),
        one("subscriber_lag_sequences", "subscriber_lag"),
        one("subscriber_lost_records_total", "subscriber_lost_records"),
        by!(
            "subscriber_latency_seconds",
            "percentile",
            "Seconds of latency by stage in a subscriber's last interval, as it reports itself; 100 is the longest.",
            [
                "subscriber_latency_p50_ns" => "50",
                "subscriber_latency_p99_ns" => "99",
                "subscriber_latency_p999_ns" => "99.9",
                "subscriber_latency_max_ns" => "100",
            ]
        ),
        one("subscriber_latency_samples", "subscriber_latency_samples"),
        one(
            "subscriber_latency_supported",
            "subscriber_latency_supported",
        ),
        one(
            "subscriber_clock_difference_seconds",
            "subscriber_clock_difference_ns",
        ),
    ],
};

/// Families of a standby.
pub static STANDBY: Part = Part {
    prefix: "tickcast_standby_",
    families: &[
        one("mirroring", "mirroring"),
        one("promoted", "promoted"),
        one("publisher_alive", "publisher_alive"),
        one("commands_refused", "commands_refused"),
        one("differing_source", "differing_source"),
        one("kept_messages", "kept_messages"),
        one("evicted_messages_total", "evicted_messages"),
        one("published_again_messages_total", "published_again_messages"),
        one("promotions_refused_total", "promotions_refused"),
        one("notices_refused_total", "notices_refused"),
        // Channels.
        one("mirrored_sequence", "mirrored_sequence"),
        one("lag_sequences", "lag_sequences"),
        one("lag_seconds", "lag_us"),
        one("written_sequence", "written_sequence"),
        one("written_lag_sequences", "written_lag_sequences"),
        one("written_datagrams_total", "written_datagrams"),
        one("inbox_first_datagrams_total", "inbox_first_datagrams"),
        by!(
            "inbox_unusable_slots_total",
            "reason",
            "Slots of the inbox without a usable datagram; it arrives on another path.",
            [
                "inbox_torn" => "torn",
                "inbox_skipped_sequences" => "skipped",
            ]
        ),
        one("holes_total", "holes"),
    ],
};

/// Families of a subscriber.
pub static SUBSCRIBER: Part = Part {
    prefix: "tickcast_subscriber_",
    families: &[
        one("joined", "joined"),
        one("epoch", "epoch"),
        one("delivered_sequence", "delivered_sequence"),
        one("lag_sequences", "lag_sequences"),
        one("ended", "ended"),
        one("clock_difference_seconds", "clock_difference_us"),
        histograms(
            LATENCY,
            "Seconds of latency by stage. A stage between two hosts includes the difference of their clocks.",
        ),
        one("latency_clock_skewed_samples_total", "clock_skewed_samples"),
        one("received_datagrams_total", "received_datagrams"),
        one("received_bytes_total", "received_bytes"),
        one("received_heartbeats_total", "heartbeats"),
        one("delivered_datagrams_total", "delivered_datagrams"),
        one("delivered_records_total", "delivered_records"),
        by!(
            "dropped_datagrams_total",
            "reason",
            "Datagrams received and dropped.",
            [
                "duplicates" => "duplicate",
                "corrupt_dropped" => "corrupt",
                "unauthenticated_dropped" => "unauthenticated",
                "malformed_dropped" => "malformed",
                "unknown_sender_dropped" => "unknown_sender",
                "other_channel_dropped" => "other_channel",
                "unknown_epoch_dropped" => "unknown_epoch",
                "old_epoch_dropped" => "old_epoch",
                "sequence_jump_dropped" => "sequence_jump",
                "window_full_dropped" => "window_full",
                "fenced_dropped" => "fenced",
                "late_dropped" => "late",
                "epoch_change_dropped" => "epoch_change",
                "kernel_dropped" => "kernel",
                "oversize_dropped" => "oversize",
                "q_key_dropped" => "q_key",
            ]
        ),
        // Gaps and losses.
        one("gaps_total", "gaps"),
        by!(
            "missing_datagrams_total",
            "since",
            "Datagrams found missing in a gap, or sent before the join and requested.",
            [
                "missing_datagrams" => "gap",
                "replay_requested" => "join",
            ]
        ),
        by_two!(
            "missing_settled_datagrams_total",
            ("since", "outcome"),
            "Missing datagrams that arrived, were declared lost, or whose epoch was continued without them.",
            [
                "missing_recovered" => ("gap", "recovered"),
                "missing_lost" => ("gap", "lost"),
                "missing_superseded" => ("gap", "superseded"),
                "replay_received" => ("join", "recovered"),
                "replay_lost" => ("join", "lost"),
                "replay_superseded" => ("join", "superseded"),
            ]
        ),
        by!(
            "missing_open_datagrams",
            "since",
            "Datagrams missing now.",
            [
                "missing_open" => "gap",
                "replay_open" => "join",
            ]
        ),
        by!(
            "events_total",
            "kind",
            "Events delivered: of loss, and of the stream.",
            [
                "loss_events" => "loss",
                "stream_events" => "stream",
            ]
        ),
        one("lost_records_total", "lost_records"),
        one("losses_of_unknown_size_total", "losses_of_unknown_size"),
        one("source_lost_messages_total", "source_messages_lost"),
        // Repair.
        by!(
            "requests_total",
            "kind",
            "Requests to the publisher: NACKs, READs of its ring, and READs of its control page.",
            [
                "nacks_sent" => "nack",
                "reads" => "read",
                "page_reads" => "page_read",
            ]
        ),
        by!(
            "requested_sequences_total",
            "kind",
            "Sequences requested.",
            [
                "nacked_sequences" => "nack",
                "read_sequences" => "read",
            ]
        ),
        one("nack_link_nacks_total", "nack_link_nacks_sent"),
        one(
            "nack_link_nacked_sequences_total",
            "nack_link_nacked_sequences",
        ),
        by!(
            "request_timeouts_total",
            "path",
            "Sequences not answered in time on one path, then requested on another.",
            [
                "nack_link_timeouts" => "nack_link",
                "read_timeouts" => "read",
            ]
        ),
        one("reads_not_begun_sequences_total", "reads_not_begun"),
        by!(
            "repaired_datagrams_total",
            "path",
            "Datagrams repaired: by unicast on any connection or READ, or by multicast.",
            [
                "repairs_received" => "unicast",
                "multicast_repairs_received" => "multicast",
            ]
        ),
        by!(
            "fast_repaired_datagrams_total",
            "path",
            "Datagrams repaired over the NACK connection or by READ, all of them by unicast.",
            [
                "nack_link_repairs_received" => "nack_link",
                "read_repairs_received" => "read",
            ]
        ),
        one("refusals_total", "refusals_received"),
        by_two!(
            "unusable_slots_total",
            ("memory", "reason"),
            "Slots of the publisher's ring or of the own inbox that held no usable datagram.",
            [
                "reads_torn" => ("ring", "torn"),
                "reads_lapped" => ("ring", "lapped"),
                "inbox_torn" => ("inbox", "torn"),
                "inbox_skipped" => ("inbox", "skipped"),
            ]
        ),
        // Another publisher.
        by!(
            "contradictions_total",
            "kind",
            "Contradictions: two contents of one sequence, a STATUS against what came, or an invalid WELCOME.",
            [
                "fencing_violations" => "sequence",
                "contents_undecided" => "undecided",
                "impostors" => "status",
                "welcomes_invalid" => "welcome",
            ]
        ),
        one("fenced_records_total", "fenced_records"),
        // Lines and links.
        by_two!(
            "link_changes_total",
            ("link", "change"),
            "Times that a connection, one line, or all multicast was established or lost.",
            [
                "repair_links_up" => ("repair", "up"),
                "repair_links_down" => ("repair", "down"),
                "nack_links_up" => ("nack", "up"),
                "nack_links_down" => ("nack", "down"),
                "read_links_up" => ("read", "up"),
                "read_links_down" => ("read", "down"),
                "line_down" => ("line", "down"),
                "multicast_lost" => ("multicast", "down"),
            ]
        ),
        by_two!(
            "rdma_claims_total",
            ("memory", "result"),
            "Claims to a cursor in the publisher's memory, and refused offers of an inbox.",
            [
                "cursors_claimed" => ("cursor", "claimed"),
                "cursors_foreign" => ("cursor", "foreign"),
                "inboxes_refused" => ("inbox", "refused"),
            ]
        ),
        one("cursor_reports_total", "cursor_reports"),
        one("inbox_datagrams_total", "inbox_received"),
        one("inbox_first_datagrams_total", "inbox_first"),
        one("gro_lines", "gro_lines"),
        one("gro_runs_total", "gro_runs"),
        one("gro_datagrams_total", "gro_datagrams"),
        one("receive_restarts_total", "receive_restarts"),
        // Epochs.
        one("epochs_total", "epochs"),
        one("epochs_continued_total", "epochs_continued"),
        one(
            "already_delivered_records_total",
            "records_already_delivered",
        ),
        // Delivery to the application.
        by!(
            "application_records_total",
            "result",
            "Records passed to the application, or left out: by its filter, or for a newer one.",
            [
                "handed_records" => "handed",
                "filtered_records" => "filtered",
                "conflated_records" => "conflated",
            ]
        ),
        one("handed_events_total", "handed_events"),
    ],
};

/// Name of a family of latencies by stage, without its prefix.
pub const LATENCY: &str = "latency_seconds";

/// All parts.
pub static PARTS: [&Part; 3] = [&PUBLISHER, &STANDBY, &SUBSCRIBER];
