// The C++ wrapper: `wrapper <publisher> <file>`; the bytes of all records go to the file.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
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

// A library thread that is busy, or is called from its own callback, refuses the call and continues
// unharmed.
void busy(const char *publisher) {
    std::atomic<Running *> own{nullptr};
    std::atomic<int> joined{0}, asked{0}, calls{0};
    std::atomic<bool> holds{true}, is_held{false};
    auto on = [&](const Item &) {
        if (calls++ == 0) {
            while (!own) std::this_thread::yield();
            joined = status_of([&] { own.load()->join(); });
            asked = status_of([&] { own.load()->pass_all(1); });
            is_held = true;
        }
        while (holds) std::this_thread::yield();
    };
    auto built = Subscriber::builder(publisher).channel("all").start(TICKCAST_START_AT_OLDEST).build();
    Running running = built.run_pinned(0, on, TICKCAST_IDLE_WITH_SLEEP, 50);
    own = &running;
    while (!is_held) std::this_thread::yield();
    MUST(joined == TICKCAST_STATUS_BUSY && asked == TICKCAST_STATUS_BUSY);
    // Another thread's call waits for the callback. Until the callback returns, all other calls are refused.
    std::thread other([&] {
        int status = TICKCAST_STATUS_BUSY;
        // On a slow host the call times out with BUSY, and is repeated.
        while (status == TICKCAST_STATUS_BUSY) status = status_of([&] { running.pass_all(9); });
        MUST(status == TICKCAST_STATUS_UNKNOWN);
    });
    while (status_of([&] { running.is_finished(); }) != TICKCAST_STATUS_BUSY) std::this_thread::yield();
    MUST(status_of([&] { running.join(); }) == TICKCAST_STATUS_BUSY);
    holds = false;
    other.join();
    // The library thread is still running, and accepts calls.
    MUST(!running.is_finished());
    running.pass_all(1);
    running.stop();
    MUST(running.join().channels == 1);
    MUST(status_of([&] { running.join(); }) == TICKCAST_STATUS_ARGUMENT);
}

// A library thread that its own callback ends is detached.
void ended_by_itself(const char *publisher) {
    struct Own {
        std::mutex lock;
        std::unique_ptr<Running> running;
        std::atomic<bool> is_ended{false};
    };
    auto own = std::make_shared<Own>();
    auto built = Subscriber::builder(publisher).channel("all").start(TICKCAST_START_AT_OLDEST).build();
    {
        std::lock_guard<std::mutex> guard(own->lock);
        auto on = [own](const Item &) {
            std::lock_guard<std::mutex> guard(own->lock);
            own->running.reset();
            own->is_ended = true;
        };
        own->running = std::make_unique<Running>(built.run_pinned(0, on, TICKCAST_IDLE_WITH_SLEEP, 50));
    }
    while (!own->is_ended) std::this_thread::yield();
}

// An exception in a callback leaves the poll that called it, and poisons the polled handle. So does a
// callback that returns false.
void poisoned(const char *publisher) {
    auto built = [&] { return Subscriber::builder(publisher).channel("all").start(TICKCAST_START_AT_OLDEST).build(); };
    auto subscriber = built();
    int calls = 0;
    auto throws = [&](const Item &) { calls++, throw std::runtime_error("planned"); };
    bool is_thrown = false;
    while (!is_thrown) {
        subscriber.wait(100ms);
        try {
            subscriber.poll(throws);
        } catch (const std::runtime_error &error) { is_thrown = error.what() == std::string("planned"); }
    }
    MUST(status_of([&] { subscriber.poll(throws); }) == TICKCAST_STATUS_POISONED);
    MUST(status_of([&] { subscriber.wait(0ms); }) == TICKCAST_STATUS_POISONED);
    MUST(subscriber.try_poll([](const Item &) noexcept {}).status() == TICKCAST_STATUS_POISONED);
    MUST(!subscriber.problem().empty() && !subscriber.leave(throws).is_whole && calls == 1);
    auto stopped = built();
    int status = 0;
    while (!status) status = stopped.try_poll([](const Item &) noexcept { return false; }).status();
    MUST(status == TICKCAST_STATUS_STOPPED);
    MUST(status_of([&] { stopped.poll(throws); }) == TICKCAST_STATUS_POISONED && calls == 1);
}

std::atomic<int> lines{0};

int main(int, char **argv) {
    set_log_callback(TICKCAST_LOG_LEVEL_INFO, [](TickcastLogLevel level, const char *target, const char *line) {
        MUST(level <= TICKCAST_LOG_LEVEL_INFO && *target && *line);
        lines++;
    });
    MUST(status_of([] { set_log_callback(TICKCAST_LOG_LEVEL_INFO, [](TickcastLogLevel, const char *, const char *) {}); }) ==
         TICKCAST_STATUS_BUSY);
    MUST(status_of([] { Subscriber::builder("127.0.0.1:9").lag_alarm(1); }) == TICKCAST_STATUS_CONFIG);
    MUST(status_of([] { Subscriber::builder("127.0.0.1:9").build(); }) == TICKCAST_STATUS_CONFIG);
    auto moved = Subscriber::builder(argv[1]).name("wrapper").channel("all").stale_us(60000000).drop(0.05, 3).build();
    Subscriber subscriber = std::move(moved);
    MUST(status_of([&] { moved.poll([](const Item &) {}); }) == TICKCAST_STATUS_ARGUMENT);
    MUST(moved.try_poll([](const Item &) noexcept {}).status() == TICKCAST_STATUS_ARGUMENT);

    std::ofstream out(argv[2], std::ios::binary);
    std::uint64_t records = 0, typed = 0, events = 0;
    auto on = [&](const Item &item) {
        if (item.event()) return void(events += !item.text().empty());
        records++;
        typed += item.as<MboMsg>() || item.as<TradeMsg>() || item.as<Mbp1Msg>() ||
                 item.as<StatusMsg>() || item.as<SymbolMappingMsg>() || item.as<InstrumentDefMsg>() ||
                 item.as<ImbalanceMsg>() || item.as<StatMsg>();
        MUST(!(item.as<MboMsg>() && item.as<TradeMsg>()));
        out.write(reinterpret_cast<const char *>(item.record()),
                  static_cast<std::streamsize>(item.record_size()));
    };
    auto monitor = subscriber.monitor();
    bool has_tried = false;
    while (!subscriber.ended()) {
        // The publisher waits until this subscriber has everything.
        if (!std::exchange(has_tried, has_tried || monitor.is_joined()) && has_tried) {
            busy(argv[1]);
            ended_by_itself(argv[1]);
            poisoned(argv[1]);
        }
        subscriber.wait(100ms);
        while (subscriber.poll(on).worked()) {}
    }
    MUST(has_tried && typed == records && records > 0 && events > 2 && lines > 0);
    MUST(subscriber.problem().empty() && subscriber.fd() >= 0 && subscriber.channel_id("all") == 1);
    MUST(status_of([&] { subscriber.channel_id("none"); }) == TICKCAST_STATUS_UNKNOWN);
    MUST(status_of([&] { subscriber.pass_symbols(1, {"NONE"}); }) == TICKCAST_STATUS_UNKNOWN);
    subscriber.pass_all(1);
    MUST(monitor.counter(0, "delivered_records") == records && monitor.channels() == 1);
    auto repair = monitor.latency(0, TICKCAST_LATENCY_STAGE_REPAIR);
    MUST(repair.count > 0 && repair.p50_ns == monitor.quantile(0, TICKCAST_LATENCY_STAGE_REPAIR, 0.5));
    MUST(monitor.quantile(0, TICKCAST_LATENCY_STAGE_REPAIR, 1.0) >= repair.p99_ns);
    MUST(status_of([&] { monitor.quantile(0, TICKCAST_LATENCY_STAGE_REPAIR, 2.0); }) == TICKCAST_STATUS_ARGUMENT);
    auto directory = subscriber.directory();
    MUST(directory.size() > 0 && !directory.id("NONE") && !directory.symbol(4000000000u));
    bool is_told = false;
    auto summary = subscriber.leave([&](const Item &) { is_told = true; });
    MUST(!is_told);
    MUST(summary.is_whole && summary.delivered_records == records);
    MUST(status_of([&] { subscriber.ended(); }) == TICKCAST_STATUS_ARGUMENT);

    // An exception in a callback of the last call leaves that call.
    auto again = Subscriber::builder(argv[1]).channel("all").start(TICKCAST_START_AT_OLDEST).build();
    bool has_thrown = false;
    try {
        again.poll([](const Item &) {});
        again.leave([](const Item &) { throw std::runtime_error("at the end"); });
    } catch (const std::runtime_error &) { has_thrown = true; }
    MUST(!has_thrown && status_of([&] { again.ended(); }) == TICKCAST_STATUS_ARGUMENT);

    // A library thread ends with its handle.
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
