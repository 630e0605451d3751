/* core/module.h - opens a shared object of ours that a machine may lack: libbaton_cuda.so,
 * libbaton_nccl.so. */
#ifndef BT_CORE_MODULE_H
#define BT_CORE_MODULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The table called `symbol`, whose first member is a uint32_t version, in `library`, or, where that
 * is NULL, in `file` from the program's folder, ../lib/baton beside it, or the loader's path.
 * NULL, with a sentence in text, when there is none or its version is not `version`.  The library
 * stays open: what the table names lies in it. */
const void *bt_module_open(const char *library, const char *file, const char *symbol,
                           uint32_t version, char *text, size_t text_bytes);

/* What the shared object, or program, that `part` lies in shows under another name; NULL: nothing.
 */
const void *bt_module_symbol(const void *part, const char *symbol);

#ifdef __cplusplus
}
#endif
#endif
