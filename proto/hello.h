/* proto/hello.h - what ranks say of themselves as they attach: whether two of them belong together.
 *
 * Plain data; any thread. */
#ifndef BT_PROTO_HELLO_H
#define BT_PROTO_HELLO_H

#include "proto/control_msg.h"

/* What a rank and its coordinator should have in common: "0.1.0+1a2b3c4d", the version and a
 * fingerprint of control.proto. */
const char *bt_hello_build(void);

/* Whether a rank computes the same bits as another one, of any cell: INVALID_ARG names both. */
bt_status bt_hello_agree(const bt_up_hello *a, const bt_up_hello *b);
/* And whether their cells have the same shape. */
bt_status bt_hello_same_cell(const bt_up_hello *a, const bt_up_hello *b);
/* Without what is one cell's own: left_out, version and seats.  NO_MEMORY. */
bt_status bt_hello_copy(const bt_up_hello *from, bt_up_hello *to_out);
void      bt_hello_free(bt_up_hello *hello); /* and leaves zeroes; accepts them */

#endif
