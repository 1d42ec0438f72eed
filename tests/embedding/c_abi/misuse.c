/* Every misuse from C, and the error that it must get: `misuse [publisher]`. Without a publisher it runs
 * only the cases that need none. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tickcast.h>

/* Checks that `call` returns this status, and that the last error contains these words. */
#define EXPECT(status, words, call)                                                                \
    do {                                                                                           \
        long long got = (long long)(call);                                                         \
        if (got != (status) || tickcast_last_status() != (status) ||                               \
            !strstr(tickcast_last_error(), words)) {                                               \
            fprintf(stderr, "line %d: %s gave %lld, %s\n", __LINE__, #call, got,                   \
                    tickcast_last_error());                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (!(call)) {                                                                             \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, tickcast_last_error());          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define EXPECT_NULL(status, words, call) EXPECT(status, words, (call) ? 1 : (status))

enum {
    ARGUMENT = TICKCAST_STATUS_ARGUMENT,
    ABI = TICKCAST_STATUS_ABI,
    HANDLE = TICKCAST_STATUS_HANDLE,
    FREED = TICKCAST_STATUS_FREED,
    BUSY = TICKCAST_STATUS_BUSY,
    CONFIG = TICKCAST_STATUS_CONFIG,
    UNKNOWN = TICKCAST_STATUS_UNKNOWN,
    SYSTEM = TICKCAST_STATUS_SYSTEM,
    STOPPED = TICKCAST_STATUS_STOPPED,
    POISONED = TICKCAST_STATUS_POISONED
};

static int32_t ignore(void *context, const TickcastItem *item) {
    (void)context, (void)item;
    return 0;
}

static void log_line(void *context, uint32_t level, const char *target, const char *line) {
    (void)context, (void)level, (void)target, (void)line;
}

static void wrong_sizes(void) {
    TickcastSizes sizes = tickcast_sizes();
    MUST(tickcast_abi_check(&sizes) == 0 && tickcast_abi_version() == TICKCAST_ABI_VERSION);
    MUST(strlen(tickcast_version()) >= 5);
    for (size_t at = 0; at < sizeof sizes; at += sizeof(uint32_t)) {
        TickcastSizes wrong = sizes;
        *(uint32_t *)((char *)&wrong + at) += 8;
        EXPECT(ABI, "in the library", tickcast_abi_check(&wrong));
        EXPECT_NULL(ABI, "compile with", tickcast_builder_new_checked("h:1", &wrong));
    }
    EXPECT_NULL(ARGUMENT, "sizes", tickcast_builder_new_checked("h:1", NULL));
}

static TickcastSubscriber *a_subscriber(const char *publisher) {
    TickcastBuilder *builder = tickcast_builder_new(publisher);
    MUST(tickcast_builder_channel(builder, "all") == 0);
    TickcastSubscriber *subscriber = tickcast_builder_build(builder);
    MUST(subscriber);
    EXPECT(FREED, "builder", tickcast_builder_name(builder, "late"));
    return subscriber;
}

static void wrong_handles(void) {
    TickcastSummary summary;
    int nothing = 0;
    EXPECT(ARGUMENT, "subscriber", tickcast_subscriber_poll(NULL, ignore, NULL));
    EXPECT(ARGUMENT, "subscriber", tickcast_subscriber_wait(NULL, 0));
    EXPECT(ARGUMENT, "subscriber", tickcast_subscriber_fd(NULL));
    EXPECT(ARGUMENT, "subscriber", tickcast_subscriber_ended(NULL));
    EXPECT(ARGUMENT, "subscriber", tickcast_subscriber_problem(NULL, NULL, 0));
    EXPECT(ARGUMENT, "subscriber", tickcast_subscriber_rejoin(NULL, 1, 0, 0, 0));
    EXPECT(ARGUMENT, "subscriber", tickcast_subscriber_leave(NULL, NULL, NULL, &summary, sizeof summary));
    EXPECT(ARGUMENT, "builder", tickcast_builder_channel(NULL, "all"));
    EXPECT_NULL(ARGUMENT, "builder", tickcast_builder_build(NULL));
    EXPECT_NULL(ARGUMENT, "publishers", tickcast_builder_new(NULL));
    EXPECT(ARGUMENT, "reader", tickcast_reader_poll(NULL, ignore, NULL));
    EXPECT(ARGUMENT, "running", tickcast_running_stop(NULL));
    EXPECT(ARGUMENT, "running", tickcast_running_join(NULL, NULL, sizeof summary));
    EXPECT(ARGUMENT, "monitor", tickcast_monitor_channels(NULL));
    EXPECT_NULL(ARGUMENT, "directory", tickcast_directory_symbol(NULL, 1));
    EXPECT(ARGUMENT, "event", tickcast_event_text(NULL, NULL, 0));
    EXPECT(HANDLE, "not a handle", tickcast_subscriber_poll((TickcastSubscriber *)&nothing, ignore, NULL));
    EXPECT(HANDLE, "not a handle", tickcast_subscriber_free((TickcastSubscriber *)8));
    MUST(tickcast_subscriber_free(NULL) == 0 && tickcast_reader_free(NULL) == 0);
    MUST(tickcast_builder_free(NULL) == 0 && tickcast_running_free(NULL) == 0);
    MUST(tickcast_monitor_free(NULL) == 0 && tickcast_directory_free(NULL) == 0);

    TickcastSubscriber *subscriber = a_subscriber("127.0.0.1:9");
    EXPECT(HANDLE, "is a subscriber", tickcast_reader_poll((TickcastReader *)subscriber, ignore, NULL));
    EXPECT(HANDLE, "needed", tickcast_builder_free((TickcastBuilder *)subscriber));
    EXPECT(ARGUMENT, "`on`", tickcast_subscriber_poll(subscriber, NULL, NULL));
    EXPECT(UNKNOWN, "the subscriber follows all", tickcast_subscriber_channel_id(subscriber, "none"));
    EXPECT(UNKNOWN, "does not follow", tickcast_subscriber_rejoin(subscriber, 9, 0, 0, 0));
    EXPECT(UNKNOWN, "does not follow", tickcast_subscriber_set_filter_all(subscriber, 9));
    EXPECT(ARGUMENT, "StartAt", tickcast_subscriber_rejoin(subscriber, 1, 7, 0, 0));
    EXPECT(ARGUMENT, "symbols", tickcast_subscriber_set_filter_symbols(subscriber, 1, NULL, 2));
    EXPECT(ABI, "Summary", tickcast_subscriber_leave(subscriber, NULL, NULL, &summary, 8));

    TickcastMonitor *monitor = tickcast_subscriber_monitor(subscriber);
    TickcastChannelReport report;
    TickcastLatency latency;
    uint64_t value;
    EXPECT(ABI, "ChannelReport", tickcast_monitor_channel(monitor, 0, &report, 4));
    EXPECT(ARGUMENT, "NULL", tickcast_monitor_channel(monitor, 0, NULL, sizeof report));
    EXPECT(UNKNOWN, "there are 1", tickcast_monitor_channel(monitor, 1, &report, sizeof report));
    EXPECT(UNKNOWN, "delivered_records", tickcast_monitor_counter(monitor, 0, "nonsense", &value));
    EXPECT(UNKNOWN, "not joined", tickcast_monitor_latency(monitor, 0, 0, &latency, sizeof latency));
    MUST(tickcast_monitor_channel(monitor, 0, &report, sizeof report) == 0);
    MUST(report.channel == TICKCAST_NO_CHANNEL);
    TickcastDirectory *directory = tickcast_monitor_directory(monitor);
    uint32_t id;
    MUST(tickcast_directory_len(directory) == 0);
    EXPECT(UNKNOWN, "AAPL", tickcast_directory_id(directory, "AAPL", &id));
    EXPECT_NULL(UNKNOWN, "instrument", tickcast_directory_at(directory, 0, &id));

    MUST(tickcast_subscriber_leave(subscriber, NULL, NULL, &summary, sizeof summary) == 0);
    MUST(summary.is_whole == 1 && summary.channels == 1);
    EXPECT(FREED, "subscriber", tickcast_subscriber_poll(subscriber, ignore, NULL));
    EXPECT(FREED, "subscriber", tickcast_subscriber_leave(subscriber, NULL, NULL, NULL, sizeof summary));
    EXPECT(FREED, "subscriber", tickcast_subscriber_free(subscriber));
    MUST(tickcast_monitor_channels(monitor) == 1);
    MUST(tickcast_monitor_free(monitor) == 0 && tickcast_directory_free(directory) == 0);
    EXPECT(FREED, "monitor", tickcast_monitor_channels(monitor));
    EXPECT(FREED, "directory", tickcast_directory_free(directory));
}

static void wrong_descriptions(void) {
    TickcastBuilder *builder = tickcast_builder_new("127.0.0.1:9");
    EXPECT(CONFIG, "channel", tickcast_builder_channel_lag_alarm(builder, 5));
    EXPECT(ARGUMENT, "UTF-8", tickcast_builder_name(builder, "\xff"));
    /* The first error is reported again. */
    EXPECT_NULL(CONFIG, "tickcast_builder_channel first", tickcast_builder_build(builder));
    EXPECT(FREED, "builder", tickcast_builder_free(builder));
    builder = tickcast_builder_new("127.0.0.1:9");
    EXPECT_NULL(CONFIG, "needs a channel", tickcast_builder_build(builder));
    builder = tickcast_builder_new("127.0.0.1:9");
    MUST(tickcast_builder_channel(builder, "all") == 0);
    EXPECT(ARGUMENT, "DeliveryMode", tickcast_builder_channel_delivery(builder, 9, 0));
    EXPECT(ARGUMENT, "share", tickcast_builder_inject_loss(builder, 1.5, 0));
    MUST(tickcast_builder_transport(builder, "shm") == 0);
    EXPECT(ARGUMENT, "udp", tickcast_builder_transport(builder, "pigeon"));
    MUST(tickcast_builder_free(builder) == 0);
    builder = tickcast_builder_new("127.0.0.1:9");
    MUST(tickcast_builder_channel(builder, "all") == 0);
    MUST(tickcast_builder_channel_stale_us(builder, 5) == 0);
    EXPECT_NULL(CONFIG, "stale_us", tickcast_builder_build(builder));
    TickcastReader *reader = NULL;
    TickcastSubscriber *subscriber = a_subscriber("127.0.0.1:9");
    EXPECT_NULL(ARGUMENT, "1 MiB", tickcast_subscriber_split(subscriber, 0, 1, 0, 5, &reader));
    EXPECT(FREED, "subscriber", tickcast_subscriber_free(subscriber));
    subscriber = a_subscriber("127.0.0.1:9");
    EXPECT_NULL(SYSTEM, "core", tickcast_subscriber_run_pinned(subscriber, 99999, 1, 0, ignore, NULL));
    EXPECT(FREED, "subscriber", tickcast_subscriber_free(subscriber));
    EXPECT(ARGUMENT, "LogLevel", tickcast_set_log_callback(9, log_line, NULL));
    EXPECT(ARGUMENT, "`on`", tickcast_set_log_callback(TICKCAST_LOG_LEVEL_INFO, NULL, NULL));
    MUST(tickcast_set_log_callback(TICKCAST_LOG_LEVEL_INFO, log_line, NULL) == 0);
    EXPECT(BUSY, "another callback", tickcast_set_log_callback(TICKCAST_LOG_LEVEL_INFO, log_line, NULL));
    TickcastEvent event;
    memset(&event, 0x5a, sizeof event);
    EXPECT(ARGUMENT, "event", tickcast_event_text(&event, NULL, 0));
}

typedef struct Shared {
    TickcastSubscriber *subscriber;
    pthread_barrier_t within, tried;
    atomic_int calls, joined;
} Shared;

static void *second_thread(void *context) {
    Shared *shared = context;
    pthread_barrier_wait(&shared->within);
    EXPECT(BUSY, "another thread", tickcast_subscriber_poll(shared->subscriber, ignore, NULL));
    EXPECT(BUSY, "another thread", tickcast_subscriber_free(shared->subscriber));
    pthread_barrier_wait(&shared->tried);
    return NULL;
}

static int32_t calls_back(void *context, const TickcastItem *item) {
    Shared *shared = context;
    if (atomic_fetch_add(&shared->calls, 1) == 0) {
        pthread_barrier_wait(&shared->within);
        pthread_barrier_wait(&shared->tried);
        EXPECT(BUSY, "a callback", tickcast_subscriber_poll(shared->subscriber, ignore, NULL));
        EXPECT(BUSY, "a callback", tickcast_subscriber_ended(shared->subscriber));
        EXPECT(BUSY, "a callback", tickcast_subscriber_free(shared->subscriber));
        EXPECT(BUSY, "a callback",
               tickcast_subscriber_leave(shared->subscriber, NULL, NULL, NULL, sizeof(TickcastSummary)));
        /* A subscriber passed as a type that all threads may share: an error at once, without blocking. */
        void *raw = shared->subscriber;
        char text[8];
        EXPECT(HANDLE, "is a subscriber, and a monitor", tickcast_monitor_is_joined(raw));
        EXPECT(HANDLE, "is a subscriber, and a monitor", tickcast_monitor_problem(raw, text, 8));
        EXPECT(HANDLE, "is a subscriber, and a monitor", tickcast_monitor_free(raw));
        EXPECT(HANDLE, "is a subscriber, and a directory", tickcast_directory_len(raw));
        EXPECT_NULL(HANDLE, "is a subscriber, and a monitor", tickcast_monitor_directory(raw));
        EXPECT(HANDLE, "is a subscriber, and a reader", tickcast_reader_poll(raw, ignore, NULL));
    }
    if (item->event && item->event->kind == TICKCAST_EVENT_KIND_JOINED) atomic_store(&shared->joined, 1);
    return 0;
}

static int32_t stops(void *context, const TickcastItem *item) {
    (void)item;
    return *(int *)context += 1;
}

/* A callback that returns non-zero poisons the handle that called it. */
static void poisoned(const char *publisher) {
    TickcastSubscriber *subscriber = a_subscriber(publisher);
    TickcastMonitor *monitor = tickcast_subscriber_monitor(subscriber);
    TickcastSummary summary;
    TickcastReader *reader = NULL;
    char problem[200];
    int bits = 0, calls = 0;
    while (bits >= 0) {
        MUST(tickcast_subscriber_wait(subscriber, 100) >= 0);
        bits = tickcast_subscriber_poll(subscriber, stops, &calls);
    }
    MUST(bits == STOPPED && tickcast_last_status() == STOPPED && calls == 1);
    EXPECT(POISONED, "nothing more", tickcast_subscriber_poll(subscriber, stops, &calls));
    EXPECT(POISONED, "nothing more", tickcast_subscriber_wait(subscriber, 0));
    EXPECT(POISONED, "nothing more", tickcast_subscriber_rejoin(subscriber, 1, 0, 0, 0));
    EXPECT(POISONED, "nothing more", tickcast_subscriber_set_filter_all(subscriber, 1));
    MUST(tickcast_subscriber_ended(subscriber) == 0 && tickcast_subscriber_is_joined(subscriber) == 0);
    MUST(tickcast_subscriber_problem(subscriber, problem, sizeof problem) > 0);
    MUST(strstr(problem, "nothing more") && tickcast_monitor_is_joined(monitor) == 0 && calls == 1);
    MUST(tickcast_subscriber_leave(subscriber, stops, &calls, &summary, sizeof summary) == 0);
    MUST(summary.is_whole == 0 && calls == 1 && tickcast_monitor_free(monitor) == 0);

    TickcastRunning *running = tickcast_subscriber_split(a_subscriber(publisher), 0, TICKCAST_IDLE_WITH_SLEEP,
                                                         50, 1 << 20, &reader);
    MUST(running);
    for (bits = calls = 0; bits >= 0;) bits = tickcast_reader_poll(reader, stops, &calls);
    MUST(bits == STOPPED);
    EXPECT(POISONED, "nothing more", tickcast_reader_poll(reader, stops, &calls));
    MUST(tickcast_reader_is_over(reader) == 1 && calls == 1 && tickcast_reader_free(reader) == 0);
    MUST(tickcast_running_stop(running) == 0);
    MUST(tickcast_running_join(running, NULL, sizeof summary) == 0);
}

/* A library thread can't be controlled from its own callback. */
static int32_t asks_itself(void *context, const TickcastItem *item) {
    (void)item;
    TickcastRunning *running = atomic_load((_Atomic(TickcastRunning *) *)context);
    if (running) {
        EXPECT(BUSY, "closure", tickcast_running_rejoin(running, 1, TICKCAST_START_AT_LIVE, 0, 0));
        EXPECT(BUSY, "closure", tickcast_running_join(running, NULL, sizeof(TickcastSummary)));
        atomic_store((_Atomic(TickcastRunning *) *)context, NULL);
    }
    return 0;
}

static void threads_of_ours(const char *publisher) {
    _Atomic(TickcastRunning *) asked = NULL;
    TickcastRunning *running = tickcast_subscriber_run_pinned(a_subscriber(publisher), 0, TICKCAST_IDLE_WITH_SLEEP,
                                                   50, asks_itself, (void *)&asked);
    MUST(running);
    EXPECT(ARGUMENT, "StartAt", tickcast_running_rejoin(running, 1, 7, 0, 0));
    EXPECT(UNKNOWN, "does not follow", tickcast_running_set_filter_all(running, 9));
    atomic_store(&asked, running);
    while (atomic_load(&asked)) {}
    MUST(tickcast_running_stop(running) == 0);
    while (!tickcast_running_is_finished(running)) {}
    EXPECT(FREED, "thread has ended", tickcast_running_set_filter_all(running, 1));
    MUST(tickcast_running_join(running, NULL, sizeof(TickcastSummary)) == 0);
}

static void *races(void *context) {
    Shared *shared = context;
    for (int turn = 0; turn < 20000; turn++) {
        int bits = tickcast_subscriber_poll(shared->subscriber, ignore, NULL);
        MUST(bits >= 0 || bits == BUSY);
    }
    return NULL;
}

static void at_once(const char *publisher) {
    Shared shared = {.subscriber = a_subscriber(publisher)};
    pthread_t thread;
    MUST(!pthread_barrier_init(&shared.within, NULL, 2) && !pthread_barrier_init(&shared.tried, NULL, 2));
    MUST(!pthread_create(&thread, NULL, second_thread, &shared));
    while (!atomic_load(&shared.joined)) {
        MUST(tickcast_subscriber_wait(shared.subscriber, 100) >= 0);
        MUST(tickcast_subscriber_poll(shared.subscriber, calls_back, &shared) >= 0);
    }
    MUST(atomic_load(&shared.calls) > 0 && !pthread_join(thread, NULL));
    const char *wrong[] = {"NO-SUCH"};
    EXPECT(UNKNOWN, "NO-SUCH", tickcast_subscriber_set_filter_symbols(shared.subscriber, 1, wrong, 1));
    EXPECT(UNKNOWN, "does not follow", tickcast_subscriber_rejoin(shared.subscriber, 2, 0, 0, 0));
    MUST(tickcast_subscriber_rejoin(shared.subscriber, 1, TICKCAST_START_AT_OLDEST, 0, 0) == 0);
    pthread_t racing[2];
    for (int n = 0; n < 2; n++) MUST(!pthread_create(&racing[n], NULL, races, &shared));
    for (int n = 0; n < 2; n++) MUST(!pthread_join(racing[n], NULL));
    MUST(tickcast_subscriber_leave(shared.subscriber, ignore, NULL, NULL, sizeof(TickcastSummary)) == 0);
}

int main(int argc, char **argv) {
    MUST(tickcast_last_status() == 0 && !tickcast_last_error()[0]);
    wrong_sizes();
    wrong_handles();
    wrong_descriptions();
    if (argc > 1) threads_of_ours(argv[1]), poisoned(argv[1]), at_once(argv[1]);
    puts("every misuse got its error");
    return 0;
}
