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
    /// Adds `n`, up to `u64::MAX`. Only the owning thread may call this: it is a load and a store,
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

    /// The current value.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares a struct of [`Counter`]s whose names and meanings can be walked: the one definition
/// that metrics, reports and tests read.
#[macro_export]
macro_rules! counters {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[doc = $help:literal])+ $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[doc = $help])+ pub $field: $crate::counters::Counter,)+
        }

        impl $name {
            /// Calls `f` with name, meaning and value of every counter, in the order declared.
            pub fn each(&self, mut f: impl FnMut(&'static str, &'static str, u64)) {
                $(f(stringify!($field), concat!($($help),+).trim_start(), self.$field.get());)+
            }

            /// How many counters there are.
            #[allow(dead_code)]
            pub(crate) const COUNT: usize = [$(stringify!($field)),+].len();

            /// Takes over values, in the order declared.
            #[allow(dead_code)]
            pub(crate) fn set_all(&self, values: impl IntoIterator<Item = u64>) {
                let mut values = values.into_iter();
                $(self.$field.set(values.next().unwrap_or(0));)+
            }
        }
    };
}

counters! {
    /// What one channel of a subscriber has seen. Loss and gaps are counted in sequences
    /// (datagrams) unless the name says records.
    pub struct ReceiverCounters {
        /// Datagrams taken from the transport, of every kind.
        received_datagrams,
        /// Bytes of those.
        received_bytes,
        /// Heartbeats among them that counted.
        heartbeats,
        /// Sequenced datagrams handed to the application (data, events, END).
        delivered_datagrams,
        /// Records handed to the application.
        delivered_records,
        /// Datagrams that had already been received: the other line, a repair too many, a resend.
        duplicates,
        /// Datagrams dropped because their CRC did not fit.
        corrupt_dropped,
        /// Datagrams dropped because they could not be read.
        malformed_dropped,
        /// Datagrams dropped because they came from an address that nobody named.
        unknown_sender_dropped,
        /// Datagrams dropped because their channel is not one that was joined.
        other_channel_dropped,
        /// Datagrams of an epoch that the repair connection has not confirmed.
        unknown_epoch_dropped,
        /// Datagrams of an epoch that is over.
        old_epoch_dropped,
        /// Datagrams that leap beyond the ring; acted on only when the repair connection confirms.
        sequence_jump_dropped,
        /// Newer datagrams dropped because the window was full; they are repaired later.
        window_full_dropped,
        /// Datagrams that came after their loss had been declared.
        late_dropped,
        /// Sequences found missing.
        missing_datagrams,
        /// Of those, sequences that came after all.
        missing_recovered,
        /// Of those, sequences declared lost.
        missing_lost,
        /// Of those, sequences of an epoch that was continued without them: nothing is missing there.
        missing_superseded,
        /// Of those, sequences still open (a gauge).
        missing_open,
        /// Sequences wanted that were sent before we joined.
        replay_requested,
        /// Of those, sequences that came.
        replay_received,
        /// Of those, sequences declared lost.
        replay_lost,
        /// Of those, sequences of an epoch that was continued without them.
        replay_superseded,
        /// Of those, sequences still awaited (a gauge).
        replay_open,
        /// Runs of missing sequences found (one run is one gap of many sequences).
        gaps,
        /// Loss events handed to the application.
        loss_events,
        /// Records that those events declared lost, where their number is known.
        lost_records,
        /// Loss events whose number of records nobody knows.
        losses_of_unknown_size,
        /// NACK messages sent.
        nacks_sent,
        /// Sequences asked for in them.
        nacked_sequences,
        /// NACK messages of those that went over the NACK connection.
        nack_link_nacks_sent,
        /// Sequences asked for in them.
        nack_link_nacked_sequences,
        /// Of those, sequences not answered in time, and asked for over TCP next.
        nack_link_timeouts,
        /// READs of the publisher's ring begun.
        reads,
        /// Sequences wanted by them.
        read_sequences,
        /// Of those, slots that were being written just then.
        reads_torn,
        /// Of those, slots that held a later sequence already.
        reads_lapped,
        /// Of those, sequences that did not come in time, and were asked for otherwise.
        read_timeouts,
        /// READs of the publisher's control page done, while its multicast was silent.
        page_reads,
        /// Repaired datagrams received over the repair, replay and NACK connections, and by READ.
        repairs_received,
        /// Of those, datagrams received over the NACK connection.
        nack_link_repairs_received,
        /// Of those, datagrams that came by READ.
        read_repairs_received,
        /// Repaired datagrams received by multicast.
        multicast_repairs_received,
        /// Refusals received, of any reason.
        refusals_received,
        /// Times that one sequence carried two different contents.
        fencing_violations,
        /// Records delivered that were not the publisher's, as its copy showed later.
        fenced_records,
        /// Times that multicast was found lost while the publisher went on.
        multicast_lost,
        /// Times that a line went silent while another was heard.
        line_down,
        /// Times that the repair connection was established.
        repair_links_up,
        /// Times that it went down.
        repair_links_down,
        /// Times that the NACK connection was established.
        nack_links_up,
        /// Times that it went down.
        nack_links_down,
        /// Times that the ring could be READ from then on.
        read_links_up,
        /// Times that it no longer could.
        read_links_down,
        /// Cursors in the publisher's memory that were claimed.
        cursors_claimed,
        /// Cursors that somebody else had claimed; they stay alone.
        cursors_foreign,
        /// Reports written to them.
        cursor_reports,
        /// Datagrams that the publisher wrote to the inbox of this standby, found there whole.
        inbox_received,
        /// Of those, datagrams that had come in no other way before.
        inbox_first,
        /// Places of the inbox that were being written just then, or never held a whole datagram.
        inbox_torn,
        /// Sequences that the publisher did not write, or wrote over before anybody looked; they come
        /// otherwise.
        inbox_skipped,
        /// Inboxes that the publisher refused to write to.
        inboxes_refused,
        /// Epochs followed.
        epochs,
        /// Of those, epochs that continued the one before.
        epochs_continued,
        /// Datagrams that waited for their turn when their epoch was continued without them.
        epoch_change_dropped,
        /// Records that had been delivered of a continued epoch, and came once more.
        records_already_delivered,
        /// Events of the stream (source loss, epoch reason) delivered.
        stream_events,
        /// Source messages that the publisher declared lost.
        source_messages_lost,
        /// Datagrams that the kernel or the device dropped for want of a buffer (all channels of a
        /// socket or port; where it counts them), or that a ring in this host no longer held.
        kernel_dropped,
        /// Lines whose kernel hands over runs of datagrams as one buffer, GRO (a gauge).
        gro_lines,
        /// Runs of datagrams that came so.
        gro_runs,
        /// Datagrams of those.
        gro_datagrams,
        /// Datagrams that were longer than a slot: nobody who knows the channel sends such.
        oversize_dropped,
        /// Datagrams that the RDMA device refused for their Q_Key (all channels of a device).
        q_key_dropped,
        /// Times that a line's receive queue broke and was started anew (RDMA).
        receive_restarts,
        /// WELCOMEs that can't be meant, or are a zombie's: that connection was broken off.
        welcomes_invalid,
    }
}

counters! {
    /// What the publish side of one channel has done.
    pub struct SenderCounters {
        /// Source messages in sealed datagrams, and those without records.
        published_messages,
        /// Records in sealed datagrams.
        published_records,
        /// Datagrams sealed (data, events, END).
        sealed_datagrams,
        /// Bytes of those.
        sealed_bytes,
        /// Heartbeats made.
        heartbeats,
        /// Datagrams handed to fan-outs, all fan-outs added up.
        sent_datagrams,
        /// Datagrams that a stalled fan-out never sent; receivers repair them.
        skipped_datagrams,
        /// Times that a fan-out was torn down because it held the ring.
        fan_out_resets,
        /// Records refused because they can't be sent (too large for a slot).
        oversize_records,
        /// Source messages lost before they reached the ring; each is told in the stream.
        source_messages_lost,
    }
}

counters! {
    /// What the repair side of one channel has done. NACKs are counted in sequences; of a range that is
    /// refused, no more than the ring has slots, whatever it claims.
    pub struct RepairCounters {
        /// Sequences that NACKs asked for (of a range that is refused, no more than the ring has slots).
        nacked,
        /// Of those, answered with the datagram to the asker alone.
        answered,
        /// Of those, answered by one multicast for many.
        answered_by_multicast,
        /// Of those, refused because the ring no longer holds them.
        refused_window,
        /// Of those, refused because they have not been sent yet.
        refused_ahead,
        /// Of those, refused because a budget was used up.
        refused_budget,
        /// Of those, refused because the joiner could never catch up.
        refused_too_slow,
        /// Of those, refused because the NACK names another epoch.
        refused_epoch,
        /// Of those, refused because the NACK asks for a range that makes no sense.
        refused_malformed,
        /// Of those, dropped with the connection of the asker.
        repairs_cancelled,
        /// Of those, waiting for budget (a gauge).
        pending,
        /// NACK messages received.
        nack_messages,
        /// Of those, messages received on NACK connections.
        nack_link_messages,
        /// Bytes of repair sent to single subscribers.
        repair_bytes,
        /// Bytes of repair sent by multicast.
        multicast_repair_bytes,
        /// Bytes of replay sent to joiners.
        replay_bytes,
        /// Slots that were overwritten while they were copied; the asker is refused, window.
        lapped_copies,
        /// Sequences asked for again while their answer was still queued; not counted as nacked.
        nacks_duplicate,
        /// Bytes that subscribers were granted to READ.
        read_tokens_bytes,
        /// Reports that subscribers wrote to their cursors, as far as they were read here.
        cursor_reports,
        /// Looks at a cursor that found words of two reports; it is looked at again.
        cursor_torn,
        /// Looks at a cursor that found another session's claim, or a report that goes back.
        cursor_ignored,
        /// Datagrams written to the inboxes of standbys.
        mirror_writes,
        /// Datagrams not written to one, because it was a ring behind; it gets them otherwise.
        mirror_writes_skipped,
        /// JOINs accepted.
        joins,
        /// JOINs that claimed an epoch higher than ours; counted, no effect.
        higher_epoch_claims,
        /// Subscribers joined now (a gauge).
        subscribers,
    }
}

counters! {
    /// What the repair service of a publisher has done, all channels together.
    pub struct RepairServiceCounters {
        /// Subscribers that have not reached the end of the session, or broke off short of it and are waited
        /// for; 0 before the session ends (a gauge).
        subscribers_short_of_end,
        /// Connections taken.
        connections,
        /// Connections there are now (a gauge).
        connected,
        /// Replay connections that belonged to a session.
        replay_joins,
        /// NACK connections that belonged to a session.
        nack_link_joins,
        /// Connections for READ that belonged to a session.
        read_joins,
        /// Rings that a connection was let READ.
        read_grants,
        /// Cursors that a connection was let write.
        cursor_grants,
        /// Cursors leased to a connection.
        cursors_leased,
        /// Of those leases, the ones that are over: nobody can write that cursor any more, and it is zero.
        cursors_returned,
        /// Cursors that a connection has now (a gauge): those leased and not returned.
        cursors_live,
        /// Connections that the RDMA device stopped because the peer wanted what it was not granted.
        access_violations,
        /// Rings that are written to a standby from then on.
        mirrors_begun,
        /// Rings that are not, or no longer, because whoever asked may not take over, is denied it, or can't
        /// be written to.
        mirrors_refused,
        /// JOINs rejected, and connections beyond the limit.
        joins_rejected,
        /// Of those, further connections that named a session which nobody has.
        unknown_sessions,
        /// Connections closed, or turned away, because whoever is behind them is banned.
        banned,
        /// Connections closed because the peer broke the protocol.
        protocol_errors,
        /// Connections closed because the peer did not read its answers.
        overflow_disconnects,
        /// Connections that the network, the device or the peer's system gave up on.
        connections_broken,
        /// Connections turned away before they said anything: too many of one address, over verbs too
        /// many, or no tickcast; also failures to accept.
        connections_refused,
        /// Of those, connections of an address that had as many as one may have.
        connections_per_address_refused,
        /// Connections closed because nothing was heard on them for too long.
        silent_disconnects,
        /// Events that merely inform, dropped because too many waited to be taken.
        events_dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_listed_with_its_meaning_from_the_start() {
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
