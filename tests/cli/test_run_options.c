/* Command lines of baton and baton-run, and what stands in the way of a start: nothing is started.
 */
#include <sys/mman.h>

#include "tests/cli/fake_cell.h"

/* Else a program dies without a word of ours. */
static void programs_name_the_limit_that_is_too_low(void)
{
    static const char *const LIMITS[][2] = {
        {"ulimit -n 10; \"$0\" \"$@\"",  "this program may open 10 files, and needs up to 64"},
        {"ulimit -s 256; \"$0\" \"$@\"", "a stack may have 256 KiB, and needs 512"           },
    };
    static const char *const PROGRAMS[] = {"baton-run", "baton-generate", "baton-coordinator"};

    for (size_t i = 0; i < 2 * sizeof(PROGRAMS) / sizeof(PROGRAMS[0]); i++) {
        char        program[256];
        const char *argv[] = {"/bin/sh", "-c", LIMITS[i % 2][0], program, "--model", g_model, NULL,
                              NULL,      NULL};

        snprintf(program, sizeof(program), "%s/%s", g_bin, PROGRAMS[i / 2]);
        argv[6] = (i / 2 == 0 ? "--both" : i / 2 == 1 ? "--address" : "--port");
        argv[7] = (i / 2 == 0 ? "1" : i / 2 == 1 ? "127.0.0.1:9" : "0");
        EXPECT_EQ(bt_command_run(&g_client, argv, NULL, END_S), 1);
        EXPECT_HAS(g_client.output, LIMITS[i % 2][1]);
    }
}

static void run_bad_command_lines_are_refused(void)
{
    static const struct {
        const char *args[6];
        const char *says;
        int         code;
    } CASES[] = {
        {{"--model", "/nowhere", NULL},                                                         "/nowhere/config.json",                         1 },
        {{"--both", "1", NULL},                                                                 "--model is missing: the directory of a model", 64},
        {{"--port", "70000", NULL},                                                             "from 0 to 65535, not \"70000\"",               64},
        {{"--prefill", "0", NULL},                                                              "from 1 to 4096, not \"0\"",                    64},
        {{"--both", "4097", NULL},                                                              "from 1 to 4096, not \"4097\"",                 64},
        {{"--threads", "1025", NULL},                                                           "from 0 to 1024, not \"1025\"",                 64},
        {{"--timeout-s", "3601", NULL},                                                         "from 1 to 3600, not \"3601\"",                 64},
        {{"--on-death", "dance", NULL},                                                         "\"dance\", expected stop, restart or replace", 64},
        {{"--log", "loud", NULL},                                                               "\"loud\", expected error, warn",               64},
        {{"--both", "1", "--decode", "1", NULL},                                                "--both goes without --prefill",                64},
        {{"--model", "", NULL},                                                                 "--model is \"\", expected a directory",        64},
        {{"--queue-s", "0", NULL},                                                              "--queue-s must be a number from 0.001 to",     64},
        {{"--host", "", NULL},                                                                  "--host is \"\", expected an address",          64},
        {{"--chat", "", NULL},                                                                  "--chat is empty",                              64},
        {{"--served-model-name", "", NULL},                                                     "--served-model-name is \"\", expected a name", 64},
        {{"--control", "::1:0", NULL},
         "expected HOST:PORT, an IPv6 host in brackets: [::1]:8000",                                                                            64},
        {{"--control", "127.0.0.1:99999", NULL},                                                "expected HOST:PORT",                           64},
        {{"--model", BT_SOURCE_DIR "/README.md", NULL},
         "README.md\", expected a directory, found a file",                                                                                     64},
        {{"extra", NULL},                                                                       "\"extra\" is not an option; the model",        64},
        {{"--device", "WRONG", NULL},
         "--device must be auto, cpu, cuda or cuda:N, not \"WRONG\"",                                                                           64},
        {{"--device", "cuda:64", NULL},
         "--device cuda:N must be a whole number from 0 to 63, not \"64\"",                                                                     64},
        {{"--transport", "WRONG", NULL},
         "--transport must be auto, mpi or nccl, not \"WRONG\"",                                                                                64},
        {{"--kernels", "WRONG", NULL},
         "--kernels must be auto, amx, avx512bf16, avx512, avx2, neon or scalar, not \"WRONG\"",                                                64},
        {{"--weights-cache", "--both", NULL},
         "--weights-cache is \"--both\", expected a directory",                                                                                 64},
        {{"--weights-cache=/no", "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--weights-cache /no: No such file",                                                                                                   1 },
        {{"--weights-cache=/no", "--hosts=n1", "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--control is 127.0.0.1:0, which n1 cannot reach",                                                                                     64},
        {{"--chunk", "9", "--max-rows", "8", NULL},                                             "--chunk 9 does not fit",                       64},
        {{"--hosts", "n1,", NULL},                                                              "--hosts is \"n1,\", expected names",           64},
        {{"--hosts", "-oProxyCommand=x", NULL},                                                 "expected names like node1:8,node2:8",          64},
        {{"--hosts", "n1:x", NULL},                                                             "slots from 1 to 65536",                        64},
        {{"--hostfile", "/nowhere", NULL},                                                      "--hostfile /nowhere: No such file",            64},
        {{"--hosts", "n1", "--hostfile", "/dev/null", NULL},                                    "regular file",                                 64},
        {{"--hosts", "n1", "--slurm", NULL},
         "--hosts, --hostfile and --slurm exclude each other",                                                                                  64},
        {{"--rank-map", "m", "--spares", "1", NULL},
         "--rank-map says how many ranks there are and where: it goes without",                                                                 64},
        {{"--chat=one", "--chat=two", "--model=" BT_SOURCE_DIR "/tests/models/v2", NULL},
         "--chat needs the model's tokenizer and",                                                                                              1 },
        {{"--chat-tls-ca=a", "--chat-tls-ca=b", "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--chat-tls-ca goes with --chat",                                                                                                      64},
        {{"--coordinator=127.0.0.1:9", "--cell=a", "--port=1",
          "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--port has no effect with --coordinator: leave it out, or give it to",                                                                64},
        {{"--max-tokens=5", "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--max-tokens has no effect without --chat: leave it out, since clients say",                                                          64},
        {{"--slurm", NULL},                                                                     "SLURM_JOB_ID is not set",                      64},
        {{"--spares=1", "--on-death=stop", "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--spares needs --on-death=replace",                                                                                                   64},
        {{"--tls-client-ca=a", "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--tls-client-ca needs both",                                                                                                          64},
        {{"--chat=one", "--chat-tls-ca=a", "--model=" BT_SOURCE_DIR "/models/demo", NULL},
         "--chat-tls-ca goes with --chat and --tls-cert",                                                                                       64},
        {{"--renew", "--model=" BT_SOURCE_DIR "/models/demo",
          NULL},                                                                       /* of themselves there are none */
         "--renew goes with --on-death replace and --restarts N",                                                      64},
        {{"--cell", "", NULL},                                                                  "--cell is \"\", expected a name",              64},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char        program[256];
        const char *argv[16];

        build_argv(program, sizeof(program), "baton-run", CASES[i].args, argv);
        EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), CASES[i].code);
        EXPECT_HAS(g_run.output, CASES[i].says);
        EXPECT(strstr(g_run.output, "coordinator - ") == NULL); /* nothing has been started */
    }
}

/* 192.0.2.1 is nobody's.  What is not refused fails later, since the model has no tokenizer. */
static void control_address_of_each_machine_is_refused_with_other_hosts(void)
{
    static const char MAP[]   = "prefill localhost\ndecode 192.0.2.1\n";
    static const char HOSTS[] = "192.0.2.1 slots=2\n";
    static const char LATER[] = "--chat needs the model's tokenizer and";
    int               map     = memfd_create("map", MFD_CLOEXEC);
    int               hosts   = memfd_create("hosts", MFD_CLOEXEC);
    char              map_arg[64], hosts_arg[64];
    const struct {
        const char *args[3];
        const char *says;
        int         code;
    } CASES[] = {
        {{"--hosts=127.0.0.1,192.0.2.1"},
         "--control is 127.0.0.1:0, which 192.0.2.1 cannot reach",                                   64},
        {{"--hosts=192.0.2.1", "--control=localhost:9"}, "--control is localhost:9, which 192",      64},
        {{map_arg, "--control=[::]:0"},                  "--control is [::]:0, which 192.0.2.1",     64},
        {{hosts_arg},                                    "which 192.0.2.1 cannot reach",             64},
        {{"--slurm"},                                    "which the job's other nodes cannot reach", 64},
        {{"--slurm", "--control=127.0.0.1:0"},           LATER,                                      1 },
        {{"--hosts=127.0.0.1,localhost"},                LATER,                                      1 },
        {{"--hosts=192.0.2.1", "--control=192.0.2.7:0"}, LATER,                                      1 },
    };

    EXPECT(write(map, MAP, sizeof(MAP) - 1) > 0 && write(hosts, HOSTS, sizeof(HOSTS) - 1) > 0);
    snprintf(map_arg, sizeof(map_arg), "--rank-map=/proc/%d/fd/%d", (int)getpid(), map);
    snprintf(hosts_arg, sizeof(hosts_arg), "--hostfile=/proc/%d/fd/%d", (int)getpid(), hosts);
    setenv("SLURM_JOB_ID", "1", 1);
    setenv("SLURM_JOB_NUM_NODES", "2", 1);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char        program[256];
        const char *argv[16], *args[] = {"--chat=x", "--model=" BT_SOURCE_DIR "/tests/models/v2",
                                         CASES[i].args[0], CASES[i].args[1], NULL};

        build_argv(program, sizeof(program), "baton-run", args, argv);
        EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), CASES[i].code);
        EXPECT_HAS(g_run.output, CASES[i].says);
    }
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_JOB_NUM_NODES");
    close(map);
    close(hosts);
}

static void run_flag_wins_over_what_it_excludes(void)
{
    static const char *const EXCLUDED[] = {"BATON_BOTH", "BATON_PREFILL", "BATON_DECODE",
                                           "BATON_SPARES"};
    char                     program[256];
    const char              *argv[16];

    build_argv(program, sizeof(program), "baton-run", ARGS("--rank-map=/nowhere.map"), argv);
    for (size_t i = 0; i < sizeof(EXCLUDED) / sizeof(EXCLUDED[0]); i++) {
        setenv(EXCLUDED[i], "2", 1);
        EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), 64);
        EXPECT_HAS(g_run.output, "/nowhere.map: No such file");
        unsetenv(EXCLUDED[i]);
    }
}

static void baton_verbs_are_found_and_listed(void)
{
    char        program[256];
    const char *argv[16];

    build_argv(program, sizeof(program), "baton", ARGS("--help"), argv);
    EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), 0);
    EXPECT_HAS(g_run.output, "generate");
    build_argv(program, sizeof(program), "baton", ARGS("help", "run"), argv);
    EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), 0);
    EXPECT_HAS(g_run.output, "--prefill");
    EXPECT_HAS(g_run.output, "Usage: baton run [OPTION...]");
    build_argv(program, sizeof(program), "baton", ARGS("juggle"), argv);
    EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), 64);
    EXPECT_HAS(g_run.output, "no verb \"juggle\"");
    build_argv(program, sizeof(program), "baton", ARGS("../bin/baton-run"), argv);
    EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), 64);
}

/* It finds its verbs by its own path. */
static void baton_without_proc_says_so(void)
{
    char        program[256];
    const char *argv[] = {"/usr/bin/unshare",
                          "--user",
                          "--map-root-user",
                          "--mount",
                          "/bin/sh",
                          "-c",
                          "mount -t tmpfs none /proc && exec \"$0\" run",
                          program,
                          NULL};

    snprintf(program, sizeof(program), "%s/baton", g_bin);
    if (system("unshare --user --map-root-user --mount mount -t tmpfs none /proc") != 0) {
        printf("skipped: no namespaces of mounts here\n");
        return;
    }
    EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), 1);
    EXPECT_HAS(g_run.output, "is /proc mounted?");
}

static const bt_test TESTS[] = {
    BT_TEST(programs_name_the_limit_that_is_too_low),
    BT_TEST(run_bad_command_lines_are_refused),
    BT_TEST(control_address_of_each_machine_is_refused_with_other_hosts),
    BT_TEST(run_flag_wins_over_what_it_excludes),
    BT_TEST(baton_verbs_are_found_and_listed),
    BT_TEST(baton_without_proc_says_so),
};

int main(int argc, char **argv)
{
    return fake_cell_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
