//! The table of all metrics: each family's name, and the counters that feed it.
//!
//! A name says its type and unit: a counter ends in `_total`, bytes in `_bytes`, time in `_seconds`.
//! Counters of time are in microseconds. docs/METRICS.md is generated from this table.

/// The counters or histograms of a family.
#[derive(Clone, Copy, Debug)]
pub enum FedBy {
    /// One counter; its meaning is the help text.
    One(&'static str),
    /// Several counters, told apart by a label.
    By {
        /// The label.
        label: &'static str,
        /// The help text.
        help: &'static str,
        /// Each counter, with its value of the label.
        counters: &'static [(&'static str, &'static str)],
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

    /// Returns the label that this counter has here, if it has one; `None` if it does not feed the
    /// family.
    #[must_use]
    pub fn label_of(&self, counter: &str) -> Option<Option<(&'static str, &'static str)>> {
        match self.feed {
            FedBy::One(one) => (one == counter).then_some(None),
            FedBy::By {
                label, counters, ..
            } => counters
                .iter()
                .find(|(name, _)| *name == counter)
                .map(|(_, value)| Some((label, *value))),
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
    /// Returns the index of the family that a counter feeds, and its own label there.
    #[must_use]
    pub fn find(&self, counter: &str) -> Option<(usize, Option<(&'static str, &'static str)>)> {
        let mut all = self.families.iter().enumerate();
        all.find_map(|(at, family)| Some((at, family.label_of(counter)?)))
    }
}

const fn one(name: &'static str, counter: &'static str) -> Family {
    let feed = FedBy::One(counter);
    Family { name, feed }
}

const fn by(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    counters: &'static [(&'static str, &'static str)],
) -> Family {
    let feed = FedBy::By {
        label,
        help,
        counters,
    };
    Family { name, feed }
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
        one("audit_lines_lost_total", "audit_lines_lost"),
        one("hand_overs_refused_total", "hand_overs_refused"),
        by(
            "reloads_total",
            "result",
            "Reloads of the config: every changed setting was applied, or none.",
            &[
                ("reloads_applied", "applied"),
                ("reloads_refused", "refused"),
            ],
        ),
        one("latency_log_failures_total", "latency_log_failures"),
        one("latency_log_skipped_total", "latency_log_skipped"),
        one("subscribers_short_of_end", "subscribers_short_of_end"),
        one("connections_accepted_total", "connections"),
        one("connections_open", "connected"),
        by(
            "link_joins_total",
            "link",
            "Further connections that joined their session.",
            &[
                ("replay_joins", "replay"),
                ("nack_link_joins", "nack"),
                ("read_joins", "read"),
            ],
        ),
        by(
            "rdma_grants_total",
            "memory",
            "Grants of memory to subscribers: rings for READ, cursors for writing.",
            &[("read_grants", "ring"), ("cursor_grants", "cursor")],
        ),
        by(
            "cursor_leases_total",
            "change",
            "Leases of cursors that began or ended.",
            &[
                ("cursors_leased", "leased"),
                ("cursors_returned", "returned"),
            ],
        ),
        one("cursors_leased", "cursors_live"),
        by(
            "mirrors_total",
            "result",
            "Rings whose datagrams began, or did not begin, to be written to a standby.",
            &[("mirrors_begun", "begun"), ("mirrors_refused", "refused")],
        ),
        one("joins_rejected_total", "joins_rejected"),
        one("unknown_sessions_total", "unknown_sessions"),
        one("connections_banned_total", "banned"),
        by(
            "connections_closed_total",
            "reason",
            "Connections that ended before their peer left.",
            &[
                ("access_violations", "access_violation"),
                ("protocol_errors", "protocol_error"),
                ("overflow_disconnects", "answers_unread"),
                ("connections_broken", "broken"),
                ("silent_disconnects", "silent"),
            ],
        ),
        one("connections_refused_total", "connections_refused"),
        one(
            "connections_per_address_refused_total",
            "connections_per_address_refused",
        ),
        one("events_dropped_total", "events_dropped"),
        // Endpoints.
        one(
            "endpoint_connections_accepted_total",
            "endpoint_connections",
        ),
        by(
            "endpoint_connections_closed_total",
            "result",
            "Connections to the endpoint that are over, by what became of the request.",
            &[
                ("endpoint_answered", "answered"),
                ("endpoint_failed", "failed"),
                ("endpoint_evicted", "evicted"),
                ("endpoint_refused", "refused"),
            ],
        ),
        one("endpoint_connections_open", "endpoint_open"),
        one("endpoint_requests_denied_total", "endpoint_denied"),
        // Channels.
        one("sealed_sequence", "sealed_sequence"),
        one("oldest_sequence", "oldest_sequence"),
        one("published_messages_total", "published_messages"),
        one("published_records_total", "published_records"),
        one("sealed_datagrams_total", "sealed_datagrams"),
        one("sealed_bytes_total", "sealed_bytes"),
        one("heartbeats_total", "heartbeats"),
        one("sent_datagrams_total", "sent_datagrams"),
        one("skipped_datagrams_total", "skipped_datagrams"),
        one("fan_out_resets_total", "fan_out_resets"),
        one("oversize_records_total", "oversize_records"),
        one("source_messages_lost_total", "source_messages_lost"),
        // Repair.
        one("repair_requested_sequences_total", "nacked"),
        by(
            "repair_answered_sequences_total",
            "path",
            "Sequences answered.",
            &[
                ("answered", "unicast"),
                ("answered_by_multicast", "multicast"),
            ],
        ),
        by(
            "repair_refused_sequences_total",
            "reason",
            "Sequences refused, by the reason that the subscriber is told.",
            &[
                ("refused_window", "window"),
                ("refused_ahead", "ahead"),
                ("refused_budget", "budget"),
                ("refused_too_slow", "too_slow"),
                ("refused_epoch", "epoch"),
                ("refused_malformed", "malformed"),
            ],
        ),
        one("repair_cancelled_sequences_total", "repairs_cancelled"),
        one("repair_pending_sequences", "pending"),
        one("repair_duplicate_sequences_total", "nacks_duplicate"),
        one("nacks_received_total", "nack_messages"),
        one("nack_link_nacks_received_total", "nack_link_messages"),
        by(
            "repair_sent_bytes_total",
            "path",
            "Bytes of repair sent.",
            &[
                ("repair_bytes", "unicast"),
                ("multicast_repair_bytes", "multicast"),
                ("replay_bytes", "replay"),
            ],
        ),
        one("read_granted_bytes_total", "read_tokens_bytes"),
        one("lapped_copies_total", "lapped_copies"),
        by(
            "cursor_reports_total",
            "result",
            "Reports found in subscribers' cursors.",
            &[
                ("cursor_reports", "read"),
                ("cursor_torn", "torn"),
                ("cursor_ignored", "ignored"),
            ],
        ),
        by(
            "mirror_datagrams_total",
            "result",
            "Datagrams for the inboxes of standbys.",
            &[
                ("mirror_writes", "written"),
                ("mirror_writes_skipped", "skipped"),
            ],
        ),
        one("joins_accepted_total", "joins"),
        one("higher_epoch_claims_total", "higher_epoch_claims"),
        one("subscribers", "subscribers"),
        // Lines.
        one("line_sent_datagrams_total", "line_datagrams"),
        one("line_sent_bytes_total", "line_bytes"),
        one("line_send_calls_total", "line_batches"),
        one("line_gso_enabled", "line_gso"),
        one("line_gso_runs_total", "line_gso_runs"),
        one("line_gso_datagrams_total", "line_gso_datagrams"),
        one("line_gso_padding_bytes_total", "line_gso_padding_bytes"),
        one("line_gso_refused_runs_total", "line_gso_refused"),
        one("line_stalls_total", "line_stalls"),
        by(
            "line_unsent_datagrams_total",
            "reason",
            "Datagrams that the line did not send.",
            &[
                ("line_refused", "refused"),
                ("line_unpinned_sends_dropped", "unpinned"),
                ("line_flushed", "flushed"),
                ("line_skipped", "skipped"),
            ],
        ),
        one("line_restarts_total", "line_restarts"),
        one("line_last_errno", "line_last_errno"),
        // Sources.
        one("source_received_packets_total", "source_packets"),
        one("source_received_bytes_total", "source_bytes"),
        one("source_messages_total", "source_messages"),
        one("source_records_total", "source_records"),
        one("source_gaps_total", "source_gaps"),
        one("source_missing_messages_total", "source_missing_messages"),
        by(
            "source_session_changes_total",
            "change",
            "Times that the venue restarted its sequence, opened another session, or ended one.",
            &[
                ("source_resets", "reset"),
                ("source_session_changes", "opened"),
                ("source_session_ends", "ended"),
            ],
        ),
        by(
            "source_surplus_messages_total",
            "reason",
            "Messages received again, or after they had been passed over.",
            &[("source_duplicates", "duplicate"), ("source_late", "late")],
        ),
        by(
            "source_message_faults_total",
            "reason",
            "Messages that are lost, skipped or not exact.",
            &[
                ("source_unknown_messages", "unknown_type"),
                ("source_unknown_orders", "unknown_order"),
                ("source_overflow_messages", "queue_full"),
                ("source_unrouted_messages", "unrouted"),
                ("source_saturated", "saturated"),
                ("source_conflicting", "conflicting"),
            ],
        ),
        by(
            "source_packet_faults_total",
            "reason",
            "Packets that were not read, or not as the config asks.",
            &[
                ("source_foreign", "foreign"),
                ("source_malformed", "malformed"),
                ("source_unstamped", "unstamped"),
                ("source_unrecognised_packets", "unrecognised"),
                ("source_kernel_dropped", "kernel_dropped"),
                ("source_oversize", "oversize"),
                ("source_unknown_senders", "unknown_sender"),
            ],
        ),
        by(
            "source_frames_total",
            "kind",
            "Frames of a file. A frame may be of several kinds.",
            &[
                ("source_used_frames", "used"),
                ("source_harmless_frames", "harmless"),
                ("source_foreign_frames", "foreign"),
                ("source_damaged_frames", "damaged"),
                ("source_skipped_frames", "skipped"),
                ("source_snapped", "cut_off"),
            ],
        ),
        one("source_damaged_bytes_total", "source_damaged_bytes"),
        one("source_truncated_files_total", "source_truncated"),
        one("source_faults_total", "source_faults"),
        one("source_capped_waits_total", "source_capped_waits"),
        by(
            "source_connections_total",
            "result",
            "Connections of a `records` input.",
            &[
                ("source_connections", "accepted"),
                ("source_refused_connections", "refused"),
            ],
        ),
        one("source_errors_total", "source_errors"),
        one("source_ended", "source_ended"),
        one("source_line_stops_total", "source_line_stops"),
        one("source_silences_total", "source_silences"),
        one("source_silent", "source_silent"),
        one("source_age_seconds", "source_age_us"),
        one("source_messages_by_type_total", "source_messages_by_type"),
        // Lines of sources.
        one("input_line_packets_total", "input_line_packets"),
        by(
            "input_line_messages_total",
            "result",
            "Messages of the source, by what the line contributed.",
            &[
                ("input_line_first", "first"),
                ("input_line_late", "late"),
                ("input_line_duplicates", "duplicate"),
                ("input_line_foreign", "foreign"),
                ("input_line_missing", "missing"),
            ],
        ),
        one("input_line_reorder_depth", "input_line_reorder_depth"),
        by(
            "input_line_skew_seconds",
            "quantile",
            "Seconds of lag behind the first copy, rounded up to a power of two of microseconds.",
            &[
                ("input_line_skew_p50_us", "0.5"),
                ("input_line_skew_p99_us", "0.99"),
            ],
        ),
        one("input_line_stopped", "input_line_stopped"),
        one("input_line_age_seconds", "input_line_age_us"),
        // Subscribers.
        one("subscriber_sequence", "subscriber_sequence"),
        one("subscriber_lag_sequences", "subscriber_lag"),
        one("subscriber_lost_records_total", "subscriber_lost_records"),
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
        one("inbox_skipped_sequences_total", "inbox_skipped_sequences"),
        one("inbox_torn_slots_total", "inbox_torn"),
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
        by(
            "dropped_datagrams_total",
            "reason",
            "Datagrams received and dropped.",
            &[
                ("duplicates", "duplicate"),
                ("corrupt_dropped", "corrupt"),
                ("unauthenticated_dropped", "unauthenticated"),
                ("malformed_dropped", "malformed"),
                ("unknown_sender_dropped", "unknown_sender"),
                ("other_channel_dropped", "other_channel"),
                ("unknown_epoch_dropped", "unknown_epoch"),
                ("old_epoch_dropped", "old_epoch"),
                ("sequence_jump_dropped", "sequence_jump"),
                ("window_full_dropped", "window_full"),
                ("fenced_dropped", "fenced"),
                ("late_dropped", "late"),
                ("epoch_change_dropped", "epoch_change"),
                ("kernel_dropped", "kernel"),
                ("oversize_dropped", "oversize"),
                ("q_key_dropped", "q_key"),
            ],
        ),
        // Gaps and losses.
        one("gaps_total", "gaps"),
        one("missing_datagrams_total", "missing_datagrams"),
        by(
            "missing_settled_datagrams_total",
            "outcome",
            "Datagrams found missing whose fate is settled.",
            &[
                ("missing_recovered", "recovered"),
                ("missing_lost", "lost"),
                ("missing_superseded", "superseded"),
            ],
        ),
        one("missing_open_datagrams", "missing_open"),
        one("replay_requested_datagrams_total", "replay_requested"),
        by(
            "replay_settled_datagrams_total",
            "outcome",
            "Datagrams of the replay whose fate is settled.",
            &[
                ("replay_received", "received"),
                ("replay_lost", "lost"),
                ("replay_superseded", "superseded"),
            ],
        ),
        one("replay_open_datagrams", "replay_open"),
        one("loss_events_total", "loss_events"),
        one("lost_records_total", "lost_records"),
        one("losses_of_unknown_size_total", "losses_of_unknown_size"),
        one("stream_events_total", "stream_events"),
        one("source_lost_messages_total", "source_messages_lost"),
        // Repair.
        one("nacks_total", "nacks_sent"),
        one("nacked_sequences_total", "nacked_sequences"),
        one("nack_link_nacks_total", "nack_link_nacks_sent"),
        one(
            "nack_link_nacked_sequences_total",
            "nack_link_nacked_sequences",
        ),
        one("reads_total", "reads"),
        one("read_sequences_total", "read_sequences"),
        by(
            "read_discarded_slots_total",
            "reason",
            "Slots read from the publisher's ring and discarded.",
            &[("reads_torn", "torn"), ("reads_lapped", "lapped")],
        ),
        one("reads_not_begun_sequences_total", "reads_not_begun"),
        one("control_page_reads_total", "page_reads"),
        by(
            "request_timeouts_total",
            "path",
            "Sequences not answered in time on one path, then requested on another.",
            &[
                ("nack_link_timeouts", "nack_link"),
                ("read_timeouts", "read"),
            ],
        ),
        one("repaired_datagrams_total", "repairs_received"),
        one(
            "nack_link_repaired_datagrams_total",
            "nack_link_repairs_received",
        ),
        one("read_repaired_datagrams_total", "read_repairs_received"),
        one(
            "multicast_repaired_datagrams_total",
            "multicast_repairs_received",
        ),
        one("refusals_total", "refusals_received"),
        // Proofs of an impostor.
        one("fencing_violations_total", "fencing_violations"),
        one("fenced_records_total", "fenced_records"),
        one("impostors_total", "impostors"),
        // Lines and links.
        one("multicast_lost_total", "multicast_lost"),
        one("lines_down_total", "line_down"),
        by(
            "links_up_total",
            "link",
            "Times that a connection to the publisher was established.",
            &[
                ("repair_links_up", "repair"),
                ("nack_links_up", "nack"),
                ("read_links_up", "read"),
            ],
        ),
        by(
            "links_down_total",
            "link",
            "Times that a connection to the publisher was lost.",
            &[
                ("repair_links_down", "repair"),
                ("nack_links_down", "nack"),
                ("read_links_down", "read"),
            ],
        ),
        by(
            "cursor_claims_total",
            "result",
            "Cursors in the publisher's memory that were claimed, or held by another subscriber.",
            &[
                ("cursors_claimed", "claimed"),
                ("cursors_foreign", "foreign"),
            ],
        ),
        one("cursor_reports_total", "cursor_reports"),
        one("inbox_datagrams_total", "inbox_received"),
        one("inbox_first_datagrams_total", "inbox_first"),
        one("inbox_torn_slots_total", "inbox_torn"),
        one("inbox_skipped_sequences_total", "inbox_skipped"),
        one("inboxes_refused_total", "inboxes_refused"),
        one("gro_lines", "gro_lines"),
        one("gro_runs_total", "gro_runs"),
        one("gro_datagrams_total", "gro_datagrams"),
        one("receive_restarts_total", "receive_restarts"),
        one("welcomes_invalid_total", "welcomes_invalid"),
        // Epochs.
        one("epochs_total", "epochs"),
        one("epochs_continued_total", "epochs_continued"),
        one(
            "already_delivered_records_total",
            "records_already_delivered",
        ),
        // Delivery to the application.
        one("handed_records_total", "handed_records"),
        one("handed_events_total", "handed_events"),
        one("filtered_records_total", "filtered_records"),
        one("conflated_records_total", "conflated_records"),
    ],
};

/// Name of a family of latencies by stage, without its prefix.
pub const LATENCY: &str = "latency_seconds";

/// All parts.
pub static PARTS: [&Part; 3] = [&PUBLISHER, &STANDBY, &SUBSCRIBER];
