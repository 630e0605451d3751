#include "core/settings.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/parse.h"
#include "core/spelling.h"
#include "tests/support/own_stderr.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum { OPT_PORT = 256, OPT_BOTH, OPT_PREFILL, OPT_FAST };

static const struct argp_option CHILD[] = {
    BT_OPTION("prefill", OPT_PREFILL, "N", "child's"),
    BT_OPTION("both", OPT_BOTH, "N", ""),
    {0},
};
static const struct argp       CHILD_ARGP = {CHILD, NULL, NULL, NULL, NULL, NULL, NULL};
static const struct argp_child CHILDREN[] = {
    {&CHILD_ARGP, 0, NULL, 0},
    {NULL,        0, NULL, 0}
};
static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("Head:", 1),
    BT_OPTION("queue-s", 'q', "S", ""),
    BT_OPTION_DEFAULT("port", OPT_PORT, "N", "8000, or so", "text (of some kind)"),
    BT_OPTION("fast", OPT_FAST, NULL, ""),
    BT_CONFIG_OPTION(0),
    {0},
};
static const struct argp         PARSER      = {OPTIONS, NULL, NULL, NULL, CHILDREN, NULL, NULL};
static const bt_setting_conflict CONFLICTS[] = {
    {"both", "prefill"},
    {"fast", "queue-s"},
    {NULL,   NULL     }
};
static const bt_setting_idle IDLE[] = {
    {"port",    BT_WITH,    "prefill", NULL,          "give it elsewhere" },
    {"fast",    BT_WITHOUT, "port",    "8000, or so", "ports are slow"    },
    {"queue-s", BT_WITHOUT, "fast",    NULL,          "there is no queue" },
    {"both",    BT_WITH,    NULL,      NULL,          "it never is of use"},
    {NULL,      BT_WITH,    NULL,      NULL,          NULL                }
};
static const bt_settings_spec SPEC = {&PARSER, CONFLICTS, NULL}, MODES = {&PARSER, NULL, IDLE};

#define PATH "baton.conf" /* in a folder of its own */

static void write_bytes(const char *bytes, size_t n)
{
    FILE *f = fopen(PATH, "w");

    EXPECT_EQ(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void write_config(const char *text) { write_bytes(text, strlen(text)); }

/* The words that argp gets, joined; "" and the error's text when there are none. */
static const char *gather_by(const bt_settings_spec *spec, char **argv)
{
    static char  text[2048];
    bt_settings *s = NULL;
    int          n = 0;

    while (argv[n] != NULL)
        n++;
    text[0] = 0;
    if (bt_settings_gather(spec, n, argv, &s) != BT_OK) return text;
    for (int i = 1; i < bt_settings_argc(s); i++) {
        strcat(text, bt_settings_argv(s)[i]);
        strcat(text, " ");
    }
    EXPECT(bt_settings_argv(s)[bt_settings_argc(s)] == NULL);
    bt_settings_log(s);
    bt_settings_destroy(s);
    return text;
}
static const char *gather(char **argv) { return gather_by(&SPEC, argv); }
#define ARGS(...) \
    (char *[]) { (char *)"program", __VA_ARGS__, NULL }
#define ARG(text) (char *)(text)

#define EXPECT_WORDS(got, want)                                                                 \
    do {                                                                                        \
        const char *got_ = (got);                                                               \
        if (strcmp(got_, want) != 0) {                                                          \
            g_failures++;                                                                       \
            fprintf(stderr, "%s:%d got \"%s\", want \"%s\"\n", __FILE__, __LINE__, got_, want); \
        }                                                                                       \
    } while (0)

static void settings_come_weakest_first(void)
{
    write_config("# a comment\n\n  port = 1   # why\nqueue-s=\"5 # 6\"  # x\nfast = true\n");
    setenv("BATON_PORT", "2", 1);
    EXPECT_WORDS(gather(ARGS(ARG("--config"), ARG(PATH), ARG("--port=3"))),
                 "--queue-s=5 # 6 --port=1 --fast --port=2 --config baton.conf --port=3 ");
    setenv("BATON_FAST", "false", 1);
    setenv("BATON_QUEUE_S", "", 1); /* empty is unset */
    EXPECT_WORDS(gather(ARGS(ARG("-q7"))), "--port=2 -q7 ");
    EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH))),
                 "--queue-s=5 # 6 --port=1 --port=2 --config=baton.conf ");
    unsetenv("BATON_PORT");
    unsetenv("BATON_FAST");
    unsetenv("BATON_QUEUE_S");
    EXPECT_WORDS(gather(ARGS(ARG("--nonsense"))), "--nonsense "); /* argp's to refuse */
}

static void settings_file_of_the_environment(void)
{
    write_config("port = 9\n");
    setenv("BATON_CONFIG", PATH, 1);
    EXPECT_WORDS(gather(ARGS(ARG("--fast"))), "--port=9 --fast ");
    unsetenv("BATON_CONFIG");
}

static void settings_that_exclude_each_other_follow_the_stronger(void)
{
    write_config("both = 4\n");
    EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH), ARG("--prefill=2"))),
                 "--config=baton.conf --prefill=2 ");
    setenv("BATON_PREFILL", "3", 1);
    EXPECT_WORDS(gather(ARGS(ARG("--both=1"))), "--both=1 ");
    setenv("BATON_BOTH", "3", 1); /* of one place: the program says what is wrong */
    EXPECT_WORDS(gather(ARGS(ARG("--fast"))), "--prefill=3 --both=3 --fast ");
    unsetenv("BATON_PREFILL");
    unsetenv("BATON_BOTH");
    write_config("queue-s = 5\n");
    setenv("BATON_FAST", "true", 1);
    EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH))), "--fast --config=baton.conf ");
    setenv("BATON_FAST", "false", 1);
    EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH))), "--queue-s=5 --config=baton.conf ");
    unsetenv("BATON_FAST");
}

/* What a file says may be meant for other runs; a flag is for this one. */
static void settings_without_effect_are_errors_as_flags(void)
{
    static const char *const CASES[][3] = {
        {"--port=1",    "--prefill=2",
         "--port has no effect with --prefill: leave it out, give it elsewhere"                },
        {"--port=1",    "--fast",
         "--fast has no effect without --port 8000, or so: leave it out, ports are slow"       },
        {"--queue-s=1", "--port=1",
         "--queue-s has no effect without --fast: leave it out, there is no queue"             },
        {"--both=1",    "--port=1",    "--both has no effect: leave it out, it never is of use"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        EXPECT_WORDS(gather_by(&MODES, ARGS(ARG(CASES[i][0]), ARG(CASES[i][1]))), "");
        EXPECT_HAS(bt_error_text(), CASES[i][2]);
        EXPECT_EQ(bt_settings_check_flags(&MODES, 3, ARGS(ARG(CASES[i][0]), ARG(CASES[i][1]))),
                  BT_ERR_INVALID_ARG);
    }
    EXPECT_EQ(bt_settings_check_flags(&MODES, 3, ARGS(ARG("--queue-s=1"), ARG("--fast"))), BT_OK);
    setenv("BATON_PREFILL", "2", 1);
    EXPECT_WORDS(gather_by(&MODES, ARGS(ARG("--port=1"))), "");
    EXPECT_HAS(bt_error_text(), "--port has no effect with --prefill (environment): leave it out");
    unsetenv("BATON_PREFILL");
    write_config("port = 1\nqueue-s = 2\nboth = 3\n");
    EXPECT_WORDS(gather_by(&MODES, ARGS(ARG("--config=" PATH), ARG("--prefill=2"))),
                 "--config=baton.conf --prefill=2 ");
    setenv("BATON_FAST", "true", 1);
    EXPECT_WORDS(gather_by(&MODES, ARGS(ARG("--config=" PATH))),
                 "--port=1 --config=baton.conf "); /* what has no effect is no reason */
    unsetenv("BATON_FAST");
}

static void settings_that_are_wrong_name_their_place(void)
{
    static const char *const cases[][2] = {
        {"port 1\n",             "baton.conf:1: expected \"name = value\""                          },
        {"\nprot = 1\n",         "baton.conf:2: there is no setting \"prot\""                       },
        {"ports = 1\n",          "no setting \"ports\": is port meant?"                             },
        {"\nfoo = 1\n",          "no setting \"foo\": expected a long option of --help but --config"},
        {"config = x\n",         "no setting \"config\""                                            },
        {"port = 1\nport = 2\n", "baton.conf:2: port is set twice"                                  },
        {"port = \"1\n",         "the quote is not closed"                                          },
        {"port = \"1\" 2\n",     "unexpected text after the quote"                                  },
        {"fast = yes\n",         "fast is \"yes\", expected true or false"                          },
        {"\xef\xbb\xbf# a\n",    "baton.conf: begins with a byte order mark: save it without one"   },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_config(cases[i][0]);
        EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH))), "");
        EXPECT_HAS(bt_error_text(), cases[i][1]);
    }
    EXPECT_WORDS(gather(ARGS(ARG("--config="))), "");
    EXPECT_HAS(bt_error_text(), "--config is \"\", expected a file");
    EXPECT_WORDS(gather(ARGS(ARG("--config=missing"))), "");
    EXPECT_HAS(bt_error_text(), "missing: No such file");
    EXPECT(mkfifo("fifo", 0600) == 0); /* nobody will ever write to it */
    EXPECT_WORDS(gather(ARGS(ARG("--config=fifo"))), "");
    EXPECT_HAS(bt_error_text(), "fifo: expected a regular file, found a pipe");
    unlink("fifo");
    setenv("BATON_FAST", "1", 1);
    EXPECT_WORDS(gather(ARGS(ARG("--port=1"))), "");
    EXPECT_HAS(bt_error_text(), "BATON_FAST");
    unsetenv("BATON_FAST");
}

/* What stands behind a zero byte would not be seen. */
static void settings_file_is_text_of_bounded_size(void)
{
    static char large[(1 << 20) + 1];

    write_bytes("port = 1\0\nqueue-s = 5\n", 23);
    EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH))), "");
    EXPECT_HAS(bt_error_text(), "baton.conf: expected text, found a zero byte at byte 8");
    memset(large, '#', sizeof(large));
    write_bytes(large, sizeof(large));
    EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH))), "");
    EXPECT_HAS(bt_error_text(), "expected at most 1048576 bytes, found more");
    write_bytes(large, sizeof(large) - 1);
    EXPECT_WORDS(gather(ARGS(ARG("--config=" PATH))), "--config=baton.conf ");
}

static void settings_pass_over_service_addresses(void)
{
    setenv("BATON_PORT", "tcp://10.0.0.1:8000", 1);
    EXPECT_WORDS(gather(ARGS(ARG("--fast"))), "--fast ");
    unsetenv("BATON_PORT");
}

/* Others may be meant for another program, or come from an orchestrator. */
static void settings_warn_of_names_that_are_nearly_one(void)
{
    static const struct {
        const char *given, *meant;
    } NAMES[] = {
        {"BATON_QUEUES",       "BATON_QUEUE_S"},
        {"BATON_QEUE_S",       "BATON_QUEUE_S"},
        {"BATON_QUUEE_S",      "BATON_QUEUE_S"},
        {"BATON_PREFIL",       "BATON_PREFILL"},
        {"BATON_prefill",      NULL           },
        {"BATON_PROTT",        NULL           },
        {"BATON_PORTS",        "BATON_PORT"   },
        {"BATON_SERVICE_HOST", NULL           },
        {"BATON_PORT",         NULL           },
        {"BATON_",             NULL           },
        {"BATON",              NULL           },
    };
    bt_settings *s      = NULL;
    char        *argv[] = {ARG("program"), NULL};
    char         want[160];

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        own_stderr  own;
        const char *said;

        setenv(NAMES[i].given, "2", 1);
        own = begin_stderr();
        EXPECT_EQ(bt_settings_gather(&SPEC, 1, argv, &s), BT_OK);
        said = end_stderr(own);
        snprintf(want, sizeof(want), "%s is no setting of this program: is %s meant?",
                 NAMES[i].given, NAMES[i].meant != NULL ? NAMES[i].meant : "");
        if (NAMES[i].meant != NULL)
            EXPECT_HAS(said, want);
        else
            EXPECT(strstr(said, "is no setting") == NULL);
        bt_settings_clear_environment(s);
        bt_settings_destroy(s);
        EXPECT((getenv(NAMES[i].given) == NULL) ==
               (NAMES[i].meant != NULL || strcmp(NAMES[i].given, "BATON_PORT") == 0));
        unsetenv(NAMES[i].given);
    }
}

/* Whoever starts a program may give it such, and unsetenv() leaves it. */
static void settings_pass_over_what_is_no_variable(void)
{
    bt_settings *s      = NULL;
    char        *argv[] = {ARG("program"), NULL};
    char        *own[] = {ARG("BATON_QUEUES"), NULL}, **before = environ;

    environ = own;
    EXPECT_EQ(bt_settings_gather(&SPEC, 1, argv, &s), BT_OK);
    bt_settings_clear_environment(s);
    environ = before;
    bt_settings_destroy(s);
}

static void settings_leave_the_environment(void)
{
    bt_settings *s      = NULL;
    char        *argv[] = {ARG("program"), NULL};

    setenv("BATON_PORT", "2", 1);
    setenv("BATON_ELSE", "2", 1);
    EXPECT_EQ(bt_settings_gather(&SPEC, 1, argv, &s), BT_OK);
    bt_settings_clear_environment(s);
    EXPECT(getenv("BATON_PORT") == NULL && getenv("BATON_ELSE") != NULL);
    bt_settings_destroy(s);
    unsetenv("BATON_ELSE");
}

static void settings_with_short_memory_fail_cleanly(void)
{
    char        *argv[] = {ARG("program"), ARG("--port=1"), NULL};
    bt_settings *s      = NULL;

    setenv("BATON_QUEUE_S", "4", 1);
    EXPECT(BT_SWEEP(bt_settings_gather(&SPEC, 2, argv, &s), bt_settings_destroy(s)) > 0);
    unsetenv("BATON_QUEUE_S");
}

static void settings_report_says_what_holds_and_why(void)
{
    static char port[1500] = "--port=", queue[400] = "-q";
    own_stderr  own = begin_stderr();
    const char *text;

    gather(ARGS(ARG("-q7")));
    text = end_stderr(own);
    EXPECT_HAS(text, "settings: queue-s=7 (flag)\n");
    EXPECT_HAS(text, "by default: port=8000, or so\n");
    /* What is too long for a line is cut, and what does not fit beside it has one of its own. */
    memset(port + 7, '1', sizeof(port) - 8);
    memset(queue + 2, '2', sizeof(queue) - 3);
    own = begin_stderr();
    gather(ARGS(ARG("--both=3"), queue, port));
    text = end_stderr(own);
    EXPECT_HAS(text, "settings: queue-s=222");
    EXPECT_HAS(text, "222 (flag)\n");
    EXPECT_HAS(text, "settings: port=111");
    EXPECT_HAS(text, "111\n");
    EXPECT_HAS(text, "settings: both=3 (flag)\n");
}

static void letters_apart_are_the_fewest_changes(void)
{
#define LETTERS_16 "abcdefghijklmnop"
#define LETTERS_64 LETTERS_16 LETTERS_16 LETTERS_16 LETTERS_16
    static const struct {
        const char *a, *b;
        uint32_t    apart;
    } CASES[] = {
        {"",             "",         0         },
        {"kitten",       "sitting",  3         },
        {"name",         "xname",    1         },
        {"name",         "names",    1         },
        {"name",         "",         4         },
        {"ab",           "ba",       2         },
        {"abcd",         "dabc",     2         },
        {"ab",           "xyz",      3         },
        {"aaaa",         "bbba",     3         },
        {LETTERS_64,     LETTERS_64, 0         },
        {LETTERS_64,     "abc",      61        },
        {LETTERS_64 "x", "abc",      UINT32_MAX},
    };
#undef LETTERS_64
#undef LETTERS_16

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        EXPECT_EQ(bt_letters_apart(CASES[i].a, CASES[i].b), CASES[i].apart);
        EXPECT_EQ(bt_letters_apart(CASES[i].b, CASES[i].a), CASES[i].apart);
    }
}

static const bt_test tests[] = {
    BT_TEST(letters_apart_are_the_fewest_changes),
    BT_TEST(settings_come_weakest_first),
    BT_TEST(settings_file_of_the_environment),
    BT_TEST(settings_that_exclude_each_other_follow_the_stronger),
    BT_TEST(settings_without_effect_are_errors_as_flags),
    BT_TEST(settings_that_are_wrong_name_their_place),
    BT_TEST(settings_file_is_text_of_bounded_size),
    BT_TEST(settings_pass_over_service_addresses),
    BT_TEST(settings_warn_of_names_that_are_nearly_one),
    BT_TEST(settings_pass_over_what_is_no_variable),
    BT_TEST(settings_leave_the_environment),
    BT_TEST(settings_report_says_what_holds_and_why),
    BT_TEST(settings_with_short_memory_fail_cleanly),
};

int main(int argc, char **argv)
{
    char folder[] = "/tmp/baton-settings-XXXXXX";
    int  rc;

    if (mkdtemp(folder) == NULL || chdir(folder) != 0) return EXIT_FAILURE;
    rc = BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
    unlink(PATH);
    if (chdir("/") != 0 || rmdir(folder) != 0) return EXIT_FAILURE;
    return rc;
}
