/* Both ends of a hand-off against each other, without a transport. */
#include "tests/support/sweep.h"
#include "tests/support/test.h"
#include "worker/handoff_in.h"
#include "worker/handoff_out.h"

enum { LAYERS = 3, DIM = 8, PROMPT = 150, N_PAGES = 16, VOCAB = 100, MAX_MESSAGES = 600 };
enum { ROW_BYTES = DIM * 2, FIRST = 42, CHOICES = 3, MAP = 48, TAIL = CHOICES * 12 + MAP };

static bt_device *g_dev;

typedef struct {
    bt_kv_pool     *src_pool, *dst_pool;
    bt_page_id      src[N_PAGES], dst[N_PAGES];
    uint32_t        n_pages;
    bt_handoff_out  out;
    bt_handoff_in   in;
    size_t          payload_max;
    bt_first_token  firsts_out[CHOICES], firsts_in[CHOICES];
    uint8_t         map_out[MAP], map_in[MAP];
    uint32_t        n;
    bt_page_message messages[MAX_MESSAGES];
    uint8_t        *payloads[MAX_MESSAGES];
} ends;

static bt_bf16 value(uint32_t layer, uint32_t token, uint32_t i)
{
    return (bt_bf16)(layer * 7919 + token * 31 + i * 3 + 1);
}

static bt_bf16 *row_at(const bt_kv_pool *pool, const bt_page_id *pages, uint32_t layer, uint32_t t)
{
    return bt_kv_pool_rows(pool, pages[t / BT_PAGE_TOKENS], layer) + t % BT_PAGE_TOKENS * DIM;
}

/* held: tokens of pages that the decode rank has already. */
static void start_out(ends *e, uint32_t held)
{
    bt_page_ref ticket[N_PAGES];

    for (uint32_t i = 0; i < e->n_pages; i++)
        ticket[i] = (bt_page_ref){e->dst[i], bt_kv_pool_generation(e->dst_pool, e->dst[i])};
    bt_handoff_out_fini(&e->out);
    EXPECT_EQ(bt_handoff_out_init(&e->out, LAYERS, held, e->n_pages, ticket,
                                  &(bt_handoff_tail){CHOICES, e->firsts_out, e->map_out, MAP, 0}),
              BT_OK);
}

static void start_in(ends *e, uint32_t held)
{
    bt_handoff_in_fini(&e->in);
    EXPECT_EQ(bt_handoff_in_init(&e->in, e->dst_pool, PROMPT, held, VOCAB, e->dst,
                                 &(bt_handoff_tail){CHOICES, e->firsts_in, e->map_in, MAP, 16}),
              BT_OK);
}

static void set_up(ends *e, size_t payload_max)
{
    bt_kv_pool_config cfg = {.n_layers = LAYERS, .n_pages = N_PAGES, .kv_dim = DIM};

    memset(e, 0, sizeof(*e));
    e->n_pages     = bt_kv_pages_for(PROMPT + 20);
    e->payload_max = payload_max + TAIL;
    EXPECT_EQ(bt_kv_pool_create(g_dev, &cfg, &e->src_pool), BT_OK);
    EXPECT_EQ(bt_kv_pool_create(g_dev, &cfg, &e->dst_pool), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(e->dst_pool, 2, e->dst), BT_OK); /* so that page numbers differ */
    bt_kv_pool_release(e->dst_pool, e->dst[0]);
    EXPECT_EQ(bt_kv_pool_acquire(e->src_pool, e->n_pages, e->src), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(e->dst_pool, e->n_pages, e->dst), BT_OK);
    start_out(e, 0);
    start_in(e, 0);
}

static void tear_down(ends *e)
{
    for (uint32_t i = 0; i < e->n; i++)
        free(e->payloads[i]);
    bt_handoff_out_fini(&e->out);
    bt_handoff_in_fini(&e->in);
    bt_kv_pool_destroy(e->src_pool);
    bt_kv_pool_destroy(e->dst_pool);
}

static void compute(ends *e, uint32_t layer, uint32_t from, uint32_t to)
{
    for (uint32_t t = from; t < to; t++)
        for (uint32_t i = 0; i < DIM; i++)
            row_at(e->src_pool, e->src, layer, t)[i] = value(layer, t, i);
}

/* The tail lies behind the rows, or where the transport keeps it. */
static bt_page_payload payload_at(void *memory, const bt_page_message *m)
{
    return (bt_page_payload){.rows = memory,
                             .tail = (uint8_t *)memory + m->payload_bytes - m->tail_bytes};
}

/* Stages what may leave, at most `slots` messages. */
static void pump(ends *e, uint32_t low, uint32_t high, uint32_t n_high, bool flush, uint32_t slots)
{
    bt_handoff_out_view v = {.n_layers    = LAYERS,
                             .n_prompt    = PROMPT,
                             .kv_dim      = DIM,
                             .low         = low,
                             .high        = high,
                             .n_high      = n_high,
                             .payload_max = e->payload_max,
                             .flush       = flush};
    bt_page_message     m;
    bt_page_payload     payload;

    for (uint32_t k = 0; k < slots && e->n < MAX_MESSAGES && bt_handoff_out_next(&e->out, &v, &m);
         k++) {
        EXPECT(m.payload_bytes <= e->payload_max);
        e->payloads[e->n] = malloc(m.payload_bytes);
        payload           = payload_at(e->payloads[e->n], &m);
        EXPECT_EQ(bt_handoff_out_pack(&e->out, e->src_pool, e->src, &m, &payload), BT_OK);
        e->messages[e->n++] = m;
    }
}

/* The prompt in chunks; `slots` messages can be staged at each layer's end and each step's. */
static void run_prompt(ends *e, uint32_t chunk, uint32_t slots)
{
    for (uint32_t low = 0; low < PROMPT; low += chunk) {
        uint32_t high = low + chunk < PROMPT ? low + chunk : PROMPT;

        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            compute(e, layer, low, high);
            pump(e, low, high, layer + 1, false, slots);
        }
        if (high == PROMPT) {
            e->out.first_known = true;
            memset(e->map_out + 16, 0x5a, MAP - 16);
            for (uint32_t i = 0; i < CHOICES; i++)
                e->firsts_out[i] = (bt_first_token){FIRST + i, -0.5f, i % 2};
        }
        pump(e, high, high, LAYERS, true, slots);
    }
    for (uint32_t k = 0; k < MAX_MESSAGES && !e->out.last_staged; k++)
        pump(e, PROMPT, PROMPT, LAYERS, true, slots);
    EXPECT(e->out.last_staged);
}

static bt_status accept(ends *e, uint32_t i)
{
    bt_page_payload payload = payload_at(e->payloads[i], &e->messages[i]);

    return bt_handoff_in_accept(&e->in, e->dst_pool, e->dst, &e->messages[i], &payload);
}

static void expect_equal_pages(ends *e)
{
    uint32_t wrong = 0;

    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t t = 0; t < PROMPT; t++)
            wrong += memcmp(row_at(e->src_pool, e->src, layer, t),
                            row_at(e->dst_pool, e->dst, layer, t), ROW_BYTES) != 0;
    EXPECT_EQ(wrong, 0);
}

static void handoff_of_any_chunk_and_size_gives_equal_pages(void)
{
    static const uint32_t CHUNKS[] = {1, 7, 64, 100, PROMPT};
    static const size_t   SIZES[]  = {ROW_BYTES, 5 * ROW_BYTES + 3, 70 * ROW_BYTES, 1 << 20};
    static const uint32_t SLOTS[]  = {1, 1000};

    for (size_t c = 0; c < 5; c++) {
        for (size_t s = 0; s < 4; s++) {
            for (size_t k = 0; k < 2; k++) {
                ends e;

                set_up(&e, SIZES[s]);
                run_prompt(&e, CHUNKS[c], SLOTS[k]);
                for (uint32_t i = 0; i < e.n; i++) {
                    EXPECT(!bt_handoff_in_complete(&e.in));
                    EXPECT_EQ(accept(&e, i), BT_OK);
                    EXPECT_EQ(e.messages[i].last, i == e.n - 1);
                }
                EXPECT(bt_handoff_in_complete(&e.in));
                EXPECT(memcmp(e.firsts_in, e.firsts_out, sizeof(e.firsts_in)) == 0);
                EXPECT(memcmp(e.map_in, e.map_out, MAP) == 0);
                EXPECT_EQ(e.out.n_in_flight, e.n);
                expect_equal_pages(&e);
                tear_down(&e);
            }
        }
    }
}

static void handoff_in_any_order_completes_with_the_final_row(void)
{
    uint32_t seed = 1;
    ends     e;

    set_up(&e, 9 * ROW_BYTES);
    run_prompt(&e, 40, 1000);
    for (uint32_t left = e.n; left > 0; left--) {
        uint32_t        i       = (seed = seed * 1664525u + 1013904223u) % left;
        bt_page_message m       = e.messages[i];
        uint8_t        *payload = e.payloads[i];

        EXPECT(!bt_handoff_in_complete(&e.in));
        EXPECT_EQ(accept(&e, i), BT_OK);
        e.messages[i]        = e.messages[left - 1];
        e.payloads[i]        = e.payloads[left - 1];
        e.messages[left - 1] = m;
        e.payloads[left - 1] = payload;
    }
    EXPECT(bt_handoff_in_complete(&e.in));
    expect_equal_pages(&e);
    tear_down(&e);
}

/* Within a step small messages wait; at its end they leave together. */
static void handoff_of_few_rows_sends_all_layers_at_once(void)
{
    ends e;

    set_up(&e, 1 << 20);
    run_prompt(&e, 50, 1000);
    EXPECT_EQ(e.n, 3); /* one a chunk */
    EXPECT_EQ(e.messages[0].layer0, 0);
    EXPECT_EQ(e.messages[0].layer1, LAYERS);
    tear_down(&e);
}

static void handoff_of_many_rows_leaves_layer_by_layer(void)
{
    ends e;

    set_up(&e, 100 * ROW_BYTES);
    compute(&e, 0, 0, 90);
    pump(&e, 0, 90, 1, false, 1000);
    EXPECT_EQ(e.n, 1);
    EXPECT_EQ(e.messages[0].layer1, 1);
    EXPECT_EQ(e.messages[0].token1, 90);
    tear_down(&e);
}

/* Rows of `width` bytes while layers below n_high are computed, in slots of 4 MiB. */
static bool next_of(const ends *e, uint32_t width, uint32_t n_high, bt_page_message *m_out)
{
    bt_handoff_out_view v = {.n_layers    = LAYERS,
                             .n_prompt    = PROMPT,
                             .kv_dim      = width / 2,
                             .high        = PROMPT,
                             .n_high      = n_high,
                             .payload_max = 4 << 20};

    return bt_handoff_out_next(&e->out, &v, m_out);
}

static void handoff_of_half_a_mebibyte_leaves_a_roomy_slot_for_no_more_layers(void)
{
    enum { WIDE = 4096, NARROW = 2048 }; /* a layer: 600 or 300 KiB */
    ends            e;
    bt_page_message m = {.request = 0};

    set_up(&e, ROW_BYTES);
    EXPECT(!next_of(&e, NARROW, 1, &m));
    EXPECT(next_of(&e, NARROW, 2, &m) && m.layer0 == 0 && m.layer1 == 2 && m.token1 == PROMPT);
    EXPECT(next_of(&e, WIDE, 1, &m) && m.layer0 == 0 && m.layer1 == 1 && m.token1 == PROMPT);
    EXPECT(next_of(&e, WIDE, 2, &m) && m.layer0 == 0 && m.layer1 == 2); /* both have piled up */
    tear_down(&e);
}

static void handoff_without_its_first_token_holds_the_last_message(void)
{
    ends e;

    set_up(&e, 1 << 20);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        compute(&e, layer, 0, PROMPT);
    pump(&e, PROMPT, PROMPT, LAYERS, true, 1000);
    EXPECT_EQ(e.n, 0);
    e.out.first_known = true;
    pump(&e, PROMPT, PROMPT, LAYERS, true, 1000);
    EXPECT_EQ(e.n, 1);
    EXPECT(e.messages[0].last);
    tear_down(&e);
}

/* One field at a time is changed in a message that would be right. */
static void handoff_refuses_what_does_not_fit_and_writes_nothing(void)
{
    static const char *const SAYS[] = {"tokens 0 to 151",
                                       "of layers 0 to 4",
                                       "tokens 40 to 40",
                                       "elements",
                                       "bytes",
                                       "tag",
                                       "finish",
                                       "token 100",
                                       "prompt of 150",
                                       "other forms",
                                       "of layers 3 to 3",
                                       "a tail of 12"};
    for (int fault = 0; fault < 12; fault++) {
        ends             e;
        bt_page_message *m;
        bt_first_token  *tail;

        set_up(&e, 1 << 20);
        run_prompt(&e, PROMPT, 1000);
        EXPECT_EQ(e.n, 1);
        m    = &e.messages[0];
        tail = (bt_first_token *)(void *)(e.payloads[0] + m->payload_bytes - TAIL);
        switch (fault) {
        case 0: m->token1 = PROMPT + 1; break;
        case 1: m->layer1 = LAYERS + 1; break;
        case 2: m->token0 = m->token1 = 40; break;
        case 3: m->kv_dim = DIM / 2; break;
        case 4: m->payload_bytes--; break;
        case 5: m->pages_tag ^= 1; break;
        case 6: tail[1].finish = BT_FINISH_STOP_STRING; break;
        case 7: tail[2].id = VOCAB; break;
        case 8: m->cached = PROMPT; break;
        case 9: e.payloads[0][m->payload_bytes - MAP] = 1; break; /* of what is fixed */
        case 10: m->layer0 = m->layer1, m->payload_bytes = TAIL; break;
        default: m->tail_bytes = 12, m->payload_bytes -= TAIL - 12; break;
        }
        EXPECT_EQ(accept(&e, 0), BT_ERR_CHECKSUM);
        EXPECT_HAS(bt_error_text(), SAYS[fault]);
        EXPECT_EQ(row_at(e.dst_pool, e.dst, 0, 0)[0], 0);
        EXPECT_EQ(e.in.n_rows, 0);
        tear_down(&e);
    }
}

static void handoff_refuses_rows_that_come_twice(void)
{
    ends e;

    set_up(&e, 9 * ROW_BYTES);
    run_prompt(&e, 40, 1000);
    EXPECT_EQ(accept(&e, 1), BT_OK);
    EXPECT_EQ(accept(&e, 1), BT_ERR_CHECKSUM);
    EXPECT_HAS(bt_error_text(), "twice");
    EXPECT_EQ(accept(&e, 2), BT_OK); /* more of the same page */
    EXPECT_EQ(e.messages[2].token0 / BT_PAGE_TOKENS, e.messages[1].token0 / BT_PAGE_TOKENS);
    EXPECT_EQ(accept(&e, 1), BT_ERR_CHECKSUM);
    EXPECT_HAS(bt_error_text(), "twice");
    tear_down(&e);
}

/* All rows are there, but not the tokens that follow them; or those come once more. */
static void handoff_is_complete_with_one_last_message(void)
{
    ends             e;
    bt_page_message *m;

    set_up(&e, 1 << 20);
    run_prompt(&e, PROMPT, 1000);
    EXPECT_EQ(e.n, 1);
    m       = &e.messages[0];
    m->last = false;
    m->payload_bytes -= m->tail_bytes;
    m->tail_bytes = 0;
    EXPECT_EQ(accept(&e, 0), BT_OK);
    EXPECT(!bt_handoff_in_complete(&e.in));
    tear_down(&e);

    set_up(&e, 1 << 20);
    run_prompt(&e, PROMPT, 1000);
    m         = &e.messages[0];
    m->layer1 = 1;
    memmove(e.payloads[0] + PROMPT * ROW_BYTES, e.payloads[0] + m->payload_bytes - TAIL, TAIL);
    m->payload_bytes = PROMPT * ROW_BYTES + TAIL;
    EXPECT_EQ(accept(&e, 0), BT_OK);
    m->layer0++;
    m->layer1++;
    EXPECT_EQ(accept(&e, 0), BT_ERR_CHECKSUM);
    EXPECT_HAS(bt_error_text(), "the last message (once: 0)");
    tear_down(&e);
}

/* They may be others' too.  A sender that knows of them leaves them out. */
static void handoff_refuses_rows_of_pages_that_were_there(void)
{
    enum { HELD = 2 * BT_PAGE_TOKENS };

    for (uint32_t held = 0; held <= HELD; held += HELD) {
        uint32_t n_refused = 0;
        ends     e;

        set_up(&e, 9 * ROW_BYTES);
        start_out(&e, held);
        run_prompt(&e, HELD, 1000);
        start_in(&e, HELD);
        for (uint32_t i = 0; i < e.n; i++) {
            bool there = e.messages[i].token0 < HELD;

            EXPECT(!bt_handoff_in_complete(&e.in));
            EXPECT_EQ(accept(&e, i), there ? BT_ERR_CHECKSUM : BT_OK);
            n_refused += there;
        }
        EXPECT(bt_handoff_in_complete(&e.in));
        EXPECT_EQ(n_refused != 0, held == 0);
        tear_down(&e);
    }
}

/* Pages that were given back and taken again have another generation. */
static void handoff_refuses_rows_for_an_earlier_owner(void)
{
    ends e;

    set_up(&e, 1 << 20);
    run_prompt(&e, PROMPT, 1000);
    for (uint32_t i = e.n_pages; i-- > 0;)
        bt_kv_pool_release(e.dst_pool, e.dst[i]);
    EXPECT_EQ(bt_kv_pool_acquire(e.dst_pool, e.n_pages, e.dst), BT_OK);
    start_in(&e, 0);
    EXPECT_EQ(accept(&e, 0), BT_ERR_CHECKSUM);
    EXPECT_HAS(bt_error_text(), "tag");
    tear_down(&e);
}

static void handoff_ends_unwind_at_every_allocation(void)
{
    ends           e;
    bt_handoff_out out;
    bt_handoff_in  in;
    bt_page_ref    ticket[N_PAGES] = {
           {0, 0}
    };
    bt_handoff_tail sent, got;

    set_up(&e, 1 << 20);
    sent = (bt_handoff_tail){CHOICES, e.firsts_out, e.map_out, MAP, 0};
    got  = (bt_handoff_tail){CHOICES, e.firsts_in, e.map_in, MAP, 16};
    EXPECT_EQ(BT_SWEEP(bt_handoff_out_init(&out, LAYERS, 0, N_PAGES, ticket, &sent),
                       bt_handoff_out_fini(&out)),
              3);
    EXPECT_EQ(BT_SWEEP(bt_handoff_in_init(&in, e.dst_pool, PROMPT, 0, VOCAB, e.dst, &got),
                       bt_handoff_in_fini(&in)),
              2);
    tear_down(&e);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(handoff_of_any_chunk_and_size_gives_equal_pages),
        BT_TEST(handoff_in_any_order_completes_with_the_final_row),
        BT_TEST(handoff_of_few_rows_sends_all_layers_at_once),
        BT_TEST(handoff_of_many_rows_leaves_layer_by_layer),
        BT_TEST(handoff_of_half_a_mebibyte_leaves_a_roomy_slot_for_no_more_layers),
        BT_TEST(handoff_without_its_first_token_holds_the_last_message),
        BT_TEST(handoff_refuses_what_does_not_fit_and_writes_nothing),
        BT_TEST(handoff_refuses_rows_that_come_twice),
        BT_TEST(handoff_refuses_rows_of_pages_that_were_there),
        BT_TEST(handoff_is_complete_with_one_last_message),
        BT_TEST(handoff_refuses_rows_for_an_earlier_owner),
        BT_TEST(handoff_ends_unwind_at_every_allocation),
    };
    bt_device_cpu_options cpu = {.n_threads = 1, .kernels = "scalar"};
    int                   code;

    if (bt_device_cpu_create(&cpu, &g_dev) != BT_OK) return EXIT_FAILURE;
    code = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    bt_device_destroy(g_dev);
    return code;
}
