/* core/processes.h - other processes of this machine, as /proc tells of them. */
#ifndef BT_CORE_PROCESSES_H
#define BT_CORE_PROCESSES_H

#include <stdbool.h>
#include <sys/types.h>

enum { BT_PROCESS_NAME = 16 };

/* As ps has it: the first 15 bytes of its program's name, or what it calls itself; "" when it has
 * gone. */
void bt_process_name(pid_t pid, char name_out[BT_PROCESS_NAME]);

/* true: no more are wanted. */
typedef bool (*bt_child_fn)(pid_t parent, pid_t child, void *ctx);
/* Calls fn for each child of any of the parent's threads, until it returns true; returns whether it
 * has.  From 32 ranks on one machine on, Open MPI starts them from several threads. */
bool bt_process_each_child(pid_t parent, bt_child_fn fn, void *ctx);

#endif
