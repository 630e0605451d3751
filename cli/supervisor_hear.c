/* What the coordinator announces and what ranks say: from starting to serving, and what is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/supervisor_state.h"
#include "core/clock.h"

#define TELL_NS (5 * BT_NS_PER_S) /* between lines on how far the loading is */

static void describe_ranks(const bt_cell_options *cell, char *buf, size_t capacity)
{
    int n;

    if (cell->n_both != 0)
        n = snprintf(buf, capacity, "%u rank%s with both roles", cell->n_both,
                     cell->n_both == 1 ? "" : "s");
    else
        n = snprintf(buf, capacity, "%u prefill and %u decode rank%s", cell->n_prefill,
                     cell->n_decode, cell->n_decode == 1 ? "" : "s");
    if (cell->n_spares != 0)
        snprintf(buf + n, capacity - (size_t)n, ", %u spare%s", cell->n_spares,
                 cell->n_spares == 1 ? "" : "s");
}

/* The cell serves, for the first time or again. */
static void on_serving(supervisor *s)
{
    uint64_t now = bt_awake_ns();

    s->phase      = SERVING;
    s->serving_ns = now;
    bt_echo_clear_bar(&s->echo);
    if (s->died_ns != 0)
        BT_WARN("serving again, %.1f s after the end; restart %u",
                (double)(now - s->died_ns) * 1e-9, s->n_restarts);
    s->died_ns    = 0;
    s->has_served = s->launch_has_served = s->launch_heard = true;
}

static void on_ready(supervisor *s, const char *address)
{
    const char *colon = strrchr(address, ':');
    bool        again = s->has_served;
    char        ranks[96];

    on_serving(s);
    snprintf(s->address, sizeof(s->address), "%s", address);
    if (colon != NULL) s->port = (uint16_t)strtoul(colon + 1, NULL, 10); /* for a restart */
    if (again) return;
    describe_ranks(&s->opt->cell, ranks, sizeof(ranks));
    bt_outlet_say(&s->out, "serving %s at %s (%s; ready after %.1f s)\n", s->opt->cell.model,
                  address, ranks, (double)(s->serving_ns - s->start_ns) / 1e9);
    if (s->http[0] != '\0')
        bt_outlet_say(&s->out, "metrics and status page at http://%s/\n", s->http);
    if (s->opt->chat == NULL) return;
    bt_outlet_say(&s->out, "> %s\n", s->opt->chat);
    if (bt_supervisor_start_client(s) != BT_OK) bt_supervisor_fail(s, "%s", bt_error_text());
}

/* Of a cell under somebody else's coordinator. */
static void on_joined(supervisor *s)
{
    bool again = s->has_served;
    char ranks[96];

    on_serving(s);
    if (again) return;
    describe_ranks(&s->opt->cell, ranks, sizeof(ranks));
    bt_outlet_say(&s->out, "cell %s serves %s under %s (%s; ready after %.1f s)\n",
                  s->opt->cell.name, s->opt->cell.model, s->control, ranks,
                  (double)(s->serving_ns - s->start_ns) / 1e9);
}

static void on_progress(supervisor *s, const char *text)
{
    enum { BAR = 24 }; /* the line fits into 80 columns */
    uint64_t now = bt_awake_ns();
    double   part;
    int      n = 0;
    char     last[96];

    sscanf(text, "%*s %*s %*s %n", &n); /* to the cell's name, or the end */
    if (!bt_supervisor_is_launch(s, text + n)) return;
    s->launch_heard = true;
    if (!bt_progress_take(&s->progress, text, now) || s->phase != LOADING) return;
    part = bt_progress_part(&s->progress);
    n    = (int)(part * BAR);
    bt_progress_last_rank(&s->progress, now, last, sizeof(last));
    bt_echo_bar(&s->echo, "loading %.*s%.*s %3d%%, %s", n, "########################", BAR - n,
                "........................", (int)(part * 100), last);
    if (s->echo.terminal || now - s->told_ns < TELL_NS) return;
    if (s->told_ns != 0) BT_INFO("loading: %d%%, the last is %s", (int)(part * 100), last);
    s->told_ns = now;
}

bool bt_supervisor_may_restart(const supervisor *s)
{
    return s->opt->restarts != 0 && s->has_served && !s->draining && s->phase != STOPPING;
}

void bt_supervisor_hear(supervisor *s, uint64_t now)
{
    if (now > s->heard_ns) s->heard_ns = now;
}

/* Its ranks have been told to leave. */
static void on_lost(supervisor *s, uint64_t now)
{
    if (!bt_supervisor_may_restart(s)) return;
    if (s->died_ns == 0) s->died_ns = now;
    if (s->launch_term_ns == 0) s->launch_term_ns = now + BT_SUPERVISOR_LEAVE_NS;
}

void bt_supervisor_on_announcement(void *ctx, const char *line)
{
    supervisor *s   = ctx;
    uint64_t    now = bt_awake_ns();

    s->spoke_ns   = now;
    s->has_spoken = true;
    if (strcmp(line, "alive") == 0) return; /* which says nothing of its ranks */
    bt_supervisor_hear(s, now);
    if (strncmp(line, "control ", 8) == 0 && s->phase == STARTING) {
        s->phase = LOADING;
        if (!bt_child_running(&s->launch)) s->launch_at_ns = now; /* else they attach again */
        snprintf(s->control, sizeof(s->control), "%s", line + 8);
    } else if (strncmp(line, "http ", 5) == 0) {
        snprintf(s->http, sizeof(s->http), "%s", line + 5);
    } else if (strncmp(line, "progress ", 9) == 0) {
        on_progress(s, line + 9);
    } else if (strncmp(line, "ready ", 6) == 0 && s->phase == LOADING) {
        on_ready(s, line + 6);
    } else if (strncmp(line, "serving ", 8) == 0 && bt_supervisor_is_fresh(s, line + 8)) {
        bt_supervisor_fresh_serves(s);
    } else if (strncmp(line, "serving ", 8) == 0 && bt_supervisor_is_launch(s, line + 8) &&
               s->phase == LOADING && s->has_served) {
        on_serving(s);
    } else if (strncmp(line, "worn ", 5) == 0 && bt_supervisor_is_fresh(s, line + 5)) {
        s->fresh_worn = true;
    } else if (strncmp(line, "worn ", 5) == 0 && bt_supervisor_is_launch(s, line + 5)) {
        bt_supervisor_renew(s);
    } else if (strncmp(line, "lost ", 5) == 0 && bt_supervisor_is_fresh(s, line + 5)) {
        if (s->fresh_term_ns == 0) s->fresh_term_ns = now + BT_SUPERVISOR_LEAVE_NS;
    } else if (strncmp(line, "lost ", 5) == 0 && bt_supervisor_is_launch(s, line + 5)) {
        /* Else said late, of the ranks before these: a coordinator that stood still hears of their
         * end after we do. */
        if (s->launch_heard) on_lost(s, now);
    } else if (strncmp(line, "failed ", 7) == 0 && !bt_supervisor_ended_ranks(s) &&
               !bt_supervisor_may_restart(s)) {
        bt_supervisor_fail(s, "coordinator: %s", line + 7);
    }
}

/* Said by the rank's parent, or by the launcher when mpirun hangs and passes nothing on. */
static bool tells_of_failure(const char *line)
{
    return (strstr(line, "launch/rank.c:") != NULL &&
            (strstr(line, "was ended by signal") != NULL ||
             strstr(line, "with exit code") != NULL)) ||
           (strstr(line, "launch/main.c:") != NULL && strstr(line, "ranks have failed") != NULL);
}

void bt_supervisor_on_rank_line(void *ctx, const char *line)
{
    supervisor *s = ctx;

    bt_supervisor_hear(s, bt_awake_ns());
    bt_account_read(line, bt_cell_n_ranks(&s->opt->cell), s->accounts);
    bt_echo_line(&s->echo, line);
    /* A rank that dies while MPI starts leaves the others waiting, if they survive deaths. */
    if (s->opt->cell.replace && s->phase == LOADING && !s->launch_has_served &&
        s->launch_term_ns == 0 && tells_of_failure(line)) {
        s->rank_failed    = true;
        s->launch_term_ns = bt_awake_ns();
    }
    if (s->opt->join != NULL && strstr(line, "told to leave: the cell has failed: ") != NULL) {
        s->lost = true;
        on_lost(s, bt_awake_ns());
    }
    if (s->opt->join != NULL && s->phase == LOADING && strstr(line, " ready: rank ") != NULL &&
        ++s->n_ready == bt_cell_n_ranks(&s->cell))
        on_joined(s);
}

void bt_supervisor_on_fresh_line(void *ctx, const char *line)
{
    supervisor *s = ctx;

    bt_supervisor_hear(s, bt_awake_ns());
    bt_echo_line(&s->echo, line);
}
