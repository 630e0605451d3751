#include "cli/bench_plan.h"

#include <math.h>
#include <string.h>

#include "core/parse.h"

enum { MAX_LENGTH = 1 << 24 };

/* Which stream of random numbers. */
enum { OF_PROMPT = 1, OF_OUTPUT, OF_PREFIX, OF_GAP, OF_TOKENS, OF_SHARED };

/* ---- lengths */

static bool parse_length(const char **text, const char *ends, uint32_t *out)
{
    int64_t n;

    if (!bt_parse_whole_in(text, ends, 1, MAX_LENGTH, &n)) return false;
    *out = (uint32_t)n;
    return true;
}

static bool parse_range(const char **text, bt_lengths *out)
{
    if (!parse_length(text, "-", &out->lo) || *(*text)++ != '-') return false;
    return parse_length(text, ":", &out->hi) && out->lo <= out->hi;
}

static bool parse_zipf(const char *text, bt_lengths *out)
{
    out->kind     = BT_LENGTHS_ZIPF;
    out->exponent = 1;
    if (!parse_range(&text, out)) return false;
    if (*text == '\0') return true;
    return *text == ':' && bt_parse_real(text + 1, 1e-6, 10, &out->exponent);
}

static bool parse_list(const char *text, bt_lengths *out)
{
    out->kind = BT_LENGTHS_LIST;
    out->lo   = MAX_LENGTH;
    for (;;) {
        uint32_t *v = &out->values[out->n_values];

        if (out->n_values == BT_MAX_LENGTHS || !parse_length(&text, ",", v)) return false;
        out->n_values++;
        if (*v < out->lo) out->lo = *v;
        if (*v > out->hi) out->hi = *v;
        if (*text++ == '\0') return true;
    }
}

bool bt_lengths_parse(const char *text, bt_lengths *out)
{
    static const char ZIPF[] = "zipf:";
    bt_lengths        l      = {0};
    bool              ok;

    if (strncmp(text, ZIPF, strlen(ZIPF)) == 0) {
        ok = parse_zipf(text + strlen(ZIPF), &l);
    } else if (strchr(text, '-') != NULL) {
        l.kind = BT_LENGTHS_UNIFORM;
        ok     = parse_range(&text, &l) && *text == '\0';
    } else {
        ok = parse_list(text, &l);
    }
    if (ok) *out = l;
    return ok;
}

/* The inverse of the distribution function of a continuous power law over [lo, hi + 1), cut to
 * whole numbers. */
static double draw_zipf(const bt_lengths *l, double u)
{
    double a = l->lo, b = (double)l->hi + 1, q = 1 - l->exponent;

    if (fabs(q) < 1e-9) return a * pow(b / a, u);
    return pow(pow(a, q) + u * (pow(b, q) - pow(a, q)), 1 / q);
}

/* u in [0, 1). */
static uint32_t draw_length(const bt_lengths *l, double u)
{
    double n;

    if (l->kind == BT_LENGTHS_LIST) return l->values[(uint32_t)(u * l->n_values)];
    n = l->kind == BT_LENGTHS_ZIPF ? draw_zipf(l, u) : l->lo + u * ((double)l->hi - l->lo + 1);
    if (n < l->lo) return l->lo;
    return n >= l->hi ? l->hi : (uint32_t)n;
}

/* ---- random numbers: the finalizer of SplitMix64 over (seed, stream, request, place) */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t random_at(const bt_bench_plan *plan, uint64_t stream, uint64_t i, uint64_t place)
{
    uint64_t x = mix(plan->seed + 0x9e3779b97f4a7c15u);

    x = mix(x ^ stream * 0xd6e8feb86659fd93u);
    x = mix(x ^ i * 0x9e3779b97f4a7c15u);
    return mix(x + place * 0xbf58476d1ce4e5b9u);
}

/* [0, 1) */
static double uniform_at(const bt_bench_plan *plan, uint64_t stream, uint64_t i)
{
    return (double)(random_at(plan, stream, i, 0) >> 11) * 0x1p-53;
}

bt_bench_request bt_bench_plan_request(const bt_bench_plan *plan, uint64_t i)
{
    bt_bench_request r = {
        .n_prompt = draw_length(&plan->prompt, uniform_at(plan, OF_PROMPT, i)),
        .n_output = draw_length(&plan->output, uniform_at(plan, OF_OUTPUT, i)),
        .prefix   = (uint32_t)(random_at(plan, OF_PREFIX, i, 0) % plan->n_prefixes),
    };

    r.n_shared = (uint32_t)(plan->shared * r.n_prompt);
    return r;
}

void bt_bench_plan_prompt(const bt_bench_plan *plan, uint64_t i, const bt_bench_request *request,
                          uint32_t *ids)
{
    for (uint32_t k = 0; k < request->n_prompt; k++) {
        bool shared = k < request->n_shared;

        ids[k] = (uint32_t)(random_at(plan, shared ? OF_SHARED : OF_TOKENS,
                                      shared ? request->prefix : i, k) %
                            plan->vocab_size);
    }
}

uint64_t bt_bench_plan_gap_ns(const bt_bench_plan *plan, uint64_t i)
{
    return (uint64_t)(-log1p(-uniform_at(plan, OF_GAP, i)) / plan->rate * 1e9);
}
