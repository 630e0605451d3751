#include "cli/account.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"

enum { LINE_BYTES = 512 };

/* "2026-11-23 11:02:09.001 I rank=2 - worker/step.c:302 account: 25 steps; computed ..." */
void bt_account_read(const char *line, uint32_t n_ranks, bt_account *accounts)
{
    const char        *who = strstr(line, " rank="), *text = strstr(line, " account: ");
    const char        *drafts = strstr(line, "; of ");
    bt_account         a      = {.known = true};
    unsigned long long rank;

    if (who == NULL || text == NULL || sscanf(who, " rank=%llu", &rank) != 1 || rank >= n_ranks) {
        return;
    }
    if (sscanf(text,
               " account: %llu steps; computed %llu prompt tokens and %llu generated tokens; "
               "handed over %llu pages, %llu bytes",
               &a.steps, &a.prompt_tokens, &a.generated_tokens, &a.pages, &a.bytes) == 5) {
        if (drafts == NULL ||
            sscanf(drafts, "; of %llu tokens of drafts %llu", &a.drafted, &a.right) != 2)
            a.drafted = a.right = 0;
        accounts[rank] = a;
    }
}

static const char *role_of(const bt_cell_options *cell, uint32_t rank)
{
    if (rank >= bt_cell_n_ranks(cell) - cell->n_spares) return "spare";
    if (cell->n_both != 0) return "both roles";
    return rank < cell->n_prefill ? "prefill" : "decode";
}

static const char *plural(unsigned long long n) { return n == 1 ? "" : "s"; }

/* Of any rank. */
static bool have_tokens(uint32_t n_ranks, const bt_account *accounts)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        const bt_account *a = &accounts[r];

        if (a->known && (a->prompt_tokens != 0 || a->generated_tokens != 0)) return true;
    }
    return false;
}

/* Adds to the line, of which *n bytes are there. */
BT_PRINTF(3, 4) static void add(char line[LINE_BYTES], size_t *n, const char *fmt, ...)
{
    va_list ap;
    int     more;

    va_start(ap, fmt);
    more = vsnprintf(line + *n, LINE_BYTES - *n, fmt, ap);
    va_end(ap);
    *n += more < (int)(LINE_BYTES - *n) ? (size_t)more : LINE_BYTES - *n - 1;
}

void bt_account_print(const bt_cell_options *cell, const bt_account *accounts)
{
    for (uint32_t r = 0; r < bt_cell_n_ranks(cell); r++) {
        const bt_account *a = &accounts[r];
        char              line[LINE_BYTES];
        size_t            n = 0;

        if (!a->known) continue;
        add(line, &n, "rank %u, %s: %llu step%s", r, role_of(cell, r), a->steps, plural(a->steps));
        if (a->prompt_tokens != 0)
            add(line, &n, ", %llu prompt token%s", a->prompt_tokens, plural(a->prompt_tokens));
        if (a->generated_tokens != 0) add(line, &n, ", %llu generated", a->generated_tokens);
        if (a->drafted != 0)
            add(line, &n, " (of %llu that were drafted %llu were right)", a->drafted, a->right);
        if (a->prompt_tokens == 0 && a->generated_tokens == 0)
            add(line, &n, "%s",
                a->steps != 0 && have_tokens(bt_cell_n_ranks(cell), accounts)
                    ? ", its experts for the others' tokens"
                    : ", no tokens");
        if (a->pages != 0)
            add(line, &n, ", %llu KV page%s (%llu bytes) handed over", a->pages, plural(a->pages),
                a->bytes);
        add(line, &n, "\n");
        bt_log_pass_on(line, n);
    }
}
