/* Counts the allocations of all threads between the 5,000th and the 40,000th record: `steady <publisher>
 * <poll|split>`. A system call without other uses marks both records, so that a trace shows the
 * system calls between them. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tickcast.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

static atomic_ulong allocations;
static void count(void) { atomic_fetch_add(&allocations, 1); }

/* The library's allocations, on each of its threads, come here too. */
void *malloc(size_t size) { return count(), __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return count(), __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return count(), __libc_realloc(old, size); }
int posix_memalign(void **out, size_t align, size_t size) {
    *out = (count(), __libc_memalign(align, size));
    return *out ? 0 : 12;
}

static unsigned long records, before, after;

static int32_t on_item(void *context, const TickcastItem *item) {
    (void)context;
    if (item->record && (++records == 5000 || records == 40000)) {
        *(records == 5000 ? &before : &after) = allocations;
        if (getppid() < 0) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    TickcastBuilder *builder = tickcast_builder_new(argc > 1 ? argv[1] : "127.0.0.1:7400");
    tickcast_builder_channel(builder, "all");
    TickcastSubscriber *subscriber = tickcast_builder_build(builder);
    if (!subscriber) return fprintf(stderr, "%s\n", tickcast_last_error()), 1;
    int status = 0;
    if (argc > 2 && !strcmp(argv[2], "split")) {
        TickcastReader *reader = NULL;
        TickcastRunning *running =
            tickcast_subscriber_split(subscriber, 0, TICKCAST_IDLE_WITH_SLEEP, 50, 64 << 20, &reader);
        while (running && tickcast_reader_is_over(reader) == 0)
            if (tickcast_reader_poll(reader, on_item, NULL) < 0) return 1;
        status = tickcast_running_join(running, NULL, sizeof(TickcastSummary));
    } else {
        while (tickcast_subscriber_ended(subscriber) == 0)
            if (tickcast_subscriber_poll(subscriber, on_item, NULL) < 0) return 1;
        status = tickcast_subscriber_leave(subscriber, NULL, NULL, NULL, sizeof(TickcastSummary));
    }
    if (before == 0 || after == 0) return 2;
    printf("allocations=%lu\n", after - before);
    return status != 0;
}
