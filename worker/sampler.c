#include "worker/sampler.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "device/cpu/math.h"

enum { DIGIT_BITS = 11, N_DIGITS = 3 };

size_t bt_sampler_bytes(uint32_t n_vocab)
{
    bt_sampler *s = NULL;

    return n_vocab * (sizeof(*s->adjusted) + sizeof(*s->e) + sizeof(*s->order) + sizeof(*s->spare));
}

bt_status bt_sampler_init(bt_sampler *s, const bt_cpu_row_kernels *k, uint32_t n_vocab)
{
    bt_status st = BT_OK;

    BT_ASSERT(n_vocab >= 1 && n_vocab <= BT_MAX_VOCAB);
    *s          = (bt_sampler){.k = k, .n_vocab = n_vocab};
    s->adjusted = bt_calloc(n_vocab, sizeof(*s->adjusted));
    s->e        = bt_calloc(n_vocab, sizeof(*s->e));
    s->order    = bt_calloc(n_vocab, sizeof(*s->order));
    s->spare    = bt_calloc(n_vocab, sizeof(*s->spare));
    BT_REQUIRE(s->adjusted != NULL && s->e != NULL && s->order != NULL && s->spare != NULL,
               BT_ERR_NO_MEMORY, "work space to sample from %u ids", n_vocab);
out:
    if (st != BT_OK) bt_sampler_fini(s);
    return st;
}

void bt_sampler_fini(bt_sampler *s)
{
    bt_free(s->adjusted);
    bt_free(s->e);
    bt_free(s->order);
    bt_free(s->spare);
    *s = (bt_sampler){0};
}

void bt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t c1 = c[1], c3 = c[3];

        c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

double bt_sample_uniform(const bt_sample_how *how)
{
    const uint32_t counter[4] = {how->position, how->choice, 0, 0};
    const uint32_t key[2]     = {(uint32_t)how->seed, (uint32_t)(how->seed >> 32)};
    uint32_t       words[4];

    bt_philox4x32(counter, key, words);
    return ((double)(words[0] >> 5) * 67108864.0 + (double)(words[1] >> 6)) * 0x1p-53;
}

static uint32_t block_len(uint32_t n_vocab, uint32_t first)
{
    return n_vocab - first < BT_VOCAB_BLOCK ? n_vocab - first : BT_VOCAB_BLOCK;
}

/* Rows of a vocabulary are padded with -inf in a copy where they hold a NaN, which the caller has
 * already seen to be rare: exp of -inf is +0 and adds nothing. */
static float block_exp(const bt_cpu_row_kernels *k, const float *x, uint32_t n, float scale,
                       float max, float *e)
{
    bt_bf16 rounded[BT_VOCAB_BLOCK]; /* not used: the kernel is attention's */
    float   clean[BT_VOCAB_BLOCK];
    float   sum = k->exp_row(x, n, n, scale, max, rounded, e);

    if (!isnan(sum)) return sum;
    for (uint32_t i = 0; i < n; i++)
        clean[i] = isnan(x[i]) ? -INFINITY : x[i];
    return k->exp_row(clean, n, n, scale, max, rounded, e);
}

static float sum_exp(const bt_sampler *s, const float *logits, float max)
{
    float e[BT_VOCAB_BLOCK], sum = 0;

    for (uint32_t first = 0; first < s->n_vocab; first += BT_VOCAB_BLOCK)
        sum += block_exp(s->k, logits + first, block_len(s->n_vocab, first), 1.0f, max, e);
    return sum;
}

/* ---- logprobs */

/* Puts id in its place among the n highest; equal ones stay behind those that came before. */
static uint32_t insert_top(const float *logits, uint32_t id, uint32_t n, uint32_t n_top,
                           uint32_t *ids)
{
    uint32_t at = n < n_top ? n : n_top - 1;

    if (n == n_top && logits[id] <= logits[ids[n - 1]]) return n;
    for (; at > 0 && logits[ids[at - 1]] < logits[id]; at--)
        ids[at] = ids[at - 1];
    ids[at] = id;
    return n < n_top ? n + 1 : n;
}

static uint32_t find_top(const bt_sampler *s, const float *logits, uint32_t n_top, uint32_t *ids)
{
    uint32_t n = 0;

    for (uint32_t first = 0; first < s->n_vocab && n_top > 0; first += BT_VOCAB_BLOCK) {
        uint32_t len = block_len(s->n_vocab, first);

        if (n == n_top && s->k->row_max(logits + first, len) <= logits[ids[n - 1]]) continue;
        for (uint32_t id = first; id < first + len; id++)
            if (isfinite(logits[id])) n = insert_top(logits, id, n, n_top, ids);
    }
    return n;
}

uint32_t bt_logprobs(const bt_sampler *s, const float *logits, uint32_t id, uint32_t n_top,
                     float *logprob_out, uint32_t *ids_out, float *logprobs_out)
{
    float    max = s->k->row_max(logits, s->n_vocab);
    float    log = bt_logf(sum_exp(s, logits, max));
    uint32_t n   = find_top(s, logits, n_top, ids_out);

    *logprob_out = isnan(logits[id]) ? -INFINITY : logits[id] - max - log;
    for (uint32_t i = 0; i < n; i++)
        logprobs_out[i] = logits[ids_out[i]] - max - log;
    return n;
}

/* ---- bias, penalties, bans, mask */

static bool has_penalty(const bt_sample_how *how)
{
    return how->history != NULL && how->history->n > 0;
}

static void penalise(float *logits, const bt_sample_how *how)
{
    const bt_history *h   = how->history;
    float             rep = how->repetition == 0 ? 1.0f : how->repetition;

    for (uint32_t i = 0; i < h->capacity; i++) {
        const bt_history_entry *e = &h->at[i];
        float                   x;

        if (!e->used) continue;
        x = logits[e->id];
        if (rep != 1.0f) x = x > 0 ? x / rep : x * rep;
        x -= how->frequency * (float)e->count;
        if (e->count > 0) x -= how->presence;
        logits[e->id] = x;
    }
}

/* A plain loop over a word's bits, so that compilers make it wide. */
static void mask(float *logits, uint32_t n_vocab, const uint32_t *allowed)
{
    static const uint32_t BIT[32] = {
        1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
        1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
        1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
        1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

    for (uint32_t first = 0; first < n_vocab; first += 32) {
        uint32_t n = n_vocab - first < 32 ? n_vocab - first : 32, bits = allowed[first / 32];
        float   *x = logits + first;

        if (bits == UINT32_MAX) continue;
        for (uint32_t i = 0; i < n; i++) {
            float v = x[i]; /* read in any case, so that nothing branches */

            x[i] = bits & BIT[i] ? v : -INFINITY;
        }
    }
}

static bool is_plain(const bt_sample_how *how)
{
    return how->biased.n == 0 && how->banned[0].n == 0 && how->banned[1].n == 0 &&
           !has_penalty(how) && how->allowed == NULL;
}

/* The row after bias, penalties, bans and mask: the row itself when there are none. */
static const float *adjust(const bt_sampler *s, const float *logits, const bt_sample_how *how)
{
    if (is_plain(how)) return logits;
    memcpy(s->adjusted, logits, s->n_vocab * sizeof(*logits));
    for (uint32_t i = 0; i < how->biased.n; i++)
        s->adjusted[how->biased.ids[i]] += how->biases[i];
    if (has_penalty(how)) penalise(s->adjusted, how);
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < how->banned[list].n; i++)
            s->adjusted[how->banned[list].ids[i]] = -INFINITY;
    if (how->allowed != NULL) mask(s->adjusted, s->n_vocab, how->allowed);
    return s->adjusted;
}

/* ---- draws */

/* The weights of a draw: e[id] = exp((logit - highest) / temperature), 0 below min_p. */
typedef struct {
    const float *logits;          /* adjusted */
    float        scale, top, max; /* max: the highest logit */
    uint32_t     max_block;       /* the first that has it */
    double       whole;           /* of the blocks' sums */
    float        total;           /* likewise, in fp32 */
    uint32_t     n_blocks;
    float        maxes[BT_MAX_VOCAB / BT_VOCAB_BLOCK]; /* of each block */
    float        sums[BT_MAX_VOCAB / BT_VOCAB_BLOCK];  /* of each block */
} chances;

static void fill_maxes(const bt_sampler *s, chances *c)
{
    c->max = -INFINITY;
    for (uint32_t first = 0; first < s->n_vocab; first += BT_VOCAB_BLOCK) {
        float max = s->k->row_max(c->logits + first, block_len(s->n_vocab, first));

        if (max > c->max) {
            c->max       = max;
            c->max_block = c->n_blocks;
        }
        c->maxes[c->n_blocks++] = max;
    }
}

static uint32_t highest(const chances *c)
{
    uint32_t id = c->max_block * BT_VOCAB_BLOCK;

    while (c->logits[id] != c->max)
        id++;
    return id;
}

static void fill_chances(const bt_sampler *s, const bt_sample_how *how, chances *c)
{
    for (uint32_t block = 0; block < c->n_blocks; block++) {
        uint32_t first = block * BT_VOCAB_BLOCK, len = block_len(s->n_vocab, first);
        float   *e   = s->e + first;
        float    sum = block_exp(s->k, c->logits + first, len, c->scale, c->top, e);

        if (how->min_p > 0) {
            for (uint32_t i = 0; i < len; i++)
                e[i] = e[i] >= how->min_p ? e[i] : 0;
            sum = s->k->row_sum(e, len);
        }
        c->sums[block] = sum;
        c->whole += sum;
        c->total += sum;
    }
}

/* The id at which the running sum over the vocabulary passes u times the whole sum. */
static uint32_t draw_by_id(const bt_sampler *s, const bt_sample_how *how, const chances *c)
{
    double   target = bt_sample_uniform(how) * c->whole, before = 0;
    uint32_t block = 0, first, len, last = 0;

    while (block + 1 < c->n_blocks && before + c->sums[block] <= target)
        before += c->sums[block++];
    /* Rounding can leave the target a hair past every block with a chance: walk back to one. */
    while (block > 0 && c->sums[block] == 0)
        before -= c->sums[--block];
    first = block * BT_VOCAB_BLOCK;
    len   = block_len(s->n_vocab, first);
    for (uint32_t i = first; i < first + len; i++) {
        if (s->e[i] == 0) continue;
        last = i;
        before += s->e[i];
        if (before > target) break;
    }
    return last;
}

/* Ascending keys are descending logits; all zeros, and what DAZ makes one, are equal. */
static uint64_t candidate(float logit, uint32_t id)
{
    uint32_t bits;

    memcpy(&bits, &logit, sizeof(bits));
    if ((bits & 0x7F800000u) == 0) bits = 0;
    bits = bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
    return (uint64_t)bits << 32 | id;
}

/* By key; stable, so that ids that came ascending stay so among equals.  Returns where it ended. */
static uint64_t *sort(uint64_t *from, uint64_t *to, uint32_t n)
{
    for (int digit = 0; digit < N_DIGITS; digit++) {
        int       shift                   = 32 + digit * DIGIT_BITS;
        uint32_t  starts[1 << DIGIT_BITS] = {0}, at = 0;
        uint64_t *swap = from;

        for (uint32_t i = 0; i < n; i++)
            starts[from[i] >> shift & ((1 << DIGIT_BITS) - 1)]++;
        for (uint32_t i = 0; i < 1 << DIGIT_BITS; i++) {
            uint32_t count = starts[i];

            starts[i] = at;
            at += count;
        }
        for (uint32_t i = 0; i < n; i++)
            to[starts[from[i] >> shift & ((1 << DIGIT_BITS) - 1)]++] = from[i];
        from = to;
        to   = swap;
    }
    return from;
}

/* How many of x[0..n) are t or higher.  Plain loops, so that compilers make them wide. */
static uint32_t count_from(const float *x, uint32_t n, float t)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++)
        count += x[i] >= t;
    return count;
}

/* The sum of their e, as an estimate; the exact one is taken when they are in order. */
static double mass_from(const bt_sampler *s, const float *x, const float *e, uint32_t n, float t)
{
    float kept[BT_VOCAB_BLOCK];

    for (uint32_t i = 0; i < n; i++) {
        float v = e[i]; /* read in any case, so that nothing branches */

        kept[i] = x[i] >= t ? v : 0;
    }
    return (double)s->k->row_sum(kept, n);
}

/* A logit such that those from it on up are all that is needed, and not many more: blocks without
 * one cost nothing. */
static float find_floor(const bt_sampler *s, const bt_sample_how *how, const chances *c)
{
    static const float NATS[] = {0.25f, 0.5f, 1, 1.5f, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 48};
    double             need   = (double)how->top_p * (double)c->total * 1.001;

    for (size_t i = 0; i < sizeof(NATS) / sizeof(NATS[0]); i++) {
        float    t     = c->max - NATS[i] * how->temperature;
        uint32_t count = 0;
        double   mass  = 0;

        for (uint32_t block = 0; block < c->n_blocks; block++) {
            uint32_t first = block * BT_VOCAB_BLOCK, len = block_len(s->n_vocab, first);

            if (c->maxes[block] < t) continue;
            if (how->top_k > 0)
                count += count_from(c->logits + first, len, t);
            else
                mass += mass_from(s, c->logits + first, s->e + first, len, t);
        }
        if (how->top_k > 0 ? count >= how->top_k : mass >= need) return t;
    }
    return -INFINITY;
}

/* The candidates with a logit of t or more, in order.  Ids are written in any case, so that nothing
 * branches. */
static uint64_t *gather(const bt_sampler *s, const chances *c, float t, uint32_t *n_out)
{
    uint32_t n = 0, n_kept = 0;

    for (uint32_t block = 0; block < c->n_blocks; block++) {
        uint32_t first = block * BT_VOCAB_BLOCK, len = block_len(s->n_vocab, first);

        if (c->sums[block] == 0 || c->maxes[block] < t) continue;
        for (uint32_t id = first; id < first + len; id++) {
            s->order[n] = id;
            n += c->logits[id] >= t;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)s->order[i];

        if (s->e[id] != 0) s->order[n_kept++] = candidate(c->logits[id], id);
    }
    *n_out = n_kept;
    return sort(s->order, s->spare, n_kept);
}

/* Of n candidates in order, how many top_k and top_p leave; false when top_p needs more of them. */
static bool cut(const bt_sampler *s, const bt_sample_how *how, const chances *c,
                const uint64_t *order, uint32_t *n)
{
    float total = c->total, sum = 0;

    if (how->top_k > 0) {
        if (*n > how->top_k) *n = how->top_k;
        total = 0;
        for (uint32_t i = 0; i < *n; i++)
            total += s->e[(uint32_t)order[i]];
    }
    if (how->top_p <= 0 || how->top_p >= 1) return true;
    for (uint32_t i = 0; i < *n; i++) {
        sum += s->e[(uint32_t)order[i]];
        if (sum >= how->top_p * total) {
            *n = i + 1;
            return true;
        }
    }
    return false;
}

static uint32_t draw_by_rank(const bt_sampler *s, const bt_sample_how *how, const chances *c)
{
    float     t = find_floor(s, how, c);
    uint32_t  n = 0, at = 0;
    uint64_t *order;
    double    whole = 0, target, before = 0;

    order = gather(s, c, t, &n);
    if (!cut(s, how, c, order, &n)) { /* the estimate was too low: then from all */
        order = gather(s, c, -INFINITY, &n);
        cut(s, how, c, order, &n);
    }
    for (uint32_t i = 0; i < n; i++)
        whole += s->e[(uint32_t)order[i]];
    target = bt_sample_uniform(how) * whole;
    for (; at + 1 < n; at++) {
        before += s->e[(uint32_t)order[at]];
        if (before > target) break;
    }
    return (uint32_t)order[at];
}

bool bt_sample(const bt_sampler *s, const float *logits, const bt_sample_how *how, uint32_t *id_out)
{
    chances c = {.logits = adjust(s, logits, how)};
    bool    ranked;

    fill_maxes(s, &c);
    if (!isfinite(c.max)) return false;
    if (how->temperature < BT_MIN_TEMPERATURE) {
        *id_out = highest(&c);
        return true;
    }
    c.scale = 1.0f / how->temperature;
    c.top   = c.max * c.scale;
    fill_chances(s, how, &c);
    ranked  = (how->top_k > 0 && how->top_k < s->n_vocab) || (how->top_p > 0 && how->top_p < 1);
    *id_out = ranked ? draw_by_rank(s, how, &c) : draw_by_id(s, how, &c);
    return true;
}
