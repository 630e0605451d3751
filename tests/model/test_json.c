/* What errors show of a JSON value, and files that are too large (fields: test_config_refused.c).
 */
#include "model/json.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static void json_shown_is_cut_and_stays_within_its_room(void)
{
    json_t *v =
        json_string("0123456789012345678901234567890123456789012345678901234567890123456789");
    char buf[BT_JSON_SHOW_BYTES];

    NEED(v != NULL);
    EXPECT(strcmp(bt_json_show(v, buf, sizeof(buf)),
                  "\"0123456789012345678901234567890123456789012345.. (a string)") == 0);
    json_decref(v);
    EXPECT(strcmp(bt_json_show(NULL, buf, sizeof(buf)), "nothing") == 0);
}

/* A name out of a file moves no terminal's cursor, and ends within the buffer. */
static void json_printable_has_no_control_characters(void)
{
    char buf[8] = "#######";

    EXPECT(strcmp(bt_json_printable("a\x1b[2J\nb\x7f", buf, sizeof(buf)), "a?[2J?b") == 0);
    memset(buf, '#', sizeof(buf));
    EXPECT(strcmp(bt_json_printable("abcdefgh", buf, 4), "abc") == 0);
    EXPECT_EQ(buf[4], '#');
}

static void json_file_that_is_too_large_is_refused(void)
{
    json_t *json = NULL;

    scratch_write("t.json", "{}  ", 4);
    EXPECT_EQ(bt_json_read_file(scratch_path("t.json"), 3, &json), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "t.json: expected at most 3 bytes, found 4");
    EXPECT(json == NULL);
    EXPECT_EQ(bt_json_read_file(scratch_path("t.json"), 4, &json), BT_OK);
    json_decref(json);
}

static const bt_test TESTS[] = {
    BT_TEST(json_shown_is_cut_and_stays_within_its_room),
    BT_TEST(json_printable_has_no_control_characters),
    BT_TEST(json_file_that_is_too_large_is_refused),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
