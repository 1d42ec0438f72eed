/* Prints every tick of a channel, and everything that happens to the stream. */
#include <stdio.h>
#include <tickcast.h>

static int32_t on_item(void *context, const TickcastItem *item) {
    char text[200];
    (void)context;
    if (item->event && tickcast_event_text(item->event, text, sizeof text) > 0) puts(text);
    if (item->record) printf("%llu %u\n", (unsigned long long)item->position->record, item->record->instrument_id);
    return 0;
}

int main(int argc, char **argv) {
    char problem[300];
    int32_t bits = 0, before = 0;
    TickcastBuilder *builder = tickcast_builder_new(argc > 1 ? argv[1] : "127.0.0.1:7400");
    tickcast_builder_channel(builder, argc > 2 ? argv[2] : "all");
    TickcastSubscriber *subscriber = tickcast_builder_build(builder);
    if (!subscriber) return fprintf(stderr, "%s\n", tickcast_last_error()), 1;
    for (; tickcast_subscriber_ended(subscriber) == 0 && tickcast_subscriber_wait(subscriber, 100) >= 0; before = bits) {
        bits = tickcast_subscriber_poll(subscriber, on_item, NULL);
        if ((bits & ~before & TICKCAST_POLL_PROBLEM) && tickcast_subscriber_problem(subscriber, problem, sizeof problem) > 0)
            fprintf(stderr, "%s\n", problem);
    }
    return tickcast_subscriber_leave(subscriber, NULL, NULL, NULL, sizeof(TickcastSummary)) != 0;
}
