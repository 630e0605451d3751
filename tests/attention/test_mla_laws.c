/* A row's bits: the same whatever the chunks, the neighbours, the threads, and the call in which
 * earlier positions were written.  argv[1]: the kernel family. */
#include "device/cpu/kernels.h"
#include "tests/attention/layer.h"
#include "tests/attention/shapes.h"

static const char        *g_family = "auto";
static const bt_attn_form FORMS[]  = {BT_FORM_NORMAL, BT_FORM_ABSORBED};
static const bt_role      ROLES[]  = {BT_ROLE_PROMPT, BT_ROLE_GENERATED};

/* The outputs and the pages of a run. */
typedef struct {
    bt_bf16 *out, *kv;
} record;

static record record_of(const layer *l, const request *r)
{
    size_t kv_dim = bt_kv_pool_kv_dim(l->pool), width = l->cfg.hidden;
    record c = {bt_calloc(r->n * width, sizeof(bt_bf16)),
                bt_calloc(r->n * kv_dim, sizeof(bt_bf16))};

    memcpy(c.out, r->out, r->n * width * sizeof(bt_bf16));
    for (uint32_t t = 0; t < r->n; t++)
        memcpy(c.kv + t * kv_dim,
               bt_kv_pool_rows(l->pool, r->pages[t / BT_PAGE_TOKENS], LAYER) +
                   t % BT_PAGE_TOKENS * kv_dim,
               kv_dim * sizeof(bt_bf16));
    return c;
}

static void record_free(record *c)
{
    bt_free(c->out);
    bt_free(c->kv);
}

static void expect_same(const layer *l, const request *r, const record *want, const char *what)
{
    record   got    = record_of(l, r);
    uint32_t differ = first_difference(l, got.out, want->out, r->n);

    if (differ != r->n) fprintf(stderr, "%s: row %u differs\n", what, differ);
    EXPECT_EQ(differ, r->n);
    EXPECT(memcmp(got.kv, want->kv, (size_t)r->n * bt_kv_pool_kv_dim(l->pool) * sizeof(bt_bf16)) ==
           0);
    record_free(&got);
}

static void mla_chunks_do_not_change_a_bit(void)
{
    static const uint32_t CHUNKS[] = {1, 7, 64, 100};

    for (int s = 0; s < N_ALL_SHAPES; s++) {
        layer_data *d = layer_data_new(SHAPES[s].name, &SHAPES[s].cfg);
        layer       l = layer_new(d, g_family, 2, 256);
        request     r = request_new(&l, 203, 1);

        for (int way = 0; way < 4; way++) {
            record whole;

            layer_poison(&l);
            layer_run(&l, &r, 0, r.n, r.n, ROLES[way & 1], FORMS[way >> 1]);
            whole = record_of(&l, &r);
            for (size_t c = 0; c < sizeof(CHUNKS) / sizeof(CHUNKS[0]); c++) {
                layer_poison(&l);
                layer_run(&l, &r, 0, r.n, CHUNKS[c], ROLES[way & 1], FORMS[way >> 1]);
                expect_same(&l, &r, &whole, d->name);
            }
            record_free(&whole);
        }
        request_free(&l, &r);
        layer_free(&l);
        layer_data_free(d);
    }
}

/* Chunks that end before, at and after the position where the softmax restarts, and rows that come
 * alone, of which the threads share one with few heads up to there. */
static void mla_chunks_over_the_restarts_do_not_change_a_bit(void)
{
    layer_data *d = layer_data_new("glm-flash", &SHAPES[SHAPE_GLM].cfg);
    layer       l = layer_new(d, g_family, 5, 2300);
    request     r = request_new(&l, 2300, 2);

    for (int way = 0; way < 4; way++) {
        bt_role      role = ROLES[way & 1];
        bt_attn_form form = FORMS[way >> 1];
        record       whole;

        layer_poison(&l);
        layer_run(&l, &r, 0, r.n, r.n, role, form);
        whole = record_of(&l, &r);

        layer_poison(&l);
        layer_run(&l, &r, 0, 1000, 500, role, form);
        layer_run(&l, &r, 1000, 1027, 1, role, form);
        layer_run(&l, &r, 1027, 2000, 500, role, form);
        layer_run(&l, &r, 2000, 2047, 47, role, form);
        layer_run(&l, &r, 2047, 2050, 1, role, form);
        layer_run(&l, &r, 2050, 2240, 95, role, form);
        layer_run(&l, &r, 2240, 2300, 33, role, form);
        expect_same(&l, &r, &whole, "over the restarts");
        record_free(&whole);
    }
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

static void check_threads(int shape)
{
    static const uint32_t THREADS[] = {2, 5};
    layer_data           *d         = layer_data_new(SHAPES[shape].name, &SHAPES[shape].cfg);
    layer                 one       = layer_new(d, g_family, 1, 2200);
    request               r         = request_new(&one, 2200, 3);

    for (int f = 0; f < 2; f++) {
        record want;

        layer_run(&one, &r, 0, r.n, r.n, BT_ROLE_PROMPT, FORMS[f]);
        want = record_of(&one, &r);
        for (size_t i = 0; i < sizeof(THREADS) / sizeof(THREADS[0]); i++) {
            layer   many = layer_new(d, g_family, THREADS[i], 2200);
            request same = request_new(&many, 2200, 3);

            layer_run(&many, &same, 0, r.n, r.n, BT_ROLE_PROMPT, FORMS[f]);
            expect_same(&many, &same, &want, "threads");
            request_free(&many, &same);
            layer_free(&many);
        }
        record_free(&want);
    }
    request_free(&one, &r);
    layer_free(&one);
    layer_data_free(d);
}

static void mla_threads_do_not_change_a_bit(void)
{
    check_threads(SHAPE_GLM);
    check_threads(SHAPE_HEADS);
    check_threads(SHAPE_SPARSE);
}

/* Where the heads of one row are a tile, several tiles, or one of several rows' tiles. */
static void mla_decode_steps_on_any_threads_give_the_same_bits(void)
{
    enum { PROMPT = 2140, ALL = PROMPT + 12 };
    static const uint32_t THREADS[] = {1, 2, 4, 8, 16};
    bt_mla_config         cfg       = SHAPES[SHAPE_HEADS].cfg;
    layer_data           *d;
    record                want = {0};

    cfg.n_heads = 16;
    d           = layer_data_new("16 heads", &cfg);
    for (size_t i = 0; i < sizeof(THREADS) / sizeof(THREADS[0]); i++) {
        layer   l = layer_new(d, g_family, THREADS[i], ALL);
        request r = request_new(&l, ALL, 3);

        layer_run(&l, &r, 0, PROMPT, PROMPT, BT_ROLE_PROMPT, BT_FORM_NORMAL);
        layer_run(&l, &r, PROMPT, PROMPT + 4, 2, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
        layer_run(&l, &r, PROMPT + 4, ALL - 2, 6, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
        layer_run(&l, &r, ALL - 2, ALL, 1, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
        if (i == 0)
            want = record_of(&l, &r);
        else
            expect_same(&l, &r, &want, "decode steps");
        request_free(&l, &r);
        layer_free(&l);
    }
    record_free(&want);
    layer_data_free(d);
}

/* Eight requests of other lengths, forms and roles in the same steps. */
static void mla_neighbours_do_not_change_a_bit(void)
{
    static const uint32_t LENGTHS[8] = {1, 130, 64, 65, 33, 200, 7, 63};
    static const uint32_t ORDER[8]   = {2, 6, 0, 3, 4, 7, 1, 5}; /* short contexts alone, by form */

    for (int s = 0; s < N_ALL_SHAPES; s++) {
        layer_data *d = layer_data_new(SHAPES[s].name, &SHAPES[s].cfg);
        layer       l = layer_new(d, g_family, 2, 600);
        request     r[8];
        record      alone[8];
        piece       p[16];

        for (uint32_t i = 0; i < 8; i++) {
            r[i] = request_new(&l, LENGTHS[i] + 2, 10 + i);
            layer_run(&l, &r[i], 0, LENGTHS[i], 1000, BT_ROLE_PROMPT, FORMS[i % 2]);
            layer_run(&l, &r[i], LENGTHS[i], LENGTHS[i] + 2, 1, BT_ROLE_GENERATED,
                      FORMS[(i + i / 2) % 2]);
            alone[i] = record_of(&l, &r[i]);
        }
        layer_poison(&l);
        for (uint32_t i = 0; i < 8; i++) { /* the replay of a request's both roles in one step */
            p[i]     = (piece){&r[i], 0, LENGTHS[i], BT_ROLE_PROMPT, FORMS[i % 2]};
            p[i + 8] = (piece){&r[i], LENGTHS[i], 2, BT_ROLE_GENERATED, FORMS[(i + i / 2) % 2]};
        }
        EXPECT_EQ(layer_step(&l, 16, p), BT_OK);
        for (uint32_t i = 0; i < 8; i++)
            expect_same(&l, &r[i], &alone[i], "neighbours");

        layer_poison(&l);
        EXPECT_EQ(layer_step(&l, 8, p), BT_OK);
        for (uint32_t i = 0; i < 8; i++)
            p[i] = (piece){&r[i], LENGTHS[i], 1, BT_ROLE_GENERATED, FORMS[(i + i / 2) % 2]};
        EXPECT_EQ(layer_step(&l, 8, p), BT_OK);
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t i = ORDER[k];

            p[k] = (piece){&r[i], LENGTHS[i] + 1, 1, BT_ROLE_GENERATED, FORMS[(i + i / 2) % 2]};
        }
        EXPECT_EQ(layer_step(&l, 6, p), BT_OK);
        EXPECT_EQ(layer_step(&l, 2, p + 6), BT_OK);
        for (uint32_t i = 0; i < 8; i++) {
            expect_same(&l, &r[i], &alone[i], "decode batch");
            record_free(&alone[i]);
            request_free(&l, &r[i]);
        }
        layer_free(&l);
        layer_data_free(d);
    }
}

/* A row depends on the page before it, not on the form or the call that ran the rows in there:
 * generated rows after a prompt, one or several a step, and a prompt whose pages another request
 * shares. */
static void mla_pages_of_another_call_do_not_change_a_bit(void)
{
    layer_data *d = layer_data_new("glm-flash", &SHAPES[SHAPE_GLM].cfg);
    layer       l = layer_new(d, g_family, 2, 256);

    for (int f = 0; f < 2; f++) {
        request r = request_new(&l, 160, 20), other = request_new(&l, 160, 20);
        record  want;

        layer_poison(&l);
        layer_run(&l, &r, 0, 128, 128, BT_ROLE_PROMPT, BT_FORM_NORMAL);
        layer_run(&l, &r, 128, 160, 1, BT_ROLE_GENERATED, FORMS[f]);
        want = record_of(&l, &r);
        layer_run(&l, &r, 128, 160, 32, BT_ROLE_GENERATED, FORMS[f]);
        expect_same(&l, &r, &want, "several generated rows a step");
        layer_run(&l, &r, 128, 160, 5, BT_ROLE_GENERATED, FORMS[f]);
        expect_same(&l, &r, &want, "five generated rows a step");

        for (uint32_t i = 0; i < 2; i++) {
            bt_kv_pool_release(l.pool, other.pages[i]);
            other.pages[i] = r.pages[i];
            bt_kv_pool_retain(l.pool, r.pages[i]);
        }
        memcpy(other.out, r.out, (size_t)128 * l.cfg.hidden * sizeof(*r.out));
        layer_run(&l, &other, 128, 160, 32, BT_ROLE_GENERATED, FORMS[f]);
        expect_same(&l, &other, &want, "a shared prefix");
        record_free(&want);
        request_free(&l, &other);
        request_free(&l, &r);
    }
    layer_free(&l);
    layer_data_free(d);
}

/* A token whose latent is not finite spoils itself and those after it, no one before it. */
static void mla_later_nan_does_not_change_a_bit(void)
{
    static const bt_bf16  BAD[]    = {0x7fc0, 0x7f80, 0x7f7f};
    static const uint32_t CHUNKS[] = {96, 80, 2}; /* the last ones begin just before it */
    enum { BAD_AT = 81 };

    for (int s = 0; s < N_ALL_SHAPES; s++) {
        layer_data *d = layer_data_new(SHAPES[s].name, &SHAPES[s].cfg);
        layer       l = layer_new(d, g_family, 2, 256);
        request     r = request_new(&l, 96, 30);

        for (int i = 0; i < 6; i++) {
            bt_bf16 kept[2];
            record  want;

            layer_poison(&l);
            layer_run(&l, &r, 0, 96, 96, BT_ROLE_PROMPT, FORMS[i % 2]);
            want = record_of(&l, &r);
            memcpy(kept, r.x + BAD_AT * l.cfg.hidden, sizeof(kept));
            r.x[BAD_AT * l.cfg.hidden]     = BAD[i / 2];
            r.x[BAD_AT * l.cfg.hidden + 1] = BAD[i / 2];
            for (size_t k = 0; k < sizeof(CHUNKS) / sizeof(CHUNKS[0]); k++) {
                layer_poison(&l);
                layer_run(&l, &r, 0, 96, CHUNKS[k], BT_ROLE_PROMPT, FORMS[i % 2]);
                EXPECT_EQ(first_difference(&l, r.out, want.out, BAD_AT), BAD_AT);
                if (i < 4 && l.cfg.index_topk == 0) /* else they may attend to others */
                    for (uint32_t t = BAD_AT; t < 96; t++)
                        EXPECT(isnan(bt_bf16_to_f32(r.out[t * l.cfg.hidden])));
            }
            memcpy(r.x + BAD_AT * l.cfg.hidden, kept, sizeof(kept));
            record_free(&want);
        }
        request_free(&l, &r);
        layer_free(&l);
        layer_data_free(d);
    }
}

/* Latents near the smallest numbers: sums underflow, zeros have signs. */
static void mla_subnormals_and_zeros_keep_the_bits(void)
{
    layer_data *d = layer_data_new("v2-lite", &SHAPES[SHAPE_V2_LITE].cfg);
    layer       l;
    request     r;

    for (uint32_t i = 0; i < d->cfg.kv_lora_rank; i++)
        d->kv_a_norm.data[i] = i % 7 == 0 ? 0.0f : i % 2 ? -0x1p-122f : 0x1p-124f;
    l = layer_new(d, g_family, 2, 256);
    r = request_new(&l, 140, 40);
    for (uint32_t i = 0; i < 140 * l.cfg.hidden; i += 3)
        r.x[i] = i % 2 ? 0x8000 : 0x8001;
    memset(r.x + 20 * l.cfg.hidden, 0, l.cfg.hidden * sizeof(*r.x)); /* a row of zeros */
    for (int way = 0; way < 4; way++) {
        record whole;

        layer_poison(&l);
        layer_run(&l, &r, 0, 140, 140, ROLES[way & 1], FORMS[way >> 1]);
        whole = record_of(&l, &r);
        layer_poison(&l);
        layer_run(&l, &r, 0, 140, 1, ROLES[way & 1], FORMS[way >> 1]);
        expect_same(&l, &r, &whole, "subnormals");
        record_free(&whole);
    }
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

/* Families of one arithmetic give one result.  The scalar family runs everywhere, so that all
 * others of dp2 are compared with it. */
static void check_families(int shape, uint32_t n)
{
    layer_data *d    = layer_data_new(SHAPES[shape].name, &SHAPES[shape].cfg);
    layer       base = layer_new(d, "scalar", 2, 600);
    request     want = request_new(&base, n, 50);

    for (int f = 0; f < 2; f++) {
        const char *rest = bt_device_cpu_kernels();
        record      c;

        layer_poison(&base);
        layer_run(&base, &want, 0, n, n, BT_ROLE_GENERATED, FORMS[f]);
        c = record_of(&base, &want);
        while (*rest != 0) {
            size_t  len = strcspn(rest, ",");
            char    name[32];
            layer   l;
            request r;

            snprintf(name, sizeof(name), "%.*s", (int)len, rest);
            rest += len + (rest[len] == ',');
            l = layer_new(d, name, 2, 600);
            if (strcmp(l.dev->arithmetic, base.dev->arithmetic) != 0) {
                layer_free(&l);
                continue;
            }
            r = request_new(&l, n, 50);
            layer_run(&l, &r, 0, n, n, BT_ROLE_GENERATED, FORMS[f]);
            expect_same(&l, &r, &c, name);
            request_free(&l, &r);
            layer_free(&l);
        }
        record_free(&c);
    }
    request_free(&base, &want);
    layer_free(&base);
    layer_data_free(d);
}

/* As far as nothing is chosen a sparse layer is a dense one; from there on the form that a row asks
 * for does not matter. */
static void mla_sparse_rows_are_dense_at_first(void)
{
    bt_mla_config cfg    = SHAPES[SHAPE_SPARSE].cfg;
    layer_data   *sparse = layer_data_new("sparse", &cfg), *dense;
    layer         l      = layer_new(sparse, g_family, 2, 256), other;
    request       r      = request_new(&l, 150, 60), same;

    cfg.index_topk = 0;
    dense          = layer_data_new("dense", &cfg);
    other          = layer_new(dense, g_family, 2, 256);
    same           = request_new(&other, 150, 60);
    for (int role = 0; role < 2; role++) {
        bt_bf16 *by_form[2];

        for (int f = 0; f < 2; f++) {
            layer_run(&l, &r, 0, 150, 100, ROLES[role], FORMS[f]);
            layer_run(&other, &same, 0, 150, 100, ROLES[role], FORMS[f]);
            EXPECT_EQ(first_difference(&l, r.out, same.out, 150), 70);
            by_form[f] = bt_calloc(150 * cfg.hidden, sizeof(bt_bf16));
            memcpy(by_form[f], r.out, 150 * cfg.hidden * sizeof(bt_bf16));
        }
        EXPECT_EQ(
            first_difference(&l, by_form[0] + 70 * cfg.hidden, by_form[1] + 70 * cfg.hidden, 80),
            80);
        EXPECT(first_difference(&l, by_form[0], by_form[1], 70) < 70);
        bt_free(by_form[0]);
        bt_free(by_form[1]);
    }
    request_free(&l, &r);
    request_free(&other, &same);
    layer_free(&l);
    layer_free(&other);
    layer_data_free(sparse);
    layer_data_free(dense);
}

static void mla_families_of_one_arithmetic_agree(void)
{
    check_families(SHAPE_ODD, 130);
    check_families(SHAPE_SPARSE, 130);
    check_families(SHAPE_HEADS, 600); /* whose softmax goes on from block to block */
}

static const bt_test TESTS[] = {
    BT_TEST(mla_chunks_do_not_change_a_bit),
    BT_TEST(mla_chunks_over_the_restarts_do_not_change_a_bit),
    BT_TEST(mla_threads_do_not_change_a_bit),
    BT_TEST(mla_decode_steps_on_any_threads_give_the_same_bits),
    BT_TEST(mla_neighbours_do_not_change_a_bit),
    BT_TEST(mla_pages_of_another_call_do_not_change_a_bit),
    BT_TEST(mla_later_nan_does_not_change_a_bit),
    BT_TEST(mla_subnormals_and_zeros_keep_the_bits),
    BT_TEST(mla_sparse_rows_are_dense_at_first),
    BT_TEST(mla_families_of_one_arithmetic_agree),
};

int main(int argc, char **argv)
{
    if (argc > 1) g_family = argv[1];
    if (bt_cpu_kernels_find(g_family) == NULL) {
        printf("skipped: this CPU has no %s, only %s\n", g_family, bt_device_cpu_kernels());
        return BT_TEST_SKIP;
    }
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}
