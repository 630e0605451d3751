/* A step's rows on their way back: an evaluation in several messages. */
#include "core/alloc.h"
#include "tests/support/test.h"
#include "tests/worker/no_links.h"
#include "worker/state.h"

enum { VOCAB = BT_MAX_VOCAB, FIRST = 1, ROWS = 11, START = 20, LAYERS = 2, TOP_K = 2 };

static uint32_t g_n_rows; /* heard of so far */

static uint16_t expert_of(uint32_t layer, uint32_t row, uint32_t k)
{
    return (uint16_t)(100 * layer + 10 * row + k);
}

/* Each row begins with its number. */
static bt_status hear(void *ctx, bt_up *m)
{
    const bt_up_eval_rows *e  = &m->u.eval_rows;
    uint32_t               at = 0;

    (void)ctx;
    NEED(m->kind == BT_UP_EVAL_ROWS);
    EXPECT(e->request == 7 && e->epoch == 3);
    EXPECT_EQ(e->position, START + g_n_rows);
    EXPECT_EQ(e->n_logit_bytes, (size_t)e->n_rows * VOCAB * sizeof(float));
    EXPECT(e->n_logit_bytes <= 32 << 20);
    NEED(e->n_expert_bytes == (size_t)LAYERS * e->n_rows * TOP_K * sizeof(int32_t));
    for (uint32_t i = 0; i < e->n_rows; i++)
        EXPECT_EQ(((const float *)e->logits)[(size_t)i * VOCAB], FIRST + g_n_rows + i);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < e->n_rows * TOP_K; i++)
            EXPECT_EQ(((const int32_t *)e->experts)[at++],
                      expert_of(layer, FIRST + g_n_rows + i / TOP_K, i % TOP_K));
    g_n_rows += e->n_rows;
    bt_up_free(m);
    return BT_OK;
}

/* Eight rows of the largest vocabulary have 32 MiB.  Another piece's row comes before them. */
static void evaluation_of_large_rows_goes_in_several_messages(void)
{
    bt_model_config model = {
        .vocab_size     = VOCAB,
        .n_layers       = LAYERS,
        .moe_layer_freq = 1,
        .moe.gate       = {.n_experts = 8, .top_k = TOP_K}
    };
    bt_worker_config cfg = {
        .facts    = {.model = &model, .n_ranks = 1},
        .links    = no_links(NULL),
        .max_rows = FIRST + ROWS
    };
    bt_request r = {.id = 7, .epoch = 3};
    bt_batch   b;

    cfg.links.up = hear;
    EXPECT_EQ(bt_batch_init(&b, &cfg), BT_OK);
    b.n_pieces       = 2;
    b.pieces[1]      = (bt_piece){.request = &r, .start = START, .n_rows = ROWS};
    b.spans[1]       = (bt_span){.first_row = FIRST, .n_rows = ROWS, .start = START};
    b.first_logit[1] = FIRST;
    b.step.n_rows    = FIRST + ROWS;
    for (uint32_t row = 0; row < FIRST + ROWS; row++)
        b.logits[(size_t)row * VOCAB] = (float)row;
    for (uint32_t i = 0; i < LAYERS * (FIRST + ROWS) * TOP_K; i++)
        b.chosen[i] = expert_of(i / TOP_K / (FIRST + ROWS), i / TOP_K % (FIRST + ROWS), i % TOP_K);
    EXPECT_EQ(bt_batch_send_eval(&b, &cfg, 1), BT_OK);
    EXPECT_EQ(g_n_rows, ROWS);
    bt_batch_fini(&b);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(evaluation_of_large_rows_goes_in_several_messages),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
