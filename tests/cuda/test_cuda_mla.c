/* A layer's attention on the CUDA back end, on a GPU that is host memory: against the plain
 * reference and the CPU back end; and the laws. */
#include <cuda_runtime_api.h>

#include "attention/reference/mla_reference.h"
#include "core/alloc.h"
#include "device/cpu/device_cpu.h"
#include "device/cuda/module.h"

extern const bt_cuda_module_table bt_cuda_module;

static bt_status create(const bt_device_cpu_options *opt, bt_device **dev_out)
{
    return strcmp(opt->kernels, "cuda") == 0 ? bt_cuda_module.create(0, dev_out)
                                             : bt_device_cpu_create(opt, dev_out);
}
#define LAYER_DEVICE create
#include "tests/attention/layer.h"

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
    bt_device_destroy(dev);
    layer_data_free(d);
}

/* Whatever allocation or call fails while it is made: an error, and nothing is left. */
static void every_failure_of_creation_leaves_nothing(void)
{
    layer_data *d = layer_data_new("cuda", &ALIGNED);
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
        BT_TEST(what_does_not_fit_the_tiles_is_refused),
        BT_TEST(every_failure_of_creation_leaves_nothing),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
