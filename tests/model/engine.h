/* tests/model/engine.h - runs golden cases through bt_model_step on the ranks of a group.
 *
 * Every rank knows every sequence, so all derive the same rows per rank and step without asking. */
#ifndef BT_TESTS_MODEL_ENGINE_H
#define BT_TESTS_MODEL_ENGINE_H

#include "core/alloc.h"
#include "core/clock.h"
#include "device/cpu/pool.h"
#include "model/model.h"
#include "tests/model/goldens.h"

enum { MAX_RANKS = 8, MAX_SPANS = 32 };

typedef struct step_buffers step_buffers;

typedef struct engine {
    const goldens *g;
    bt_device     *dev;
    bt_group      *group;
    bt_placement   placement;
    bt_model      *model;
    bt_kv_pool    *pool;
    uint32_t       n_ranks, self, max_rows;
    void (*drafts)(const struct engine *e, step_buffers *b); /* after each step, where the layer for
                                                                multi-token prediction is served */
} engine;

typedef struct {
    const char     *kernels; /* NULL: auto */
    uint32_t        n_threads;
    uint32_t        max_rows, n_pages;
    const uint16_t *owner; /* [n_experts] or NULL: the default placement */
    uint32_t        tag_space;
} engine_options;

typedef struct {
    const golden_case *c;
    uint32_t           rank;          /* of the group: where its rows are */
    uint32_t           first_step;    /* it waits until then */
    uint32_t           chunk;         /* prompt rows a step; 0: whole */
    uint32_t           rows_per_step; /* generated rows a step, teacher-forced */
    bt_form_policy     form;          /* by role, all normal or all absorbed */
    bool               forced;        /* routing replay of the case's experts */
    bool               bare; /* some logits and no experts, so that rows end in the last layer; in a
                                step with others on its rank they do not */

    uint32_t draft_every; /* 0: no row asks for the logits of its draft */
    bool     chained;     /* instead, the last row of a step asks, and once more behind it */

    float    *logits;       /* out, on its rank: [c->n_rows][vocab] */
    uint16_t *experts;      /* out, on its rank: [n_moe][n_tokens][top_k] */
    float    *drafts[2];    /* out, on its rank: [n_tokens][vocab], first and chained ones, where
                               the engine makes them */
    bool       *drafted[2]; /* out: [n_tokens], whether there is such a one */
    uint32_t    position;
    uint32_t    n_pages;
    bt_page_id *pages;
} sequence;

/* A test of another back end says how it is made. */
#ifndef ENGINE_DEVICE
#define ENGINE_DEVICE(opt, dev_out) bt_device_cpu_create((opt), (dev_out))
#endif
/* And by what its memory travels. */
#ifndef ENGINE_CONNECT
#define ENGINE_CONNECT(dev, group) ((void)(dev), (void)(group))
#endif

static inline void engine_open(engine *e, const goldens *g, bt_world *world, uint32_t n_ranks,
                               const uint32_t *ranks, const engine_options *opt)
{
    bt_device_cpu_options dev_opt = {.n_threads = opt->n_threads,
                                     .kernels   = opt->kernels != NULL ? opt->kernels : "auto"};
    const bt_gate_config *gate    = &g->cfg.moe.gate;
    const bt_mla_config  *mla     = &g->cfg.mla;
    bt_kv_pool_config     pool    = {.n_layers = bt_model_n_served_layers(&g->cfg),
                                     .n_pages  = opt->n_pages,
                                     .kv_dim   = bt_mla_kv_dim(mla)};
    bt_model_options      m_opt   = {.max_rows       = opt->max_rows,
                                     .max_logit_rows = opt->max_rows,
                                     .normal         = true,
                                     .absorbed       = true};

    memset(e, 0, sizeof(*e));
    e->g        = g;
    e->n_ranks  = n_ranks;
    e->max_rows = opt->max_rows;
    NEED(ENGINE_DEVICE(&dev_opt, &e->dev) == BT_OK);
    NEED(bt_group_create(world, n_ranks, ranks, opt->tag_space, 1, &e->group) == BT_OK);
    e->self = bt_group_self(e->group);
    ENGINE_CONNECT(e->dev, e->group);
    if (gate->n_experts != 0) {
        NEED(bt_placement_init(&e->placement, gate->n_experts, gate->n_groups, n_ranks) == BT_OK);
        if (opt->owner != NULL)
            memcpy(e->placement.owner, opt->owner, gate->n_experts * sizeof(*opt->owner));
        m_opt.placement = &e->placement;
    }
    m_opt.dev      = e->dev;
    m_opt.group    = e->group;
    m_opt.few_rows = e->self % 2 != 0; /* not for all ranks the same: no bit depends on it */
    NEED(bt_model_load(&g->cfg, g->weights, &m_opt, &e->model) == BT_OK);
    NEED(bt_kv_pool_create(e->dev, &pool, &e->pool) == BT_OK);
}

static inline void engine_close(engine *e)
{
    bt_kv_pool_destroy(e->pool);
    bt_model_destroy(e->model);
    bt_placement_fini(&e->placement);
    bt_group_destroy(e->group);
    bt_device_destroy(e->dev);
}

/* That this rank's experts have run, over all of them. */
static inline uint64_t engine_expert_rows(const engine *e)
{
    const uint64_t *rows = bt_model_expert_rows(e->model);
    uint64_t        sum  = 0;

    NEED(rows != NULL);
    for (uint32_t i = 0; i < e->g->cfg.moe.gate.n_experts; i++)
        sum += rows[i];
    return sum;
}

/* The engine goes on among the taken seats of n_seats, which are the ranks of their numbers. */
static inline void engine_sit_down(engine *e, bt_world *world, uint32_t n_seats, const bool *taken,
                                   uint32_t tag_space, uint32_t epoch)
{
    const bt_gate_config *gate = &e->g->cfg.moe.gate;
    bt_model_options      opt  = {.dev = e->dev, .placement = &e->placement};
    uint32_t              ranks[MAX_RANKS];

    bt_placement_fini(&e->placement);
    bt_model_leave_group(e->model);
    bt_group_destroy(e->group);
    e->n_ranks = 0;
    for (uint32_t r = 0; r < n_seats; r++)
        if (taken[r]) ranks[e->n_ranks++] = r;
    NEED(bt_group_create(world, e->n_ranks, ranks, tag_space, epoch, &e->group) == BT_OK);
    NEED(bt_placement_of_seats(&e->placement, gate->n_experts, gate->n_groups, n_seats, taken) ==
         BT_OK);
    e->self   = bt_group_self(e->group);
    opt.group = e->group;
    NEED(bt_model_regroup(e->model, e->g->weights, &opt) == BT_OK);
}

static inline bool wants_logits(const sequence *s, uint32_t position)
{
    return position >= s->c->first_position && (!s->bare || position % 3 == 1);
}

/* Whether the row at `position` asks for the logits of its draft, if it is not the last of all, of
 * which nobody knows what follows. */
static inline bool wants_draft(const sequence *s, uint32_t position, bool last_of_step)
{
    if (position + 1 == s->c->n_tokens) return false;
    return s->chained ? last_of_step : s->draft_every != 0 && position % s->draft_every == 0;
}

/* And of the draft behind that one. */
static inline bool wants_chained(const sequence *s, uint32_t position, bool last_of_step)
{
    return s->chained && last_of_step && position + 2 < s->c->n_tokens;
}

/* Rows that the sequence brings to this step, and their role. */
static inline uint32_t rows_now(const sequence *s, uint32_t step, bt_role *role_out)
{
    uint32_t left = s->c->n_tokens - s->position, most = s->rows_per_step;

    *role_out = BT_ROLE_GENERATED;
    if (step < s->first_step) return 0;
    if (s->position < s->c->n_prompt) {
        *role_out = BT_ROLE_PROMPT;
        left      = s->c->n_prompt - s->position;
        most      = s->chunk != 0 ? s->chunk : left;
    }
    return left < most ? left : most;
}

static inline bt_attn_form form_of(bt_form_policy policy, bt_role role)
{
    if (policy == BT_FORM_BY_ROLE)
        return role == BT_ROLE_PROMPT ? BT_FORM_NORMAL : BT_FORM_ABSORBED;
    return policy == BT_FORM_ALL_NORMAL ? BT_FORM_NORMAL : BT_FORM_ABSORBED;
}

/* One rank's part of a step, in buffers that live for the whole run. */
struct step_buffers {
    uint32_t *tokens, *logit_rows;
    uint16_t *forced, *chosen; /* [n_moe][n_rows][top_k] */
    float    *logits;
    bt_span   spans[MAX_SPANS];
    sequence *owner[MAX_SPANS];
    uint32_t  n_rows, n_spans, n_logit_rows;
    uint32_t  rows[MAX_RANKS][BT_N_ROLES], last_rows[MAX_RANKS][BT_N_ROLES];
    bool      bare[MAX_RANKS];                  /* all sequences of the rank's rows are */
    uint32_t  drafts[2][MAX_RANKS][BT_N_ROLES]; /* rows with logits of the drafts */
    bool      chains;                           /* a second draft follows the first */
};

static inline void add_span(const engine *e, step_buffers *b, sequence *s, uint32_t n, bt_role role)
{
    NEED(b->n_spans < MAX_SPANS && b->n_rows + n <= e->max_rows);
    b->owner[b->n_spans]   = s;
    b->spans[b->n_spans++] = (bt_span){.pages     = s->pages,
                                       .first_row = b->n_rows,
                                       .n_rows    = n,
                                       .start     = s->position,
                                       .role      = role,
                                       .form      = form_of(s->form, role)};
    for (uint32_t i = 0; i < n; i++) {
        b->tokens[b->n_rows + i] = s->c->ids[s->position + i];
        if (wants_logits(s, s->position + i)) b->logit_rows[b->n_logit_rows++] = b->n_rows + i;
    }
    b->n_rows += n;
}

/* Copies experts between a case's [n_moe][n_tokens][k] and the step's [n_moe][n_rows][k]. */
static inline void copy_routing(const engine *e, const step_buffers *b, bool into_step)
{
    uint32_t k = e->g->cfg.moe.gate.top_k;

    for (uint32_t i = 0; i < b->n_spans; i++) {
        const sequence *s    = b->owner[i];
        const bt_span  *span = &b->spans[i];

        for (uint32_t layer = 0; layer < e->g->n_moe; layer++) {
            size_t there = ((size_t)layer * s->c->n_tokens + span->start) * k;
            size_t here  = ((size_t)layer * b->n_rows + span->first_row) * k;
            size_t bytes = (size_t)span->n_rows * k * sizeof(uint16_t);

            if (!into_step)
                memcpy(s->experts + there, b->chosen + here, bytes);
            else if (s->forced)
                memcpy(b->forced + here, s->c->experts + there, bytes);
            else
                memset(b->forced + here, 0xff, bytes);
        }
    }
}

static inline void take_logits(const engine *e, const step_buffers *b)
{
    uint32_t vocab = e->g->cfg.vocab_size, at = 0;

    for (uint32_t i = 0; i < b->n_spans; i++) {
        const sequence *s    = b->owner[i];
        const bt_span  *span = &b->spans[i];

        for (uint32_t p = span->start; p < span->start + span->n_rows; p++)
            if (wants_logits(s, p))
                memcpy(s->logits + (size_t)(p - s->c->first_position) * vocab,
                       b->logits + (size_t)at++ * vocab, vocab * sizeof(float));
    }
    NEED(at == b->n_logit_rows);
}

static inline void run_step(engine *e, step_buffers *b)
{
    bool    bare = b->bare[e->self];
    bt_step step = {
        .n_rows       = b->n_rows,
        .tokens       = b->tokens,
        .n_spans      = b->n_spans,
        .spans        = b->spans,
        .group_rows   = {.n_ranks = e->n_ranks, .n_rows = (const uint32_t(*)[BT_N_ROLES])b->rows},
        .n_logit_rows = b->n_logit_rows,
        .logit_rows   = b->logit_rows,
        .logits       = b->logits,
        .forced       = bare ? NULL : b->forced,
        .chosen       = bare ? NULL : b->chosen,
        .wait         = { .timeout_ns = 30 * BT_NS_PER_S,       .what = "test",                                      .layer = -1}
    };

    if (!e->g->cfg.mtp) /* else all rows are wanted behind the last layer */
        step.last_rows = (bt_step_rows){.n_ranks = e->n_ranks,
                                        .n_rows  = (const uint32_t(*)[BT_N_ROLES])b->last_rows};
    if (!bare) copy_routing(e, b, true);
    bt_alloc_fail_at(0); /* a step allocates nothing */
    NEED(bt_model_step(e->model, e->pool, &step) == BT_OK);
    bt_alloc_fail_at(-1);
    if (!bare) copy_routing(e, b, false);
    take_logits(e, b);
}

/* Counts what the rows of a sequence, of which there are n, ask for on its rank. */
static inline void count_rows(const sequence *s, uint32_t n, bt_role role, step_buffers *b)
{
    uint32_t rank = s->rank;

    b->rows[rank][role] += n;
    b->chains = b->chains || s->chained;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t p = s->position + r;

        b->last_rows[rank][role] += !b->bare[rank] || wants_logits(s, p);
        b->drafts[0][rank][role] += wants_draft(s, p, r + 1 == n);
        b->drafts[1][rank][role] += wants_chained(s, p, r + 1 == n);
    }
}

/* Builds this rank's rows, prompt rows first, and every rank's counts; moves all sequences on.
 * Returns the rows of all ranks. */
static inline uint32_t plan_step(const engine *e, uint32_t step, uint32_t n, sequence *seqs,
                                 step_buffers *b)
{
    uint32_t total = 0;

    b->n_rows = b->n_spans = b->n_logit_rows = 0;
    memset(b->rows, 0, sizeof(b->rows));
    memset(b->last_rows, 0, sizeof(b->last_rows));
    memset(b->bare, true, sizeof(b->bare));
    memset(b->drafts, 0, sizeof(b->drafts));
    b->chains = false;
    for (uint32_t i = 0; i < n; i++) {
        bt_role its;

        if (!seqs[i].bare && rows_now(&seqs[i], step, &its) != 0) b->bare[seqs[i].rank] = false;
    }
    for (int role = 0; role < BT_N_ROLES; role++) {
        for (uint32_t i = 0; i < n; i++) {
            bt_role  its;
            uint32_t n_rows = rows_now(&seqs[i], step, &its);

            if (n_rows == 0 || its != (bt_role)role) continue;
            count_rows(&seqs[i], n_rows, its, b);
            total += n_rows;
            if (seqs[i].rank == e->self) add_span(e, b, &seqs[i], n_rows, its);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        bt_role its;

        seqs[i].position += rows_now(&seqs[i], step, &its);
    }
    return total;
}

static inline bool unfinished(uint32_t n, const sequence *seqs)
{
    for (uint32_t i = 0; i < n; i++)
        if (seqs[i].position < seqs[i].c->n_tokens) return true;
    return false;
}

/* Collective over the engine's group.  Runs all sequences to their ends. */
static inline void engine_run(engine *e, uint32_t n, sequence *seqs)
{
    const bt_model_config *cfg    = &e->g->cfg;
    size_t                 routes = (size_t)e->g->n_moe * e->max_rows * cfg->moe.gate.top_k;
    step_buffers           b      = {.n_rows = 0};

    b.tokens     = malloc(e->max_rows * sizeof(*b.tokens));
    b.logit_rows = malloc(e->max_rows * sizeof(*b.logit_rows));
    b.forced     = malloc(routes * sizeof(*b.forced));
    b.chosen     = malloc(routes * sizeof(*b.chosen));
    b.logits     = malloc((size_t)e->max_rows * cfg->vocab_size * sizeof(*b.logits));
    NEED(b.tokens && b.logit_rows && b.forced && b.chosen && b.logits && e->n_ranks <= MAX_RANKS);
    for (uint32_t i = 0; i < n; i++) {
        sequence *s = &seqs[i];

        s->position = 0;
        s->n_pages  = bt_kv_pages_for(s->c->n_tokens);
        s->pages    = malloc(s->n_pages * sizeof(*s->pages));
        s->logits   = calloc((size_t)s->c->n_rows * cfg->vocab_size, sizeof(*s->logits));
        s->experts =
            calloc((size_t)e->g->n_moe * s->c->n_tokens * cfg->moe.gate.top_k, sizeof(*s->experts));
        NEED(s->pages && s->logits && s->experts);
        for (int round = 0; round < 2 && e->drafts != NULL; round++) {
            s->drafts[round]  = calloc((size_t)s->c->n_tokens * cfg->vocab_size, sizeof(float));
            s->drafted[round] = calloc(s->c->n_tokens, sizeof(bool));
            NEED(s->drafts[round] && s->drafted[round]);
        }
        if (s->rank == e->self) NEED(bt_kv_pool_acquire(e->pool, s->n_pages, s->pages) == BT_OK);
    }
    for (uint32_t step = 0; unfinished(n, seqs); step++) {
        if (plan_step(e, step, n, seqs, &b) == 0) continue;
        run_step(e, &b);
        if (e->drafts != NULL) e->drafts(e, &b);
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = 0; p < seqs[i].n_pages && seqs[i].rank == e->self; p++)
            bt_kv_pool_release(e->pool, seqs[i].pages[p]);
    NEED(bt_kv_pool_check(e->pool) == BT_OK);
    free(b.tokens);
    free(b.logit_rows);
    free(b.forced);
    free(b.chosen);
    free(b.logits);
}

static inline void sequence_free(sequence *s)
{
    free(s->pages);
    free(s->logits);
    free(s->experts);
    for (int round = 0; round < 2; round++) {
        free(s->drafts[round]);
        free(s->drafted[round]);
        s->drafts[round]  = NULL;
        s->drafted[round] = NULL;
    }
    s->pages   = NULL;
    s->logits  = NULL;
    s->experts = NULL;
}

/* Same bits, logits and experts, as far as both have them. */
static inline bool sequence_equal(const goldens *g, const sequence *a, const sequence *b)
{
    size_t k     = (size_t)g->n_moe * a->c->n_tokens * g->cfg.moe.gate.top_k;
    size_t vocab = g->cfg.vocab_size;

    for (uint32_t row = 0; row < a->c->n_rows; row++) {
        uint32_t p = a->c->first_position + row;

        if (wants_logits(a, p) && wants_logits(b, p) &&
            memcmp(a->logits + row * vocab, b->logits + row * vocab, vocab * sizeof(float)) != 0)
            return false;
    }
    return a->bare || b->bare || memcmp(a->experts, b->experts, k * sizeof(uint16_t)) == 0;
}

/* The main() of a test on a model's goldens.  usage: mpiexec -n 1 PROGRAM MODEL [test] */
static inline int goldens_main(int argc, char **argv, const bt_test *tests, size_t n_tests,
                               goldens *g, bt_world **world)
{
    int rc;

    bt_cpu_flush_denormals();
    bt_log_init("test", BT_LOG_WARN);
    NEED(bt_world_init(&argc, &argv, world) == BT_OK && argc >= 2);
    goldens_open(g, argv[1]);
    rc = bt_run_tests(tests, n_tests, argc > 2 ? argv[2] : NULL);
    goldens_close(g);
    bt_world_fini(*world);
    return rc;
}

#endif
