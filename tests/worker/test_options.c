#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "worker/options.h"

enum { MAX_ARGS = 24 };

/* Parses a command line that is cut at blanks. */
static bt_status parse(const char *line, bt_worker_options *opt)
{
    static char copy[1024];
    char       *argv[MAX_ARGS] = {"baton-worker"}, *save = NULL;
    int         argc = 1;

    snprintf(copy, sizeof(copy), "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word != NULL && argc < MAX_ARGS - 1;
         word       = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    return bt_worker_options_parse(argc, argv, false, opt);
}

#define BASE "--model m --coordinator 127.0.0.1:1 "

static void options_defaults_follow_the_chunk(void)
{
    bt_worker_options opt;

    EXPECT_EQ(parse(BASE "--prefill 2 --decode 3", &opt), BT_OK);
    EXPECT_EQ(opt.n_prefill, 2);
    EXPECT_EQ(opt.n_decode, 3);
    EXPECT_EQ(opt.chunk, 2048);
    EXPECT_EQ(opt.max_rows, 2048);
    EXPECT_EQ(opt.form, BT_FORM_BY_ROLE);
    EXPECT_EQ(opt.timeout_ns, 10000000000ull);
    EXPECT_EQ(opt.kv_bytes, 0);
    EXPECT_EQ(opt.speculate, 0);
    EXPECT_EQ(opt.mtp, 0);
    EXPECT_EQ(parse(BASE "--both 2", &opt), BT_OK);
    EXPECT_EQ(opt.chunk, 512);
    EXPECT_EQ(parse(BASE "--both 2 --chunk 7 --speculate 15", &opt), BT_OK);
    EXPECT_EQ(opt.speculate, 15);
    EXPECT_EQ(parse(BASE "--both 2 --chunk 7 --mtp 5", &opt), BT_OK);
    EXPECT_EQ(opt.mtp, 5);
    EXPECT_EQ(opt.n_both, 2);
    EXPECT_EQ(opt.max_rows, 256);
    EXPECT_EQ(parse(BASE "--both 1 --chunk 2600 --form cost --kv-bytes 2G --timeout-s 3", &opt),
              BT_OK);
    EXPECT_EQ(opt.max_rows, 2600);
    EXPECT_EQ(parse(BASE "--both 1 --max-rows 128", &opt), BT_OK);
    EXPECT_EQ(opt.chunk, 128);
    EXPECT_EQ(opt.max_rows, 128);
    EXPECT_EQ(parse(BASE "--both 1 --max-rows 700", &opt), BT_OK);
    EXPECT_EQ(opt.chunk, 512);
    EXPECT_EQ(opt.max_rows, 700);
    EXPECT_EQ(parse(BASE "--both 1 --chunk 2600 --form cost --kv-bytes 2G --timeout-s 3", &opt),
              BT_OK);
    EXPECT_EQ(opt.form, BT_FORM_BY_COST);
    EXPECT_EQ(opt.kv_bytes, 2ull << 30);
}

static void options_name_the_device(void)
{
    bt_worker_options opt;

    EXPECT_EQ(parse(BASE "--both 1", &opt), BT_OK);
    EXPECT_EQ(opt.device, BT_ON_ANY);
    EXPECT_EQ(opt.gpu, BT_GPU_BY_LOCAL_RANK);
    EXPECT_EQ(parse(BASE "--both 1 --device cpu", &opt), BT_OK);
    EXPECT_EQ(opt.device, BT_ON_CPU);
    EXPECT_EQ(parse(BASE "--both 1 --device cuda", &opt), BT_OK);
    EXPECT_EQ(opt.device, BT_ON_GPU);
    EXPECT_EQ(opt.gpu, BT_GPU_BY_LOCAL_RANK);
    EXPECT_EQ(parse(BASE "--both 1 --device cuda:3", &opt), BT_OK);
    EXPECT_EQ(opt.device, BT_ON_GPU);
    EXPECT_EQ(opt.gpu, 3);
}

static void options_name_the_transport(void)
{
    bt_worker_options opt;

    EXPECT_EQ(parse(BASE "--both 1", &opt), BT_OK);
    EXPECT_EQ(opt.transport, BT_BY_ANY);
    EXPECT(opt.nccl_library == NULL);
    EXPECT_EQ(parse(BASE "--both 1 --transport mpi", &opt), BT_OK);
    EXPECT_EQ(opt.transport, BT_BY_MPI);
    EXPECT_EQ(parse(BASE "--both 1 --transport nccl --nccl-library x", &opt), BT_OK);
    EXPECT_EQ(opt.transport, BT_BY_NCCL);
    EXPECT(strcmp(opt.nccl_library, "x") == 0);
}

/* core/rank_flags.c lists them for programs that have no kernels. */
static void options_take_each_family_of_kernels(void)
{
    char names[128], line[256], *save = NULL;

    snprintf(names, sizeof(names), "%s", bt_device_cpu_kernels());
    for (char *name = strtok_r(names, ",", &save); name != NULL;
         name       = strtok_r(NULL, ",", &save)) {
        bt_worker_options opt;

        snprintf(line, sizeof(line), BASE "--both 1 --kernels %s", name);
        EXPECT_EQ(parse(line, &opt), BT_OK);
        EXPECT(strcmp(opt.kernels, name) == 0);
    }
}

static void options_errors_say_what_to_do(void)
{
    static const struct {
        const char *line, *says;
    } CASES[] = {
        {"--prefill 1 --decode 1 --model m",              "--coordinator"                     },
        {"--prefill 1 --decode 1 --coordinator h:1",      "--model"                           },
        {BASE,                                            "--both N"                          },
        {BASE "--prefill 1",                              "roles are missing"                 },
        {BASE "--both 1 --decode 1",                      "excludes"                          },
        {BASE "--both 0",                                 "--both must be"                    },
        {BASE "--both 1 --speculate 16",                  "--speculate must be"               },
        {BASE "--both 1 --mtp 6",                         "--mtp must be"                     },
        {BASE "--both 1 --chunk 0",                       "--chunk must be"                   },
        {BASE "--both 1 --chunk 9 --max-rows 8",          "does not fit"                      },
        {BASE "--both 1 --kv-bytes 2X",                   "--kv-bytes must be"                },
        {BASE "--both 1 --kv-bytes 0",                    "--kv-bytes must be"                },
        {BASE "--both 1 --kv-bytes -1",                   "--kv-bytes must be"                },
        {BASE "--both 1 --device gpu",                    "auto, cpu, cuda or cuda:N"         },
        {BASE "--both 1 --device cuda:x",                 "whole number"                      },
        {BASE "--both 1 --transport smoke",               "auto, mpi or nccl"                 },
        {BASE "--both 1 --kernels fast",                  "neon or scalar"                    },
        {BASE "--both 1 --form fast",                     "role, normal"                      },
        {BASE "--both 1 --on-death dance",                "--on-death must be stop or replace"},
        {BASE "--both 1 --spares 2",                      "--spares 2 needs"                  },
        {BASE "--both 1 --spares x --on-death replace",   "--spares must be a whole number"   },
        {BASE "--both 1 --timeout-s 0",                   "--timeout-s must be"               },
        {BASE "--both 1x",                                "whole number"                      },
        {BASE "--both 1 stray",                           "\"stray\""                         },
        {BASE "--both 1 --kv-bytes 99999999999999999999", "--kv-bytes must be"                },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_worker_options opt;

        EXPECT_EQ(parse(CASES[i].line, &opt), BT_ERR_INVALID_ARG);
        EXPECT_HAS(bt_error_text(), CASES[i].says);
    }
}

static void options_unknown_flag_is_an_error(void)
{
    bt_worker_options opt;

    EXPECT_EQ(parse(BASE "--both 1 --colour red", &opt), BT_ERR_INVALID_ARG);
}

static void options_wrong_number_of_ranks_names_the_command(void)
{
    bt_worker_options opt;

    EXPECT_EQ(parse(BASE "--prefill 2 --decode 2", &opt), BT_OK);
    EXPECT_EQ(bt_worker_options_check_ranks(&opt, 4), BT_OK);
    EXPECT_EQ(bt_worker_options_check_ranks(&opt, 3), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "mpirun -n 4 baton-worker --prefill 2 --decode 2");
    EXPECT_EQ(parse(BASE "--both 2", &opt), BT_OK);
    EXPECT_EQ(bt_worker_options_check_ranks(&opt, 1), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "mpirun -n 2 baton-worker --both 2");
}

/* A flag wins over the environment, that over the file; --both in a stronger place drives out roles
 * of a weaker one. */
static void options_come_from_four_places(void)
{
    char  path[] = "/tmp/baton-worker-XXXXXX";
    char *argv[] = {(char *)"baton-worker", (char *)"--config", path, (char *)"--timeout-s=7",
                    NULL};
    bt_settings      *s = NULL;
    bt_worker_options opt;
    int               fd = mkstemp(path);

    EXPECT(fd >= 0);
    dprintf(fd, "# a cell\nmodel = m\ncoordinator = 127.0.0.1:1\nprefill = 2\ndecode = 2\n"
                "chunk = 64\nkv-bytes = 2g\ntimeout-s = 3\n");
    close(fd);
    setenv("BATON_CHUNK", "128", 1);
    setenv("BATON_TIMEOUT_S", "5", 1);
    setenv("BATON_BOTH", "3", 1);
    EXPECT_EQ(bt_settings_gather(&bt_worker_settings, 4, argv, &s), BT_OK);
    EXPECT_EQ(bt_worker_options_parse(bt_settings_argc(s), bt_settings_argv(s), false, &opt),
              BT_OK);
    EXPECT_EQ(opt.chunk, 128);
    EXPECT_EQ(opt.kv_bytes, 2ull << 30);
    EXPECT(opt.timeout_ns == 7000000000u);
    EXPECT(opt.n_both == 3 && opt.n_prefill == 0 && opt.n_decode == 0);
    bt_settings_destroy(s);
    unsetenv("BATON_CHUNK");
    unsetenv("BATON_TIMEOUT_S");
    unsetenv("BATON_BOTH");
    unlink(path);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(options_defaults_follow_the_chunk),
        BT_TEST(options_name_the_device),
        BT_TEST(options_name_the_transport),
        BT_TEST(options_take_each_family_of_kernels),
        BT_TEST(options_errors_say_what_to_do),
        BT_TEST(options_unknown_flag_is_an_error),
        BT_TEST(options_wrong_number_of_ranks_names_the_command),
        BT_TEST(options_come_from_four_places),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
