/* model/grammar/tag_fields.h - inside tag.c: places in the JSON of a structural tag, refusals that
 * name them, and fields of an object. */
#ifndef BT_MODEL_GRAMMAR_TAG_FIELDS_H
#define BT_MODEL_GRAMMAR_TAG_FIELDS_H

#include <jansson.h>

#include "model/grammar/parts.h"

enum { BT_TAG_FIELDS = 6 };

/* The place of a value, the last step first. */
typedef struct bt_tag_at {
    const struct bt_tag_at *up;  /* NULL: the whole */
    const char             *key; /* NULL: */
    size_t                  index;
} bt_tag_at;

void bt_tag_refuse(bt_parts *g, const bt_tag_at *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Where a text within was refused, the place goes before its sentence. */
void bt_tag_add_place(bt_parts *g, const bt_tag_at *at, bool was_ok);

/* Refuses what is neither null or an empty list, nor "type", nor one of fields[BT_TAG_FIELDS],
 * which may end with a NULL. */
void bt_tag_check_fields(bt_parts *g, const json_t *json, const char *const *fields,
                         const bt_tag_at *at);
/* Borrowed; "" when refused. */
const char *bt_tag_text(bt_parts *g, const json_t *json, const char *key, const bt_tag_at *at);
/* false when absent. */
bool bt_tag_flag(bt_parts *g, const json_t *json, const char *key, const bt_tag_at *at);
/* Borrowed; refused, and maybe no list, when it is empty. */
const json_t *bt_tag_list(bt_parts *g, const json_t *json, const char *key, const bt_tag_at *at);

#endif
