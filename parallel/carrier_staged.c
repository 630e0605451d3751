/* parallel/carrier_staged.c - device memory by way of host memory: down, the group's own exchange,
 * up.  Complete when a call returns, as far as the host can tell. */
#include "core/alloc.h"
#include "parallel/group_parts.h"

typedef struct {
    bt_carrier super;
    bt_device *dev;                 /* borrowed */
    uint8_t   *out, *in;            /* owned, pinned */
    size_t     out_bytes, in_bytes; /* of them */
} staged;

static bt_status grow(bt_device *dev, uint8_t **memory, size_t *has, size_t bytes)
{
    bt_status st   = BT_OK;
    void     *more = NULL;

    if (bytes <= *has) goto out;
    BT_TRY(bt_device_alloc_host(dev, bytes, &more));
    bt_device_free_host(dev, *memory);
    *memory = more;
    *has    = bytes;
out:
    return st;
}

static bt_status staged_reserve(bt_carrier *c, size_t out_bytes, size_t in_bytes)
{
    bt_status st = BT_OK;
    staged   *s  = (staged *)c;

    BT_TRY(grow(s->dev, &s->out, &s->out_bytes, out_bytes));
    BT_TRY(grow(s->dev, &s->in, &s->in_bytes, in_bytes));
out:
    return st;
}

static bt_status check_room(const staged *s, size_t out_bytes, size_t in_bytes, const bt_wait *wait)
{
    bt_status st = BT_OK;

    BT_REQUIRE(out_bytes <= s->out_bytes && in_bytes <= s->in_bytes, BT_ERR_INVALID_ARG,
               "%s: %zu bytes go out and %zu come in, with host memory for %zu and %zu",
               bt_wait_name(wait), out_bytes, in_bytes, s->out_bytes, s->in_bytes);
out:
    return st;
}

/* The end of the last part; 0 without any. */
static size_t end_of(uint32_t n, const size_t *at, const size_t *bytes)
{
    size_t end = 0;

    for (uint32_t i = 0; i < n; i++)
        if (bytes[i] > 0 && at[i] + bytes[i] > end) end = at[i] + bytes[i];
    return end;
}

/* The start of the first one; SIZE_MAX without any. */
static size_t start_of(uint32_t n, const size_t *at, const size_t *bytes)
{
    size_t start = SIZE_MAX;

    for (uint32_t i = 0; i < n; i++)
        if (bytes[i] > 0 && at[i] < start) start = at[i];
    return start;
}

static bt_status staged_exchange(bt_carrier *c, bt_group *group, const bt_exchange *x,
                                 const bt_wait *wait)
{
    bt_status st    = BT_OK;
    staged   *s     = (staged *)c;
    uint32_t  n     = bt_group_size(group);
    size_t    start = start_of(n, x->send_at, x->send_bytes);
    size_t    end   = end_of(n, x->send_at, x->send_bytes);

    BT_TRY(check_room(s, end, end_of(n, x->recv_at, x->recv_bytes), wait));
    if (end > start) { /* everybody gets the same rows in a dispatch: they come down once */
        BT_TRY(bt_device_download(s->dev, s->out + start, (const uint8_t *)x->send + start,
                                  end - start));
        BT_TRY(bt_device_sync(s->dev));
    }
    BT_TRY(bt_group_exchange(group, s->out, x->send_at, x->send_bytes, s->in, x->recv_at,
                             x->recv_bytes, wait));
    for (uint32_t i = 0; i < n; i++)
        BT_TRY(bt_device_upload(s->dev, (uint8_t *)x->recv + x->recv_at[i], s->in + x->recv_at[i],
                                x->recv_bytes[i]));
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

static bt_status staged_mark(bt_carrier *c, uint32_t i, const bt_wait *wait)
{
    (void)c, (void)i, (void)wait;
    return BT_OK;
}

static bt_status staged_warm(bt_carrier *c, bt_group *group, const bt_wait *wait)
{
    (void)c, (void)group, (void)wait;
    return BT_OK;
}

static bt_status staged_tend(bt_carrier *c, const bt_wait *wait)
{
    (void)c, (void)wait;
    return BT_OK;
}

static void staged_end(bt_carrier *c) { (void)c; }

/* The group's own exchange knows. */
static uint32_t staged_missing(const bt_carrier *c, uint32_t *ranks_out)
{
    (void)c, (void)ranks_out;
    return 0;
}

static void staged_destroy(bt_carrier *c)
{
    staged *s = (staged *)c;

    bt_device_free_host(s->dev, s->out);
    bt_device_free_host(s->dev, s->in);
    bt_free(s);
}

static const bt_carrier_ops STAGED_OPS = {.exchange = staged_exchange,
                                          .reserve  = staged_reserve,
                                          .mark     = staged_mark,
                                          .settle   = staged_mark,
                                          .warm     = staged_warm,
                                          .tend     = staged_tend,
                                          .end      = staged_end,
                                          .missing  = staged_missing,
                                          .destroy  = staged_destroy};

bt_status bt_carrier_staged_create(bt_device *dev, bt_carrier **carrier_out)
{
    bt_status st = BT_OK;
    staged   *s  = bt_calloc(1, sizeof(*s));

    BT_REQUIRE(s != NULL, BT_ERR_NO_MEMORY, "a carrier");
    s->super.ops = &STAGED_OPS;
    s->dev       = dev;
    *carrier_out = &s->super;
out:
    return st;
}
