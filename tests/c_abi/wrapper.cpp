// The C++ wrapper: `wrapper <publisher> <file>`; the bytes of all records go to the file.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <tickcast.hpp>

using namespace tickcast;
using namespace std::chrono_literals;

#define MUST(what)                                                                                 \
    if (!(what)) std::fprintf(stderr, "line %d: %s\n", __LINE__, #what), std::exit(1)

static_assert(!std::is_copy_constructible_v<Subscriber> && std::is_move_constructible_v<Subscriber>);
static_assert(!std::is_copy_constructible_v<Builder> && !std::is_copy_constructible_v<Reader>);
static_assert(!std::is_copy_assignable_v<Running> && std::is_move_assignable_v<Running>);
static_assert(noexcept(std::declval<Subscriber &>().try_poll(std::declval<void (&)(const Item &) noexcept>())));

template <class F> int status_of(F &&call) {
    try {
        call();
    } catch (const Error &error) {
        MUST(error.what()[0]);
        return error.status();
    }
    return 0;
}

int main(int, char **argv) {
    MUST(status_of([] { Subscriber::builder("127.0.0.1:9").lag_alarm(1); }) == TICKCAST_STATUS_CONFIG);
    MUST(status_of([] { Subscriber::builder("127.0.0.1:9").build(); }) == TICKCAST_STATUS_CONFIG);
    auto moved = Subscriber::builder(argv[1]).name("wrapper").channel("all").stale_us(60000000).drop(0.05, 3).build();
    Subscriber subscriber = std::move(moved);
    MUST(status_of([&] { moved.poll([](const Item &) {}); }) == TICKCAST_STATUS_ARGUMENT);
    MUST(moved.try_poll([](const Item &) noexcept {}).status() == TICKCAST_STATUS_ARGUMENT);

    std::ofstream out(argv[2], std::ios::binary);
    std::uint64_t records = 0, typed = 0, events = 0, thrown = 0;
    auto on = [&](const Item &item) {
        if (item.event()) return void(events += !item.text().empty());
        records++;
        typed += item.as<MboMsg>() || item.as<TradeMsg>() || item.as<Mbp1Msg>() ||
                 item.as<StatusMsg>() || item.as<SymbolMappingMsg>() || item.as<InstrumentDefMsg>() ||
                 item.as<ImbalanceMsg>() || item.as<StatMsg>();
        MUST(!(item.as<MboMsg>() && item.as<TradeMsg>()));
        out.write(reinterpret_cast<const char *>(item.record()),
                  static_cast<std::streamsize>(item.record_size()));
        if (records % 50 == 0) throw std::runtime_error("now and then");
    };
    auto monitor = subscriber.monitor();
    while (!subscriber.ended()) {
        subscriber.wait(100ms);
        try {
            while (subscriber.poll(on).worked()) {}
        } catch (const std::runtime_error &error) {
            MUST(error.what() == std::string("now and then"));
            thrown++;
        }
    }
    MUST(typed == records && thrown == records / 50 && thrown > 0 && events > 2);
    MUST(subscriber.problem().empty() && subscriber.fd() >= 0 && subscriber.channel_id("all") == 1);
    MUST(status_of([&] { subscriber.channel_id("none"); }) == TICKCAST_STATUS_UNKNOWN);
    MUST(status_of([&] { subscriber.pass_symbols(1, {"NONE"}); }) == TICKCAST_STATUS_UNKNOWN);
    subscriber.pass_all(1);
    MUST(monitor.counter(0, "delivered_records") == records && monitor.channels() == 1);
    MUST(monitor.latency(0, TICKCAST_LATENCY_STAGE_REPAIR).count > 0);
    auto directory = subscriber.directory();
    MUST(directory.size() > 0 && !directory.id("NONE") && !directory.symbol(4000000000u));
    bool is_told = false;
    auto summary = subscriber.leave([&](const Item &) { is_told = true; });
    MUST(!is_told);
    MUST(summary.is_whole && summary.delivered_records == records);
    MUST(status_of([&] { subscriber.ended(); }) == TICKCAST_STATUS_ARGUMENT);

    // What a callback of the last call throws comes out of it.
    auto again = Subscriber::builder(argv[1]).channel("all").start(TICKCAST_START_AT_OLDEST).build();
    bool has_thrown = false;
    try {
        again.poll([](const Item &) {});
        again.leave([](const Item &) { throw std::runtime_error("at the end"); });
    } catch (const std::runtime_error &) { has_thrown = true; }
    MUST(!has_thrown && status_of([&] { again.ended(); }) == TICKCAST_STATUS_ARGUMENT);

    // A thread of the library's ends with its handle.
    auto nobody = [] { return Subscriber::builder("127.0.0.1:9").channel("all").build(); };
    { auto running = nobody().run_pinned(0, [](const Item &) {}, TICKCAST_IDLE_WITH_YIELD); }
    auto [running, reader] = nobody().split(0, 1 << 20, TICKCAST_IDLE_WITH_YIELD);
    auto other = reader.clone();
    MUST(status_of([&, &running = running] { running.rejoin(1, TICKCAST_START_AT_LIVE); }) == TICKCAST_STATUS_UNKNOWN);
    MUST(status_of([&, &running = running] { running.pass_all(1); }) == TICKCAST_STATUS_UNKNOWN);
    MUST(status_of([&, &running = running] { running.pass_ids(1, {7}); }) == TICKCAST_STATUS_UNKNOWN);
    MUST(status_of([&, &running = running] { running.pass_symbols(1, {"A"}); }) == TICKCAST_STATUS_UNKNOWN);
    running.stop();
    MUST(running.join().channels == 1);
    while (!reader.is_over()) reader.poll([](const Item &) {});
    MUST(!reader.try_poll([](const Item &) noexcept { return true; }).status());
    MUST(other.report(0).records == 0);
    std::printf("records=%llu\n", static_cast<unsigned long long>(records));
}
