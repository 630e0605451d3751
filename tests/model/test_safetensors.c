/* Files that are right: where tensors lie, what they are called, how they are written. */
#include <sys/stat.h>

#include "model/safetensors_header.h"
#include "tests/model/safetensors_files.h"
#include "tests/support/sweep.h"

#define KIMI BT_SOURCE_DIR "/tests/models/kimi-k2"

static void safetensors_of_one_file_are_found_and_sorted(void)
{
    bt_safetensors  *set = NULL;
    const bt_tensor *t;

    EXPECT_EQ(bt_safetensors_open(BT_SOURCE_DIR "/tests/models/v3-fp8", &set), BT_OK);
    if (set == NULL) return;
    EXPECT_EQ(bt_safetensors_count(set), 239);
    for (size_t i = 1; i < bt_safetensors_count(set); i++)
        EXPECT(strcmp(bt_safetensors_at(set, i - 1)->name, bt_safetensors_at(set, i)->name) < 0);
    t = bt_safetensors_find(set, "model.embed_tokens.weight");
    EXPECT(t != NULL && t->dtype == BT_ST_BF16 && t->n_dims == 2 && t->shape[0] == 320 &&
           t->shape[1] == 192 && t->bytes == 320 * 192 * 2);
    t = bt_safetensors_find(set, "model.layers.0.self_attn.q_a_proj.weight");
    EXPECT(t != NULL && t->dtype == BT_ST_F8_E4M3);
    t = bt_safetensors_find(set, "model.layers.0.self_attn.q_a_proj.weight_scale_inv");
    EXPECT(t != NULL && t->dtype == BT_ST_F32 && t->shape[0] == 1 && t->shape[1] == 2);
    EXPECT(bt_safetensors_find(set, "model.layers.99") == NULL);
    EXPECT(bt_safetensors_find(set, "") == NULL);
    bt_safetensors_close(set);
}

static void safetensors_of_shards_form_one_set(void)
{
    bt_safetensors *set = NULL;

    EXPECT_EQ(bt_safetensors_open(KIMI, &set), BT_OK);
    if (set == NULL) return;
    EXPECT_EQ(bt_safetensors_count(set), 93 + 94);
    EXPECT(bt_safetensors_find(set, "lm_head.weight") != NULL);
    EXPECT(bt_safetensors_find(set, "model.norm.weight") != NULL);
    bt_safetensors_close(set);
}

/* A multimodal checkpoint's language model is called as one of its own; its other parts stay. */
static void safetensors_of_a_language_model_lose_its_prefix(void)
{
    static const char JSON[] =
        "{\"language_model.model.b\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, "
        "1]}, "
        "\"language_model.lm_head\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [1, "
        "2]}, "
        "\"vision_tower.a\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [2, 3]}%s}";
    bt_safetensors *set = NULL;
    char            json[640];

    scratch_clear();
    snprintf(json, sizeof(json), JSON, "");
    write_raw("t.safetensors", strlen(json), json, strlen(json), 3);
    EXPECT_EQ(bt_safetensors_open(scratch_path("t.safetensors"), &set), BT_OK);
    if (set == NULL) return;
    EXPECT_EQ(bt_safetensors_count(set), 3);
    EXPECT(strcmp(bt_safetensors_at(set, 0)->name, "lm_head") == 0);
    EXPECT(bt_safetensors_find(set, "model.b") == bt_safetensors_at(set, 1));
    EXPECT(bt_safetensors_find(set, "vision_tower.a") == bt_safetensors_at(set, 2));
    bt_safetensors_close(set);

    snprintf(json, sizeof(json), JSON,
             ", \"lm_head\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [3, 4]}");
    EXPECT_EQ(open_json(json, 4), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "lm_head");
}

/* As transformers 5 saves kimi_k25. */
static void safetensors_of_a_language_model_have_layers_for_blocks(void)
{
    static const char JSON[] =
        "{\"language_model.model.blocks.7.b\": {\"dtype\": \"U8\", \"shape\": "
        "[1], \"data_offsets\": [0, 1]}, \"vision_tower.encoder.blocks.7.b\": "
        "{\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [1, 2]}}";
    bt_safetensors *set = NULL;

    scratch_clear();
    write_raw("t.safetensors", strlen(JSON), JSON, strlen(JSON), 2);
    NEED(bt_safetensors_open(scratch_path("t.safetensors"), &set) == BT_OK);
    EXPECT(bt_safetensors_find(set, "model.layers.7.b") != NULL);
    EXPECT(bt_safetensors_find(set, "vision_tower.encoder.blocks.7.b") != NULL);
    bt_safetensors_close(set);
}

/* Mistral's own format: other files, other names. */
static void safetensors_of_mistral_are_called_as_by_transformers(void)
{
    static const char *const NAMES[][2] = {
        {"tok_embeddings.weight",                        "model.embed_tokens.weight"                       },
        {"norm.weight",                                  "model.norm.weight"                               },
        {"output.weight",                                "lm_head.weight"                                  },
        {"layers.3.attention_norm.weight",               "model.layers.3.input_layernorm.weight"           },
        {"layers.60.attention.wq_b.weight_scale",
         "model.layers.60.self_attn.q_b_proj.weight_scale"                                                 },
        {"layers.3.attention.wkv_a_with_mqa.weight",
         "model.layers.3.self_attn.kv_a_proj_with_mqa.weight"                                              },
        {"layers.0.feed_forward.w2.weight",              "model.layers.0.mlp.down_proj.weight"             },
        {"layers.3.gate.weight",                         "model.layers.3.mlp.gate.weight"                  },
        {"layers.3.shared_experts.w3.weight",            "model.layers.3.mlp.shared_experts.up_proj.weight"},
        {"layers.3.experts.127.w1.weight",               "model.layers.3.mlp.experts.127.gate_proj.weight" },
        {"layers.3.foreign",                             "model.layers.3.foreign"                          },
        {"vision_encoder.transformer.layers.0.gate.w1.",
         "vision_encoder.transformer.layers.0.gate.w1."                                                    },
        {"layers.3.attention_norm.ffn_norm.attention.wkv_a_with_mqa.q_a_norm.attention.wq_a.gate."
         "w1.w2.w3.",                           "model.layers.3.input_layernorm.post_attention_layernorm.self_attn.kv_a_proj_with_mqa.q_a_"
         "norm.self_attn.q_a_proj.mlp.gate.gate_proj.down_proj.up_proj."     },
    };
    enum { N_NAMES = sizeof(NAMES) / sizeof(NAMES[0]) };
    static const char BOTH[] =
        "{\"norm.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]}, "
        "\"model.norm.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [1, 2]}}";
    bt_tensor       list[N_NAMES];
    bt_safetensors *set = NULL;

    scratch_clear();
    for (size_t i = 0; i < N_NAMES; i++)
        list[i] = (bt_tensor){NAMES[i][0], BT_ST_U8, 1, {1}, "x", 1, NULL};
    NEED(bt_safetensors_write(scratch_path("consolidated.safetensors"), N_NAMES, list) == BT_OK);
    NEED(bt_safetensors_open(g_scratch, &set) == BT_OK);
    EXPECT_EQ(bt_safetensors_count(set), N_NAMES);
    for (size_t i = 0; i < N_NAMES; i++) {
        if (bt_safetensors_find(set, NAMES[i][1]) == NULL) printf("%s\n", NAMES[i][0]);
        EXPECT(bt_safetensors_find(set, NAMES[i][1]) != NULL);
    }
    bt_safetensors_close(set);
    /* the format of transformers counts first */
    NEED(bt_safetensors_write(scratch_path("model.safetensors"), 1, list) == BT_OK);
    NEED(bt_safetensors_open(g_scratch, &set) == BT_OK);
    EXPECT(bt_safetensors_count(set) == 1 && bt_safetensors_find(set, NAMES[0][0]) != NULL);
    bt_safetensors_close(set);

    scratch_clear();
    write_raw("consolidated.safetensors", strlen(BOTH), BOTH, strlen(BOTH), 2);
    EXPECT_EQ(bt_safetensors_open(g_scratch, &set), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "tensor model.norm.weight");
}

/* Of a layer with three experts of [4, 2], in turn gate, up, down. */
static void safetensors_of_stacked_experts_are_those_of_each(void)
{
    static const char JSON[] =
        "{\"model.language_model.layers.0.mlp.experts.gate_up_proj\": {\"dtype\": \"U8\", "
        "\"shape\": "
        "[3, 8, 2], \"data_offsets\": [0, 48]}, "
        "\"model.language_model.layers.0.mlp.experts.down_proj\": {\"dtype\": \"U8\", \"shape\": "
        "[3, 2, 4], \"data_offsets\": [48, 72]}, "
        "\"model.language_model.layers.0.mlp.experts.gate_up_proj_scale_inv\": {\"dtype\": "
        "\"BF16\", "
        "\"shape\": [3, 1, 1], \"data_offsets\": [72, 78]}, "
        "\"model.language_model.layers.0.mlp.experts.down_proj_scale_inv\": {\"dtype\": \"BF16\", "
        "\"shape\": [3], \"data_offsets\": [78, 84]}}";
    static const struct {
        const char *name;
        uint8_t     first, rows, cols, bytes;
    } WANT[] = {
        {"model.layers.0.mlp.experts.0.gate_proj.weight",           0,  4, 2, 8},
        {"model.layers.0.mlp.experts.0.up_proj.weight",             8,  4, 2, 8},
        {"model.layers.0.mlp.experts.2.gate_proj.weight",           32, 4, 2, 8},
        {"model.layers.0.mlp.experts.2.up_proj.weight",             40, 4, 2, 8},
        {"model.layers.0.mlp.experts.1.down_proj.weight",           56, 2, 4, 8},
        {"model.layers.0.mlp.experts.1.gate_proj.weight_scale_inv", 74, 0, 0, 2},
        {"model.layers.0.mlp.experts.1.up_proj.weight_scale_inv",   74, 0, 0, 2},
        {"model.layers.0.mlp.experts.2.down_proj.weight_scale_inv", 82, 0, 0, 2},
    };
    bt_safetensors *set = NULL;

    scratch_clear();
    write_raw("t.safetensors", strlen(JSON), JSON, strlen(JSON), 84);
    EXPECT_EQ(bt_safetensors_open(scratch_path("t.safetensors"), &set), BT_OK);
    if (set == NULL) return;
    EXPECT_EQ(bt_safetensors_count(set), 18);
    for (size_t i = 0; i < sizeof(WANT) / sizeof(WANT[0]); i++) {
        const bt_tensor *t = bt_safetensors_find(set, WANT[i].name);

        EXPECT(t != NULL);
        if (t == NULL) continue;
        EXPECT_EQ(*(const uint8_t *)t->data, WANT[i].first);
        EXPECT_EQ(t->bytes, WANT[i].bytes);
        EXPECT_EQ(t->dtype, WANT[i].rows == 0 ? BT_ST_BF16 : BT_ST_U8);
        EXPECT_EQ(t->n_dims, WANT[i].rows == 0 ? 0 : 2);
        EXPECT(t->n_dims == 0 || (t->shape[0] == WANT[i].rows && t->shape[1] == WANT[i].cols));
    }
    bt_safetensors_close(set);
}

static void safetensors_of_experts_stacked_otherwise_are_refused(void)
{
    static const char *const BAD[][2] = {
        {"gate_up_proj\": {\"dtype\": \"U8\", \"shape\": [2, 3, 1]",
         "experts.gate_up_proj: expected [experts, rows of 2 equal parts, columns], found 3 "
         "dimensions, the first two of 2 and 3"                                          },
        {"down_proj\": {\"dtype\": \"U8\", \"shape\": [6]",
         "experts.down_proj: expected [experts, rows of 1 equal parts, columns], found 1"},
        {"down_proj\": {\"dtype\": \"U8\", \"shape\": [1, 2, 3, 1]",
         "experts.down_proj: expected [experts, rows of 1 equal parts, columns], found 4"},
        {"down_proj_scale_inv\": {\"dtype\": \"U8\", \"shape\": [2, 3, 1]",
         "found 3 dimensions and 3 scales for each"                                      },
        {"down_proj_scale_inv\": {\"dtype\": \"U8\", \"shape\": [2, 1, 3]",
         "experts.down_proj_scale_inv: expected one scale for each expert, found 3 dimensions "
         "and 3 scales for each"                                                         },
        {"down_proj\": {\"dtype\": \"F4\", \"shape\": [4, 3, 1]",
         "experts.down_proj: expected whole bytes for each of at most 65535 experts, found 6 of "
         "F4 for 4"                                                                      },
    };

    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        char json[256];

        snprintf(json, sizeof(json), "{\"mlp.experts.%s, \"data_offsets\": [0, 6]}}", BAD[i][0]);
        EXPECT_EQ(open_json(json, 6), BT_ERR_UNSUPPORTED);
        EXPECT_HAS(bt_error_text(), BAD[i][1]);
    }
    EXPECT_EQ(
        open_json("{\"a.experts.down_proj_scale_inv\": {\"dtype\": \"U8\", \"shape\": [65536], "
                  "\"data_offsets\": [0, 65536]}}",
                  65536),
        BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "65535 experts, found 65536 of U8 for 65536");
    EXPECT_EQ(
        open_json("{\"a.experts.down_proj_scale_inv\": {\"dtype\": \"U8\", \"shape\": [65535], "
                  "\"data_offsets\": [0, 65535]}}",
                  65535),
        BT_OK);
    EXPECT_EQ(open_json("{\"a.experts.down_proj_scale_inv\": {\"dtype\": \"U8\", \"shape\": [], "
                        "\"data_offsets\": [0, 1]}}",
                        1),
              BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "found 0 dimensions");
    EXPECT_EQ(open_json("{\"a.experts.gate_up_proj\": {\"dtype\": \"U8\", \"shape\": [9, 2, 0], "
                        "\"data_offsets\": [0, 0]}}",
                        0),
              BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "65535 experts, found 0 of U8 for 9");
    EXPECT_EQ(open_json("{\"a.experts.down_proj\": {\"dtype\": \"U8\", \"shape\": [1, 1, 1], "
                        "\"data_offsets\": [0, 1]}, \"a.experts.0.down_proj.weight\": {\"dtype\": "
                        "\"U8\", \"shape\": [1, 1], \"data_offsets\": [1, 2]}}",
                        2),
              BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "a.experts.0.down_proj.weight: expected in one shard");
}

static void safetensors_data_is_where_the_offsets_say(void)
{
    const char *json =
        "{\"b\": {\"dtype\": \"I32\", \"shape\": [2], \"data_offsets\": [3, 11]}, "
        "\"a\": {\"dtype\": \"U8\", \"shape\": [3], \"data_offsets\": [0, 3]}, "
        "\"none\": {\"dtype\": \"F32\", \"shape\": [0, 7], \"data_offsets\": [3, 3]}, "
        "\"one\": {\"dtype\": \"BF16\", \"shape\": [], \"data_offsets\": [11, 13]}, "
        "\"__metadata__\": {\"format\": \"pt\"}}  ";
    bt_safetensors  *set = NULL;
    const bt_tensor *t;

    scratch_clear();
    write_raw("t.safetensors", strlen(json), json, strlen(json), 13);
    EXPECT_EQ(bt_safetensors_open(scratch_path("t.safetensors"), &set), BT_OK);
    if (set == NULL) return;
    EXPECT_EQ(bt_safetensors_count(set), 4);
    t = bt_safetensors_find(set, "b");
    EXPECT(t != NULL && memcmp(t->data, "\3\4\5\6\7\10\11\12", 8) == 0);
    t = bt_safetensors_find(set, "a");
    EXPECT(t != NULL && strcmp(bt_st_dtype_name(t->dtype), "U8") == 0 &&
           memcmp(t->data, "\0\1\2", 3) == 0);
    t = bt_safetensors_find(set, "none");
    EXPECT(t != NULL && t->bytes == 0 && t->n_dims == 2);
    t = bt_safetensors_find(set, "one");
    EXPECT(t != NULL && t->bytes == 2 && t->n_dims == 0);
    bt_safetensors_close(set);
}

/* Products that 64 bits do not hold, in whatever place; nothing times anything is nothing. */
static void safetensors_elements_are_counted_without_wrapping(void)
{
    static const uint64_t MANY[]  = {UINT64_C(1) << 32, UINT64_C(1) << 32, 3};
    static const uint64_t EMPTY[] = {UINT64_C(1) << 60, UINT64_C(1) << 60, 0};
    uint64_t              n       = 7;

    EXPECT(!bt_st_count_elems(3, MANY, &n));
    EXPECT(bt_st_count_elems(3, EMPTY, &n) && n == 0);
    EXPECT(bt_st_count_elems(0, NULL, &n) && n == 1);
}

/* What a fingerprint looks at: from the first byte to the last, and nothing else. */
static void safetensors_slices_span_a_tensor(void)
{
    static uint8_t  data[100003];
    const bt_tensor large = {.data = data, .bytes = sizeof(data)},
                    small = {.data = data, .bytes = 9};
    size_t bytes;

    EXPECT(bt_tensor_slice(&large, 0, &bytes) == data);
    EXPECT((const uint8_t *)bt_tensor_slice(&large, BT_TENSOR_SLICES - 1, &bytes) + bytes ==
           data + sizeof(data));
    EXPECT(bt_tensor_slice(&small, 0, &bytes) == data && bytes == 9);
    bt_tensor_slice(&small, BT_TENSOR_SLICES - 1, &bytes);
    EXPECT_EQ(bytes, 0);
}

/* Bits of each dtype, as safetensors' own code has them. */
static void safetensors_dtypes_have_their_sizes(void)
{
    static const struct {
        const char *name;
        unsigned    bits;
    } SIZES[] = {
        {"BF16",    16},
        {"F32",     32},
        {"F16",     16},
        {"F8_E4M3", 8 },
        {"I32",     32},
        {"I64",     64},
        {"F64",     64},
        {"C64",     64},
        {"U64",     64},
        {"U32",     32},
        {"U16",     16},
        {"I16",     16},
        {"U8",      8 },
        {"I8",      8 },
        {"BOOL",    8 },
        {"F8_E5M2", 8 },
        {"F8_E8M0", 8 },
        {"F6_E2M3", 6 },
        {"F6_E3M2", 6 },
        {"F4",      4 },
    };

    EXPECT_EQ(sizeof(SIZES) / sizeof(SIZES[0]), BT_ST_N_DTYPES);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        char json[128];

        snprintf(json, sizeof(json),
                 "{\"w\": {\"dtype\": \"%s\", \"shape\": [4], \"data_offsets\": [0, %u]}}",
                 SIZES[i].name, SIZES[i].bits / 2);
        EXPECT_EQ(open_json(json, SIZES[i].bits / 2), BT_OK);
    }
}

static void safetensors_written_are_read_back(void)
{
    float           f[3]   = {1, 2, 3};
    uint16_t        h[5]   = {1, 2, 3, 4, 5};
    int64_t         l[1]   = {-7};
    const bt_tensor OUT[4] = {
        {"h",             BT_ST_BF16, 1, {5},    h,    10, NULL},
        {"q\"\n\xc3\xa9", BT_ST_F32,  2, {3, 1}, f,    12, NULL},
        {"empty",         BT_ST_F32,  2, {0, 9}, NULL, 0,  NULL},
        {"l",             BT_ST_I64,  0, {0},    l,    8,  NULL}
    };
    bt_safetensors *set = NULL;

    scratch_clear();
    EXPECT_EQ(bt_safetensors_write(scratch_path("w.safetensors"), 4, OUT), BT_OK);
    EXPECT_EQ(bt_safetensors_open(scratch_path("w.safetensors"), &set), BT_OK);
    if (set == NULL) return;
    EXPECT_EQ(bt_safetensors_count(set), 4);
    for (int i = 0; i < 4; i++) {
        const bt_tensor *t = bt_safetensors_find(set, OUT[i].name);

        EXPECT(t != NULL);
        if (t == NULL) continue;
        EXPECT_EQ(t->dtype, OUT[i].dtype);
        EXPECT_EQ(t->n_dims, OUT[i].n_dims);
        EXPECT(memcmp(t->shape, OUT[i].shape, t->n_dims * sizeof(t->shape[0])) == 0);
        EXPECT_EQ(t->bytes, OUT[i].bytes);
        EXPECT(t->bytes == 0 || memcmp(t->data, OUT[i].data, t->bytes) == 0);
        EXPECT((uintptr_t)t->data % (t->bytes == 0 ? 1 : t->dtype == BT_ST_I64 ? 8 : 2) == 0);
    }
    bt_safetensors_close(set);
}

/* The name of the file until it is whole can be guessed, in a folder that others write to. */
static void safetensors_write_follows_no_planted_link(void)
{
    static const float F[4] = {0};
    const bt_tensor    ok   = {"a", BT_ST_F32, 1, {4}, F, 16, NULL};
    bt_safetensors    *set  = NULL;
    char               part[512], whose[512];
    struct stat        info;

    scratch_clear();
    scratch_write("whose", "mine", 4);
    snprintf(whose, sizeof(whose), "%s", scratch_path("whose"));
    snprintf(part, sizeof(part), "%s.part-%ld", scratch_path("w.safetensors"), (long)getpid());
    for (int hard = 0; hard < 2; hard++) {
        NEED((hard ? link(whose, part) : symlink(whose, part)) == 0);
        EXPECT_EQ(bt_safetensors_write(scratch_path("w.safetensors"), 1, &ok), BT_OK);
        EXPECT(stat(whose, &info) == 0 && info.st_size == 4);
        EXPECT(lstat(scratch_path("w.safetensors"), &info) == 0 && S_ISREG(info.st_mode));
        EXPECT_EQ(bt_safetensors_open(scratch_path("w.safetensors"), &set), BT_OK);
        bt_safetensors_close(set);
    }
    NEED(mkdir(part, 0700) == 0); /* as another user's file in a sticky folder: it stays */
    EXPECT_EQ(bt_safetensors_write(scratch_path("w.safetensors"), 1, &ok), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), part);
    NEED(rmdir(part) == 0);
}

static void safetensors_write_refuses_what_cannot_be_read(void)
{
    float           f[4]     = {0};
    const bt_tensor ok       = {"a", BT_ST_F32, 1, {4}, f, 16, NULL};
    const bt_tensor twice[2] = {ok, ok};
    bt_tensor       bad;

    scratch_clear();
    EXPECT_EQ(bt_safetensors_write(scratch_path("w"), 2, twice), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "found a twice");
    bad       = ok;
    bad.bytes = 12;
    EXPECT_EQ(bt_safetensors_write(scratch_path("w"), 1, &bad), BT_ERR_INVALID_ARG);
    bad       = ok;
    bad.dtype = BT_ST_F4;
    EXPECT_EQ(bt_safetensors_write(scratch_path("w"), 1, &bad), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_safetensors_write("/nonexistent/w", 1, &ok), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "/nonexistent/w");
    EXPECT(access(scratch_path("w"), F_OK) != 0);
    EXPECT_EQ(bt_safetensors_write("/dev/full", 1, &ok), BT_ERR_IO);
}

static void safetensors_open_unwinds_at_every_allocation(void)
{
    bt_safetensors *set = NULL;

    EXPECT(BT_SWEEP(bt_safetensors_open(KIMI, &set), bt_safetensors_close(set)) > 190);
}

static const bt_test TESTS[] = {
    BT_TEST(safetensors_of_one_file_are_found_and_sorted),
    BT_TEST(safetensors_of_shards_form_one_set),
    BT_TEST(safetensors_of_a_language_model_lose_its_prefix),
    BT_TEST(safetensors_of_a_language_model_have_layers_for_blocks),
    BT_TEST(safetensors_of_mistral_are_called_as_by_transformers),
    BT_TEST(safetensors_of_stacked_experts_are_those_of_each),
    BT_TEST(safetensors_of_experts_stacked_otherwise_are_refused),
    BT_TEST(safetensors_data_is_where_the_offsets_say),
    BT_TEST(safetensors_elements_are_counted_without_wrapping),
    BT_TEST(safetensors_slices_span_a_tensor),
    BT_TEST(safetensors_dtypes_have_their_sizes),
    BT_TEST(safetensors_written_are_read_back),
    BT_TEST(safetensors_write_follows_no_planted_link),
    BT_TEST(safetensors_write_refuses_what_cannot_be_read),
    BT_TEST(safetensors_open_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
