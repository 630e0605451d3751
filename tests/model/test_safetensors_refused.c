/* Safetensors that lie, are cut off or damaged, or are missing: refused by name. */
#include "tests/model/safetensors_files.h"

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

static const bt_test TESTS[] = {
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
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
