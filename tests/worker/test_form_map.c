/* The form map: what it says of a prompt, and which cached pages a request with one may take. */
#include "worker/form_map.h"

#include "core/alloc.h"
#include "tests/support/test.h"
#include "worker/requests.h"

enum { N_PAGES = 11, PROMPT = 3 * BT_PAGE_TOKENS + 10, MORE = 90 };

static bt_device *g_dev;

static const bt_page_map ALL_ABSORBED = {0, ~0ull}, GENERATED = {~0ull, ~0ull}, PLAIN = {0, 0};

static bool equal(const bt_page_map *a, const bt_page_map *b)
{
    return a->generated == b->generated && a->absorbed == b->absorbed;
}

static void map_says_how_each_token_was_computed(void)
{
    bt_form_map   map, copy;
    bt_prefix_key chains[3] = {
        {0, 0}
    };
    long live = bt_alloc_live();

    EXPECT_EQ(bt_form_map_init(&map, PROMPT, NULL, 0), BT_OK);
    EXPECT_EQ(bt_form_map_run(&map, 0, 50), 50); /* nothing is fixed */
    bt_form_map_fix(&map, 40, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    bt_form_map_fix(&map, 100, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
    bt_form_map_fix(&map, 130, BT_ROLE_PROMPT, BT_FORM_ABSORBED);
    EXPECT_EQ(map.n_fixed, 130);
    EXPECT_EQ(bt_form_map_fixed_bytes(&map), 2 * sizeof(bt_page_map));
    EXPECT_EQ(bt_form_map_run(&map, 0, 400), 40);
    EXPECT_EQ(bt_form_map_run(&map, 40, 400), 60);
    EXPECT_EQ(bt_form_map_run(&map, 41, 7), 7);
    EXPECT_EQ(bt_form_map_run(&map, 100, 400), 30); /* not beyond what is fixed */
    EXPECT_EQ(bt_form_map_run(&map, 130, 12), 12);
    EXPECT(bt_form_map_role(&map, 39) == BT_ROLE_PROMPT &&
           bt_form_map_role(&map, 40) == BT_ROLE_GENERATED);
    EXPECT(bt_form_map_form(&map, 39) == BT_FORM_NORMAL &&
           bt_form_map_form(&map, 129) == BT_FORM_ABSORBED);
    EXPECT_EQ(bt_form_map_copy(&map, &copy), BT_OK);
    EXPECT(copy.n_fixed == 130 && memcmp(copy.pages, map.pages, bt_form_map_bytes(&map)) == 0);
    bt_form_map_fini(&copy);
    map.n_fixed = 90; /* pages were taken, and given back */
    bt_form_map_fix(&map, PROMPT, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    EXPECT(bt_form_map_role(&map, 89) == BT_ROLE_GENERATED &&
           bt_form_map_role(&map, 90) == BT_ROLE_PROMPT);
    EXPECT(bt_form_map_form(&map, 89) == BT_FORM_ABSORBED &&
           bt_form_map_form(&map, 129) == BT_FORM_NORMAL);
    EXPECT_EQ(bt_form_map_fixed_bytes(&map), bt_form_map_bytes(&map));
    bt_form_map_fini(&map);
    bt_form_map_chain(&chains[0], &(bt_prefix_key){1, 2}, &ALL_ABSORBED);
    bt_form_map_chain(&chains[1], &(bt_prefix_key){1, 2}, &(bt_page_map){0, 1});
    bt_form_map_chain(&chains[2], &(bt_prefix_key){1, 2}, &GENERATED);
    EXPECT(chains[0].lo != chains[1].lo && chains[0].lo != chains[2].lo);
    EXPECT_EQ(bt_form_map_init(&map, PROMPT, &GENERATED, 15), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_form_map_init(&map, 64, (bt_page_map[2]){GENERATED, GENERATED}, 32),
              BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_alloc_live(), live);
}

/* Behind pages that were computed differently equal tokens have other keys. */
static void key_tells_what_came_before(void)
{
    const bt_prefix_key tokens    = {1, 2};
    bt_prefix_key       before[3] = {
              {0, 0}
    };
    bt_prefix_key keys[3];

    bt_form_map_chain(&before[0], &tokens, &PLAIN);
    bt_form_map_chain(&before[1], &tokens, &ALL_ABSORBED);
    bt_form_map_chain(&before[2], &tokens, &GENERATED);
    for (int i = 0; i < 3; i++)
        keys[i] = bt_form_map_key(&tokens, &before[i]);
    EXPECT(keys[0].lo == tokens.lo && keys[0].hi == tokens.hi);
    EXPECT(keys[1].lo != tokens.lo && keys[2].lo != tokens.lo && keys[1].lo != keys[2].lo);
}

/* A request for PROMPT tokens whose first pages are fixed so; keys of equal prompts are equal. */
static bt_request *make(uint32_t n_fixed, const bt_page_map *fixed)
{
    bt_request *r = bt_calloc(1, sizeof(*r));

    r->n_prompt            = PROMPT;
    r->sampling.max_tokens = MORE;
    r->n_keys              = 3;
    r->keys                = bt_calloc(3, sizeof(*r->keys));
    for (uint32_t i = 0; i < 3; i++)
        r->keys[i] = (bt_prefix_key){i + 1, 100 * i};
    EXPECT_EQ(bt_form_map_init(&r->map, PROMPT, fixed, n_fixed * sizeof(*fixed)), BT_OK);
    return r;
}

static void drop(bt_request *r, bt_kv_pool *pool)
{
    bt_request_release_pages(r, pool);
    bt_request_destroy(r);
}

/* Takes pages and computes the whole prompt in one form, but for what is held or fixed. */
static void compute(bt_request *r, bt_kv_pool *pool, bt_attn_form form)
{
    EXPECT_EQ(bt_request_take_pages(r, pool, PROMPT + 1), BT_OK);
    bt_form_map_fix(&r->map, PROMPT, BT_ROLE_PROMPT, form);
    r->n_computed = r->step_end = PROMPT;
    bt_request_keep_pages(r, pool, PROMPT);
}

static void hit_copies_the_map_and_a_replay_wants_its_own(void)
{
    bt_kv_pool_config cfg      = {.n_layers = 1, .n_pages = N_PAGES, .kv_dim = 8};
    bt_kv_pool       *pool     = NULL;
    bt_page_map       other[3] = {PLAIN, ALL_ABSORBED, ALL_ABSORBED};
    bt_request       *first, *fresh, *replay, *mixed;

    EXPECT_EQ(bt_kv_pool_create(g_dev, &cfg, &pool), BT_OK);
    first = make(0, NULL);
    compute(first, pool, BT_FORM_ABSORBED);
    EXPECT_EQ(first->n_held, 0);

    fresh = make(0, NULL); /* whatever is there */
    EXPECT_EQ(bt_request_take_pages(fresh, pool, PROMPT + 1), BT_OK);
    EXPECT_EQ(fresh->n_held, 3 * BT_PAGE_TOKENS);
    EXPECT_EQ(fresh->map.n_fixed, 3 * BT_PAGE_TOKENS);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(equal(&fresh->map.pages[i], &ALL_ABSORBED));
    drop(fresh, pool);

    replay = make(1, &PLAIN); /* nothing of that kind is there */
    compute(replay, pool, BT_FORM_NORMAL);
    EXPECT_EQ(replay->n_held, 0);
    fresh = make(1, &PLAIN); /* now it is; what follows it is of the same chain */
    EXPECT_EQ(bt_request_take_pages(fresh, pool, PROMPT + 1), BT_OK);
    EXPECT_EQ(fresh->n_held, 3 * BT_PAGE_TOKENS);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(equal(&fresh->map.pages[i], &PLAIN));

    mixed = make(3, other); /* the second page exists so, but not behind such a first one */
    EXPECT_EQ(bt_request_take_pages(mixed, pool, PROMPT), BT_ERR_NO_PAGES);
    EXPECT(mixed->n_kept == 0 && mixed->map.n_fixed == 3 * BT_PAGE_TOKENS); /* as it was */
    EXPECT(mixed->last_key.lo == 0 && mixed->last_key.hi == 0);
    drop(first, pool);
    drop(replay, pool);
    EXPECT_EQ(bt_request_take_pages(mixed, pool, PROMPT), BT_OK);
    EXPECT_EQ(mixed->n_held, BT_PAGE_TOKENS);
    EXPECT_EQ(mixed->pages[0], fresh->pages[0]);
    drop(mixed, pool);
    drop(fresh, pool);
    EXPECT_EQ(bt_kv_pool_check_idle(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

/* Pages with generated tokens are named by all tokens before them, and say which of theirs those
 * are. */
static void generated_pages_are_kept_with_their_map(void)
{
    bt_kv_pool_config cfg  = {.n_layers = 1, .n_pages = N_PAGES, .kv_dim = 8};
    bt_kv_pool       *pool = NULL;
    uint32_t          tokens[MORE];
    bt_request       *r = make(0, NULL), *later;

    EXPECT_EQ(bt_kv_pool_create(g_dev, &cfg, &pool), BT_OK);
    r->prefix_seed = 5;
    compute(r, pool, BT_FORM_NORMAL);
    for (uint32_t i = 0; i < MORE; i++)
        tokens[i] = i;
    EXPECT_EQ(bt_request_grow(r, pool, PROMPT + MORE), BT_OK);
    bt_request_keep_generated(r, pool, PROMPT, 53, tokens, BT_FORM_ABSORBED);
    EXPECT_EQ(r->n_kept, 3); /* a token is missing */
    bt_request_keep_generated(r, pool, PROMPT + 53, 2, tokens + 53, BT_FORM_ABSORBED);
    EXPECT_EQ(r->n_kept, 4);

    later           = make(0, NULL); /* its prompt goes on with the reply */
    later->n_prompt = 4 * BT_PAGE_TOKENS + 1;
    bt_form_map_fini(&later->map);
    EXPECT_EQ(bt_form_map_init(&later->map, later->n_prompt, NULL, 0), BT_OK);
    bt_free(later->keys);
    later->n_keys = 4;
    later->keys   = bt_calloc(4, sizeof(*later->keys));
    memcpy(later->keys, r->keys, 3 * sizeof(*later->keys));
    later->keys[3] = r->last_key;
    EXPECT_EQ(bt_request_take_pages(later, pool, later->n_prompt), BT_OK);
    EXPECT_EQ(later->n_held, 4 * BT_PAGE_TOKENS);
    EXPECT(later->map.pages[3].generated == ~0ull << 10 &&
           later->map.pages[3].absorbed == ~0ull << 10);
    EXPECT(equal(&later->map.pages[2], &PLAIN));
    drop(later, pool);
    drop(r, pool);
    EXPECT_EQ(bt_kv_pool_check_idle(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(map_says_how_each_token_was_computed),
        BT_TEST(key_tells_what_came_before),
        BT_TEST(hit_copies_the_map_and_a_replay_wants_its_own),
        BT_TEST(generated_pages_are_kept_with_their_map),
    };
    bt_device_cpu_options cpu = {.n_threads = 1, .kernels = "scalar"};
    int                   code;

    bt_log_init("test", BT_LOG_ERROR);
    if (bt_device_cpu_create(&cpu, &g_dev) != BT_OK) return EXIT_FAILURE;
    code = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    bt_device_destroy(g_dev);
    return code;
}
