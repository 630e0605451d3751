/* tests/model/int4_twin.h - the model of 4 bits and the same one stored in bf16: their logits are
 * equal to the bit.
 *
 * What a weight is worth is computed here once more, from the words of the file. */
#ifndef BT_TESTS_MODEL_INT4_TWIN_H
#define BT_TESTS_MODEL_INT4_TWIN_H

#include <unistd.h>

#include "tests/model/engine.h"

enum { TWIN_TENSORS = 512 };

static goldens   g_int4, g_bf16;
static bt_world *g_world;

static inline const bt_tensor *beside(const bt_tensor *packed, const char *end)
{
    char name[256];

    snprintf(name, sizeof(name), "%.*s%s", (int)(strlen(packed->name) - strlen("_packed")),
             packed->name, end);
    return bt_safetensors_find(g_int4.weights, name);
}

/* The tensor in bf16; its name and data are to be freed. */
static inline bt_tensor widen_tensor(const bt_tensor *t, void **name_out, void **data_out)
{
    const bt_tensor *scale = beside(t, "_scale");
    size_t           n = t->shape[0], k = t->shape[1] * 8;
    bt_bf16         *data = malloc(n * k * sizeof(*data));
    char            *name = strdup(t->name);
    bt_tensor        wide = {
               .name   = name,
               .dtype  = BT_ST_BF16,
               .n_dims = 2,
               .shape  = {n, k},
               .data   = data,
               .bytes  = n * k * sizeof(*data)
    };

    NEED(scale != NULL && data != NULL && name != NULL);
    name[strlen(name) - strlen("_packed")] = '\0';
    for (size_t i = 0; i < n * k; i++) {
        uint32_t word;
        bt_bf16  s;

        memcpy(&word, (const char *)t->data + i / 8 * sizeof(word), sizeof(word));
        memcpy(&s, (const char *)scale->data + i / 32 * sizeof(s), sizeof(s));
        data[i] = bt_bf16_from_f32(((float)(word >> i % 8 * 4 & 15) - 8) * bt_bf16_to_f32(s));
    }
    *name_out = name;
    *data_out = data;
    return wide;
}

/* Opens both, the second from a file that is gone at once. */
static inline void twins_open(void)
{
    static bt_tensor list[TWIN_TENSORS];
    void            *ours[2 * TWIN_TENSORS] = {NULL};
    char             file[]                 = "/tmp/baton-int4-XXXXXX";
    size_t           n = 0, n_packed = 0;
    int              fd = mkstemp(file);

    NEED(fd >= 0);
    close(fd);
    goldens_open(&g_int4, "k2-int4");
    goldens_open(&g_bf16, "k2-int4");
    NEED(g_int4.cfg.int4);
    for (size_t i = 0; i < bt_safetensors_count(g_int4.weights); i++) {
        const bt_tensor *t    = bt_safetensors_at(g_int4.weights, i);
        size_t           tail = strlen(t->name);

        NEED(n < TWIN_TENSORS);
        if (tail > 13 && (strcmp(t->name + tail - 13, ".weight_scale") == 0 ||
                          strcmp(t->name + tail - 13, ".weight_shape") == 0))
            continue;
        list[n] = *t;
        if (t->dtype == BT_ST_I32)
            list[n] = widen_tensor(t, &ours[2 * n_packed], &ours[2 * n_packed + 1]), n_packed++;
        n++;
    }
    NEED(n_packed == 72);
    NEED(bt_safetensors_write(file, n, list) == BT_OK);
    for (size_t i = 0; i < 2 * n_packed; i++)
        free(ours[i]);
    bt_safetensors_close(g_bf16.weights);
    NEED(bt_safetensors_open(file, &g_bf16.weights) == BT_OK);
    g_bf16.cfg.int4 = false;
    unlink(file);
}

static inline void twins_close(void)
{
    goldens_close(&g_int4);
    goldens_close(&g_bf16);
}

/* Collective over the world: all cases by all ranks, one after the other, as either model has them,
 * in pieces and at once, with rows of both roles. */
static inline void expect_twins(const engine_options *opt, bt_form_policy form)
{
    static sequence runs[2][MAX_GOLDEN_CASES][3];
    uint32_t        n_ranks = bt_world_size(g_world), all[MAX_RANKS];
    size_t          bytes[2];

    NEED(n_ranks <= MAX_RANKS);
    for (uint32_t r = 0; r < n_ranks; r++)
        all[r] = r;
    for (int m = 0; m < 2; m++) {
        const goldens *g = m == 0 ? &g_int4 : &g_bf16;
        engine         e;

        engine_open(&e, g, g_world, n_ranks, all, opt);
        bytes[m] = bt_model_weight_bytes(e.model);
        for (uint32_t c = 0; c < g->n_cases; c++)
            for (uint32_t i = 0; i < 3; i++) {
                sequence *s = &runs[m][c][i];

                *s = (sequence){.c             = &g->cases[c],
                                .rank          = c % n_ranks,
                                .chunk         = i * 19,
                                .rows_per_step = 1 + 3 * i,
                                .form          = form};
                engine_run(&e, 1, s);
            }
        engine_close(&e);
    }
    EXPECT(bytes[0] < bytes[1]);
    for (uint32_t c = 0; c < g_int4.n_cases; c++)
        for (uint32_t i = 0; i < 3; i++) {
            EXPECT(sequence_equal(&g_int4, &runs[0][c][i], &runs[1][c][i]));
            sequence_free(&runs[0][c][i]);
            sequence_free(&runs[1][c][i]);
        }
}

/* The main() of tests of both. */
static inline int twins_main(int argc, char **argv, const bt_test *tests, size_t n_tests)
{
    int rc;

    bt_log_init("test", BT_LOG_WARN);
    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK);
    twins_open();
    rc = bt_run_tests(tests, n_tests, argc > 1 ? argv[1] : NULL);
    twins_close();
    bt_world_fini(g_world);
    return rc;
}

#endif
