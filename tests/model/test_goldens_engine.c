/* The bf16 engine in one process against the golden outputs, by the rules of
 * tests/fixtures/README.md, over attention forms and chunk sizes; and against itself: a chunk size,
 * a thread count, a neighbour or a kernel family of the same arithmetic changes no bit. */
#include "tests/model/engine.h"

static bt_world *g_world;
static goldens   g_goldens;

static const uint32_t SELF[1] = {0};

enum { SHORT_PROMPT = 256, MAX_ROWS = 2700 };

static engine_options options(void)
{
    return (engine_options){.n_threads = 2, .max_rows = MAX_ROWS, .n_pages = 64};
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Whether position p saw another expert than the golden run in some layer. */
static bool rerouted(const sequence *s, uint32_t p)
{
    size_t k = g_goldens.cfg.moe.gate.top_k;

    for (uint32_t layer = 0; layer < g_goldens.n_moe; layer++) {
        size_t at = ((size_t)layer * s->c->n_tokens + p) * k;

        if (memcmp(s->experts + at, s->c->experts + at, k * sizeof(uint16_t)) != 0) return true;
    }
    return false;
}

/* The greedy token wherever the golden gap is wider than four times the row's error, save in rows
 * that saw another expert: what that moves is no rounding, and may all lie in the best tokens.
 * Returns how many rows were held to it. */
static uint32_t expect_greedy(const sequence *s, const char *route)
{
    uint32_t vocab = g_goldens.cfg.vocab_size, n_held = 0;

    for (uint32_t r = 0; r < s->c->n_rows; r++) {
        const float *want = s->c->logits + (size_t)r * vocab, *got = s->logits + (size_t)r * vocab;
        uint32_t     best = argmax(want, vocab), mine = argmax(got, vocab);
        double       error  = rms_difference(got, want, vocab);
        float        second = -INFINITY;

        for (uint32_t i = 0; i < vocab; i++)
            if (i != best && want[i] > second) second = want[i];
        if (!((double)(want[best] - second) > 4 * error)) continue;
        if (rerouted(s, s->c->first_position + r)) continue;
        n_held++;
        if (mine == best) continue;
        g_failures++;
        fprintf(stderr, "%s %s: position %u takes token %u (%.4f), want %u (%.4f); error %.4f\n",
                s->c->name, route, s->c->first_position + r, mine, (double)got[mine], best,
                (double)got[best], error);
    }
    EXPECT(n_held > s->c->n_rows / 2);
    return n_held;
}

/* Forced routing: rounding alone. */
static void expect_forced(const sequence *s, const char *route)
{
    const golden_case *c     = s->c;
    size_t             n     = (size_t)c->n_rows * g_goldens.cfg.vocab_size;
    double             error = rms_difference(s->logits, c->logits, n);

    printf("  %-6s %-14s forced: rms error %.4f, %.2f of bf16's; %u of %u greedy tokens held\n",
           c->name, route, error, error / c->forced_rms_error, expect_greedy(s, route), c->n_rows);
    for (uint32_t p = 0; p < c->n_tokens; p++)
        EXPECT(!rerouted(s, p));
    if (!(error <= 1.5 * c->forced_rms_error)) {
        g_failures++;
        fprintf(stderr, "%s %s: rms error %.5f with forced routing, at most 1.5 x %.5f\n", c->name,
                route, error, c->forced_rms_error);
    }
}

/* Free routing: the median row, and how many rows were routed elsewhere. */
static void expect_free(const sequence *s, const char *route)
{
    const golden_case *c     = s->c;
    uint32_t           vocab = g_goldens.cfg.vocab_size, n_moved = 0;
    uint32_t           most_moved = 2 * c->rows_rerouted > 3 ? 2 * c->rows_rerouted : 3;
    double            *errors     = malloc(c->n_rows * sizeof(*errors)), median;

    NEED(errors != NULL);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        errors[r] =
            rms_difference(s->logits + (size_t)r * vocab, c->logits + (size_t)r * vocab, vocab);
        n_moved += rerouted(s, c->first_position + r);
    }
    qsort(errors, c->n_rows, sizeof(*errors), compare_doubles);
    median = (errors[(c->n_rows - 1) / 2] + errors[c->n_rows / 2]) / 2;
    printf("  %-6s %-14s free: median row %.4f, %.2f of bf16's; %u rows rerouted, at most %u; "
           "%u of %u greedy tokens held\n",
           c->name, route, median, median / c->median_row_error, n_moved, most_moved,
           expect_greedy(s, route), c->n_rows);
    EXPECT(n_moved <= most_moved);
    if (!(median <= 1.5 * c->median_row_error)) {
        g_failures++;
        fprintf(stderr, "%s %s: median row error %.5f, at most 1.5 x %.5f\n", c->name, route,
                median, c->median_row_error);
    }
    free(errors);
}

/* Runs a case twice, forced and free, checks both; *kept_out (or NULL) gets the free run. */
static void check_case(engine *e, const golden_case *c, bt_form_policy form, uint32_t chunk,
                       const char *route, sequence *kept_out)
{
    sequence s = {.c = c, .chunk = chunk, .rows_per_step = 1, .form = form, .forced = true};

    engine_run(e, 1, &s);
    expect_forced(&s, route);
    sequence_free(&s);
    s.forced = false;
    engine_run(e, 1, &s);
    expect_free(&s, route);
    if (kept_out != NULL)
        *kept_out = s;
    else
        sequence_free(&s);
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
    BT_TEST(engine_bits_depend_on_the_arithmetic_only),
};

/* usage: mpiexec -n 1 test_goldens_engine MODEL [test] */
int main(int argc, char **argv)
{
    int rc;

    bt_log_init("test", BT_LOG_WARN);
    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK && argc >= 2);
    goldens_open(&g_goldens, argv[1]);
    rc = BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
    goldens_close(&g_goldens);
    bt_world_fini(g_world);
    return rc;
}
