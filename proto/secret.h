/* proto/secret.h - the cell's secret, without which nobody attaches to its control port.
 *
 * It comes from the environment, BATON_SECRET, or from the file that BATON_SECRET_FILE names; never
 * from a command line, which every user of a machine can read.  16 to 256 visible ASCII
 * characters.  Ranks send it in the headers of their stream. */
#ifndef BT_PROTO_SECRET_H
#define BT_PROTO_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

enum { BT_SECRET_MIN = 16, BT_SECRET_MAX = 256 };

#define BT_SECRET_ENV      "BATON_SECRET"
#define BT_SECRET_FILE_ENV "BATON_SECRET_FILE"
#define BT_SECRET_HEADER   "baton-secret"

/* "" when there is none.  INVALID_ARG or IO says what is wrong with it, and never shows it. */
bt_status bt_secret_read(char secret_out[BT_SECRET_MAX + 1]);
/* Draws one and puts it into this process's environment, for the children, unless there is one. */
bt_status bt_secret_provide(void);
/* Takes as long for any two of these lengths, equal or not. */
bool bt_secret_equal(const void *a, size_t n_a, const void *b, size_t n_b);

#endif
