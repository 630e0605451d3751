#include "tests/support/scratch.h"
#include "worker/memory.h"

enum { GIB = 1 << 30 };

static bt_model_config config(void)
{
    bt_model_config cfg = {.n_layers = 4, .max_context = 8192};

    cfg.mla.kv_lora_rank = 512;
    cfg.mla.qk_rope_dim  = 64;
    return cfg;
}

static void pages_of_given_bytes_are_rounded_down(void)
{
    bt_model_config   cfg = config();
    bt_memory_account a   = {.available = GIB, .local_size = 1};

    EXPECT_EQ(bt_memory_plan_pages(&cfg, 3 * 294912 + 5, &a), BT_OK);
    EXPECT_EQ(a.page_bytes, 4 * 64 * 576 * 2);
    EXPECT_EQ(a.n_pages, 3);
    EXPECT_EQ(a.pages, 3 * 294912);
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 294911, &a), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "294912");
    EXPECT_EQ(bt_memory_plan_pages(&cfg, GIB, &a), BT_OK);
    EXPECT_EQ(bt_memory_plan_pages(&cfg, (uint64_t)GIB + 1, &a), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "--kv-bytes 1073741825 is more than this machine has");
    a = (bt_memory_account){.available = GIB, .local_size = 4, .shared = 600 << 20};
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 106 << 20, &a), BT_OK);
    EXPECT_EQ(bt_memory_plan_pages(&cfg, (106 << 20) + 1, &a), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "for each of its 4 ranks: 111149056, beside the weights");
    a = (bt_memory_account){.available = GIB, .local_size = 4, .weights = 150 << 20};
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 106 << 20, &a), BT_OK);
    EXPECT_EQ(bt_memory_plan_pages(&cfg, (106 << 20) + 1, &a), BT_ERR_INVALID_ARG);
}

static void pages_of_the_account_are_shared_and_bounded(void)
{
    bt_model_config   cfg = config();
    bt_memory_account a   = {.available = GIB, .local_size = 4, .weights = 100 << 20};

    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    EXPECT_EQ(a.n_pages, ((uint64_t)GIB / 100 * 85 / 4 - (100 << 20)) / 294912);
    a = (bt_memory_account){.available = 64ull * GIB, .local_size = 1};
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    EXPECT_EQ(a.n_pages, 4 * 8192 / 64); /* four full contexts */
    EXPECT(a.capped);
    a = (bt_memory_account){.available = 64ull * GIB, .local_size = 1, .on_gpu = true};
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    EXPECT_EQ(a.n_pages, 64ull * GIB / 100 * 85 / 294912); /* all there is */
    EXPECT(!a.capped);
    a.available = 1024ull * GIB;
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    EXPECT_EQ(a.n_pages, 1 << 20);
    EXPECT(a.capped);
    a = (bt_memory_account){
        .available = GIB, .local_size = 4, .weights = 100 << 20, .shared = 700 << 20};
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK); /* shared weights are taken off once */
    EXPECT_EQ(a.n_pages, ((uint64_t)GIB / 100 * 85 - (700 << 20)) / 4 / 294912);
    a = (bt_memory_account){.available = GIB, .local_size = 4, .shared = 3 << 28};
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    a = (bt_memory_account){.available = GIB, .local_size = 4, .weights = 300 << 20};
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_ERR_NO_MEMORY);
    EXPECT_HAS(bt_error_text(), "weights");
}

/* Staging and graphs take the same whatever a step's rows. */
static void rows_that_would_fit_do_fit(void)
{
    bt_model_config   cfg  = config();
    bt_memory_account a    = {.available  = GIB,
                              .local_size = 1,
                              .weights    = 100 << 20,
                              .step       = 900 << 20,
                              .graphs     = 50 << 20,
                              .staging    = 100 << 20,
                              .max_rows   = 900};
    const char       *hint = NULL;
    unsigned          rows = 0;

    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_ERR_NO_MEMORY);
    hint = strstr(bt_error_text(), "--max-rows ");
    EXPECT(hint != NULL && sscanf(hint, "--max-rows %u", &rows) == 1);
    EXPECT(rows > 0 && rows < a.max_rows);
    a.step = (uint64_t)rows << 20;
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    a.step = (uint64_t)(rows + 1) << 20;
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_ERR_NO_MEMORY);
}

static void pinned_memory_of_all_ranks_must_be_there(void)
{
    bt_memory_account a = {.on_gpu = true, .pinned = 50 << 20};

    EXPECT_EQ(bt_memory_check_pinned(&a, 10 << 20, 8, 80 << 20), BT_OK);
    EXPECT_EQ(bt_memory_check_pinned(&a, 10 << 20, 8, (80 << 20) - 1), BT_ERR_NO_MEMORY);
    EXPECT_HAS(bt_error_text(),
               "each of the 8 ranks on this machine needs 50 MiB of pinned memory");
    EXPECT_HAS(bt_error_text(), "79 MiB are left");
}

/* Two ranks share the experts and nothing else. */
static void weights_of_ranks_add_up(void)
{
    bt_model_config cfg;
    bt_safetensors *st = NULL;
    uint64_t        all, parts[2], experts;
    bool            own[256];

    EXPECT_EQ(bt_model_config_read(BT_SOURCE_DIR "/models/demo", &cfg), BT_OK);
    EXPECT_EQ(bt_safetensors_open(BT_SOURCE_DIR "/models/demo", &st), BT_OK);
    all = bt_memory_weights(&cfg, st, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t e = 0; e < cfg.moe.gate.n_experts; e++)
            own[e] = e % 2 == i;
        parts[i] = bt_memory_weights(&cfg, st, own);
    }
    experts = (uint64_t)bt_model_n_moe_layers(&cfg) * cfg.moe.gate.n_experts * 3 * cfg.hidden *
              cfg.moe.expert_dim * sizeof(bt_bf16);
    EXPECT_EQ(parts[0], parts[1]);
    EXPECT_EQ(all - parts[0], experts / 2);
    bt_safetensors_close(st);
}

/* A byte and a 32nd; kv_b, embedding, head and norms have two. */
static uint64_t bytes_as_loaded(const bt_tensor *t)
{
    if (strstr(t->name, "_scale_inv") != NULL) return 0;
    if (t->dtype != BT_ST_F8_E4M3) return t->bytes / (t->dtype == BT_ST_F32 ? 2 : 1);
    return strstr(t->name, ".kv_b_proj.") == NULL ? t->bytes + t->bytes / 32 : 2 * t->bytes;
}

/* The layer for multi-token prediction where it is served, without its copies of embedding and
 * head. */
static void weights_in_8_bits_are_counted(void)
{
    const char     *path = BT_SOURCE_DIR "/tests/models/v3-fp8";
    bt_model_config cfg;
    bt_safetensors *st   = NULL;
    uint64_t        want = 0, more = 0;

    EXPECT_EQ(bt_model_config_read(path, &cfg), BT_OK);
    EXPECT_EQ(bt_safetensors_open(path, &st), BT_OK);
    for (size_t i = 0; i < bt_safetensors_count(st); i++) {
        const bt_tensor *t = bt_safetensors_at(st, i);

        if (strstr(t->name, ".layers.3.") == NULL)
            want += bytes_as_loaded(t);
        else if (strcmp(t->name, "model.layers.3.embed_tokens.weight") != 0 &&
                 strcmp(t->name, "model.layers.3.shared_head.head.weight") != 0)
            more += bytes_as_loaded(t);
    }
    EXPECT_EQ(bt_memory_weights(&cfg, st, NULL), want);
    EXPECT_EQ(bt_model_config_serve_mtp(&cfg), BT_OK);
    EXPECT_EQ(bt_memory_weights(&cfg, st, NULL), want + more);
    bt_safetensors_close(st);
}

/* Of a multimodal checkpoint the language model is loaded, and nothing else. */
static void weights_of_other_parts_are_not_counted(void)
{
    static const uint16_t DATA[256];
    const char           *path = BT_SOURCE_DIR "/tests/models/v2-lite";
    const char           *file = scratch_path("other");
    bt_model_config       cfg;
    bt_safetensors       *st     = NULL;
    const bt_tensor       list[] = {
              {"language_model.model.norm.weight",        BT_ST_BF16, 1, {96},    DATA, 192, NULL},
              {"language_model.lm_head.weight",           BT_ST_BF16, 2, {2, 96}, DATA, 384, NULL},
              {"vision_tower.encoder.blocks.0.wo.weight", BT_ST_BF16, 2, {2, 96}, DATA, 384, NULL}
    };

    EXPECT_EQ(bt_model_config_read(path, &cfg), BT_OK);
    EXPECT_EQ(bt_safetensors_write(file, 3, list), BT_OK);
    EXPECT_EQ(bt_safetensors_open(file, &st), BT_OK);
    EXPECT_EQ(bt_memory_weights(&cfg, st, NULL), 192 + 384);
    bt_safetensors_close(st);
}

/* Half a byte and a sixteenth, of the experts; all else has two. */
static void weights_in_4_bits_are_counted(void)
{
    const char     *path = BT_SOURCE_DIR "/tests/models/k2-int4";
    bt_model_config cfg;
    bt_safetensors *st     = NULL;
    uint64_t        narrow = 0, wide = 0;

    EXPECT_EQ(bt_model_config_read(path, &cfg), BT_OK);
    EXPECT_EQ(bt_safetensors_open(path, &st), BT_OK);
    for (size_t i = 0; i < bt_safetensors_count(st); i++) {
        const bt_tensor *t = bt_safetensors_at(st, i);

        if (strstr(t->name, ".experts.") == NULL)
            wide += t->bytes / (t->dtype == BT_ST_F32 ? 2 : 1);
        else if (strstr(t->name, "_shape") == NULL) /* words and scales */
            narrow += t->bytes;
    }
    EXPECT_EQ(narrow, 2ull * 12 * 3 * 160 * 96 * 9 / 16);
    EXPECT_EQ(bt_memory_weights(&cfg, st, NULL), wide + narrow);
    bt_safetensors_close(st);
}

/* What bt_placement_of_seats() gives a survivor more, whoever is lost. */
static void adopted_experts_are_counted(void)
{
    for (uint32_t n = 2; n <= 9; n++)
        for (uint32_t n_experts = 1; n_experts <= 64; n_experts += 9) {
            uint32_t most = 0;

            for (uint32_t lost = 0; lost < n; lost++) {
                bool         taken[9] = {false};
                uint32_t     count[9] = {0};
                bt_placement before, after;

                for (uint32_t i = 0; i < n; i++)
                    taken[i] = i != lost;
                EXPECT_EQ(bt_placement_init(&before, n_experts, 1, n), BT_OK);
                EXPECT_EQ(bt_placement_of_seats(&after, n_experts, 1, n, taken), BT_OK);
                for (uint32_t e = 0; e < n_experts; e++)
                    if (before.owner[e] == lost && ++count[after.owner[e]] > most)
                        most = count[after.owner[e]];
                bt_placement_fini(&before);
                bt_placement_fini(&after);
            }
            EXPECT_EQ(bt_memory_adopted(n_experts, n), most);
        }
    EXPECT_EQ(bt_memory_adopted(64, 1), 0);
}

static void experts_of_a_lost_rank_have_room(void)
{
    bt_model_config   cfg = config();
    bt_memory_account a   = {
          .available = GIB, .local_size = 4, .weights = 100 << 20, .expert = 10 << 20};
    uint32_t with, without;

    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    without = a.n_pages;
    a.adopt = 60 << 20;
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    with = a.n_pages;
    EXPECT(without - with >= (60 << 20) / 294912 && without - with <= (60 << 20) / 294912 + 1);
    a.adopt = 100 << 20; /* that leaves less than a full context: it serves without */
    EXPECT_EQ(bt_memory_plan_pages(&cfg, 0, &a), BT_OK);
    EXPECT_EQ(a.adopt, 0);
    EXPECT_EQ(a.n_pages, without);
    EXPECT_EQ(bt_memory_check_room(&a, 3, 4, UINT64_MAX, 120 << 20), BT_OK);
    EXPECT_EQ(bt_memory_check_room(&a, 3, 4, UINT64_MAX, (120 << 20) - 1), BT_ERR_NO_MEMORY);
    EXPECT_HAS(bt_error_text(), "needs 120 MiB, and 119 MiB are left");
    EXPECT_EQ(bt_memory_check_room(&a, 3, 4, 7 << 20, 7 << 20), BT_OK);
    EXPECT_EQ(bt_memory_check_room(&a, 3, 4, 7 << 20, (7 << 20) - 1), BT_ERR_NO_MEMORY);
}

static void available_memory_is_some(void)
{
    EXPECT(bt_memory_available() > 16 << 20);
    EXPECT(bt_memory_available() < 1ull << 50);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(pages_of_given_bytes_are_rounded_down),
        BT_TEST(pages_of_the_account_are_shared_and_bounded),
        BT_TEST(rows_that_would_fit_do_fit),
        BT_TEST(pinned_memory_of_all_ranks_must_be_there),
        BT_TEST(weights_of_ranks_add_up),
        BT_TEST(weights_in_8_bits_are_counted),
        BT_TEST(weights_in_4_bits_are_counted),
        BT_TEST(weights_of_other_parts_are_not_counted),
        BT_TEST(adopted_experts_are_counted),
        BT_TEST(experts_of_a_lost_rank_have_room),
        BT_TEST(available_memory_is_some),
    };

    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
