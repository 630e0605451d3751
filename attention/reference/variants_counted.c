#include "attention/reference/variants_counted.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/alloc.h"

/* An array that knows which of its elements were touched. */
typedef struct {
    double  *v;
    size_t   n;
    uint8_t *read, *written;
    uint64_t n_read, n_written;
} tensor;

enum { Q_A, Q_A_NORM, Q, KV_A, KV_A_NORM, KV_B, O, N_WEIGHTS };

/* Per token t and head h:
 *     latents  [n_keys][c + dr]                      the latent cache
 *     keys     [n_keys][n_heads][dn + dr]            CD: the cache; CC: decompressed in the step
 *     values   [n_keys][n_heads][dv]                 the same
 *     joined   [n_keys][n_heads][c + dr]             A_CC
 *     merged_q [n_heads][c + dr][q_in], merged_o [hidden][n_heads][c]      AM_CC_ME */
typedef struct {
    bt_mla_config cfg;
    size_t        h, n, c, dn, dr, dv, width, q_in, n_keys;
    tensor        w[N_WEIGHTS], latents, keys, values, joined, merged_q, merged_o;
    double       *in, *query, *ql, *ol, *heads, *scores, *row;
    uint64_t      flops;
    bool          failed;
} state;

static double read_at(tensor *t, size_t i)
{
    t->n_read += !t->read[i];
    t->read[i] = 1;
    return t->v[i];
}

static void write_at(tensor *t, size_t i, double v)
{
    t->n_written += !t->written[i];
    t->written[i] = 1;
    t->v[i]       = v;
}

static double dot(state *s, tensor *t, size_t at, const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += read_at(t, at + i) * x[i];
    s->flops += 2 * n;
    return sum;
}

/* y += a t[at..] */
static void axpy(state *s, double a, tensor *t, size_t at, double *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * read_at(t, at + i);
    s->flops += 2 * n;
}

/* ---- memory ---- */

static void *take(state *s, size_t n, size_t size)
{
    void *mem = bt_calloc(n + 1, size);

    s->failed = s->failed || mem == NULL;
    return mem;
}

static tensor tensor_new(state *s, size_t n)
{
    return (tensor){
        .v = take(s, n, sizeof(double)), .n = n, .read = take(s, n, 1), .written = take(s, n, 1)};
}

static tensor tensor_of(state *s, const bt_bf16 *data, size_t n)
{
    tensor t = tensor_new(s, data == NULL ? 0 : n);

    for (size_t i = 0; data != NULL && t.v != NULL && i < n; i++)
        t.v[i] = bt_bf16_to_f32(data[i]);
    return t;
}

static void tensor_free(tensor *t)
{
    bt_free(t->v);
    bt_free(t->read);
    bt_free(t->written);
}

static void init(state *s, bt_variant_kind kind, const bt_study_weights *w, const bt_bf16 *x)
{
    size_t per_head = kind == BT_VARIANT_CD || kind == BT_VARIANT_CC ? s->n_keys * s->n : 0;

    s->w[Q_A]       = tensor_of(s, w->q_a, s->q_in * s->h);
    s->w[Q_A_NORM]  = tensor_of(s, w->q_a_norm, s->q_in);
    s->w[Q]         = tensor_of(s, w->q, s->n * s->width * s->q_in);
    s->w[KV_A]      = tensor_of(s, w->kv_a, (s->c + s->dr) * s->h);
    s->w[KV_A_NORM] = tensor_of(s, w->kv_a_norm, s->c);
    s->w[KV_B]      = tensor_of(s, w->kv_b, s->n * (s->dn + s->dv) * s->c);
    s->w[O]         = tensor_of(s, w->o, s->h * s->n * s->dv);
    s->latents      = tensor_new(s, s->n_keys * (s->c + s->dr));
    s->keys         = tensor_new(s, per_head * s->width);
    s->values       = tensor_new(s, per_head * s->dv);
    s->joined   = tensor_new(s, kind == BT_VARIANT_A_CC ? s->n_keys * s->n * (s->c + s->dr) : 0);
    s->merged_q = tensor_new(s, kind == BT_VARIANT_AM_CC_ME ? s->n * (s->c + s->dr) * s->q_in : 0);
    s->merged_o = tensor_new(s, kind == BT_VARIANT_AM_CC_ME ? s->h * s->n * s->c : 0);
    s->in       = take(s, s->h > s->q_in ? s->h : s->q_in, sizeof(double));
    s->query    = take(s, s->n * s->width, sizeof(double));
    s->ql       = take(s, s->n * s->c, sizeof(double));
    s->ol       = take(s, s->n * s->c, sizeof(double));
    s->heads    = take(s, s->n * s->dv, sizeof(double));
    s->scores   = take(s, s->n_keys, sizeof(double));
    s->row      = take(s, s->h + s->q_in + s->c + s->dr, sizeof(double));
    for (size_t i = 0; !s->failed && i < s->h; i++)
        s->in[i] = bt_bf16_to_f32(x[i]);
}

static void fini(state *s)
{
    for (int i = 0; i < N_WEIGHTS; i++)
        tensor_free(&s->w[i]);
    tensor_free(&s->latents);
    tensor_free(&s->keys);
    tensor_free(&s->values);
    tensor_free(&s->joined);
    tensor_free(&s->merged_q);
    tensor_free(&s->merged_o);
    bt_free(s->in);
    bt_free(s->query);
    bt_free(s->ql);
    bt_free(s->ol);
    bt_free(s->heads);
    bt_free(s->scores);
    bt_free(s->row);
}

/* ---- the parts of a step ---- */

static size_t uk_at(const state *s, size_t h) { return h * (s->dn + s->dv) * s->c; }
static size_t uv_at(const state *s, size_t h) { return uk_at(s, h) + s->dn * s->c; }

static void rms_norm(state *s, tensor *weight, double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] / sqrt(sum / (double)n + s->cfg.latent_eps) * read_at(weight, i);
}

static void turn(const state *s, double *x)
{
    for (size_t i = 0; i < s->dr / 2; i++) {
        double angle = (double)(s->n_keys - 1) * s->cfg.rope_inv_freq[i];
        double c = cos(angle) * s->cfg.rope_magnitude, sn = sin(angle) * s->cfg.rope_magnitude;
        double a = x[2 * i], b = x[2 * i + 1];

        x[2 * i]     = a * c - b * sn;
        x[2 * i + 1] = a * sn + b * c;
    }
}

/* The new token's row of the latent cache. */
static void compress(state *s)
{
    size_t width = s->c + s->dr, at = (s->n_keys - 1) * width;

    for (size_t i = 0; i < width; i++)
        s->row[i] = dot(s, &s->w[KV_A], i * s->h, s->in, s->h);
    rms_norm(s, &s->w[KV_A_NORM], s->row, s->c);
    turn(s, s->row + s->c);
    memcpy(s->latents.v + at, s->row, width * sizeof(double));
}

static void low_rank(state *s)
{
    if (s->cfg.q_lora_rank == 0) return;
    for (size_t i = 0; i < s->q_in; i++)
        s->row[i] = dot(s, &s->w[Q_A], i * s->h, s->in, s->h);
    rms_norm(s, &s->w[Q_A_NORM], s->row, s->q_in);
    memcpy(s->in, s->row, s->q_in * sizeof(double));
}

static void project_query(state *s)
{
    for (size_t i = 0; i < s->n * s->width; i++)
        s->query[i] = dot(s, &s->w[Q], i * s->q_in, s->in, s->q_in);
    for (size_t h = 0; h < s->n; h++)
        turn(s, s->query + h * s->width + s->dn);
}

static void softmax(const state *s)
{
    double max = -INFINITY, sum = 0;

    for (size_t j = 0; j < s->n_keys; j++)
        max = fmax(max, s->scores[j]);
    for (size_t j = 0; j < s->n_keys; j++)
        sum += s->scores[j] = exp(s->scores[j] - max);
    for (size_t j = 0; j < s->n_keys; j++)
        s->scores[j] /= sum;
}

/* Keys and values of token j from its latent.  `counts` when it happens in the step. */
static void decompress(state *s, size_t j, bool counts)
{
    uint64_t flops = s->flops;
    size_t   at    = j * (s->c + s->dr);

    for (size_t i = 0; i < s->c + s->dr; i++)
        s->row[i] = counts ? read_at(&s->latents, at + i) : s->latents.v[at + i];
    for (size_t h = 0; h < s->n; h++) {
        size_t k = (j * s->n + h) * s->width, v = (j * s->n + h) * s->dv;

        for (size_t d = 0; d < s->dn; d++)
            write_at(&s->keys, k + d, dot(s, &s->w[KV_B], uk_at(s, h) + d * s->c, s->row, s->c));
        for (size_t d = 0; d < s->dr; d++)
            write_at(&s->keys, k + s->dn + d, s->row[s->c + d]);
        for (size_t d = 0; d < s->dv; d++)
            write_at(&s->values, v + d, dot(s, &s->w[KV_B], uv_at(s, h) + d * s->c, s->row, s->c));
    }
    if (!counts) s->flops = flops;
}

static void attend_heads(state *s)
{
    for (size_t h = 0; h < s->n; h++) {
        for (size_t j = 0; j < s->n_keys; j++)
            s->scores[j] = s->cfg.softmax_scale * dot(s, &s->keys, (j * s->n + h) * s->width,
                                                      s->query + h * s->width, s->width);
        softmax(s);
        for (size_t j = 0; j < s->n_keys; j++)
            axpy(s, s->scores[j], &s->values, (j * s->n + h) * s->dv, s->heads + h * s->dv, s->dv);
    }
}

static void attend_latents(state *s, bool join)
{
    size_t width = s->c + s->dr;

    for (size_t h = 0; h < s->n; h++) {
        const double *qp = s->query + h * s->width + s->dn;

        for (size_t j = 0; j < s->n_keys; j++) {
            tensor *t  = join ? &s->joined : &s->latents;
            size_t  at = (join ? j * s->n + h : j) * width;

            for (size_t i = 0; join && i < width; i++)
                write_at(t, at + i, read_at(&s->latents, j * width + i));
            s->scores[j] = s->cfg.softmax_scale * (dot(s, t, at, s->ql + h * s->c, s->c) +
                                                   dot(s, t, at + s->c, qp, s->dr));
        }
        softmax(s);
        for (size_t j = 0; j < s->n_keys; j++)
            axpy(s, s->scores[j], &s->latents, j * width, s->ol + h * s->c, s->c);
    }
}

static void absorb_query(state *s)
{
    for (size_t h = 0; h < s->n; h++)
        for (size_t d = 0; d < s->dn; d++)
            axpy(s, s->query[h * s->width + d], &s->w[KV_B], uk_at(s, h) + d * s->c,
                 s->ql + h * s->c, s->c);
}

static void absorb_output(state *s)
{
    for (size_t h = 0; h < s->n; h++)
        for (size_t d = 0; d < s->dv; d++)
            s->heads[h * s->dv + d] =
                dot(s, &s->w[KV_B], uv_at(s, h) + d * s->c, s->ol + h * s->c, s->c);
}

/* Before the step, so not counted. */
static void merge(state *s)
{
    for (size_t h = 0; h < s->n; h++) {
        double *q = s->merged_q.v + h * (s->c + s->dr) * s->q_in;

        for (size_t i = 0; i < s->c; i++)
            for (size_t d = 0; d < s->dn; d++)
                for (size_t k = 0; k < s->q_in; k++)
                    q[i * s->q_in + k] += s->w[KV_B].v[uk_at(s, h) + d * s->c + i] *
                                          s->w[Q].v[(h * s->width + d) * s->q_in + k];
        memcpy(q + s->c * s->q_in, s->w[Q].v + (h * s->width + s->dn) * s->q_in,
               s->dr * s->q_in * sizeof(double));
        for (size_t o = 0; o < s->h; o++)
            for (size_t d = 0; d < s->dv; d++)
                for (size_t i = 0; i < s->c; i++)
                    s->merged_o.v[(o * s->n + h) * s->c + i] +=
                        s->w[O].v[(o * s->n + h) * s->dv + d] *
                        s->w[KV_B].v[uv_at(s, h) + d * s->c + i];
    }
}

static void merged_query(state *s)
{
    for (size_t h = 0; h < s->n; h++) {
        size_t  at = h * (s->c + s->dr);
        double *qp = s->query + h * s->width + s->dn;

        for (size_t i = 0; i < s->c; i++)
            s->ql[h * s->c + i] = dot(s, &s->merged_q, (at + i) * s->q_in, s->in, s->q_in);
        for (size_t i = 0; i < s->dr; i++)
            qp[i] = dot(s, &s->merged_q, (at + s->c + i) * s->q_in, s->in, s->q_in);
        turn(s, qp);
    }
}

static void step(state *s, bt_variant_kind kind, float *out)
{
    bool    merged = kind == BT_VARIANT_AM_CC_ME;
    tensor *o      = merged ? &s->merged_o : &s->w[O];
    double *x      = merged ? s->ol : s->heads;
    size_t  n      = s->n * (merged ? s->c : s->dv);

    compress(s);
    low_rank(s);
    if (merged)
        merged_query(s);
    else
        project_query(s);
    if (kind == BT_VARIANT_CD) decompress(s, s->n_keys - 1, true);
    if (kind == BT_VARIANT_CC)
        for (size_t j = 0; j < s->n_keys; j++)
            decompress(s, j, true);
    if (kind == BT_VARIANT_CD || kind == BT_VARIANT_CC) {
        attend_heads(s);
    } else {
        if (!merged) absorb_query(s);
        attend_latents(s, kind == BT_VARIANT_A_CC);
        if (!merged) absorb_output(s);
    }
    for (size_t i = 0; i < s->h; i++)
        out[i] = (float)dot(s, o, i * n, x, n);
}

static bt_variant_counts counts_of(const state *s, bt_variant_kind kind)
{
    bt_variant_counts c = {.flops = s->flops};
    const tensor     *k = &s->keys, *v = &s->values, *j = &s->joined;

    for (int i = 0; i < N_WEIGHTS; i++)
        c.weight_bytes += 2 * s->w[i].n_read;
    c.weight_bytes += 2 * (s->merged_q.n_read + s->merged_o.n_read);
    c.cache_bytes = 2 * (kind == BT_VARIANT_CD ? k->n_read + v->n_read : s->latents.n_read);
    c.moved_bytes = 2 * (j->n_read + j->n_written);
    if (kind == BT_VARIANT_CC)
        c.moved_bytes = 2 * (k->n_read + k->n_written + v->n_read + v->n_written);
    return c;
}

bt_status bt_variant_counted(bt_variant_kind kind, const bt_mla_config *cfg,
                             const bt_study_weights *w, uint32_t n_prefix, const bt_bf16 *rows,
                             const bt_bf16 *x, float *out, bt_variant_counts *counts_out)
{
    bt_status st = BT_OK;
    state     s  = {.cfg    = *cfg,
                    .h      = cfg->hidden,
                    .n      = cfg->n_heads,
                    .c      = cfg->kv_lora_rank,
                    .dn     = cfg->qk_nope_dim,
                    .dr     = cfg->qk_rope_dim,
                    .dv     = cfg->v_dim,
                    .width  = cfg->qk_nope_dim + cfg->qk_rope_dim,
                    .q_in   = cfg->q_lora_rank != 0 ? cfg->q_lora_rank : cfg->hidden,
                    .n_keys = (size_t)n_prefix + 1};

    init(&s, kind, w, x);
    BT_REQUIRE(!s.failed, BT_ERR_NO_MEMORY, "counted step of %s over %u tokens",
               bt_variant_name(kind), n_prefix);
    for (size_t i = 0; i < n_prefix * (s.c + s.dr); i++)
        s.latents.v[i] = bt_bf16_to_f32(rows[i]);
    if (kind == BT_VARIANT_AM_CC_ME) merge(&s);
    for (size_t j = 0; kind == BT_VARIANT_CD && j < n_prefix; j++)
        decompress(&s, j, false);
    for (int i = 0; i < N_WEIGHTS; i++) { /* what happened before the step is forgotten */
        s.w[i].n_read = 0;
        memset(s.w[i].read, 0, s.w[i].n);
    }
    step(&s, kind, out);
    *counts_out = counts_of(&s, kind);
out:
    fini(&s);
    return st;
}
