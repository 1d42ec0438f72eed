//! The requester: it turns the due requests of the receivers into frames and READs on the connection whose
//! turn it is (docs/PROTOCOL.md §5.4).

use super::{Action, Path, SubscriberCore};
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
        for (receiver, config, counters) in self.entries.next_turn() {
            let (channel, epoch) = (receiver.channel(), receiver.epoch());
            // A receiver whose progress report is due also READs the publisher's control page.
            let watches = receiver.is_progress_due(now) && receiver.is_following();
            if let Some(progress) = receiver.take_progress(now) {
                Message::Progress(progress).write(channel, self.repair.frames());
            }
            let (ladder, attempts_max) = (config.ladder, config.nack_attempts);
            let room = self.read.room().filter(|_| ladder.reads());
            self.requests.begin(nack_open && ladder.nacks(), room);
            receiver.set_replay(self.replay.is_open(), self.replay.is_wanted());
            exhausted |= receiver.due_requests(now, &mut self.requests) == PathHealth::Exhausted;
            if let Some(requested_at) = self.requests.nack_overdue {
                nack_exhausted |= self.nack.unanswered(requested_at, now, attempts_max);
            }
            if let Some(requested_at) = self.requests.read_overdue {
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
                    counters.nacks_sent.increment();
                    write_nack(channel, epoch, class, ranges, out);
                }
            };
            let over_tcp = self.repair.frames();
            nack(NackClass::Repair, &self.requests.repair, over_tcp);
            if !self.requests.nack.is_empty() {
                let messages = self.requests.nack.len().div_ceil(NACK_RANGES_MAX);
                counters.nack_link_nacks_sent.add(messages as u64);
                nack(
                    NackClass::Repair,
                    &self.requests.nack,
                    self.nack.link.frames(),
                );
            }
            if self.requests.replay_wanted {
                self.replay.want(now);
            }
            if !self.requests.replay.is_empty() {
                let out = match self.replay.is_apart() {
                    true => self.replay.use_link(now).frames(),
                    false => over_tcp,
                };
                nack(NackClass::Replay, &self.requests.replay, out);
            }
        }
        if self.replay.link_mut().start_if_due(now) {
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
