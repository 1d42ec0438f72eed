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
    TickcastBuilder *builder = tickcast_builder_new(argc > 1 ? argv[1] : "127.0.0.1:7400");
    tickcast_builder_channel(builder, "all");
    TickcastSubscriber *subscriber = tickcast_builder_build(builder);
    if (!subscriber) return fprintf(stderr, "%s\n", tickcast_last_error()), 1;
    while (tickcast_ended(subscriber) == 0 && tickcast_wait(subscriber, 100) >= 0)
        tickcast_poll(subscriber, on_item, NULL);
    return tickcast_leave(subscriber, NULL, NULL, NULL, sizeof(TickcastSummary)) != 0;
}
