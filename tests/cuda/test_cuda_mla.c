/* A layer's attention on the CUDA back end, on a GPU that is host memory: against the plain
 * reference and the CPU back end; and the laws. */
#include <cuda_runtime_api.h>

#include "attention/cuda/attn_cuda.h"
#include "attention/reference/mla_reference.h"
#include "core/alloc.h"
#include "device/cpu/device_cpu.h"
#include "device/cuda/module.h"
#include "tests/cuda/simt_control.h"

extern const bt_cuda_module_table bt_cuda_module;

static bt_status create(const bt_device_cpu_options *opt, bt_device **dev_out)
{
    return strcmp(opt->kernels, "cuda") == 0 ? bt_cuda_module.create(0, dev_out)
                                             : bt_device_cpu_create(opt, dev_out);
}
#define LAYER_DEVICE create
#include "tests/attention/layer.h"
#include "tests/attention/shapes.h"

enum { N = 97, MAX_ROWS = 128 };

static const bt_mla_config WITH_Q_LORA = {.hidden       = 24,
                                          .n_heads      = 3,
                                          .q_lora_rank  = 16,
                                          .kv_lora_rank = 20,
                                          .qk_nope_dim  = 10,
                                          .qk_rope_dim  = 6,
                                          .v_dim        = 12,
                                          .max_context  = 4096};
static const bt_mla_config ALIGNED     = {.hidden       = 32,
                                          .n_heads      = 2,
                                          .kv_lora_rank = 64,
                                          .qk_nope_dim  = 16,
                                          .qk_rope_dim  = 8,
                                          .v_dim        = 16,
                                          .max_context  = 4096};

static void expect_reference(const layer_data *d, const request *r)
{
    bt_mla_reference_weights w      = {d->q.data,    d->q_a.data, d->q_b.data,      d->kv_a.data,
                                       d->kv_b.data, d->o.data,   d->q_a_norm.data, d->kv_a_norm.data};
    size_t                   hidden = d->cfg.hidden;
    float                   *x      = bt_calloc(r->n * hidden, sizeof(float)),
          *latent                   = bt_calloc((size_t)r->n * d->cfg.kv_lora_rank, sizeof(float)),
          *key                      = bt_calloc((size_t)r->n * d->cfg.qk_rope_dim, sizeof(float)),
          *want                     = bt_calloc(r->n * hidden, sizeof(float));
    double error = 0, size = 0;

    for (size_t i = 0; i < r->n * hidden; i++)
        x[i] = bt_bf16_to_f32(r->x[i]);
    EXPECT_EQ(bt_mla_reference(&d->cfg, &w, r->n, x, latent, key, want), BT_OK);
    for (size_t i = 0; i < r->n * hidden; i++) {
        double e = bt_bf16_to_f32(r->out[i]) - want[i];

        error += e * e;
        size += (double)want[i] * want[i];
    }
    EXPECT(sqrt(error / size) <= 0.02);
    bt_free(x), bt_free(latent), bt_free(key), bt_free(want);
}

/* Each role and form, whole, in pieces and beside another request: right, and always the same. */
static void a_layer_is_right_and_cut_anywhere(void)
{
    const bt_mla_config *CONFIGS[] = {&WITH_Q_LORA, &ALIGNED};

    for (int i = 0; i < 2; i++)
        for (int form = 0; form < 2; form++) {
            layer_data *d    = layer_data_new("cuda", CONFIGS[i]);
            layer       l    = layer_new(d, "cuda", 1, MAX_ROWS);
            bt_role     role = form == BT_FORM_NORMAL ? BT_ROLE_PROMPT : BT_ROLE_GENERATED;
            request     r = request_new(&l, N, 1), s = request_new(&l, N, 1);
            request     t = request_new(&l, 20, 2);

            layer_run(&l, &r, 0, N, N, role, (bt_attn_form)form);
            expect_reference(d, &r);
            layer_run(&l, &s, 0, 33, 33, role, (bt_attn_form)form);
            EXPECT_EQ(layer_step(&l, 2,
                                 (piece[]){
                                     {&t, 0,  20, role, (bt_attn_form)form},
                                     {&s, 33, 60, role, (bt_attn_form)form}
            }),
                      BT_OK);
            layer_run(&l, &s, 93, N, 1, role, (bt_attn_form)form);
            EXPECT_EQ(first_difference(&l, r.out, s.out, N), N);
            request_free(&l, &r), request_free(&l, &s), request_free(&l, &t);
            layer_free(&l);
            layer_data_free(d);
            EXPECT_EQ(g_fake_gpu.live, 0);
        }
}

/* Prompt rows and generated rows in one step, as a cell with both roles has them. */
static void both_roles_share_a_step(void)
{
    layer_data *d = layer_data_new("cuda", &ALIGNED);
    layer       l = layer_new(d, "cuda", 1, MAX_ROWS);
    request     r = request_new(&l, 70, 1), s = request_new(&l, 70, 3);

    layer_run(&l, &s, 0, 69, 69, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    EXPECT_EQ(layer_step(&l, 2,
                         (piece[]){
                             {&r, 0,  70, BT_ROLE_PROMPT,    BT_FORM_NORMAL  },
                             {&s, 69, 1,  BT_ROLE_GENERATED, BT_FORM_ABSORBED}
    }),
              BT_OK);
    expect_reference(d, &r);
    expect_reference(d, &s);
    request_free(&l, &r), request_free(&l, &s);
    layer_free(&l);
    layer_data_free(d);
}

/* Contexts of two parts: pages filled at random, the last rows against the CPU back end. */
static void long_contexts_are_those_of_the_cpu(void)
{
    enum { LONG = 2110, ROWS = 3 };
    layer_data *d       = layer_data_new("cuda", &ALIGNED);
    layer       both[2] = {layer_new(d, "scalar", 1, MAX_ROWS), layer_new(d, "cuda", 1, MAX_ROWS)};

    for (int form = 0; form < 2; form++) {
        bt_role role = form == BT_FORM_NORMAL ? BT_ROLE_PROMPT : BT_ROLE_GENERATED;
        request r[2];
        double  error = 0, size = 0;

        for (int i = 0; i < 2; i++) {
            size_t elems = (size_t)BT_PAGE_TOKENS * bt_kv_pool_kv_dim(both[i].pool);

            r[i] = request_new(&both[i], LONG, 5);
            for (uint32_t p = 0; p < bt_kv_pages_for(LONG); p++) {
                bt_bf16 *rows = bt_calloc(elems, sizeof(*rows));

                for (size_t e = 0; e < elems; e++)
                    rows[e] = bt_bf16_from_f32(hash_uniform(p, (uint32_t)e) * 1.5f);
                EXPECT_EQ(bt_device_upload(both[i].dev,
                                           bt_kv_pool_rows(both[i].pool, r[i].pages[p], LAYER),
                                           rows, elems * sizeof(*rows)),
                          BT_OK);
                bt_free(rows);
            }
            layer_run(&both[i], &r[i], LONG - ROWS, LONG, ROWS, role, (bt_attn_form)form);
        }
        for (size_t i = (LONG - ROWS) * (size_t)ALIGNED.hidden; i < (size_t)LONG * ALIGNED.hidden;
             i++) {
            double want = bt_bf16_to_f32(r[0].out[i]), e = bt_bf16_to_f32(r[1].out[i]) - want;

            error += e * e;
            size += want * want;
        }
        EXPECT(sqrt(error / size) <= 0.02);
        for (int i = 0; i < 2; i++)
            request_free(&both[i], &r[i]);
    }
    layer_free(&both[0]), layer_free(&both[1]);
    layer_data_free(d);
}

/* ---- sparse attention */

/* The root mean square error of rows [from, n) of the second, as a part of the first's size. */
static double rms_error(const layer *l, const request *want, const request *got, uint32_t from)
{
    double error = 0, size = 0;

    for (size_t i = (size_t)from * l->cfg.hidden; i < (size_t)want->n * l->cfg.hidden; i++) {
        double w = (double)bt_bf16_to_f32(want->out[i]), e = (double)bt_bf16_to_f32(got->out[i]);

        error += (e - w) * (e - w);
        size += w * w;
    }
    return sqrt(error / size);
}

/* Rows that choose, of either pairing, in either role and form, whole, in pieces and beside another
 * request: those of the CPU, and always the same.  In the long context scores fit for 16 rows at a
 * time. */
static void sparse_rows_are_those_of_the_cpu_and_cut_anywhere(void)
{
    enum { ROWS = 151 };

    for (int way = 0; way < 2; way++) {
        bt_mla_config cfg  = SHAPES[SHAPE_SPARSE].cfg;
        bt_role       role = way == 0 ? BT_ROLE_PROMPT : BT_ROLE_GENERATED;
        bt_attn_form  form = way == 0 ? BT_FORM_NORMAL : BT_FORM_ABSORBED;
        layer_data   *d;
        layer         cpu, l;
        request       want, r, s, t;

        cfg.index_halves = way == 0;
        cfg.max_context  = way == 0 ? 1 << 20 : 8192;
        cfg.index_dim    = way == 0 ? 20 : 24; /* 24: vector accesses fit */
        d                = layer_data_new("sparse", &cfg);
        cpu              = layer_new(d, "scalar", 1, ROWS);
        l                = layer_new(d, "cuda", 1, ROWS);
        want             = request_new(&cpu, ROWS, 1);
        r                = request_new(&l, ROWS, 1);
        s                = request_new(&l, ROWS, 1);
        t                = request_new(&l, 80, 2);
        layer_run(&cpu, &want, 0, ROWS, ROWS, role, form);
        layer_run(&l, &r, 0, ROWS, ROWS, role, form);
        EXPECT(rms_error(&l, &want, &r, 0) <= 0.01);
        EXPECT(rms_error(&l, &want, &r, cfg.index_topk) <= 0.01);
        layer_run(&l, &s, 0, 33, 33, role, form);
        EXPECT_EQ(layer_step(&l, 2,
                             (piece[]){
                                 {&t, 0,  80, role, form},
                                 {&s, 33, 60, role, form}
        }),
                  BT_OK);
        layer_run(&l, &s, 93, 97, 1, role, form);
        layer_run(&l, &s, 97, ROWS, 50, role, form);
        EXPECT_EQ(first_difference(&l, r.out, s.out, ROWS), ROWS);
        request_free(&cpu, &want);
        request_free(&l, &r), request_free(&l, &s), request_free(&l, &t);
        layer_free(&cpu), layer_free(&l);
        layer_data_free(d);
        EXPECT_EQ(g_fake_gpu.live, 0);
    }
}

/* n elements of random bf16, on the device. */
static void *random_rows(bt_device *dev, size_t n, uint32_t seed)
{
    bt_bf16 *host = bt_calloc(n, sizeof(*host));
    void    *mem  = NULL;

    for (size_t i = 0; i < n; i++)
        host[i] = bt_bf16_from_f32(hash_uniform(seed, (uint32_t)i));
    EXPECT_EQ(bt_device_alloc(dev, n * sizeof(*host), &mem), BT_OK);
    EXPECT_EQ(bt_device_upload(dev, mem, host, n * sizeof(*host)), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    bt_free(host);
    return mem;
}

/* Rows that choose in one batch, and with room for the scores of few choose the same; and the
 * account has what create() took. */
static void scores_that_do_not_fit_wait(void)
{
    enum { ROWS = 30, START = 60, TOPK = 70, PAGES = 2, CHOOSERS = START + ROWS - TOPK };
    const bt_mla_config *cfg   = &SHAPES[SHAPE_SPARSE].cfg;
    layer_data          *d     = layer_data_new("sparse", cfg);
    layer                l     = layer_new(d, "cuda", 1, ROWS);
    request              r     = request_new(&l, START + ROWS, 1);
    bt_span              span  = {r.pages, 0, ROWS, START, BT_ROLE_PROMPT, BT_FORM_ABSORBED};
    size_t               heads = cfg->index_heads, bytes = (size_t)ROWS * TOPK * sizeof(uint32_t);
    bt_bf16             *q = random_rows(l.dev, ROWS * heads * cfg->index_dim, 1);
    bt_bf16      *w = random_rows(l.dev, 2 * ROWS * heads, 2); /* floats, by their upper halves */
    bt_attn      *attn = NULL;
    bt_attn_cuda *a;
    bt_attn_call  call  = {.w       = &l.w,
                           .pool    = l.pool,
                           .layer   = LAYER,
                           .index_q = q,
                           .index_w = (float *)w,
                           .n_spans = 1,
                           .spans   = &span};
    uint32_t     *whole = bt_calloc(2, bytes), *pieces = whole + (size_t)ROWS * TOPK;
    unsigned long before;

    layer_run(&l, &r, 0, START + ROWS, ROWS, BT_ROLE_PROMPT, BT_FORM_ABSORBED);
    EXPECT_EQ(bt_attn_cuda_ops.create(l.dev, cfg, ROWS, NULL, &attn), BT_OK);
    EXPECT_EQ(attn->bytes, bt_mla_large_bytes(l.dev, cfg, ROWS));
    a = (bt_attn_cuda *)attn;
    for (int way = 0; way < 2; way++) {
        if (way == 1) a->n_scores = (size_t)7 * PAGES * BT_PAGE_TOKENS + 1;
        before = simt_n_launches();
        EXPECT_EQ(bt_attn_cuda_choose(attn, &call), BT_OK);
        EXPECT_EQ(bt_device_download(l.dev, way == 0 ? whole : pieces, a->chosen, bytes), BT_OK);
        EXPECT_EQ(bt_device_sync(l.dev), BT_OK);
        EXPECT_EQ(simt_n_launches() - before, way == 0 ? 2 : 2 * ((CHOOSERS - 1) / 7 + 1));
    }
    EXPECT(memcmp(whole, pieces, bytes) == 0);
    attn->ops->destroy(attn);
    bt_free(whole);
    bt_device_free(l.dev, q), bt_device_free(l.dev, w);
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

/* More rows than attend to lists at once, the last of which choose. */
static void sparse_rows_of_several_batches_are_those_of_the_cpu(void)
{
    enum { ROWS = 520, TOPK = 505 };
    bt_mla_config cfg = SHAPES[SHAPE_SPARSE].cfg;
    layer_data   *d;
    layer         both[2];
    request       r[2];

    cfg.index_topk = TOPK;
    cfg.index_dim  = 24;
    d              = layer_data_new("sparse", &cfg);
    for (int i = 0; i < 2; i++) {
        both[i] = layer_new(d, i == 0 ? "scalar" : "cuda", 1, ROWS);
        r[i]    = request_new(&both[i], ROWS, 1);
        layer_run(&both[i], &r[i], 0, ROWS, ROWS, BT_ROLE_PROMPT, BT_FORM_ABSORBED);
    }
    EXPECT(rms_error(&both[0], &r[0], &r[1], 0) <= 0.01);
    EXPECT(rms_error(&both[0], &r[0], &r[1], TOPK) <= 0.01);
    for (int i = 0; i < 2; i++) {
        request_free(&both[i], &r[i]);
        layer_free(&both[i]);
    }
    layer_data_free(d);
}

/* Rows that attend to all of their positions are those of a model without an indexer, to the bit,
 * also in a step with rows that choose. */
static void rows_that_choose_nothing_are_those_without_an_indexer(void)
{
    bt_mla_config cfg    = SHAPES[SHAPE_SPARSE].cfg;
    layer_data   *sparse = layer_data_new("sparse", &cfg), *dense;
    layer         l      = layer_new(sparse, "cuda", 1, MAX_ROWS), all;
    request       r      = request_new(&l, N, 1), want;

    cfg.index_topk = 0;
    dense          = layer_data_new("dense", &cfg);
    all            = layer_new(dense, "cuda", 1, MAX_ROWS);
    want           = request_new(&all, N, 1);
    layer_run(&l, &r, 0, N, N, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
    layer_run(&all, &want, 0, N, N, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
    EXPECT_EQ(first_difference(&l, r.out, want.out, N), sparse->cfg.index_topk);
    request_free(&l, &r), request_free(&all, &want);
    layer_free(&l), layer_free(&all);
    layer_data_free(sparse), layer_data_free(dense);
}

/* A step at fixed places, as graphs capture it, leaves the pages that any other leaves. */
static void a_step_at_fixed_places_writes_the_same_pages(void)
{
    enum { START = 60, ROWS = 4 };
    layer_data   *d     = layer_data_new("sparse", &SHAPES[SHAPE_SPARSE].cfg);
    layer         l     = layer_new(d, "cuda", 1, MAX_ROWS);
    bt_attn_fixed fixed = {.n_rows = ROWS, .n_parts = 1};
    size_t        width = l.cfg.hidden * sizeof(bt_bf16),
           page         = bt_kv_page_bytes(1, bt_kv_pool_kv_dim(l.pool));
    request r = request_new(&l, START + 1, 1), s = request_new(&l, START + 1, 1);
    bt_span span = {s.pages, 0, 1, START, BT_ROLE_GENERATED, BT_FORM_ABSORBED};
    char   *got = bt_calloc(2, page), *want = got + page;
    void   *x = NULL, *out = NULL;

    layer_run(&l, &r, 0, START, START, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    layer_run(&l, &r, START, START + 1, 1, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
    layer_run(&l, &s, 0, START, START, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    EXPECT_EQ(bt_device_alloc(l.dev, ROWS * width, &x), BT_OK);
    EXPECT_EQ(bt_device_alloc(l.dev, ROWS * width, &out), BT_OK);
    EXPECT_EQ(bt_device_upload(l.dev, x, s.x + START * l.cfg.hidden, width), BT_OK);
    EXPECT(bt_mla_fits_fixed(l.mla, &fixed, 1, &span));
    EXPECT_EQ(bt_mla_send_fixed(l.mla, &fixed, 1, &span), BT_OK);
    EXPECT_EQ(bt_mla_forward_fixed(l.mla, &l.w, l.pool, LAYER, &fixed, x, out), BT_OK);
    EXPECT_EQ(bt_device_download(l.dev, s.out + START * l.cfg.hidden, out, width), BT_OK);
    EXPECT_EQ(bt_device_download(l.dev, got, bt_kv_pool_rows(l.pool, s.pages[0], LAYER), page),
              BT_OK);
    EXPECT_EQ(bt_device_download(l.dev, want, bt_kv_pool_rows(l.pool, r.pages[0], LAYER), page),
              BT_OK);
    EXPECT_EQ(bt_device_sync(l.dev), BT_OK);
    EXPECT_EQ(first_difference(&l, r.out, s.out, START + 1), START + 1);
    EXPECT(memcmp(got, want, page) == 0);
    span.n_rows = ROWS;
    EXPECT(bt_mla_fits_fixed(l.mla, &fixed, 1, &span));
    span.n_rows = ROWS + 1;
    EXPECT(!bt_mla_fits_fixed(l.mla, &fixed, 1, &span));
    span.n_rows  = 1;
    fixed.n_rows = MAX_ROWS + 1;
    EXPECT(!bt_mla_fits_fixed(l.mla, &fixed, 1, &span));
    fixed.n_rows = ROWS;
    span.start   = l.cfg.index_topk; /* which chooses */
    EXPECT(!bt_mla_fits_fixed(l.mla, &fixed, 1, &span));
    bt_free(got);
    bt_device_free(l.dev, x), bt_device_free(l.dev, out);
    request_free(&l, &r), request_free(&l, &s);
    layer_free(&l);
    layer_data_free(d);
}

/* Two layers of a step, the second without an indexer: all of its rows, or those of `spans`, which
 * are rows step_rows of the step. */
static void run_two_layers(const layer *l, const request *r, uint32_t n_spans, const bt_span *spans,
                           const uint32_t *step_rows, bt_bf16 *result)
{
    bt_mla_weights second = l->w;
    bt_span        all    = {r->pages, 0, r->n, 0, BT_ROLE_PROMPT, BT_FORM_NORMAL};
    size_t         hidden = l->cfg.hidden, width = hidden * sizeof(bt_bf16);
    void          *x = NULL, *out = NULL;
    uint32_t       n = r->n;

    second.index_q = second.index_k = second.index_w = NULL;
    EXPECT_EQ(bt_device_alloc(l->dev, r->n * width, &x), BT_OK);
    EXPECT_EQ(bt_device_alloc(l->dev, r->n * width, &out), BT_OK);
    EXPECT_EQ(bt_device_upload(l->dev, x, r->x, r->n * width), BT_OK);
    EXPECT_EQ(bt_mla_forward(l->mla, &l->w, l->pool, 0, x, out, 1, &all), BT_OK);
    if (n_spans == 0) {
        EXPECT_EQ(bt_mla_forward(l->mla, &second, l->pool, 1, x, out, 1, &all), BT_OK);
    } else {
        EXPECT_EQ(bt_mla_fill_pages(l->mla, &second, l->pool, 1, x, 1, &all), BT_OK);
        n = spans[n_spans - 1].first_row + spans[n_spans - 1].n_rows;
        for (uint32_t i = 0; i < n; i++)
            EXPECT_EQ(bt_device_upload(l->dev, (char *)x + i * width, r->x + step_rows[i] * hidden,
                                       width),
                      BT_OK);
        EXPECT_EQ(bt_mla_attend(l->mla, &second, l->pool, 1, x, out, n_spans, spans, step_rows),
                  BT_OK);
    }
    EXPECT_EQ(bt_device_download(l->dev, result, out, n * width), BT_OK);
    EXPECT_EQ(bt_device_sync(l->dev), BT_OK);
    bt_device_free(l->dev, x), bt_device_free(l->dev, out);
}

/* A layer without an indexer goes by what the one before has chosen, also for some of the step's
 * rows; its pages have zeros where others have keys. */
static void layers_share_what_was_chosen(void)
{
    static const uint32_t ROWS[] = {50, 80, 81, 96};
    layer_data           *d      = layer_data_new("sparse", &SHAPES[SHAPE_SPARSE].cfg);
    layer    cpu = layer_new(d, "scalar", 1, MAX_ROWS), l = layer_new(d, "cuda", 1, MAX_ROWS);
    request  want = request_new(&cpu, N, 1), r = request_new(&l, N, 1);
    size_t   hidden = l.cfg.hidden, dim = bt_kv_pool_kv_dim(l.pool), i_dim = l.cfg.index_dim;
    bt_bf16 *some   = bt_calloc(4 * hidden, sizeof(*some)),
            *page   = bt_calloc(BT_PAGE_TOKENS * dim, sizeof(*page));
    bt_span spans[] = {
        {r.pages, 0, 1, 50, BT_ROLE_PROMPT, BT_FORM_NORMAL},
        {r.pages, 1, 2, 80, BT_ROLE_PROMPT, BT_FORM_NORMAL},
        {r.pages, 3, 1, 96, BT_ROLE_PROMPT, BT_FORM_NORMAL}
    };

    run_two_layers(&cpu, &want, 0, NULL, NULL, want.out);
    run_two_layers(&l, &r, 0, NULL, NULL, r.out);
    EXPECT(rms_error(&l, &want, &r, l.cfg.index_topk) <= 0.01);
    run_two_layers(&l, &r, 3, spans, ROWS, some);
    for (uint32_t i = 0; i < 4; i++)
        EXPECT(memcmp(some + i * hidden, r.out + ROWS[i] * hidden, hidden * sizeof(*some)) == 0);
    EXPECT_EQ(bt_device_download(l.dev, page, bt_kv_pool_rows(l.pool, r.pages[0], 1),
                                 BT_PAGE_TOKENS * dim * sizeof(*page)),
              BT_OK);
    EXPECT_EQ(bt_device_sync(l.dev), BT_OK);
    for (uint32_t i = 0; i < BT_PAGE_TOKENS * i_dim; i++)
        EXPECT_EQ(page[i / i_dim * dim + dim - i_dim + i % i_dim], 0);
    bt_free(some), bt_free(page);
    request_free(&cpu, &want), request_free(&l, &r);
    layer_free(&cpu), layer_free(&l);
    layer_data_free(d);
}

static void what_does_not_fit_the_tiles_is_refused(void)
{
    bt_mla_config cfg = ALIGNED;
    layer_data   *d   = layer_data_new("cuda", &cfg);
    bt_device    *dev = NULL;
    bt_mla       *mla = NULL;

    EXPECT_EQ(bt_cuda_module.create(0, &dev), BT_OK);
    d->cfg.kv_lora_rank = 513;
    EXPECT_EQ(bt_mla_create(dev, &d->cfg, 1, &mla), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "kv_lora_rank to 512");
    d->cfg                = SHAPES[SHAPE_SPARSE].cfg;
    d->cfg.index_dim      = 129;
    d->cfg.rope_inv_freq  = d->inv_freq;
    d->cfg.rope_magnitude = d->cfg.softmax_scale = 1;
    EXPECT_EQ(bt_mla_create(dev, &d->cfg, 1, &mla), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "index_head_dim to 128 and index_n_heads to 256: found 129 and 5");
    d->cfg.max_context = d->cfg.index_topk; /* then nothing is chosen */
    EXPECT_EQ(bt_mla_create(dev, &d->cfg, 1, &mla), BT_OK);
    bt_mla_destroy(mla);
    bt_device_destroy(dev);
    layer_data_free(d);
}

/* Whatever allocation or call fails while it is made: an error, and nothing is left. */
static void every_failure_of_creation_leaves_nothing(void)
{
    layer_data *d = layer_data_new("cuda", &SHAPES[SHAPE_SPARSE].cfg);
    long        k = 0;

    for (bool done = false; !done; k++) {
        bt_device *dev  = NULL;
        bt_mla    *mla  = NULL;
        long       live = bt_alloc_live(), held;

        EXPECT_EQ(bt_cuda_module.create(0, &dev), BT_OK);
        held               = g_fake_gpu.live;
        g_fake_gpu.fail_at = k;
        done               = bt_mla_create(dev, &d->cfg, 4, &mla) == BT_OK;
        g_fake_gpu.fail_at = -1;
        bt_mla_destroy(mla);
        EXPECT_EQ(g_fake_gpu.live, held);
        bt_device_destroy(dev);
        EXPECT_EQ(bt_alloc_live(), live);
    }
    EXPECT(k > 20);
    layer_data_free(d);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(a_layer_is_right_and_cut_anywhere),
        BT_TEST(both_roles_share_a_step),
        BT_TEST(long_contexts_are_those_of_the_cpu),
        BT_TEST(sparse_rows_are_those_of_the_cpu_and_cut_anywhere),
        BT_TEST(scores_that_do_not_fit_wait),
        BT_TEST(sparse_rows_of_several_batches_are_those_of_the_cpu),
        BT_TEST(rows_that_choose_nothing_are_those_without_an_indexer),
        BT_TEST(a_step_at_fixed_places_writes_the_same_pages),
        BT_TEST(layers_share_what_was_chosen),
        BT_TEST(what_does_not_fit_the_tiles_is_refused),
        BT_TEST(every_failure_of_creation_leaves_nothing),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
