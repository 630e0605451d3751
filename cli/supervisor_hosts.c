/* The hosts of a cell over several machines.  Before ranks are started again each host is asked
 * whether it answers and reaches the control port (`baton check --quick`).  One that does not is
 * left out of that start, or the start would hang until --stall-s; spares take the seats of its
 * ranks. It is asked again while the cell serves without it, and used again by the next start.
 * Where no start is possible without it, each question gives it more time to answer.
 *
 * The first start uses all hosts, and asks only when it stands still: why one does not answer is
 * said at once, not after --stall-s. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/places.h"
#include "cli/supervisor_state.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/minmax.h"

#define ASK_S    5 /* for a host to answer; all are asked at once */
#define MOST_S   60
#define OVER_NS  (3 * BT_NS_PER_S) /* so long after that the one who asks is ended */
#define FRESH_NS (2 * BT_NS_PER_S) /* so long an answer counts */
#define AHEAD_NS BT_NS_PER_S       /* a question is asked so long before the start */
#define AGAIN_NS (2 * BT_NS_PER_S) /* between questions while no start is possible */
#define BACK_NS  (5 * BT_NS_PER_S) /* between questions to those that are left out */
#define STILL_NS (8 * BT_NS_PER_S) /* so long the first start may say nothing */

static bt_cell_host *find_host(const bt_cell_hosts *h, const char *name)
{
    for (uint32_t i = 0; i < h->n; i++)
        if (strcmp(h->at[i].name, name) == 0) return &h->at[i];
    return NULL;
}

/* One that has come into the file since the start has not been asked: it is used. */
static bool is_silent(const void *hosts, const char *name)
{
    const bt_cell_host *host = find_host(hosts, name);

    return host != NULL && !host->answers;
}

bt_status bt_supervisor_find_hosts(supervisor *s)
{
    bt_status      st = BT_OK;
    bt_cell_hosts *h  = &s->hosts;

    s->cell = s->opt->cell;
    BT_TRY(bt_places_read(&s->opt->cell, &h->places));
    h->at = bt_calloc(h->places.n_ranks + 1, sizeof(*h->at));
    BT_REQUIRE(h->at != NULL, BT_ERR_NO_MEMORY, "the hosts of %u ranks", h->places.n_ranks);
    for (uint32_t i = 0; i < h->places.n_ranks; i++)
        if (find_host(h, h->places.ranks[i].host) == NULL)
            h->at[h->n++] = (bt_cell_host){.name = h->places.ranks[i].host, .answers = true};
    if (h->n == 0) return BT_OK;
    h->map_fd = memfd_create("ranks.map", MFD_CLOEXEC); /* gone with this process */
    BT_REQUIRE(h->map_fd >= 0, BT_ERR_IO, "a rank map in memory");
    snprintf(h->map_path, sizeof(h->map_path), "/proc/%d/fd/%d", (int)getpid(), h->map_fd);
out:
    return st;
}

void bt_supervisor_forget_hosts(supervisor *s)
{
    if (s->hosts.map_fd >= 0) close(s->hosts.map_fd);
    bt_child_close(&s->asker);
    bt_rank_map_fini(&s->hosts.places);
    bt_free(s->hosts.at);
}

/* ---- asking */

/* The names, all of them or those that are left out, between commas. */
static void list_names(const bt_cell_hosts *h, bool all, char *buf, size_t capacity)
{
    size_t n = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < h->n && n < capacity; i++)
        if (all || !h->at[i].answers)
            n += (size_t)snprintf(buf + n, capacity - n, "%s%s", n > 0 ? "," : "", h->at[i].name);
}

static bt_status ask(supervisor *s, bool all, uint64_t now_ns)
{
    static char names[1 << 16];
    bt_status   st = BT_OK;
    char        path[PATH_MAX], limit[16], *argv[16] = {0};
    size_t      n = 0;

    s->hosts.limit_s = s->hosts.waits ? bt_min_u32(2 * s->hosts.limit_s, MOST_S) : ASK_S;
    snprintf(limit, sizeof(limit), "%u", s->hosts.limit_s);
    list_names(&s->hosts, all, names, sizeof(names));
    for (uint32_t i = 0; i < s->hosts.n; i++) {
        s->hosts.at[i].asked = all || !s->hosts.at[i].answers;
        s->hosts.at[i].heard = false;
        snprintf(s->hosts.at[i].why, sizeof(s->hosts.at[i].why), "nobody could ask it");
    }
    BT_TRY(bt_program_path("baton-check", path));
    bt_add_word(argv, &n, "/bin/sh");
    bt_add_flag(argv, &n, "-c", "exec \"$0\" \"$@\" >&2"); /* where we read */
    bt_add_word(argv, &n, path);
    bt_add_word(argv, &n, "--quick");
    bt_add_flag(argv, &n, "--node-timeout-s", limit);
    bt_add_flag(argv, &n, "--control", s->control);
    bt_add_flag(argv, &n, "--hosts", names);
    s->hosts.asked_ns = now_ns;
    st = bt_child_spawn(&(bt_child_spec){.name = "baton-check", .argv = argv}, &s->asker);
out:
    return st;
}

/* "n1           ok", "n2           WRONG  it does not answer: ..." */
void bt_supervisor_host_line(void *supervisor_, const char *line)
{
    supervisor   *s = supervisor_;
    char          name[256], word[8];
    int           at = 0;
    bt_cell_host *host;

    if (sscanf(line, "%255s %7s %n", name, word, &at) != 2) return;
    host = find_host(&s->hosts, name);
    if (host == NULL) return;
    if (strcmp(word, "ok") == 0)
        host->heard = true;
    else if (strcmp(word, "WRONG") == 0)
        snprintf(host->why, sizeof(host->why), "%.*s", (int)sizeof(host->why) - 1, line + at);
}

/* Of the first start, which goes on: what keeps it may be something else. */
static void tell_silent_hosts(const bt_cell_hosts *h)
{
    for (uint32_t i = 0; i < h->n; i++)
        if (!h->at[i].heard) BT_WARN("the start waits: host %s: %s", h->at[i].name, h->at[i].why);
}

void bt_supervisor_hosts_asked(supervisor *s)
{
    bool back = false;

    bt_child_close(&s->asker);
    if (!s->has_served) {
        tell_silent_hosts(&s->hosts);
        return;
    }
    for (uint32_t i = 0; i < s->hosts.n; i++) {
        bt_cell_host *host = &s->hosts.at[i];

        if (!host->asked) continue;
        if (host->answers && !host->heard)
            BT_WARN("host %s is left out: %s", host->name, host->why);
        if (!host->answers && host->heard) {
            BT_WARN("host %s answers again: the next start uses it", host->name);
            back = true;
        }
        host->answers = host->heard;
    }
    s->hosts.answered_ns = bt_awake_ns();
    if (back && s->phase == SERVING) bt_supervisor_renew(s);
}

/* ---- what can be started */

/* Plans the cell without the silent hosts.  *possible_out: every role has a rank. */
static bt_status plan(supervisor *s, bool *possible_out)
{
    bt_status      st  = BT_OK;
    bt_cell_hosts *h   = &s->hosts;
    bt_rank_map    map = {0};

    s->cell = s->opt->cell;
    list_names(h, false, h->left_out, sizeof(h->left_out));
    *possible_out = true;
    if (h->left_out[0] == '\0') goto out;
    BT_TRY(bt_places_read(&s->opt->cell, &map));
    *possible_out = bt_places_leave_out(&map, is_silent, h);
    if (!*possible_out) goto out;
    BT_TRY(bt_places_write(&map, h->map_fd));
    bt_cell_place(&s->cell, &map, h->map_path, h->left_out);
    BT_WARN("started without %s: %u prefill, %u decode, %u both, %u spare", h->left_out,
            s->cell.n_prefill, s->cell.n_decode, s->cell.n_both, s->cell.n_spares);
out:
    bt_rank_map_fini(&map);
    return st;
}

bt_status bt_supervisor_choose_hosts(supervisor *s, uint64_t *at_ns, uint64_t now_ns, bool *now_out)
{
    bt_status      st       = BT_OK;
    bt_cell_hosts *h        = &s->hosts;
    bool           possible = true;

    *now_out = now_ns >= *at_ns;
    if (h->n == 0 || !s->has_served || now_ns + AHEAD_NS < *at_ns) goto out;
    if (bt_child_running(&s->asker) || h->answered_ns == 0 || now_ns - h->answered_ns > FRESH_NS) {
        s->heard_ns = now_ns; /* an answer has its own deadline */
        *now_out    = false;
        if (!bt_child_running(&s->asker)) st = ask(s, true, now_ns);
        goto out;
    }
    if (!*now_out) goto out;
    h->answered_ns = 0; /* the next start asks again */
    BT_TRY(plan(s, &possible));
    if (!possible && !h->waits)
        BT_WARN("without %s a role has no rank: waiting for an answer", h->left_out);
    h->waits = !possible;
    if (possible) goto out;
    *now_out = false;
    *at_ns   = now_ns + AGAIN_NS;
out:
    return st;
}

bool bt_supervisor_silent_host(const supervisor *s, char *buf, size_t capacity)
{
    const bt_cell_hosts *h = &s->hosts;

    if (bt_child_running(&s->asker)) return false;
    for (uint32_t i = 0; i < h->n; i++) {
        if (!h->at[i].asked || h->at[i].heard) continue;
        snprintf(buf, capacity, "host %s: %s", h->at[i].name, h->at[i].why);
        return true;
    }
    return false;
}

void bt_supervisor_watch_hosts(supervisor *s, uint64_t now_ns)
{
    bool silent = false;

    if (bt_child_running(&s->asker)) {
        if (now_ns - s->hosts.asked_ns > s->hosts.limit_s * BT_NS_PER_S + OVER_NS)
            bt_child_kill(&s->asker, SIGKILL);
        return;
    }
    if (s->hosts.n > 0 && s->hosts.asked_ns == 0 && !s->has_served && s->phase == LOADING &&
        now_ns > s->heard_ns + STILL_NS && ask(s, true, now_ns) != BT_OK)
        s->hosts.asked_ns = now_ns;
    for (uint32_t i = 0; i < s->hosts.n; i++)
        silent = silent || !s->hosts.at[i].answers;
    if (silent && s->phase == SERVING && !s->draining && now_ns - s->hosts.asked_ns >= BACK_NS &&
        ask(s, false, now_ns) != BT_OK)
        s->hosts.asked_ns = now_ns;
}
