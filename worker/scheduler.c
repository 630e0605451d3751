#include "worker/scheduler.h"

#include <string.h>

#include "core/minmax.h"

/* Rows that a decoding request would bring. */
static uint32_t wanted(const bt_scheduler *s, const bt_request *r)
{
    uint32_t n;

    if (r->state != BT_REQUEST_DECODE) return 0;
    n = bt_request_n_ready(r) - r->step_end;
    return bt_min_u32(s->chunk,
                      r->n_behind > 0 ? n - 1 : n); /* from the last one a token is drawn */
}

/* Prompt rows that the request still needs; 0 when it is not a prompt. */
static uint32_t rest_of(const bt_request *r)
{
    return r->state == BT_REQUEST_PREFILL ? r->n_prompt - r->n_computed : 0;
}

/* That of its next prompt row. */
static bt_role prompt_role(const bt_request *r)
{
    return bt_form_map_fixes(&r->map, r->n_computed) ? bt_form_map_role(&r->map, r->n_computed)
                                                     : BT_ROLE_PROMPT;
}

static bool same_key(const bt_prefix_key *a, const bt_prefix_key *b)
{
    return a->lo == b->lo && a->hi == b->hi;
}

/* Whether a piece of the step is in the prompt's next page, for a request with an equal prefix that
 * was computed alike: the page will be in the cache.  How a replay's is to be computed may differ.
 */
static bool comes_from_another(const bt_request *r, const bt_piece *pieces, uint32_t n)
{
    uint32_t at = r->n_computed / BT_PAGE_TOKENS, end = (at + 1) * BT_PAGE_TOKENS;

    if (r->n_computed != r->n_kept * BT_PAGE_TOKENS || at >= r->n_keys || end >= r->n_prompt ||
        r->map.n_fixed > r->n_computed)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const bt_request *q = pieces[i].request;

        if (q->n_computed / BT_PAGE_TOKENS == at && at < q->n_keys &&
            same_key(&q->keys[at], &r->keys[at]) && same_key(&q->before, &r->before))
            return true;
    }
    return false;
}

/* A prompt of which rows have gone to its decode rank, where a lease runs. */
static bool has_begun(const bt_request *r) { return r->out.moved_ns != 0; }

/* One more piece, of at least a row. */
static uint32_t add_piece(const bt_scheduler *s, bt_request *r, uint32_t *budget, bt_piece *pieces,
                          uint32_t n)
{
    uint32_t piece = bt_min_u32(bt_min_u32(s->chunk, rest_of(r)), *budget);

    piece        = bt_form_map_run(&r->map, r->n_computed, piece);
    pieces[n]    = (bt_piece){r, prompt_role(r), r->n_computed, piece, 0, false};
    r->has_piece = true;
    *budget -= piece;
    return n + 1;
}

/* Adds prompts that end with a piece, those that have begun first, else in the table's order, as
 * far as the budget goes. */
static uint32_t add_short(const bt_scheduler *s, const bt_requests *t, uint32_t *budget,
                          bt_piece *pieces, uint32_t n)
{
    for (int begun = 1; begun >= 0; begun--) {
        for (uint32_t i = 0; *budget > 0 && i < t->n; i++) {
            bt_request *r    = t->at[i];
            uint32_t    rest = rest_of(r);

            if (rest == 0 || rest > s->chunk || has_begun(r) != begun) continue;
            if (rest > *budget && n > 0) return n;
            n = add_piece(s, r, budget, pieces, n);
        }
    }
    return n;
}

/* Of those that do not end with a piece, and have none yet, the one whose hand-off has stood still
 * longest, or where none has begun, the oldest; NULL: there is none. */
static bt_request *next_long(const bt_scheduler *s, const bt_requests *t, const bt_piece *pieces,
                             uint32_t n)
{
    bt_request *next = NULL;

    for (uint32_t i = 0; i < t->n; i++) {
        bt_request *r = t->at[i];

        if (r->has_piece || rest_of(r) <= s->chunk) continue;
        if (next != NULL &&
            (!has_begun(r) || (has_begun(next) && r->out.moved_ns >= next->out.moved_ns)))
            continue;
        if (!comes_from_another(r, pieces, n)) next = r;
    }
    return next;
}

/* Adds prompts that do not end with a piece, as far as the budget goes: where others leave room for
 * some of them only, all that have begun go on by turns. */
static uint32_t add_long(const bt_scheduler *s, const bt_requests *t, uint32_t *budget,
                         bt_piece *pieces, uint32_t n)
{
    bt_request *r;

    while (*budget > 0 && (r = next_long(s, t, pieces, n)) != NULL) {
        if (s->chunk > *budget && n > 0) break;
        n = add_piece(s, r, budget, pieces, n);
    }
    return n;
}

/* Short prompts come first, but no two steps in a row pass over a long one that waits. */
static uint32_t add_prompts(bt_scheduler *s, const bt_requests *t, uint32_t budget,
                            bt_piece *pieces)
{
    uint32_t    n     = 0;
    bool        waits = false, served = false;
    bt_request *turn = s->long_turn ? next_long(s, t, pieces, 0) : NULL;

    if (turn != NULL && budget > 0) n = add_piece(s, turn, &budget, pieces, n);
    n = add_short(s, t, &budget, pieces, n);
    n = add_long(s, t, &budget, pieces, n);
    for (uint32_t i = 0; i < n; i++)
        served = served || rest_of(pieces[i].request) > s->chunk;
    for (uint32_t i = 0; i < t->n; i++)
        waits = waits || rest_of(t->at[i]) > s->chunk;
    s->long_turn = waits && !served;
    return n;
}

static uint32_t add_generated(bt_scheduler *s, const bt_requests *t, uint32_t budget,
                              bt_piece *pieces)
{
    uint32_t n = 0, first = t->n == 0 ? 0 : s->turn % t->n;

    for (uint32_t k = 0; k < t->n && budget > 0; k++) {
        uint32_t    i    = (first + k) % t->n;
        bt_request *r    = t->at[i];
        uint32_t    rows = bt_min_u32(wanted(s, r), budget);

        if (rows == 0) continue;
        pieces[n++] = (bt_piece){r, BT_ROLE_GENERATED, r->step_end, rows, 0, false};
        budget -= rows;
        if (budget == 0) s->turn = i + 1;
    }
    return n;
}

/* Tokens that a draft of the piece's request may have: its rows reach to where a token is drawn,
 * and behind that are positions in its pages and a last token that needs no row. */
static uint32_t draft_room(const bt_piece *p)
{
    const bt_request *r   = p->request;
    uint32_t          end = p->start + p->n_rows, room;

    if (bt_piece_is_prompt(p) || end != r->n_prompt + r->n_known) return 0;
    room = r->n_pages * BT_PAGE_TOKENS - end;
    return bt_min_u32(room, r->sampling.max_tokens - r->n_known - 1);
}

static uint32_t rows_left(uint32_t most, uint32_t n_rows)
{
    return most > n_rows ? most - n_rows : 0;
}

/* Into the piece's request, behind the n_rows of the step so far. */
static void choose_draft(const bt_scheduler *s, bt_piece *p, uint32_t n_rows)
{
    bt_request *r    = p->request;
    uint32_t    room = draft_room(p), looked_up[BT_DRAFT_MAX], n;

    if (r->mtp_at == p->start + p->n_rows)
        p->n_draft = bt_min_u32(r->n_mtp, bt_min_u32(room, rows_left(s->mtp_rows, n_rows)));
    room         = bt_min_u32(room, rows_left(s->draft_rows, n_rows));
    n            = bt_drafter_draft(&r->drafter, bt_min_u32(room, s->speculate), looked_up);
    p->looked_up = n > p->n_draft && (p->n_draft == 0 || looked_up[0] == r->draft[0]);
    if (!p->looked_up) return;
    p->n_draft = n;
    memcpy(r->draft, looked_up, n * sizeof(*looked_up));
}

static void add_drafts(bt_scheduler *s, bt_piece *pieces, uint32_t n)
{
    uint32_t n_rows = 0, first = s->draft_turn++;

    for (uint32_t i = 0; i < n; i++)
        n_rows += pieces[i].n_rows;
    for (uint32_t i = 0; i < n; i++) {
        bt_piece *p = &pieces[(first + i) % n];

        choose_draft(s, p, n_rows);
        p->n_rows += p->n_draft;
        n_rows += p->n_draft;
    }
}

/* Puts rows of role prompt first and keeps the order otherwise: a prompt that hit pages of
 * generated tokens may have rows of the other role. */
static void sort_roles(bt_piece *pieces, uint32_t n)
{
    uint32_t n_prompt = 0;

    for (uint32_t i = 0; i < n; i++) {
        bt_piece p = pieces[i];

        if (p.role != BT_ROLE_PROMPT) continue;
        memmove(pieces + n_prompt + 1, pieces + n_prompt, (i - n_prompt) * sizeof(p));
        pieces[n_prompt++] = p;
    }
}

uint32_t bt_schedule(bt_scheduler *s, const bt_requests *t, bt_piece *pieces_out,
                     uint32_t rows_out[BT_N_ROLES])
{
    uint32_t prompt = 0, generated = 0, keep, n;

    for (uint32_t i = 0; i < t->n; i++) {
        prompt              = bt_min_u32(s->max_rows, prompt + rest_of(t->at[i]));
        generated           = bt_min_u32(s->max_rows, generated + wanted(s, t->at[i]));
        t->at[i]->has_piece = false;
    }
    keep = bt_min_u32(prompt, (s->max_rows + 3) / 4);
    if (s->max_rows == 1 && generated > 0) {
        keep            = s->prompts_turn ? keep : 0;
        s->prompts_turn = !s->prompts_turn;
    }
    if (generated > s->max_rows - keep) generated = s->max_rows - keep;

    n = add_prompts(s, t, s->max_rows - generated, pieces_out);
    n += add_generated(s, t, generated, pieces_out + n);
    if (s->speculate > 0 || s->mtp_rows > 0) add_drafts(s, pieces_out, n);
    sort_roles(pieces_out, n);
    rows_out[BT_ROLE_PROMPT] = rows_out[BT_ROLE_GENERATED] = 0;
    for (uint32_t i = 0; i < n; i++)
        rows_out[pieces_out[i].role] += pieces_out[i].n_rows;
    return n;
}
