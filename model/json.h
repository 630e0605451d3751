/* model/json.h - JSON files of a checkpoint, read with suspicion.
 *
 * Every error names file, field, what was expected and what was found.  A field that is absent and
 * a field that is null are the same thing.
 *
 * Threads: any; no state. */
#ifndef BT_MODEL_JSON_H
#define BT_MODEL_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parses n bytes; `where` names them in errors.  Duplicate keys are an error.  FORMAT or
 * NO_MEMORY.  The value is counted (json_decref). */
bt_status bt_json_parse(const char *where, const char *text, size_t n, json_t **json_out);
/* Reads and parses a regular file of at most max_bytes.  IO, FORMAT or NO_MEMORY. */
bt_status bt_json_read_file(const char *path, size_t max_bytes, json_t **json_out);
/* The same of a file with integers beyond 64 bits, of which none is wanted: with such a one, all
 * numbers are reals. */
bt_status bt_json_read_loose(const char *path, size_t max_bytes, json_t **json_out);
/* The same of a file with U+0000 in texts, of which bt_json_str() wants none. */
bt_status bt_json_read_nul(const char *path, size_t max_bytes, json_t **json_out);

/* Where a field stands, for errors: "config.json", "rope_scaling".  All borrowed. */
typedef struct {
    const char   *file;
    const char   *in;  /* the enclosing field, or "" */
    const json_t *obj; /* an object */
} bt_json_at;

/* NULL when absent or null. */
json_t *bt_json_field(const bt_json_at *at, const char *field);

/* The field must be there, of the type, within the bounds; FORMAT else. */
bt_status bt_json_u32(const bt_json_at *at, const char *field, uint32_t lo, uint32_t hi,
                      uint32_t *v_out);
bt_status bt_json_f64(const bt_json_at *at, const char *field, double lo, double hi, double *v_out);
bt_status bt_json_bool(const bt_json_at *at, const char *field, bool *v_out);
/* Borrowed from the object. */
bt_status bt_json_str(const bt_json_at *at, const char *field, const char **v_out);

/* A value as an error message shows it: `"abc" (a string)`, `nothing`; cut to fit, printable ASCII.
 * Returns buf, of which BT_JSON_SHOW_BYTES are enough to see what it is. */
enum { BT_JSON_SHOW_BYTES = 96 };
const char *bt_json_show(const json_t *v, char *buf, size_t capacity);
/* Text from a file as an error message shows it: cut to fit, control bytes as '?'. Returns buf. */
const char *bt_json_printable(const char *text, char *buf, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
