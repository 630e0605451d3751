/* A step's choices made by the device's sampling (worker/draws.h) are those of the host's, bit for
 * bit: on a GPU that is host memory. */
#include <cuda_runtime_api.h>

#include "device/cuda/module.h"
#include "tests/cuda/numbers.h"
#include "tests/support/sweep.h"
#include "worker/draws.h"

extern const bt_cuda_module_table bt_cuda_module;

enum { VOCAB = 1500, ROWS = 70, DRAWS = ROWS + 30, TOP = 5, MASK_WORDS = (VOCAB + 31) / 32 };

typedef struct {
    bt_device    *dev;
    float        *logits; /* host [ROWS][VOCAB] */
    void         *on_device;
    bt_sampler    sampler;
    bt_history    history;
    uint32_t      ids[8];
    float         biases[8];
    bt_sample_how how[DRAWS];
    bt_draw_list  list;
    bt_draws      view;
} site;

/* Every setting in some draws; ids that are biased, banned and in the history at once. */
static void vary(site *s)
{
    for (uint32_t i = 0; i < 8; i++) {
        s->ids[i]    = i * 7;
        s->biases[i] = (float)i - 3;
    }
    for (uint32_t i = 0; i < 40; i++)
        EXPECT_EQ(bt_history_add(&s->history, i % 9 * 7, i < 5), BT_OK);
    for (uint32_t i = 0; i < DRAWS; i++) {
        bt_sample_how *h = &s->how[i];

        *h = (bt_sample_how){.temperature = i % 4 == 0 ? 0 : 0.9f,
                             .seed        = 9,
                             .choice      = i % 3,
                             .position    = i,
                             .top_k       = i & 1 ? 30 : 0,
                             .top_p       = i & 2 ? 0.8f : 1,
                             .min_p       = i & 4 ? 0.02f : 0};
        if (i % 3 == 1) h->biased = (bt_id_list){s->ids, 8}, h->biases = s->biases;
        if (i % 5 == 1) h->banned[0] = (bt_id_list){s->ids + 2, 4};
        if (i % 5 == 2) h->banned[1] = (bt_id_list){s->ids, 1};
        if (i % 2 == 1) h->history = &s->history, h->repetition = 1.2f, h->presence = 0.3f;
        if (i % 7 == 1) h->history = &s->history, h->frequency = 0.2f;
    }
}

static void site_open(site *s)
{
    uint64_t rng = 3;

    *s = (site){.logits = random_f32((size_t)ROWS * VOCAB, 6, &rng)};
    for (uint32_t i = 0; i < VOCAB; i++)
        s->logits[i] = NAN; /* of the first row nothing is finite */
    EXPECT_EQ(bt_cuda_module.create(0, &s->dev), BT_OK);
    EXPECT_EQ(bt_sampler_init(&s->sampler, bt_cpu_kernels_find("scalar")->rows, VOCAB), BT_OK);
    EXPECT_EQ(bt_device_alloc(s->dev, (size_t)ROWS * VOCAB * sizeof(float), &s->on_device), BT_OK);
    EXPECT_EQ(bt_device_upload(s->dev, s->on_device, s->logits, ROWS * VOCAB * sizeof(float)),
              BT_OK);
    EXPECT_EQ(bt_draw_list_init(&s->list, s->dev, VOCAB, DRAWS), BT_OK);
    vary(s);
}

static void site_close(site *s)
{
    bt_draw_list_fini(&s->list);
    bt_history_fini(&s->history);
    bt_sampler_fini(&s->sampler);
    bt_device_free(s->dev, s->on_device);
    bt_device_destroy(s->dev);
    free(s->logits);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

static uint32_t row_of(uint32_t draw) { return draw < ROWS ? draw : draw - ROWS + 1; }

static void expect_draw(const site *s, uint32_t i)
{
    const float *row = s->logits + (size_t)row_of(i) * VOCAB;
    uint32_t     id = 0, want = 0, ids[TOP], want_ids[TOP], n;
    float        logprob, want_logprob, top[TOP], want_top[TOP];
    bool         found = bt_sample(&s->sampler, row, &s->how[i], &want);

    EXPECT_EQ(bt_drawn_id(&s->list, s->view.out, i, &id), found);
    if (!found) return;
    EXPECT_EQ(id, want);
    n = bt_logprobs(&s->sampler, row, want, i % (TOP + 1), &want_logprob, want_ids, want_top);
    EXPECT_EQ(bt_drawn_logprobs(s->view.out, i, &logprob, ids, top), n);
    EXPECT(logprob == want_logprob);
    EXPECT_EQ(n_different(ids, want_ids, n * sizeof(*ids)), 0);
    EXPECT_EQ(n_different(top, want_top, n * sizeof(*top)), 0);
}

static void choices_are_those_of_the_host(void)
{
    site     s;
    uint64_t allocs;

    site_open(&s);
    allocs = s.dev->n_allocs;
    for (uint32_t i = 0; i < DRAWS; i++)
        EXPECT(bt_draw_list_add(&s.list, &s.how[i], 0, row_of(i), true, i % (TOP + 1)));
    s.view        = bt_draw_list_view(&s.list);
    s.view.logits = s.on_device;
    EXPECT_EQ(s.dev->ops->sampling->run(s.list.sampling, &s.view), BT_OK);
    EXPECT_EQ(bt_device_sync(s.dev), BT_OK);
    for (uint32_t i = 0; i < DRAWS; i++)
        expect_draw(&s, i);
    EXPECT_EQ(s.dev->n_allocs, allocs);
    site_close(&s);
}

/* Some words are all ones, most zeros, some mixed; the draw has some finite id in any case. */
static void fill_mask(uint64_t *rng, uint32_t mask[MASK_WORDS])
{
    uint32_t one_in = 2 + random_bits(rng) % 30;

    for (uint32_t w = 0; w < MASK_WORDS; w++) {
        uint32_t h = random_bits(rng);

        mask[w] = h % one_in == 0 ? UINT32_MAX : h % one_in == 1 ? random_bits(rng) : 0;
    }
    mask[random_bits(rng) % (MASK_WORDS - 1)] |= 1u << random_bits(rng) % 32;
}

/* Draws without a mask, with one of their own, and with their neighbour's, over chunks' ends. */
static void add_masked(site *s, uint32_t round, uint32_t masks[DRAWS][MASK_WORDS])
{
    uint64_t rng = 1000 + round;

    bt_draw_list_clear(&s->list);
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t       once[MASK_WORDS], k = random_bits(&rng) % 5;
        bt_sample_how *h = &s->how[i];

        h->position = 100 * round + i;
        if (k == 4 && i > 0)
            memcpy(masks[i], masks[i - 1], sizeof(masks[i]));
        else
            fill_mask(&rng, masks[i]);
        memcpy(once, masks[i], sizeof(once));
        h->allowed = k == 0 ? NULL : once;
        EXPECT(bt_draw_list_add(&s->list, h, 0, row_of(i), true, i % (TOP + 1)));
        h->allowed = k == 0 ? NULL : masks[i];
    }
    s->view        = bt_draw_list_view(&s->list);
    s->view.logits = s->on_device;
}

/* Two steps are under way, so that the masks of one are still on their way when the next one's are
 * added. */
static void masked_choices_are_those_of_the_host(void)
{
    enum { ROUNDS = 8 };
    static uint32_t masks[2][DRAWS][MASK_WORDS];
    site            s;
    uint64_t        allocs;
    uint32_t        n_masked = 0;

    site_open(&s);
    allocs = s.dev->n_allocs;
    for (uint32_t round = 0; round < ROUNDS; round += 2) {
        bt_sample_how how[DRAWS];
        bt_draws      view;

        add_masked(&s, round, masks[0]);
        EXPECT(s.view.n_masks > 0 && s.view.n_masks < DRAWS);
        EXPECT_EQ(s.dev->ops->sampling->run(s.list.sampling, &s.view), BT_OK);
        view = s.view;
        memcpy(how, s.how, sizeof(how));
        add_masked(&s, round + 1, masks[1]);
        EXPECT_EQ(s.dev->ops->sampling->run(s.list.sampling, &s.view), BT_OK);
        EXPECT_EQ(bt_device_sync(s.dev), BT_OK);
        for (uint32_t i = 0; i < DRAWS; i++)
            expect_draw(&s, i);
        s.view = view;
        memcpy(s.how, how, sizeof(how));
        for (uint32_t i = 0; i < DRAWS; i++) {
            uint32_t id;

            expect_draw(&s, i);
            n_masked += s.how[i].allowed != NULL && bt_drawn_id(&s.list, view.out, i, &id);
        }
    }
    EXPECT(n_masked > ROUNDS / 2 * DRAWS / 2);
    EXPECT_EQ(s.dev->n_allocs, allocs);
    site_close(&s);
}

static void a_mask_of_nothing_leaves_no_token(void)
{
    uint32_t mask[MASK_WORDS] = {0}, id = 7;
    site     s;

    site_open(&s);
    for (uint32_t i = 0; i < 3; i++) { /* the middle one is masked */
        s.how[i].allowed = i == 1 ? mask : NULL;
        EXPECT(bt_draw_list_add(&s.list, &s.how[i], 0, 1, true, 0));
    }
    s.view        = bt_draw_list_view(&s.list);
    s.view.logits = s.on_device;
    EXPECT_EQ(s.dev->ops->sampling->run(s.list.sampling, &s.view), BT_OK);
    EXPECT_EQ(bt_device_sync(s.dev), BT_OK);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT_EQ(bt_drawn_id(&s.list, s.view.out, i, &id), i != 1);
    s.view.n_masks = 0;
    EXPECT_EQ(s.dev->ops->sampling->run(s.list.sampling, &s.view), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "draw 1 has mask 1, of 0");
    site_close(&s);
}

/* Each mask has one id.  Draws share some, not as neighbours, and leave others out. */
static void masks_may_come_in_any_order(void)
{
    enum { MASKS = 90 };
    static uint32_t masks[MASKS][MASK_WORDS];
    bt_draw         draws[DRAWS];
    void           *pinned = NULL;
    site            s;

    site_open(&s);
    for (uint32_t m = 0; m < MASKS; m++)
        masks[m][m * 11 / 32] = 1u << m * 11 % 32;
    EXPECT_EQ(bt_device_alloc_host(s.dev, sizeof(masks), &pinned), BT_OK);
    memcpy(pinned, masks, sizeof(masks));
    for (uint32_t i = 0; i < DRAWS; i++)
        draws[i] = (bt_draw){.row = 1 + i % (ROWS - 1), .repetition = 1, .mask = 1 + i * 37 % 80};
    s.view         = bt_draw_list_view(&s.list);
    s.view.logits  = s.on_device;
    s.view.n_draws = DRAWS;
    s.view.draws   = draws;
    s.view.n_masks = MASKS;
    s.view.masks   = pinned;
    EXPECT_EQ(s.dev->ops->sampling->run(s.list.sampling, &s.view), BT_OK);
    EXPECT_EQ(bt_device_sync(s.dev), BT_OK);
    for (uint32_t i = 0; i < DRAWS; i++)
        EXPECT_EQ(s.view.out->ids[i], (int32_t)(i * 37 % 80 * 11));
    bt_device_free_host(s.dev, pinned);
    site_close(&s);
}

static void the_account_is_what_is_taken(void)
{
    static const uint32_t ROWS_OF[] = {1, 100};
    bt_device            *dev       = NULL;

    EXPECT_EQ(bt_cuda_module.create(0, &dev), BT_OK);
    for (int i = 0; i < 2; i++) {
        size_t       taken = g_fake_gpu.taken, pinned = dev->pinned_bytes;
        bt_draw_list list;

        EXPECT_EQ(bt_draw_list_init(&list, dev, VOCAB, ROWS_OF[i]), BT_OK);
        EXPECT_EQ(g_fake_gpu.taken - taken, bt_draw_list_bytes(dev, VOCAB, ROWS_OF[i]));
        EXPECT_EQ(dev->pinned_bytes - pinned, bt_draw_list_pinned_bytes(dev, VOCAB, ROWS_OF[i]));
        bt_draw_list_fini(&list);
        EXPECT_EQ(g_fake_gpu.taken, taken);
    }
    bt_device_destroy(dev);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

static void a_list_that_cannot_be_made_leaves_nothing(void)
{
    bt_device   *dev = NULL;
    bt_draw_list list;
    bt_status    st;

    EXPECT_EQ(bt_cuda_module.create(0, &dev), BT_OK);
    EXPECT(BT_SWEEP(st = bt_draw_list_init(&list, dev, VOCAB, ROWS),
                    if (st == BT_OK) bt_draw_list_fini(&list)) >= 4);
    bt_draw_list_fini(&list); /* once more */
    bt_device_destroy(dev);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* What a sequence has seen before its first step here; one has seen every id, so that its list
 * goes up in parts, others
 * nothing. */
static void see(bt_history *h, uint32_t sequence, uint32_t n_vocab)
{
    for (uint32_t id = 0; id < (sequence == 0 ? n_vocab : sequence % 8); id++) {
        EXPECT_EQ(bt_history_add(h, id * 7 % n_vocab, true), BT_OK);
        for (uint32_t k = 0; k < (id + sequence) % 3; k++)
            EXPECT_EQ(bt_history_add(h, id * 7 % n_vocab, false), BT_OK);
    }
}

/* A step's draws, every third one of a sequence that the device counts the tokens of. */
static void draw_step(site *s, uint32_t step, bt_history *seen)
{
    bt_draw_list_clear(&s->list);
    for (uint32_t i = 0; i < DRAWS; i++) {
        bt_sample_how *h = &s->how[i];

        h->position = 100 * step + i;
        if (i % 3 == 0) {
            h->history    = &seen[i / 3];
            h->repetition = i % 2 == 0 ? 0.6f : 0;
            h->frequency  = i % 4 == 0 ? -0.5f : 0.3f;
            h->presence   = -0.9f;
        }
        EXPECT(bt_draw_list_add(&s->list, h, i % 3 == 0 ? 1 + i / 3 : 0, row_of(i), true,
                                i % (TOP + 1)));
    }
    s->view        = bt_draw_list_view(&s->list);
    s->view.logits = s->on_device;
    EXPECT_EQ(s->dev->ops->sampling->run(s->list.sampling, &s->view), BT_OK);
}

/* Each step follows from the tokens of those before it, which never go up again.  A history that is
 * set anew holds nothing of the one before it. */
static void the_device_counts_what_it_draws(void)
{
    enum { STEPS = 8, SEQUENCES = (DRAWS + 2) / 3, ANEW = 5 };
    site       s;
    bt_history seen[SEQUENCES] = {{0}};
    uint32_t   n_same          = 0;

    site_open(&s);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        see(&seen[i], i, VOCAB);
        EXPECT_EQ(bt_draw_list_set_history(&s.list, 1 + i, &seen[i]), BT_OK);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        if (step == STEPS / 2) {
            bt_history_fini(&seen[ANEW]);
            EXPECT_EQ(bt_history_add(&seen[ANEW], 3, true), BT_OK);
            EXPECT_EQ(bt_draw_list_set_history(&s.list, 1 + ANEW, &seen[ANEW]), BT_OK);
        }
        draw_step(&s, step, seen);
        EXPECT_EQ(bt_device_sync(s.dev), BT_OK);
        for (uint32_t i = 0; i < DRAWS; i++) {
            bt_sample_how plain = s.how[i];
            uint32_t      id = 0, without = 0;

            expect_draw(&s, i);
            if (i % 3 != 0 || !bt_drawn_id(&s.list, s.view.out, i, &id)) continue;
            plain.history = NULL;
            EXPECT(bt_sample(&s.sampler, s.logits + (size_t)row_of(i) * VOCAB, &plain, &without));
            n_same += id == without;
            EXPECT_EQ(bt_history_add(&seen[i / 3], id, false), BT_OK);
        }
    }
    EXPECT(n_same < STEPS * SEQUENCES / 2); /* the penalties count */
    for (uint32_t i = 0; i < SEQUENCES; i++)
        bt_history_fini(&seen[i]);
    site_close(&s);
}

/* Then the host chooses. */
static void what_does_not_fit_is_refused(void)
{
    site          s;
    bt_sample_how how = {.repetition = 1.5f};

    site_open(&s);
    for (uint32_t i = 0; i < BT_MAX_EDITS / 64; i++)
        EXPECT_EQ(bt_history_add(&s.history, i % VOCAB, true), BT_OK);
    how.history = &s.history;
    for (uint32_t i = 0; i < BT_MAX_EDITS / 1024; i++)
        if (!bt_draw_list_add(&s.list, &how, 0, 0, false, 0)) break;
    EXPECT(s.list.n > 0 && s.list.n <= BT_MAX_EDITS / 1024);
    EXPECT(!bt_draw_list_add(&s.list, &how, 0, 0, false, 0));
    bt_draw_list_clear(&s.list);
    for (uint32_t i = 0; i < s.list.capacity; i++)
        EXPECT(bt_draw_list_add(&s.list, &s.how[0], 0, 0, false, 0));
    EXPECT(!bt_draw_list_add(&s.list, &s.how[0], 0, 0, false, 0));
    bt_draw_list_clear(&s.list);
    for (uint32_t i = 0; i < 4; i++) { /* edits of each kind, with room for one of two */
        bt_sample_how more = {0};

        if (i == 0) more.biased = (bt_id_list){s.ids, 2}, more.biases = s.biases;
        if (i == 1) more.banned[0] = (bt_id_list){s.ids, 2};
        if (i == 2) more.banned[1] = (bt_id_list){s.ids, 2};
        if (i == 3) more.history = &s.history;
        s.list.n_edits = BT_MAX_EDITS - 1;
        EXPECT(!bt_draw_list_add(&s.list, &more, 0, 0, false, 0));
        EXPECT_EQ(s.list.n, 0);
        bt_draw_list_clear(&s.list);
    }
    s.list.max_masks = 2; /* as of a large vocabulary */
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t mask[MASK_WORDS] = {1u << i / 2};

        s.how[0].allowed = mask;
        EXPECT_EQ(bt_draw_list_add(&s.list, &s.how[0], 0, 0, false, 0), i < 4);
    }
    s.how[0].allowed = NULL;
    EXPECT(bt_draw_list_add(&s.list, &s.how[0], 0, 0, false, 0));
    site_close(&s);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(choices_are_those_of_the_host),
        BT_TEST(masked_choices_are_those_of_the_host),
        BT_TEST(a_mask_of_nothing_leaves_no_token),
        BT_TEST(masks_may_come_in_any_order),
        BT_TEST(the_account_is_what_is_taken),
        BT_TEST(a_list_that_cannot_be_made_leaves_nothing),
        BT_TEST(the_device_counts_what_it_draws),
        BT_TEST(what_does_not_fit_is_refused),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
