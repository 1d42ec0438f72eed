// Tests of the risk engine in C++ alone: an overrun must have the same effect as the events that it
// replaces. Its twin in Rust has the same tests in engine.rs.
#define main engine_main
#include "risk_engine.cpp"
#undef main

namespace {

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::cerr << "line " << __LINE__ << ": " << #condition << '\n';                        \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

Engine engine_of(std::vector<Fill> fills) {
    Limits limits = {{{"exposure", "*"}, 1500 * UNIT}};
    Engine engine(std::move(fills), limits);
    engine.name(1, "X");
    return engine;
}

void quoted(Engine &engine, std::uint64_t number, std::int64_t price) {
    tickcast::Position position{};
    position.record = number;
    Mbp1Msg quote{};
    quote.hd = {sizeof quote / 4, 0x01, 0, 1, 0};
    quote.levels[0] = {price * 1'000'000'000 - 1, price * 1'000'000'000 + 1, 1, 1, 0, 0};
    TickcastItem raw{};
    raw.position = &position;
    raw.record = &quote.hd;
    raw.record_size = sizeof quote;
    engine.take(Item(raw));
}

void overrun(Engine &engine, std::uint64_t next, std::uint64_t epoch_changes, std::uint32_t state) {
    tickcast::Position position{};
    position.record = next;
    Event event{};
    event.kind = TICKCAST_EVENT_KIND_OVERRUN;
    event.records = 40;
    event.lost_records = 2;
    event.epoch_changes = epoch_changes;
    event.state = state;
    TickcastItem raw{};
    raw.position = &position;
    raw.event = &event;
    engine.take(Item(raw));
}

void happened(Engine &engine, std::uint64_t next, std::uint32_t kind) {
    tickcast::Position position{};
    position.record = next;
    Event event{};
    event.kind = kind;
    TickcastItem raw{};
    raw.position = &position;
    raw.event = &event;
    engine.take(Item(raw));
}

} // namespace

int main() {
    auto one = [] { return engine_of({{0, "a", "X", 10, 1}, {9, "a", "X", 1, 1}}); };
    {
        // Silence freezes limits until the publisher is heard again, even if an overrun reports that.
        Engine engine = one();
        quoted(engine, 1, 100);
        MUST(!engine.is_frozen(0));
        overrun(engine, 5, 0, TICKCAST_STATE_JOINED | TICKCAST_STATE_STALE);
        MUST(engine.counts.silences == 1 && engine.counts.losses == 1 && engine.counts.lost_records == 42);
        quoted(engine, 5, 160);
        MUST(engine.is_frozen(0) && engine.counts.breaches == 0);
        overrun(engine, 7, 0, TICKCAST_STATE_JOINED);
        MUST(engine.is_frozen(0));
        quoted(engine, 7, 160);
        MUST(!engine.is_frozen(0) && engine.counts.breaches == 1);
    }
    {
        // Two publishers: every mark is unknown until its next quote.
        Engine engine = one();
        quoted(engine, 1, 100);
        tickcast::Position position{};
        position.record = 2;
        Event event{};
        event.kind = TICKCAST_EVENT_KIND_FENCING_VIOLATION;
        TickcastItem raw{};
        raw.position = &position;
        raw.event = &event;
        engine.take(Item(raw));
        MUST(engine.is_frozen(0) && engine.counts.losses == 1);
        quoted(engine, 2, 100);
        MUST(!engine.is_frozen(0));
    }
    {
        // Another epoch: instrument ids and record numbers start anew.
        Engine engine = one();
        quoted(engine, 1, 100);
        overrun(engine, 3, 1, TICKCAST_STATE_JOINED);
        quoted(engine, 3, 500);
        MUST(engine.counts.unnamed == 1 && engine.fills_left() == 1);
    }
    {
        // The same with an EPOCH_CHANGED event. Names of one epoch do not apply to another.
        Engine engine = one();
        quoted(engine, 1, 100);
        happened(engine, 3, TICKCAST_EVENT_KIND_EPOCH_CHANGED);
        quoted(engine, 3, 500);
        MUST(engine.counts.unnamed == 1 && engine.fills_left() == 1);
        engine.learn(2, 1, "X", 1);
        engine.learn(2, 1, "X", 3);
        engine.learn(2, 1, nullptr, 2);
        quoted(engine, 4, 500);
        MUST(engine.counts.unnamed == 2);
        engine.learn(2, 1, "X", 2);
        quoted(engine, 5, 500);
        MUST(engine.counts.unnamed == 2);
    }
    {
        // The end: earlier fills are applied.
        Engine engine = one();
        quoted(engine, 1, 100);
        overrun(engine, 10, 0, TICKCAST_STATE_JOINED | TICKCAST_STATE_ENDED);
        MUST(engine.fills_left() == 0);
    }
    std::cout << "an overrun is what it stands for\n";
}
