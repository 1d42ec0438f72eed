/* Loaded before a program (LD_PRELOAD), it makes a device answer late, as a card in trouble does, and fail sends:
 *   /tmp/device-stuck   while it exists, calls that create, change or destroy anything do not return
 *   /tmp/device-slow    while it exists, such calls take up to 20 ms longer, and half of the polls without an event find nothing
 *   /tmp/sends-fail     while it exists, sends with the Q_Key FAILING_Q_KEY are not accepted
 *   /tmp/sends-stop     while it exists, rxe0 completes nothing
 * A call that is stuck for two minutes ends the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr

enum { FAILING_Q_KEY = 0x0badbeef };

/* Reproducible for a thread, which makes its calls in an order of its own. */
static unsigned dice(void)
{
    static __thread unsigned state = 1;
    return (unsigned)rand_r(&state);
}

static int is_slow(void) { return !access("/tmp/device-slow", F_OK); }

static void stick(const char *call)
{
    if (is_slow())
        usleep(dice() % 20000);
    for (int n = 0; !access("/tmp/device-stuck", F_OK); n++) {
        if (n == 120 * 1000) {
            fprintf(stderr, "FAILED: a thread waits for %s of a device that is stuck\n", call);
            abort();
        }
        usleep(1000);
    }
}

/* Defines a call of the library that may stick. */
#define STICKS(result, call, parameters, arguments)                              \
    result call parameters                                                       \
    {                                                                            \
        result(*real) parameters = (result(*) parameters)dlsym(RTLD_NEXT, #call); \
        stick(#call);                                                            \
        return real arguments;                                                   \
    }

STICKS(int, ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr *to, int mask), (qp, to, mask))
STICKS(int, ibv_destroy_qp, (struct ibv_qp * qp), (qp))
STICKS(struct ibv_cq *, ibv_create_cq,
       (struct ibv_context * context, int entries, void *own, struct ibv_comp_channel *channel, int vector),
       (context, entries, own, channel, vector))
STICKS(int, ibv_destroy_cq, (struct ibv_cq * cq), (cq))
STICKS(struct ibv_ah *, ibv_create_ah, (struct ibv_pd * pd, struct ibv_ah_attr *to), (pd, to))
STICKS(int, ibv_destroy_ah, (struct ibv_ah * ah), (ah))
STICKS(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd * pd, void *at, size_t len, int access), (pd, at, len, access))
STICKS(int, ibv_dereg_mr, (struct ibv_mr * mr), (mr))
STICKS(int, ibv_dealloc_pd, (struct ibv_pd * pd), (pd))
STICKS(int, ibv_query_gid, (struct ibv_context * context, uint8_t port, int index, union ibv_gid *gid),
       (context, port, index, gid))
STICKS(int, rdma_join_multicast_ex, (struct rdma_cm_id * id, struct rdma_cm_join_mc_attr_ex *to, void *own),
       (id, to, own))
STICKS(int, rdma_leave_multicast, (struct rdma_cm_id * id, struct sockaddr *group), (id, group))
STICKS(int, rdma_destroy_id, (struct rdma_cm_id * id), (id))

static int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);

static int failing_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
    if (first->wr.ud.remote_qkey == FAILING_Q_KEY && !access("/tmp/sends-fail", F_OK)) {
        *bad = first;
        return EIO;
    }
    return post_send(qp, first, bad);
}

static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);

static int stopping_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *to)
{
    /* After the event of a channel, a poll does find something. */
    if (!cq->channel && is_slow() && dice() % 2)
        return 0;
    if (!strcmp(cq->context->device->name, "rxe0") && !access("/tmp/sends-stop", F_OK))
        return 0;
    return poll_cq(cq, most, to);
}

/* The calls of a device are in its context, which every queue pair names. */
int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    int (*real)(struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *) = dlsym(RTLD_NEXT, "rdma_create_qp");
    stick("rdma_create_qp");
    int result = real(id, pd, attributes);
    if (!result && id->qp->context->ops.post_send != failing_post_send) {
        post_send = id->qp->context->ops.post_send;
        id->qp->context->ops.post_send = failing_post_send;
        poll_cq = id->qp->context->ops.poll_cq;
        id->qp->context->ops.poll_cq = stopping_poll_cq;
    }
    return result;
}
