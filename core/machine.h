/* core/machine.h - the memory and the cores that a process on this machine may use, its names
 * and ports. */
#ifndef BT_CORE_MACHINE_H
#define BT_CORE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_MAX_THREADS   = 1024,    /* that compute in a process */
    BT_CPU_CONTEXTS  = 4,       /* full contexts of KV that one on a CPU takes unless told more */
    BT_STAGING_BYTES = 44 << 20 /* of the hand-off, by MPI, of a rank on a CPU with one role */
};
#define BT_MEMORY_PERCENT 85 /* of what is free that ranks take; a literal, for --help */

typedef struct {
    uint64_t total_bytes, free_bytes; /* free: what could be taken now without swapping */
    uint32_t n_cores;
} bt_machine;

/* From the kernel and from the limits of this process's control group and those above it, whichever
 * is tightest; 0 bytes where the kernel does not say. */
void bt_machine_look(bt_machine *m);
/* As above, with /proc and /sys in another directory. */
void bt_machine_look_in(const char *root, bt_machine *m);
/* Cores that the scheduler may give to this process: at most as many as the CPU quotas of its
 * control group and of those above it are worth, rounded up. */
uint32_t bt_machine_cores(void);
/* Whether the host is this machine: "localhost", its name, or what is an address of one of its
 * interfaces, or with look_up resolves to one: a name server that is silent takes seconds. */
bool bt_machine_is(const char *host, bool look_up);
/* Whether the host, on every machine, is that machine: its addresses are the loopback's, or the one
 * that stands for all.  False for a name that does not resolve. */
bool bt_machine_is_any(const char *host);
/* The port that the socket is bound to; -1: no TCP socket. */
int bt_machine_port(int fd);
/* Who is at the other end of the socket, as gRPC writes it: "ipv4:127.0.0.1:4711",
 * "ipv6:%5B::1%5D:4711".  false: no TCP socket, or nobody. */
enum { BT_PEER_BYTES = 96 };
bool bt_machine_peer(int fd, char text_out[BT_PEER_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
