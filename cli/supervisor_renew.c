/* A fresh cell beside one that has lost ranks and has no spares left.  It starts under the same
 * coordinator with a name of its own, and when it serves the old one drains.  The fresh ranks find
 * out themselves, before they load, whether memory allows it; if they do not come the old cell
 * goes on as it is, until it loses another rank. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/supervisor_state.h"
#include "core/clock.h"

void bt_supervisor_renew(supervisor *s)
{
    uint64_t now = bt_awake_ns(), wait_ns;

    if (!s->opt->renew || s->phase != SERVING || s->draining || s->fresh_at_ns != 0 ||
        bt_child_running(&s->fresh))
        return;
    if (!bt_restart_wait_next(&s->restart_wait, s->opt->restarts, &s->serving_ns, now, &wait_ns)) {
        BT_WARN("ranks are missing, and no spare is left; no fresh cell is started after %u starts "
                "in a row",
                s->opt->restarts);
        return;
    }
    snprintf(s->fresh_name, sizeof(s->fresh_name), "%.40s%srenewed-%u",
             s->opt->cell.name != NULL ? s->opt->cell.name : "",
             s->opt->cell.name != NULL ? "-" : "", ++s->n_renewed);
    BT_WARN("ranks are missing, and no spare is left: starting the cell %s beside this one in %.1f "
            "s",
            s->fresh_name, (double)wait_ns * 1e-9);
    s->fresh_at_ns = now + wait_ns;
}

/* Before a reason, or alone. */
static bool is_name(const char *text, const char *name)
{
    size_t n = strlen(name);

    return strncmp(text, name, n) == 0 && (text[n] == '\0' || text[n] == ':');
}

bool bt_supervisor_is_fresh(const supervisor *s, const char *name)
{
    return bt_child_running(&s->fresh) && is_name(name, s->fresh_name);
}

bool bt_supervisor_is_launch(const supervisor *s, const char *name)
{
    return bt_child_running(&s->launch) && is_name(name, s->launch_name);
}

void bt_supervisor_fresh_serves(supervisor *s)
{
    BT_WARN("the cell %s serves; the one that lacks ranks drains", s->fresh_name);
    s->fresh_serves = s->launch_drains = true;
    s->serving_ns                      = bt_awake_ns();
    bt_child_kill(&s->launch, SIGUSR1);
}

void bt_supervisor_watch_fresh(supervisor *s, uint64_t now_ns)
{
    if (!bt_child_running(&s->fresh) || s->fresh_serves || s->fresh_term_ns != 0 ||
        now_ns <= s->heard_ns + s->opt->stall_ns)
        return;
    BT_WARN("no sign of life for %llu s while the ranks of the cell %s load: ending them",
            (unsigned long long)(s->opt->stall_ns / BT_NS_PER_S), s->fresh_name);
    s->fresh_term_ns = now_ns;
}

void bt_supervisor_fresh_ended(supervisor *s, const char *how)
{
    BT_WARN("the cell %s has %s: %s; the one that lacks ranks %s", s->fresh_name,
            s->fresh_serves ? "ended" : "not come", how, s->launch_drains ? "drains" : "goes on");
    bt_child_close(&s->fresh);
    s->fresh_at_ns = s->fresh_term_ns = 0;
    s->fresh_serves = s->fresh_worn = false;
    if (s->launch_drains)
        bt_supervisor_renew(s); /* nobody else takes new requests */
    else
        s->serving_ns = bt_awake_ns(); /* after a good minute there is no row */
}

bool bt_supervisor_take_fresh(supervisor *s)
{
    char     text[128];
    uint64_t now = bt_awake_ns();

    if (!bt_child_running(&s->fresh)) return false;
    BT_INFO("the ranks of the old cell have ended: baton-launch %s",
            bt_child_ending(&s->launch, text, sizeof(text)));
    bt_child_close(&s->launch);
    s->launch         = s->fresh;
    s->launch_term_ns = s->fresh_term_ns;
    s->fresh_term_ns  = 0;
    bt_child_init(&s->fresh);
    bt_progress_reset(&s->progress);
    snprintf(s->launch_name, sizeof(s->launch_name), "%s", s->fresh_name);
    s->launch_has_served = s->fresh_serves;
    s->launch_heard      = true; /* nothing else had this name */
    if (s->fresh_serves) {
        s->serving_ns = now;
        s->died_ns    = 0;
        if (s->fresh_worn) bt_supervisor_renew(s);
    } else { /* the old one has died before the fresh one served */
        if (s->phase == SERVING) s->phase = LOADING; /* else the coordinator is to come as well */
        if (s->died_ns == 0) s->died_ns = now;
        s->heard_ns = now;
    }
    s->fresh_serves = s->fresh_worn = s->launch_drains = false;
    return true;
}
