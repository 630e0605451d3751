/* worker/leave.c - the three ways in which a rank ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/watchdog.h"
#include "worker/rank.h"

#define FLUSH_NS (2 * BT_NS_PER_S)

enum { GOODBYE_S = 10 }; /* then an alarm ends the process, whatever hangs */

static void say_leaving(bt_rank *r, const char *reason)
{
    bt_up m = {.kind = BT_UP_LEAVING};

    if (r->client == NULL) return;
    m.u.leaving.reason = bt_strdup(reason);
    if (m.u.leaving.reason != NULL) bt_control_client_send(r->client, &m);
    bt_control_client_stop(r->client, FLUSH_NS);
    r->client = NULL;
}

void bt_rank_leave(bt_rank *r, int code, const char *reason)
{
    if (strcmp(reason, bt_error_text()) != 0) /* else logged */
        bt_log_write(code == EXIT_SUCCESS ? BT_LOG_INFO : BT_LOG_WARN, __FILE__, __LINE__,
                     "leaving: %s", reason);
    alarm(GOODBYE_S);
    say_leaving(r, reason);
    bt_world_exit(code);
}

void bt_rank_pass_on_drain(bt_rank *r)
{
    bt_up m = {.kind = BT_UP_DRAIN};

    /* Without a coordinator it stays due, and each further one hears of it too. */
    if (*r->drain == 0 || r->told_drain || r->client == NULL || bt_links_orphaned(&r->links))
        return;
    r->told_drain = true;
    bt_links_send(&r->links, &m); /* a lost stream shows by itself */
}

void bt_rank_leave_together(bt_rank *r)
{
    bt_worker_log_account(r->worker);
    bt_worker_destroy(r->worker);
    if (bt_kv_pool_check(r->pool) != BT_OK)
        bt_rank_leave(r, EXIT_FAILURE, "the page pool does not add up");
    say_leaving(r, "told to leave");
    bt_handoff_destroy(r->handoff);
    bt_model_destroy(r->model);
    bt_store_close(r->store);
    bt_packed_close(r->packed);
    bt_free(r->packed_path);
    bt_kv_pool_destroy(r->pool);
    bt_group_destroy(r->group);
    bt_placement_fini(&r->placement);
    bt_regroup_free(&r->seating);
    bt_constraints_close(r->constraints);
    bt_safetensors_close(r->st);
    bt_device_destroy(r->dev);
    bt_links_fini(&r->links);
    bt_free(r->plans);
    if (r->shrunk) bt_world_exit(EXIT_SUCCESS);
    bt_watchdog_set_limit(GOODBYE_S * BT_NS_PER_S); /* MPI_Finalize can hang when a rank has died */
    bt_world_fini(r->world);
}

void bt_rank_leave_early(bt_rank *r, bt_status st)
{
    char reason[256];
    int  number = *r->links.signal;

    if (number != 0) {
        snprintf(reason, sizeof(reason), "signal %d (%s)", number, strsignal(number));
        bt_rank_leave(r, EXIT_SUCCESS, reason);
    }
    if (r->client != NULL && bt_control_client_lost(r->client)) {
        bt_control_client_loss(r->client, reason, sizeof(reason));
        bt_rank_leave(r, EXIT_FAILURE, reason);
    }
    if (r->links.shutdown_ns != 0)
        bt_rank_leave(r, EXIT_SUCCESS, "told to leave, the group takes no steps");
    bt_rank_leave(r, EXIT_FAILURE,
                  bt_error_text()[0] != '\0' ? bt_error_text() : bt_status_str(st));
}
