#include "worker/scheduler.h"

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Rows that a decoding request would bring. */
static uint32_t wanted(const bt_scheduler *s, const bt_request *r)
{
    if (r->state != BT_REQUEST_DECODE) return 0;
    return r->eval ? least(s->chunk, r->n_prompt + r->n_eval - r->n_computed) : 1;
}

static uint32_t add_prompts(const bt_scheduler *s, const bt_requests *t, uint32_t budget,
                            bt_piece *pieces)
{
    uint32_t n = 0, piece;

    for (uint32_t i = 0; i < t->n && budget > 0; i++) {
        bt_request *r = t->at[i];

        if (r->state != BT_REQUEST_PREFILL) continue;
        piece = least(s->chunk, r->n_prompt - r->n_computed);
        if (piece > budget && n > 0) break;
        piece       = least(piece, budget);
        pieces[n++] = (bt_piece){r, BT_ROLE_PROMPT, r->n_computed, piece};
        budget -= piece;
    }
    return n;
}

static uint32_t add_generated(bt_scheduler *s, const bt_requests *t, uint32_t budget,
                              bt_piece *pieces)
{
    uint32_t n = 0, first = t->n == 0 ? 0 : s->turn % t->n;

    for (uint32_t k = 0; k < t->n && budget > 0; k++) {
        uint32_t    i    = (first + k) % t->n;
        bt_request *r    = t->at[i];
        uint32_t    rows = least(wanted(s, r), budget);

        if (rows == 0) continue;
        pieces[n++] = (bt_piece){r, BT_ROLE_GENERATED, r->n_computed, rows};
        budget -= rows;
        if (budget == 0) s->turn = i + 1;
    }
    return n;
}

uint32_t bt_schedule(bt_scheduler *s, const bt_requests *t, bt_piece *pieces_out,
                     uint32_t rows_out[BT_N_ROLES])
{
    uint32_t prompt = 0, generated = 0, keep, n;

    for (uint32_t i = 0; i < t->n; i++) {
        if (t->at[i]->state == BT_REQUEST_PREFILL)
            prompt = least(s->max_rows, prompt + t->at[i]->n_prompt - t->at[i]->n_computed);
        generated = least(s->max_rows, generated + wanted(s, t->at[i]));
    }
    keep = least(prompt, (s->max_rows + 3) / 4);
    if (s->max_rows == 1 && generated > 0) {
        keep            = s->prompts_turn ? keep : 0;
        s->prompts_turn = !s->prompts_turn;
    }
    if (generated > s->max_rows - keep) generated = s->max_rows - keep;

    n = add_prompts(s, t, s->max_rows - generated, pieces_out);
    n += add_generated(s, t, generated, pieces_out + n);
    rows_out[BT_ROLE_PROMPT] = rows_out[BT_ROLE_GENERATED] = 0;
    for (uint32_t i = 0; i < n; i++)
        rows_out[pieces_out[i].role] += pieces_out[i].n_rows;
    return n;
}
