/* baton run --chat: one question, one answer, and the cell ends. */
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cli/fake_cell.h"

static void run_chat_answers_and_ends(void)
{
    start_run("", ARGS("--both", "2", "--chat", "Good morrow.", "--max-tokens", "4"));
    EXPECT_EQ(bt_command_finish(&g_run, START_S + END_S), 0);
    EXPECT_HAS(g_run.output, "> Good morrow.");
    EXPECT_HAS(g_run.output, "4 generated (length)");
}

/* No port is taken that a cell on this machine may serve at, and none is told that is not taken. */
static void run_chat_tells_the_port_that_it_takes(void)
{
    static const char *const env[] = {"FAKE=", NULL};
    char                     program[256];
    const char              *argv[16];

    build_argv(program, sizeof(program), "baton-run",
               ARGS("--model", g_model, "--both", "1", "--chat", "Good morrow.", "--max-tokens",
                    "4", "--log", "info"),
               argv);
    EXPECT_EQ(bt_command_run(&g_run, argv, env, START_S + END_S), 0);
    EXPECT_HAS(g_run.output, "by default: port=8000, with --chat 0 ");
    EXPECT_HAS(g_run.output, "coordinator - core/settings.c");
    EXPECT_HAS(g_run.output, " port=0 (flag)");
}

/* Before anything is started. */
static void run_chat_without_a_template_is_said(void)
{
    static const char *const FILES[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char                     dir[]   = "/tmp/baton-run-XXXXXX", from[300], to[64], program[256];
    const char              *argv[16];

    EXPECT(mkdtemp(dir) != NULL);
    for (size_t i = 0; i < 3; i++) {
        snprintf(from, sizeof(from), "%s/%s", g_model, FILES[i]);
        snprintf(to, sizeof(to), "%s/%s", dir, FILES[i]);
        EXPECT_EQ(symlink(from, to), 0);
    }
    build_argv(program, sizeof(program), "baton-run",
               ARGS("--model", dir, "--chat", "Good morrow."), argv);
    EXPECT_EQ(bt_command_run(&g_run, argv, NULL, END_S), 1);
    EXPECT_HAS(g_run.output, "expected a chat_template in tokenizer_config.json");
    EXPECT_HAS(g_run.output, "leave it out to serve without");
    EXPECT(strstr(g_run.output, "coordinator - ") == NULL);
    for (size_t i = 0; i < 3; i++) {
        snprintf(to, sizeof(to), "%s/%s", dir, FILES[i]);
        unlink(to);
    }
    rmdir(dir);
}

static void run_chat_without_an_answer_fails(void)
{
    start_run("", ARGS("--both", "1", "--chat", "Good morrow.", "--max-tokens", "1000000"));
    EXPECT_EQ(bt_command_finish(&g_run, START_S + END_S), 1);
    EXPECT_HAS(g_run.output, "more than the context of 8192");
    EXPECT_HAS(g_run.output, "baton-run: the answer did not come");
}

/* The client's code is ours.  Programs find each other beside themselves: run is a copy. */
static void run_chat_returns_the_code_of_its_client(void)
{
    static const char *const OTHERS[] = {"baton-launch", "baton-coordinator", "baton-worker"};
    char                     dir[]    = "/tmp/baton-run-XXXXXX", from[300], to[64];
    const char *const        copy[]   = {"/bin/cp", from, to, NULL};
    const char              *bin      = g_bin;
    FILE                    *f;

    EXPECT(mkdtemp(dir) != NULL);
    snprintf(from, sizeof(from), "%s/baton-run", g_bin);
    snprintf(to, sizeof(to), "%s/baton-run", dir);
    EXPECT_EQ(bt_command_run(&g_run, copy, NULL, END_S), 0);
    for (size_t i = 0; i < 3; i++) {
        snprintf(from, sizeof(from), "%s/%s", g_bin, OTHERS[i]);
        snprintf(to, sizeof(to), "%s/%s", dir, OTHERS[i]);
        EXPECT_EQ(symlink(from, to), 0);
    }
    snprintf(to, sizeof(to), "%s/baton-chat", dir);
    f = fopen(to, "w");
    EXPECT(f != NULL && fputs("#!/bin/sh\nexit 7\n", f) >= 0 && fclose(f) == 0);
    EXPECT_EQ(chmod(to, 0700), 0);
    g_bin = dir;
    start_run("", ARGS("--both", "1", "--chat", "Good morrow."));
    EXPECT_EQ(bt_command_finish(&g_run, START_S + END_S), 7);
    EXPECT_HAS(g_run.output, "baton-run: the answer did not come");
    EXPECT_EQ(unlink(to), 0); /* what cannot be started ends the cell at once, and is named */
    start_run("", ARGS("--both", "1", "--chat", "Good morrow."));
    EXPECT_EQ(bt_command_finish(&g_run, START_S), 1);
    EXPECT_HAS(g_run.output, "baton-chat: No such file or directory (the programs of Baton");
    snprintf(to, sizeof(to), "%s/baton-launch", dir);
    EXPECT_EQ(unlink(to), 0);
    start_run("", BOTH_1);
    EXPECT_EQ(bt_command_finish(&g_run, END_S), 1);
    EXPECT_HAS(g_run.output, "baton-run: ");
    EXPECT_HAS(g_run.output, "baton-launch: No such file or directory (the programs of Baton");
    g_bin = bin;
    bt_command_run(&g_run, (const char *const[]){"/bin/rm", "-r", dir, NULL}, NULL, END_S);
}

static const bt_test TESTS[] = {
    BT_TEST(run_chat_answers_and_ends),
    BT_TEST(run_chat_without_an_answer_fails),
    BT_TEST(run_chat_returns_the_code_of_its_client),
    BT_TEST(run_chat_tells_the_port_that_it_takes),
    BT_TEST(run_chat_without_a_template_is_said),
};

int main(int argc, char **argv)
{
    return fake_cell_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
