/* Everything that a subscriber can do, from C: `powers <poll|split|run> <publisher> <file>`. The
 * bytes of all records go to the file, numbers as name=value to stdout. */
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tickcast.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (!(call)) {                                                                             \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, tickcast_last_error());          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef struct Seen {
    FILE *out;
    uint64_t records, events, last_record, recovered, repaired;
    uint32_t instrument;
    int joined, ended;
} Seen;

static int32_t on_item(void *context, const TickcastItem *item) {
    Seen *seen = context;
    if (item->kind == TICKCAST_ITEM_KIND_RECORD) {
        MUST(item->record_size == item->record->length * 4u);
        MUST(item->position->record == seen->last_record + 1);
        MUST(item->position->channel == 1 && item->position->source < 2);
        MUST(item->position->via == 0 || item->position->via == TICKCAST_VIA_REPAIR);
        MUST(fwrite(item->record, 1, item->record_size, seen->out) == item->record_size);
        seen->last_record = item->position->record;
        seen->records++;
        if (item->position->quality & TICKCAST_QUALITY_REPAIRED) seen->repaired++;
        if (item->record->instrument_id) seen->instrument = item->record->instrument_id;
        return 0;
    }
    MUST(item->event && !item->record);
    TickcastEvent copy = *item->event;
    char text[100];
    MUST(tickcast_event_text(&copy, text, sizeof text) > 0);
    seen->events++;
    seen->joined |= copy.kind == TICKCAST_EVENT_KIND_JOINED;
    seen->ended |= copy.kind == TICKCAST_EVENT_KIND_END_OF_SESSION;
    if (copy.kind == TICKCAST_EVENT_KIND_GAP_RECOVERED) seen->recovered += copy.sequences;
    return 0;
}

typedef struct Log {
    atomic_int lines, listening;
} Log;

static void on_log(void *context, uint32_t level, const char *target, const char *line) {
    Log *log = context;
    MUST(level >= TICKCAST_LOG_LEVEL_ERROR && level <= TICKCAST_LOG_LEVEL_INFO);
    MUST(!strncmp(target, "tickcast_", 9) && strlen(line) > 0);
    if (!strcmp(target, "tickcast_subscriber::io::driver") && !strncmp(line, "listening channel=all epoch=", 28))
        atomic_store(&log->listening, 1);
    atomic_fetch_add(&log->lines, 1);
}

static void on_counter(void *context, const char *name, const char *help, uint64_t value) {
    MUST(strlen(name) > 0 && strlen(help) > strlen(name) / 4);
    if (!strcmp(name, "delivered_records")) *(uint64_t *)context = value;
}

static void watch(TickcastMonitor *monitor, const Seen *seen) {
    TickcastChannelReport report;
    TickcastLatency latency;
    uint64_t delivered = 0, again = 0, quantile = 0;
    uint32_t id = 0, first = 0;
    MUST(tickcast_monitor_channels(monitor) == 1);
    MUST(tickcast_monitor_channel(monitor, 0, &report, sizeof report) == 0);
    MUST(!strcmp(report.name, "all") && report.channel == 1);
    MUST(report.delivered_records == seen->records && report.missing_open == 0);
    MUST(tickcast_monitor_counters(monitor, 0, on_counter, &delivered) == 0);
    MUST(tickcast_monitor_counter(monitor, 0, "handed_records", &again) == 0);
    MUST(delivered == seen->records && again == seen->records);
    MUST(tickcast_monitor_latency(monitor, 0, TICKCAST_LATENCY_STAGE_SEALED_TO_DELIVERED, &latency,
                                  sizeof latency) == 0);
    MUST(latency.count == seen->records && latency.min_ns <= latency.p50_ns);
    MUST(latency.p50_ns <= latency.p99_ns && latency.p9999_ns <= latency.max_ns);
    MUST(tickcast_monitor_quantile(monitor, 0, TICKCAST_LATENCY_STAGE_SEALED_TO_DELIVERED, 0.5,
                                   &quantile) == 0);
    MUST(quantile == latency.p50_ns);
    char problem[8];
    MUST(tickcast_monitor_problem(monitor, problem, sizeof problem) == 0 && !problem[0]);

    TickcastDirectory *directory = tickcast_monitor_directory(monitor);
    MUST(directory);
    const char *symbol = tickcast_directory_symbol(directory, seen->instrument);
    MUST(symbol && tickcast_directory_id(directory, symbol, &id) == 0);
    MUST(id == seen->instrument);
    MUST(tickcast_directory_at(directory, 0, &first) && first <= id);
    printf("instruments=%d\n", tickcast_directory_len(directory));
    printf("missing_recovered=%" PRIu64 "\n", report.missing_recovered);
    MUST(tickcast_directory_free(directory) == 0);
    MUST(tickcast_monitor_free(monitor) == 0);
}

static void say(const char *who, const Seen *seen) {
    printf("%srecords=%" PRIu64 "\n%sevents=%" PRIu64 "\n", who, seen->records, who, seen->events);
    printf("%srepaired=%" PRIu64 "\n", who, seen->repaired);
}

static void summarise(const TickcastSummary *summary, uint64_t records) {
    MUST(summary->channels == 1 && summary->delivered_records == records);
    printf("lost=%" PRIu64 "\nwhole=%u\n", summary->lost_records, summary->is_whole);
}

int main(int argc, char **argv) {
    MUST(argc == 4);
    Seen seen = {.out = fopen(argv[3], "wb")};
    TickcastSummary summary;
    Log log = {0};
    MUST(seen.out);
    MUST(tickcast_set_log_callback(TICKCAST_LOG_LEVEL_INFO, on_log, &log) == 0);
    TickcastBuilder *builder = tickcast_builder_new(argv[2]);
    tickcast_builder_name(builder, "powers");
    tickcast_builder_channel(builder, "all");
    tickcast_builder_channel_start(builder, TICKCAST_START_AT_LIVE, 0, 0);
    tickcast_builder_channel_delivery(builder, TICKCAST_DELIVERY_MODE_ORDERED, 0);
    tickcast_builder_channel_lag_alarm(builder, 1000000);
    tickcast_builder_interface(builder, "127.0.0.1");
    tickcast_builder_transport(builder, "udp");
    tickcast_builder_receive_buffer(builder, 8 << 20);
    tickcast_builder_busy_poll(builder, 0);
    tickcast_builder_join_limit(builder, 60000);
    tickcast_builder_latency(builder, 1);
    char interval_log[4096];
    snprintf(interval_log, sizeof interval_log, "%s.hlog", argv[3]);
    tickcast_builder_interval_log(builder, interval_log, 100);
    tickcast_builder_inject_loss(builder, 0.05, 7);
    TickcastSubscriber *subscriber = tickcast_builder_build(builder);
    MUST(subscriber);

    if (!strcmp(argv[1], "poll")) {
        TickcastMonitor *monitor = tickcast_subscriber_monitor(subscriber);
        struct pollfd ready = {.fd = tickcast_subscriber_fd(subscriber), .events = POLLIN};
        int bits = 0, turned = 0;
        MUST(monitor && ready.fd >= 0);
        while (tickcast_subscriber_ended(subscriber) == 0) {
            MUST(tickcast_subscriber_fd(subscriber) == ready.fd && poll(&ready, 1, 100) >= 0);
            do {
                bits = tickcast_subscriber_poll(subscriber, on_item, &seen);
                MUST(bits >= 0 && !(bits & TICKCAST_POLL_PROBLEM));
                // A slow machine is busy until the end, and the connection may just be reconnecting.
                if (seen.joined && !turned && tickcast_subscriber_is_joined(subscriber) == 1) {
                    int channel = tickcast_subscriber_channel_id(subscriber, "all");
                    MUST(channel == 1);
                    turned = 1;
                    MUST(tickcast_subscriber_set_filter_all(subscriber, (uint16_t)channel) == 0);
                }
            } while (bits & TICKCAST_POLL_WORKED);
        }
        MUST(seen.ended);
        MUST(turned);
        watch(monitor, &seen);
        MUST(tickcast_subscriber_leave(subscriber, on_item, &seen, &summary, sizeof summary) == 0);
    } else if (!strcmp(argv[1], "split")) {
        Seen other = seen;
        char name[1000];
        snprintf(name, sizeof name, "%s.other", argv[3]);
        MUST((other.out = fopen(name, "wb")));
        TickcastReader *first = NULL, *second = NULL;
        TickcastRunning *running = tickcast_subscriber_split(subscriber, 0, TICKCAST_IDLE_WITH_SLEEP, 50,
                                                  64 << 20, &first);
        MUST(running && first && (second = tickcast_reader_clone(first)));
        MUST(tickcast_reader_report(first, 0, NULL, 0) == TICKCAST_STATUS_ABI);
        const char *unknown[] = {"NO-SUCH"};
        uint32_t id = 1;
        int turned = 0;
        while (!tickcast_reader_is_over(first) || !tickcast_reader_is_over(second)) {
            MUST(tickcast_reader_wait(first, 20) >= 0);
            MUST(tickcast_reader_poll(first, on_item, &seen) >= 0);
            if (seen.joined && !seen.ended && !turned++) {
                MUST(tickcast_running_set_filter_all(running, 1) == 0);
                MUST(tickcast_running_set_filter_all(running, 2) == TICKCAST_STATUS_UNKNOWN);
                MUST(tickcast_running_rejoin(running, 2, 0, 0, 0) == TICKCAST_STATUS_UNKNOWN);
                MUST(strstr(tickcast_last_error(), "the subscriber does not follow channel 2"));
                MUST(tickcast_running_set_filter_ids(running, 2, &id, 1) == TICKCAST_STATUS_UNKNOWN);
                MUST(tickcast_running_set_filter_symbols(running, 1, unknown, 1) == TICKCAST_STATUS_UNKNOWN);
                MUST(strstr(tickcast_last_error(), "NO-SUCH"));
            }
            MUST(tickcast_reader_poll(second, on_item, &other) >= 0);
        }
        TickcastReaderReport report;
        MUST(tickcast_reader_report(second, 0, &report, sizeof report) == 0);
        MUST(report.records == seen.records && report.overruns == 0);
        watch(tickcast_reader_monitor(first), &seen);
        MUST(tickcast_reader_free(first) == 0 && tickcast_reader_free(second) == 0);
        MUST(tickcast_running_join(running, &summary, sizeof summary) == 0);
        say("other_", &other);
        MUST(fclose(other.out) == 0);
    } else {
        TickcastRunning *running = tickcast_subscriber_run_pinned(subscriber, 0, TICKCAST_IDLE_WITH_SLEEP, 50,
                                                       on_item, &seen);
        MUST(running && tickcast_running_is_finished(running) >= 0);
        TickcastMonitor *monitor = tickcast_running_monitor(running);
        MUST(tickcast_running_join(running, &summary, sizeof summary) == 0);
        MUST(tickcast_monitor_ended(monitor) == 1);
        watch(monitor, &seen);
    }
    summarise(&summary, seen.records);
    MUST(atomic_load(&log.listening) && atomic_load(&log.lines) > 1);
    say("", &seen);
    MUST(fclose(seen.out) == 0);
    return 0;
}
