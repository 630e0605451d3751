#include "cli/progress.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

bt_status bt_progress_init(bt_progress *p, uint32_t n_ranks)
{
    bt_status st = BT_OK;

    *p       = (bt_progress){.n_ranks = n_ranks};
    p->ranks = bt_calloc(n_ranks, sizeof(*p->ranks));
    BT_REQUIRE(p->ranks != NULL, BT_ERR_NO_MEMORY, "%u ranks", n_ranks);
out:
    return st;
}

void bt_progress_fini(bt_progress *p)
{
    bt_free(p->ranks);
    *p = (bt_progress){0};
}

void bt_progress_reset(bt_progress *p) { memset(p->ranks, 0, p->n_ranks * sizeof(*p->ranks)); }

bool bt_progress_take(bt_progress *p, const char *text, uint64_t now_ns)
{
    unsigned long long rank, done, total;
    bt_rank_progress  *r;

    if (sscanf(text, "%llu %llu %llu", &rank, &done, &total) != 3 || rank >= p->n_ranks)
        return false;
    r              = &p->ranks[rank];
    r->done_bytes  = done < total ? done : total;
    r->total_bytes = total;
    if (r->first_ns == 0) {
        r->first_ns    = now_ns;
        r->first_bytes = r->done_bytes;
    }
    return true;
}

double bt_progress_part(const bt_progress *p)
{
    double parts = 0;

    for (uint32_t i = 0; i < p->n_ranks; i++)
        if (p->ranks[i].total_bytes != 0)
            parts += (double)p->ranks[i].done_bytes / (double)p->ranks[i].total_bytes;
    return parts / p->n_ranks;
}

/* Negative: it has not moved yet. */
static double left_s(const bt_rank_progress *r, uint64_t now_ns)
{
    double bytes = (double)(r->done_bytes - r->first_bytes);

    if (r->total_bytes != 0 && r->done_bytes == r->total_bytes) return 0;
    if (r->first_ns == 0 || bytes <= 0 || now_ns <= r->first_ns) return -1;
    return (double)(r->total_bytes - r->done_bytes) * (double)(now_ns - r->first_ns) * 1e-9 / bytes;
}

/* One that nobody can tell anything of is later than any other. */
static uint32_t last_rank(const bt_progress *p, uint64_t now_ns)
{
    uint32_t last = 0;

    for (uint32_t i = 1; i < p->n_ranks; i++) {
        double a = left_s(&p->ranks[last], now_ns), b = left_s(&p->ranks[i], now_ns);

        if (a >= 0 && (b < 0 || b > a)) last = i;
    }
    return last;
}

void bt_progress_last_rank(const bt_progress *p, uint64_t now_ns, char *buf, size_t capacity)
{
    uint32_t                i      = last_rank(p, now_ns);
    const bt_rank_progress *r      = &p->ranks[i];
    double                  left   = left_s(r, now_ns);
    bool                    large  = r->total_bytes >= 1 << 30;
    double                  unit   = large ? 1 << 30 : 1 << 20;
    int                     digits = large ? 2 : 0;
    char                    when[32];

    if (r->total_bytes == 0) {
        snprintf(buf, capacity, "rank %u: not begun", i);
        return;
    }
    if (left < 0)
        snprintf(when, sizeof(when), "no rate yet");
    else
        snprintf(when, sizeof(when), "%.0f s left", left);
    snprintf(buf, capacity, "rank %u: %.*f of %.*f %s, %s", i, digits, (double)r->done_bytes / unit,
             digits, (double)r->total_bytes / unit, large ? "GiB" : "MiB", when);
}
