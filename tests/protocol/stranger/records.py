"""Writes trades into a publisher's records socket, with nothing but struct: docs/PROTOCOL.md, section 12.

usage: records.py SOCKET MESSAGES FIRST_SEQUENCE

The first half are records without a frame, the second half framed messages of two records each. Every
1,000th sequence is declared lost. At the end it sends the end of the source, and prints the SHA-256 of all
records.
"""

import hashlib
import socket
import struct
import sys
import time

path, messages, sequence = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

MESSAGE, LOST, END = 1, 2, 3


def trade(instrument, price, size):
    """Returns a DBN version 3 TradeMsg: header, price, size, action, side, flags, depth, times, sequence."""
    header = struct.pack("<BBHIQ", 12, 0x00, 1, instrument, 1_700_000_000_000_000_000)
    body = struct.pack("<qIccBBQiI", price, size, b"T", b"N", 0, 0, 1_700_000_000_000_000_001, 0, 0)
    return header + body


def frame(what, sequence, count=0, messages=0):
    return struct.pack("<BBHHHQQ", 6, 0xF0, count, what, 0, sequence, messages)


writer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
writer.connect(path)
digest = hashlib.sha256()
out = bytearray(frame(LOST, sequence, messages=1))
sequence += 1
for n in range(messages):
    if n < messages // 2:
        records = trade(1 + n % 5, n * 10_000_000, n + 1)
        out += records
    else:
        if sequence % 1000 == 0:
            out += frame(LOST, sequence, messages=1)
            sequence += 1
        records = trade(7, n, n + 1) + trade(7, -n, n + 1)
        out += frame(MESSAGE, sequence, count=2) + records
    sequence += 1
    digest.update(records)
    # Pieces split every record, and the rate is one that the publisher keeps up with.
    if len(out) > 4096:
        writer.sendall(out[:4001])
        del out[:4001]
        time.sleep(0.001)
out += frame(END, sequence)
writer.sendall(out)
writer.shutdown(socket.SHUT_WR)
writer.recv(1)
print(digest.hexdigest())
