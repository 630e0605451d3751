/* Small matrices of each kind, with numbers that are told by hand: rows, columns, and what is
 * refused (whole models: test_weights.c, test_weights_refused.c). */
#include "model/rows.h"
#include "tests/support/scratch.h"

enum { N = 130, K = 150 }; /* two blocks of 128 each way, the second ones not full */

static uint8_t g_e4m3[N * K];
static float   g_scales[4] = {1, 2, 4, 8};

/* The list as a file, opened; the caller closes. */
static bt_safetensors *open_list(size_t n, const bt_tensor *tensors)
{
    bt_safetensors *set = NULL;

    scratch_clear();
    NEED(bt_safetensors_write(scratch_path("m.safetensors"), n, tensors) == BT_OK);
    NEED(bt_safetensors_open(scratch_path("m.safetensors"), &set) == BT_OK);
    return set;
}

static void rows_of_e4m3_have_the_scale_of_their_block(void)
{
    const bt_tensor LIST[] = {
        {"w",           BT_ST_F8_E4M3, 2, {N, K}, g_e4m3,   sizeof(g_e4m3),   NULL},
        {"w_scale_inv", BT_ST_F32,     2, {2, 2}, g_scales, sizeof(g_scales), NULL},
    };
    bt_safetensors *set;
    bt_matrix       m;
    bt_bf16         row[K], column[N];
    uint8_t         raw[K];
    float           scales[2];

    memset(g_e4m3, 0x38, sizeof(g_e4m3)); /* 1 */
    g_e4m3[129 * K + 128] = 0x40;         /* 2 */
    set                   = open_list(2, LIST);
    NEED(bt_matrix_find(set, "w", N, K, &m) == BT_OK);
    EXPECT_EQ(m.kind, BT_WEIGHT_FP8);
    EXPECT_EQ(bt_matrix_check_values(&m), BT_OK);
    bt_matrix_row(&m, 127, row);
    EXPECT(bt_bf16_to_f32(row[127]) == 1 && bt_bf16_to_f32(row[128]) == 2);
    bt_matrix_row(&m, 129, row);
    EXPECT(bt_bf16_to_f32(row[0]) == 4 && bt_bf16_to_f32(row[128]) == 16);
    EXPECT(bt_bf16_to_f32(row[K - 1]) == 8);
    bt_matrix_column(&m, 128, 0, N, column);
    EXPECT(bt_bf16_to_f32(column[127]) == 2 && bt_bf16_to_f32(column[128]) == 8);
    EXPECT(bt_bf16_to_f32(column[129]) == 16);
    bt_matrix_fp8_row(&m, 128, raw, scales);
    EXPECT(raw[0] == 0x38 && raw[K - 1] == 0x38 && scales[0] == 4 && scales[1] == 8);
    bt_safetensors_close(set);
}

/* As Mistral has it, fp32 or bf16, as a number or a list of it. */
static void rows_of_e4m3_may_have_one_scale(void)
{
    static const bt_bf16 THREE = 0x4040;
    static const float   FIVE = 5, MINUS = -5;
    const bt_tensor      ONES[] = {
             {"w_scale_inv", BT_ST_BF16, 0, {0}, &THREE, sizeof(THREE), NULL},
             {"w_scale_inv", BT_ST_F32,  1, {1}, &FIVE,  sizeof(FIVE),  NULL},
             {"w_scale_inv", BT_ST_F32,  0, {0}, &MINUS, sizeof(MINUS), NULL},
    };
    bt_tensor list[2] = {
        {"w", BT_ST_F8_E4M3, 2, {N, K}, g_e4m3, sizeof(g_e4m3), NULL}
    };
    const float     want[] = {3, 5};
    bt_safetensors *set;
    bt_matrix       m;
    bt_bf16         row[K], column[N];
    uint8_t         raw[K];
    float           scales[2];

    memset(g_e4m3, 0x38, sizeof(g_e4m3));
    g_e4m3[129 * K + 149] = 0x40;
    for (int i = 0; i < 2; i++) {
        list[1] = ONES[i];
        set     = open_list(2, list);
        NEED(bt_matrix_find(set, "w", N, K, &m) == BT_OK);
        EXPECT(m.one_scale && m.kind == BT_WEIGHT_FP8);
        EXPECT_EQ(bt_matrix_check_values(&m), BT_OK);
        bt_matrix_row(&m, 129, row);
        EXPECT(bt_bf16_to_f32(row[0]) == want[i] && bt_bf16_to_f32(row[149]) == 2 * want[i]);
        bt_matrix_column(&m, 149, 0, N, column);
        EXPECT(bt_bf16_to_f32(column[0]) == want[i] && bt_bf16_to_f32(column[129]) == 2 * want[i]);
        bt_matrix_fp8_row(&m, 129, raw, scales);
        EXPECT(raw[149] == 0x40 && scales[0] == want[i] && scales[1] == want[i]);
        bt_safetensors_close(set);
    }
    list[1] = ONES[2];
    set     = open_list(2, list);
    NEED(bt_matrix_find(set, "w", N, K, &m) == BT_OK);
    EXPECT_EQ(bt_matrix_check_values(&m), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "expected finite scales of 0 or more, found -5");
    bt_safetensors_close(set);
}

/* As compressed-tensors calls it, here in bf16. */
static void rows_of_e4m3_have_the_scale_of_compressed_tensors(void)
{
    static const bt_bf16 BLOCKS[4] = {0x3f80, 0x4000, 0x4080, 0x4100}; /* 1, 2, 4, 8 */
    bt_tensor            list[2]   = {
                     {"w",       BT_ST_F8_E4M3, 2, {N, K}, g_e4m3, sizeof(g_e4m3), NULL},
                     {"w_scale", BT_ST_BF16,    2, {2, 2}, BLOCKS, sizeof(BLOCKS), NULL},
    };
    bt_safetensors *set;
    bt_matrix       m;
    bt_bf16         row[K];
    uint8_t         raw[K];
    float           scales[2];

    memset(g_e4m3, 0x38, sizeof(g_e4m3)); /* 1 */
    set = open_list(2, list);
    NEED(bt_matrix_find(set, "w", N, K, &m) == BT_OK);
    EXPECT(!m.one_scale && m.kind == BT_WEIGHT_FP8);
    EXPECT_EQ(bt_matrix_check_values(&m), BT_OK);
    bt_matrix_row(&m, 129, row);
    EXPECT(bt_bf16_to_f32(row[0]) == 4 && bt_bf16_to_f32(row[128]) == 8);
    bt_matrix_fp8_row(&m, 0, raw, scales);
    EXPECT(scales[0] == 1 && scales[1] == 2);
    bt_safetensors_close(set);
    list[1].dtype = BT_ST_F16;
    set           = open_list(2, list);
    EXPECT_EQ(bt_matrix_find(set, "w", N, K, &m), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "tensor w_scale: expected dtype F32 or BF16, found F16");
    bt_safetensors_close(set);
    set = open_list(1, list);
    EXPECT_EQ(bt_matrix_find(set, "w", N, K, &m), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "expected tensor w_scale_inv or w_scale F32 [2, 2]");
    bt_safetensors_close(set);
}

/* Words of the numbers -8, -7, .. in turn; a scale for 32 columns. */
static uint32_t      g_words[2 * 64 / 8];
static const bt_bf16 SCALES[4] = {0x3f80, 0x4000, 0x4080, 0x4100}; /* 1, 2, 4, 8 */
static const int32_t SHAPE[2]  = {2, 64};

static void rows_of_4_bits_have_the_scale_of_their_group(void)
{
    const bt_tensor LIST[] = {
        {"w_packed", BT_ST_I32,  2, {2, 8}, g_words, sizeof(g_words), NULL},
        {"w_scale",  BT_ST_BF16, 2, {2, 2}, SCALES,  sizeof(SCALES),  NULL},
        {"w_shape",  BT_ST_I32,  1, {2},    SHAPE,   sizeof(SHAPE),   NULL},
    };
    bt_safetensors *set;
    bt_matrix       m;
    bt_bf16         row[64], column[2];

    for (size_t i = 0; i < sizeof(g_words) / sizeof(g_words[0]); i++)
        g_words[i] = i % 2 == 0 ? 0x76543210 : 0xfedcba98;
    set = open_list(3, LIST);
    NEED(bt_matrix_find(set, "w", 2, 64, &m) == BT_OK);
    EXPECT_EQ(bt_matrix_check_values(&m), BT_OK);
    bt_matrix_row(&m, 0, row);
    EXPECT(bt_bf16_to_f32(row[0]) == -8 && bt_bf16_to_f32(row[31]) == 7);
    EXPECT(bt_bf16_to_f32(row[32]) == -16 && bt_bf16_to_f32(row[63]) == 14);
    bt_matrix_row(&m, 1, row);
    EXPECT(bt_bf16_to_f32(row[1]) == -28 && bt_bf16_to_f32(row[33]) == -56);
    bt_matrix_column(&m, 33, 0, 2, column);
    EXPECT(bt_bf16_to_f32(column[0]) == -14 && bt_bf16_to_f32(column[1]) == -56);
    bt_safetensors_close(set);
}

/* What find() says of the list with one tensor in place of the one of its name. */
static void expect_refused(const bt_tensor list[3], const bt_tensor *instead, uint32_t k,
                           bt_status want, const char *text)
{
    bt_tensor       all[3];
    bt_safetensors *set;
    bt_matrix       m = {0};

    for (int i = 0; i < 3; i++)
        all[i] = instead != NULL && strcmp(list[i].name, instead->name) == 0 ? *instead : list[i];
    set = open_list(3, all);
    EXPECT_EQ(bt_matrix_find(set, "w", 2, k, &m), want);
    EXPECT_HAS(bt_error_text(), text);
    EXPECT(m.t == NULL);
    bt_safetensors_close(set);
}

static void rows_of_4_bits_name_what_is_not_as_it_should_be(void)
{
    static const float FP32[4] = {1, 2, 4, 8};
    const bt_tensor    LIST[]  = {
            {"w_packed", BT_ST_I32,  2, {2, 8}, g_words, sizeof(g_words), NULL},
            {"w_scale",  BT_ST_BF16, 2, {2, 2}, SCALES,  sizeof(SCALES),  NULL},
            {"w_shape",  BT_ST_I32,  1, {2},    SHAPE,   sizeof(SHAPE),   NULL},
    };
    const bt_tensor ODD[] = {
        {"w_packed", BT_ST_I32,  2, {2, 5}, g_words, 40,            NULL},
        {"w_scale",  BT_ST_BF16, 2, {2, 1}, SCALES,  4,             NULL},
        {"w_shape",  BT_ST_I32,  1, {2},    SHAPE,   sizeof(SHAPE), NULL},
    };
    const bt_tensor WORDS = {
        "w_packed", BT_ST_F32, 2, {2, 8},
           g_words, sizeof(g_words), NULL
    };
    const bt_tensor WIDE = {
        "w_scale", BT_ST_F32, 2, {2, 2},
           FP32, sizeof(FP32), NULL
    };
    const bt_tensor ONE  = {"w_shape", BT_ST_I32, 1, {1}, SHAPE, 4, NULL};
    const bt_tensor HALF = {"w_shape", BT_ST_BF16, 1, {2}, SHAPE, 4, NULL};

    expect_refused(ODD, NULL, 40, BT_ERR_UNSUPPORTED, "columns are no multiple of 32");
    expect_refused(LIST, &WORDS, 64, BT_ERR_FORMAT, "w_packed: expected dtype I32, found F32");
    expect_refused(LIST, &WIDE, 64, BT_ERR_FORMAT, "w_scale: expected dtype BF16, found F32");
    expect_refused(LIST, &ONE, 64, BT_ERR_FORMAT, "w_shape: expected shape [2], found [1]");
    expect_refused(LIST, &HALF, 64, BT_ERR_FORMAT, "w_shape: expected dtype I64, found BF16");
}

static const bt_test TESTS[] = {
    BT_TEST(rows_of_e4m3_have_the_scale_of_their_block),
    BT_TEST(rows_of_e4m3_may_have_one_scale),
    BT_TEST(rows_of_e4m3_have_the_scale_of_compressed_tensors),
    BT_TEST(rows_of_4_bits_have_the_scale_of_their_group),
    BT_TEST(rows_of_4_bits_name_what_is_not_as_it_should_be),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
