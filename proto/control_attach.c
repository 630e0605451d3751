#include "proto/control_attach.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/parse.h"
#include "core/thread.h"

struct bt_control_attach {
    char               address[BT_ADDRESS_BYTES];
    uint64_t           connect_ns, quiet_ns;
    bt_up              hello; /* owned, until it is sent */
    pthread_t          thread;
    atomic_bool        over; /* client and why are the owner's then */
    bt_control_client *client;
    char               why[512];
};

static void *attach_main(void *arg)
{
    bt_control_attach *a = arg;

    if (bt_control_client_start(a->address, a->connect_ns, a->quiet_ns, &a->client) == BT_OK) {
        bt_control_client_send(a->client, &a->hello); /* a loss shows by itself */
    } else {
        snprintf(a->why, sizeof(a->why), "%s", bt_error_text());
        bt_up_free(&a->hello);
    }
    atomic_store(&a->over, true);
    return NULL;
}

bt_status bt_control_attach_start(const char *address, uint64_t connect_ns, uint64_t quiet_ns,
                                  bt_up *hello, bt_control_attach **attach_out)
{
    bt_status          st = BT_OK;
    bt_control_attach *a  = bt_calloc(1, sizeof(*a));
    int                rc;

    BT_REQUIRE(a != NULL, BT_ERR_NO_MEMORY, "the search for a coordinator");
    snprintf(a->address, sizeof(a->address), "%s", address);
    a->connect_ns = connect_ns;
    a->quiet_ns   = quiet_ns;
    a->hello      = *hello;
    rc            = bt_thread_start(&a->thread, attach_main, a);
    BT_REQUIRE(rc == 0, BT_ERR_NO_MEMORY, "the thread that looks for a coordinator");
    *attach_out = a;
    a           = NULL; /* handed over */
out:
    if (st != BT_OK) bt_up_free(hello);
    bt_free(a);
    return st;
}

bool bt_control_attach_poll(bt_control_attach *attach, bt_control_client **client_out, char *why,
                            size_t capacity)
{
    if (!atomic_load(&attach->over)) return false;
    pthread_join(attach->thread, NULL);
    *client_out = attach->client;
    snprintf(why, capacity, "%s", attach->why);
    bt_free(attach);
    return true;
}
