/* The bf16 engine in one process against the golden outputs, by the rules of
 * tests/fixtures/README.md, over attention forms and chunk sizes; and against itself: a chunk size,
 * a thread count, a neighbour or a kernel family of the same arithmetic changes no bit. */
#include "tests/model/golden_checks.h"

static bt_world *g_world;

static const uint32_t SELF[1] = {0};

enum { SHORT_PROMPT = 256, MAX_ROWS = 2700 };

static engine_options options(void)
{
    return (engine_options){.n_threads = 2, .max_rows = MAX_ROWS, .n_pages = 64};
}

static void engine_holds_goldens_in_every_form(void)
{
    static const struct {
        bt_form_policy form;
        const char    *name;
    } forms[] = {
        {BT_FORM_BY_ROLE,      "form by role" },
        {BT_FORM_ALL_NORMAL,   "form normal"  },
        {BT_FORM_ALL_ABSORBED, "form absorbed"}
    };
    engine_options opt = options();
    engine         e;

    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    printf("  arithmetic %s\n", e.dev->arithmetic);
    for (size_t f = 0; f < 3; f++)
        for (uint32_t i = 0; i < g_goldens.n_cases; i++)
            check_case(&e, &g_goldens.cases[i], forms[f].form, 0, forms[f].name, NULL);
    engine_close(&e);
}

static void engine_bits_do_not_depend_on_chunks(void)
{
    static const uint32_t       chunks[] = {1, 7, 64, 100};
    static const bt_form_policy forms[]  = {BT_FORM_BY_ROLE, BT_FORM_ALL_NORMAL,
                                            BT_FORM_ALL_ABSORBED};
    engine_options              opt      = options();
    engine                      e;

    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    for (size_t f = 0; f < 3; f++) {
        for (uint32_t i = 0; i < g_goldens.n_cases; i++) {
            const golden_case *c     = &g_goldens.cases[i];
            sequence           whole = {.c = c, .rows_per_step = 1, .form = forms[f]};

            engine_run(&e, 1, &whole);
            for (size_t n = 0; n < 4; n++) {
                sequence s = {.c             = c,
                              .chunk         = chunks[n],
                              .rows_per_step = 1 + (uint32_t)n * 2, /* teacher-forced together */
                              .form          = forms[f]};

                if (chunks[n] < 64 && c->n_prompt > SHORT_PROMPT) continue;
                engine_run(&e, 1, &s);
                if (!sequence_equal(&g_goldens, &s, &whole)) {
                    g_failures++;
                    fprintf(stderr, "%s: chunk %u changes bits\n", c->name, chunks[n]);
                }
                sequence_free(&s);
            }
            sequence_free(&whole);
        }
    }
    engine_close(&e);
}

static void engine_bits_do_not_depend_on_neighbours(void)
{
    engine_options     opt = options();
    const golden_case *c = &g_goldens.cases[0], *other = &g_goldens.cases[1];
    sequence           alone = {.c = c, .rows_per_step = 1}, together[8];
    engine             e;

    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    engine_run(&e, 1, &alone);
    for (uint32_t i = 0; i < 8; i++) /* prompt and generated rows mix in one step */
        together[i] = (sequence){.c             = i % 2 == 0 ? c : other,
                                 .chunk         = i,
                                 .rows_per_step = 1 + i % 3,
                                 .first_step    = 3 * i,
                                 .forced        = i % 4 == 1};
    engine_run(&e, 8, together);
    for (uint32_t i = 0; i < 8; i += 2)
        EXPECT(sequence_equal(&g_goldens, &together[i], &alone));
    for (uint32_t i = 0; i < 8; i++)
        sequence_free(&together[i]);
    sequence_free(&alone);
    engine_close(&e);
}

/* In the last layer rows without logits only fill their pages: the others have the same bits,
 * whoever is beside them. */
static void engine_bits_do_not_depend_on_rows_left_out(void)
{
    engine_options     opt = options();
    const golden_case *c = &g_goldens.cases[0], *other = &g_goldens.cases[1];
    sequence           whole = {.c = c, .rows_per_step = 1}, together[6];
    engine             e;

    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    engine_run(&e, 1, &whole);
    for (uint32_t i = 0; i < 6; i++) {
        sequence bare = {.c = c, .chunk = 3 * i, .rows_per_step = 1 + i, .bare = true};

        engine_run(&e, 1, &bare);
        EXPECT(sequence_equal(&g_goldens, &bare, &whole));
        sequence_free(&bare);
        together[i] = (sequence){.c             = i % 2 == 0 ? c : other,
                                 .chunk         = 5 * i,
                                 .rows_per_step = 1 + i % 3,
                                 .first_step    = 4 * i,
                                 .bare          = i != 3};
    }
    engine_run(&e, 6, together);
    for (uint32_t i = 0; i < 6; i += 2)
        EXPECT(sequence_equal(&g_goldens, &together[i], &whole));
    for (uint32_t i = 0; i < 6; i++)
        sequence_free(&together[i]);
    sequence_free(&whole);
    engine_close(&e);
}

/* Every kernel family that this CPU has stays within the goldens, and those that name the same
 * arithmetic agree to the bit; so do one thread and three. */
static void check_families(const golden_case *c, bt_form_policy form)
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
        engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
        snprintf(arithmetic[n], sizeof(arithmetic[n]), "%s", e.dev->arithmetic);
        check_case(&e, c, form, 0, name, &runs[n]);
        for (uint32_t o = 0; o < n; o++)
            if (strcmp(arithmetic[o], arithmetic[n]) == 0)
                EXPECT(sequence_equal(&g_goldens, &runs[o], &runs[n]));
        engine_close(&e);
        n++;
    }
    EXPECT(n >= 2);
    for (uint32_t i = 0; i < n; i++)
        sequence_free(&runs[i]);
}

static void engine_bits_depend_on_the_arithmetic_only(void)
{
    for (uint32_t i = 0; i < g_goldens.n_cases; i++) {
        if (g_goldens.cases[i].n_prompt > SHORT_PROMPT) continue;
        check_families(&g_goldens.cases[i], BT_FORM_BY_ROLE);
        check_families(&g_goldens.cases[i], BT_FORM_ALL_ABSORBED);
    }
}

static const bt_test TESTS[] = {
    BT_TEST(engine_holds_goldens_in_every_form),
    BT_TEST(engine_bits_do_not_depend_on_chunks),
    BT_TEST(engine_bits_do_not_depend_on_neighbours),
    BT_TEST(engine_bits_do_not_depend_on_rows_left_out),
    BT_TEST(engine_bits_depend_on_the_arithmetic_only),
};

int main(int argc, char **argv)
{
    return goldens_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), &g_goldens, &g_world);
}
