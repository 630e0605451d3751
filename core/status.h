/* core/status.h - the one error type of the project.
 *
 * Every fallible function returns bt_status.  Whoever decides that something is an error logs it,
 * once; callers only pass the code on.  A code's scope says what is lost: one request, this rank,
 * or the whole cell (a broken exchange), and so picks the remedy. */
#ifndef BT_CORE_STATUS_H
#define BT_CORE_STATUS_H

#include "core/log.h"

#pragma GCC visibility push(default) /* libbaton_cuda.so takes these from the program */
#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
#define BT_STATUS_MAP(X)                                                       \
    /* name        scope    text */                                            \
    X(INVALID_ARG, REQUEST, "invalid argument")                                \
    X(NO_PAGES,    REQUEST, "KV pool has no free page")                        \
    X(CHECKSUM,    REQUEST, "a hand-off message failed its verification")      \
    X(CANCELLED,   REQUEST, "cancelled")                                       \
    X(NO_MEMORY,   RANK,    "out of host or device memory")                    \
    X(IO,          RANK,    "a file or socket operation failed")               \
    X(FORMAT,      RANK,    "a file does not hold what it should")             \
    X(UNSUPPORTED, RANK,    "not supported by this build or machine")          \
    X(DEVICE,      RANK,    "a device call failed")                            \
    X(PROTOCOL,    CELL,    "a peer broke the protocol")                       \
    X(TIMEOUT,     CELL,    "a wait passed its deadline")                      \
    X(PEER,        CELL,    "a peer failed, refused or left")

typedef enum {
    BT_OK = 0,
#define X(name, scope, text) BT_ERR_##name,
    BT_STATUS_MAP(X)
#undef X
} bt_status;
/* clang-format on */

typedef enum { BT_SCOPE_REQUEST, BT_SCOPE_RANK, BT_SCOPE_CELL } bt_scope;

/* Both are total: an unknown code has a text too, and scope CELL. */
const char *bt_status_str(bt_status st);
bt_scope    bt_status_scope(bt_status st);
/* What begins an error's line, until the next one: the code's text, of memory with `ulimit -v`; ""
 * in a verb (core/log.h), except where the line would not say what is wrong. */
const char *bt_status_head(bt_status st);

/* The only two control-flow macros.  The enclosing function has a local `bt_status st` and one
 * label `out`; neither macro ever returns. */
#define BT_TRY(call)               \
    do {                           \
        st = (call);               \
        if (st != BT_OK) goto out; \
    } while (0)
#define BT_REQUIRE(cond, code, ...)                                            \
    do {                                                                       \
        if (!(cond)) {                                                         \
            st = (code);                                                       \
            bt_log_error(__FILE__, __LINE__, bt_status_head(st), __VA_ARGS__); \
            goto out;                                                          \
        }                                                                      \
    } while (0)

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
