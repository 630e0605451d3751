#include "core/alloc.h"
#include "model/safetensors.h"
#include "model/safetensors_header.h"
#include "tests/model/scratch.h"
#include "tests/support/test.h"

#define KIMI BT_SOURCE_DIR "/tests/models/kimi-k2"

/* A file with this length field, JSON and number of data bytes (0, 1, 2, ...). */
static void write_raw(const char *name, uint64_t n, const char *json, size_t json_bytes,
                      size_t data_bytes)
{
    size_t   bytes = 8 + json_bytes + data_bytes;
    uint8_t *file  = malloc(bytes);

    if (file == NULL) abort();
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(n >> 8 * i);
    memcpy(file + 8, json, json_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + json_bytes + i] = (uint8_t)i;
    scratch_write(name, file, bytes);
    free(file);
}

static bt_status open_json(const char *json, size_t data_bytes)
{
    bt_safetensors *set = NULL;
    bt_status       st;

    scratch_clear();
    write_raw("t.safetensors", strlen(json), json, strlen(json), data_bytes);
    st = bt_safetensors_open(scratch_path("t.safetensors"), &set);
    EXPECT((st == BT_OK) == (set != NULL));
    bt_safetensors_close(set);
    return st;
}

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
        list[i] = (bt_tensor){NAMES[i][0], BT_ST_U8, 1, {1}, "x", 1};
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

#define T(name, dtype, shape, offsets) \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": " offsets "}"

static void safetensors_lying_headers_are_refused(void)
{
    /* clang-format off */
    static const struct {
        const char *json;
        size_t      data_bytes;
        const char *parts[2];
    } BAD[] = {
        {"{" T("w", "F32", "[2]", "[0, 8]"),                          8,  {"expected JSON", "t.safetensors"}},
        {"[]",                                                        0,  {"expected a header object", "found []"}},
        {"{" T("w", "F32", "[2]", "[0, 8]") "}",                      7,  {"tensor w: field data_offsets", "expected at most 7"}},
        {"{" T("w", "F32", "[2]", "[0, 8]") "}",                      9,  {"expected 8 bytes of data", "found 9"}},
        {"{}",                                                        1,  {"expected 0 bytes of data", "found 1"}},
        {"{" T("w", "F32", "[2]", "[8, 0]") "}",                      8,  {"tensor w: field data_offsets: expected [begin, end]", "found [8,0]"}},
        {"{" T("w", "F32", "[2]", "[-8, 0]") "}",                     8,  {"tensor w: field data_offsets", "found [-8,0]"}},
        {"{" T("w", "F32", "[2]", "[0]") "}",                         8,  {"tensor w: field data_offsets", "found [0]"}},
        {"{" T("w", "F32", "[2]", "[0, 8, 8]") "}",                   8,  {"tensor w: field data_offsets", "found [0,8,8]"}},
        {"{" T("w", "F32", "[2]", "[0.0, 8.0]") "}",                  8,  {"tensor w: field data_offsets", "found [0.0,8.0]"}},
        {"{" T("w", "F32", "[2]", "\"0-8\"") "}",                     8,  {"tensor w: field data_offsets", "found \"0-8\""}},
        {"{" T("w", "F32", "[2]", "[0, 9223372036854775807]") "}",    8,  {"tensor w: field data_offsets", "expected at most 8"}},
        {"{" T("w", "F32", "[2]", "[0, 4]") "}",                      4,  {"tensor w: field data_offsets: expected 8 bytes by dtype and shape", "found 4"}},
        {"{" T("w", "BF16", "[3]", "[0, 8]") "}",                     8,  {"expected 6 bytes by dtype and shape", "found 8"}},
        {"{" T("w", "F32", "[-2]", "[0, 8]") "}",                     8,  {"tensor w: field shape[0]: expected a size", "found -2"}},
        {"{" T("w", "F32", "[2.0]", "[0, 8]") "}",                    8,  {"tensor w: field shape[0]: expected a size", "found 2.0"}},
        {"{" T("w", "F32", "2", "[0, 8]") "}",                        8,  {"tensor w: field shape: expected a list", "found 2"}},
        {"{" T("w", "F32", "[1,1,1,1,1,1,1,1,2]", "[0, 8]") "}",      8,  {"tensor w: field shape: expected a list of at most 8", ""}},
        {"{" T("w", "F32", "[4294967296, 4294967296]", "[0, 0]") "}", 0,  {"tensor w: field shape: expected a size that fits", ""}},
        {"{" T("w", "F32", "[1152921504606846976]", "[0, 0]") "}",    0,  {"tensor w: field shape: expected a size that fits", ""}},
        {"{" T("w", "F32", "[2305843009213693953, 8]", "[0, 32]") "}", 32, {"tensor w: field shape: expected a size that fits", ""}},
        {"{" T("w", "F4", "[3]", "[0, 2]") "}",                       2,  {"tensor w: field shape: expected whole bytes", "3 elements of 4 bits"}},
        {"{" T("w", "F31", "[2]", "[0, 8]") "}",                      8,  {"tensor w: field dtype", "found \"F31\""}},
        {"{\"w\": {\"shape\": [2], \"data_offsets\": [0, 8]}}",       8,  {"tensor w: field dtype", "found nothing"}},
        {"{\"w\": {\"dtype\": \"F32\", \"data_offsets\": [0, 8]}}",   8,  {"tensor w: field shape", "found nothing"}},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [2]}}",             8,  {"tensor w: field data_offsets", "found nothing"}},
        {"{\"w\": [1]}",                                              0,  {"tensor w: expected {dtype", "found [1]"}},
        {"{\"__metadata__\": 3}",                                     0,  {"field __metadata__", "found 3"}},
        {"{" T("", "F32", "[2]", "[0, 8]") "}",                       8,  {"expected tensors with names", ""}},
        {"{" T("a", "F32", "[2]", "[0, 8]") "," T("a", "F32", "[2]", "[8, 16]") "}", 16, {"duplicate", ""}},
        {"{" T("a", "F32", "[2]", "[0, 8]") "," T("b", "F32", "[2]", "[0, 8]") "}",  8,  {"tensor ", "expected to begin at 8"}},
        {"{" T("a", "F32", "[2]", "[0, 8]") "," T("b", "F32", "[2]", "[4, 12]") "}", 12, {"tensor b: field data_offsets: expected to begin at 8", "found 4"}},
        {"{" T("a", "F32", "[2]", "[0, 8]") "," T("b", "F32", "[2]", "[12, 20]") "}", 20, {"tensor b: field data_offsets: expected to begin at 8", "found 12"}},
        {"{" T("a", "F32", "[2]", "[4, 12]") "}",                     12, {"tensor a: field data_offsets: expected to begin at 0", "found 4"}},
        {"{" T("a", "F32", "[2]", "[0, 8]") "} {}",                   8,  {"expected JSON", ""}},
        {"{" T("a\\nb", "F31", "[2]", "[0, 8]") "}",                  8,  {"tensor a?b", ""}},
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        int before = g_failures;

        EXPECT_EQ(open_json(BAD[i].json, BAD[i].data_bytes), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), "t.safetensors");
        EXPECT_HAS(bt_error_text(), BAD[i].parts[0]);
        EXPECT_HAS(bt_error_text(), BAD[i].parts[1]);
        if (g_failures != before) fprintf(stderr, "    for the header %s\n", BAD[i].json);
    }
}

static void safetensors_absurd_header_length_is_refused(void)
{
    static const uint64_t LENGTHS[] = {3,          1000,       100000001ull,   1ull << 31,
                                       1ull << 32, 1ull << 63, UINT64_MAX - 7, UINT64_MAX};
    bt_safetensors       *set       = NULL;

    for (size_t i = 0; i < sizeof(LENGTHS) / sizeof(LENGTHS[0]); i++) {
        scratch_clear();
        write_raw("t.safetensors", LENGTHS[i], "{}", 2, 0);
        EXPECT_EQ(bt_safetensors_open(scratch_path("t.safetensors"), &set), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), "header length: expected at most 2");
    }
    EXPECT(set == NULL);
}

static void safetensors_pointer_of_git_lfs_is_called_so(void)
{
    static const char POINTER[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    bt_safetensors   *set       = NULL;
    uint64_t          first     = 0;

    memcpy(&first, POINTER, sizeof(first));
    scratch_clear();
    write_raw("t.safetensors", first, POINTER + sizeof(first), sizeof(POINTER) - sizeof(first), 0);
    EXPECT_EQ(bt_safetensors_open(scratch_path("t.safetensors"), &set), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "git lfs pull");
}

static void safetensors_truncated_anywhere_are_refused(void)
{
    size_t n            = 0;
    char  *data         = scratch_read(BT_SOURCE_DIR "/tests/models/v2-lite/model.safetensors", &n);
    bt_safetensors *set = NULL;

    for (size_t cut = 0; cut < n; cut = cut < 24 ? cut + 1 : cut * 5 / 3) {
        scratch_clear();
        scratch_write("model.safetensors", data, cut);
        EXPECT_EQ(bt_safetensors_open(g_scratch, &set), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), "model.safetensors");
        EXPECT_HAS(bt_error_text(), "expected");
    }
    scratch_clear();
    scratch_write("model.safetensors", data, n - 1);
    EXPECT_EQ(bt_safetensors_open(g_scratch, &set), BT_ERR_FORMAT);
    scratch_write("model.safetensors", data, n);
    EXPECT_EQ(bt_safetensors_open(g_scratch, &set), BT_OK);
    bt_safetensors_close(set);
    free(data);
}

/* Any one byte of the header overwritten: refused, or a set whose tensors all lie in the file. */
static void safetensors_corrupted_headers_never_escape_the_file(void)
{
    size_t   n = 0, refused = 0;
    char    *data = scratch_read(BT_SOURCE_DIR "/tests/models/v2-lite/model.safetensors", &n);
    uint32_t rng  = 12345;

    for (int i = 0; i < 400; i++) {
        bt_safetensors *set = NULL;
        size_t          at;
        char            old;

        rng      = rng * 1664525u + 1013904223u;
        at       = (rng >> 8) % (8 + 9112);
        old      = data[at];
        data[at] = (char)(rng >> 3);
        scratch_write("model.safetensors", data, n);
        refused += bt_safetensors_open(g_scratch, &set) != BT_OK;
        for (size_t k = 0; set != NULL && k < bt_safetensors_count(set); k++) {
            const bt_tensor *t   = bt_safetensors_at(set, k);
            volatile char    sum = 0;

            if (t->bytes != 0)
                sum = (char)(((const char *)t->data)[0] + ((const char *)t->data)[t->bytes - 1]);
            (void)sum;
        }
        bt_safetensors_close(set);
        data[at] = old;
    }
    EXPECT(refused > 100);
    free(data);
}

static void safetensors_deep_json_is_refused(void)
{
    enum { DEPTH = 200000 };
    char           *json = malloc(DEPTH);
    bt_safetensors *set  = NULL;

    if (json == NULL) abort();
    memset(json, '[', DEPTH);
    scratch_clear();
    write_raw("t.safetensors", DEPTH, json, DEPTH, 0);
    EXPECT_EQ(bt_safetensors_open(scratch_path("t.safetensors"), &set), BT_ERR_FORMAT);
    memcpy(json, "{\"w\":", 5);
    write_raw("t.safetensors", DEPTH, json, DEPTH, 0);
    EXPECT_EQ(bt_safetensors_open(scratch_path("t.safetensors"), &set), BT_ERR_FORMAT);
    free(json);
}

/* Two shards with one tensor each, and this index. */
static bt_status open_sharded(const char *index)
{
    const char *a       = "{" T("a", "U8", "[4]", "[0, 4]") "}",
               *b       = "{" T("b", "U8", "[4]", "[0, 4]") "}";
    bt_safetensors *set = NULL;
    bt_status       st;

    scratch_clear();
    write_raw("s1.safetensors", strlen(a), a, strlen(a), 4);
    write_raw("s2.safetensors", strlen(b), b, strlen(b), 4);
    write_raw("s3.safetensors", strlen(b), b, strlen(b), 4);
    scratch_write("model.safetensors.index.json", index, strlen(index));
    st = bt_safetensors_open(g_scratch, &set);
    bt_safetensors_close(set);
    return st;
}

static void safetensors_index_must_agree_with_its_shards(void)
{
    /* clang-format off */
    static const struct {
        const char *index;
        bt_status   st;
        const char *part;
    } BAD[] = {
        {"{\"weight_map\": {\"a\": \"s1.safetensors\", \"b\": \"s2.safetensors\"}}", BT_OK, ""},
        {"{\"weight_map\": {\"a\": \"s2.safetensors\", \"b\": \"s1.safetensors\"}}", BT_ERR_FORMAT, "tensor a: expected it in s2.safetensors, found it in s1.safetensors"},
        {"{\"weight_map\": {\"a\": \"s1.safetensors\", \"c\": \"s2.safetensors\"}}", BT_ERR_FORMAT, "tensor c: expected it in s2.safetensors, found it nowhere"},
        {"{\"weight_map\": {\"a\": \"s1.safetensors\", \"b\": \"s2.safetensors\", \"c\": \"s3.safetensors\"}}", BT_ERR_FORMAT, "tensor b: expected in one shard"},
        {"{\"weight_map\": {\"a\": \"s1.safetensors\", \"b\": \"s9.safetensors\"}}", BT_ERR_IO, "s9.safetensors: No such file"},
        {"{\"weight_map\": {\"a\": \"../s1.safetensors\"}}", BT_ERR_FORMAT, "tensor a: expected a file name beside the index"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", BT_ERR_FORMAT, "expected a file name beside the index"},
        {"{\"weight_map\": {\"a\": \"..\"}}", BT_ERR_FORMAT, "expected a file name beside the index"},
        {"{\"weight_map\": {\"a\": 7}}", BT_ERR_FORMAT, "expected a file name beside the index, found 7"},
        {"{\"weight_map\": {}}", BT_ERR_FORMAT, "field weight_map"},
        {"{\"weight_map\": [1]}", BT_ERR_FORMAT, "field weight_map: expected {tensor: file}, found [1]"},
        {"{}", BT_ERR_FORMAT, "field weight_map: expected {tensor: file}, found nothing"},
        {"[]", BT_ERR_FORMAT, "field weight_map"},
        {"{\"weight_map\"", BT_ERR_FORMAT, "expected JSON"},
        {"{\"weight_map\": {\"a\": \"s1.safetensors\", \"a\": \"s2.safetensors\"}}", BT_ERR_FORMAT, "duplicate"},
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        EXPECT_EQ(open_sharded(BAD[i].index), BAD[i].st);
        if (BAD[i].st != BT_OK) EXPECT_HAS(bt_error_text(), BAD[i].part);
    }
    EXPECT_EQ(open_sharded("{\"weight_map\": {\"a\": \"s1.safetensors\"}}"), BT_OK);
}

/* Shards of whole pages are mapped right in front of each other: the end of one is the start of
 * another, of which no tensor is there. */
static void safetensors_empty_tensor_at_the_end_of_a_shard_is_of_that_shard(void)
{
    enum { SHARDS = 4, PAGE = 64 << 10 }; /* a multiple of any kernel's */
    const char *index =
        "{\"weight_map\": {\"a1\": \"s1.safetensors\", \"b1\": \"s1.safetensors\", \"a2\": "
        "\"s2.safetensors\", \"b2\": \"s2.safetensors\", \"a3\": \"s3.safetensors\", \"b3\": "
        "\"s3.safetensors\", \"a4\": \"s4.safetensors\", \"b4\": \"s4.safetensors\"}}";
    bt_safetensors *set = NULL;

    scratch_clear();
    for (int i = 1; i <= SHARDS; i++) {
        char   json[512], name[32];
        size_t n = 256, data = PAGE - 8 - n;
        int    length;

        length = snprintf(
            json, sizeof(json),
            "{" T("a%d", "U8", "[%zu]", "[0, %zu]") "," T("b%d", "U8", "[0]", "[%zu, %zu]") "}", i,
            data, data, i, data, data);
        memset(json + length, ' ', n - (size_t)length);
        snprintf(name, sizeof(name), "s%d.safetensors", i);
        write_raw(name, n, json, n, data);
    }
    scratch_write("model.safetensors.index.json", index, strlen(index));
    EXPECT_EQ(bt_safetensors_open(g_scratch, &set), BT_OK);
    bt_safetensors_close(set);
}

static void safetensors_shard_with_an_unlisted_tensor_is_refused(void)
{
    const char     *ab    = "{" T("a", "U8", "[4]", "[0, 4]") "," T("b", "U8", "[4]", "[4, 8]") "}";
    const char     *index = "{\"weight_map\": {\"a\": \"s1.safetensors\"}}";
    bt_safetensors *set   = NULL;

    scratch_clear();
    write_raw("s1.safetensors", strlen(ab), ab, strlen(ab), 8);
    scratch_write("model.safetensors.index.json", index, strlen(index));
    EXPECT_EQ(bt_safetensors_open(g_scratch, &set), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "expected tensor b of");
}

static void safetensors_missing_files_are_named(void)
{
    bt_safetensors *set = NULL;

    scratch_clear();
    EXPECT_EQ(bt_safetensors_open(g_scratch, &set), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "expected model.safetensors or model.safetensors.index.json");
    EXPECT_EQ(bt_safetensors_open(scratch_path("no.safetensors"), &set), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "No such file");
    EXPECT_EQ(bt_safetensors_open("/dev/null", &set), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "regular file");
}

static void safetensors_written_are_read_back(void)
{
    float           f[3]   = {1, 2, 3};
    uint16_t        h[5]   = {1, 2, 3, 4, 5};
    int64_t         l[1]   = {-7};
    const bt_tensor OUT[4] = {
        {"h",             BT_ST_BF16, 1, {5},    h,    10},
        {"q\"\n\xc3\xa9", BT_ST_F32,  2, {3, 1}, f,    12},
        {"empty",         BT_ST_F32,  2, {0, 9}, NULL, 0 },
        {"l",             BT_ST_I64,  0, {0},    l,    8 }
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

static void safetensors_write_refuses_what_cannot_be_read(void)
{
    float           f[4]     = {0};
    const bt_tensor ok       = {"a", BT_ST_F32, 1, {4}, f, 16};
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
    bt_safetensors *set  = NULL;
    long            live = bt_alloc_live(), k = -1;
    bt_status       st;

    do {
        bt_alloc_fail_at(++k);
        st = bt_safetensors_open(KIMI, &set);
        bt_alloc_fail_at(-1);
        if (st == BT_OK) break;
        EXPECT_EQ(st, BT_ERR_NO_MEMORY);
        EXPECT_EQ(bt_alloc_live(), live);
    } while (k < 1000);
    EXPECT(k > 190);
    bt_safetensors_close(set);
    EXPECT_EQ(bt_alloc_live(), live);
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
    BT_TEST(safetensors_lying_headers_are_refused),
    BT_TEST(safetensors_absurd_header_length_is_refused),
    BT_TEST(safetensors_pointer_of_git_lfs_is_called_so),
    BT_TEST(safetensors_truncated_anywhere_are_refused),
    BT_TEST(safetensors_corrupted_headers_never_escape_the_file),
    BT_TEST(safetensors_deep_json_is_refused),
    BT_TEST(safetensors_index_must_agree_with_its_shards),
    BT_TEST(safetensors_empty_tensor_at_the_end_of_a_shard_is_of_that_shard),
    BT_TEST(safetensors_shard_with_an_unlisted_tensor_is_refused),
    BT_TEST(safetensors_missing_files_are_named),
    BT_TEST(safetensors_written_are_read_back),
    BT_TEST(safetensors_write_refuses_what_cannot_be_read),
    BT_TEST(safetensors_open_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
