"""A subscriber's state of one channel: docs/PROTOCOL.md §5 (receive, NACK), §7 (mode `ordered`), §8 (loss).

It has no sockets and no clock. Its inputs are datagrams, answers and the time; its outputs are NACKs.
"""
import hashlib, math, random, struct, time
from collections import Counter

from lines import Lines
from wire import *

WINDOW, BURST_MAX, REPLAY_IN_FLIGHT, NACK_RANGES, NACK_TRIES = 16384, 2048, 512, 256, 8
NACK_RETRY_S, MAX_HOLD_OFF_S, LINE_SKEW_S, LINE_SILENCE_S = 0.001, 0.010, 0.0005, 0.030  # §5.3, §5.4
UNKNOWN = 2**64 - 1


class Gap:
    """One missing sequence: when it was found, when its next NACK is due, and the number of NACKs so far."""
    __slots__ = ("cls", "history", "found", "due", "asked", "tries")

    def __init__(self, cls, history, found, due):
        self.cls, self.history, self.found, self.due, self.asked, self.tries = cls, history, found, due, 0.0, 0


class Stream:
    """One channel. It has no sockets and no clock: its inputs are datagrams, answers and the time."""

    def __init__(self, offer, start, seed, now):
        self.rng, self.count, self.losses, self.sha = random.Random(seed), Counter(), [], hashlib.sha256()
        self.gaps, self.lost, self.held, self.crcs, self.pending = {}, {}, {}, {}, None
        self.hold_off, self.group, self.announced, self.told, self.leapt = 0.0, 0, 0.0, None, False
        self.answer = {REPAIR: (0.0, 0), REPLAY: (0.0, 0)}  # time and sequence of the last answer over TCP
        self.rtt, self.ended, self.want_status, self.doubts = None, False, False, set()
        self.end_at = self.end_heard = None  # END confirmed over TCP, and END by multicast (§4.3)
        self.lines = Lines(len(lines_of(offer)), now)
        self.channel, self.epoch, self.slots, self.heard = offer["channel"], offer["epoch"], offer["slots"], offer["newest"]
        self.continues, self.repeated_to = offer.get("continues", []), 0  # §5.7
        oldest = start == "oldest"  # §5.1
        held = offer.get("history", offer)
        self.next = self.began = held["oldest"] if oldest else offer["newest"] + 1
        self.record = self.first_record = held["oldest_record"] if oldest else offer["next_record"]
        self.miss(self.next, self.heard, now, history=True)

    def rejoin(self, offer, now):
        """Takes a WELCOME after a reconnect (§5.1). Returns False if a fenced publisher sent it."""
        if offer["epoch"] < self.epoch:
            return False
        self.slots = offer["slots"]
        self.lines.resize(len(lines_of(offer)), now)
        at = next((it for it in offer.get("continues", []) if it["epoch"] == self.epoch), None)
        if at:
            self.go_on(offer, at, now)
        elif offer["epoch"] > self.epoch:
            self.follow(offer, now)
        else:
            self.tell(offer["newest"], now, False)
            for gap in self.gaps.values():
                gap.tries, gap.due = 0, now
        return True

    def follow(self, offer, now):
        """Ends the present epoch, as the publisher confirmed, and follows the offered one (§5.6)."""
        self.lose_all("epoch")
        if not self.ended:
            tail = self.heard + (self.end_heard != self.heard)  # an unconfirmed END is part of the tail
            self.losses.append({"first": tail, "last": UNKNOWN, "records": None, "cause": "epoch"})
        self.held, self.crcs, self.lost, self.doubts, self.told, self.leapt = {}, {}, {}, set(), None, False
        self.continues, self.repeated_to = offer.get("continues", []), 0
        first = self.continues[0] if self.continues else {"last": 0, "next_record": 1}
        self.epoch, self.heard, self.ended = offer["epoch"], offer["newest"], False
        self.next, self.record = first["last"] + 1, first["next_record"]
        self.end_at = self.end_heard = None
        self.lines.restart()
        self.miss(self.next, self.heard, now, history=True)
        self.lose_below(offer["oldest"], offer["oldest_record"])

    def go_on(self, offer, at, now):
        """Follows an epoch that continues ours from `at` on. Later datagrams are dropped (§5.7)."""
        last = at["last"]
        for s in [s for s in self.gaps if s > last]:
            self.count["replay_superseded" if self.gaps.pop(s).history else "forgotten"] += 1
        for of in (self.held, self.crcs, self.lost):
            for s in [s for s in of if s > last]:
                del of[s]
        if self.next > last + 1:
            self.repeated_to = max(self.repeated_to, self.record)
            self.next = last + 1
            if self.pending and self.pending["first"] > last:
                self.pending = None
            elif self.pending:
                self.pending["last"] = last
            else:
                self.record = at["next_record"]
        if self.next == last + 1:
            self.close_loss(at["next_record"])
        self.doubts, self.told, self.leapt, self.ended = set(), None, False, False
        self.end_at = self.end_heard = None
        self.epoch, self.continues, self.heard = offer["epoch"], offer["continues"], min(self.heard, last)
        self.lines.restart()
        self.miss(self.heard + 1, offer["newest"], now, history=True)
        self.heard = offer["newest"]
        held = offer.get("history", offer)
        self.lose_below(held["oldest"], held["oldest_record"])
        for gap in self.gaps.values():
            gap.tries, gap.due = 0, now
        self.advance()

    def epoch_of(self, d):
        """Returns the epoch that a datagram with this sequence must have (§5.7)."""
        older = [it["epoch"] for it in self.continues if d.kind != HEARTBEAT and d.sequence <= it["last"]]
        return older[-1] if older else self.epoch

    def miss(self, first, last, now, history=False):
        """Marks first ..= last as missing. New gaps are above all others, so gaps stay in order."""
        if first > last:
            return
        cls = REPLAY if history or last - first >= BURST_MAX else REPAIR
        before = self.gaps.get(first - 1)
        if before and not before.tries and before.history == history and (
                first >= self.next + WINDOW or (before.found, before.cls) == (now, cls)):
            due = before.due  # one hold-off for the whole run
        else:
            due = now + self.wait_first()
        for s in range(first, last + 1):
            self.gaps[s] = Gap(cls, history, now, due)
        self.count["history" if history else "gaps"] += last + 1 - first

    def wait_first(self):
        """Returns the hold-off of a run of gaps before its first NACK (§5.4); 0 for scouts."""
        if not self.hold_off:
            return 0.0
        group = max(1, self.group)
        if self.rng.random() * group < 1 + math.floor(math.log2(group)):
            self.count["scouted"] += 1
            return 0.0
        self.count["held_off"] += 1
        return self.rng.uniform(self.hold_off / 2, self.hold_off)

    def hear(self, sequence, now):
        """Notes that everything up to `sequence` has been sent."""
        self.miss(self.heard + 1, sequence, now)
        self.heard = max(self.heard, sequence)

    def tell(self, newest, now, stale):
        """Notes what the publisher has sent, which may be ahead of our own socket (§5.5)."""
        self.hear(newest if stale or self.leapt else self.told or 0, now)
        self.told, self.leapt = newest, False

    def datagram(self, d, now, line=None):
        """Takes a datagram (§5.2); `line` is None for a repair over TCP.

        Returns whether it shows that the publisher is alive (§5.5)."""
        if d.channel != self.channel or d.epoch != self.epoch_of(d):
            self.count["other_channel" if d.channel != self.channel else "other_epoch"] += 1
            self.want_status |= d.channel == self.channel and d.epoch > self.epoch
            return False
        s = d.sequence
        if s > max(self.heard, self.next) + self.slots:
            self.count["leaps"] += 1
            self.want_status = self.leapt = True
            return False
        if line is not None:
            self.lines.heard(line, s, now)
        if d.kind == HEARTBEAT:
            self.heartbeat(d, now)
        elif s >= self.next + WINDOW:
            self.hear(s, now)
        elif s <= self.heard and s not in self.gaps:
            self.again(d, line)
        else:
            if s > self.heard:
                self.hear(s - 1, now)
                self.heard = s
            else:
                gap = self.gaps.pop(s)
                if line is None:
                    self.answer[gap.cls] = (now, s)
                self.filled(gap, d.relay & 0x80 or line is None, now)
            if d.kind == END:
                self.hear_end(s, line is None)
            self.held[s], self.crcs[s] = d, d.crc
            self.crcs.pop(s - WINDOW, None)
            self.advance()
        self.settle()
        return True

    def hear_end(self, s, confirmed):
        """Takes an END (§4.3). A multicast END only causes a request for STATUS."""
        if confirmed:
            self.end_at = s
        else:
            self.end_heard, self.want_status = s, True

    def settle(self):
        """Ends the session once everything up to the confirmed END is delivered or declared lost."""
        self.ended |= self.end_at is not None and self.next > self.end_at

    def heartbeat(self, d, now):
        """Takes a heartbeat (§4.1)."""
        body = heartbeat_body(d)
        self.announced, self.hold_off = min(body["next_interval_us"] / 1e6, 10.0), min(body["hold_off_us"] / 1e6, MAX_HOLD_OFF_S)
        self.group = body["subscribers"]
        self.want_status |= body["state"] == 2 and self.end_at is None
        self.hear(d.sequence, now)
        if d.sequence == self.next - 1:
            self.close_loss(d.first_record)

    def again(self, d, line):
        """Takes a datagram that is not missing: a duplicate, late, or with other contents (§5.2, 6)."""
        known = self.crcs.get(d.sequence)
        if known in (None, d.crc):
            self.count["duplicates"] += 1
            return
        self.count["fencing_violations"] += 1
        if line is not None:
            self.doubts.add(d.sequence)
        elif d.sequence in self.held:
            self.held[d.sequence], self.crcs[d.sequence] = d, d.crc

    def filled(self, gap, repaired, now):
        self.count["replay_received" if gap.history else "recovered"] += 1
        if repaired and gap.tries == 1 and gap.cls == REPAIR and now <= gap.due:
            rtt = now - gap.asked
            self.rtt = rtt if self.rtt is None else self.rtt + (rtt - self.rtt) / 8

    def advance(self):
        """Delivers, or declares lost, everything that is next (§7, §8)."""
        while True:
            if (d := self.held.pop(self.next, None)) is not None:
                self.close_loss(d.first_record)
                self.deliver(d)
            elif (cause := self.lost.pop(self.next, None)) is not None:
                # Adjacent losses are merged, because only their sum is known.
                self.pending = self.pending or {"first": self.next, "last": self.next, "records": None, "cause": cause}
                self.pending["last"] = self.next
            else:
                return
            self.next += 1

    def deliver(self, d):
        try:
            records = read_records(d) if d.kind == DATA else []
        except Malformed:
            self.losses.append({"first": self.next, "last": self.next, "records": d.count, "cause": "unreadable"})
            self.count["lost_records"] += d.count
        else:
            repeated = min(max(self.repeated_to - d.first_record, 0), len(records))  # §5.7
            for record in records[repeated:]:
                self.sha.update(record)
            self.count.update(delivered=1, records=len(records) - repeated, repeated=repeated, events=int(d.kind == EVENT))
        self.record += d.count

    def close_loss(self, record):
        """Closes a loss: the number of the next record is known, and with it the number of lost records."""
        if self.pending:
            lost = max(record, self.repeated_to) - max(self.record, self.repeated_to)  # §5.7
            self.pending["records"] = lost
            self.count["lost_records"] += lost
            self.losses.append(self.pending)
        elif record != self.record:
            self.count["jumps"] += 1  # must not happen: records are missing, but no datagram
        self.record, self.pending = record, None

    def lose(self, s, cause):
        if gap := self.gaps.pop(s, None):
            self.count["replay_lost" if gap.history else "lost"] += 1
            self.lost[s] = cause

    def lose_below(self, oldest, oldest_record):
        """Declares lost what the ring no longer holds; `oldest_record` is 0 if it is unknown."""
        for s in [s for s in self.gaps if s < oldest]:
            self.lose(s, "window")
        self.advance()
        if self.next == oldest and self.pending and oldest_record:
            self.close_loss(oldest_record)

    def lose_all(self, cause):
        """Declares all gaps lost, with an unknown number of records at the end."""
        for s in list(self.gaps):
            self.lose(s, cause)
        self.advance()
        if self.pending:
            self.losses.append(self.pending)
            self.pending = None

    def dead(self):
        """Takes the publisher for dead (§5.5): an unconfirmed END counts if nothing heard contradicts it."""
        if self.end_at is None and self.end_heard == self.heard:
            self.end_at = self.end_heard
        self.lose_all("publisher dead")
        self.settle()

    def retry(self, tries):
        """Returns how long to wait for the answer to this try of a NACK (§5.4)."""
        base = max(NACK_RETRY_S, 4 * (0.00025 if self.rtt is None else min(self.rtt, 0.025)))
        return base * 2 ** min(tries - 1, 8) * self.rng.uniform(0.75, 1.25)

    def refused(self, r, now):
        """Takes a REFUSED (§6.3)."""
        reason = REASONS[r["reason"]]
        self.count["refused_" + reason] += 1
        named = range(max(r["first"], self.next), min(r["last"], self.heard) + 1)
        if asked := next((gap for s in named if (gap := self.gaps.get(s))), None):
            self.answer[asked.cls] = (now, r["last"])
        if r["epoch"] != self.epoch:
            self.want_status = True
            return
        if reason == "window":
            self.lose_below(r["oldest"], r["oldest_record"])
        for s in named:
            if reason in ("too_slow", "malformed"):
                self.lose(s, "burst" if reason == "too_slow" else "refused")
            elif gap := self.gaps.get(s):
                gap.tries, gap.due = max(0, gap.tries - 1), now + max(
                    r["retry_after_us"] / 1e6, self.retry(1) if reason == "window" else NACK_RETRY_S)
        self.advance()
        self.settle()

    def status(self, st, now, stale):
        """Takes a STATUS. Returns whether to reconnect, because there is another epoch (§5.5, §5.6)."""
        self.want_status = False
        if st["epoch"] != self.epoch:
            return st["epoch"] > self.epoch
        self.count["multicast_lost"] += stale and st["newest"] > self.heard
        self.tell(st["newest"], now, stale)
        if self.next == st["newest"] + 1:
            self.close_loss(st["next_record"])
        if st["ended"] & 1:
            self.end_at = st["newest"]  # §4.3: even if END itself is no longer available
        self.settle()
        return False

    def nacks(self, now):
        """Returns the NACKs that are due, as frames; None if the connection counts as down (§5.4)."""
        wanted = {REPAIR: [[s, s] for s in sorted(self.doubts)], REPLAY: []}
        self.doubts.clear()
        flying = sum(1 for gap in self.gaps.values() if gap.cls == REPLAY and gap.tries)
        self.lines.check(now, max(LINE_SILENCE_S, 3 * self.announced))
        for s, gap in self.gaps.items():
            if s >= self.next + WINDOW:
                break
            if gap.due > now:
                continue
            if not gap.tries:
                if gap.cls == REPLAY and flying >= REPLAY_IN_FLIGHT:
                    continue
                if not gap.history and not self.lines.all_passed(s) and now < gap.found + LINE_SKEW_S:
                    continue  # §5.3: another line may still carry it
                flying += gap.cls == REPLAY
            elif (at := self.answer[gap.cls])[0] > gap.asked and at[1] < s and now - at[0] < (wait := self.retry(1)):
                gap.due = at[0] + wait  # answers come in ascending order, so its own is still due
                continue
            if gap.tries >= NACK_TRIES:
                return None
            gap.tries, gap.asked = gap.tries + 1, now
            gap.due = now + self.retry(gap.tries)
            ranges = wanted[gap.cls]
            if ranges and ranges[-1][1] == s - 1:
                ranges[-1][1] = s
            else:
                ranges.append([s, s])
        parts = [(cls, ranges[i:i + NACK_RANGES]) for cls, ranges in wanted.items()
                 for i in range(0, len(ranges), NACK_RANGES)]
        self.count["nacks"] += len(parts)
        return [nack(self.channel, self.epoch, cls, ranges) for cls, ranges in parts]

    def progress(self):
        return frame(PROGRESS, self.channel, LAYOUTS[PROGRESS][0].pack(
            self.epoch, self.next - 1, self.count["lost_records"], self.heard, time.monotonic_ns(), 0))
