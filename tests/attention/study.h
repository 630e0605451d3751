/* tests/attention/study.h - a random layer's weights as the study wants them, and a cache. */
#ifndef BT_TESTS_ATTENTION_STUDY_H
#define BT_TESTS_ATTENTION_STUDY_H

#include "attention/variants/variants.h"
#include "tests/attention/layer.h"

static inline bt_bf16 *bf16_of(const matrix *m)
{
    size_t   n = (size_t)m->n * m->k;
    bt_bf16 *v = m->data == NULL ? NULL : bt_calloc(n, sizeof(*v));

    for (size_t i = 0; i < n && v != NULL; i++)
        v[i] = bt_bf16_from_f32(m->data[i]);
    return v;
}

static inline bt_study_weights study_weights_new(const layer_data *d)
{
    return (bt_study_weights){.q         = bf16_of(d->cfg.q_lora_rank != 0 ? &d->q_b : &d->q),
                              .q_a       = bf16_of(&d->q_a),
                              .q_a_norm  = bf16_of(&d->q_a_norm),
                              .kv_a      = bf16_of(&d->kv_a),
                              .kv_a_norm = bf16_of(&d->kv_a_norm),
                              .kv_b      = bf16_of(&d->kv_b),
                              .o         = bf16_of(&d->o)};
}

static inline void study_weights_free(bt_study_weights *w)
{
    const bt_bf16 *all[] = {w->q, w->q_a, w->q_a_norm, w->kv_a, w->kv_a_norm, w->kv_b, w->o};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        bt_free((void *)(uintptr_t)all[i]);
}

/* n rows of `width` elements of about unit size. */
static inline bt_bf16 *random_rows(size_t n, size_t width, uint32_t seed)
{
    bt_bf16 *rows = bt_calloc(n * width + 1, sizeof(*rows));

    for (size_t i = 0; i < n * width; i++)
        rows[i] = bt_bf16_from_f32(hash_uniform(seed, (uint32_t)i) * 1.7f);
    return rows;
}

#endif
