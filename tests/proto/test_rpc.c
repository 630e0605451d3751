/* The completion loop: that it wakes, sleeps and stays awake when it should.  Messages from byte
 * buffers. */
#include "proto/rpc.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "proto/control_client.h"
#include "proto/health.pb-c.h"
#include "tests/support/no_threads.h"
#include "tests/support/scratch.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum { LOOKS = 40, LOOK_MS = 5, FAR_S = 60 };

typedef uint32_t (*run_fn)(bt_rpc_loop *loop, uint64_t deadline_ns);

static uint64_t after(uint64_t ns) { return bt_now_ns() + ns; }

/* How often this thread has gone to sleep. */
static long n_sleeps(void)
{
    struct rusage used;

    NEED(getrusage(RUSAGE_THREAD, &used) == 0);
    return used.ru_nvcsw;
}

static long sleeps_of(run_fn run)
{
    bt_rpc_loop *loop = NULL;
    long         before;

    NEED(bt_rpc_loop_create(&loop) == BT_OK);
    before = n_sleeps();
    for (int i = 0; i < LOOKS; i++) {
        uint64_t deadline_ns = after(LOOK_MS * BT_NS_PER_MS);

        EXPECT_EQ(run(loop, deadline_ns), 0);
        EXPECT(bt_now_ns() + BT_NS_PER_MS >= deadline_ns); /* gRPC's clock is as fine as that */
    }
    before = n_sleeps() - before;
    bt_rpc_loop_destroy(loop);
    return before;
}

static void rpc_loop_without_completions_sleeps_or_spins(void)
{
    EXPECT(sleeps_of(bt_rpc_loop_run_once) >= LOOKS);
    EXPECT(sleeps_of(bt_rpc_loop_spin_once) < LOOKS / 2);
}

static void count(bt_rpc_tag *tag, bool ok)
{
    (void)ok;
    ++*(int *)tag->ctx;
}

static void count_later(void *ctx) { ++*(int *)ctx; }

/* The completion is that of a channel's watch, at its end. */
static void comes_in_time(run_fn run)
{
    int                       n_done = 0, n_later = 0;
    grpc_channel_credentials *plain   = grpc_insecure_credentials_create();
    grpc_channel             *channel = grpc_channel_create("127.0.0.1:1", plain, NULL);
    bt_rpc_tag                tag     = {count, &n_done};
    bt_rpc_later              later   = {count_later, &n_later, NULL};
    bt_rpc_loop              *loop    = NULL;
    uint64_t                  far_ns  = after(FAR_S * BT_NS_PER_S);

    NEED(bt_rpc_loop_create(&loop) == BT_OK);
    bt_rpc_loop_begin(loop);
    grpc_channel_watch_connectivity_state(channel, GRPC_CHANNEL_IDLE,
                                          bt_rpc_deadline(after(LOOK_MS * BT_NS_PER_MS)),
                                          bt_rpc_loop_cq(loop), &tag);
    bt_rpc_loop_defer(loop, &later);
    EXPECT_EQ(run(loop, far_ns), 1);
    EXPECT(bt_now_ns() < far_ns);
    EXPECT_EQ(n_done, 1);
    EXPECT_EQ(n_later, 1);
    EXPECT(bt_rpc_loop_idle(loop));
    grpc_channel_destroy(channel);
    grpc_channel_credentials_release(plain);
    bt_rpc_loop_destroy(loop);
}

static void rpc_loop_completion_ends_the_wait(void)
{
    comes_in_time(bt_rpc_loop_run_once);
    comes_in_time(bt_rpc_loop_spin_once);
}

enum { AWAIT_MS = 30 };

/* Asked for the first time, it stands still for longer than is waited; it is over with the next
 * look. */
static bool is_over_late(void *n_later)
{
    const struct timespec still = {.tv_nsec = 2 * AWAIT_MS * BT_NS_PER_MS};

    if (*(int *)n_later == 0) nanosleep(&still, NULL);
    return *(int *)n_later > 0;
}

static bool is_never_over(void *ctx)
{
    (void)ctx;
    return false;
}

static void rpc_loop_that_stood_still_looks_before_it_gives_up(void)
{
    int          n_later = 0;
    bt_rpc_later later   = {count_later, &n_later, NULL};
    bt_rpc_loop *loop    = NULL;
    uint64_t     end_ns;

    NEED(bt_rpc_loop_create(&loop) == BT_OK);
    bt_rpc_loop_defer(loop, &later);
    EXPECT(bt_rpc_loop_await(loop, is_over_late, &n_later, AWAIT_MS * BT_NS_PER_MS));
    end_ns = after(AWAIT_MS * BT_NS_PER_MS);
    EXPECT(!bt_rpc_loop_await(loop, is_never_over, NULL, AWAIT_MS * BT_NS_PER_MS));
    EXPECT(bt_now_ns() + AWAIT_MS / 10 * BT_NS_PER_MS >= end_ns); /* as fine as above, a look */
    bt_rpc_loop_destroy(loop);
}

static void rpc_unpack_keeps_the_error_of_what_is_no_message_alone(void)
{
    const ProtobufCMessageDescriptor    *type = &grpc__health__v1__health_check_request__descriptor;
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    grpc_byte_buffer                    *good, *bad;
    ProtobufCMessage                    *pb;
    grpc_slice                           bytes = grpc_slice_from_static_string("\xff");

    request.service = (char *)"x";
    good            = bt_rpc_pack(&request.base);
    bad             = grpc_raw_byte_buffer_create(&bytes, 1);
    bt_error_keep("before", "another error");
    pb = bt_rpc_unpack(good, type);
    NEED(pb != NULL);
    EXPECT_HAS(((Grpc__Health__V1__HealthCheckRequest *)pb)->service, "x");
    EXPECT_HAS(bt_error_text(), "another error");
    protobuf_c_message_free_unpacked(pb, NULL);
    EXPECT(bt_rpc_unpack(NULL, type) == NULL);
    EXPECT_HAS(bt_error_text(), "HealthCheckRequest: it has not come");
    EXPECT(bt_rpc_unpack(bad, type) == NULL);
    EXPECT_HAS(bt_error_text(), "HealthCheckRequest cannot be parsed");
    grpc_byte_buffer_destroy(good);
    grpc_byte_buffer_destroy(bad);
}

/* Threads can be had no more: gRPC would wait at its end for those that it could not start. */
static BT_NORETURN void be_without_threads(void)
{
    bt_rpc_loop       *loop   = NULL;
    bt_control_client *client = NULL;
    bool               named;

    alarm(FAR_S);
    bt_test_have_no_threads();
    named = bt_rpc_loop_create(&loop) == BT_ERR_IO &&
            strstr(bt_error_text(), "gRPC can start 0 threads, and needs up to ") != NULL;
    bt_rpc_loop_destroy(loop);
    bt_error_keep("before", "another error");
    _exit(!named || bt_control_client_start("127.0.0.1:1", BT_NS_PER_S, 0, &client) != BT_ERR_IO ||
          strstr(bt_error_text(), "raise `ulimit -u`") == NULL);
}

/* Before any test that makes threads: it forks. */
static void rpc_without_threads_says_so_and_ends(void)
{
    int   status = -1;
    pid_t child  = fork();

    if (child == 0) be_without_threads();
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

/* Of nobody, made for this test. */
static const char CERT[] = "-----BEGIN CERTIFICATE-----\n"
                           "MIIBbzCCARWgAwIBAgIUD4Jg1g73+PD1xOeINIp/upzQfE8wCgYIKoZIzj0EAwIw\n"
                           "DDEKMAgGA1UEAwwBdDAgFw0yNjExMjkxOTEwMjlaGA8yMTI2MTEwNTE5MTAyOVow\n"
                           "DDEKMAgGA1UEAwwBdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABMMAb1Dqk6mc\n"
                           "mBFNlmcB9/eDQGURBJFTSRgJ+uGc2j+KCkAZ0jQP0m/U2BUNY9oGerZAcZdogWgJ\n"
                           "S+Tzi+9iw8ijUzBRMB0GA1UdDgQWBBR2MpxvDosMjLqNgbUy1Pl9Tb6aazAfBgNV\n"
                           "HSMEGDAWgBR2MpxvDosMjLqNgbUy1Pl9Tb6aazAPBgNVHRMBAf8EBTADAQH/MAoG\n"
                           "CCqGSM49BAMCA0gAMEUCIQCskXDKcAJeWqgA1PXUH97pxnm1sb7gK6oY1UR3KHOg\n"
                           "tgIgBNA7RdsIiVB85tuPsb7L4CZeFtrirX7tCarRb04pGm0=\n"
                           "-----END CERTIFICATE-----\n";
static const char KEY[]  = "-----BEGIN PRIVATE KEY-----\n"
                           "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgXq6BBL4VbsZfMktj\n"
                           "3kj3ycq7CiVnipezqg287ZlzuOuhRANCAATDAG9Q6pOpnJgRTZZnAff3g0BlEQSR\n"
                           "U0kYCfrhnNo/igpAGdI0D9Jv1NgVDWPaBnq2QHGXaIFoCUvk84vvYsPI\n"
                           "-----END PRIVATE KEY-----\n";

/* TLS files whose memory ends while they are read leave nothing: a server's, and a client's. */
static void rpc_tls_unwinds_at_every_allocation(void)
{
    char              cert[512], key[512];
    bt_rpc_client_tls tls     = {.on = true, .ca = cert, .cert = cert, .key = key};
    bt_rpc_tls_files *files   = NULL;
    grpc_channel     *channel = NULL;
    bt_rpc_loop      *loop    = NULL;

    scratch_make();
    scratch_write("cert", CERT, sizeof(CERT) - 1);
    scratch_write("key", KEY, sizeof(KEY) - 1);
    snprintf(cert, sizeof(cert), "%s", scratch_path("cert"));
    snprintf(key, sizeof(key), "%s", scratch_path("key"));
    NEED(bt_rpc_loop_create(&loop) == BT_OK);
    EXPECT_EQ(BT_SWEEP(bt_rpc_tls_open(cert, key, cert, "127.0.0.1", &files),
                       (bt_rpc_tls_close(files), files = NULL)),
              4);
    EXPECT_EQ(BT_SWEEP(bt_rpc_channel_create("127.0.0.1:1", &tls, &channel),
                       (channel != NULL ? grpc_channel_destroy(channel) : (void)0, channel = NULL)),
              3);
    bt_rpc_loop_destroy(loop);
    scratch_remove();
}

/* A server's files, and where they lie. */
static bt_rpc_tls_files *open_files(char cert[512], char key[512])
{
    bt_rpc_tls_files *files = NULL;

    scratch_make();
    scratch_write("cert", CERT, sizeof(CERT) - 1);
    scratch_write("key", KEY, sizeof(KEY) - 1);
    snprintf(cert, 512, "%s", scratch_path("cert"));
    snprintf(key, 512, "%s", scratch_path("key"));
    EXPECT_EQ(bt_rpc_tls_open(cert, key, NULL, "127.0.0.1", &files), BT_OK);
    return files;
}

/* Not before they have stood still from one look to the next, which are a second apart, once for
 * each change, and every minute where that failed. */
static void rpc_tls_files_are_read_when_they_stand_still(void)
{
    static const struct {
        uint32_t at_ms;
        char     what; /* c: they change before, m: memory is short */
        bool     refused;
    } LOOKS_AT[] = {
        {0,     'm', false}, /* nothing has changed */
        {1000,  'm', false},
        {1500,  'c', false}, /* nobody looks */
        {1999,  'm', false},
        {2000,  'm', false}, /* seen, */
        {2999,  'm', false},
        {3000,  'm', true }, /* and read */
        {62000, ' ', true },
        {63000, ' ', false},
        {65000, 'm', false}, /* not again */
        {66000, 'c', false},
        {67000, 'c', false}, /* they still change */
        {68000, ' ', false},
        {69000, 'm', false},
    };
    char              cert[512], key[512];
    bt_rpc_loop      *loop = NULL;
    bt_rpc_tls_files *files;
    long              live;

    NEED(bt_rpc_loop_create(&loop) == BT_OK);
    live  = bt_alloc_live();
    files = open_files(cert, key);
    NEED(files != NULL);
    for (size_t i = 0; i < sizeof(LOOKS_AT) / sizeof(LOOKS_AT[0]); i++) {
        if (LOOKS_AT[i].what == 'c') { /* another file: its time alone may be the same */
            scratch_write("fresh", CERT, sizeof(CERT) - 1);
            NEED(rename(scratch_path("fresh"), cert) == 0);
        }
        bt_alloc_fail_at(LOOKS_AT[i].what == 'm' ? 0 : -1);
        bt_rpc_tls_refresh(files, BT_NS_PER_S + LOOKS_AT[i].at_ms * BT_NS_PER_MS);
        bt_alloc_fail_at(-1);
        EXPECT_EQ(bt_rpc_tls_refused(files), LOOKS_AT[i].refused);
    }
    bt_rpc_tls_close(files);
    EXPECT_EQ(bt_alloc_live(), live);
    bt_rpc_loop_destroy(loop);
    scratch_remove();
}

/* Its end is not read in silence. */
static void rpc_tls_file_that_is_too_long_is_refused(void)
{
    enum { MOST = 1 << 20 };
    bt_rpc_loop      *loop  = NULL;
    bt_rpc_tls_files *files = NULL;
    char              cert[512], key[512], *text = malloc(MOST + 1);

    NEED(text != NULL && bt_rpc_loop_create(&loop) == BT_OK);
    bt_rpc_tls_close(open_files(cert, key));
    memset(text, '\n', MOST + 1);
    memcpy(text, CERT, sizeof(CERT) - 1);
    for (size_t more = 0; more <= 1; more++) {
        scratch_write("cert", text, MOST + more);
        EXPECT_EQ(bt_rpc_tls_open(cert, key, NULL, "127.0.0.1", &files), more ? BT_ERR_IO : BT_OK);
        if (more) EXPECT_HAS(bt_error_text(), "over 1048576 bytes, expected a PEM file");
        if (!more) bt_rpc_tls_close(files);
    }
    free(text);
    bt_rpc_loop_destroy(loop);
    scratch_remove();
}

/* Whether a client comes through to the server. */
static bool connects(bt_rpc_loop *loop, uint16_t port, const bt_rpc_client_tls *tls)
{
    grpc_connectivity_state state   = GRPC_CHANNEL_IDLE;
    grpc_channel           *channel = NULL;
    char                    address[32];

    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    NEED(bt_rpc_channel_create(address, tls, &channel) == BT_OK);
    while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
        int        n_done = 0;
        bt_rpc_tag tag    = {count, &n_done};

        bt_rpc_loop_begin(loop);
        grpc_channel_watch_connectivity_state(channel, state,
                                              bt_rpc_deadline(after(FAR_S * BT_NS_PER_S)),
                                              bt_rpc_loop_cq(loop), &tag);
        state = grpc_channel_check_connectivity_state(channel, 1);
        while (n_done == 0)
            bt_rpc_loop_run_once(loop, after(LOOK_MS * BT_NS_PER_MS));
        state = grpc_channel_check_connectivity_state(channel, 0);
    }
    grpc_channel_destroy(channel);
    return state == GRPC_CHANNEL_READY;
}

/* The certificate's name is "t", and the client says that it means that one.  Proxies of the
 * environment are not asked. */
static void rpc_tls_client_checks_the_name_that_it_is_told(void)
{
    char              cert[512], key[512];
    bt_rpc_loop      *loop = NULL;
    bt_rpc_tls_files *files;
    grpc_server      *server;
    bt_rpc_client_tls tls    = {.on = true, .ca = cert, .server_name = "t"};
    uint16_t          port   = 0;
    int               n_down = 0;
    bt_rpc_tag        down   = {count, &n_down};

    setenv("http_proxy", "http://127.0.0.1:1", 1);
    NEED(bt_rpc_loop_create(&loop) == BT_OK);
    files  = open_files(cert, key);
    server = grpc_server_create(bt_rpc_server_args(), NULL);
    NEED(files != NULL && server != NULL);
    grpc_server_register_completion_queue(server, bt_rpc_loop_cq(loop), NULL);
    EXPECT_EQ(bt_rpc_listen(server, "127.0.0.1:0", files, &port), BT_OK);
    grpc_server_start(server);
    EXPECT(connects(loop, port, &tls));
    tls.server_name = "u";
    EXPECT(!connects(loop, port, &tls));
    tls.server_name = NULL;
    EXPECT(!connects(loop, port, &tls));
    bt_rpc_loop_begin(loop);
    grpc_server_shutdown_and_notify(server, bt_rpc_loop_cq(loop), &down);
    while (n_down == 0)
        bt_rpc_loop_run_once(loop, after(LOOK_MS * BT_NS_PER_MS));
    grpc_server_destroy(server);
    bt_rpc_tls_close(files);
    bt_rpc_loop_destroy(loop);
    unsetenv("http_proxy");
    scratch_remove();
}

static const bt_test tests[] = {
    BT_TEST(rpc_without_threads_says_so_and_ends),
    BT_TEST(rpc_loop_without_completions_sleeps_or_spins),
    BT_TEST(rpc_loop_completion_ends_the_wait),
    BT_TEST(rpc_loop_that_stood_still_looks_before_it_gives_up),
    BT_TEST(rpc_unpack_keeps_the_error_of_what_is_no_message_alone),
    BT_TEST(rpc_tls_unwinds_at_every_allocation),
    BT_TEST(rpc_tls_files_are_read_when_they_stand_still),
    BT_TEST(rpc_tls_file_that_is_too_long_is_refused),
    BT_TEST(rpc_tls_client_checks_the_name_that_it_is_told),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
