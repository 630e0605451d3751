/* tests/model/grammar_texts.h - tables of texts against what a reader of grammars makes of one. */
#ifndef BT_TESTS_MODEL_GRAMMAR_TEXTS_H
#define BT_TESTS_MODEL_GRAMMAR_TEXTS_H

#include <time.h>

#include "core/alloc.h"
#include "tests/model/grammar_check.h"
#include "tests/support/sweep.h"

/* Reads n bytes into parts. */
typedef bt_part (*read_fn)(bt_parts *g, const char *text, size_t n);

enum { N_TEXTS = 8 };

typedef struct {
    const char *grammar;
    const char *good[N_TEXTS], *bad[N_TEXTS];
} texts_case;

typedef struct {
    const char *grammar, *why; /* a part of the sentence */
} refused_case;

static inline void expect_texts(read_fn read, const texts_case *c)
{
    char        why[BT_GRAMMAR_WHY_BYTES] = "";
    bt_parts    g                         = {0};
    bt_matcher *m      = matcher_of(&g, read(&g, c->grammar, strlen(c->grammar)), NULL, why);
    int         before = g_failures;

    if (m == NULL) {
        g_failures++;
        fprintf(stderr, "%s: refused: %s\n", c->grammar, why);
        return;
    }
    for (int i = 0; i < N_TEXTS && c->good[i] != NULL; i++)
        EXPECT_VERDICT(m, c->good[i], ACCEPTS);
    for (int i = 0; i < N_TEXTS && c->bad[i] != NULL; i++)
        EXPECT(judge(m, c->bad[i]) != ACCEPTS);
    if (g_failures > before) fprintf(stderr, "  of %s\n", c->grammar);
    bt_matcher_destroy(m);
}

static inline void expect_refused(read_fn read, const char *grammar, size_t n, const char *part)
{
    char        why[BT_GRAMMAR_WHY_BYTES] = "(taken)";
    bt_parts    g                         = {0};
    bt_matcher *m                         = matcher_of(&g, read(&g, grammar, n), NULL, why);

    EXPECT(m == NULL);
    EXPECT_HAS(why, part);
    bt_matcher_destroy(m);
}

/* 256 KiB of one piece again and again, behind a head: read, or refused, at once. */
static inline void expect_read_soon(read_fn read, const char *head, const char *piece)
{
    const size_t    n = BT_CONSTRAINT_BYTES_MAX, n_head = strlen(head), n_piece = strlen(piece);
    char           *text   = bt_calloc(n + 1, 1), why[BT_GRAMMAR_WHY_BYTES];
    bt_parts        g      = {0};
    bt_grammar     *packed = NULL;
    bt_status       st;
    struct timespec from, to;
    double          seconds;

    NEED(text != NULL);
    memcpy(text, head, n_head);
    for (size_t i = n_head; i < n; i++)
        text[i] = piece[(i - n_head) % n_piece];
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    st = bt_grammar_pack(&g, read(&g, text, n), &packed, why);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
    if (seconds > 3) fprintf(stderr, "%s%s...: %.3f s\n", head, piece, seconds);
    EXPECT(st == BT_OK || st == BT_ERR_INVALID_ARG);
    EXPECT(seconds <= 3); /* some tenths; a sanitizer's build takes longer */
    bt_grammar_destroy(packed);
    bt_parts_fini(&g);
    bt_free(text);
}

static inline bt_status read_and_pack(read_fn read, const char *grammar)
{
    bt_parts    g      = {0};
    bt_grammar *packed = NULL;
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_part     whole = read(&g, grammar, strlen(grammar));
    bt_status   st    = bt_grammar_pack(&g, whole, &packed, why);

    bt_grammar_destroy(packed);
    bt_parts_fini(&g);
    return st;
}

static inline void expect_survives_no_memory(read_fn read, const char *grammar)
{
    EXPECT(BT_SWEEP(read_and_pack(read, grammar), (void)0) > 0);
}

#endif
