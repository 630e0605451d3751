/* libFuzzer: any bytes to the operators' port, in two pieces (the first byte says where it is cut):
 * nothing is said, or proper HTTP with a status that this server uses; nothing is kept. */
#include "coordinator/http_parts.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"

enum { ROUNDS = 64, ANSWER_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void ignore(void *ctx, const char *fmt, va_list ap)
{
    (void)ctx;
    (void)fmt;
    (void)ap;
}

/* A board that shows a serving cell of three ranks with a request of a hostile name. */
static bt_board *make_board(void)
{
    bt_board    *board = NULL;
    bt_snapshot *s;

    BT_ASSERT(bt_board_create(&board) == BT_OK);
    s = bt_board_begin(board, 3);
    BT_ASSERT(s != NULL);
    memset(s->ranks, 0, 3 * sizeof(*s->ranks));
    *s       = (bt_snapshot){.ranks = s->ranks, .rank_cap = s->rank_cap};
    s->phase = BT_PHASE_SERVING;
    s->model = s->served_name = "demo";
    s->n_ranks                = 3;
    s->n_prefill              = 1;
    s->n_decode               = 2;
    s->page_tokens            = 64;
    s->n_requests             = 1;
    snprintf(s->requests[0].name, sizeof(s->requests[0].name), "</script>\"\\\xc3\xa9");
    s->requests[0].state = "decode";
    for (uint32_t i = 0; i < 3; i++)
        s->ranks[i].group = i != 0;
    bt_board_publish(board);
    return board;
}

static struct MHD_Daemon *start(void)
{
    static bt_http http;

    http.board  = make_board();
    http.daemon = MHD_start_daemon(MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0, NULL, NULL,
                                   bt_http_handle, &http, MHD_OPTION_EXTERNAL_LOGGER, ignore, NULL,
                                   MHD_OPTION_END);
    BT_ASSERT(http.daemon != NULL);
    return http.daemon;
}

/* What the server says, up to its end of the connection; false: it has not come yet. */
static bool take(int fd, char *answer, size_t *at)
{
    ssize_t got;

    while ((got = recv(fd, answer + *at, ANSWER_BYTES - 1 - *at, MSG_DONTWAIT)) > 0)
        *at = *at + (size_t)got < ANSWER_BYTES - 1 ? *at + (size_t)got : 64; /* the rest is body */
    return got == 0;
}

static void check(const char *answer, size_t n)
{
    static const int KNOWN[] = {100, 200, 400, 404, 405, 413, 414, 431, 500, 501, 503, 505};
    int              status  = 0;
    bool             known   = false;

    if (n == 0) return;
    BT_ASSERT(n > 12 && strncmp(answer, "HTTP/1.", 7) == 0);
    BT_ASSERT(sscanf(answer + 9, "%d", &status) == 1);
    for (size_t i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++)
        known = known || KNOWN[i] == status;
    BT_ASSERT(known);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct MHD_Daemon *daemon;
    static char               answer[ANSWER_BYTES];
    struct sockaddr_in        from = {.sin_family = AF_INET};
    size_t                    cut, at = 0;
    long                      live;
    int                       pair[2];

    if (daemon == NULL) daemon = start();
    if (n == 0) return 0;
    live = bt_alloc_live();
    cut  = data[0] < n ? data[0] : n;
    if (cut == 0) cut = 1;
    BT_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    BT_ASSERT(MHD_add_connection(daemon, pair[0], (const struct sockaddr *)&from, sizeof(from)) ==
              MHD_YES);
    BT_ASSERT(send(pair[1], data + 1, cut - 1, MSG_NOSIGNAL) == (ssize_t)cut - 1);
    MHD_run(daemon);
    (void)!send(pair[1], data + cut, n - cut, MSG_NOSIGNAL); /* it may have closed by now */
    shutdown(pair[1], SHUT_WR);
    for (int i = 0; i < ROUNDS && !take(pair[1], answer, &at); i++)
        MHD_run(daemon);
    close(pair[1]);
    MHD_run(daemon); /* it notices, and lets go */
    answer[at] = 0;
    check(answer, at);
    BT_ASSERT(bt_alloc_live() == live);
    return 0;
}
