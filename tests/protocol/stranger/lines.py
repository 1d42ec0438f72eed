"""The lines of a channel, and which of them are live: docs/PROTOCOL.md §5.3."""
import math


class Line:
    """What one line carried: its highest sequence, when it was heard last, and since when without a long silence."""
    __slots__ = ("highest", "heard", "since", "up")

    def __init__(self, now):
        self.highest, self.heard, self.since, self.up = 0, now, now, True


class Lines:
    """All lines of a channel. A line that was never heard is live until it was silent for too long."""

    def __init__(self, count, now):
        self.lines = [Line(now) for _ in range(count)]
        self.silence = self.silence_before = math.inf
        self.shorter_at = now

    def resize(self, count, now):
        if count != len(self.lines):
            self.__init__(count, now)

    def restart(self):
        """Another epoch: what was passed counts no more."""
        for line in self.lines:
            line.highest = 0

    def heard(self, number, sequence, now):
        line = self.lines[number]
        if now - line.heard >= self.silence:
            line.since = now
        line.highest, line.heard, line.up = max(line.highest, sequence), now, True

    def all_passed(self, sequence):
        """Whether no live line can bring `sequence` any more. With one line there is nothing to wait for."""
        return len(self.lines) < 2 or all(line.highest >= sequence for line in self.lines if line.up)

    def check(self, now, silence):
        """Takes lines down that were silent for `silence` seconds, if another bears witness."""
        if silence < self.silence < math.inf:
            self.shorter_at, self.silence_before = now, self.silence
        self.silence = silence
        if any(now - line.heard < silence and now - line.since >= silence / 4 for line in self.lines):
            for line in self.lines:
                line.up &= now < self.down_at(line)

    def down_at(self, line):
        """An interval that was announced as shorter counts from then on: it may be on its way on this line as well."""
        return min(max(line.heard, self.shorter_at) + self.silence, line.heard + max(self.silence, self.silence_before))
