/* model/grammar/free_text.h - any text, up to strings that must not stand in it, or that something
 * must follow: what stands around tags. */
#ifndef BT_MODEL_GRAMMAR_FREE_TEXT_H
#define BT_MODEL_GRAMMAR_FREE_TEXT_H

#include "model/grammar/parts.h"

typedef struct {
    const char *text;    /* borrowed; UTF-8, not empty, up to its zero */
    bool        goes_on; /* else it must not come */
    bt_part     then;    /* what must follow it */
} bt_stop;

/* Characters, until it ends or one of the stops has come: the first one to be complete, of those
 * that are complete at once the longest; none where one of these must not come.  Behind what
 * follows a stop the text goes on (again), or ends. */
bt_part bt_part_free_text(bt_parts *g, const bt_stop *stops, uint32_t n, bool again);

#endif
