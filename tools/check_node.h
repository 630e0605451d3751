/* tools/check_node.h - what one node has and can do, found there and told as lines "KEY TEXT". */
#ifndef BT_TOOLS_CHECK_NODE_H
#define BT_TOOLS_CHECK_NODE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BT_CHECK_TEXT = 256 };

typedef struct {
    bool     answered; /* the last line came */
    char     version[BT_CHECK_TEXT], mpi[BT_CHECK_TEXT], arithmetic[BT_CHECK_TEXT];
    char     trouble[8][BT_CHECK_TEXT]; /* each a sentence */
    uint32_t n_trouble, n_cores;
    uint64_t fingerprint, weight_bytes, memory_bytes, shm_bytes;
    uint64_t loaded_bytes, expert_bytes; /* in memory: all of the model, and of that its routed
                                            experts; 0 where ranks compute on GPUs */
    double    unix_s, read_rate;         /* bytes a second of the checkpoint's files, from disk */
    cpu_set_t cores;                     /* that a process there can be bound to */
} bt_node_facts;

/* On the node: looks, and writes to stdout.  control: HOST:PORT to connect to, or NULL; model: NULL
 * where nothing but that is to be looked at; kernels: as ranks on CPUs would be told. */
void bt_check_node_tell(const char *model, const char *control, const char *kernels);
/* Elsewhere: takes one line; unknown ones are passed over. */
void bt_check_node_hear(bt_node_facts *facts, const char *line);

/* One word of a shell's: 'it'\''s'.  Cut where it is too long. */
void bt_check_quote(const char *text, char *buf, size_t capacity);

#endif
