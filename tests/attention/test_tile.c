/* The running softmax of a tile has the bits of the scalar twin, whatever stands beside a lane.
 * argv[1]: the kernel family. */
#include <math.h>

#include "attention/cpu/tile.h"
#include "attention/mla.h"
#include "core/alloc.h"
#include "tests/attention/twin.h"
#include "tests/support/test.h"

enum { MAX_KEYS = TWIN_MAX_BLOCK, LANES = BT_TILE_LANES, V_DIM = 104, CONTEXT = 2048 + 200 };

static bt_device            *g_dev;
static const bt_cpu_kernels *g_kernels;
static bt_tile_scratch       g_scratch;
static bt_bf16              *g_packed;
static float                *g_state[2];
static uint32_t              g_seed = 1, g_keys; /* of a block */

static float uniform(void) /* -1 .. 1 */
{
    g_seed = g_seed * 1664525u + 1013904223u;
    return (float)(int32_t)g_seed / 2147483648.0f;
}

/* One case: every lane's score of every key, and the values. */
typedef struct {
    float   scores[LANES][CONTEXT];
    bt_bf16 values[CONTEXT][V_DIM];
} lane_case;

static lane_case *new_case(float score_size, float value_size)
{
    lane_case *c = bt_calloc(1, sizeof(*c));

    for (int l = 0; l < LANES; l++)
        for (int k = 0; k < CONTEXT; k++)
            c->scores[l][k] = uniform() * score_size;
    for (int k = 0; k < CONTEXT; k++)
        for (int i = 0; i < V_DIM; i++)
            c->values[k][i] = bt_bf16_from_f32(uniform() * value_size);
    return c;
}

static bt_tile tile_at(uint32_t pos0, uint32_t lane0, uint32_t n_lanes, uint32_t lanes_per_pos)
{
    return (bt_tile){.kernels       = g_kernels,
                     .role          = BT_ROLE_GENERATED,
                     .scale         = 0.3f,
                     .v_dim         = V_DIM,
                     .block_keys    = g_keys,
                     .split         = BT_ATTN_SPLIT_TOKENS,
                     .n_lanes       = n_lanes,
                     .lane0         = lane0,
                     .lanes_per_pos = lanes_per_pos,
                     .pos0          = pos0};
}

static void run_tile(const lane_case *c, const bt_tile *t, uint32_t n_written, bt_bf16 *out)
{
    bt_tile_state all = bt_tile_state_at(g_state[0]), part = bt_tile_state_at(g_state[1]);
    uint32_t      end = bt_tile_last_pos(t) + 1;

    for (uint32_t p = 0; p < end; p += BT_ATTN_SPLIT_TOKENS) {
        bt_tile_state *s = p == 0 ? &all : &part;

        memset(s == &all ? g_state[0] : g_state[1], 0xff, /* no numbers, where nothing comes */
               bt_tile_state_floats(V_DIM) * sizeof(float));
        bt_tile_reset(t, s);
        for (uint32_t b = p; b < end && b < p + BT_ATTN_SPLIT_TOKENS; b += g_keys) {
            uint32_t       n_keys = n_written - b < g_keys ? n_written - b : g_keys;
            const bt_bf16 *pages[MAX_KEYS / BT_PAGE_TOKENS];
            bt_key_block   block = {
                  .start = b, .n_keys = n_keys, .values = g_packed, .pages = pages, .ld = V_DIM};

            /* Packed before, and, in the larger blocks, from pages. */
            g_kernels->rows->pack_cols(c->values[b], V_DIM, n_keys, V_DIM, bt_cpu_pad(n_keys, 32),
                                       g_packed);
            for (uint32_t i = 0; i * BT_PAGE_TOKENS < n_keys; i++)
                pages[i] = c->values[b + i * BT_PAGE_TOKENS];
            if (g_keys > BT_PAGE_TOKENS) block.values = NULL;
            for (uint32_t l = bt_tile_first_lane(t, b); l < t->n_lanes; l++)
                memcpy(g_scratch.scores + (size_t)l * g_keys, &c->scores[l][b],
                       block.n_keys * sizeof(float));
            bt_tile_add(t, &block, &g_scratch, s);
        }
        if (p != 0) bt_tile_merge(t, p, &part, &all);
    }
    bt_tile_finish(t, &all, out, V_DIM);
}

static void expect_twin(const lane_case *c, const bt_tile *t, uint32_t n_written)
{
    bt_bf16  got[LANES][V_DIM], want[V_DIM];
    uint32_t n_differ = 0;

    run_tile(c, t, n_written, got[0]);
    for (uint32_t l = 0; l < t->n_lanes; l++) {
        twin_attend(&(twin_keys){.scores = c->scores[l],
                                 .values = c->values[0],
                                 .ld     = V_DIM,
                                 .n      = bt_tile_pos(t, l) + 1,
                                 .block  = g_keys,
                                 .part   = t->split,
                                 .scale  = t->scale,
                                 .v_dim  = V_DIM},
                    want);
        n_differ += memcmp(got[l], want, sizeof(want)) != 0;
    }
    EXPECT_EQ(n_differ, 0);
}

static void tile_equals_the_twin_at_every_place(void)
{
    static const uint32_t AT[][4] = {
        {0,    0, 1,  1  },
        {0,    0, 64, 1  },
        {5,    0, 64, 1  },
        {63,   0, 2,  1  },
        {64,   0, 33, 1  },
        {0,    3, 50, 5  },
        {40,   1, 64, 4  },
        {130,  0, 5,  128},
        {2040, 0, 30, 1  },
        {2047, 2, 64, 16 },
        {2048, 0, 7,  3  },
        {2200, 0, 20, 1  }
    };
    lane_case *c = new_case(20, 1);

    for (size_t i = 0; i < sizeof(AT) / sizeof(AT[0]); i++) {
        bt_tile  t    = tile_at(AT[i][0], AT[i][1], AT[i][2], AT[i][3]);
        uint32_t last = bt_tile_last_pos(&t);

        expect_twin(c, &t, last + 1);
        expect_twin(c, &t, last + 20); /* other tokens of the page are written already */
    }
    bt_free(c);
}

static void tile_large_scores_neither_overflow_nor_vanish(void)
{
    lane_case *c = new_case(3e4f, 1);
    bt_tile    t = tile_at(2000, 0, 64, 1);

    expect_twin(c, &t, 2064);
    bt_free(c);
}

/* Sums that underflow leave zeros of either sign, by way of keys that a lane does not see. */
static void tile_subnormal_sums_and_signed_zeros_keep_the_bits(void)
{
    lane_case *c = new_case(300, 0x1p-118f);
    bt_tile    t = tile_at(2010, 0, 64, 1);

    for (int k = 0; k < CONTEXT; k++)
        for (int i = 0; i < V_DIM; i++)
            if ((k + i) % 3 == 0) c->values[k][i] = (k + i) % 2 ? 0x8000 : i % 5 ? 0 : 0x8001;
    expect_twin(c, &t, 2080);
    bt_free(c);
}

static void tile_later_inf_and_nan_stay_away_from_earlier_lanes(void)
{
    static const bt_bf16 BAD[] = {0x7f80, 0xff80, 0x7fc0, 0xffff};
    lane_case           *c     = new_case(5, 1);
    bt_tile              t = tile_at(100, 0, 20, 1), rest = tile_at(100, 0, 11, 1);
    bt_bf16              got[LANES][V_DIM], want[LANES][V_DIM];

    run_tile(c, &rest, 111, want[0]);
    for (uint32_t i = 0; i < V_DIM; i++) /* the token at 111 */
        c->values[111][i] = BAD[i % 4];
    for (uint32_t l = 0; l < LANES; l++)
        c->scores[l][111] = l % 2 ? NAN : INFINITY;
    run_tile(c, &t, 120, got[0]);
    EXPECT(memcmp(got, want, 11 * sizeof(got[0])) == 0);
    for (uint32_t l = 11; l < t.n_lanes; l++)
        for (uint32_t i = 0; i < V_DIM; i++)
            EXPECT(isnan(bt_bf16_to_f32(got[l][i])));
    bt_free(c);
}

/* Keys that no lane sees, but that lie in a step of the products with keys that some do. */
static void tile_inf_and_nan_beyond_the_last_lane_change_nothing(void)
{
    lane_case *c = new_case(5, 1);
    bt_tile    t = tile_at(100, 0, 11, 1);

    for (uint32_t key = 112; key < 120; key++)
        for (uint32_t i = 0; i < V_DIM; i++)
            c->values[key][i] = i % 2 ? 0x7f80 : 0x7fc0;
    expect_twin(c, &t, 120);
    bt_free(c);
}

static const bt_test TESTS[] = {
    BT_TEST(tile_equals_the_twin_at_every_place),
    BT_TEST(tile_large_scores_neither_overflow_nor_vanish),
    BT_TEST(tile_subnormal_sums_and_signed_zeros_keep_the_bits),
    BT_TEST(tile_later_inf_and_nan_stay_away_from_earlier_lanes),
    BT_TEST(tile_inf_and_nan_beyond_the_last_lane_change_nothing),
};

int main(int argc, char **argv)
{
    bt_device_cpu_options opt = {.n_threads = 1, .kernels = argc > 1 ? argv[1] : "auto"};
    int                   rc;

    if (bt_cpu_kernels_find(opt.kernels) == NULL) {
        printf("skipped: this CPU has no %s, only %s\n", opt.kernels, bt_device_cpu_kernels());
        return BT_TEST_SKIP;
    }
    if (bt_device_cpu_create(&opt, &g_dev) != BT_OK) return EXIT_FAILURE;
    g_kernels         = bt_device_cpu_table(g_dev);
    g_twin_arithmetic = g_kernels->arithmetic[BT_ROLE_GENERATED];
    g_scratch.scores  = bt_calloc_aligned((size_t)LANES * MAX_KEYS, sizeof(float));
    g_scratch.p       = bt_calloc_aligned((size_t)LANES * MAX_KEYS, sizeof(bt_bf16));
    g_scratch.slab =
        bt_calloc_aligned(bt_cpu_packed_elems(BT_TILE_SLAB, MAX_KEYS), sizeof(bt_bf16));
    g_scratch.cut = bt_calloc_aligned(bt_cpu_packed_elems(V_DIM, MAX_KEYS), sizeof(bt_bf16));
    g_packed      = bt_calloc_aligned(bt_cpu_packed_elems(V_DIM, MAX_KEYS), sizeof(bt_bf16));
    g_state[0]    = bt_calloc_aligned(bt_tile_state_floats(V_DIM), sizeof(float));
    g_state[1]    = bt_calloc_aligned(bt_tile_state_floats(V_DIM), sizeof(float));
    g_keys        = BT_PAGE_TOKENS;
    rc            = BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
    g_keys        = MAX_KEYS;
    if (rc == 0) rc = BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
    bt_free(g_scratch.scores);
    bt_free(g_scratch.p);
    bt_free(g_scratch.slab);
    bt_free(g_scratch.cut);
    bt_free(g_packed);
    bt_free(g_state[0]);
    bt_free(g_state[1]);
    bt_device_destroy(g_dev);
    return rc;
}
