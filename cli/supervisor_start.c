/* The processes that the supervisor starts, and their command lines. */
#include <stdio.h>
#include <string.h>

#include "cli/supervisor_state.h"
#include "core/alloc.h"
#include "core/defaults.h"

bt_status bt_supervisor_start_coordinator(supervisor *s)
{
    bt_status             st  = BT_OK;
    const bt_run_options *opt = s->opt;
    char                  path[PATH_MAX], port[16];
    char                 *argv[24 + BT_PASSED_ON] = {0};
    size_t                n                       = 0;

    BT_TRY(bt_program_path("baton-coordinator", path));
    snprintf(port, sizeof(port), "%u", s->port);
    bt_add_word(argv, &n, path);
    bt_add_flag(argv, &n, "--model", opt->cell.model);
    bt_add_flag(argv, &n, "--port", port);
    /* Ranks look for it where it was. */
    bt_add_flag(argv, &n, "--control", s->control[0] != '\0' ? s->control : opt->control);
    bt_add_flag(argv, &n, "--on-death",
                opt->cell.replace    ? "replace"
                : opt->restarts != 0 ? "restart"
                                     : "stop");
    if (opt->cell.replace && opt->restarts != 0) /* a cell with too few ranks comes again */
        bt_add_flag(argv, &n, "--cell-wait-s", BT_TEXT(BT_DEFAULT_CELL_WAIT_S));
    for (uint32_t i = 0; i < opt->server.given.n; i++)
        bt_add_word(argv, &n, opt->server.given.args[i]);
    if (s->http[0] != '\0') /* started again: not at another free one */
        bt_add_flag(argv, &n, "--http-port", strrchr(s->http, ':') + 1);
    if (opt->cell.verbose) bt_add_word(argv, &n, "--verbose");
    bt_add_flag(argv, &n, "--announce-fd", "@report");
    st = bt_child_spawn(&(bt_child_spec){.name = "coordinator", .argv = argv, .reports = true},
                        &s->coordinator);
out:
    return st;
}

static bt_status start_cell(const bt_cell_options *cell, const char *control, bt_child *child)
{
    bt_status st   = BT_OK;
    char    **argv = NULL;

    BT_TRY(bt_cell_launch_argv(cell, control, &argv));
    st = bt_child_spawn(&(bt_child_spec){.name = "baton-launch", .argv = argv}, child);
out:
    bt_free(argv);
    return st;
}

bt_status bt_supervisor_start_ranks(supervisor *s)
{
    snprintf(s->launch_name, sizeof(s->launch_name), "%s",
             s->cell.name != NULL ? s->cell.name : "");
    s->launch_has_served   = false;
    s->launch_drains       = false;
    s->launch_heard        = false;
    s->rank_failed         = false;
    s->lost                = false;
    s->echo.first_error[0] = '\0'; /* of those before */
    return start_cell(&s->cell, s->control, &s->launch);
}

bt_status bt_supervisor_start_fresh(supervisor *s)
{
    bt_cell_options cell = s->cell;

    bt_cell_rename(&cell, s->fresh_name);
    return start_cell(&cell, s->control, &s->fresh);
}

/* The client shares our terminal: its output is the user's. */
bt_status bt_supervisor_start_client(supervisor *s)
{
    bt_status st = BT_OK;
    char      path[PATH_MAX];
    char     *argv[12 + BT_PASSED_ON] = {0};
    size_t    n                       = 0;

    BT_TRY(bt_program_path("baton-chat", path));
    bt_add_word(argv, &n, path);
    bt_add_flag(argv, &n, "--address", s->address);
    bt_add_flag(argv, &n, "--model", s->opt->cell.model);
    bt_add_flag(argv, &n, "--max-tokens", s->opt->max_tokens);
    bt_add_flag(argv, &n, "--message", s->opt->chat);
    for (uint32_t i = 0; i < s->opt->client.n; i++)
        bt_add_word(argv, &n, s->opt->client.args[i]);
    st = bt_child_spawn(&(bt_child_spec){.name = "chat", .argv = argv, .in_front = true},
                        &s->client);
out:
    return st;
}
