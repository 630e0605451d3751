/* tests/cli/fake_cell.h - baton run with ranks that compute nothing (fake_worker.c), and clients of
 * it. */
#ifndef BT_TESTS_CLI_FAKE_CELL_H
#define BT_TESTS_CLI_FAKE_CELL_H

#include "tests/support/command.h"
#include "tests/support/test.h"

enum { START_S = 120, END_S = 60 };

static const char *g_bin;
static char        g_model[256];
static bt_command  g_run, g_client;
static char        g_address[64];

/* NAME ARGS... from the test's directory of programs. */
static inline void build_argv(char *program, size_t capacity, const char *name,
                              const char *const *args, const char **argv)
{
    int n = 0;

    snprintf(program, capacity, "%s/%s", g_bin, name);
    argv[n++] = program;
    for (; *args != NULL; args++)
        argv[n++] = *args;
    argv[n] = NULL;
}

static inline void start_run(const char *fake, const char *const *more)
{
    char              program[256], setting[64];
    const char       *args[24] = {"--model", g_model, "--port", "0"};
    const char       *argv[32];
    const char *const env[] = {setting, NULL};

    for (int i = 0; more[i] != NULL; i++)
        args[4 + i] = more[i];
    snprintf(setting, sizeof(setting), "FAKE=%s", fake);
    build_argv(program, sizeof(program), "baton-run", args, argv);
    bt_command_start(&g_run, argv, env);
}

static inline bool serving(void)
{
    const char *at;

    EXPECT(bt_command_wait_for(&g_run, ")\n", START_S) ||
           bt_command_wait_for(&g_run, "serving ", START_S));
    bt_command_wait_for(&g_run, "ready after", START_S);
    at = strstr(g_run.output, " at 127.0.0.1:");
    EXPECT(at != NULL);
    if (at == NULL) {
        fprintf(stderr, "not serving; it wrote:\n%s\n", g_run.output);
        return false;
    }
    sscanf(at, " at %63s", g_address);
    return true;
}

static inline int client(const char *name, const char *const *more)
{
    char        program[256];
    const char *args[24] = {"--address", g_address, "--model", g_model};
    const char *argv[32];

    for (int i = 0; more[i] != NULL; i++)
        args[4 + i] = more[i];
    build_argv(program, sizeof(program), name, args, argv);
    return bt_command_run(&g_client, argv, NULL, END_S);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define BOTH_1    ARGS("--both", "1")
#define TWO_RANKS ARGS("--prefill", "1", "--decode", "1")

/* usage: test_NAME BIN_DIR [test] */
static inline int fake_cell_main(int argc, char **argv, const bt_test *tests, size_t n_tests)
{
    if (argc < 2) return EXIT_FAILURE;
    g_bin = argv[1];
    snprintf(g_model, sizeof(g_model), "%s/models/demo", BT_SOURCE_DIR);
    return bt_run_tests(tests, n_tests, argc > 2 ? argv[2] : NULL);
}

#endif
