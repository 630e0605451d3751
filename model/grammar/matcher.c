#include "model/grammar/matcher.h"

#include <string.h>

#include "core/alloc.h"
#include "model/grammar/states.h"
#include "model/grammar/tokens.h"

enum {
    N_MASKS      = 64,     /* that are kept */
    READING_WORK = 16,     /* of following one, where looking at an edge is 1 */
    STEP_WORK    = 1 << 26 /* for a text */
};

typedef struct {
    uint32_t  state; /* BT_STATE_DEAD: none */
    uint32_t *bits;  /* owned, or NULL */
} kept_mask;

struct bt_matcher {
    bt_grammar          *grammar; /* owned */
    const bt_token_list *list;    /* borrowed */
    bt_states            states;
    bt_follow            follow;
    uint32_t             start;
    uint8_t              byte_of[256];                 /* one of each class */
    uint32_t             path[BT_TOKEN_BYTES_MAX + 1]; /* states along a token */
    kept_mask            masks[N_MASKS];
    uint32_t             next_mask;       /* the one to go */
    uint32_t             n_kept;          /* that have memory */
    size_t               work, most_work; /* for the mask or text under way */
    size_t               bytes_least;     /* after the last trim */
};

bt_status bt_matcher_create(bt_grammar *grammar, const bt_token_list *list,
                            bt_matcher **matcher_out)
{
    bt_status   st = BT_OK;
    bt_matcher *m  = bt_calloc(1, sizeof(*m));

    BT_REQUIRE(m != NULL, BT_ERR_NO_MEMORY, "a matcher");
    m->list = list;
    for (uint32_t b = 256; b-- > 0;)
        m->byte_of[grammar->class_of[b]] = (uint8_t)b;
    BT_TRY(bt_states_init(&m->states, grammar->n_classes));
    BT_TRY(bt_follow_add(&m->follow, (bt_reading){grammar->start, 0}));
    BT_TRY(bt_follow_end(&m->follow, grammar, &m->states, &m->start));
    m->grammar   = grammar;
    *matcher_out = m;
    m            = NULL; /* handed over */
out:
    bt_matcher_destroy(m);
    return st;
}

static void forget_masks(bt_matcher *m)
{
    for (int i = 0; i < N_MASKS; i++) {
        bt_free(m->masks[i].bits);
        m->masks[i] = (kept_mask){0};
    }
    m->n_kept = 0;
}

void bt_matcher_destroy(bt_matcher *m)
{
    if (m == NULL) return;
    forget_masks(m);
    bt_states_fini(&m->states);
    bt_follow_fini(&m->follow);
    bt_grammar_destroy(m->grammar);
    bt_free(m);
}

uint32_t bt_matcher_start(const bt_matcher *m) { return m->start; }

bool bt_matcher_accepts(const bt_matcher *m, uint32_t state)
{
    return m->states.states[state].accepts;
}

/* ---- steps */

/* What the state comes to with a byte of the class. */
static bt_status make_step(bt_matcher *m, uint32_t state, uint32_t class, uint32_t *next_out)
{
    bt_status              st   = BT_OK;
    const bt_grammar_state from = m->states.states[state];
    uint8_t                byte = m->byte_of[class];

    bt_follow_begin(&m->follow);
    for (uint32_t i = 0; i < from.n; i++) {
        bt_reading r = m->states.readings[from.first + i];

        m->work += m->grammar->first[r.node + 1] - m->grammar->first[r.node];
        for (uint32_t k = m->grammar->first[r.node]; k < m->grammar->first[r.node + 1]; k++) {
            const bt_grammar_edge *e = &m->grammar->edges[k];

            if (e->kind == BT_EDGE_BYTES && e->lo <= byte && byte <= e->hi)
                BT_TRY(bt_follow_add(&m->follow, (bt_reading){e->to, r.frame}));
        }
    }
    BT_TRY(bt_follow_end(&m->follow, m->grammar, &m->states, next_out));
    m->states.steps[(size_t)state * m->states.n_classes + class] = *next_out;
    m->work += READING_WORK * m->follow.seen_table.n + m->follow.n_edges;
    if (bt_matcher_bytes(m) > BT_MATCHER_MOST_BYTES || m->work > m->most_work)
        st = BT_ERR_UNSUPPORTED;
out:
    return st;
}

static inline bt_status step(bt_matcher *m, uint32_t state, uint8_t byte, uint32_t *next_out)
{
    uint32_t class = m->grammar->class_of[byte];
    uint32_t next  = m->states.steps[(size_t)state * m->states.n_classes + class];

    if (next == BT_STEP_UNKNOWN) return make_step(m, state, class, next_out);
    *next_out = next;
    return BT_OK;
}

bt_status bt_matcher_step(bt_matcher *m, uint32_t state, const char *bytes, size_t n,
                          uint32_t *state_out)
{
    bt_status st = BT_OK;

    m->work      = 0;
    m->most_work = STEP_WORK;
    for (size_t i = 0; i < n && state != BT_STATE_DEAD; i++)
        BT_TRY(step(m, state, (uint8_t)bytes[i], &state));
    *state_out = state;
out:
    return st;
}

size_t bt_matcher_work(const bt_matcher *m) { return m->work; }

bt_status bt_matcher_step_token(bt_matcher *m, uint32_t state, uint32_t id, uint32_t *state_out)
{
    const bt_token_text *t = id < m->list->n_ids ? &m->list->texts[id] : NULL;

    *state_out = BT_STATE_DEAD;
    return t == NULL || t->n == 0
               ? BT_OK
               : bt_matcher_step(m, state, m->list->bytes + t->at, t->n, state_out);
}

/* ---- masks */

/* The group's tokens, one by one.  m->path has the states along the nodes above the one that is
 * looked at. */
static bt_status walk(bt_matcher *m, uint32_t group, uint32_t *bits)
{
    bt_status            st   = BT_OK;
    const bt_token_list *list = m->list;
    uint32_t             end  = list->first_node[group + 1];

    for (uint32_t i = list->first_node[group]; i < end;) {
        const bt_token_node *node = &list->nodes[i];
        uint32_t             to;

        BT_TRY(step(m, m->path[node->depth - 1], node->byte, &to));
        if (to == BT_STATE_DEAD) { /* nor do those below it */
            i = node->next;
            continue;
        }
        m->path[node->depth] = to;
        if (node->id != BT_NOT_A_TOKEN) bt_mask_add(bits, node->id);
        i++;
    }
out:
    return st;
}

/* Some states; more than fit are as good as none of use. */
typedef struct {
    uint32_t at[16], n;
    bool     dead, full;
} few_states;

static void add_state(few_states *s, uint32_t state)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->at[i] == state) return;
    if (state == BT_STATE_DEAD)
        s->dead = true;
    else if (s->n == sizeof(s->at) / sizeof(s->at[0]))
        s->full = true;
    else
        s->at[s->n++] = state;
}

/* Adds what the states come to with each byte of lo..hi.  Classes are ranges of bytes. */
static bt_status add_steps(bt_matcher *m, const few_states *from, uint8_t lo, uint8_t hi,
                           few_states *to)
{
    bt_status      st       = BT_OK;
    const uint8_t *class_of = m->grammar->class_of;
    uint32_t       next;

    for (uint32_t i = 0; i < from->n; i++)
        for (uint32_t class = class_of[lo]; class <= class_of[hi] && !to->dead && !to->full;
             class ++) {
            BT_TRY(step(m, from->at[i], m->byte_of[class], &next));
            add_state(to, next);
        }
out:
    return st;
}

/* What the states come to with each character of a plain group. */
static bt_status add_plain_char(bt_matcher *m, const few_states *from, few_states *to)
{
    static const struct {
        uint32_t n;
        uint8_t  bytes[4][2];
    } CHARS[] = {
        {1, {{0x20, 0x21}}                                          },
        {1, {{0x23, 0x5B}}                                          },
        {1, {{0x5D, 0x7F}}                                          },
        {2, {{0xC2, 0xDF}, {0x80, 0xBF}}                            },
        {3, {{0xE0, 0xE0}, {0xA0, 0xBF}, {0x80, 0xBF}}              },
        {3, {{0xE1, 0xEC}, {0x80, 0xBF}, {0x80, 0xBF}}              },
        {3, {{0xED, 0xED}, {0x80, 0x9F}, {0x80, 0xBF}}              },
        {3, {{0xEE, 0xEF}, {0x80, 0xBF}, {0x80, 0xBF}}              },
        {4, {{0xF0, 0xF0}, {0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}},
        {4, {{0xF1, 0xF3}, {0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}},
        {4, {{0xF4, 0xF4}, {0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}}},
    };
    bt_status st = BT_OK;

    for (size_t c = 0; c < sizeof(CHARS) / sizeof(CHARS[0]) && !to->dead && !to->full; c++) {
        few_states at = *from;

        for (uint32_t i = 0; i < CHARS[c].n; i++) {
            few_states next = {0};

            BT_TRY(add_steps(m, &at, CHARS[c].bytes[i][0], CHARS[c].bytes[i][1], &next));
            at = next;
            if (at.dead || at.full) break;
        }
        for (uint32_t i = 0; i < at.n; i++)
            add_state(to, at.at[i]);
        to->dead = to->dead || at.dead;
        to->full = to->full || at.full;
    }
out:
    return st;
}

static bool are_same(const few_states *a, const few_states *b)
{
    return a->n == b->n && memcmp(a->at, b->at, a->n * sizeof(a->at[0])) == 0;
}

/* So many characters of the plain groups may follow, whichever they are; up to those of the last
 * group. */
static bt_status count_plain(bt_matcher *m, uint32_t state, uint32_t *n_out)
{
    bt_status  st   = BT_OK;
    uint32_t   most = bt_plain_chars(BT_PLAIN_GROUPS - 1);
    few_states at   = {.at = {state}, .n = 1};

    for (*n_out = 0; *n_out < most; ++*n_out) {
        few_states next = {0};

        BT_TRY(add_plain_char(m, &at, &next));
        if (next.dead || next.full) break;
        if (are_same(&at, &next)) *n_out = most - 1;
        at = next;
    }
out:
    return st;
}

static bt_status make_mask(bt_matcher *m, uint32_t state, uint32_t *bits)
{
    bt_status            st      = BT_OK;
    const bt_token_list *list    = m->list;
    uint32_t             n_chars = 0;

    m->path[0] = state;
    m->work    = 0;
    BT_TRY(count_plain(m, state, &n_chars));
    for (uint32_t group = 0; group < BT_TOKEN_GROUPS; group++)
        if (group < BT_PLAIN_GROUPS && n_chars >= bt_plain_chars(group))
            for (uint32_t word = 0; word < bt_mask_words(list->n_ids); word++)
                bits[word] |= list->plain[group][word];
        else
            BT_TRY(walk(m, group, bits));
    for (uint32_t i = 0; i < list->n_same; i++)
        if (bt_mask_has(bits, list->same[i][1])) bt_mask_add(bits, list->same[i][0]);
out:
    return st;
}

bt_status bt_matcher_mask(bt_matcher *m, uint32_t state, size_t most_work, uint32_t *bits)
{
    bt_status  st    = BT_OK;
    size_t     bytes = bt_mask_words(m->list->n_ids) * sizeof(*bits);
    kept_mask *kept  = &m->masks[m->next_mask];

    for (int i = 0; i < N_MASKS && state != BT_STATE_DEAD; i++)
        if (m->masks[i].state == state) {
            memcpy(bits, m->masks[i].bits, bytes);
            return BT_OK;
        }
    memset(bits, 0, bytes);
    if (state == BT_STATE_DEAD) return BT_OK;
    m->most_work = most_work;
    BT_TRY(make_mask(m, state, bits));
    if (kept->bits == NULL) {
        kept->bits = bt_calloc(bytes, 1);
        BT_REQUIRE(kept->bits != NULL, BT_ERR_NO_MEMORY, "a mask of %u tokens", m->list->n_ids);
        m->n_kept++;
    }
    memcpy(kept->bits, bits, bytes);
    kept->state  = state;
    m->next_mask = (m->next_mask + 1) % N_MASKS;
out:
    return st;
}

/* ---- memory */

size_t bt_matcher_bytes(const bt_matcher *m) { return bt_states_bytes(&m->states); }

size_t bt_matcher_held(const bt_matcher *m)
{
    const bt_grammar *g    = m->grammar;
    size_t            mask = m->list == NULL ? 0 : bt_mask_words(m->list->n_ids) * sizeof(uint32_t);

    return bt_matcher_bytes(m) + m->n_kept * mask + g->n_edges * sizeof(*g->edges) +
           g->n_nodes * (sizeof(*g->first) + sizeof(*g->ends));
}

bool bt_matcher_has_grown(const bt_matcher *m)
{
    return m->n_kept > 0 || bt_matcher_bytes(m) > m->bytes_least;
}

bool bt_matcher_is_large(const bt_matcher *m)
{
    return bt_matcher_bytes(m) > BT_MATCHER_BYTES + 2 * m->bytes_least;
}

bt_status bt_matcher_trim(bt_matcher *m, uint32_t n, uint32_t **live)
{
    bt_status st    = BT_OK;
    bt_states fresh = {0};
    uint32_t *moved = bt_calloc((size_t)n + 1, sizeof(*moved)); /* the last is the start */

    BT_REQUIRE(moved != NULL, BT_ERR_NO_MEMORY, "%u states of a grammar", n);
    for (uint32_t i = 0; i < n; i++)
        moved[i] = *live[i];
    moved[n] = m->start;
    BT_TRY(bt_states_init(&fresh, m->states.n_classes));
    BT_TRY(bt_states_copy(&m->states, n + 1, moved, &fresh, moved));
    for (uint32_t i = 0; i < n; i++)
        *live[i] = moved[i];
    forget_masks(m);
    bt_states_fini(&m->states);
    m->states      = fresh;
    m->bytes_least = bt_matcher_bytes(m);
    m->start       = moved[n];
    fresh          = (bt_states){0}; /* handed over */
out:
    bt_states_fini(&fresh);
    bt_free(moved);
    return st;
}
