//! Counters: each written by one thread, read by any, without a lock.
//!
//! Every loss, drop and refusal of the protocol moves one of these; the relations that must hold
//! between them are tested (`docs/PROTOCOL.md` §10). All series exist from the start, so that a
//! dashboard never waits for a first error.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number with a single writer. Reads from other threads see some recent value.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`, saturating at `u64::MAX`. Only the owning thread may call this: it is a load and a store,
    /// not a locked instruction.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Relaxed).saturating_add(n), Relaxed);
    }

    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Replaces the value, for gauges such as "gaps open now".
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Returns the current value.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares a struct of [`Counter`]s whose names and meanings can be iterated: the one definition
/// behind metrics, reports, tests and docs/METRICS.md.
///
/// A meaning opens with the unit, and ends with "(a gauge)" unless the value only grows.
#[macro_export]
macro_rules! counters {
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[doc = $help:literal])+ $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        $vis struct $name {
            $($(#[doc = $help])+ pub $field: $crate::types::Counter,)+
        }

        impl $name {
            /// Calls `f` with name, meaning and value of every counter, in the order declared.
            pub fn each(&self, mut f: impl FnMut(&'static str, &'static str, u64)) {
                $(f(stringify!($field), concat!($($help),+).trim_start(), self.$field.get());)+
            }

            /// Number of counters.
            #[allow(dead_code)]
            pub(crate) const COUNT: usize = [$(stringify!($field)),+].len();

            /// Sets all values, in the order declared.
            #[allow(dead_code)]
            pub(crate) fn set_all(&self, values: impl IntoIterator<Item = u64>) {
                let mut values = values.into_iter();
                $(self.$field.set(values.next().unwrap_or(0));)+
            }
        }
    };
}

counters! {
    /// Counters of one channel of a subscriber. Loss and gaps are counted in sequences (datagrams)
    /// unless the name says records.
    pub struct ReceiverCounters {
        /// Datagrams received from the transport, of every kind.
        received_datagrams,
        /// Bytes of received datagrams.
        received_bytes,
        /// Heartbeats received that passed all checks.
        heartbeats,
        /// Datagrams delivered to the application (data, events, END).
        delivered_datagrams,
        /// Records delivered to the application.
        delivered_records,
        /// Datagrams received before: from the other line, from a redundant repair, or resent.
        duplicates,
        /// Datagrams dropped because of a wrong CRC.
        corrupt_dropped,
        /// Datagrams dropped because no key of their authenticated channel made their tag.
        unauthenticated_dropped,
        /// Datagrams dropped because they could not be parsed, or cannot be the publisher's.
        malformed_dropped,
        /// Datagrams dropped because neither WELCOME nor the config names their sender.
        unknown_sender_dropped,
        /// Datagrams dropped because their channel was not joined.
        other_channel_dropped,
        /// Datagrams dropped because the repair connection has not confirmed their epoch.
        unknown_epoch_dropped,
        /// Datagrams dropped because their epoch is over.
        old_epoch_dropped,
        /// Datagrams dropped because their sequence lies too far beyond what was heard or confirmed; the
        /// repair connection must confirm it.
        sequence_jump_dropped,
        /// Datagrams dropped because the window was full; they are repaired later.
        window_full_dropped,
        /// Datagrams dropped before their turn because STATUS showed that an impostor sent them.
        fenced_dropped,
        /// Datagrams dropped because they had been declared lost.
        late_dropped,
        /// Datagrams found missing.
        missing_datagrams,
        /// Datagrams found missing that arrived after all.
        missing_recovered,
        /// Datagrams found missing and declared lost.
        missing_lost,
        /// Datagrams found missing whose epoch was continued without them; nothing is lost.
        missing_superseded,
        /// Datagrams missing now (a gauge).
        missing_open,
        /// Datagrams requested that were sent before the join.
        replay_requested,
        /// Datagrams of the replay that arrived.
        replay_received,
        /// Datagrams of the replay that were declared lost.
        replay_lost,
        /// Datagrams of the replay whose epoch was continued without them.
        replay_superseded,
        /// Datagrams of the replay that are outstanding (a gauge).
        replay_open,
        /// Gaps found; one gap is a run of missing datagrams.
        gaps,
        /// Events of loss delivered to the application.
        loss_events,
        /// Records declared lost, where their number is known.
        lost_records,
        /// Events of loss whose number of records is unknown.
        losses_of_unknown_size,
        /// NACKs sent on all connections.
        nacks_sent,
        /// Sequences requested by NACK.
        nacked_sequences,
        /// NACKs sent on the NACK connection.
        nack_link_nacks_sent,
        /// Sequences requested on the NACK connection.
        nack_link_nacked_sequences,
        /// Sequences not answered on the NACK connection in time, then requested over TCP.
        nack_link_timeouts,
        /// READs of the publisher's ring posted.
        reads,
        /// Sequences requested by READ.
        read_sequences,
        /// Slots found half written by a READ.
        reads_torn,
        /// Slots found overwritten by a later sequence.
        reads_lapped,
        /// Sequences not read in time, then requested on another path.
        read_timeouts,
        /// Sequences not READ for lack of room or tokens, requested on another path.
        reads_not_begun,
        /// READs of the publisher's control page completed while multicast was silent.
        page_reads,
        /// Datagrams repaired by unicast: over TCP, the NACK connection or READ.
        repairs_received,
        /// Datagrams repaired over the NACK connection.
        nack_link_repairs_received,
        /// Datagrams repaired by READ.
        read_repairs_received,
        /// Datagrams repaired by multicast.
        multicast_repairs_received,
        /// Refusals received, of any reason.
        refusals_received,
        /// Sequences received with two different contents, or that the next one did not follow.
        fencing_violations,
        /// Sequences with two contents whose publisher's copy the ring no longer held: either may stand.
        contents_undecided,
        /// Records delivered, or declared lost, that the publisher's own copy or its STATUS later disproved.
        fenced_records,
        /// Times that STATUS proved that an impostor had sent datagrams.
        impostors,
        /// Times that multicast was lost while the publisher continued.
        multicast_lost,
        /// Times that one line fell silent while another was heard.
        line_down,
        /// Times that the repair connection was established.
        repair_links_up,
        /// Times that the repair connection was lost.
        repair_links_down,
        /// Times that the NACK connection was established.
        nack_links_up,
        /// Times that the NACK connection was lost.
        nack_links_down,
        /// Times that READ access to the ring was established.
        read_links_up,
        /// Times that READ access to the ring was lost.
        read_links_down,
        /// Cursors claimed in the publisher's memory.
        cursors_claimed,
        /// Cursors not claimed because another subscriber holds them.
        cursors_foreign,
        /// Reports written to cursors.
        cursor_reports,
        /// Datagrams found whole in this standby's inbox.
        inbox_received,
        /// Datagrams that arrived in the inbox before any other path.
        inbox_first,
        /// Slots of the inbox found half written, or never holding a whole datagram.
        inbox_torn,
        /// Sequences not written to the inbox, or overwritten before they were read; they arrive on
        /// another path.
        inbox_skipped,
        /// Inboxes that the publisher refused to write to.
        inboxes_refused,
        /// Epochs followed.
        epochs,
        /// Epochs followed that continued the one before.
        epochs_continued,
        /// Datagrams discarded from the window because their epoch was continued without them.
        epoch_change_dropped,
        /// Records of a continued epoch that had been delivered before.
        records_already_delivered,
        /// Events of the stream delivered: source loss, start of an epoch.
        stream_events,
        /// Messages of the source that the publisher declared lost.
        source_messages_lost,
        /// Datagrams dropped by the kernel or device for lack of buffers, or overwritten in a shared
        /// ring. The count is per socket or port, so channels on one share it.
        kernel_dropped,
        /// Lines whose kernel delivers runs of datagrams as one buffer, GRO (a gauge).
        gro_lines,
        /// Runs of datagrams received as one buffer.
        gro_runs,
        /// Datagrams received in such runs.
        gro_datagrams,
        /// Datagrams dropped because they exceed a slot; another system uses the group.
        oversize_dropped,
        /// Datagrams that the RDMA device refused because of their Q_Key, on all channels.
        q_key_dropped,
        /// Times that a line's receive queue failed and was restarted (RDMA).
        receive_restarts,
        /// WELCOMEs that contradict the JOIN or the epochs followed; the connection was closed.
        welcomes_invalid,
    }
}

impl ReceiverCounters {
    /// Counts a datagram of this length, of any kind.
    #[inline(always)]
    pub(crate) fn count_received(&self, len: usize) {
        self.received_datagrams.increment();
        self.received_bytes.add(len as u64);
    }

    /// Counts bytes that are no datagram.
    #[cold]
    pub(crate) fn count_malformed(&self) {
        self.received_datagrams.increment();
        self.malformed_dropped.increment();
    }
}

counters! {
    /// Counters of the publish side of one channel.
    pub struct SenderCounters {
        /// Messages published, including those without records.
        published_messages,
        /// Records published.
        published_records,
        /// Datagrams sealed (data, events, END).
        sealed_datagrams,
        /// Bytes of sealed datagrams.
        sealed_bytes,
        /// Heartbeats built.
        heartbeats,
        /// Datagrams passed to fan-outs, summed over the lines of all fan-outs.
        sent_datagrams,
        /// Datagrams that a stalled line never sent; receivers repair them.
        skipped_datagrams,
        /// Times that a line of a fan-out was reset because it blocked the ring.
        fan_out_resets,
        /// Records refused because they exceed a slot.
        oversize_records,
        /// Messages of sources lost before the ring; the stream reports each loss.
        source_messages_lost,
    }
}

counters! {
    /// Counters of the repair side of one channel. NACKs are counted in sequences. A refused range counts
    /// at most the number of slots of the ring, whatever it claims.
    pub struct RepairCounters {
        /// Sequences requested by NACK; a refused range counts at most the ring's slots.
        nacked,
        /// Sequences answered by unicast.
        answered,
        /// Sequences answered by one multicast for many subscribers.
        answered_by_multicast,
        /// Sequences refused because the ring no longer holds them.
        refused_window,
        /// Sequences refused because they have not been sent yet.
        refused_ahead,
        /// Sequences refused because a budget was exhausted.
        refused_budget,
        /// Sequences refused because the joiner can never catch up.
        refused_too_slow,
        /// Sequences refused because the NACK names another epoch.
        refused_epoch,
        /// Sequences refused because the range is invalid.
        refused_malformed,
        /// Sequences dropped with the connection that requested them.
        repairs_cancelled,
        /// Sequences that wait for budget (a gauge).
        pending,
        /// NACKs received on all connections.
        nack_messages,
        /// NACKs received on NACK connections.
        nack_link_messages,
        /// Bytes of repair sent by unicast.
        repair_bytes,
        /// Bytes of repair sent by multicast.
        multicast_repair_bytes,
        /// Bytes of replay sent to joiners.
        replay_bytes,
        /// Slots overwritten while they were copied; the request is refused with `window`.
        lapped_copies,
        /// Sequences requested again while their answer was queued or, over TCP, in flight; `nacked`
        /// excludes them.
        nacks_duplicate,
        /// Bytes granted to subscribers for READ.
        read_tokens_bytes,
        /// Reports read from subscribers' cursors.
        cursor_reports,
        /// Reports found half written; they are read again.
        cursor_torn,
        /// Reports ignored because another session claimed the cursor, or because they go back.
        cursor_ignored,
        /// Datagrams written to the inboxes of standbys.
        mirror_writes,
        /// Datagrams not written to an inbox that was a ring behind; they arrive on another path.
        mirror_writes_skipped,
        /// JOINs accepted.
        joins,
        /// JOINs that claimed a higher epoch than this publisher's; they have no effect.
        higher_epoch_claims,
        /// Subscribers joined now (a gauge).
        subscribers,
    }
}

counters! {
    /// Counters of a publisher's repair service, all channels together.
    pub struct RepairServiceCounters {
        /// Subscribers that have not reached the end of the session; 0 before it ends (a gauge).
        subscribers_short_of_end,
        /// Connections accepted.
        connections,
        /// Connections open now (a gauge).
        connected,
        /// Connections for replay that joined their session.
        replay_joins,
        /// Connections for NACKs that joined their session.
        nack_link_joins,
        /// Connections for READ that joined their session.
        read_joins,
        /// Rings granted for READ.
        read_grants,
        /// Cursors granted for writing.
        cursor_grants,
        /// Cursors leased to connections.
        cursors_leased,
        /// Cursors returned: zeroed and writable by nobody.
        cursors_returned,
        /// Cursors leased now (a gauge).
        cursors_live,
        /// 1 if subscribers may READ the rings on one device at least (a gauge).
        read_offered,
        /// 1 if subscribers may write cursors on one device at least (a gauge).
        cursors_offered,
        /// Connections that the RDMA device stopped because the peer exceeded its grant.
        access_violations,
        /// Rings whose datagrams began to be written to a standby.
        mirrors_begun,
        /// Rings not written, or no longer written, to a standby: not listed, denied, or not writable.
        mirrors_refused,
        /// JOINs rejected, and connections that gave way because too many were open.
        joins_rejected,
        /// JOINs rejected because a further connection named an unknown session.
        unknown_sessions,
        /// Connections closed or turned away because their peer is banned.
        banned,
        /// Connections closed because the peer violated the protocol.
        protocol_errors,
        /// Connections closed because the peer did not read its answers.
        overflow_disconnects,
        /// Connections that the network, the device or the peer's system ended.
        connections_broken,
        /// Connections turned away before a JOIN: too many in all, not tickcast, or not accepted by the
        /// system.
        connections_refused,
        /// Connections turned away because their address had reached its limit.
        connections_per_address_refused,
        /// Connections closed because nothing arrived on them for too long.
        silent_disconnects,
        /// Events for information dropped because their queue was full.
        events_dropped,
        /// Reports of latency refused: impossible, or too soon after the last one.
        latency_reports_refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_listed_with_help_text_from_the_start() {
        let counters = RepairCounters::default();
        counters.answered.add(3);
        let mut seen = Vec::new();
        counters.each(|name, help, value| {
            assert!(
                !help.is_empty() && !help.starts_with(' '),
                "{name}: {help:?}"
            );
            seen.push((name, value));
        });
        assert_eq!(seen[0], ("nacked", 0));
        assert!(seen.contains(&("answered", 3)));
    }
}
