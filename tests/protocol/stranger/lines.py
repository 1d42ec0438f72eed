"""The lines of a channel, and which of them are live: docs/PROTOCOL.md §5.3."""
import math


class Line:
    """One line: its highest sequence, its last datagram, and the begin of its time without a long silence."""
    __slots__ = ("highest", "heard", "since", "up")

    def __init__(self, now):
        self.highest, self.heard, self.since, self.up = 0, now, now, True


class Lines:
    """All lines of a channel. A line without any datagram is live until it was silent for too long."""

    def __init__(self, count, now):
        self.lines = [Line(now) for _ in range(count)]
        self.silence = self.silence_before = math.inf
        self.shorter_at = now

    def resize(self, count, now):
        if count != len(self.lines):
            self.__init__(count, now)

    def restart(self):
        """Begins another epoch: earlier sequences no longer count."""
        for line in self.lines:
            line.highest = 0

    def heard(self, number, sequence, now):
        line = self.lines[number]
        if now - line.heard >= self.silence:
            line.since = now
        line.highest, line.heard, line.up = max(line.highest, sequence), now, True

    def all_passed(self, sequence):
        """Returns whether no live line can still carry `sequence`; always True with one line."""
        return len(self.lines) < 2 or all(line.highest >= sequence for line in self.lines if line.up)

    def check(self, now, silence):
        """Marks lines down that were silent for `silence` seconds, if another line is live."""
        if silence < self.silence < math.inf:
            self.shorter_at, self.silence_before = now, self.silence
        self.silence = silence
        if any(now - line.heard < silence and now - line.since >= silence / 4 for line in self.lines):
            for line in self.lines:
                line.up &= now < self.down_at(line)

    def down_at(self, line):
        """Returns when a line counts as down. A shorter interval counts from its announcement on,
        because the announcement may still be in flight on this line."""
        return min(max(line.heard, self.shorter_at) + self.silence, line.heard + max(self.silence, self.silence_before))
