/* The GGUF reader on a file of a few keys and tensors.  Whole models, all types and damaged files
 * are in tests/tools/test_convert.py. */
#include <math.h>

#include "core/alloc.h"
#include "model/gguf.h"
#include "tests/support/own_stderr.h"
#include "tests/support/scratch.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum { F16 = 1, BF16 = 30, Q8_0 = 8 };

static char   g_file[4096];
static size_t g_n, g_n_table; /* the table's end, without its padding */

static void put(const void *data, size_t n)
{
    NEED(g_n + n <= sizeof(g_file));
    memcpy(g_file + g_n, data, n);
    g_n += n;
}

static void put_u32(uint32_t v) { put(&v, sizeof(v)); }

static void put_u64(uint64_t v) { put(&v, sizeof(v)); }

static void put_text(const char *text)
{
    put_u64(strlen(text));
    put(text, strlen(text));
}

static void put_key(const char *name, uint32_t type)
{
    put_text(name);
    put_u32(type);
}

static void put_f32_key(const char *name, float v)
{
    put_key(name, 6);
    put(&v, sizeof(v));
}

static void put_f64_key(const char *name, double v)
{
    put_key(name, 12);
    put(&v, sizeof(v));
}

static void put_tensor(const char *name, uint64_t ne0, uint64_t ne1, uint32_t type, uint64_t offset)
{
    put_text(name);
    put_u32(2);
    put_u64(ne0);
    put_u64(ne1);
    put_u32(type);
    put_u64(offset);
}

/* Keys of each kind, a bf16 matrix {3, 2} and a row of one block of Q8_0. */
static const char *write_file(void)
{
    static const uint16_t MATRIX[6] = {0x3f80, 0x7f81, 0xffff, 0x8000, 0x0001, 0xff80};
    static const int64_t  MINUS     = -5;
    uint16_t              d         = 0x3800; /* 0.5 */

    g_n = 0;
    put("GGUF", 4);
    put_u32(3);
    put_u64(2);
    put_u64(8);
    put_f32_key("eps", 1e-6f);
    put_f32_key("third", 1.0f / 3);
    put_f32_key("nine", 1000000.0625f);
    put_f64_key("wide", 0.1);
    put_key("minus", 11);
    put(&MINUS, sizeof(MINUS));
    put_key("yes", 7);
    put("\1", 1);
    put_key("texts", 9);
    put_u32(8);
    put_u64(2);
    put_text("a");
    put_text("");
    put_key("numbers", 9);
    put_u32(4);
    put_u64(2);
    put_u32(7);
    put_u32(8);
    put_tensor("matrix", 3, 2, BF16, 0);
    put_tensor("block", 32, 1, Q8_0, 32);
    g_n_table = g_n;
    while (g_n % 32 != 0)
        put("", 1);
    put(MATRIX, sizeof(MATRIX));
    while (g_n % 32 != 0)
        put("", 1);
    put(&d, sizeof(d));
    for (int i = -16; i < 16; i++)
        put(&(int8_t){(int8_t)i}, 1);
    scratch_write("t.gguf", g_file, g_n);
    return scratch_path("t.gguf");
}

static void gguf_keys_are_read_by_kind(void)
{
    bt_gguf      *g     = NULL;
    double        x     = 0;
    uint32_t      v     = 77, numbers[2];
    bool          yes   = false;
    bt_gguf_text *texts = NULL;
    size_t        n     = 0;

    NEED(bt_gguf_open(write_file(), &g) == BT_OK);
    EXPECT(bt_gguf_has(g, "eps") && !bt_gguf_has(g, "ep") && !bt_gguf_has(g, "epsi"));
    EXPECT_EQ(bt_gguf_f64(g, "eps", 0, 1, &x), BT_OK);
    EXPECT(x == 1e-6); /* not what the nearest fp32 is */
    EXPECT_EQ(bt_gguf_f64(g, "third", 0, 1, &x), BT_OK);
    EXPECT((float)x == 1.0f / 3);
    EXPECT_EQ(bt_gguf_f64(g, "nine", 0, 1e9, &x), BT_OK);
    EXPECT(x == 1000000.06); /* the fewest digits that give it back */
    EXPECT_EQ(bt_gguf_f64(g, "wide", 0, 1, &x), BT_OK);
    EXPECT(x == 0.1);
    EXPECT_EQ(bt_gguf_f64(g, "eps", 1, 2, &x), BT_ERR_FORMAT);
    EXPECT_EQ(bt_gguf_u32(g, "none", 0, 1, &v), BT_OK);
    EXPECT_EQ(v, 77);
    EXPECT_EQ(bt_gguf_u32(g, "minus", 0, UINT32_MAX, &v), BT_ERR_FORMAT);
    EXPECT_EQ(bt_gguf_u32(g, "eps", 0, UINT32_MAX, &v), BT_ERR_FORMAT);
    EXPECT_EQ(bt_gguf_bool(g, "yes", &yes), BT_OK);
    EXPECT(yes);
    EXPECT_EQ(bt_gguf_strings(g, "numbers", &texts, &n), BT_ERR_FORMAT);
    EXPECT_EQ(bt_gguf_strings(g, "none", &texts, &n), BT_ERR_FORMAT);
    EXPECT_EQ(bt_gguf_strings(g, "texts", &texts, &n), BT_OK);
    EXPECT(n == 2 && texts[0].n == 1 && texts[0].text[0] == 'a' && texts[1].n == 0);
    bt_free(texts);
    EXPECT_EQ(bt_gguf_numbers(g, "numbers", 1, numbers, &n), BT_ERR_FORMAT);
    EXPECT_EQ(bt_gguf_numbers(g, "numbers", 2, numbers, &n), BT_OK);
    EXPECT(n == 2 && numbers[0] == 7 && numbers[1] == 8);
    bt_gguf_close(g);
}

static void gguf_bf16_keeps_every_bit(void)
{
    static const uint16_t WANT[4] = {0x7f81, 0xffff, 0x8000, 0x0001}; /* two NaN, -0, subnormal */
    bt_gguf              *g       = NULL;
    const bt_gguf_tensor *t;
    bt_bf16               got[32], more[512];
    float                 wide[32];

    NEED(bt_gguf_open(write_file(), &g) == BT_OK);
    EXPECT_EQ(bt_gguf_count(g), 2);
    t = bt_gguf_find(g, "matrix");
    NEED(t != NULL && t->ne[0] == 3 && t->ne[1] == 2 && t->ne[2] == 1 && t->bytes == 12);
    bt_gguf_read_bf16(t, 1, 4, got);
    EXPECT(memcmp(got, WANT, sizeof(WANT)) == 0);
    bt_gguf_read_f32(t, 0, 6, wide);
    EXPECT(wide[0] == 1 && isnan(wide[1]) && isnan(wide[2]) && wide[5] == -INFINITY);
    t = bt_gguf_find(g, "block");
    NEED(t != NULL);
    bt_gguf_read_f32(t, 0, 32, wide);
    EXPECT(wide[0] == -8 && wide[15] == -0.5f && wide[31] == 7.5f);
    memset(more, 0x55, sizeof(more));
    bt_gguf_read_bf16(t, 0, 32, more); /* a single block, of fewer weights than others have */
    EXPECT(more[0] == 0xc100 && more[31] == 0x40f0 && more[32] == 0x5555);
    EXPECT(bt_gguf_find(g, "matri") == NULL);
    bt_gguf_close(g);
}

static void gguf_halves_are_ieee_s(void)
{
    static const uint16_t HALVES[8] = {0x3c00, 0xc000, 0x7bff, 0x7c00,
                                       0xfc00, 0x7e00, 0x0001, 0x83ff};
    bt_gguf_tensor        t         = {
                       .ne = {8, 1, 1, 1},
                         .type = F16, .data = (const uint8_t *)HALVES, .bytes = sizeof(HALVES)
    };
    float wide[8];

    bt_gguf_read_f32(&t, 0, 8, wide);
    EXPECT(wide[0] == 1 && wide[1] == -2 && wide[2] == 65504 && wide[3] == INFINITY);
    EXPECT(wide[4] == -INFINITY && isnan(wide[5]));
    EXPECT(wide[6] == 0x1p-24f && wide[7] == -1023 * 0x1p-24f);
}

/* Wherever: also behind the table, where nothing but padding is missing. */
static void gguf_file_that_is_cut_short_is_refused(void)
{
    size_t n;

    write_file();
    n = g_n;
    for (size_t cut = 0; cut < n; cut++) {
        bt_gguf   *g   = NULL;
        own_stderr own = begin_stderr();

        scratch_write("cut.gguf", g_file, cut);
        EXPECT_EQ(bt_gguf_open(scratch_path("cut.gguf"), &g), BT_ERR_FORMAT);
        end_stderr(own);
        if (cut >= g_n_table - 8 && cut < g_n_table) /* within the last number */
            EXPECT_HAS(bt_error_text(), "found the end of the file after");
        EXPECT(g == NULL);
    }
}

static void gguf_open_survives_every_failed_allocation(void)
{
    const char *path = write_file();
    bt_gguf    *g    = NULL;

    EXPECT(BT_SWEEP(bt_gguf_open(path, &g), bt_gguf_close(g)) > 3);
}

static const bt_test TESTS[] = {
    BT_TEST(gguf_keys_are_read_by_kind), BT_TEST(gguf_halves_are_ieee_s),
    BT_TEST(gguf_file_that_is_cut_short_is_refused), BT_TEST(gguf_bf16_keeps_every_bit),
    BT_TEST(gguf_open_survives_every_failed_allocation)};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_INFO);
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
