/* model/reference_mtp.c - the layer for multi-token prediction, and a draft chained to its own. */
#include <string.h>

#include "core/alloc.h"
#include "model/reference_parts.h"

/* joined[row] = eh_proj [ enorm(embed(tokens[row])) | hnorm(hidden[row]) ] */
static bt_status join(bt_reference *r, size_t rows, const uint32_t *tokens, const float *hidden,
                      float *joined)
{
    uint32_t  layer = r->cfg->n_layers, h = r->cfg->hidden;
    float     eps   = r->cfg->rms_norm_eps;
    float    *token = bt_calloc(rows * h, sizeof(*token));
    float    *state = bt_calloc(rows * h, sizeof(*state));
    float    *both  = bt_calloc(rows * 2 * h, sizeof(*both));
    bt_status st    = BT_OK;

    BT_REQUIRE(token != NULL && state != NULL && both != NULL, BT_ERR_NO_MEMORY, "reference: join");
    BT_TRY(bt_ref_embed(r, rows, tokens, token));
    BT_TRY(bt_ref_norm(r, rows, h, token, h, eps, token, bt_ref_name(r, layer, "enorm.weight")));
    BT_TRY(bt_ref_norm(r, rows, h, hidden, h, eps, state, bt_ref_name(r, layer, "hnorm.weight")));
    for (size_t p = 0; p < rows; p++) {
        memcpy(both + 2 * p * h, token + p * h, h * sizeof(*both));
        memcpy(both + (2 * p + 1) * h, state + p * h, h * sizeof(*both));
    }
    BT_TRY(bt_ref_linear(r, rows, h, 2 * h, both, joined, bt_ref_name(r, layer, "eh_proj.weight")));
out:
    bt_free(token);
    bt_free(state);
    bt_free(both);
    return st;
}

/* normed = shared_head.norm of the layer's output for rows at the positions 0 .. rows-1. */
static bt_status run_rows(bt_reference *r, uint32_t rows, const float *joined, float *normed)
{
    uint32_t  layer = r->cfg->n_layers, h = r->cfg->hidden;
    bt_status st = BT_OK;

    r->t = rows;
    memcpy(r->h, joined, (size_t)rows * h * sizeof(*joined));
    BT_TRY(bt_ref_layer(r, layer, 0));
    BT_TRY(bt_ref_norm(r, rows, h, r->h, h, r->cfg->rms_norm_eps, normed,
                       bt_ref_name(r, layer, "shared_head.norm.weight")));
out:
    return st;
}

/* first[rows]: the joined rows of the first drafts, of which normed[rows] came. */
static bt_status chain(bt_reference *r, const bt_reference_run *asked, uint32_t rows,
                       const float *first, const float *normed)
{
    size_t    h = r->cfg->hidden, vocab = r->cfg->vocab_size;
    float    *again = bt_calloc(rows * h, sizeof(*again));
    float    *last  = bt_calloc(rows * h, sizeof(*last));
    float    *all   = bt_calloc(rows * h, sizeof(*all));
    bt_status st    = BT_OK;

    BT_REQUIRE(again != NULL && last != NULL && all != NULL, BT_ERR_NO_MEMORY, "reference: chain");
    BT_TRY(join(r, rows - 1, asked->tokens + 2, normed, again));
    for (uint32_t n = 0; n < asked->n_chained_rows; n++) {
        uint32_t row = rows - 1 - asked->n_chained_rows + n;

        memcpy(all, first, (row + 1) * h * sizeof(*all));
        memcpy(all + (row + 1) * h, again + row * h, h * sizeof(*all));
        BT_TRY(run_rows(r, row + 2, all, last));
        BT_TRY(bt_ref_linear(r, 1, (uint32_t)vocab, (uint32_t)h, last + (row + 1) * h,
                             asked->chained + n * vocab, bt_ref_head_name(r)));
    }
out:
    bt_free(again);
    bt_free(last);
    bt_free(all);
    return st;
}

bt_status bt_ref_mtp(const bt_reference *model)
{
    const bt_reference_run *asked  = model->run;
    bt_reference_run        alone  = {.experts = asked->mtp_experts};
    bt_reference            r      = *model;
    uint32_t                rows   = model->t - 1;
    size_t                  h      = model->cfg->hidden;
    float                  *first  = bt_calloc((size_t)model->t * h, sizeof(*first));
    float                  *normed = bt_calloc((size_t)model->t * h, sizeof(*normed));
    bt_status               st     = BT_OK;

    BT_REQUIRE(first != NULL && normed != NULL, BT_ERR_NO_MEMORY, "reference: %u drafts", rows);
    r.run = &alone;
    BT_TRY(join(&r, rows, asked->tokens + 1, model->normed, first));
    BT_TRY(run_rows(&r, rows, first, normed));
    BT_TRY(bt_ref_linear(&r, asked->n_mtp_rows, model->cfg->vocab_size, model->cfg->hidden,
                         normed + (rows - asked->n_mtp_rows) * h, asked->mtp_logits,
                         bt_ref_head_name(&r)));
    alone.experts = NULL;
    if (asked->chained != NULL) BT_TRY(chain(&r, asked, rows, first, normed));
out:
    bt_free(first);
    bt_free(normed);
    return st;
}
