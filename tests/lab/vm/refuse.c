/* Loaded before a program (LD_PRELOAD), it makes each RDMA device lack what REFUSE names:
 *   bind   posting a request that binds a window fails
 *   swap   posting a compare-and-swap fails
 *   end    windows have no end: a registration for windows covers the page behind it too
 *   long   the device reports that it registers at most 1 MiB
 * Soft-RoCE has all of these, and no setting takes them away. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr

static int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);

static int lacks(const char *what)
{
    const char *refused = getenv("REFUSE");
    return refused && !strcmp(refused, what);
}

static int refusing_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
    for (struct ibv_send_wr *wr = first; wr; wr = wr->next) {
        if ((wr->opcode == IBV_WR_BIND_MW && lacks("bind")) ||
            (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP && lacks("swap"))) {
            /* The program posts these one at a time. */
            *bad = wr;
            return EOPNOTSUPP;
        }
    }
    return post_send(qp, first, bad);
}

/* The calls of a device are in its context, which every queue pair names. */
int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    int (*real)(struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *) = dlsym(RTLD_NEXT, "rdma_create_qp");
    int result = real(id, pd, attributes);
    if (!result && id->qp->context->ops.post_send != refusing_post_send) {
        post_send = id->qp->context->ops.post_send;
        id->qp->context->ops.post_send = refusing_post_send;
    }
    return result;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    struct ibv_mr *(*real)(struct ibv_pd *, void *, size_t, int) = dlsym(RTLD_NEXT, "ibv_reg_mr");
    if (access == IBV_ACCESS_MW_BIND && length == 4096 && lacks("end"))
        length *= 2;
    return real(pd, address, length, access);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    int (*real)(struct ibv_context *, struct ibv_device_attr *) = dlsym(RTLD_NEXT, "ibv_query_device");
    int result = real(context, attributes);
    if (!result && lacks("long"))
        attributes->max_mr_size = 1 << 20;
    return result;
}
