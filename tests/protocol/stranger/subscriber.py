#!/usr/bin/env python3
"""A complete tickcast subscriber (wire version 1, mode `ordered`, one channel), from docs/PROTOCOL.md alone.

It shows that the page suffices, and is meant to be read beside it: § numbers are those of the page. It joins,
listens to the lines of its offer, delivers in order, and sends NACKs for gaps. At the end it prints its
results as JSON.

    subscriber.py 127.0.0.1:7400 all --interface 127.0.0.1 --from oldest --drop 0.05 --seed 1
    subscriber.py --parse tests/golden/datagram-data.hex

wire.py has the bytes, stream.py and lines.py have the rules of a channel, and this file has sockets,
connection and timers.
"""
import argparse, json, random, select, socket, sys, time
from collections import Counter

from stream import Stream
from wire import *

# The page says 5 s for DEAD_S. Its tests restart publishers, which takes a slow host longer.
STALE_S, FOLLOW_S, REJOIN_S, PROGRESS_S, DEAD_S = 0.030, 0.001, 0.200, 0.100, 30.0


class Down(Exception):
    """The TCP connection can no longer be used."""


class Rejected(Down):
    """The publisher rejected us, and said when to try again (§6.1)."""

    def __init__(self, body):
        super().__init__(f"{body['code']}: {body['text']}")
        self.wait = body.get("retry_after_ms", 0) / 1000 or 1.0


class Link:
    """The control connection, which carries frames in both directions."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=2)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as e:
            raise Down(str(e)) from e

    def receive(self):
        """Reads once. Returns the complete frames, as (type, body)."""
        try:
            data = self.socket.recv(1 << 18)
        except OSError as e:
            raise Down(str(e)) from e
        if not data:
            raise Down("closed by the publisher")
        self.buffer += data
        at, frames = 0, []
        while len(self.buffer) - at >= HEAD.size:
            length, kind, _, _ = HEAD.unpack_from(self.buffer, at)
            if length > 16 << 20 or kind not in MESSAGES:
                raise Down(f"frame of type {kind}, {length} bytes")
            if len(self.buffer) - at < HEAD.size + length:
                break
            frames.append((kind, bytes(self.buffer[at + HEAD.size:at + HEAD.size + length])))
            at += HEAD.size + length
        del self.buffer[:at]
        return frames

    def join(self, channel, start, epoch):
        """Joins (§6.1). Returns our channel's offer, and the frames that followed it."""
        self.send(frame(JOIN, 0, json.dumps({
            "name": "stranger", "wire_versions": [1], "purpose": "repair",
            "channels": [{"channel": channel, "start": start, "confirmed_epoch": epoch}]}).encode()))
        while not (frames := self.receive()):
            pass
        kind, body = frames[0]
        if kind == REJECTED:
            raise Rejected(read_body(kind, body))
        if kind != WELCOME:
            raise Down("no WELCOME")
        welcome = read_body(kind, body)
        if welcome["wire_version"] != 1 or len(welcome["channels"]) != 1:
            raise Down("a WELCOME to something else")
        return welcome["channels"][0], frames[1:]


class Line:
    """A socket for one line of a fan-out, on one interface. Only datagrams of its `sender` count (§6.1)."""

    def __init__(self, line, interface):
        group, port = line["group"].rsplit(":", 1)
        self.sender, self.joined = line.get("sender"), False
        self.membership = socket.inet_aton(group) + socket.inet_aton(interface)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((group, int(port)))
        self.socket.setblocking(False)
        self.join()

    def join(self):
        if self.joined:
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, self.membership)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, self.membership)
        self.joined = True

    def datagrams(self):
        """Yields waiting datagrams, at most 256 at a time, so that nothing else waits long."""
        for _ in range(256):
            try:
                yield self.socket.recvfrom(65536)
            except BlockingIOError:
                return


# ---- The subscriber ------------------------------------------------------------------------------------------------------

class Subscriber:
    def __init__(self, args):
        self.args, self.stream, self.link, self.lines = args, None, None, []
        self.faults, self.count, self.dead = random.Random(args.seed), Counter(), False
        now = time.monotonic()
        self.heard = self.multicast = self.told = self.looked = self.rejoined = now
        self.attempt_at, self.back_off = now, 0.010

    def connect(self, now):
        """Makes one attempt to connect (§6.1): takes the offer, or schedules the next attempt."""
        try:
            link = Link(self.args.publisher)
            offer, frames = link.join(self.args.channel, self.args.start, self.stream.epoch if self.stream else 0)
        except (OSError, Down, Malformed) as e:
            return self.put_off(e, now)
        now = time.monotonic()
        if self.stream is None:
            self.multicast = now
            self.stream = Stream(offer, self.args.start, self.args.seed, now)
        elif not self.stream.rejoin(offer, now):
            return self.put_off("a publisher of an epoch that is over", now)
        for line in self.lines:
            line.socket.close()
        self.lines = [Line(line, self.args.interface) for line in lines_of(offer)]
        self.link, self.heard, self.told = link, now, 0.0
        self.control(frames, now)

    def put_off(self, why, now):
        print(f"{self.args.publisher}: {why}", file=sys.stderr)
        self.attempt_at = now + max(self.back_off * random.uniform(0.5, 1.5), getattr(why, "wait", 0.0))
        self.back_off, self.link = min(self.back_off * 2, 1.0), None

    def control(self, frames, now):
        for kind, body in frames:
            self.heard = now
            if kind == DATAGRAM:
                self.count["repairs"] += 1
                self.take(body, now, None)
            elif kind == REFUSED:
                self.stream.refused(read_body(kind, body), now)
            elif kind == STATUS:
                self.back_off = 0.010
                if self.stream.status(read_body(kind, body), now, self.stale(now)):
                    raise Down("another epoch")
            elif kind == REJECTED:
                raise Rejected(read_body(kind, body))

    def multicasts(self, number, line, now):
        for data, (address, _) in line.datagrams():
            if line.sender not in (None, address):
                self.count["strangers"] += 1
            elif self.faults.random() < self.args.drop:
                self.count["dropped_in_front"] += 1
            elif self.take(data, now, number):
                self.heard = self.multicast = now

    def take(self, data, now, line):
        """Takes a datagram's bytes. Unreadable ones are counted and dropped (§3)."""
        try:
            return self.stream.datagram(read_datagram(data), now, line)
        except Malformed as e:
            self.count[f"malformed_{e}"] += 1
            return False

    def stale(self, now):
        return now - self.multicast > max(3 * self.stream.announced, STALE_S)

    def timers(self, now):
        stale = self.stale(now)
        if stale and now - self.rejoined > REJOIN_S:  # §5.5
            self.rejoined = now
            for line in self.lines:
                line.join()
        wanted = stale or self.stream.want_status
        if now - self.told >= (FOLLOW_S if wanted else PROGRESS_S):
            self.told = now
            self.link.send(self.stream.progress())
        if now - self.looked > 0.0005:
            self.looked = now
            if (nacks := self.stream.nacks(now)) is None:
                raise Down("NACKs are not answered")
            self.link.send(b"".join(nacks))

    def run(self):
        """Runs until END is settled or the publisher is dead. Unlike the page, it does not retry for ever."""
        while not (self.stream and self.stream.ended):
            now = time.monotonic()
            if now - self.heard > DEAD_S and self.link:
                self.heard = now
                self.put_off("silent on every path", now)
            elif now - self.heard > DEAD_S:
                self.dead = True
                if self.stream:
                    self.stream.dead()
                return
            if self.link is None and now >= self.attempt_at:
                self.connect(now)
            sockets = [line.socket for line in self.lines] + ([self.link.socket] if self.link else [])
            ready = select.select(sockets, [], [], 0.0005)[0] if sockets else time.sleep(0.001) or []
            now = time.monotonic()
            for number, line in enumerate(self.lines):
                if line.socket in ready:
                    self.multicasts(number, line, now)
            try:
                if self.link and self.link.socket in ready:
                    self.control(self.link.receive(), now)
                if self.link:
                    self.timers(now)
            except (Down, Malformed) as e:
                self.put_off(e, now)
        if self.link:
            self.link.send(self.stream.progress() + frame(LEAVE, 0))  # lets the publisher end without waiting for us

    def report(self):
        if (s := self.stream) is None:
            return {"ended": False}
        names = "records delivered duplicates gaps recovered lost history replay_received replay_lost lost_records jumps " \
                "fencing_violations nacks repairs dropped_in_front scouted held_off"
        return dict.fromkeys(names.split(), 0) | s.count | self.count | {
            "ended": s.ended, "dead": self.dead, "epoch": s.epoch, "first_record": s.first_record, "first": s.began,
            "last": s.next - 1, "missing_open": len(s.gaps), "losses": s.losses, "sha256": s.sha.hexdigest()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("publisher", nargs="?", help="host:port of its control connection")
    p.add_argument("channel", nargs="?", help="name of the channel")
    p.add_argument("--interface", default="127.0.0.1", help="address of the interface to listen on")
    p.add_argument("--from", dest="start", choices=("live", "oldest"), default="live", help="where to begin")
    p.add_argument("--drop", type=float, default=0.0, help="drop this part of what comes by multicast")
    p.add_argument("--seed", type=int, default=1, help="of the drops and of all random times")
    p.add_argument("--parse", metavar="FILE", help="print a golden file as JSON, and do nothing else")
    args = p.parse_args()
    if args.parse:
        print(json.dumps(read_text(args.parse)))
        return 0
    if not args.channel:
        p.error("a publisher and a channel are needed")
    subscriber = Subscriber(args)
    subscriber.run()
    print(json.dumps(subscriber.report()))
    return 3 if not subscriber.stream else int(bool(subscriber.stream.losses) or not subscriber.stream.ended)


if __name__ == "__main__":
    sys.exit(main())
