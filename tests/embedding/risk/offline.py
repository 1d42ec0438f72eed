"""Recomputes the risk engine's numbers from the venue's data, without our code, network or records.

    offline.py tops CAPTURE.pcap.gz FILLS.csv LIMITS.csv
    offline.py itch PACKETS FILLS.csv LIMITS.csv        (PACKETS: MoldUDP64 payloads, each behind its u32 length)

Prints the expected contents of the engine's summary, and under "alerts" the lines that the engine must print.
A fill's place is between two records, so this program also counts each message's records. A message takes
effect with its last record.
"""
import csv, gzip, json, struct, sys

UNIT = 10**9
E4 = 10**5  # venue prices have four decimals


# ---- The venue's data: (symbol or None, records, event) per message ---------------------------------------------

def tops_payloads(path):
    """Yields UDP payloads of a gzipped pcap file of Ethernet frames (whatever its file name)."""
    with gzip.open(path) as file:
        data = file.read()
    assert data[:4] == b"\xd4\xc3\xb2\xa1" and data[20] == 1, "little-endian pcap of Ethernet"
    at = 24
    while at < len(data):
        length, = struct.unpack_from("<I", data, at + 8)
        frame, at = data[at + 16:at + 16 + length], at + 16 + length
        if frame[12:14] == b"\x08\x00" and frame[23] == 17:
            udp = 14 + (frame[14] & 15) * 4
            yield frame[udp + 8:udp + struct.unpack_from(">H", frame, udp + 4)[0]]


def tops(path):
    """Yields TOPS 1.6. A record with the symbol's name precedes its first message."""
    named, expected = set(), 1
    for payload in tops_payloads(path):
        length, count, _, first = struct.unpack_from("<HHqq", payload, 12)
        assert payload[2:4] == b"\x03\x80" and (not count or first == expected), "TOPS 1.6 without gaps"
        expected, at = first + count, 40
        for _ in range(count):
            size, = struct.unpack_from("<H", payload, at)
            message, at = payload[at + 2:at + 2 + size], at + 2 + size
            kind, symbol, event = message[:1], None, None
            if kind != b"S":
                symbol = message[10:18].decode().rstrip()
            if kind == b"Q":
                bid_size, bid, ask, ask_size = struct.unpack_from("<IqqI", message, 18)
                event = ("quote", bid * E4 if bid and bid_size else None, ask * E4 if ask and ask_size else None)
            elif kind == b"T":
                shares, price = struct.unpack_from("<Iq", message, 18)
                event = ("trade", price * E4) if shares else None
            is_new = symbol is not None and symbol not in named
            named.add(symbol)
            yield symbol, (1 if is_new else 0) + 1, (1 if is_new else 0), event


class Orders:
    """The open orders, and their totals per symbol, side and price."""

    def __init__(self):
        self.orders, self.levels = {}, {}

    def add(self, ref, symbol, side, shares, price):
        self.orders[ref] = [symbol, side, shares, price]
        level = self.levels.setdefault((symbol, side), {})
        level[price] = level.get(price, 0) + shares

    def take(self, ref, shares=None):
        order = self.orders[ref]
        symbol, side, held, price = order
        taken = held if shares is None else shares
        assert 0 <= taken <= held
        order[2] -= taken
        level = self.levels[symbol, side]
        level[price] -= taken
        if not level[price]:
            del level[price]
        if not order[2]:
            del self.orders[ref]
        return symbol, side, price

    def quote(self, symbol):
        bids, asks = self.levels.get((symbol, b"B")), self.levels.get((symbol, b"S"))
        return "quote", max(bids) if bids else None, min(asks) if asks else None


def itch(path):
    """Yields ITCH 5.0."""
    orders, symbols = Orders(), {}
    with open(path, "rb") as file:
        data = file.read()
    at, expected = 0, 1
    while at < len(data):
        length, = struct.unpack_from("<I", data, at)
        packet, at = data[at + 4:at + 4 + length], at + 4 + length
        first, count = struct.unpack_from(">QH", packet, 10)
        assert first == expected, "no gaps"
        if count == 0xFFFF:
            continue
        expected, place = first + count, 20
        for _ in range(count):
            size, = struct.unpack_from(">H", packet, place)
            message, place = packet[place + 2:place + 2 + size], place + 2 + size
            yield itch_message(message, orders, symbols)


def itch_message(m, orders, symbols):
    kind, (locate,) = m[:1], struct.unpack_from(">H", m, 1)
    if kind == b"R":
        symbols[locate] = m[11:19].decode().rstrip()
    symbol = symbols.get(locate)
    ref, = struct.unpack_from(">Q", m, 11) if len(m) >= 19 else (None,)
    trade, records = None, {b"V": 3, b"J": 3, b"O": 3}.get(kind, 1)
    if kind in (b"A", b"F"):
        orders.add(ref, symbol, m[19:20], *struct.unpack_from(">I", m, 20), struct.unpack_from(">I", m, 32)[0] * E4)
    elif kind in (b"E", b"C"):
        price = orders.take(ref, struct.unpack_from(">I", m, 19)[0])[2]
        records = 3
        if kind == b"C":
            price = struct.unpack_from(">I", m, 32)[0] * E4
        if kind == b"C" and m[31:32] != b"Y":
            records = 2
        else:
            trade = price
    elif kind == b"X":
        orders.take(ref, struct.unpack_from(">I", m, 19)[0])
    elif kind == b"D":
        orders.take(ref)
    elif kind == b"U":
        _, side, _ = orders.take(ref)
        new, shares, price = struct.unpack_from(">QII", m, 19)
        orders.add(new, symbol, side, shares, price * E4)
        records = 2
    elif kind == b"P":
        shares, price = struct.unpack_from(">I", m, 20)[0], struct.unpack_from(">I", m, 32)[0]
        trade = price * E4 if shares else None
    elif kind == b"Q":
        shares, price = ref, struct.unpack_from(">I", m, 27)[0]
        if shares:
            trade, records = price * E4, 2
    else:
        return symbol, records, 0, None
    # A cross takes effect with its first record, a book change with its last.
    return symbol, records, 0 if kind == b"Q" else records - 1, ("both", trade, orders.quote(symbol))


# ---- Positions, results, limits --------------------------------------------------------------------------------------

def money(amount):
    return f"{'-' if amount < 0 else ''}{abs(amount) // UNIT}.{abs(amount) % UNIT:09}"


class Position:
    def __init__(self):
        self.quantity = self.cost = self.realised = self.cash = 0

    def fill(self, quantity, price):
        self.cash -= quantity * price
        if self.quantity and (self.quantity > 0) != (quantity > 0):
            closed = min(abs(quantity), abs(self.quantity))
            share = abs(self.cost) * closed // abs(self.quantity)  # rounded towards zero: of the size
            share = share if self.cost > 0 else -share
            closed = closed if quantity > 0 else -closed
            self.realised += -closed * price - share
            self.cost -= share
            self.quantity += closed
            quantity -= closed
        self.quantity += quantity
        self.cost += quantity * price

    def value(self, mark):
        return self.cost if mark is None else self.quantity * mark


class Desk:
    def __init__(self, fills, limits):
        self.fills = sorted(fills, key=lambda fill: int(fill["after"]))
        self.limits = {(row["limit"], row["name"]): int(row["value"]) * UNIT for row in limits}
        self.positions, self.quotes, self.lasts, self.marks = {}, {}, {}, {}
        self.gross, self.net, self.cost = {}, {}, {}  # per portfolio; per symbol: net
        self.exposure, self.realised, self.breached, self.alerts = {}, {}, set(), []
        self.next, self.trail = 0, 0xCBF29CE484222325
        for fill in fills:
            self.positions.setdefault(fill["symbol"], {})[fill["portfolio"]] = Position()
            self.realised[fill["portfolio"]] = 0
        self.unrealised, self.gross, self.net = (dict.fromkeys(self.realised, 0) for _ in range(3))
        self.values = {}

    def fill_before(self, record):
        while self.next < len(self.fills) and int(self.fills[self.next]["after"]) < record:
            fill = self.fills[self.next]
            self.next += 1
            quantity, name, symbol = int(fill["quantity"]), fill["portfolio"], fill["symbol"]
            position = self.positions[symbol][name]
            self.realised[name] -= position.realised
            position.fill(quantity if fill["side"] == "buy" else -quantity, int(fill["price_e9"]))
            self.realised[name] += position.realised
            self.revalue(symbol, int(fill["after"]))

    def market(self, symbol, event, record):
        if event[0] == "trade":
            self.lasts[symbol] = event[1]
        elif event[0] == "quote":
            self.quotes[symbol] = event[1:]
        else:
            _, trade, quote = event
            if trade is not None:
                self.lasts[symbol] = trade
            self.quotes[symbol] = quote[1:]
        bid, ask = self.quotes.get(symbol, (None, None))
        mark = self.lasts.get(symbol) if bid is None or ask is None else (bid + ask) // 2
        if mark != self.marks.get(symbol):
            self.marks[symbol] = mark
            if symbol in self.positions:
                self.revalue(symbol, record)

    def revalue(self, symbol, record):
        mark = self.marks.get(symbol)
        for name, position in self.positions[symbol].items():
            old = self.values.get((symbol, name), (0, 0))
            exposure = position.value(mark)
            new = self.values[symbol, name] = (exposure, exposure - position.cost)
            self.gross[name] += abs(new[0]) - abs(old[0])
            self.net[name] += new[0] - old[0]
            self.unrealised[name] += new[1] - old[1]
        result = sum(self.realised.values()) + sum(self.unrealised.values())
        for word in (record, result, result >> 64):
            self.trail = ((self.trail ^ word & 2**64 - 1) * 0x100000001B3) & 2**64 - 1
        self.exposure[symbol] = sum(p.value(mark) for p in self.positions[symbol].values())
        self.judge(record, "instrument", symbol, "exposure", abs(self.exposure[symbol]))
        for name in sorted(self.positions[symbol]):
            self.judge(record, "portfolio", name, "gross", self.gross[name])
            self.judge(record, "portfolio", name, "net", abs(self.net[name]))
            self.judge(record, "portfolio", name, "loss", -self.realised[name] - self.unrealised[name])

    def judge(self, record, subject, name, kind, value):
        limit = self.limits.get((kind, name), self.limits.get((kind, "*")))
        if limit is None or (value > limit) == ((kind, name) in self.breached):
            return
        self.breached ^= {(kind, name)}
        what = "breach" if value > limit else "clear"
        self.alerts.append(f"{record} {what} {subject} {name} {kind} {money(value)} limit {money(limit)}")

    def check(self):
        """Checks the sums by recomputing them, and the result as cash plus value, without average costs."""
        for name in self.realised:
            own = [(p[name], self.marks.get(symbol)) for symbol, p in self.positions.items() if name in p]
            values = [p.value(mark) for p, mark in own]
            assert self.gross[name] == sum(map(abs, values)) and self.net[name] == sum(values)
            assert self.realised[name] == sum(p.realised for p, _ in own)
            result = sum(p.cash for p, _ in own) + sum(values)
            assert self.realised[name] + self.unrealised[name] == result

    def summary(self, records):
        self.check()
        symbols = {s for s, mark in self.marks.items() if mark is not None} | set(self.positions)
        breaches = sum(" breach " in alert for alert in self.alerts)
        return {
            "records": records, "fills": self.next, "fills_left": len(self.fills) - self.next,
            "breaches": breaches, "clears": len(self.alerts) - breaches, "trail": f"{self.trail:016x}",
            "portfolios": [self.portfolio(name) for name in sorted(self.realised)],
            "instruments": [self.instrument(symbol) for symbol in sorted(symbols)],
        }

    def portfolio(self, name):
        realised, unrealised = self.realised[name], self.unrealised[name]
        return {"name": name, "realised": money(realised), "unrealised": money(unrealised), "frozen": False,
                "result": money(realised + unrealised), "gross": money(self.gross[name]), "net": money(self.net[name])}

    def instrument(self, symbol):
        mark, held = self.marks.get(symbol), self.positions.get(symbol, {})
        positions = [{"portfolio": name, "quantity": p.quantity, "cost": money(p.cost), "realised": money(p.realised),
                      "unrealised": money(p.value(mark) - p.cost), "exposure": money(p.value(mark))}
                     for name, p in sorted(held.items())]
        return {"symbol": symbol, "mark": None if mark is None else money(mark), "frozen": False,
                "exposure": money(self.exposure.get(symbol, 0)), "positions": positions}


def main(feed, path, fills, limits):
    with open(fills) as f, open(limits) as l:
        desk = Desk(list(csv.DictReader(f)), list(csv.DictReader(l)))
    record = 0
    for symbol, records, counts_with, event in {"tops": tops, "itch": itch}[feed](path):
        for number in range(records):
            record += 1
            desk.fill_before(record)
            if event and number == counts_with:
                desk.market(symbol, event, record)
    desk.fill_before(record + 1)
    json.dump({**desk.summary(record), "alerts": desk.alerts}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
