-- Shows tickcast's datagrams and control messages in Wireshark and tshark (3.6 or later): wire version 1,
-- as docs/PROTOCOL.md defines it, with the DBN records inside. docs/OPERATIONS.md says how to install it.
--
-- The tables of this file repeat the decoder's. tests/protocol/wireshark compares every field and name.

local datagram = Proto("tickcast", "tickcast datagram")
local control = Proto("tickcast_control", "tickcast control message")

-- Fields -------------------------------------------------------------------------------------------------

-- Bytes, type and base of each kind of field. A kind with "?" names its highest value "undefined", as DBN
-- does. "textN" is text of N bytes, padded with zeros; "bytesN" has N bytes.
local KINDS = {
    u8 = { 1, ftypes.UINT8, base.DEC },
    u16 = { 2, ftypes.UINT16, base.DEC },
    u32 = { 4, ftypes.UINT32, base.DEC },
    u64 = { 8, ftypes.UINT64, base.DEC },
    i8 = { 1, ftypes.INT8, base.DEC },
    i16 = { 2, ftypes.INT16, base.DEC },
    i32 = { 4, ftypes.INT32, base.DEC },
    i64 = { 8, ftypes.INT64, base.DEC },
    x8 = { 1, ftypes.UINT8, base.HEX },
    x16 = { 2, ftypes.UINT16, base.HEX },
    x32 = { 4, ftypes.UINT32, base.HEX },
    x64 = { 8, ftypes.UINT64, base.HEX },
    char = { 1, ftypes.CHAR, base.HEX },
    price = { 8, ftypes.INT64, base.DEC },
    time = { 8, ftypes.UINT64, base.DEC },
}

local HIGHEST = {
    u8 = "255",
    u16 = "65535",
    u32 = "4294967295",
    u64 = "18446744073709551615",
    i8 = "127",
    i16 = "32767",
    i32 = "2147483647",
    i64 = "9223372036854775807",
    price = "9223372036854775807",
    time = "18446744073709551615",
}

-- Returns an integer of a range in decimal. Lua's own numbers hold 53 bits only.
local function decimal(range, kind)
    local wide = range:len() == 8
    if kind:sub(1, 1) == "i" or kind == "price" then
        return wide and tostring(range:le_int64()) or string.format("%d", range:le_int())
    end
    return wide and tostring(range:le_uint64()) or string.format("%d", range:le_uint())
end

-- Returns digits with a point before the last nine of them.
local function with_point(digits)
    digits = string.rep("0", 10 - #digits) .. digits
    return digits:sub(1, -10) .. "." .. digits:sub(-9)
end

-- Returns a price in units of 1e-9.
local function fixed_price(value)
    local sign, digits = value:match("^(%-?)(%d+)$")
    return sign .. with_point(digits)
end

-- Returns the date of nanoseconds since the Unix epoch, UTC.
local function date(value)
    local seconds, fraction = with_point(value):match("^(%d+)(%.%d+)$")
    -- Some systems know no dates of far years.
    local known, text = pcall(os.date, "!%Y-%m-%dT%H:%M:%S", tonumber(seconds))
    return known and text .. fraction .. "Z" or nil
end

-- Returns the text of a fixed number of bytes, up to the first zero.
local function text(range)
    local bytes = range:raw():match("^[^\0]*")
    return (bytes:gsub("[^\32-\126]", function(byte)
        return string.format("\\x%02x", byte:byte())
    end))
end

-- Returns a run of sequences, both ends included.
local function run(first, last)
    if tostring(last) == HIGHEST.u64 then
        return tostring(first) .. " to the end of the epoch"
    end
    return first == last and tostring(first) or tostring(first) .. "-" .. tostring(last)
end

-- All fields by their names in filters. Messages that have a field of one name share it.
local registered = { [datagram] = {}, [control] = {} }

local function register(proto, name, title, type, ...)
    local fields = registered[proto]
    fields[name] = fields[name] or ProtoField.new(title, name, type, ...)
    return fields[name]
end

-- Describes consecutive fields: { name, kind, labels =, bits =, note = }. `note` returns an explanation of a
-- range, or nil. `bits` are { name, mask }.
local function layout(proto, prefix, entries)
    local fields, len = {}, 0
    for _, entry in ipairs(entries) do
        local title, kind = entry[1], entry[2]
        local field = { at = len, kind = kind:match("^[^?]+"), note = entry.note, bits = {} }
        field.highest = kind:match("%?$") and HIGHEST[field.kind]
        local shape, width = kind:match("^(%a+)(%d+)$")
        local type, display
        if shape == "text" then
            field.kind, field.len, type = "text", tonumber(width), ftypes.STRING
        elseif shape == "bytes" then
            field.kind, field.len, type = "bytes", tonumber(width), ftypes.BYTES
        else
            field.len, type, display = table.unpack(KINDS[field.kind])
        end
        local name = prefix .. title
        field.of = register(proto, name, title, type, entry.labels, display)
        for _, of in ipairs(entry.bits or {}) do
            local bit_name, mask = table.unpack(of)
            local single = bit.band(mask, mask - 1) == 0
            local bits_type = single and ftypes.BOOLEAN or type
            local bits_base = single and 8 * field.len or base.DEC
            local full_name = name .. "." .. bit_name
            table.insert(field.bits, register(proto, full_name, bit_name, bits_type, nil, bits_base, mask))
        end
        len = len + field.len
        table.insert(fields, field)
    end
    return { fields = fields, len = len }
end

-- Returns the explanation behind a value.
local function note(field, range)
    if field.note then
        return field.note(range)
    end
    if not (field.highest or field.kind == "price" or field.kind == "time") then
        return nil
    end
    local value = decimal(range, field.kind)
    if value == field.highest then
        return "undefined"
    elseif field.kind == "price" then
        return fixed_price(value)
    elseif field.kind == "time" then
        return date(value)
    end
end

local function show(tree, range, field)
    local item
    if field.kind == "text" then
        item = tree:add(field.of, range, text(range))
    elseif field.kind == "bytes" then
        item = tree:add(field.of, range)
    else
        item = tree:add_le(field.of, range)
    end
    local explanation = note(field, range)
    if explanation then
        item:append_text(" (" .. explanation .. ")")
    end
    for _, of in ipairs(field.bits) do
        item:add_le(of, range)
    end
    return item
end

-- Shows the fields of a layout that end at or before `last`. Returns the first byte behind them.
local function show_all(tree, tvb, at, last, of)
    local behind = at
    for _, field in ipairs(of.fields) do
        if at + field.at + field.len > last then
            break
        end
        show(tree, tvb(at + field.at, field.len), field)
        behind = at + field.at + field.len
    end
    return behind
end

-- Shows bytes that no layout describes, if there are any.
local function show_bytes(tree, tvb, at, last, field)
    if last > at then
        return tree:add(field, tvb(at, last - at))
    end
end

-- Names --------------------------------------------------------------------------------------------------

local KIND_NAMES = { "data", "event", "heartbeat", "end" }
local DATA, EVENT, HEARTBEAT = 1, 2, 3

local STATE_NAMES = { "live", "ended", "standby" }

local EVENT_NAMES = { "source lost", "epoch opened", "source silent", "source back" }

local SOURCE_LOSS_REASONS = { "gap", "overflow", "malformed" }

local EPOCH_REASONS = { "fresh", "restart", "promotion" }

local RESTART_REASONS = {
    [0] = "not told",
    [4] = "ring gone",
    [5] = "rebooted",
    [6] = "reconfigured",
    [7] = "live input",
    [8] = "ring damaged",
    [9] = "session ended",
    [10] = "state gone",
    [11] = "source changed",
}

local MESSAGE_NAMES = {
    "JOIN",
    "WELCOME",
    "REJECTED",
    "NACK",
    "DATAGRAM",
    "REFUSED",
    "PROGRESS",
    "STATUS",
    "LEAVE",
    "GRANT",
    "MIRROR",
    "MIRROR_REFUSED",
    "KEY",
    "LATENCY",
}

local CLASS_NAMES = { "repair", "replay" }

local REFUSAL_REASONS = { "window", "ahead", "budget", "too slow", "epoch", "malformed" }

local MIRROR_REFUSALS = { "not allowed", "epoch", "attempt", "shape", "impossible", "denied" }

-- Returns names by character.
local function by_character(names)
    local by_byte = {}
    for character, name in pairs(names) do
        by_byte[character:byte()] = name
    end
    return by_byte
end

local ACTIONS = by_character {
    A = "ADD",
    C = "CANCEL",
    F = "FILL",
    M = "MODIFY",
    N = "NONE",
    R = "CLEAR",
    T = "TRADE",
}

local SIDES = by_character { A = "ASK", B = "BID", N = "NONE" }

local TRI_STATES = by_character { ["~"] = "NOT_AVAILABLE", N = "NO", Y = "YES" }

local INSTRUMENT_CLASSES = by_character {
    B = "BOND",
    C = "CALL",
    F = "FUTURE",
    I = "INDEX",
    K = "STOCK",
    M = "MIXED_SPREAD",
    P = "PUT",
    S = "FUTURE_SPREAD",
    T = "OPTION_SPREAD",
    X = "FX_SPOT",
    Y = "COMMODITY_SPOT",
}

local MATCH_ALGORITHMS = by_character {
    [" "] = "UNDEFINED",
    A = "ALLOCATION",
    C = "PRO_RATA",
    F = "FIFO",
    K = "CONFIGURABLE",
    O = "THRESHOLD_PRO_RATA",
    P = "TIME_PRO_RATA",
    Q = "THRESHOLD_PRO_RATA_LMM",
    S = "FIFO_TOP_LMM",
    T = "FIFO_LMM",
    V = "INSTITUTIONAL_PRIORITIZATION",
    Y = "EURODOLLAR_FUTURES",
}

local SECURITY_UPDATE_ACTIONS = by_character { A = "ADD", D = "DELETE", M = "MODIFY", ["~"] = "INVALID" }

local USER_DEFINED_INSTRUMENTS = by_character { N = "NO", Y = "YES" }

local STYPES = {
    [0] = "INSTRUMENT_ID",
    "RAW_SYMBOL",
    "SMART",
    "CONTINUOUS",
    "PARENT",
    "NASDAQ_SYMBOL",
    "CMS_SYMBOL",
    "ISIN",
    "US_CODE",
    "BBG_COMP_ID",
    "BBG_COMP_TICKER",
    "FIGI",
    "FIGI_TICKER",
    "LISTING_ID",
    "ISSUER_ID",
    "SECURITY_ID",
}

local STAT_TYPES = {
    "OPENING_PRICE",
    "INDICATIVE_OPENING_PRICE",
    "SETTLEMENT_PRICE",
    "TRADING_SESSION_LOW_PRICE",
    "TRADING_SESSION_HIGH_PRICE",
    "CLEARED_VOLUME",
    "LOWEST_OFFER",
    "HIGHEST_BID",
    "OPEN_INTEREST",
    "FIXING_PRICE",
    "CLOSE_PRICE",
    "NET_CHANGE",
    "VWAP",
    "VOLATILITY",
    "DELTA",
    "UNCROSSING_PRICE",
    "UPPER_PRICE_LIMIT",
    "LOWER_PRICE_LIMIT",
    "BLOCK_VOLUME",
    "INDICATIVE_CLOSE_PRICE",
    "MWCB_LEVEL_1",
    "MWCB_LEVEL_2",
    "MWCB_LEVEL_3",
    "AUCTION_COLLAR_REFERENCE_PRICE",
    "AUCTION_COLLAR_UPPER_PRICE",
    "AUCTION_COLLAR_LOWER_PRICE",
    [10001] = "VENUE_SPECIFIC_VOLUME_1",
    [10002] = "VENUE_SPECIFIC_PRICE_1",
}

local STAT_UPDATE_ACTIONS = { "NEW", "DELETE" }

local STATUS_ACTIONS = {
    [0] = "NONE",
    "PRE_OPEN",
    "PRE_CROSS",
    "QUOTING",
    "CROSS",
    "ROTATION",
    "NEW_PRICE_INDICATION",
    "TRADING",
    "HALT",
    "PAUSE",
    "SUSPEND",
    "PRE_CLOSE",
    "CLOSE",
    "POST_CLOSE",
    "SSR_CHANGE",
    "NOT_AVAILABLE_FOR_TRADING",
}

local STATUS_REASONS = {
    [0] = "NONE",
    [1] = "SCHEDULED",
    [2] = "SURVEILLANCE_INTERVENTION",
    [3] = "MARKET_EVENT",
    [4] = "INSTRUMENT_ACTIVATION",
    [5] = "INSTRUMENT_EXPIRATION",
    [6] = "RECOVERY_IN_PROCESS",
    [10] = "REGULATORY",
    [11] = "ADMINISTRATIVE",
    [12] = "NON_COMPLIANCE",
    [13] = "FILINGS_NOT_CURRENT",
    [14] = "SEC_TRADING_SUSPENSION",
    [15] = "NEW_ISSUE",
    [16] = "ISSUE_AVAILABLE",
    [17] = "ISSUES_REVIEWED",
    [18] = "FILING_REQS_SATISFIED",
    [30] = "NEWS_PENDING",
    [31] = "NEWS_RELEASED",
    [32] = "NEWS_AND_RESUMPTION_TIMES",
    [33] = "NEWS_NOT_FORTHCOMING",
    [40] = "ORDER_IMBALANCE",
    [50] = "LULD_PAUSE",
    [60] = "OPERATIONAL",
    [70] = "ADDITIONAL_INFORMATION_REQUESTED",
    [80] = "MERGER_EFFECTIVE",
    [90] = "ETF",
    [100] = "CORPORATE_ACTION",
    [110] = "NEW_SECURITY_OFFERING",
    [120] = "MARKET_WIDE_HALT_LEVEL1",
    [121] = "MARKET_WIDE_HALT_LEVEL2",
    [122] = "MARKET_WIDE_HALT_LEVEL3",
    [123] = "MARKET_WIDE_HALT_CARRYOVER",
    [124] = "MARKET_WIDE_HALT_RESUMPTION",
    [130] = "QUOTATION_NOT_AVAILABLE",
}

local TRADING_EVENTS = {
    [0] = "NONE",
    "NO_CANCEL",
    "CHANGE_TRADING_SESSION",
    "IMPLIED_MATCHING_ON",
    "IMPLIED_MATCHING_OFF",
}

-- Records (PROTOCOL.md §3.2) -----------------------------------------------------------------------------

local RECORD_FLAGS = {
    { "last", 0x80 },
    { "tob", 0x40 },
    { "snapshot", 0x20 },
    { "mbp", 0x10 },
    { "bad_ts_recv", 0x08 },
    { "maybe_bad_book", 0x04 },
    { "publisher_specific", 0x02 },
}

local RECORD_NAMES = {}
local RECORDS = {}

local function record(rtype, name, entries)
    RECORD_NAMES[rtype] = name
    RECORDS[rtype] = layout(datagram, "tickcast." .. name .. ".", entries)
end

record(0x00, "trade", {
    { "price", "price?" },
    { "size", "u32" },
    { "action", "char", labels = ACTIONS },
    { "side", "char", labels = SIDES },
    { "flags", "x8", bits = RECORD_FLAGS },
    { "depth", "u8" },
    { "ts_recv", "time?" },
    { "ts_in_delta", "i32" },
    { "sequence", "u32" },
})

record(0x01, "mbp1", {
    { "price", "price?" },
    { "size", "u32" },
    { "action", "char", labels = ACTIONS },
    { "side", "char", labels = SIDES },
    { "flags", "x8", bits = RECORD_FLAGS },
    { "depth", "u8" },
    { "ts_recv", "time?" },
    { "ts_in_delta", "i32" },
    { "sequence", "u32" },
    { "bid_px", "price?" },
    { "ask_px", "price?" },
    { "bid_sz", "u32" },
    { "ask_sz", "u32" },
    { "bid_ct", "u32" },
    { "ask_ct", "u32" },
})

record(0x12, "status", {
    { "ts_recv", "time?" },
    { "action", "u16", labels = STATUS_ACTIONS },
    { "reason", "u16", labels = STATUS_REASONS },
    { "trading_event", "u16", labels = TRADING_EVENTS },
    { "is_trading", "char", labels = TRI_STATES },
    { "is_quoting", "char", labels = TRI_STATES },
    { "is_short_sell_restricted", "char", labels = TRI_STATES },
    { "_reserved", "bytes7" },
})

record(0x13, "instrument_def", {
    { "ts_recv", "time?" },
    { "min_price_increment", "price?" },
    { "display_factor", "price?" },
    { "expiration", "time?" },
    { "activation", "time?" },
    { "high_limit_price", "price?" },
    { "low_limit_price", "price?" },
    { "max_price_variation", "price?" },
    { "unit_of_measure_qty", "price?" },
    { "min_price_increment_amount", "price?" },
    { "price_ratio", "price?" },
    { "strike_price", "price?" },
    { "raw_instrument_id", "u64" },
    { "leg_price", "price?" },
    { "leg_delta", "price?" },
    { "inst_attrib_value", "i32?" },
    { "underlying_id", "u32" },
    { "market_depth_implied", "i32?" },
    { "market_depth", "i32?" },
    { "market_segment_id", "u32?" },
    { "max_trade_vol", "u32?" },
    { "min_lot_size", "i32?" },
    { "min_lot_size_block", "i32?" },
    { "min_lot_size_round_lot", "i32?" },
    { "min_trade_vol", "u32?" },
    { "contract_multiplier", "i32?" },
    { "decay_quantity", "i32?" },
    { "original_contract_size", "i32?" },
    { "leg_instrument_id", "u32" },
    { "leg_ratio_price_numerator", "i32" },
    { "leg_ratio_price_denominator", "i32" },
    { "leg_ratio_qty_numerator", "i32" },
    { "leg_ratio_qty_denominator", "i32" },
    { "leg_underlying_id", "u32" },
    { "appl_id", "i16?" },
    { "maturity_year", "u16?" },
    { "decay_start_date", "u16?" },
    { "channel_id", "u16?" },
    { "leg_count", "u16" },
    { "leg_index", "u16" },
    { "currency", "text4" },
    { "settl_currency", "text4" },
    { "secsubtype", "text6" },
    { "raw_symbol", "text71" },
    { "group", "text21" },
    { "exchange", "text5" },
    { "asset", "text11" },
    { "cfi", "text7" },
    { "security_type", "text7" },
    { "unit_of_measure", "text31" },
    { "underlying", "text21" },
    { "strike_price_currency", "text4" },
    { "leg_raw_symbol", "text71" },
    { "instrument_class", "char", labels = INSTRUMENT_CLASSES },
    { "match_algorithm", "char", labels = MATCH_ALGORITHMS },
    { "main_fraction", "u8?" },
    { "price_display_format", "u8?" },
    { "sub_fraction", "u8?" },
    { "underlying_product", "u8?" },
    { "security_update_action", "char", labels = SECURITY_UPDATE_ACTIONS },
    { "maturity_month", "u8?" },
    { "maturity_day", "u8?" },
    { "maturity_week", "u8?" },
    { "user_defined_instrument", "char", labels = USER_DEFINED_INSTRUMENTS },
    { "contract_multiplier_unit", "i8?" },
    { "flow_schedule_type", "i8?" },
    { "tick_rule", "u8?" },
    { "leg_instrument_class", "char", labels = INSTRUMENT_CLASSES },
    { "leg_side", "char", labels = SIDES },
    { "_reserved", "bytes17" },
})

record(0x14, "imbalance", {
    { "ts_recv", "time?" },
    { "ref_price", "price?" },
    { "auction_time", "time?" },
    { "cont_book_clr_price", "price?" },
    { "auct_interest_clr_price", "price?" },
    { "ssr_filling_price", "price?" },
    { "ind_match_price", "price?" },
    { "upper_collar", "price?" },
    { "lower_collar", "price?" },
    { "paired_qty", "u32?" },
    { "total_imbalance_qty", "u32?" },
    { "market_imbalance_qty", "u32?" },
    { "unpaired_qty", "u32?" },
    { "auction_type", "char" },
    { "side", "char", labels = SIDES },
    { "auction_status", "u8" },
    { "freeze_status", "u8" },
    { "num_extensions", "u8" },
    { "unpaired_side", "char", labels = SIDES },
    { "significant_imbalance", "char" },
    { "_reserved", "bytes1" },
})

record(0x16, "symbol_mapping", {
    { "stype_in", "u8", labels = STYPES },
    { "stype_in_symbol", "text71" },
    { "stype_out", "u8", labels = STYPES },
    { "stype_out_symbol", "text71" },
    { "start_ts", "time?" },
    { "end_ts", "time?" },
})

record(0x18, "statistics", {
    { "ts_recv", "time?" },
    { "ts_ref", "time?" },
    { "price", "price?" },
    { "quantity", "i64?" },
    { "sequence", "u32" },
    { "ts_in_delta", "i32" },
    { "stat_type", "u16", labels = STAT_TYPES },
    { "channel_id", "u16?" },
    { "update_action", "u8", labels = STAT_UPDATE_ACTIONS },
    { "stat_flags", "x8" },
    { "_reserved", "bytes18" },
})

record(0xA0, "mbo", {
    { "order_id", "u64" },
    { "price", "price?" },
    { "size", "u32" },
    { "flags", "x8", bits = RECORD_FLAGS },
    { "channel_id", "u8?" },
    { "action", "char", labels = ACTIONS },
    { "side", "char", labels = SIDES },
    { "ts_recv", "time?" },
    { "ts_in_delta", "i32" },
    { "sequence", "u32" },
})

local RECORD_HEAD = layout(datagram, "tickcast.record.", {
    { "length", "u8", note = function(range)
        return string.format("%d bytes", 4 * range:uint())
    end },
    { "rtype", "x8", labels = RECORD_NAMES },
    { "publisher_id", "u16" },
    { "instrument_id", "u32" },
    { "ts_event", "time?" },
})

-- Datagrams (§3, §4) -------------------------------------------------------------------------------------

local MAGIC = 0x4B54
local VERSION = 1
local HEADER_LEN = 64

local function position(range)
    local sequence = UInt64(range(0, 4):le_uint(), range(4, 2):le_uint())
    return string.format("%d:%s", range(6, 2):le_uint(), tostring(sequence))
end

-- Returns a note that says what this value, in decimal, stands for.
local function meaning(value, means)
    return function(range)
        if decimal(range, "u64") == value then
            return means
        end
    end
end

local function since(range)
    local value = decimal(range, "u64")
    return value == "0" and "unknown" or date(value)
end

local HEADER = layout(datagram, "tickcast.", {
    { "magic", "x16" },
    { "version", "u8" },
    { "kind", "u8", labels = KIND_NAMES },
    { "channel", "u16" },
    { "count", "u16" },
    { "epoch", "u64" },
    { "sequence", "u64" },
    { "first_record", "u64" },
    { "source_position", "u64", note = position },
    { "sent_at", "time" },
    { "retained", "u32" },
    { "source", "u16" },
    { "payload_len", "u16" },
    { "flags", "x16", bits = { { "snapshot", 0x0001 }, { "last_of_burst", 0x0002 }, { "tagged", 0x0004 } } },
    { "header_len", "u8", note = function(range)
        return string.format("%d bytes", 8 * range:uint())
    end },
    { "relay", "x8", bits = { { "retransmitted", 0x80 }, { "hops", 0x7f } } },
})
local CRC_FIELD = layout(datagram, "tickcast.", { { "crc", "x32" } }).fields[1]

local HEARTBEAT_BODY = layout(datagram, "tickcast.heartbeat.", {
    { "next_interval_us", "u32" },
    { "hold_off_us", "u32" },
    { "subscribers", "u32" },
    { "state", "u8", labels = STATE_NAMES },
    { "reserved", "bytes3" },
    { "config_hash", "x64" },
})

local EVENT_TYPE = layout(datagram, "tickcast.event.", { { "type", "u16", labels = EVENT_NAMES } })

local SILENCE = {
    { "reason", "u16" },
    { "source", "u16" },
    { "n", "u16" },
    { "since", "u64", note = since },
    { "reserved", "bytes8" },
}

local EVENTS = {
    { name = "source_lost", reasons = SOURCE_LOSS_REASONS, fields = {
        { "reason", "u16", labels = SOURCE_LOSS_REASONS },
        { "source", "u16" },
        { "n", "u16" },
        { "from", "u64", note = position },
        { "messages", "u64", note = meaning("18446744073709551615", "unknown") },
    } },
    { name = "epoch_opened", reasons = EPOCH_REASONS, fields = {
        { "reason", "u16", labels = EPOCH_REASONS },
        { "restart_reason", "u16", labels = RESTART_REASONS },
        { "reserved", "bytes2" },
        { "previous", "u64", note = meaning("0", "none") },
        { "previous_last", "u64", note = meaning("0", "unknown") },
    } },
    { name = "source_silent", fields = SILENCE },
    { name = "source_back", fields = SILENCE },
}
for _, event in ipairs(EVENTS) do
    local prefix = "tickcast." .. event.name .. "."
    event.layout = layout(datagram, prefix, event.fields)
    if event.name ~= "epoch_opened" then
        event.instrument = layout(datagram, prefix, { { "instrument", "u32" } }).fields[1]
    end
end
local EVENT_LEN = 24

local function bytes_of(proto, name)
    return register(proto, name, name:match("[^.]+$"), ftypes.BYTES)
end

local TAG = bytes_of(datagram, "tickcast.tag")
local TAG_LEN, TAGGED = 16, 0x0004
local EXTENSIONS = bytes_of(datagram, "tickcast.extensions")
local PAYLOAD = bytes_of(datagram, "tickcast.payload")
local LATER = bytes_of(datagram, "tickcast.later_fields")
local PADDING = bytes_of(datagram, "tickcast.padding")
local EVENT_PADDING = bytes_of(datagram, "tickcast.event.padding")
local OLDEST = register(datagram, "tickcast.oldest", "oldest", ftypes.UINT64, nil, base.DEC)
local RECORD = register(datagram, "tickcast.record", "record", ftypes.NONE)
local RECORD_NUMBER = register(datagram, "tickcast.record.number", "number", ftypes.UINT64, nil, base.DEC)

local function expert_info(name, title, group, severity)
    return ProtoExpert.new(name, title, expert.group[group], expert.severity[severity])
end

local SHORT = expert_info("tickcast.short", "Shorter than a header", "MALFORMED", "ERROR")
local BAD_MAGIC = expert_info("tickcast.bad_magic", "Not a datagram of tickcast", "MALFORMED", "ERROR")
local BAD_VERSION = expert_info("tickcast.bad_version", "Another wire version", "UNDECODED", "ERROR")
local BAD_KIND = expert_info("tickcast.bad_kind", "Unknown kind", "MALFORMED", "ERROR")
local BAD_LENGTH = expert_info("tickcast.bad_length", "Lengths beyond the end", "MALFORMED", "ERROR")
local ZERO = expert_info("tickcast.zero", "Epoch or sequence 0", "MALFORMED", "ERROR")
local BAD_CRC = expert_info("tickcast.bad_crc", "Wrong CRC", "CHECKSUM", "ERROR")
local UNREADABLE = expert_info("tickcast.unreadable", "Unreadable records", "MALFORMED", "ERROR")
local BAD_BODY = expert_info("tickcast.bad_body", "A body that can't be read", "MALFORMED", "WARN")
local GAP = expert_info("tickcast.gap", "Missing sequences", "SEQUENCE", "WARN")
local CUT = expert_info("tickcast.cut", "Not captured as a whole", "UNDECODED", "NOTE")

datagram.experts = {
    SHORT, BAD_MAGIC, BAD_VERSION, BAD_KIND, BAD_LENGTH, ZERO, BAD_CRC, UNREADABLE, BAD_BODY, GAP, CUT,
}

datagram.prefs.check_crc = Pref.bool("Check the CRC", true, "Computes and compares the CRC of each datagram.")

local CRC_OF_BYTE = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local half = bit.rshift(crc, 1)
        crc = bit.band(crc, 1) == 1 and bit.bxor(half, 0x82F63B78) or half
    end
    CRC_OF_BYTE[byte] = crc
end

local function extended(crc, bytes, first, last)
    for at = first, last do
        local index = bit.band(bit.bxor(crc, bytes:byte(at)), 0xFF)
        crc = bit.bxor(CRC_OF_BYTE[index], bit.rshift(crc, 8))
    end
    return crc
end

-- Returns the CRC32C of a datagram. It excludes the relay byte (59) and itself (60 to 63).
local function crc_of(bytes)
    local crc = extended(-1, bytes, 1, 59)
    return bit.bnot(extended(crc, bytes, HEADER_LEN + 1, #bytes))
end

-- Shows the CRC. Returns false only where it was checked and is wrong.
local function show_crc(root, tvb, len)
    local range = tvb(60, 4)
    local item = show(root, range, CRC_FIELD)
    if not datagram.prefs.check_crc or len > tvb:captured_len() then
        item:append_text(" (not checked)")
        return true
    end
    local right = crc_of(tvb(0, len):raw())
    if right == bit.tobit(range:le_uint()) then
        item:append_text(" (right)")
        return true
    end
    item:append_text(" (wrong)")
    item:add_proto_expert_info(BAD_CRC, "The CRC of these bytes is 0x" .. bit.tohex(right))
    return false
end

-- Shows `count` records between these places, and what makes them unreadable.
local function show_records(root, tvb, at, last, count, number)
    local found = 0
    local function unreadable(reason)
        local item = show_bytes(root, tvb, at, last, PAYLOAD) or root
        item:add_proto_expert_info(UNREADABLE, string.format("Record %d: %s", found, reason))
    end
    while at < last do
        if last - at < RECORD_HEAD.len then
            return unreadable("cut off in its header")
        end
        local len, rtype = 4 * tvb(at, 1):uint(), tvb(at + 1, 1):uint()
        local of = RECORDS[rtype]
        if not of or len ~= RECORD_HEAD.len + of.len then
            local reason = "type 0x%02x with length %d is not in wire version 1"
            return unreadable(string.format(reason, rtype, len))
        end
        if at + len > last then
            return unreadable("cut off")
        end
        local item = root:add(RECORD, tvb(at, len))
        item:set_text(string.format("record %s: %s", tostring(number + found), RECORD_NAMES[rtype]))
        item:add(RECORD_NUMBER, tvb(at, 0), number + found):set_generated()
        show_all(item, tvb, at, last, RECORD_HEAD)
        show_all(item, tvb, at + RECORD_HEAD.len, last, of)
        at, found = at + len, found + 1
    end
    if found ~= count then
        local reason = string.format("%d records, but %d are announced", found, count)
        root:add_proto_expert_info(UNREADABLE, reason)
    end
end

local function show_heartbeat(root, tvb, at, last)
    local behind = show_all(root, tvb, at, last, HEARTBEAT_BODY)
    if last - at < HEARTBEAT_BODY.len then
        root:add_proto_expert_info(BAD_BODY, "The heartbeat is cut off")
    elseif not STATE_NAMES[tvb(at + 12, 1):uint()] then
        root:add_proto_expert_info(BAD_BODY, "The state is unknown")
    end
    show_bytes(root, tvb, behind, last, LATER)
end

local function show_event(root, tvb, at, last)
    local known = show_all(root, tvb, at, last, EVENT_TYPE) > at and EVENTS[tvb(at, 2):le_uint()]
    if last - at < EVENT_LEN or not known then
        root:add_proto_expert_info(BAD_BODY, known and "The event is cut off" or "Its type is unknown")
        show_bytes(root, tvb, math.min(at + EVENT_TYPE.len, last), last, PAYLOAD)
        return
    end
    local behind = show_all(root, tvb, at + EVENT_TYPE.len, last, known.layout)
    if known.reasons and not known.reasons[tvb(at + 2, 2):le_uint()] then
        root:add_proto_expert_info(BAD_BODY, "The reason is unknown")
    end
    if known.instrument then
        local n = tvb(at + 6, 2):le_uint()
        if behind + 4 * n > last then
            root:add_proto_expert_info(BAD_BODY, "The instruments are cut off")
            n = math.floor((last - behind) / 4)
        end
        for _ = 1, n do
            show(root, tvb(behind, 4), known.instrument)
            behind = behind + 4
        end
    end
    show_bytes(root, tvb, behind, last, EVENT_PADDING)
end

-- The next sequence of each line, channel and epoch; and the gaps by number of the frame that reveals them.
local next_sequences, gaps = {}, {}

function datagram.init()
    next_sequences, gaps = {}, {}
end

-- Follows one line, and returns the gap that this datagram reveals.
local function gap_before(pinfo, tvb, kind, epoch, sequence)
    if not pinfo.visited then
        local key = table.concat({
            tostring(pinfo.src), tostring(pinfo.dst), pinfo.dst_port, tvb(4, 2):le_uint(), tostring(epoch),
        }, " ")
        local due = next_sequences[key]
        -- A heartbeat names the last sequence sent.
        local before = kind == HEARTBEAT and sequence + 1 or sequence
        if due and due < before then
            gaps[pinfo.number] = "Missing on this line: " .. run(due, before - 1)
        end
        local behind = sequence + 1
        if not due or due < behind then
            next_sequences[key] = behind
        end
    end
    return gaps[pinfo.number]
end

-- Shows a datagram of a line, or of a control message. Returns its summary.
local function show_datagram(tvb, pinfo, tree, is_on_line)
    local captured, reported = tvb:captured_len(), tvb:reported_len()
    local root = tree:add(datagram, tvb())
    local function wrong(kind, reason)
        root:add_proto_expert_info(kind, reason)
        return reason
    end
    local is_ours = captured >= 2 and tvb(0, 2):le_uint() == MAGIC
    if captured < HEADER_LEN then
        show_all(root, tvb, 0, is_ours and captured or math.min(captured, 2), HEADER)
        if captured < reported then
            return wrong(CUT, "Not captured as a whole")
        end
        return wrong(SHORT, string.format("%d bytes are too short for a datagram", captured))
    end
    if not is_ours then
        show(root, tvb(0, 2), HEADER.fields[1])
        return wrong(BAD_MAGIC, "Not a datagram of tickcast")
    end
    local version = tvb(2, 1):uint()
    if version ~= VERSION then
        show(root, tvb(0, 2), HEADER.fields[1])
        show(root, tvb(2, 1), HEADER.fields[2])
        return wrong(BAD_VERSION, string.format("Wire version %d", version))
    end

    local kind = tvb(3, 1):uint()
    local epoch, sequence = tvb(8, 8):le_uint64(), tvb(16, 8):le_uint64()
    local header_len, len = 8 * tvb(58, 1):uint(), 8 * tvb(58, 1):uint() + tvb(54, 2):le_uint()
    show_all(root, tvb, 0, HEADER_LEN, HEADER)
    if not KIND_NAMES[kind] then
        show(root, tvb(60, 4), CRC_FIELD)
        return wrong(BAD_KIND, string.format("Unknown kind %d", kind))
    end
    if header_len < HEADER_LEN or len > reported then
        show(root, tvb(60, 4), CRC_FIELD)
        local reason = string.format("The header announces %d bytes, %d were received", len, reported)
        return wrong(BAD_LENGTH, reason)
    end
    if epoch == UInt64(0) or sequence == UInt64(0) and kind ~= HEARTBEAT then
        show(root, tvb(60, 4), CRC_FIELD)
        return wrong(ZERO, "Epoch or sequence 0, which nobody sends")
    end
    local is_whole = show_crc(root, tvb, len)
    local retained = tvb(48, 4):le_uint()
    if retained > 0 then
        local oldest = sequence < UInt64(retained) and UInt64(1) or sequence - retained + 1
        root:add(OLDEST, tvb(48, 4), oldest):set_generated()
    end

    if len > captured then
        wrong(CUT, "Not captured as a whole")
    else
        local extensions = HEADER_LEN
        local is_tagged = bit.band(tvb(56, 2):le_uint(), TAGGED) ~= 0
        if is_tagged and header_len >= HEADER_LEN + TAG_LEN then
            extensions = HEADER_LEN + TAG_LEN
            show_bytes(root, tvb, HEADER_LEN, extensions, TAG)
        end
        show_bytes(root, tvb, extensions, header_len, EXTENSIONS)
        local count = tvb(6, 2):le_uint()
        if kind == DATA then
            show_records(root, tvb, header_len, len, count, tvb(24, 8):le_uint64())
        elseif kind == EVENT then
            show_event(root, tvb, header_len, len)
        elseif kind == HEARTBEAT then
            show_heartbeat(root, tvb, header_len, len)
        else
            show_bytes(root, tvb, header_len, len, LATER)
        end
        show_bytes(root, tvb, len, captured, PADDING)
    end

    local is_again = bit.band(tvb(59, 1):uint(), 0x80) ~= 0
    local summary = string.format(
        "%s channel %d epoch %s sequence %s%s%s%s",
        KIND_NAMES[kind],
        tvb(4, 2):le_uint(),
        tostring(epoch),
        tostring(sequence),
        kind == DATA and string.format(" count %d", tvb(6, 2):le_uint()) or "",
        is_again and " retransmitted" or "",
        is_whole and "" or " CRC wrong"
    )
    root:append_text(": " .. summary)
    -- Repairs fill gaps, and a datagram with a wrong CRC is dropped.
    if is_on_line and is_whole and not is_again then
        local gap = gap_before(pinfo, tvb, kind, epoch, sequence)
        if gap then
            wrong(GAP, gap)
        end
    end
    return summary
end

function datagram.dissector(tvb, pinfo, tree)
    if tvb:captured_len() == 0 then
        return 0
    end
    local summary = show_datagram(tvb, pinfo, tree, true)
    pinfo.cols.protocol = "tickcast"
    pinfo.cols.info = summary
    return tvb:captured_len()
end

-- Control messages (§6) ----------------------------------------------------------------------------------

local FRAME_HEAD = layout(control, "tickcast_control.", {
    { "length", "u32" },
    { "type", "u8", labels = MESSAGE_NAMES },
    { "reserved", "bytes1" },
    { "channel", "u16" },
})
local NACK_RANGES_MAX = 256
local TO_PUBLISHER_MAX, TO_SUBSCRIBER_MAX = 64 * 1024, 16 * 1024 * 1024

local function body(entries)
    for _, entry in ipairs(entries) do
        local reserved = entry[1]:match("^reserved(%d+)$")
        if reserved then
            entry[1], entry[2] = "reserved", "bytes" .. reserved
        end
    end
    return layout(control, "tickcast_control.", entries)
end

-- Returns the fields of a LATENCY: the same five for each stage, in nanoseconds.
local function latency_fields()
    local fields = { { "interval", "u64" }, { "clock_limit", "u64", note = meaning("18446744073709551615", "unknown") } }
    for _, stage in ipairs({ "event_to_received", "received_to_sealed", "sealed_to_delivered", "repair", "replayed" }) do
        for _, number in ipairs({ "samples", "p50", "p99", "p999", "max" }) do
            fields[#fields + 1] = { stage .. "_" .. number, "u64" }
        end
    end
    return fields
end

-- The messages by type: the longest body, the bytes without which a body is cut off, and its fields.
local MESSAGES = {
    { max = TO_PUBLISHER_MAX, json = true },
    { max = TO_SUBSCRIBER_MAX, json = true },
    { max = TO_SUBSCRIBER_MAX, json = true },
    { max = TO_PUBLISHER_MAX, min = 16, fields = body {
        { "epoch", "u64" },
        { "class", "u8", labels = CLASS_NAMES },
        { "reserved1" },
        { "n", "u16" },
        { "reserved4" },
    } },
    { max = TO_SUBSCRIBER_MAX, is_datagram = true },
    { max = TO_SUBSCRIBER_MAX, min = 48, fields = body {
        { "epoch", "u64" },
        { "first", "u64" },
        { "last", "u64" },
        { "oldest", "u64" },
        { "oldest_record", "u64", note = meaning("0", "unknown") },
        { "retry_after_us", "u32" },
        { "reason", "u8", labels = REFUSAL_REASONS },
        { "reserved3" },
    } },
    { max = TO_PUBLISHER_MAX, min = 40, fields = body {
        { "epoch", "u64" },
        { "sequence", "u64" },
        { "lost_records", "u64" },
        { "heard", "u64" },
        { "sent_at", "u64" },
        { "read_bytes", "u64" },
    } },
    { max = TO_SUBSCRIBER_MAX, min = 56, fields = body {
        { "epoch", "u64" },
        { "newest", "u64" },
        { "oldest", "u64" },
        { "next_record", "u64" },
        { "echo", "u64" },
        { "answered_at", "time" },
        { "status_flags", "x8", bits = { { "ended", 0x01 } } },
        { "reserved7" },
    } },
    { max = TO_PUBLISHER_MAX, min = 0, fields = body {} },
    { max = TO_SUBSCRIBER_MAX, min = 48, fields = body {
        { "epoch", "u64" },
        { "attempt", "u64" },
        { "ring_address", "x64" },
        { "ring_len", "u64" },
        { "tokens", "u64" },
        { "ring_key", "x32" },
        { "reserved4" },
        { "cursor_address", "x64" },
        { "cursor_len", "u64" },
        { "cursor_key", "x32" },
        { "reserved4" },
    } },
    { max = TO_PUBLISHER_MAX, min = 40, fields = body {
        { "epoch", "u64" },
        { "attempt", "u64" },
        { "inbox_address", "x64" },
        { "inbox_len", "u64" },
        { "inbox_key", "x32" },
        { "reserved4" },
    } },
    { max = TO_SUBSCRIBER_MAX, min = 24, fields = body {
        { "epoch", "u64" },
        { "attempt", "u64" },
        { "mirror_refusal", "u8", labels = MIRROR_REFUSALS },
        { "reserved7" },
    } },
    { max = TO_SUBSCRIBER_MAX, min = 48, fields = body {
        { "epoch", "u64" },
        { "number", "u64" },
        { "key", "bytes32" },
    } },
    { max = TO_PUBLISHER_MAX, min = 216, fields = body(latency_fields()) },
}
local JOIN, REJECTED, NACK, DATAGRAM, REFUSED, MIRROR_REFUSED = 1, 3, 4, 5, 6, 12

local RANGE = register(control, "tickcast_control.range", "range", ftypes.NONE)
local RANGE_ENDS = layout(control, "tickcast_control.", { { "first", "u64" }, { "last", "u64" } })
local LATER_FIELDS = bytes_of(control, "tickcast_control.later_fields")
local UNREADABLE_FRAMES = bytes_of(control, "tickcast_control.unreadable")

local BAD_FRAME = expert_info("tickcast_control.bad_frame", "Not a control message", "MALFORMED", "ERROR")
local BAD_MESSAGE = expert_info("tickcast_control.bad_message", "An unreadable body", "MALFORMED", "ERROR")
local CUT_FRAME = expert_info("tickcast_control.cut", "Not captured as a whole", "UNDECODED", "NOTE")

control.experts = { BAD_FRAME, BAD_MESSAGE, CUT_FRAME }

control.prefs.ports = Pref.range("TCP ports", "7400", "The ports of publishers' control connections.", 65535)

-- Shows the ranges of a NACK. Returns the first byte behind them, and the reason why they can't be read.
local function show_ranges(root, tvb, at, last, n)
    local reason
    if n > NACK_RANGES_MAX then
        reason = string.format("%d ranges, at most %d are allowed", n, NACK_RANGES_MAX)
    end
    for _ = 1, n do
        if at + RANGE_ENDS.len > last then
            return at, "The ranges are cut off"
        end
        local item = root:add(RANGE, tvb(at, RANGE_ENDS.len))
        local first, up_to = tvb(at, 8):le_uint64(), tvb(at + 8, 8):le_uint64()
        item:set_text("range: " .. run(first, up_to))
        show_all(item, tvb, at, last, RANGE_ENDS)
        if first == UInt64(0) or up_to < first then
            reason = reason or "A range is empty or begins at 0"
        end
        at = at + RANGE_ENDS.len
    end
    return at, reason
end

-- Shows the binary body of a message. Returns the reason why it can't be read, or nil.
local function show_body(root, tvb, at, last, type)
    local message = MESSAGES[type]
    local behind = show_all(root, tvb, at, last, message.fields)
    local reason
    if last - at < message.min then
        reason = string.format("The body has %d bytes, %d are needed", last - at, message.min)
    elseif type == NACK then
        behind, reason = show_ranges(root, tvb, behind, last, tvb(at + 10, 2):le_uint())
        if not CLASS_NAMES[tvb(at + 8, 1):uint()] then
            reason = "The class is unknown"
        end
    elseif type == REFUSED then
        if not REFUSAL_REASONS[tvb(at + 44, 1):uint()] then
            reason = "The reason is unknown"
        elseif tvb(at + 16, 8):le_uint64() < tvb(at + 8, 8):le_uint64() then
            reason = "The range is empty"
        end
    elseif type == MIRROR_REFUSED and not MIRROR_REFUSALS[tvb(at + 16, 1):uint()] then
        reason = "The reason is unknown"
    end
    show_bytes(root, tvb, behind, last, LATER_FIELDS)
    return reason
end

-- Shows a whole frame. Returns its summary.
local function show_frame(tvb, at, len, pinfo, tree)
    local type, last = tvb(at + 4, 1):uint(), at + len
    local root = tree:add(control, tvb(at, len))
    local summary = MESSAGE_NAMES[type]
    root:append_text(": " .. summary)
    show_all(root, tvb, at, last, FRAME_HEAD)
    at = at + FRAME_HEAD.len
    local message, reason = MESSAGES[type], nil
    if message.json then
        if len > FRAME_HEAD.len and tvb(at, 1):uint() == 0x7B then
            Dissector.get("json"):call(tvb(at, last - at):tvb(), pinfo, root)
        else
            reason = "The body is not a JSON object"
            show_bytes(root, tvb, at, last, UNREADABLE_FRAMES)
        end
    elseif message.is_datagram then
        if last > at then
            summary = summary .. " " .. show_datagram(tvb(at, last - at):tvb(), pinfo, root, false)
        else
            reason = "The body is empty"
        end
    else
        reason = show_body(root, tvb, at, last, type)
    end
    if reason then
        root:add_proto_expert_info(BAD_MESSAGE, reason)
    end
    return summary
end

-- Shows all frames of these bytes, and asks for more where the last one continues and that is possible.
local function show_frames(tvb, pinfo, tree, may_ask)
    local at, last, summaries = 0, tvb:captured_len(), {}
    local function stop(kind, reason)
        local root = tree:add(control, tvb(at))
        show_bytes(root, tvb, at, last, UNREADABLE_FRAMES)
        root:add_proto_expert_info(kind, reason)
        table.insert(summaries, reason)
        at = last
    end
    while at < last do
        local left, len = last - at, FRAME_HEAD.len
        if left >= FRAME_HEAD.len then
            local body_len, message = tvb(at, 4):le_uint(), MESSAGES[tvb(at + 4, 1):uint()]
            if not message or body_len > message.max then
                stop(BAD_FRAME, message and "The body is too long" or "The type is unknown")
                break
            end
            len = len + body_len
        end
        if left >= len and left >= FRAME_HEAD.len then
            table.insert(summaries, show_frame(tvb, at, len, pinfo, tree))
            at = at + len
        elseif may_ask and last == tvb:reported_len() then
            pinfo.desegment_offset = at
            pinfo.desegment_len = len - left
            break
        else
            stop(CUT_FRAME, "Not captured or reassembled as a whole")
        end
    end
    if #summaries > 0 then
        pinfo.cols.protocol = "tickcast_control"
        -- TCP keeps the summary of a reassembled frame, and calls again for those behind it.
        local before = pinfo.private.tickcast_control and "; " or ""
        pinfo.cols.info = before .. table.concat(summaries, "; ")
        pinfo.private.tickcast_control = "shown"
    end
    return last
end

function control.dissector(tvb, pinfo, tree)
    return show_frames(tvb, pinfo, tree, pinfo.can_desegment > 0)
end

-- Recognition --------------------------------------------------------------------------------------------

-- Returns whether a UDP payload is a datagram: magic, version, and lengths that one packet may have.
local function is_datagram(tvb)
    return tvb:captured_len() >= HEADER_LEN
        and tvb(0, 2):le_uint() == MAGIC
        and tvb(2, 1):uint() == VERSION
        and 8 * tvb(58, 1):uint() >= HEADER_LEN
end

-- Returns whether a TCP segment begins with a frame that nothing else resembles: JSON or a datagram.
local function is_control(tvb)
    if tvb:captured_len() < FRAME_HEAD.len + 4 then
        return false
    end
    local len, type = tvb(0, 4):le_uint(), tvb(4, 1):uint()
    local message = MESSAGES[type]
    if not message or len > message.max or tvb(5, 1):uint() ~= 0 then
        return false
    end
    if type <= REJECTED and type >= JOIN then
        return tvb(6, 2):le_uint() == 0 and tvb(8, 2):string() == '{"'
    end
    return type == DATAGRAM
        and len >= HEADER_LEN
        and tvb(8, 2):le_uint() == MAGIC
        and tvb(10, 1):uint() == VERSION
end

for proto, fields in pairs(registered) do
    local all = {}
    for _, field in pairs(fields) do
        table.insert(all, field)
    end
    proto.fields = all
end

-- Packets behind a recognised one belong to the same protocol, even where they are damaged.
datagram:register_heuristic("udp", function(tvb, pinfo, tree)
    if not is_datagram(tvb) then
        return false
    end
    pinfo.conversation = datagram
    datagram.dissector(tvb, pinfo, tree)
    return true
end)

control:register_heuristic("tcp", function(tvb, pinfo, tree)
    if not is_control(tvb) then
        return false
    end
    pinfo.conversation = control
    -- The search for a dissector seems to forbid requests for more bytes, but TCP honours them.
    show_frames(tvb, pinfo, tree, true)
    return true
end)

local tcp_ports = DissectorTable.get("tcp.port")
local ports = control.prefs.ports
tcp_ports:add(ports, control)
tcp_ports:add_for_decode_as(control)
DissectorTable.get("udp.port"):add_for_decode_as(datagram)

function control.prefs_changed()
    if ports ~= control.prefs.ports then
        if ports ~= "" then
            tcp_ports:remove(ports, control)
        end
        ports = control.prefs.ports
        if ports ~= "" then
            tcp_ports:add(ports, control)
        end
    end
end
