/* The parts of the verbs that can be looked at without processes: lines of a pipe, what is
 * remembered of a rank's words, rows of an evaluation, and every unwinding when memory is short. */
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/account.h"
#include "cli/child.h"
#include "cli/client.h"
#include "cli/echo.h"
#include "cli/eval_cases.h"
#include "cli/eval_cell.h"
#include "cli/outlet.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/parse.h"
#include "model/safetensors.h"
#include "tests/support/own_stderr.h"
#include "tests/support/test.h"

enum { N = 6, VOCAB = 5, N_MOE = 2, TOP_K = 3 };

/* ---- child, echo */

static char g_lines[8][5000];
static int  g_n_lines;

static void keep_line(void *ctx, const char *line)
{
    (void)ctx;
    if (g_n_lines < 8) snprintf(g_lines[g_n_lines], sizeof(g_lines[0]), "%s", line);
    g_n_lines++;
}

static void lines_come_whole_whatever_the_reads(void)
{
    bt_lines lines = {.fd = -1};
    int      fds[2];
    char     text[9000];

    EXPECT(pipe2(fds, O_CLOEXEC) == 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    lines.fd  = fds[0];
    g_n_lines = 0;
    EXPECT(write(fds[1], "one\ntw", 6) == 6);
    bt_lines_read(&lines, keep_line, NULL);
    EXPECT_EQ(g_n_lines, 1);
    EXPECT(write(fds[1], "o\n\nlast", 7) == 7);
    bt_lines_read(&lines, keep_line, NULL);
    EXPECT_EQ(g_n_lines, 3);
    EXPECT(strcmp(g_lines[0], "one") == 0 && strcmp(g_lines[1], "two") == 0 && g_lines[2][0] == 0);
    close(fds[1]);
    bt_lines_read(&lines, keep_line, NULL); /* the end gives up what has no newline */
    EXPECT_EQ(g_n_lines, 4);
    EXPECT(strcmp(g_lines[3], "last") == 0 && lines.fd == -1);

    EXPECT(pipe2(fds, O_CLOEXEC) == 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    lines     = (bt_lines){.fd = fds[0]};
    g_n_lines = 0;
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\n';
    EXPECT(write(fds[1], text, sizeof(text)) == sizeof(text));
    close(fds[1]);
    bt_lines_read(&lines, keep_line, NULL); /* too long: in pieces, nothing lost */
    EXPECT_EQ(g_n_lines, 3);
    EXPECT_EQ(strlen(g_lines[0]) + strlen(g_lines[1]) + strlen(g_lines[2]), sizeof(text) - 1);
}

static void echo_keeps_the_first_error_of_a_rank(void)
{
    bt_echo echo;

    bt_echo_init(&echo, BT_LOG_ERROR);
    bt_echo_line(&echo, "2026-11-23 11:02:07.153 I rank=1 - worker/main.c:88 ready");
    bt_echo_line(&echo, "2026-11-23 11:02:07.153 E coordinator - a/b.c:1 not of a rank");
    EXPECT(echo.first_error[0] == '\0');
    bt_echo_line(&echo,
                 "2026-11-23 11:02:09.001 E rank=2 req=17 worker/x.c:140 out of memory: 3 bytes");
    bt_echo_line(&echo, "2026-11-23 11:02:09.002 E rank=1 - worker/x.c:140 a peer left");
    EXPECT(strcmp(echo.first_error, "rank 2: out of memory: 3 bytes") == 0);
}

static void echo_knows_the_lines_that_the_log_writes(void)
{
    FILE   *file      = tmpfile();
    int     old       = dup(STDERR_FILENO);
    time_t  now       = time(NULL), after;
    char    line[200] = "", day[16], day_after[16];
    bt_echo echo;

    NEED(file != NULL && old >= 0);
    dup2(fileno(file), STDERR_FILENO);
    bt_log_init("rank=2", BT_LOG_INFO);
    bt_log_write(BT_LOG_ERROR, "worker/x.c", 140, "out of memory: %d bytes", 3);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(file);
    NEED(fgets(line, sizeof(line), file) != NULL);
    fclose(file);
    after = time(NULL);
    strftime(day, sizeof(day), "%Y-%m-%d ", localtime(&now));
    strftime(day_after, sizeof(day_after), "%Y-%m-%d ", localtime(&after));
    EXPECT(strncmp(line, day, strlen(day)) == 0 ||
           strncmp(line, day_after, strlen(day_after)) == 0);
    line[strcspn(line, "\n")] = '\0';
    bt_echo_init(&echo, BT_LOG_ERROR);
    bt_echo_line(&echo, line);
    EXPECT(strcmp(echo.first_error, "rank 2: out of memory: 3 bytes") == 0);
}

/* What an echo that shows all but debug lines passes on of these. */
static const char *passed_on(const char *const *lines, size_t n)
{
    own_stderr own = begin_stderr();
    bt_echo    echo;

    bt_echo_init(&echo, BT_LOG_INFO);
    for (size_t i = 0; i < n; i++)
        bt_echo_line(&echo, lines[i]);
    return end_stderr(own);
}

static void echo_passes_on_what_mpi_says_but_for_noise(void)
{
    static const char *const LINES[] = {
        ("[n1:17483] PMIX ERROR: BAD-PARAM in file ../../../src/event/pmix_event_notification.c at "
         "line 1033"),
        "[n1:17483] PMIX ERROR: NO-PERMISSIONS in file ../../../src/mca/ptl/ptl.c at line 3",
        "2026-11-23 11:02:07.153 I rank=1 - worker/main.c:88 ready",
        "2026-11-23 11:02:07.153 D rank=1 - worker/main.c:88 a step"};

    EXPECT(strcmp(passed_on(LINES, 4),
                  "[n1:17483] PMIX ERROR: NO-PERMISSIONS in file ../../../src/mca/ptl/ptl.c at "
                  "line 3\n2026-11-23 11:02:07.153 I rank=1 - worker/main.c:88 ready\n") == 0);
}

static void echo_bar_stays_in_its_row(void)
{
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    int     other = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), old = dup(STDERR_FILENO), fd;
    bt_echo echo;
    char    text[200];
    ssize_t n;

    NEED(other >= 0 && old >= 0 && grantpt(other) == 0 && unlockpt(other) == 0);
    fd = open(ptsname(other), O_RDWR | O_NOCTTY | O_CLOEXEC);
    NEED(fd >= 0 && ioctl(fd, TIOCSWINSZ, &size) == 0);
    setenv("TERM", "xterm", 1);
    dup2(fd, STDERR_FILENO);
    bt_echo_init(&echo, BT_LOG_ERROR);
    bt_echo_bar(&echo, "%s%s", "123456789 123456789 ", "123456789 123456789 123456789");
    dup2(old, STDERR_FILENO);
    n = read(other, text, sizeof(text) - 1);
    NEED(n > 0);
    text[n] = '\0';
    EXPECT(strcmp(text, "\r\033[K123456789 123456789 123456789 123456789") == 0);
    close(old);
    close(fd);
    close(other);
}

static void account_is_read_from_a_ranks_line(void)
{
    bt_account accounts[3] = {0};

    bt_account_read(
        "2026-11-23 11:02:09.001 I rank=1 - worker/step.c:302 account: 25 steps; "
        "computed 12 prompt tokens and 24 generated tokens; handed over 3 pages, 47040 bytes",
        3, accounts);
    EXPECT(accounts[1].known && !accounts[0].known && !accounts[2].known);
    EXPECT(accounts[1].steps == 25 && accounts[1].prompt_tokens == 12 &&
           accounts[1].generated_tokens == 24 && accounts[1].pages == 3 &&
           accounts[1].bytes == 47040 && accounts[1].drafted == 0);
    bt_account_read(
        "2026-11-23 11:02:09.001 I rank=0 - worker/step.c:302 account: 7 steps; computed 0 "
        "prompt tokens and 14 generated tokens; handed over 0 pages, 0 bytes; launched 0 "
        "steps ahead; took memory of the device 0 times since ready; of 7 tokens of drafts "
        "5 were right",
        3, accounts);
    EXPECT(accounts[0].drafted == 7 && accounts[0].right == 5);
    accounts[0] = (bt_account){0};
    bt_account_read(
        "2026-11-23 11:02:09.001 I rank=3 - worker/step.c:302 account: 25 steps; "
        "computed 12 prompt tokens and 24 generated tokens; handed over 3 pages, 47040 bytes",
        3, accounts); /* there is no rank 3 */
    bt_account_read("2026-11-23 11:02:09.001 I rank=2 - worker/step.c:302 account: many steps", 3,
                    accounts);
    EXPECT(!accounts[2].known);
}

/* What bt_account_print() writes to stderr. */
static const char *printed(const bt_cell_options *cell, const bt_account *accounts)
{
    own_stderr own = begin_stderr();

    bt_account_print(cell, accounts);
    return end_stderr(own);
}

static void account_of_an_idle_rank_claims_no_work(void)
{
    const bt_cell_options one = {.n_both = 1}, two = {.n_both = 2};
    bt_account            accounts[2] = {
                   {.known = true},
                   { .known = true,   .steps = 3}
    };

    EXPECT_HAS(printed(&one, accounts), "rank 0, both roles: 0 steps, no tokens\n");
    EXPECT_HAS(printed(&two, accounts), "rank 1, both roles: 3 steps, no tokens\n");
    accounts[0] = (bt_account){.known = true, .steps = 3, .prompt_tokens = 2};
    EXPECT_HAS(printed(&two, accounts), "3 steps, its experts for the others' tokens\n");
    accounts[0] =
        (bt_account){.known = true, .steps = 7, .generated_tokens = 14, .drafted = 7, .right = 5};
    EXPECT_HAS(printed(&one, accounts), "14 generated (of 7 that were drafted 5 were right)\n");
}

/* ---- outlet */

static size_t fill(int fd)
{
    size_t n = 0;

    while (write(fd, "x", 1) == 1)
        n++;
    return n;
}

/* A socket and a pipe, with ends that block for others; the text is longer than one write. */
static void outlet_waits_in_memory(void)
{
    static char  text[9000], got[300000];
    sighandler_t pipe_ends = signal(SIGPIPE, SIG_IGN);

    memset(text, 'y', sizeof(text) - 1);
    for (int i = 0; i < 2; i++) {
        bt_outlet out;
        size_t    n, n_got = 0;
        ssize_t   some;
        int       fds[2];

        NEED(i == 0 ? pipe(fds) == 0 : socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
        fcntl(fds[0], F_SETFL, O_NONBLOCK);
        fcntl(fds[1], F_SETFL, O_WRONLY | O_NONBLOCK);
        n = fill(fds[1]);
        fcntl(fds[1], F_SETFL, O_WRONLY);
        bt_outlet_open(&out, fds[1]);
        bt_outlet_say(&out, "%s", text);
        bt_alloc_fail_at(0);
        bt_outlet_say(&out, "there is no memory for that");
        bt_alloc_fail_at(-1);
        bt_outlet_say(&out, "%d", 17);
        bt_outlet_push(&out);
        while (n_got < sizeof(got) - 1 &&
               (some = read(fds[0], got + n_got, sizeof(got) - 1 - n_got)) > 0) {
            n_got += (size_t)some;
            bt_outlet_push(&out);
        }
        got[n_got] = '\0';
        EXPECT_EQ(n_got, n + sizeof(text) - 1 + 2);
        EXPECT(n_got > 9000 && got[n - 1] == 'x' && strncmp(got + n, text, 8999) == 0);
        EXPECT(strcmp(got + n + 8999, "17") == 0);
        EXPECT((fcntl(fds[1], F_GETFL) & O_NONBLOCK) == 0);
        close(fds[0]);
        bt_outlet_say(&out, "to nobody");
        EXPECT_EQ(out.n_rest, 0);
        bt_outlet_close(&out);
        EXPECT(close(fds[1]) == 0);
    }
    signal(SIGPIPE, pipe_ends);
}

static void outlet_tells_what_is_lost_on_a_full_disk(void)
{
    int         full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    own_stderr  own  = begin_stderr();
    const char *said;
    bt_outlet   out;

    bt_outlet_open(&out, full);
    bt_outlet_say(&out, "serving at %d\n", 17);
    EXPECT_EQ(out.n_rest, 0);
    bt_outlet_close(&out);
    said = end_stderr(own);
    EXPECT_HAS(said, "No space left on device: not written: serving at 17\n");
    close(full);
}

/* ---- rows */

static uint32_t g_ids[N] = {4, 3, 2, 1, 0, 4};

static void init_cases(bt_eval_cases *cases)
{
    memset(cases, 0, sizeof(*cases));
    cases->n     = 1;
    cases->cases = bt_calloc(1, sizeof(*cases->cases));
    cases->top_k = TOP_K;
    strcpy(cases->cases[0].name, "one");
    cases->cases[0].n_tokens = N;
    cases->cases[0].n_prompt = 2;
    cases->cases[0].ids      = bt_calloc(N, sizeof(uint32_t));
    memcpy(cases->cases[0].ids, g_ids, sizeof(g_ids));
}

static void eval_rows_are_checked(void)
{
    bt_eval_cases cases;
    bt_eval_case *c;
    float         logits[N * VOCAB];
    int32_t       experts[N_MOE * N * TOP_K];

    init_cases(&cases);
    c = &cases.cases[0];
    for (int i = 0; i < N * VOCAB; i++)
        logits[i] = (float)i;
    for (int i = 0; i < N_MOE * N * TOP_K; i++)
        experts[i] = N_MOE * N * TOP_K - i;
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N - 1), BT_ERR_INVALID_ARG); /* too long */
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB - 1, N), BT_ERR_INVALID_ARG); /* id 4 */
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, c), BT_OK);

#define ROWS(at, n, logit_rows, expert_bytes)                                                \
    bt_eval_case_rows(&cases, c, at, n, logits, (logit_rows)*VOCAB * sizeof(float), experts, \
                      expert_bytes)
#define WHOLE(n) ((size_t)N_MOE * (n)*TOP_K * sizeof(int32_t))
    EXPECT_EQ(ROWS(0, 0, 0, 0), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(N, 1, 1, WHOLE(1)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(4, 3, 3, WHOLE(3)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(UINT32_MAX, 2, 2, WHOLE(2)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(0, 2, 1, WHOLE(2)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(0, 2, 2, WHOLE(2) - 4), BT_ERR_PROTOCOL);
    EXPECT_EQ(c->n_seen, 0);
    EXPECT_EQ(ROWS(1, 2, 2, WHOLE(2)), BT_OK);
    EXPECT_EQ(cases.n_moe, N_MOE);
    EXPECT_EQ(ROWS(2, 1, 1, WHOLE(1)), BT_ERR_PROTOCOL);     /* twice */
    EXPECT_EQ(ROWS(3, 1, 1, 3 * WHOLE(1)), BT_ERR_PROTOCOL); /* other layers than before */
    EXPECT_EQ(c->n_seen, 2);
    EXPECT(c->logits[1 * VOCAB] == 0.0f && c->logits[2 * VOCAB + 4] == 9.0f);
    /* Layer 1 of row 2: the last three of the message, sorted. */
    EXPECT_EQ(c->experts[(1 * N + 2) * TOP_K], experts[(1 * 2 + 1) * TOP_K + 2]);
    EXPECT_EQ(c->experts[(1 * N + 2) * TOP_K + 2], experts[(1 * 2 + 1) * TOP_K]);
    bt_eval_cases_free(&cases);
#undef ROWS
#undef WHOLE
}

static void eval_dense_model_has_no_experts(void)
{
    bt_eval_cases cases;
    float         logits[VOCAB] = {0};
    int32_t       one           = 0;

    init_cases(&cases);
    cases.top_k = 0;
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 0, 1, logits, sizeof(logits), NULL, 0),
              BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 1, 1, logits, sizeof(logits), &one, 4),
              BT_ERR_PROTOCOL);
    EXPECT(cases.cases[0].experts == NULL);
    bt_eval_cases_free(&cases);
}

/* Its config names experts, but its layers are all dense. */
static void eval_layers_without_experts_are_dense(void)
{
    bt_eval_cases cases;
    float         logits[VOCAB]  = {0};
    int32_t       experts[TOP_K] = {0};

    init_cases(&cases);
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 0, 1, logits, sizeof(logits), NULL, 0),
              BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 1, 1, logits, sizeof(logits), experts,
                                sizeof(experts)),
              BT_ERR_PROTOCOL);
    EXPECT(cases.cases[0].experts == NULL);
    bt_eval_cases_free(&cases);
    init_cases(&cases);
    cases.n_moe = N_MOE; /* as forced experts say */
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 0, 1, logits, sizeof(logits), NULL, 0),
              BT_ERR_PROTOCOL);
    bt_eval_cases_free(&cases);
}

/* A pipe stays a pipe, and what lies beside OUT stays as it was. */
static void eval_out_may_be_a_pipe(void)
{
    char          dir[] = "/tmp/test-parts-out-XXXXXX", pipe_path[64], beside[64], got[4096];
    bt_eval_cases cases;
    struct stat   info;
    int           fd, other;
    ssize_t       n;

    init_cases(&cases);
    cases.top_k = 0;
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT(mkdtemp(dir) != NULL);
    snprintf(pipe_path, sizeof(pipe_path), "%s/out", dir);
    snprintf(beside, sizeof(beside), "%s/out.part", dir);
    EXPECT(mkfifo(pipe_path, 0600) == 0);
    EXPECT((fd = open(pipe_path, O_RDWR | O_NONBLOCK | O_CLOEXEC)) >= 0);
    EXPECT((other = open(beside, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) >= 0);
    EXPECT(write(other, "mine", 4) == 4);
    close(other);
    EXPECT_EQ(bt_eval_cases_write(&cases, pipe_path), BT_OK);
    EXPECT(stat(pipe_path, &info) == 0 && S_ISFIFO(info.st_mode));
    EXPECT(stat(beside, &info) == 0 && info.st_size == 4);
    n = read(fd, got, sizeof(got));
    EXPECT(n > (ssize_t)(N * VOCAB * sizeof(float)) && memcmp(got + 8, "{\"", 2) == 0);
    close(fd);
    unlink(beside);
    unlink(pipe_path);
    EXPECT(rmdir(dir) == 0);
    bt_eval_cases_free(&cases);
}

/* ---- memory */

/* Fails the 1st, then the 2nd, ... allocation until `make` succeeds; what it made is ended by
 * `end`. */
static void sweep(bt_status (*make)(void *ctx), void (*end)(void *ctx), void *ctx, long least)
{
    long      live = bt_alloc_live(), k = -1;
    bt_status st;

    do {
        bt_alloc_fail_at(++k);
        st = make(ctx);
        bt_alloc_fail_at(-1);
        if (st != BT_OK) {
            EXPECT_EQ(st, BT_ERR_NO_MEMORY);
            end(ctx); /* also of a half-built thing */
            EXPECT_EQ(bt_alloc_live(), live);
        }
    } while (st != BT_OK && k < 300);
    EXPECT(st == BT_OK && k >= least);
    end(ctx);
    EXPECT_EQ(bt_alloc_live(), live);
}

static char g_path[] = "/tmp/test-parts-XXXXXX";

static bt_status make_cases(void *ctx) { return bt_eval_cases_read(g_path, TOP_K, ctx); }
static void      end_cases(void *ctx) { bt_eval_cases_free(ctx); }

static void eval_cases_read_unwinds_at_every_allocation(void)
{
    static int32_t  ids[N] = {1, 2, 3, 4, 0, 1}, prompt = 2, experts[N_MOE * N * TOP_K];
    const bt_tensor tensors[] = {
        {"a.experts", BT_ST_I32, 3, {N_MOE, N, TOP_K}, experts, sizeof(experts)},
        {"a.ids",     BT_ST_I32, 1, {N},               ids,     sizeof(ids)    },
        {"a.prompt",  BT_ST_I32, 1, {1},               &prompt, sizeof(prompt) },
    };
    bt_eval_cases cases = {0};
    int           fd    = mkstemp(g_path);

    EXPECT(fd >= 0);
    EXPECT_EQ(bt_safetensors_write(g_path, 3, tensors), BT_OK);
    sweep(make_cases, end_cases, &cases, 3);
    close(fd);
    unlink(g_path);
    strcpy(g_path + strlen(g_path) - 6, "XXXXXX");
}

static bt_status read_cases(size_t n, const bt_tensor *tensors, bt_eval_cases *cases)
{
    bt_status st;
    int       fd = mkstemp(g_path);

    EXPECT(fd >= 0);
    EXPECT_EQ(bt_safetensors_write(g_path, n, tensors), BT_OK);
    st = bt_eval_cases_read(g_path, TOP_K, cases);
    close(fd);
    unlink(g_path);
    strcpy(g_path + strlen(g_path) - 6, "XXXXXX");
    return st;
}

static void eval_cases_are_read_in_one_look(void)
{
    enum { N_CASES = 100000 };
    static char      names[2 * N_CASES][24];
    static bt_tensor tensors[2 * N_CASES];
    int32_t          one   = 1;
    bt_eval_cases    cases = {0};
    clock_t          from  = clock(); /* another program's time does not count */

    for (int i = 0; i < 2 * N_CASES; i++) {
        snprintf(names[i], sizeof(names[i]), "c%05d.%s", i / 2, i % 2 == 0 ? "ids" : "prompt");
        tensors[i] = (bt_tensor){names[i], BT_ST_I32, 1, {1}, &one, sizeof(one)};
    }
    EXPECT_EQ(read_cases(2 * N_CASES, tensors, &cases), BT_OK);
    EXPECT_EQ(cases.n, N_CASES);
    EXPECT(strcmp(cases.cases[N_CASES - 1].name, "c99999") == 0);
    bt_eval_cases_free(&cases);
    EXPECT((double)(clock() - from) / CLOCKS_PER_SEC < 20); /* case against case takes minutes */
}

static void eval_case_without_ids_is_named(void)
{
    int32_t         one       = 1;
    const bt_tensor tensors[] = {
        {"a.ids",     BT_ST_I32, 1, {1}, &one, sizeof(one)},
        {"a.prompt",  BT_ST_I32, 1, {1}, &one, sizeof(one)},
        {"bb.prompt", BT_ST_I32, 1, {1}, &one, sizeof(one)},
    };
    bt_eval_cases cases = {0};

    EXPECT_EQ(read_cases(3, tensors, &cases), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), ": bb.ids is missing beside the case's other tensors");
    bt_eval_cases_free(&cases);
}

typedef struct {
    bt_rpc_loop  *loop;
    bt_eval_cell *cell;
    bt_eval_cases cases;
} cell_site;

static bt_status make_cell(void *ctx)
{
    cell_site            *s   = ctx;
    const bt_eval_options opt = {
        .address = "127.0.0.1:0", .n_prefill = 1, .n_decode = 2, .n_ranks = 3, .n_parallel = 1};
    char address[BT_ADDRESS_BYTES];

    return bt_eval_cell_create(s->loop, &opt, &s->cases, &s->cell, address);
}

static void end_cell(void *ctx)
{
    cell_site *s = ctx;

    bt_eval_cell_destroy(s->cell);
    s->cell = NULL;
}

static void eval_cell_create_unwinds_at_every_allocation(void)
{
    cell_site s = {0};

    init_cases(&s.cases);
    EXPECT_EQ(bt_rpc_loop_create(&s.loop), BT_OK);
    sweep(make_cell, end_cell, &s, 3);
    bt_rpc_loop_destroy(s.loop);
    bt_eval_cases_free(&s.cases);
}

static const bt_rpc_client_tls PLAIN;

static bt_status make_client(void *ctx)
{
    return bt_client_open("127.0.0.1:1", &PLAIN, BT_NS_PER_S, NULL, ctx);
}

static void end_client(void *ctx)
{
    bt_client **client = ctx;

    bt_client_close(*client);
    *client = NULL;
}

static void client_open_unwinds_at_every_allocation(void)
{
    bt_client *client = NULL;

    sweep(make_client, end_client, &client, 1);
}

static void client_to_nobody_is_refused(void)
{
    bt_client      *client = NULL;
    bt_client_model model;

    EXPECT_EQ(bt_client_open("127.0.0.1:1", &PLAIN, 5 * BT_NS_PER_S, NULL, &client), BT_OK);
    EXPECT_EQ(bt_client_model_info(client, &model), BT_ERR_PEER);
    EXPECT_HAS(bt_error_text(), "cannot connect to 127.0.0.1:1 ");
    bt_client_close(client);
}

/* The options take hosts of that length. */
static void client_address_may_be_as_long_as_any(void)
{
    bt_client *client = NULL;
    char       host[BT_HOST_MAX + 1], address[BT_ADDRESS_BYTES];

    memset(host, 'x', sizeof(host) - 1);
    host[sizeof(host) - 1] = '\0';
    bt_join_address(host, 65535, address);
    EXPECT_EQ(bt_client_open(address, &PLAIN, 5 * BT_NS_PER_S, NULL, &client), BT_OK);
    bt_client_close(client);
}

/* ---- the end of all children */

/* A launcher that must be killed, and its guard, which takes a while to remove the folder and says
 * on ready_fd that it stands. */
static BT_NORETURN void be_launcher(const char *folder, int ready_fd)
{
    int alive[2];

    if (pipe(alive) == 0 && fork() == 0) {
        char byte;

        close(alive[1]);
        prctl(PR_SET_NAME, "baton-guard");
        if (write(ready_fd, "g", 1) != 1 || read(alive[0], &byte, 1) < 0) _exit(1);
        bt_sleep_ns(300 * BT_NS_PER_MS);
        rmdir(folder);
        _exit(0);
    }
    close(alive[0]);
    for (;;)
        pause();
}

static void guard_of_a_killed_launcher_may_finish(void)
{
    char  folder[] = "/tmp/baton-test-XXXXXX";
    char  byte;
    int   ready[2];
    pid_t child;

    EXPECT(mkdtemp(folder) != NULL && pipe(ready) == 0);
    child = fork();
    if (child == 0) { /* of which all children are ended */
        bt_child_adopt();
        if (fork() == 0) be_launcher(folder, ready[1]);
        if (read(ready[0], &byte, 1) != 1) _exit(1);
        bt_child_end_all(200 * BT_NS_PER_MS);
        _exit(0);
    }
    EXPECT(waitpid(child, NULL, 0) == child);
    close(ready[0]);
    close(ready[1]);
    EXPECT(access(folder, F_OK) != 0);
    rmdir(folder);
}

static BT_NORETURN void be_idle(void)
{
    for (;;)
        pause();
}

/* Writes the pid of a child when it is told to, and leaves it behind. */
static BT_NORETURN void be_parent(int told_fd, int pid_fd)
{
    char  byte;
    pid_t child;

    if (read(told_fd, &byte, 1) != 1) _exit(1);
    child = fork();
    if (child == 0) be_idle();
    _exit(write(pid_fd, &child, sizeof(child)) != sizeof(child));
}

/* As `helper & exec baton run` has it: 0 when ours alone has ended. */
static int end_beside_others(int told[2], int pid_fd)
{
    char *const         argv[] = {(char *)"/bin/sleep", (char *)"600", NULL};
    const bt_child_spec spec   = {.name = "ours", .argv = (char **)argv, .own_group = true};
    bt_child            ours;
    pid_t               helper = fork(), parent;

    if (helper == 0) be_idle();
    parent = fork();
    if (parent == 0) be_parent(told[0], pid_fd);
    bt_child_adopt();
    if (bt_child_spawn(&spec, &ours) != BT_OK || write(told[1], "t", 1) != 1 ||
        waitpid(parent, NULL, 0) != parent)
        return 1;
    bt_child_end_all(100 * BT_NS_PER_MS);
    if (waitpid(helper, NULL, WNOHANG) != 0) return 2;
    kill(helper, SIGKILL);
    return waitpid(ours.pid, NULL, WNOHANG) < 0 ? 0 : 3;
}

static void children_from_before_live_on(void)
{
    int   told[2], pids[2], status = -1;
    pid_t child, left = -1;

    EXPECT(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && pipe(told) == 0 && pipe(pids) == 0);
    child = fork();
    if (child == 0) _exit(end_beside_others(told, pids[1]));
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    EXPECT(read(pids[0], &left, sizeof(left)) == sizeof(left));
    EXPECT_EQ(waitpid(left, NULL, WNOHANG), 0); /* it lives, and has come to us */
    if (left > 0) {
        kill(left, SIGKILL);
        waitpid(left, NULL, 0);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    for (int i = 0; i < 2; i++) {
        close(told[i]);
        close(pids[i]);
    }
}

static const bt_test TESTS[] = {
    BT_TEST(guard_of_a_killed_launcher_may_finish),
    BT_TEST(children_from_before_live_on),
    BT_TEST(lines_come_whole_whatever_the_reads),
    BT_TEST(echo_keeps_the_first_error_of_a_rank),
    BT_TEST(echo_knows_the_lines_that_the_log_writes),
    BT_TEST(echo_passes_on_what_mpi_says_but_for_noise),
    BT_TEST(echo_bar_stays_in_its_row),
    BT_TEST(account_is_read_from_a_ranks_line),
    BT_TEST(account_of_an_idle_rank_claims_no_work),
    BT_TEST(outlet_waits_in_memory),
    BT_TEST(outlet_tells_what_is_lost_on_a_full_disk),
    BT_TEST(eval_rows_are_checked),
    BT_TEST(eval_dense_model_has_no_experts),
    BT_TEST(eval_layers_without_experts_are_dense),
    BT_TEST(eval_out_may_be_a_pipe),
    BT_TEST(eval_cases_are_read_in_one_look),
    BT_TEST(eval_case_without_ids_is_named),
    BT_TEST(eval_cases_read_unwinds_at_every_allocation),
    BT_TEST(eval_cell_create_unwinds_at_every_allocation),
    BT_TEST(client_open_unwinds_at_every_allocation),
    BT_TEST(client_to_nobody_is_refused),
    BT_TEST(client_address_may_be_as_long_as_any),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
