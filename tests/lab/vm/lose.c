/* Loaded before a program (LD_PRELOAD), it ends memberships as a subnet manager's events do: each time that
 * the file /tmp/memberships-lost is made anew, each id with a group reports MULTICAST_ERROR once. While the
 * file /tmp/joins-fail exists, joins fail. Soft-RoCE has no subnet manager. While /tmp/device-removed exists, the
 * ids report DEVICE_REMOVAL instead, because Soft-RoCE's device does not go before its last user has ended. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 64 };

/* One thread of the program at a time uses an id, and the table has a place for each id. */
static struct member {
    struct rdma_cm_id *id;
    ino_t told;
    struct rdma_cm_event event;
} members[MOST];

static ino_t lost(void)
{
    struct stat file;
    return stat("/tmp/memberships-lost", &file) ? 0 : file.st_ino;
}

static struct member *place_of(struct rdma_cm_id *id)
{
    for (int at = 0; at < MOST; at++)
        if (__atomic_load_n(&members[at].id, __ATOMIC_ACQUIRE) == id)
            return &members[at];
    return NULL;
}

static void forget(struct rdma_cm_id *id)
{
    struct member *member = place_of(id);
    if (member)
        __atomic_store_n(&member->id, NULL, __ATOMIC_RELEASE);
}

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attributes, void *context)
{
    int (*real)(struct rdma_cm_id *, struct rdma_cm_join_mc_attr_ex *, void *) = dlsym(RTLD_NEXT, "rdma_join_multicast_ex");
    if (!access("/tmp/joins-fail", F_OK)) {
        errno = EAGAIN;
        return -1;
    }
    int result = real(id, attributes, context);
    for (int at = 0; !result && at < MOST; at++) {
        struct rdma_cm_id *none = NULL;
        if (__atomic_compare_exchange_n(&members[at].id, &none, id, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            members[at].told = lost();
            break;
        }
    }
    return result;
}

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *address)
{
    int (*real)(struct rdma_cm_id *, struct sockaddr *) = dlsym(RTLD_NEXT, "rdma_leave_multicast");
    forget(id);
    return real(id, address);
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
    int (*real)(struct rdma_cm_id *) = dlsym(RTLD_NEXT, "rdma_destroy_id");
    forget(id);
    return real(id);
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    int (*real)(struct rdma_event_channel *, struct rdma_cm_event **) = dlsym(RTLD_NEXT, "rdma_get_cm_event");
    int result = real(channel, event);
    ino_t now = lost();
    for (int at = 0; result && now && at < MOST; at++) {
        struct rdma_cm_id *id = __atomic_load_n(&members[at].id, __ATOMIC_ACQUIRE);
        if (!id || id->channel != channel || members[at].told == now)
            continue;
        members[at].told = now;
        members[at].event = (struct rdma_cm_event){
            .id = id,
            .event = access("/tmp/device-removed", F_OK) ? RDMA_CM_EVENT_MULTICAST_ERROR : RDMA_CM_EVENT_DEVICE_REMOVAL,
        };
        *event = &members[at].event;
        return 0;
    }
    return result;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    int (*real)(struct rdma_cm_event *) = dlsym(RTLD_NEXT, "rdma_ack_cm_event");
    if ((char *)event >= (char *)members && (char *)event < (char *)(members + MOST))
        return 0;
    return real(event);
}
