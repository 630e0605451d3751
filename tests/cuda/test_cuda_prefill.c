/* The normal form and the moves of pages on the CPU, against sums in double. */
#include "attention/rope.h"
#include "device/cpu/device_cpu.h"
#include "tests/cuda/attention_world.h"

static const bt_cuda_dims SMALL = {3, 24, 10, 6, 12, 0.3f}; /* no vector access fits */
static const bt_cuda_dims EVEN  = {3, 24, 16, 8, 16, 0.3f};
static const bt_cuda_dims HEADS = {40, 24, 16, 64, 16, 0.3f}; /* pairs for three blocks a row */
static const bt_cuda_dims WIDE  = {2, 512, 128, 64, 128, 0.0722f};
static const bt_cuda_dims LARGE = {2, 64, 192, 64, 256, 0.06f};

/* Keys and values are random rather than expanded: [token of the span's context][n_heads][..]. */
typedef struct {
    uint32_t split_pages, kv_at[MAX_SPANS], n_kv;
    bt_bf16 *q, *k, *v, *out;
    float   *run_o, *run_ms;
} call;

static call make_call(world *w, uint32_t split_pages)
{
    call   k = {.split_pages = split_pages};
    size_t heads;

    for (uint32_t i = 0; i < w->n_spans; i++) {
        k.kv_at[i] = k.n_kv;
        k.n_kv += w->spans[i].start + w->spans[i].n_rows;
    }
    heads    = (size_t)w->n_rows * w->dims.n_heads;
    k.q      = random_bf16(heads * (w->dims.nope + w->dims.rope), 2, &w->rng);
    k.k      = random_bf16((size_t)k.n_kv * w->dims.n_heads * w->dims.nope, 1, &w->rng);
    k.v      = random_bf16((size_t)k.n_kv * w->dims.n_heads * w->dims.v_dim, 1, &w->rng);
    k.out    = ARRAY(bt_bf16, heads * w->dims.v_dim);
    k.run_o  = ARRAY(float, heads * w->dims.v_dim);
    k.run_ms = ARRAY(float, heads * 2);
    return k;
}

static void drop_call(call *k)
{
    free(k->q), free(k->k), free(k->v), free(k->out), free(k->run_o), free(k->run_ms);
}

/* Rows [first, end) of the spans that `which` has a bit for, part after part. */
static void run(const world *w, const call *k, uint32_t which, uint32_t first, uint32_t end)
{
    uint32_t tokens = k->split_pages * PAGE;

    for (uint32_t part = 0; part * tokens < w->max_end; part++) {
        bt_cuda_prefill_item items[MAX_SPANS];
        bt_cuda_prefill      p = {.dims        = w->dims,
                                  .pages       = w->pages,
                                  .items       = items,
                                  .part        = part,
                                  .split_pages = k->split_pages,
                                  .q           = k->q,
                                  .k           = k->k,
                                  .v           = k->v,
                                  .out         = k->out,
                                  .run_o       = k->run_o,
                                  .run_ms      = k->run_ms};

        for (uint32_t i = 0; i < w->n_spans; i++) {
            bt_cuda_span s = w->spans[i];
            uint32_t     e = s.n_rows < end ? s.n_rows : end;

            if (!(which >> i & 1) || first >= e || part * tokens >= s.start + e) continue;
            s.first_row += first;
            s.start += first;
            s.n_rows           = e - first;
            items[p.n_items++] = (bt_cuda_prefill_item){s, k->kv_at[i] + part * tokens};
            if (s.n_rows > p.max_rows) p.max_rows = s.n_rows;
        }
        EXPECT_EQ(bt_cuda_prefill_run(NULL, &p), 0);
    }
}

static void expect_right(const world *w, const call *k, double limit)
{
    const bt_cuda_dims *m = &w->dims;
    double             *s = ARRAY(double, w->max_end);
    difference          e = {0, 0};

    for (uint32_t i = 0; i < w->n_spans; i++)
        for (uint32_t r = 0; r < w->spans[i].n_rows; r++)
            for (uint32_t h = 0; h < m->n_heads; h++) {
                size_t         at = (size_t)(w->spans[i].first_row + r) * m->n_heads + h;
                uint32_t       n  = w->spans[i].start + r + 1;
                const bt_bf16 *q  = k->q + at * (m->nope + m->rope);

                for (uint32_t j = 0; j < n; j++)
                    s[j] =
                        (double)m->scale *
                        (dot_bf16(q, k->k + ((size_t)(k->kv_at[i] + j) * m->n_heads + h) * m->nope,
                                  m->nope) +
                         dot_bf16(q + m->nope, token_at(w, i, j) + m->kv_lora, m->rope));
                softmax_of(s, n);
                for (uint32_t c = 0; c < m->v_dim; c++) {
                    double want = 0;

                    for (uint32_t j = 0; j < n; j++)
                        want +=
                            s[j] *
                            (double)bt_bf16_to_f32(
                                k->v[((size_t)(k->kv_at[i] + j) * m->n_heads + h) * m->v_dim + c]);
                    differ(&e, (double)bt_bf16_to_f32(k->out[at * m->v_dim + c]), want, 0.3, at);
                }
            }
    EXPECT_CLOSE(e, limit);
    free(s);
}

static void attention_of_odd_shapes_is_right(void)
{
    static const uint32_t MANY[][2] = {
        {0,   1  },
        {0,   130},
        {63,  2  },
        {64,  65 },
        {200, 31 },
        {0,   0  }
    };
    static const uint32_t FEW[][2] = {
        {0,   66},
        {100, 20},
        {0,   0 }
    };
    const bt_cuda_dims *DIMS[] = {&EVEN, &SMALL, &WIDE, &LARGE};

    for (int i = 0; i < 4; i++)
        for (uint32_t split = 1; split <= (i == 0 ? 4 : 1); split += 3) {
            world w = make_world(*DIMS[i], i == 0 ? MANY : FEW, split);
            call  k = make_call(&w, split);

            poison_the_rest(&w);
            run(&w, &k, ~0u, 0, UINT32_MAX);
            expect_right(&w, &k, 0.01);
            drop_call(&k);
            drop_world(&w);
        }
}

/* The same with queries that no vector access fits. */
static void run_unaligned(const world *w, const call *k)
{
    size_t   elems = (size_t)w->n_rows * w->dims.n_heads * (w->dims.nope + w->dims.rope);
    bt_bf16 *q     = ARRAY(bt_bf16, elems + 1);
    call     moved = *k;

    memcpy(q + 1, k->q, elems * sizeof(*q));
    moved.q = q + 1;
    run(w, &moved, ~0u, 0, UINT32_MAX);
    free(q);
}

/* A prompt cut in pieces, alone or with others, has the bits of the whole. */
static void bits_do_not_depend_on_pieces_or_neighbours(void)
{
    static const uint32_t SPANS[][2] = {
        {0,  133},
        {70, 60 },
        {0,  0  }
    };
    static const uint32_t PIECES[] = {1, 17, 64, 100};
    world                 w        = make_world(EVEN, SPANS, 1);
    call                  k        = make_call(&w, 1);
    size_t                elems    = (size_t)w.n_rows * w.dims.n_heads * w.dims.v_dim;
    bt_bf16              *whole    = ARRAY(bt_bf16, elems);

    poison_the_rest(&w);
    run(&w, &k, ~0u, 0, UINT32_MAX);
    memcpy(whole, k.out, elems * sizeof(*whole));
    for (int i = 0; i < 3; i++) {
        simt_seed((uint64_t)i);
        memset(k.out, 0xff, elems * sizeof(*k.out));
        for (uint32_t first = 0; first < 133; first += PIECES[i]) {
            run(&w, &k, 2, first, first + PIECES[i]);
            run(&w, &k, 1, first, first + PIECES[i]);
        }
        EXPECT_EQ(n_different(k.out, whole, elems * sizeof(*whole)), 0);
    }
    memset(k.out, 0xff, elems * sizeof(*k.out));
    run_unaligned(&w, &k);
    EXPECT_EQ(n_different(k.out, whole, elems * sizeof(*whole)), 0);
    free(whole);
    drop_call(&k);
    drop_world(&w);
}

static void a_later_tokens_nan_stays_with_the_later_tokens(void)
{
    static const uint32_t SPANS[][2] = {
        {60, 40},
        {0,  0 }
    };

    for (int i = 0; i < 2; i++) {
        world    w   = make_world(i == 0 ? EVEN : SMALL, SPANS, 2);
        call     k   = make_call(&w, 32);
        uint32_t row = w.dims.n_heads * w.dims.v_dim, v_dim = w.dims.v_dim;
        bt_bf16 *before = ARRAY(bt_bf16, w.n_rows * row);

        run(&w, &k, 1, 0, UINT32_MAX);
        memcpy(before, k.out, w.n_rows * row * sizeof(*before));
        k.v[70 * row + 2]         = 0x7fc0; /* head 0 */
        k.v[71 * row + v_dim + 1] = 0x7f80; /* head 1 */
        run(&w, &k, 1, 0, UINT32_MAX);
        for (uint32_t at = 0; at < 40 * row; at++) {
            uint32_t pos = 60 + at / row, col = at % row;
            float    v = bt_bf16_to_f32(k.out[at]);

            if (col == 2 && pos >= 70)
                EXPECT(isnan(v));
            else if (col == v_dim + 1 && pos >= 71)
                EXPECT(isinf(v) && v > 0);
            else
                EXPECT(k.out[at] == before[at]);
        }
        free(before);
        drop_call(&k);
        drop_world(&w);
    }
}

/* ---- pages */

/* What an append has of an indexer, and its queries before. */
typedef struct {
    bt_cuda_append_index a;
    bt_bf16             *q, *was, *k, *norm, *bias;
} indexer;

static indexer make_indexer(world *w, int way)
{
    uint32_t heads = way == 9 ? 40 : 3, dim = w->pages.index_dim; /* 40: more than attention has */
    size_t   elems = (size_t)w->n_rows * heads * dim;
    indexer  x     = {.q    = random_bf16(elems, 1, &w->rng),
                      .was  = ARRAY(bt_bf16, elems),
                      .k    = random_bf16((size_t)w->n_rows * dim, 1, &w->rng),
                      .norm = random_bf16(dim, 2, &w->rng),
                      .bias = random_bf16(dim, 1, &w->rng)};

    memcpy(x.was, x.q, elems * sizeof(*x.q));
    for (uint32_t i = 0; i < w->n_rows * dim; i++) /* a mean that is not near 0 */
        x.k[i] = bt_bf16_from_f32(bt_bf16_to_f32(x.k[i]) + 3);
    if (dim == 0) return x;
    x.a = (bt_cuda_append_index){.n_heads = heads,
                                 .halves  = way == 7 || way == 10,
                                 .q       = x.q,
                                 .k       = way == 8 ? NULL : x.k,
                                 .norm    = x.norm,
                                 .bias    = x.bias,
                                 .eps     = 1e-6f};
    return x;
}

static void drop_indexer(indexer *x)
{
    free(x->q), free(x->was), free(x->k), free(x->norm), free(x->bias);
}

/* The first `rope` elements turned by the angles of t. */
static void turn_index(const world *w, const indexer *x, const float *t, bt_bf16 *v)
{
    uint32_t pairs = w->dims.rope / 2, apart = x->a.halves ? pairs : 1;

    for (uint32_t i = 0; i < pairs; i++) {
        bt_bf16 *p  = v + (x->a.halves ? i : 2 * i);
        float    x0 = bt_bf16_to_f32(p[0]), x1 = bt_bf16_to_f32(p[apart]);

        p[0]     = bt_bf16_from_f32(x0 * t[2 * i] - x1 * t[2 * i + 1]);
        p[apart] = bt_bf16_from_f32(x0 * t[2 * i + 1] + x1 * t[2 * i]);
    }
}

/* A row's queries and, in its page, its key. */
static void expect_indexer(const world *w, const indexer *x, uint32_t row, const float *t,
                           const bt_bf16 *got)
{
    uint32_t       n    = w->pages.index_dim;
    const bt_bf16 *k    = x->k + (size_t)row * n;
    bt_bf16       *want = ARRAY(bt_bf16, n);
    double         mean = 0, square = 0;
    difference     e = {0, 0};

    for (uint32_t h = 0; h < x->a.n_heads; h++) {
        size_t at = ((size_t)row * x->a.n_heads + h) * n;

        turn_index(w, x, t, x->was + at);
        EXPECT_EQ(n_different(x->was + at, x->q + at, n * sizeof(*want)), 0);
    }
    for (uint32_t i = 0; i < n; i++)
        mean += (double)bt_bf16_to_f32(k[i]) / n;
    for (uint32_t i = 0; i < n; i++)
        square += ((double)bt_bf16_to_f32(k[i]) - mean) * ((double)bt_bf16_to_f32(k[i]) - mean);
    for (uint32_t i = 0; i < n; i++)
        want[i] = bt_bf16_from_f32(
            (float)(((double)bt_bf16_to_f32(k[i]) - mean) / sqrt(square / n + 1e-6) *
                        (double)bt_bf16_to_f32(x->norm[i]) +
                    (double)bt_bf16_to_f32(x->bias[i])));
    if (x->a.k == NULL) memset(want, 0, n * sizeof(*want));
    turn_index(w, x, t, want);
    for (uint32_t i = 0; i < n; i++)
        differ(&e, (double)bt_bf16_to_f32(got[i]), (double)bt_bf16_to_f32(want[i]), 0.5, i);
    EXPECT_CLOSE(e, x->a.k == NULL ? 0 : 0.01);
    free(want);
}

static void appended_tokens_are_normed_and_turned(void)
{
    static const uint32_t SPANS[][2] = {
        {0,   3},
        {62,  5},
        {127, 1},
        {0,   0}
    };
    static const uint32_t ROWS[][2] = {
        {5,  1},
        {70, 1},
        {0,  1},
        {0,  0}
    };

    for (int way = 0; way < 12; way++) { /* from 6 on with the indexer's */
        bool  fused = way % 2;
        world w =
            make_world(way % 6 < 2 ? SMALL : HEADS, way % 6 < 4 ? SPANS : ROWS, way < 6 ? 2 : 3);
        uint32_t c = w.dims.kv_lora, rope = w.dims.rope, head_dim = w.dims.nope + rope;
        size_t   q_elems = (size_t)w.n_rows * w.dims.n_heads * head_dim;
        bt_bf16 *q = random_bf16(q_elems, 1, &w.rng), *was = ARRAY(bt_bf16, q_elems);
        bt_bf16 *kv         = random_bf16(w.n_rows * latent_dim(&w), 1, &w.rng),
                *norm       = random_bf16(c, 1, &w.rng);
        indexer        x    = make_indexer(&w, way);
        bt_bf16       *pool = ARRAY(bt_bf16, w.n_pages * w.pages.page_stride);
        double         inv_freq[BT_CUDA_MAX_ROPE / 2];
        float         *cos_sin = ARRAY(float, w.max_end *rope);
        uint64_t       before;
        bt_cuda_append a = {.dims    = w.dims,
                            .pages   = w.pages,
                            .spans   = w.spans,
                            .n_spans = w.n_spans,
                            .n_rows  = w.n_rows,
                            .q       = q,
                            .kv      = kv,
                            .norm    = fused ? norm : NULL,
                            .eps     = 1e-6f,
                            .cos_sin = cos_sin,
                            .index   = x.a};

        for (uint32_t pair = 0; pair < rope / 2; pair++)
            inv_freq[pair] = 1 / (1.0 + 3 * pair);
        memcpy(was, q, q_elems * sizeof(*q));
        memcpy(pool, w.pool, w.n_pages * w.pages.page_stride * sizeof(*pool));
        bt_rope_fill(0, w.max_end, rope / 2, inv_freq, 1, cos_sin);
        EXPECT_EQ(bt_cuda_append_run(NULL, &a), 0);
        for (uint32_t s = 0; s < w.n_spans; s++)
            for (uint32_t r = 0; r < w.spans[s].n_rows; r++) {
                uint32_t       pos = w.spans[s].start + r, row = w.spans[s].first_row + r;
                const bt_bf16 *got = token_at(&w, s, pos), *y = kv + row * latent_dim(&w);
                const float   *t      = cos_sin + pos * rope;
                double         factor = 1 / sqrt(dot_bf16(y, y, c) / c + 1e-6);
                difference     e      = {0, 0};

                for (uint32_t i = 0; i < c; i++)
                    differ(&e, bt_bf16_to_f32(got[i]),
                           fused ? bt_bf16_to_f32(y[i]) * factor * bt_bf16_to_f32(norm[i])
                                 : bt_bf16_to_f32(y[i]),
                           1e-6, i);
                EXPECT_CLOSE(e, fused ? 0.008 : 0);
                for (uint32_t i = 0; i < rope; i += 2) {
                    float x0 = bt_bf16_to_f32(y[c + i]), x1 = bt_bf16_to_f32(y[c + i + 1]);

                    EXPECT_EQ(got[c + i], bt_bf16_from_f32(x0 * t[i] - x1 * t[i + 1]));
                    EXPECT_EQ(got[c + i + 1], bt_bf16_from_f32(x0 * t[i + 1] + x1 * t[i]));
                }
                for (uint32_t h = 0; h < w.dims.n_heads; h++) {
                    size_t at = ((size_t)row * w.dims.n_heads + h) * head_dim;

                    EXPECT_EQ(n_different(q + at, was + at, w.dims.nope * 2), 0);
                    for (uint32_t i = 0; i < rope; i += 2) {
                        const bt_bf16 *p  = was + at + w.dims.nope + i;
                        float          x0 = bt_bf16_to_f32(p[0]), x1 = bt_bf16_to_f32(p[1]);

                        EXPECT_EQ(q[at + w.dims.nope + i],
                                  bt_bf16_from_f32(x0 * t[i] - x1 * t[i + 1]));
                        EXPECT_EQ(q[at + w.dims.nope + i + 1],
                                  bt_bf16_from_f32(x0 * t[i + 1] + x1 * t[i]));
                    }
                }
                if (w.pages.index_dim != 0) expect_indexer(&w, &x, row, t, got + latent_dim(&w));
                memcpy(pool + (got - w.pool), got, kv_dim(&w) * sizeof(*got));
            }
        /* nothing else was written */
        EXPECT_EQ(n_different(pool, w.pool, w.n_pages * w.pages.page_stride * sizeof(*pool)), 0);
        a.q = a.index.q = NULL; /* then no block is there for them */
        before          = simt_n_blocks();
        EXPECT_EQ(bt_cuda_append_run(NULL, &a), 0);
        EXPECT_EQ(simt_n_blocks() - before, simt_counts() ? w.n_rows : 0);
        EXPECT_EQ(n_different(pool, w.pool, w.n_pages * w.pages.page_stride * sizeof(*pool)), 0);
        free(q), free(was), free(kv), free(norm), free(pool), free(cos_sin);
        drop_indexer(&x);
        drop_world(&w);
    }
}

static void messages_carry_exactly_their_tokens(void)
{
    static const uint32_t SPANS[][2] = {
        {0, 200},
        {0, 0  }
    };
    const bt_cuda_dims *DIMS[] = {&SMALL, &WIDE};

    for (int i = 0; i < 2; i++) {
        world    w     = make_world(*DIMS[i], SPANS, 5);
        size_t   layer = PAGE * kv_dim(&w), elems = w.n_pages * w.pages.page_stride;
        uint32_t first = 60, n = 75;
        bt_bf16 *message = ARRAY(bt_bf16, LAYERS * n * kv_dim(&w)), *pool = ARRAY(bt_bf16, elems);
        bt_bf16 *latents    = ARRAY(bt_bf16, n * w.dims.kv_lora);
        bt_cuda_page_rows r = {.base           = w.pool,
                               .page_stride    = w.pages.page_stride,
                               .layer_stride   = layer,
                               .message_stride = n * kv_dim(&w),
                               .kv_dim         = (uint32_t)kv_dim(&w),
                               .n_layers       = LAYERS,
                               .first          = first,
                               .n_tokens       = n,
                               .message        = message};

        memcpy(r.ids, w.pages.ids, (first + n + PAGE - 1) / PAGE * sizeof(*r.ids));
        EXPECT_EQ(bt_cuda_pack_pages(NULL, &r), 0);
        EXPECT_EQ(bt_cuda_latents_run(NULL, &w.dims, &w.pages, first, n, latents), 0);
        for (uint32_t t = 0; t < n; t++) {
            const bt_bf16 *token = token_at(&w, 0, first + t);

            EXPECT_EQ(n_different(message + t * kv_dim(&w), token - layer, kv_dim(&w) * 2), 0);
            EXPECT_EQ(n_different(message + (n + t) * kv_dim(&w), token, kv_dim(&w) * 2), 0);
            EXPECT_EQ(n_different(latents + t * w.dims.kv_lora, token, w.dims.kv_lora * 2), 0);
        }
        memcpy(pool, w.pool, elems * sizeof(*pool));
        for (uint32_t t = first; t < first + n; t++)
            for (uint32_t l = 0; l < LAYERS; l++)
                memset(token_at(&w, 0, t) - l * layer, 0xff, kv_dim(&w) * 2);
        EXPECT_EQ(bt_cuda_scatter_pages(NULL, &r), 0);
        EXPECT_EQ(n_different(pool, w.pool, elems * sizeof(*pool)), 0);
        free(message), free(pool), free(latents);
        drop_world(&w);
    }
}

static void shapes_beyond_the_tiles_are_refused(void)
{
    bt_cuda_prefill p = {.dims = SMALL, .n_items = 1, .max_rows = 1, .split_pages = 1};

    p.dims.v_dim = 257;
    EXPECT_EQ(bt_cuda_prefill_run(NULL, &p), BT_CUDA_BAD_SHAPE);
    p.n_items = 0;
    EXPECT_EQ(bt_cuda_prefill_run(NULL, &p), 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(attention_of_odd_shapes_is_right),
        BT_TEST(bits_do_not_depend_on_pieces_or_neighbours),
        BT_TEST(a_later_tokens_nan_stays_with_the_later_tokens),
        BT_TEST(appended_tokens_are_normed_and_turned),
        BT_TEST(messages_carry_exactly_their_tokens),
        BT_TEST(shapes_beyond_the_tiles_are_refused),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
