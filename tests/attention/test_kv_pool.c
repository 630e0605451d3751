#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attention/kv_pool.h"
#include "attention/kv_pool_state.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

static bt_device *g_dev;

static const bt_kv_pool_config CFG = {.n_layers = 2, .n_pages = 4, .kv_dim = 80};

static bt_kv_pool *create(void)
{
    bt_kv_pool *pool = NULL;

    EXPECT_EQ(bt_kv_pool_create(g_dev, &CFG, &pool), BT_OK);
    return pool;
}

static void kv_pool_acquire_is_all_or_nothing(void)
{
    bt_kv_pool *pool     = create();
    bt_page_id  pages[5] = {9, 9, 9, 9, 9};

    EXPECT_EQ(bt_kv_pool_acquire(pool, 3, pages), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 2, pages + 3), BT_ERR_NO_PAGES);
    EXPECT_EQ(pages[3], 9);
    EXPECT_EQ(bt_kv_pool_n_free(pool), 1);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 0, pages + 3), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 1, pages + 3), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 1, pages + 4), BT_ERR_NO_PAGES);
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < i; j++)
            EXPECT(pages[i] != pages[j]);
        EXPECT(pages[i] < 4);
    }
    for (int i = 0; i < 4; i++)
        bt_kv_pool_release(pool, pages[i]);
    EXPECT_EQ(bt_kv_pool_n_free(pool), 4);
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

static void kv_pool_shared_page_survives_first_release(void)
{
    bt_kv_pool *pool = create();
    bt_page_id  page;

    EXPECT_EQ(bt_kv_pool_acquire(pool, 1, &page), BT_OK);
    bt_kv_pool_retain(pool, page);
    bt_kv_pool_release(pool, page);
    EXPECT_EQ(bt_kv_pool_n_free(pool), 3);
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    bt_kv_pool_release(pool, page);
    EXPECT_EQ(bt_kv_pool_n_free(pool), 4);
    bt_kv_pool_destroy(pool);
}

static void kv_pool_generation_grows_with_each_owner(void)
{
    bt_kv_pool *pool = create();
    bt_page_id  page, again;
    uint32_t    before;

    EXPECT_EQ(bt_kv_pool_acquire(pool, 1, &page), BT_OK);
    before = bt_kv_pool_generation(pool, page);
    bt_kv_pool_retain(pool, page);
    EXPECT_EQ(bt_kv_pool_generation(pool, page), before);
    bt_kv_pool_release(pool, page);
    bt_kv_pool_release(pool, page);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 1, &again), BT_OK);
    EXPECT_EQ(again, page);
    EXPECT_EQ(bt_kv_pool_generation(pool, page), before + 1);
    bt_kv_pool_release(pool, page);
    bt_kv_pool_destroy(pool);
}

static void kv_pool_rows_are_page_then_layer_then_token(void)
{
    bt_kv_pool *pool = create();
    bt_bf16    *base = bt_kv_pool_rows(pool, 0, 0);

    EXPECT_EQ(bt_kv_page_bytes(2, 80), 2 * 64 * 80 * 2);
    EXPECT_EQ(bt_kv_page_bytes(61, 576), 64 * 70272);
    EXPECT_EQ(bt_kv_pool_rows(pool, 0, 1) - base, 64 * 80);
    EXPECT_EQ(bt_kv_pool_rows(pool, 1, 0) - base, 2 * 64 * 80);
    memset(bt_kv_pool_rows(pool, 3, 1), 0xff, 64 * 80 * sizeof(bt_bf16));
    EXPECT_EQ(bt_kv_pool_n_pages(pool), 4);
    EXPECT_EQ(bt_kv_pool_n_layers(pool), 2);
    EXPECT_EQ(bt_kv_pool_kv_dim(pool), 80);
    bt_kv_pool_destroy(pool);
}

static void kv_pool_pages_for_rounds_up(void)
{
    EXPECT_EQ(bt_kv_pages_for(0), 0);
    EXPECT_EQ(bt_kv_pages_for(1), 1);
    EXPECT_EQ(bt_kv_pages_for(64), 1);
    EXPECT_EQ(bt_kv_pages_for(65), 2);
    EXPECT_EQ(bt_kv_pages_for(UINT32_MAX), 1u << 26);
}

static void kv_pool_random_traffic_keeps_the_account(void)
{
    bt_kv_pool_config cfg  = {.n_layers = 1, .n_pages = 37, .kv_dim = 2};
    bt_kv_pool       *pool = NULL;
    bt_page_id        held[400];
    uint32_t          n_held = 0, refs[37] = {0}, n_used = 0, seed = 1;

    EXPECT_EQ(bt_kv_pool_create(g_dev, &cfg, &pool), BT_OK);
    for (int step = 0; step < 5000; step++) {
        uint32_t r = (seed = seed * 1664525u + 1013904223u) >> 8, kind = r % 3, n = r / 3 % 5;

        if (kind == 0 && n_held + n <= 400) {
            bt_status st = bt_kv_pool_acquire(pool, n, held + n_held);

            EXPECT_EQ(st, n <= cfg.n_pages - n_used ? BT_OK : BT_ERR_NO_PAGES);
            for (uint32_t i = 0; st == BT_OK && i < n; i++) {
                EXPECT_EQ(refs[held[n_held + i]]++, 0);
                n_used++;
            }
            n_held += st == BT_OK ? n : 0;
        } else if (kind == 1 && n_held != 0 && n_held < 400) {
            held[n_held] = held[r % n_held];
            refs[held[n_held]]++;
            bt_kv_pool_retain(pool, held[n_held++]);
        } else if (n_held != 0) {
            uint32_t at = r % n_held;

            n_used -= --refs[held[at]] == 0;
            bt_kv_pool_release(pool, held[at]);
            held[at] = held[--n_held];
        }
        EXPECT_EQ(bt_kv_pool_n_free(pool), cfg.n_pages - n_used);
        if (step % 100 == 0) EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    }
    while (n_held != 0)
        bt_kv_pool_release(pool, held[--n_held]);
    EXPECT_EQ(bt_kv_pool_n_free(pool), cfg.n_pages);
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

static void kv_pool_create_unwinds_at_every_allocation(void)
{
    bt_kv_pool *pool = NULL;

    EXPECT_EQ(BT_SWEEP(bt_kv_pool_create(g_dev, &CFG, &pool), bt_kv_pool_destroy(pool)), 8);
}

static void kv_pool_create_rejects_zero_and_overflow(void)
{
    static const bt_kv_pool_config BAD[] = {
        {0,          4,          80        },
        {2,          0,          80        },
        {2,          4,          0         },
        {UINT32_MAX, UINT32_MAX, UINT32_MAX}
    };

    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        bt_kv_pool *pool = NULL;

        EXPECT_EQ(bt_kv_pool_create(g_dev, &BAD[i], &pool), BT_ERR_INVALID_ARG);
        EXPECT(pool == NULL);
        EXPECT_HAS(bt_error_text(), "kv pool of");
    }
    bt_kv_pool_destroy(NULL);
}

static bt_prefix_key key_of(uint64_t i) { return (bt_prefix_key){i * 8, i}; }

static const bt_page_map PLAIN = {0, 0};

static bool keep(bt_kv_pool *pool, bt_page_id page, const bt_prefix_key *key)
{
    return bt_kv_pool_keep(pool, page, key, &PLAIN);
}

/* The pages of keys until the first that is not cached. */
static uint32_t match(bt_kv_pool *pool, uint32_t n, const bt_prefix_key *keys, bt_page_id *out)
{
    bt_page_map map;
    uint32_t    i = 0;

    while (i < n && bt_kv_pool_match(pool, &keys[i], NULL, &out[i], &map))
        i++;
    return i;
}

static void kv_prefix_finds_what_was_kept(void)
{
    bt_kv_pool   *pool = create();
    bt_page_id    pages[4], found[4];
    bt_prefix_key keys[3] = {key_of(1), key_of(2), key_of(3)}, wrong = {8, 2};
    uint32_t      generation;

    EXPECT_EQ(bt_kv_pool_acquire(pool, 2, pages), BT_OK);
    EXPECT(keep(pool, pages[0], &keys[0]));
    EXPECT(keep(pool, pages[1], &keys[1]));
    EXPECT(!keep(pool, pages[1], &keys[2])); /* a page has one key */
    EXPECT_EQ(match(pool, 1, &wrong, found), 0);
    EXPECT_EQ(match(pool, 1, &keys[1], found), 1);
    EXPECT_EQ(found[0], pages[1]);
    bt_kv_pool_release(pool, found[0]);
    generation = bt_kv_pool_generation(pool, pages[0]);
    bt_kv_pool_release(pool, pages[1]);
    bt_kv_pool_release(pool, pages[0]);
    EXPECT_EQ(bt_kv_pool_n_free(pool), 2);
    EXPECT_EQ(bt_kv_pool_n_cached(pool), 2);
    EXPECT_EQ(bt_kv_pool_check_idle(pool), BT_OK);
    EXPECT_EQ(match(pool, 3, keys, found), 2);
    EXPECT(found[0] == pages[0] && found[1] == pages[1]);
    EXPECT_EQ(bt_kv_pool_generation(pool, pages[0]), generation); /* the same rows */
    EXPECT_EQ(bt_kv_pool_n_cached(pool), 0);
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    EXPECT_EQ(bt_kv_pool_check_idle(pool), BT_ERR_PROTOCOL);
    bt_kv_pool_release(pool, found[1]);
    bt_kv_pool_release(pool, found[0]);
    EXPECT_EQ(bt_kv_pool_check_idle(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

static void kv_prefix_one_page_of_a_key(void)
{
    bt_kv_pool   *pool = create();
    bt_page_id    pages[2];
    bt_prefix_key key = key_of(7);

    EXPECT_EQ(bt_kv_pool_acquire(pool, 2, pages), BT_OK);
    EXPECT(keep(pool, pages[0], &key));
    EXPECT(!keep(pool, pages[1], &key));
    bt_kv_pool_release(pool, pages[1]);
    EXPECT_EQ(bt_kv_pool_n_free(pool), 3);
    bt_kv_pool_release(pool, pages[0]);
    EXPECT_EQ(bt_kv_pool_n_cached(pool), 1);
    bt_kv_pool_destroy(pool);
}

/* Pages of equal tokens that were computed differently stand beside each other. */
static void kv_prefix_tells_maps_apart(void)
{
    bt_kv_pool       *pool = create();
    bt_page_id        pages[3], found[3];
    bt_prefix_key     key     = key_of(7);
    const bt_page_map MAPS[3] = {
        PLAIN, {1, 0    },
         {0, ~0ull}
    };
    bt_page_map map;

    EXPECT_EQ(bt_kv_pool_acquire(pool, 3, pages), BT_OK);
    EXPECT(!bt_kv_pool_match(pool, &key, NULL, found, &map));
    EXPECT(bt_kv_pool_keep(pool, pages[0], &key, &MAPS[0]));
    EXPECT(bt_kv_pool_keep(pool, pages[1], &key, &MAPS[1]));
    EXPECT(!bt_kv_pool_keep(pool, pages[2], &key, &MAPS[1])); /* it has one of that kind */
    for (int i = 0; i < 2; i++) {
        EXPECT(bt_kv_pool_match(pool, &key, &MAPS[i], &found[i], &map));
        EXPECT_EQ(found[i], pages[i]);
        EXPECT(map.generated == MAPS[i].generated && map.absorbed == MAPS[i].absorbed);
    }
    EXPECT(!bt_kv_pool_match(pool, &key, &MAPS[2], &found[2], &map));
    EXPECT(bt_kv_pool_match(pool, &key, NULL, &found[2], &map)); /* any of them */
    bt_kv_pool_release(pool, found[2]);
    for (int i = 0; i < 2; i++)
        bt_kv_pool_release(pool, found[i]);
    for (int i = 0; i < 3; i++)
        bt_kv_pool_release(pool, pages[i]);
    EXPECT_EQ(bt_kv_pool_n_cached(pool), 2);
    EXPECT_EQ(bt_kv_pool_check_idle(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

static void kv_prefix_evicts_what_was_used_longest_ago(void)
{
    bt_kv_pool   *pool = create();
    bt_page_id    pages[4], found[2], more[4];
    bt_prefix_key keys[4];

    EXPECT_EQ(bt_kv_pool_acquire(pool, 4, pages), BT_OK);
    for (uint32_t i = 0; i < 4; i++) {
        keys[i] = key_of(i + 1);
        EXPECT(keep(pool, pages[i], &keys[i]));
        bt_kv_pool_release(pool, pages[i]);
    }
    EXPECT_EQ(match(pool, 1, &keys[0], found), 1); /* used again */
    EXPECT_EQ(bt_kv_pool_acquire(pool, 4, more), BT_ERR_NO_PAGES);
    EXPECT_EQ(bt_kv_pool_n_cached(pool), 3);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 2, more), BT_OK);
    EXPECT(more[0] == pages[1] && more[1] == pages[2]);
    EXPECT_EQ(match(pool, 1, &keys[1], found + 1), 0);
    EXPECT_EQ(match(pool, 1, &keys[3], found + 1), 1);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 1, more + 2), BT_ERR_NO_PAGES);
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    bt_kv_pool_release(pool, found[0]);
    EXPECT_EQ(bt_kv_pool_acquire(pool, 1, more + 2), BT_OK);
    EXPECT_EQ(more[2], pages[0]);
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

/* Chains of keys over few pages, against a plain list of what each page should hold. */
static void kv_prefix_random_chains_keep_the_account(void)
{
    enum { PAGES = 24, HELD = 6, LENGTH = 5 };
    bt_kv_pool_config cfg  = {.n_layers = 1, .n_pages = PAGES, .kv_dim = 8};
    bt_kv_pool       *pool = NULL;
    bt_page_id        held[HELD][LENGTH];
    uint32_t          n_held[HELD] = {0}, state = 5, hits = 0;
    uint64_t          content[PAGES] = {0};

    EXPECT_EQ(bt_kv_pool_create(g_dev, &cfg, &pool), BT_OK);
    for (int i = 0; i < 20000; i++) {
        uint32_t      slot, chain, n;
        bt_prefix_key keys[LENGTH];

        state = state * 1664525 + 1013904223;
        slot  = (state >> 8) % HELD;
        chain = (state >> 16) % 9;
        if (n_held[slot] != 0) {
            while (n_held[slot] > 0)
                bt_kv_pool_release(pool, held[slot][--n_held[slot]]);
            continue;
        }
        for (uint32_t k = 0; k < LENGTH; k++)
            keys[k] = key_of(chain * 100 + k + 1);
        n = match(pool, LENGTH, keys, held[slot]);
        hits += n;
        for (uint32_t k = 0; k < n; k++)
            EXPECT_EQ(content[held[slot][k]], keys[k].hi);
        n_held[slot] = n;
        if (bt_kv_pool_acquire(pool, LENGTH - n, held[slot] + n) != BT_OK) continue;
        for (; n < LENGTH; n++) {
            content[held[slot][n]] = keys[n].hi;
            keep(pool, held[slot][n], &keys[n]);
        }
        n_held[slot] = LENGTH;
        if (i % 50 == 0) EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
    }
    for (uint32_t slot = 0; slot < HELD; slot++)
        while (n_held[slot] > 0)
            bt_kv_pool_release(pool, held[slot][--n_held[slot]]);
    EXPECT(hits > 1000);
    EXPECT_EQ(bt_kv_pool_check_idle(pool), BT_OK);
    bt_kv_pool_destroy(pool);
}

static void expect_wrong(const bt_kv_pool *pool, const char *says)
{
    EXPECT_EQ(bt_kv_pool_check(pool), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), says);
}

/* What a slip of ours would leave behind, one after the other; each is undone. */
static void kv_pool_check_tells_what_is_wrong(void)
{
    enum { IDLE, ALSO, USED, FREE, PAGES };
    bt_kv_pool   *p = create();
    bt_page_id    pages[3];
    bt_prefix_key keys[2] = {key_of(1), key_of(2)};

    EXPECT_EQ(bt_kv_pool_acquire(p, 3, pages), BT_OK);
    EXPECT(pages[IDLE] == IDLE && pages[ALSO] == ALSO && pages[USED] == USED);
    for (int i = 0; i < 2; i++) {
        EXPECT(keep(p, pages[i], &keys[i]));
        bt_kv_pool_release(p, pages[i]);
    }
    EXPECT_EQ(bt_kv_pool_check(p), BT_OK);

    p->n_free = PAGES + 1;
    expect_wrong(p, "5 free pages of 4");
    p->n_free  = 2;
    p->free[1] = FREE;
    expect_wrong(p, "page 3 is in the free list twice");
    p->n_free  = 1;
    p->free[0] = PAGES;
    expect_wrong(p, "the free list holds page 4 of 4");
    p->free[0]    = FREE;
    p->refs[FREE] = 1;
    expect_wrong(p, "page 3 is free, has 1 references");
    p->refs[FREE]          = 0;
    p->entries[FREE].known = true;
    expect_wrong(p, "page 3 is free, has 0 references and is known 1");
    p->entries[FREE].known = false;
    p->refs[USED]          = 0;
    expect_wrong(p, "page 2 has no reference and is neither free nor cached");
    p->refs[USED] = 1;

    p->refs[IDLE] = 1;
    expect_wrong(p, "idle page 0 is known 1, has 1 references");
    p->refs[IDLE]          = 0;
    p->entries[ALSO].known = false;
    expect_wrong(p, "idle page 1 is known 0");
    p->entries[ALSO].known = true;
    p->entries[ALSO].older = USED;
    expect_wrong(p, "idle page 1 is known 1");
    p->entries[ALSO].older = IDLE;
    p->entries[IDLE].key   = keys[1];
    expect_wrong(p, "idle page 0 is not found under its key");
    p->entries[IDLE].key = keys[0];
    p->n_idle            = 1;
    expect_wrong(p, "more than 1 idle pages are listed");
    p->n_idle = 3;
    expect_wrong(p, "2 idle pages are listed, 3 counted");
    p->n_idle = 2;
    p->newest = IDLE;
    expect_wrong(p, "2 idle pages are listed");
    p->newest = ALSO;
    p->n_known++;
    expect_wrong(p, "2 pages are known, 3 counted");
    p->n_known--;
    EXPECT_EQ(bt_kv_pool_check(p), BT_OK);
    bt_kv_pool_release(p, pages[USED]);
    bt_kv_pool_destroy(p);
}

static void retain_free(bt_kv_pool *pool) { bt_kv_pool_retain(pool, 0); }
static void release_free(bt_kv_pool *pool) { bt_kv_pool_release(pool, 0); }
static void keep_free(bt_kv_pool *pool) { keep(pool, 0, &(bt_prefix_key){1, 1}); }
static void reach_beyond(bt_kv_pool *pool) { bt_kv_pool_rows(pool, 0, CFG.n_layers); }

/* A page that nobody has must not get a second owner later: the process ends instead. */
static void kv_pool_page_without_owner_is_not_touched(void)
{
    static void (*const MISUSES[])(bt_kv_pool *) = {retain_free, release_free, keep_free,
                                                    reach_beyond};
    bt_kv_pool *pool                             = create();

    for (size_t i = 0; i < sizeof(MISUSES) / sizeof(MISUSES[0]); i++) {
        int   status = 0;
        pid_t child  = fork();

        if (child == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            MISUSES[i](pool);
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
               WTERMSIG(status) == SIGABRT);
    }
    bt_kv_pool_destroy(pool);
}

static const bt_test TESTS[] = {
    BT_TEST(kv_pool_acquire_is_all_or_nothing),
    BT_TEST(kv_pool_shared_page_survives_first_release),
    BT_TEST(kv_pool_generation_grows_with_each_owner),
    BT_TEST(kv_pool_rows_are_page_then_layer_then_token),
    BT_TEST(kv_pool_pages_for_rounds_up),
    BT_TEST(kv_pool_random_traffic_keeps_the_account),
    BT_TEST(kv_prefix_finds_what_was_kept),
    BT_TEST(kv_prefix_one_page_of_a_key),
    BT_TEST(kv_prefix_tells_maps_apart),
    BT_TEST(kv_prefix_evicts_what_was_used_longest_ago),
    BT_TEST(kv_prefix_random_chains_keep_the_account),
    BT_TEST(kv_pool_check_tells_what_is_wrong),
    BT_TEST(kv_pool_page_without_owner_is_not_touched),
    BT_TEST(kv_pool_create_unwinds_at_every_allocation),
    BT_TEST(kv_pool_create_rejects_zero_and_overflow),
};

int main(int argc, char **argv)
{
    int rc;

    if (bt_device_cpu_create(&(bt_device_cpu_options){.n_threads = 1, .kernels = "auto"}, &g_dev) !=
        BT_OK)
        return EXIT_FAILURE;
    rc = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    bt_device_destroy(g_dev);
    return rc;
}
