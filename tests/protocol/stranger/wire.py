"""Every byte of wire version 1, as docs/PROTOCOL.md has it: datagrams (§3), records, control messages (§6).

`read_text` reads the commented hex files of tests/golden, for `subscriber.py --parse FILE`.
"""
import json, struct
from collections import namedtuple
from pathlib import Path

# ---- §3 The datagram ------------------------------------------------------------------------------------------------

HEADER = struct.Struct("<HBBHHQQQQQIHHHBBI")
Datagram = namedtuple("Datagram", "magic version kind channel count epoch sequence first_record source_position sent_at "
                                  "retained source payload_len flags header_len relay crc payload")
KINDS = {1: "data", 2: "event", 3: "heartbeat", 4: "end"}
DATA, EVENT, HEARTBEAT, END = KINDS
RECORDS = {0x00: 48, 0x01: 80, 0x12: 40, 0x13: 520, 0x14: 112, 0x16: 176, 0x18: 80, 0xA0: 56}
HEARTBEAT_BODY = struct.Struct("<IIIB3xQ")
HEARTBEAT_NAMES = "next_interval_us hold_off_us subscribers state config_hash"


def crc_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


CRC_TABLE = tuple(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Malformed(Exception):
    """Bytes to drop; the text says which check failed."""


def read_datagram(data):
    if len(data) < 64:
        raise Malformed("short")
    h = HEADER.unpack_from(data)
    start, end = h[14] * 8, h[14] * 8 + h[12]
    d = Datagram(*h, data[start:end])
    for fits, why in ((d.magic == 0x4B54, "magic"), (d.version == 1, "version"), (d.kind in KINDS, "kind"),
                      (d.header_len >= 8 and end <= len(data), "length"), (d.epoch, "epoch"),
                      (d.sequence or d.kind == HEARTBEAT, "sequence"), (crc32c(data[:59] + data[64:end]) == d.crc, "crc")):
        if not fits:
            raise Malformed(why)
    return d


def read_records(d):
    """Returns the records of a data datagram (§3.2); raises Malformed if it is unreadable."""
    records, at = [], 0
    while at < len(d.payload):
        length = d.payload[at] * 4
        if at + length > len(d.payload) or RECORDS.get(d.payload[at + 1]) != length:
            raise Malformed("records")
        records.append(d.payload[at:at + length])
        at += length
    if len(records) != d.count:
        raise Malformed("count")
    return records


def heartbeat_body(d):
    """Returns a heartbeat's body (§4.1). A body that is too short, or has an unknown state, is malformed."""
    if len(d.payload) < HEARTBEAT_BODY.size:
        raise Malformed("heartbeat")
    body = dict(zip(HEARTBEAT_NAMES.split(), HEARTBEAT_BODY.unpack_from(d.payload)))
    if body["state"] not in (1, 2, 3):
        raise Malformed("heartbeat")
    return body


# ---- §6 Control -----------------------------------------------------------------------------------------------------

HEAD = struct.Struct("<IBBH")
MESSAGES = {1: "JOIN", 2: "WELCOME", 3: "REJECTED", 4: "NACK", 5: "DATAGRAM", 6: "REFUSED", 7: "PROGRESS", 8: "STATUS",
            9: "LEAVE", 10: "GRANT", 11: "MIRROR", 12: "MIRROR_REFUSED",
            13: "KEY", 14: "LATENCY"}
(JOIN, WELCOME, REJECTED, NACK, DATAGRAM, REFUSED, PROGRESS, STATUS, LEAVE, GRANT, MIRROR,
 MIRROR_REFUSED, KEY, LATENCY) = MESSAGES
NACK_BODY, REPAIR, REPLAY = struct.Struct("<QBBHI"), 1, 2
STAGES = ("event_to_received", "received_to_sealed", "sealed_to_delivered", "repair", "replayed")
LAYOUTS = {REFUSED: (struct.Struct("<QQQQQIB3x"), "epoch first last oldest oldest_record retry_after_us reason"),
           PROGRESS: (struct.Struct("<QQQQQQ"), "epoch settled lost_records heard clock read_bytes"),
           STATUS: (struct.Struct("<QQQQQQB7x"), "epoch newest oldest next_record clock utc ended"),
           GRANT: (struct.Struct("<QQQQQI4xQQI4x"),
                   "epoch attempt address length tokens rkey cursor_address cursor_length cursor_rkey"),
           MIRROR: (struct.Struct("<QQQQI4x"), "epoch attempt address length rkey"),
           MIRROR_REFUSED: (struct.Struct("<QQB7x"), "epoch attempt reason"),
           KEY: (struct.Struct("<QQQQQQ"), "epoch number key_0 key_1 key_2 key_3"),
           LATENCY: (struct.Struct("<27Q"), " ".join(
               ["interval clock_limit", *(f"{stage}_{number}" for stage in STAGES
                                          for number in ("samples", "p50", "p99", "p999", "max"))]))}
REASONS = {1: "window", 2: "ahead", 3: "budget", 4: "too_slow", 5: "epoch", 6: "malformed"}


def frame(kind, channel, body=b""):
    return HEAD.pack(len(body), kind, 0, channel) + body


def nack(channel, epoch, cls, ranges):
    body = NACK_BODY.pack(epoch, cls, 0, len(ranges), 0) + b"".join(struct.pack("<QQ", *r) for r in ranges)
    return frame(NACK, channel, body)


def read_body(kind, body):
    """Returns a control message's body as a dictionary. Bytes behind the known fields are ignored."""
    try:
        return unpack_body(kind, body)
    except (struct.error, ValueError, KeyError) as e:
        raise Malformed(f"{MESSAGES[kind]}: {e}") from e


def unpack_body(kind, body):
    if kind in LAYOUTS:
        layout, names = LAYOUTS[kind]
        return dict(zip(names.split(), layout.unpack_from(body)))
    if kind == NACK:
        epoch, cls, _, n, _ = NACK_BODY.unpack_from(body)
        return {"epoch": epoch, "class": cls,
                "ranges": [list(struct.unpack_from("<QQ", body, 16 + 16 * i)) for i in range(n)]}
    return json.loads(body) if kind in (JOIN, WELCOME, REJECTED) else {}


def lines_of(offer):
    """Returns the lines of a WELCOME's offer (§6.1), without unknown transports."""
    return [line for fan_out in offer["fan_outs"] if fan_out["transport"] == "udp" for line in fan_out["lines"]]


# ---- Golden files ---------------------------------------------------------------------------------------------------

def describe(d):
    """Returns a datagram as JSON: fields by the page's names, and the body by kind."""
    out = {name: value for name, value in d._asdict().items() if name != "payload"} | {"kind": KINDS[d.kind]}
    if d.kind == DATA:
        out["records"] = [r.hex() for r in read_records(d)]
    elif d.kind == HEARTBEAT:
        out["body"] = heartbeat_body(d)
    elif d.kind == EVENT:
        out["body"] = read_event(d.payload)
    return out


def read_event(body):
    """Returns an event (§4.2); None for an unknown type."""
    kind, reason = struct.unpack_from("<HH", body)
    if kind == 1:
        source, n, position, messages = struct.unpack_from("<HHQQ", body, 4)
        instruments = list(struct.unpack_from(f"<{n}I", body, 24))
        return {"type": "source_lost", "reason": {1: "gap", 2: "overflow", 3: "malformed"}.get(reason), "source": source,
                "position": position, "messages": messages, "instruments": instruments}
    if kind == 2:
        previous, last = struct.unpack_from("<QQ", body, 8)
        return {"type": "epoch_opened", "reason": {1: "fresh", 2: "restart", 3: "promotion"}.get(reason),
                "previous": previous, "last": last}
    if kind in (3, 4):
        source, n, since = struct.unpack_from("<HHQ", body, 4)
        return {"type": "source_silent" if kind == 3 else "source_back", "source": source, "since": since,
                "instruments": list(struct.unpack_from(f"<{n}I", body, 24))}
    return None


def read_text(path):
    """Returns a golden file (`datagram-*.hex` or `control-*.hex`) as JSON."""
    lines = Path(path).read_text().splitlines()
    data = bytes.fromhex(" ".join(line.split("#")[0] for line in lines))
    if Path(path).name.startswith("datagram-"):
        return describe(read_datagram(data))
    length, kind, _, channel = HEAD.unpack_from(data)
    if HEAD.size + length != len(data):
        raise Malformed("length")
    body = data[HEAD.size:]
    out = {"message": MESSAGES[kind], "channel": channel}
    return out | {"body": describe(read_datagram(body)) if kind == DATAGRAM else read_body(kind, body)}
