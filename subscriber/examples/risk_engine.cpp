// The risk engine of examples/risk_engine, in C++17 over tickcast.hpp. Definitions, files, alerts and
// summary are identical, and the results are identical to the last tick. engine.rs, market.rs,
// position.rs and input.rs of that folder document them.
//
//     risk_engine --publisher 127.0.0.1:7400 --channel all --fills fills.csv --limits limits.csv
//                 [--summary out.json] [--split] [--drop 0.05 --seed 1] [--sleep-us 5000 --sleep-every 1000]
#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <thread>
#include <unordered_map>

#include "tickcast.hpp"

namespace {

__extension__ typedef __int128 i128;
__extension__ typedef unsigned __int128 u128;
using tickcast::Event, tickcast::Item, tickcast::MboMsg, tickcast::Mbp1Msg, tickcast::TradeMsg;
using Price = std::optional<std::int64_t>;

constexpr i128 UNIT = 1'000'000'000;
constexpr std::int64_t UNDEF_PRICE = INT64_MAX, PRICE_MAX = 10'000'000'000'000'000;
constexpr std::uint64_t QUANTITY_MAX = std::uint64_t{1} << 36;
constexpr std::uint8_t LAST = 1 << 7, MBP = 1 << 4, MAYBE_BAD_BOOK = 1 << 2;

i128 size_of(i128 amount) { return amount < 0 ? -amount : amount; }

// Returns an amount in 1e-9 as a decimal with all nine places.
std::string decimal(i128 amount) {
    u128 rest = static_cast<u128>(size_of(amount));
    std::string digits;
    for (int place = 0; place < 10 || rest; ++place, rest /= 10) {
        if (place == 9) digits += '.';
        digits += static_cast<char>('0' + static_cast<int>(rest % 10));
    }
    if (amount < 0) digits += '-';
    std::reverse(digits.begin(), digits.end());
    return digits;
}

// ---- A position at average cost -------------------------------------------------------------------------

struct Value {
    i128 exposure = 0, unrealised = 0;
};

struct Position {
    std::int64_t quantity = 0;
    i128 cost = 0, realised = 0;

    void fill(std::int64_t bought, std::int64_t price) {
        std::int64_t sign = (bought > 0) - (bought < 0), closed = 0;
        if ((quantity > 0) - (quantity < 0) == -sign) closed = std::min(std::abs(bought), std::abs(quantity));
        if (closed > 0) {
            i128 share = cost * closed / std::abs(quantity);
            realised += -static_cast<i128>(sign * closed) * price - share;
            quantity += sign * closed;
            cost -= share;
        }
        std::int64_t opened = bought - sign * closed;
        quantity += opened;
        cost += static_cast<i128>(opened) * price;
    }

    Value value(Price mark) const {
        i128 exposure = mark ? static_cast<i128>(quantity) * *mark : cost;
        return {exposure, exposure - cost};
    }
};

// ---- A market and its mark ------------------------------------------------------------------------------

class Book {
public:
    Price bid() const { return bids.empty() ? Price() : bids.rbegin()->first; }
    Price ask() const { return asks.empty() ? Price() : asks.begin()->first; }

    void clear() {
        orders.clear();
        bids.clear();
        asks.clear();
    }

    void apply(const MboMsg &m) {
        bool is_order = (m.side == 'B' || m.side == 'A') && m.price != UNDEF_PRICE, buys = m.side == 'B';
        if (m.action == 'R') return clear();
        if (!std::strchr("ACM", m.action) || !m.action) return;
        if (m.flags & MBP) {
            if (is_order) set_level(buys, m.price, m.action == 'C' ? 0 : m.size);
        } else if (m.action == 'C') {
            take_off(m.order_id, m.size);
        } else {
            take_off(m.order_id, UINT32_MAX);
            if (!is_order) return;
            orders[m.order_id] = {buys, m.price, m.size};
            set_level(buys, m.price, level(buys, m.price) + m.size);
        }
    }

private:
    struct Order {
        bool buys;
        std::int64_t price;
        std::uint32_t size;
    };
    using Levels = std::map<std::int64_t, std::uint64_t>;

    void take_off(std::uint64_t id, std::uint32_t size) {
        auto found = orders.find(id);
        if (found == orders.end()) return;
        auto [buys, price, held] = found->second;
        auto taken = std::min(size, held);
        found->second.size -= taken;
        if (found->second.size == 0) orders.erase(found);
        auto total = level(buys, price);
        set_level(buys, price, total > taken ? total - taken : 0);
    }

    std::uint64_t level(bool buys, std::int64_t price) const {
        const Levels &levels = buys ? bids : asks;
        auto found = levels.find(price);
        return found == levels.end() ? 0 : found->second;
    }

    void set_level(bool buys, std::int64_t price, std::uint64_t total) {
        Levels &levels = buys ? bids : asks;
        if (total == 0) levels.erase(price);
        else levels[price] = total;
    }

    std::unordered_map<std::uint64_t, Order> orders;
    Levels bids, asks;
};

struct Market {
    Price mark;
    bool is_suspect = false;
    std::uint16_t source = 0;

    // Applies an item. Returns whether the mark changed.
    bool apply(const Item &item) {
        if (auto *m = item.as<MboMsg>()) {
            if (m->action == 'T') trade(m->price, m->size);
            book.apply(*m);
            if (m->flags & MAYBE_BAD_BOOK) is_suspect = true;
            else if (m->action == 'R') is_suspect = false;
            if (!(m->flags & LAST)) return false;
            bid = book.bid();
            ask = book.ask();
        } else if (auto *m = item.as<Mbp1Msg>()) {
            const auto &level = m->levels[0];
            auto side = [](std::int64_t price, std::uint32_t size) {
                return price != UNDEF_PRICE && size > 0 ? Price(price) : Price();
            };
            bid = side(level.bid_px, level.bid_sz);
            ask = side(level.ask_px, level.ask_sz);
            is_suspect = m->flags & MAYBE_BAD_BOOK;
        } else if (auto *m = item.as<TradeMsg>()) {
            if (m->action == 'T') trade(m->price, m->size);
        } else {
            return false;
        }
        return reprice();
    }

    void forget() {
        book.clear();
        bid = ask = Price();
        is_suspect = true;
    }

private:
    void trade(std::int64_t price, std::uint32_t size) {
        if (price != UNDEF_PRICE && size > 0) last = price;
    }

    bool reprice() {
        if (is_suspect) return false;
        auto before = mark;
        mark = bid && ask ? Price(static_cast<std::int64_t>((static_cast<i128>(*bid) + *ask) / 2)) : last;
        return mark != before;
    }

    Book book;
    Price bid, ask, last;
};

// ---- The files ------------------------------------------------------------------------------------------

struct Fill {
    std::uint64_t after;
    std::string portfolio, symbol;
    std::int64_t quantity, price;
};

struct Refused : std::runtime_error {
    using runtime_error::runtime_error;
};

template <class Number> Number number(const std::string &text, Number min, Number max) {
    Number value{};
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < min || value > max)
        throw Refused(text + " must be from " + std::to_string(min) + " to " + std::to_string(max));
    return value;
}

// Calls `on` with the fields of every line after the header.
template <class On> void rows(const std::string &path, const std::string &header, On on) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line) || line != header) throw Refused(path + ": the first line must be " + header);
    auto fields_expected = std::count(header.begin(), header.end(), ',') + 1;
    for (int n = 2; std::getline(file, line); ++n) {
        std::vector<std::string> fields(1);
        for (char c : line) {
            if (c == ',') fields.emplace_back();
            else fields.back() += c;
        }
        try {
            if (static_cast<std::ptrdiff_t>(fields.size()) != fields_expected) throw Refused("not " + header);
            on(fields);
        } catch (const Refused &error) {
            throw Refused(path + ": line " + std::to_string(n) + ": " + error.what());
        }
    }
}

std::vector<Fill> read_fills(const std::string &path) {
    std::map<std::pair<std::string, std::string>, std::uint64_t> held;
    std::vector<Fill> fills;
    rows(path, "after,portfolio,symbol,side,quantity,price_e9", [&](const std::vector<std::string> &f) {
        auto size = number<std::int64_t>(f[4], 1, QUANTITY_MAX);
        if ((held[{f[1], f[2]}] += size) > QUANTITY_MAX) throw Refused("more is traded than can be held");
        if (f[3] != "buy" && f[3] != "sell") throw Refused("side is " + f[3] + ", must be buy or sell");
        fills.push_back({number<std::uint64_t>(f[0], 0, UINT64_MAX), f[1], f[2], f[3] == "buy" ? size : -size,
                         number<std::int64_t>(f[5], -PRICE_MAX, PRICE_MAX)});
    });
    std::stable_sort(fills.begin(), fills.end(), [](auto &a, auto &b) { return a.after < b.after; });
    return fills;
}

// The limits by kind and name.
using Limits = std::map<std::pair<std::string, std::string>, i128>;

Limits read_limits(const std::string &path) {
    Limits limits;
    rows(path, "subject,name,limit,value", [&](const std::vector<std::string> &f) {
        bool is_portfolio = f[0] == "portfolio" && (f[2] == "gross" || f[2] == "net" || f[2] == "loss");
        if (!is_portfolio && !(f[0] == "instrument" && f[2] == "exposure"))
            throw Refused("there is no limit " + f[2] + " on " + f[0]);
        limits[{f[2], f[1]}] = static_cast<i128>(number<std::uint64_t>(f[3], 0, UINT64_MAX)) * UNIT;
    });
    return limits;
}

// ---- The engine -----------------------------------------------------------------------------------------

struct Watch {
    const char *kind;
    std::optional<i128> limit;
    bool is_breached = false;

    Watch(const Limits &limits, const char *kind, const std::string &name) : kind(kind) {
        auto found = limits.find({kind, name});
        if (found == limits.end()) found = limits.find({kind, "*"});
        if (found != limits.end()) limit = found->second;
    }
};

struct Holding {
    std::size_t portfolio;
    Position position;
    Value value;
};

struct Instrument {
    std::string symbol;
    Watch watch;
    Market market{};
    std::vector<Holding> holdings{};
    i128 exposure = 0;
};

struct Portfolio {
    std::string name;
    std::vector<Watch> watches;
    std::vector<std::size_t> instruments{};
    i128 realised = 0, unrealised = 0, gross = 0, net = 0;
};

struct Counts {
    std::uint64_t records, unnamed, fills, breaches, clears, freezes, silences, losses, lost_records, repaired;
};

class Engine {
public:
    std::vector<Instrument> instruments;
    std::vector<Portfolio> portfolios;
    Counts counts{};
    std::uint64_t trail = 0xcbf29ce484222325;

    Engine(std::vector<Fill> all, Limits given) : limits(std::move(given)), fills(std::move(all)) {
        std::map<std::string, std::size_t> names;
        for (auto &fill : fills) names[fill.portfolio];
        for (auto &[name, index] : names) {
            index = portfolios.size();
            std::vector<Watch> watches;
            for (auto *kind : {"gross", "net", "loss"}) watches.emplace_back(limits, kind, name);
            portfolios.push_back({name, std::move(watches)});
        }
        for (auto &fill : fills) {
            auto index = instrument(fill.symbol), portfolio = names[fill.portfolio];
            auto &holdings = instruments[index].holdings;
            auto at = std::lower_bound(holdings.begin(), holdings.end(), portfolio,
                                       [](auto &holding, auto portfolio) { return holding.portfolio < portfolio; });
            if (at != holdings.end() && at->portfolio == portfolio) continue;
            holdings.insert(at, Holding{portfolio, {}, {}});
            portfolios[portfolio].instruments.push_back(index);
        }
    }

    void take(const Item &item) {
        const auto &position = item.position();
        if (!item.record()) return event(position.record, *item.event());
        fill_before(position.record);
        ++counts.records;
        auto id = item.record()->instrument_id;
        if (auto *m = item.as<tickcast::SymbolMappingMsg>()) name(id, m->stype_in_symbol);
        else if (auto *d = item.as<tickcast::InstrumentDefMsg>()) name(id, d->raw_symbol);
        auto found = by_id.find(id);
        if (found == by_id.end()) {
            counts.unnamed += id != 0;
            return;
        }
        auto index = found->second;
        auto &market = instruments[index].market;
        bool was_suspect = market.is_suspect;
        market.source = position.source;
        bool is_repriced = market.apply(item);
        suspects += market.is_suspect - was_suspect;
        counts.freezes += market.is_suspect && !was_suspect;
        if (is_repriced) revalue(index, position.record);
        if (is_repriced || (was_suspect && !market.is_suspect)) judge(index, position.record);
    }

    void name(std::uint32_t id, const std::string &symbol) {
        if (!symbol.empty()) by_id[id] = instrument(symbol);
    }

    // Adds a directory's name of an id of `epoch`. It is used only if the directory's epoch `known` is
    // equal, because another epoch may give the id to another instrument.
    void learn(std::uint64_t epoch, std::uint32_t id, const char *symbol, std::uint64_t known) {
        if (symbol && known == epoch) name(id, symbol);
    }

    std::size_t fills_left() const { return fills.size() - next_fill + unplaced; }

    bool is_frozen(std::size_t portfolio) const { return is_silent || holds_suspect(portfolio); }

private:
    std::size_t instrument(const std::string &symbol) {
        auto [found, is_new] = by_symbol.try_emplace(symbol, instruments.size());
        if (is_new) {
            instruments.push_back({symbol, Watch(limits, "exposure", symbol)});
            if (is_partial) freeze(instruments.back());
        }
        return found->second;
    }

    void fill_before(std::uint64_t number) {
        for (; next_fill < fills.size() && fills[next_fill].after < number; ++next_fill) {
            const auto &fill = fills[next_fill];
            auto index = by_symbol[fill.symbol];
            for (auto &holding : instruments[index].holdings) {
                auto &portfolio = portfolios[holding.portfolio];
                if (portfolio.name != fill.portfolio) continue;
                i128 before = holding.position.realised;
                holding.position.fill(fill.quantity, fill.price);
                portfolio.realised += holding.position.realised - before;
                result += holding.position.realised - before;
            }
            ++counts.fills;
            revalue(index, fill.after);
            judge(index, fill.after);
        }
    }

    void revalue(std::size_t index, std::uint64_t record) {
        auto &instrument = instruments[index];
        if (instrument.holdings.empty()) return;
        for (auto &holding : instrument.holdings) {
            auto before = holding.value, after = holding.position.value(instrument.market.mark);
            holding.value = after;
            auto &portfolio = portfolios[holding.portfolio];
            portfolio.unrealised += after.unrealised - before.unrealised;
            portfolio.gross += size_of(after.exposure) - size_of(before.exposure);
            portfolio.net += after.exposure - before.exposure;
            instrument.exposure += after.exposure - before.exposure;
            result += after.unrealised - before.unrealised;
        }
        for (std::uint64_t word : {record, static_cast<std::uint64_t>(result), static_cast<std::uint64_t>(result >> 64)})
            trail = (trail ^ word) * 0x100000001b3;
    }

    void judge(std::size_t index, std::uint64_t record) {
        if (is_silent) return;
        auto &instrument = instruments[index];
        if (!instrument.market.is_suspect)
            judge(instrument.watch, record, "instrument", instrument.symbol, size_of(instrument.exposure));
        for (auto &holding : instrument.holdings) {
            auto &portfolio = portfolios[holding.portfolio];
            if (suspects > 0 && holds_suspect(holding.portfolio)) continue;
            i128 values[] = {portfolio.gross, size_of(portfolio.net), -(portfolio.realised + portfolio.unrealised)};
            for (std::size_t i = 0; i < 3; ++i)
                judge(portfolio.watches[i], record, "portfolio", portfolio.name, values[i]);
        }
    }

    void judge(Watch &watch, std::uint64_t record, const char *subject, const std::string &name, i128 value) {
        if (!watch.limit || (value > *watch.limit) == watch.is_breached) return;
        watch.is_breached = !watch.is_breached;
        ++(watch.is_breached ? counts.breaches : counts.clears);
        std::cout << record << (watch.is_breached ? " breach " : " clear ") << subject << ' ' << name << ' ' << watch.kind
                  << ' ' << decimal(value) << " limit " << decimal(*watch.limit) << '\n';
    }

    void event(std::uint64_t next, const Event &event) {
        auto all = [](const Instrument &) { return true; };
        switch (event.kind) {
        case TICKCAST_EVENT_KIND_JOINED:
            if (event.last > 0) lose(all);
            break;
        case TICKCAST_EVENT_KIND_LOST:
            ++counts.losses;
            if (event.records != TICKCAST_UNKNOWN) counts.lost_records += event.records;
            lose(all);
            break;
        case TICKCAST_EVENT_KIND_FENCING_VIOLATION:
        case TICKCAST_EVENT_KIND_ROLLED_BACK:
            // Two publishers send, so the origin of the delivered records is unknown.
            ++counts.losses;
            lose(all);
            break;
        case TICKCAST_EVENT_KIND_OVERRUN:
            ++counts.losses;
            counts.lost_records += event.records + event.lost_records;
            lose(all);
            if (event.epoch_changes > 0) begin_epoch();
            hear(!(event.state & TICKCAST_STATE_STALE), next);
            if (event.state & TICKCAST_STATE_ENDED) fill_before(next);
            break;
        case TICKCAST_EVENT_KIND_SOURCE_LOST: {
            ++counts.losses;
            std::vector<std::size_t> named;
            for (std::uint32_t i = 0; event.instruments && i < event.instrument_count; ++i)
                if (auto found = by_id.find(event.instruments[i]); found != by_id.end()) named.push_back(found->second);
            if (event.instrument_count == 0 || named.size() < event.instrument_count)
                lose([&](const Instrument &instrument) { return instrument.market.source == event.source; });
            else
                for (auto index : named) freeze(instruments[index]);
            break;
        }
        // The prices of a silent source are old, and each is current again with its next record.
        case TICKCAST_EVENT_KIND_SOURCE_SILENT:
            for (auto &instrument : instruments)
                if (instrument.market.source == event.source) freeze(instrument);
            break;
        case TICKCAST_EVENT_KIND_EPOCH_CHANGED:
            lose(all);
            begin_epoch();
            break;
        case TICKCAST_EVENT_KIND_GAP_RECOVERED:
            counts.repaired += event.sequences;
            break;
        case TICKCAST_EVENT_KIND_STALE:
        case TICKCAST_EVENT_KIND_PUBLISHER_DEAD:
            hear(false, next);
            break;
        case TICKCAST_EVENT_KIND_RECOVERED:
            hear(true, next);
            break;
        case TICKCAST_EVENT_KIND_END_OF_SESSION:
            fill_before(next);
            break;
        default:
            break;
        }
    }

    // Starts an epoch. Record numbers and ids begin again, so the remaining fills have no place.
    void begin_epoch() {
        unplaced += fills.size() - next_fill;
        fills.resize(next_fill);
        by_id.clear();
        for (auto &instrument : instruments) instrument.market.forget();
    }

    // Sets whether the publisher is heard. The end of a silence checks all limits again.
    void hear(bool is_heard, std::uint64_t next) {
        bool was_silent = std::exchange(is_silent, !is_heard);
        counts.silences += !was_silent && !is_heard;
        for (std::size_t index = 0; was_silent && is_heard && index < instruments.size(); ++index)
            judge(index, next ? next - 1 : 0);
    }

    template <class Concerned> void lose(Concerned concerned) {
        is_partial = true;
        for (auto &instrument : instruments)
            if (concerned(instrument)) freeze(instrument);
    }

    void freeze(Instrument &instrument) {
        if (instrument.market.is_suspect) return;
        instrument.market.is_suspect = true;
        ++suspects;
        ++counts.freezes;
    }

    bool holds_suspect(std::size_t portfolio) const {
        const auto &traded = portfolios[portfolio].instruments;
        return std::any_of(traded.begin(), traded.end(), [&](std::size_t index) {
            const auto &held = instruments[index].holdings;
            return instruments[index].market.is_suspect && std::any_of(held.begin(), held.end(), [&](const Holding &h) {
                return h.portfolio == portfolio && h.position.quantity != 0;
            });
        });
    }

    Limits limits;
    std::vector<Fill> fills;
    std::unordered_map<std::string, std::size_t> by_symbol;
    std::unordered_map<std::uint32_t, std::size_t> by_id;
    std::size_t next_fill = 0, unplaced = 0;
    std::int64_t suspects = 0;
    bool is_silent = false, is_partial = false;
    i128 result = 0;
};

// ---- The final output -----------------------------------------------------------------------------------

std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + '"';
}

std::string money(i128 amount) { return quoted(decimal(amount)); }

void write_summary(const Engine &engine, std::ostream &out) {
    const auto &c = engine.counts;
    std::vector<const Instrument *> instruments;
    for (auto &i : engine.instruments)
        if (i.market.mark || !i.holdings.empty()) instruments.push_back(&i);
    std::sort(instruments.begin(), instruments.end(), [](auto *a, auto *b) { return a->symbol < b->symbol; });
    auto frozen = std::count_if(instruments.begin(), instruments.end(), [](auto *i) { return i->market.is_suspect; });
    char trail[17];
    std::snprintf(trail, sizeof trail, "%016llx", static_cast<unsigned long long>(engine.trail));
    out << "{\"records\":" << c.records << ",\"lost_records\":" << c.lost_records << ",\"losses\":" << c.losses
        << ",\"repaired_datagrams\":" << c.repaired << ",\"unnamed_records\":" << c.unnamed << ",\"fills\":" << c.fills
        << ",\"fills_left\":" << engine.fills_left() << ",\"breaches\":" << c.breaches << ",\"clears\":" << c.clears
        << ",\"freezes\":" << c.freezes << ",\"silences\":" << c.silences << ",\"frozen_instruments\":" << frozen
        << ",\"trail\":\"" << trail << "\",\"portfolios\":[";
    for (std::size_t i = 0; i < engine.portfolios.size(); ++i) {
        const auto &p = engine.portfolios[i];
        out << (i ? "," : "") << "{\"name\":" << quoted(p.name) << ",\"realised\":" << money(p.realised)
            << ",\"unrealised\":" << money(p.unrealised) << ",\"result\":" << money(p.realised + p.unrealised)
            << ",\"gross\":" << money(p.gross) << ",\"net\":" << money(p.net)
            << ",\"frozen\":" << (engine.is_frozen(i) ? "true" : "false") << '}';
    }
    out << "],\"instruments\":[";
    for (std::size_t i = 0; i < instruments.size(); ++i) {
        const auto &instrument = *instruments[i];
        out << (i ? ",\n" : "\n") << "{\"symbol\":" << quoted(instrument.symbol)
            << ",\"mark\":" << (instrument.market.mark ? money(*instrument.market.mark) : "null")
            << ",\"exposure\":" << money(instrument.exposure)
            << ",\"frozen\":" << (instrument.market.is_suspect ? "true" : "false") << ",\"positions\":[";
        for (std::size_t j = 0; j < instrument.holdings.size(); ++j) {
            const auto &[portfolio, position, value] = instrument.holdings[j];
            out << (j ? "," : "") << "{\"portfolio\":" << quoted(engine.portfolios[portfolio].name)
                << ",\"quantity\":" << position.quantity << ",\"cost\":" << money(position.cost)
                << ",\"realised\":" << money(position.realised) << ",\"unrealised\":" << money(value.unrealised)
                << ",\"exposure\":" << money(value.exposure) << '}';
        }
        out << "]}";
    }
    out << "]}\n";
}

// ---- The program ----------------------------------------------------------------------------------------

using Options = std::map<std::string, std::string>;

Options options_of(int argc, char **argv) {
    Options options = {{"publisher", "127.0.0.1:7400"}, {"channel", "equities"}, {"sleep-us", "0"}, {"sleep-every", "1000"},
                       {"drop", "0"}, {"seed", "1"}, {"core", "0"}, {"ring-mib", "64"}, {"stale-us", "30000"}, {"join-limit-ms", "10000"},
                       {"fills", ""}, {"limits", ""}, {"summary", ""}, {"split", ""}};
    for (int i = 1; i < argc; ++i) {
        std::string name = std::strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
        if (!options.count(name)) throw Refused(std::string("there is no option ") + argv[i]);
        if (name == "split") options[name] = "yes";
        else if (++i < argc) options[name] = argv[i];
        else throw Refused("--" + name + " needs a value");
    }
    return options;
}

int run(Options options) {
    auto count = [&](const char *name) { return number<std::uint64_t>(options[name], 0, UINT32_MAX); };
    Engine engine(options["fills"].empty() ? std::vector<Fill>() : read_fills(options["fills"]),
                  options["limits"].empty() ? Limits() : read_limits(options["limits"]));
    auto builder = tickcast::Subscriber::builder(options["publisher"]);
    builder.name("risk-engine-cpp").join_limit(std::chrono::milliseconds(count("join-limit-ms")));
    if (double drop = std::stod(options["drop"]); drop > 0) {
#ifdef TICKCAST_TESTING
        builder.drop(drop, count("seed"));
#else
        throw Refused("--drop needs a library that was built with the feature testing");
#endif
    }
    // A book needs everything since the session began.
    auto stale_us = static_cast<std::uint32_t>(count("stale-us"));
    builder.channel(options["channel"]).start(TICKCAST_START_AT_OLDEST).stale_us(stale_us);
    auto subscriber = builder.build();
    auto monitor = subscriber.monitor();
    std::chrono::microseconds sleep(count("sleep-us"));
    auto sleep_every = std::max<std::uint64_t>(count("sleep-every"), 1);
    bool has_joined = false;
    auto take = [&](const Item &item) {
        auto unnamed = engine.counts.unnamed;
        engine.take(item);
        if (item.record()) {
            // A late subscriber has missed the records that name the instruments.
            if (engine.counts.unnamed > unnamed) {
                auto names = monitor.directory();
                auto id = item.record()->instrument_id;
                // Read the epoch after the directory, which then is of this epoch or an earlier one.
                engine.learn(item.position().epoch, id, names.symbol(id), monitor.channel(0).epoch);
            }
            if (sleep.count() && engine.counts.records % sleep_every == 0) std::this_thread::sleep_for(sleep);
        } else if (item.event()->kind != TICKCAST_EVENT_KIND_GAP_RECOVERED) {
            std::cerr << item.position().record << ' ' << item.text() << '\n';
            auto kind = item.event()->kind;
            has_joined |= kind == TICKCAST_EVENT_KIND_JOINED || kind == TICKCAST_EVENT_KIND_OVERRUN;
        }
    };
    constexpr std::chrono::milliseconds LOOK_AROUND(100);
    auto never = [&] {
        if (has_joined || monitor.problem().empty()) return false;
        std::cerr << "risk_engine: " << monitor.problem() << '\n';
        return true;
    };
    if (options["split"].empty()) {
        while (!subscriber.ended()) {
            if (subscriber.poll(take).worked()) continue;
            if (never()) return 3;
            subscriber.wait(LOOK_AROUND);
        }
        subscriber.leave();
    } else {
        auto [running, reader] = subscriber.split(static_cast<std::uint32_t>(count("core")), count("ring-mib") << 20,
                                                  TICKCAST_IDLE_WITH_SLEEP, 50);
        while (!reader.is_over()) {
            if (reader.poll(take).worked()) continue;
            if (never()) return 3;
            reader.wait(LOOK_AROUND);
        }
        running.join();
    }
    if (!options["summary"].empty()) {
        std::ofstream out(options["summary"]);
        write_summary(engine, out);
        if (!out.flush()) throw Refused(options["summary"] + " can't be written");
    }
    for (auto &p : engine.portfolios)
        std::cout << p.name << " result " << decimal(p.realised + p.unrealised) << " gross " << decimal(p.gross) << '\n';
    return engine.counts.losses > 0 || engine.fills_left() > 0;
}

} // namespace

int main(int argc, char **argv) {
    try {
        return run(options_of(argc, argv));
    } catch (const std::exception &error) {
        std::cerr << "risk_engine: " << error.what() << '\n';
        return 2;
    }
}
