//! The requests of the receivers become frames and READs on the connection whose turn it is
//! (docs/PROTOCOL.md §5.4).

use super::{Action, Path, REPLAY_ATTEMPTS_MAX, SubscriberCore};
use crate::control::{Message, NACK_RANGES_MAX, NackClass, write_nack};
use crate::delivery::{Deliver, LinkDownReason};
use crate::receive::{PathHealth, RemoteOp};
use crate::types::{Nanos, SequenceRange};

impl SubscriberCore {
    /// Turns the due requests of the receivers into frames and READs.
    pub(super) fn ask(&mut self, now: Nanos, on: &mut dyn Deliver) {
        if !self.repair.is_up() {
            return;
        }
        let mut exhausted = false;
        let (mut nack_exhausted, mut read_exhausted) = (false, false);
        let nack_open = self.nack.link.is_up();
        let replay_apart = self.replay_failures < REPLAY_ATTEMPTS_MAX;
        let replay_open = !replay_apart || self.replay.is_up();
        // Each call begins with another channel, so that no channel takes all room for READs from the others.
        let begins = self.turn.checked_rem(self.entries.len()).unwrap_or(0);
        self.turn = begins + 1;
        let (later, first) = self.entries.split_at_mut(begins);
        for entry in first.iter_mut().chain(later) {
            let Some(receiver) = entry.receiver.as_mut() else {
                continue;
            };
            let (channel, epoch) = (receiver.channel(), receiver.epoch());
            // A receiver whose progress report is due also READs the publisher's control page.
            let watches = receiver.is_progress_due(now) && receiver.is_following();
            if let Some(progress) = receiver.take_progress(now) {
                Message::Progress(progress).write(channel, &mut self.out_repair);
            }
            let ladder = entry.wanted.config.ladder;
            let room = self.read.room().filter(|_| ladder.reads());
            self.requests.begin(nack_open && ladder.nacks(), room);
            receiver.set_replay(replay_open, self.replay.is_wanted());
            exhausted |= receiver.due_requests(now, &mut self.requests) == PathHealth::Exhausted;
            if let Some(requested_at) = self.requests.nack_overdue {
                let attempts_max = entry.wanted.config.nack_attempts;
                nack_exhausted |= self.nack.unanswered(requested_at, now, attempts_max);
            }
            if let Some(requested_at) = self.requests.read_overdue {
                let attempts_max = entry.wanted.config.nack_attempts;
                read_exhausted |= self.read.link.unanswered(requested_at, now, attempts_max);
            }
            if let Some(readable) = receiver.readable() {
                for range in &self.requests.read {
                    let what = RemoteOp::Slots(*range);
                    self.read.begin(channel, epoch, what, readable, now);
                }
                if watches && self.read.has_room() && !self.read.is_watching(channel) {
                    self.read
                        .begin(channel, epoch, RemoteOp::Page, readable, now);
                }
                if readable.is_low() {
                    receiver.query_status_soon(now);
                }
            }
            self.read.write_cursor(self.session, receiver, now);
            let nack = |class, ranges: &[SequenceRange], out: &mut Vec<u8>| {
                for ranges in ranges.chunks(NACK_RANGES_MAX) {
                    entry.counters.nacks_sent.increment();
                    write_nack(channel, epoch, class, ranges, out);
                }
            };
            nack(
                NackClass::Repair,
                &self.requests.repair,
                &mut self.out_repair,
            );
            if !self.requests.nack.is_empty() {
                let messages = self.requests.nack.len().div_ceil(NACK_RANGES_MAX);
                entry.counters.nack_link_nacks_sent.add(messages as u64);
                nack(NackClass::Repair, &self.requests.nack, &mut self.nack.out);
            }
            if self.requests.replay_wanted {
                self.replay_used_at = now;
                self.replay.want(now);
            }
            if !self.requests.replay.is_empty() {
                let out = if replay_apart {
                    self.replay_used_at = now;
                    &mut self.out_replay
                } else {
                    &mut self.out_repair
                };
                nack(NackClass::Replay, &self.requests.replay, out);
            }
        }
        if self.replay.start_if_due(now) {
            self.actions.push_back(Action::Connect(Path::Replay));
        }
        if exhausted {
            self.break_off(now, Path::Repair, LinkDownReason::Unanswered, on);
        } else if read_exhausted || nack_exhausted {
            let path = if read_exhausted {
                Path::Read
            } else {
                Path::Nack
            };
            self.break_off(now, path, LinkDownReason::Unanswered, on);
            // The requests of the closed connection are due on the next rung now.
            self.ask(now, on);
        }
    }
}
