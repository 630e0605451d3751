/* The layer for multi-token prediction in one process against the golden drafts, over attention
 * forms; and against itself: a chunk size, a neighbour, a kernel family of the same arithmetic or
 * which rows ask changes no bit of a draft, and drafts change none of the model's logits. */
#include "device/cpu/pool.h"
#include "tests/model/drafts.h"

static bt_world *g_world;

static const uint32_t SELF[1] = {0};

enum { SHORT_PROMPT = 256, MAX_ROWS = 2700, N_FORMS = 3 };

static const struct {
    bt_form_policy form;
    const char    *name;
} FORMS[N_FORMS] = {
    {BT_FORM_BY_ROLE,      "form by role" },
    {BT_FORM_ALL_NORMAL,   "form normal"  },
    {BT_FORM_ALL_ABSORBED, "form absorbed"}
};

static engine_options options(void)
{
    return (engine_options){.n_threads = 2, .max_rows = MAX_ROWS, .n_pages = 64};
}

static void expect_same(const sequence *got, const sequence *want, const char *what, uint32_t n)
{
    if (drafts_equal(got, want)) return;
    g_failures++;
    fprintf(stderr, "%s: %s %u changes bits\n", got->c->name, what, n);
}

static void drafts_hold_goldens_in_every_form(void)
{
    engine_options opt = options();
    engine         e;

    drafting_open(&e, g_world, 1, SELF, &opt);
    for (size_t f = 0; f < N_FORMS; f++) {
        for (uint32_t i = 0; i < g_goldens.n_cases; i++) {
            sequence s = {.c             = &g_goldens.cases[i],
                          .rows_per_step = 1,
                          .form          = FORMS[f].form,
                          .draft_every   = 1};

            engine_run(&e, 1, &s);
            expect_drafts(&s, 0, &g_mtp.first[i], FORMS[f].name);
            sequence_free(&s);
        }
    }
    engine_close(&e);
}

/* One row a step, so that there is a second draft of each. */
static void chained_drafts_hold_goldens(void)
{
    engine_options opt = options();
    engine         e;

    drafting_open(&e, g_world, 1, SELF, &opt);
    for (size_t f = 0; f < N_FORMS; f++) {
        sequence s = {.c             = &g_goldens.cases[0],
                      .chunk         = 1,
                      .rows_per_step = 1,
                      .form          = FORMS[f].form,
                      .chained       = true};

        engine_run(&e, 1, &s);
        expect_drafts(&s, 0, &g_mtp.first[0], FORMS[f].name);
        expect_drafts(&s, 1, &g_mtp.chained, FORMS[f].name);
        sequence_free(&s);
    }
    engine_close(&e);
}

/* A draft behind the last row of a piece leaves no trace in the pieces that follow. */
static void bits_do_not_depend_on_chunks(void)
{
    static const uint32_t chunks[] = {1, 7, 64, 100};
    engine_options        opt      = options();
    engine                e;

    drafting_open(&e, g_world, 1, SELF, &opt);
    for (size_t f = 0; f < N_FORMS; f++) {
        for (uint32_t i = 0; i < g_goldens.n_cases; i++) {
            const golden_case *c     = &g_goldens.cases[i];
            bt_form_policy     form  = FORMS[f].form;
            sequence           whole = {.c = c, .rows_per_step = 1, .form = form, .draft_every = 1};

            engine_run(&e, 1, &whole);
            for (uint32_t n = 0; n < 4; n++) {
                sequence s = {.c = c, .chunk = chunks[n], .rows_per_step = 1 + 2 * n, .form = form};

                if (chunks[n] < 64 && c->n_prompt > SHORT_PROMPT) continue;
                for (int chained = 0; chained < 1 + (c->n_prompt <= SHORT_PROMPT); chained++) {
                    s.chained     = chained;
                    s.draft_every = !chained;
                    engine_run(&e, 1, &s);
                    expect_same(&s, &whole, chained ? "chained, chunk" : "chunk", chunks[n]);
                    sequence_free(&s);
                }
            }
            sequence_free(&whole);
        }
    }
    engine_close(&e);
}

/* Prompt and generated rows mix in one step. */
static void bits_do_not_depend_on_neighbours(void)
{
    engine_options     opt = options();
    const golden_case *c = &g_goldens.cases[0], *other = &g_goldens.cases[1];
    sequence           alone = {.c = c, .chunk = 1, .rows_per_step = 1, .chained = true};
    sequence           together[8];
    engine             e;

    drafting_open(&e, g_world, 1, SELF, &opt);
    engine_run(&e, 1, &alone);
    for (uint32_t chained = 0; chained < 2; chained++) {
        for (uint32_t i = 0; i < 8; i++)
            together[i] = (sequence){.c             = i % 2 == 0 ? c : other,
                                     .chunk         = i,
                                     .rows_per_step = 1 + i % 3,
                                     .first_step    = 3 * i,
                                     .forced        = i % 4 == 1,
                                     .draft_every   = chained ? 0 : i % 3 + 1,
                                     .chained       = chained && i != 3};
        engine_run(&e, 8, together);
        for (uint32_t i = 0; i < 8; i++) {
            if (i % 2 == 0) expect_same(&together[i], &alone, "neighbour", i);
            sequence_free(&together[i]);
        }
    }
    sequence_free(&alone);
    engine_close(&e);
}

/* Rows that do not ask only fill their pages: of the layer's experts they see none. */
static void bits_do_not_depend_on_who_asks(void)
{
    engine_options opt   = options();
    sequence       whole = {.c = &g_goldens.cases[0], .rows_per_step = 1, .draft_every = 1};
    engine         e;

    drafting_open(&e, g_world, 1, SELF, &opt);
    engine_run(&e, 1, &whole);
    for (uint32_t i = 0; i < 6; i++) {
        sequence s        = {.c             = whole.c,
                             .chunk         = 3 * i,
                             .rows_per_step = 1 + i,
                             .bare          = i % 2 == 0,
                             .draft_every   = 2 + i};
        uint64_t n_before = engine_expert_rows(&e), n;

        engine_run(&e, 1, &s);
        n = s.c->n_tokens * g_goldens.n_moe + n_drafts(&s);
        EXPECT_EQ(engine_expert_rows(&e) - n_before, n * g_goldens.cfg.moe.gate.top_k);
        expect_same(&s, &whole, "asking by", 2 + i);
        sequence_free(&s);
    }
    sequence_free(&whole);
    engine_close(&e);
}

/* Nor on whether the layer is served. */
static void logits_do_not_depend_on_drafts(void)
{
    engine_options opt = options();
    sequence       plain[2];
    engine         e;

    g_goldens.cfg.mtp = false;
    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    for (uint32_t i = 0; i < 2; i++) {
        plain[i] = (sequence){.c = &g_goldens.cases[i], .rows_per_step = 1};
        engine_run(&e, 1, &plain[i]);
    }
    engine_close(&e);
    g_goldens.cfg.mtp = true;
    drafting_open(&e, g_world, 1, SELF, &opt);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t how = 0; how < 3; how++) {
            sequence s = {.c             = plain[i].c,
                          .chunk         = how == 0 ? 0 : 50,
                          .rows_per_step = 1 + how,
                          .draft_every   = how,
                          .chained       = how == 2};

            engine_run(&e, 1, &s);
            EXPECT(sequence_equal(&g_goldens, &s, &plain[i]));
            sequence_free(&s);
        }
        sequence_free(&plain[i]);
    }
    engine_close(&e);
}

/* Every kernel family that this CPU has stays within the goldens, and those that name the same
 * arithmetic agree to the bit; so do one thread and three. */
static void check_families(bt_form_policy form)
{
    char     families[128], arithmetic[8][64], *name, *rest = families;
    sequence runs[8];
    uint32_t n = 0;

    snprintf(families, sizeof(families), "%s", bt_device_cpu_kernels());
    while ((name = strtok_r(rest, ",", &rest)) != NULL && n < 8) {
        engine_options opt = options();
        engine         e;

        opt.kernels   = name;
        opt.n_threads = 1 + 2 * (n % 2);
        drafting_open(&e, g_world, 1, SELF, &opt);
        snprintf(arithmetic[n], sizeof(arithmetic[n]), "%s", e.dev->arithmetic);
        runs[n] = (sequence){.c             = &g_goldens.cases[0],
                             .chunk         = 1,
                             .rows_per_step = 1,
                             .form          = form,
                             .chained       = true};
        engine_run(&e, 1, &runs[n]);
        expect_drafts(&runs[n], 0, &g_mtp.first[0], name);
        expect_drafts(&runs[n], 1, &g_mtp.chained, name);
        for (uint32_t o = 0; o < n; o++)
            if (strcmp(arithmetic[o], arithmetic[n]) == 0)
                expect_same(&runs[n], &runs[o], "kernels", n);
        engine_close(&e);
        n++;
    }
    EXPECT(n >= 2);
    for (uint32_t i = 0; i < n; i++)
        sequence_free(&runs[i]);
}

static void bits_depend_on_the_arithmetic_only(void)
{
    check_families(BT_FORM_BY_ROLE);
    check_families(BT_FORM_ALL_ABSORBED);
}

static const bt_test TESTS[] = {
    BT_TEST(drafts_hold_goldens_in_every_form),  BT_TEST(chained_drafts_hold_goldens),
    BT_TEST(bits_do_not_depend_on_chunks),       BT_TEST(bits_do_not_depend_on_neighbours),
    BT_TEST(bits_do_not_depend_on_who_asks),     BT_TEST(logits_do_not_depend_on_drafts),
    BT_TEST(bits_depend_on_the_arithmetic_only),
};

int main(int argc, char **argv)
{
    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK);
    return drafts_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), g_world);
}
