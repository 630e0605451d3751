/* cli/supervisor_state.h - inside the supervisor only. */
#ifndef BT_CLI_SUPERVISOR_STATE_H
#define BT_CLI_SUPERVISOR_STATE_H

#include "cli/account.h"
#include "cli/child.h"
#include "cli/echo.h"
#include "cli/outlet.h"
#include "cli/progress.h"
#include "cli/restart_wait.h"
#include "cli/supervisor.h"
#include "core/clock.h"
#include "core/parse.h"
#include "core/rank_map.h"

/* For what ends by itself when its peer has gone. */
#define BT_SUPERVISOR_LEAVE_NS (5 * BT_NS_PER_S)

typedef enum { STARTING, LOADING, SERVING, STOPPING } phase;

typedef struct {
    const char *name;         /* borrowed from the places */
    bool        answers;      /* when it was last asked; true before */
    bool        asked, heard; /* by the question that is under way */
    char        why[200];     /* it does not */
} bt_cell_host;

/* Of a cell over several machines; n is 0 otherwise. */
typedef struct {
    bt_rank_map   places; /* owned: of all ranks */
    bt_cell_host *at;     /* owned [n] */
    uint32_t      n;
    uint64_t asked_ns, answered_ns; /* answered_ns: 0 where the answers do not count any more */
    uint32_t limit_s;               /* for an answer to the last question */
    bool     waits;                 /* for hosts without which nothing can be started */
    int      map_fd;                /* of a rank map in memory, and its path */
    char     map_path[64], left_out[512]; /* left_out: of the last start */
} bt_cell_hosts;

/* Times are those of bt_awake_ns(): while this process stood still nobody was late. */
typedef struct supervisor {
    const bt_run_options *opt;
    bt_cell_options cell; /* as it was last started: opt's without the hosts that are silent */
    bt_cell_hosts   hosts;
    bt_child        asker; /* of the hosts */
    phase           phase;
    bt_echo         echo;
    bt_outlet       out; /* what we say ourselves when the cell is ready */
    bt_child        coordinator, launch, client;
    bt_child        fresh; /* ranks of a cell that is to take the place of launch's */
    int             signal_fd;
    char            address[BT_ADDRESS_BYTES];
    char            control[BT_ADDRESS_BYTES]; /* where ranks attach, once known */
    uint16_t        port; /* of the public port: what came of 0 the first time */
    bt_restart_wait restart_wait;
    uint64_t        coordinator_at_ns, launch_at_ns; /* when to start it; 0: not to be started */
    uint64_t        fresh_at_ns, fresh_term_ns;
    uint32_t        n_renewed;
    bool            fresh_serves, fresh_worn;        /* fresh_worn: it lacks ranks by now */
    char            fresh_name[64], launch_name[64]; /* of the cells; launch_name: "" without one */
    bool            launch_has_served;
    bool            launch_drains; /* a fresh cell serves, or has served, in its place */
    bool            launch_heard;  /* the coordinator has named its cell since it was started */
    bool        rank_failed; /* of launch's, while it loaded: the others were ended at our word */
    bool        lost;        /* launch's cell, as its ranks were told: of a cell that joins */
    uint64_t    died_ns;     /* since when it does not serve any more; 0: it does */
    uint32_t    n_restarts, n_ready; /* n_ready: of the ranks of a cell that joins */
    bool        has_served;
    bt_progress progress;
    uint64_t    told_ns;    /* when progress was last logged */
    bt_account *accounts;   /* [n_ranks] */
    uint64_t    heard_ns;   /* when anything came */
    uint64_t    spoke_ns;   /* when the coordinator last said anything */
    uint64_t    quiet_ns;   /* then it may be silent for so long */
    uint32_t    hung_s;     /* it was ended, silent for so long; 0: it was not */
    bool        has_spoken; /* since it was started */
    uint64_t    start_ns, stop_ns;
    uint64_t    serving_ns;                          /* since when; 0: not */
    uint64_t    coordinator_term_ns, launch_term_ns; /* when to tell it; 0: not, or told */
    bool        asked;                               /* the end was asked for */
    bool        draining;               /* and the coordinator ends when nothing runs any more */
    uint64_t    drain_end_ns;           /* it should have by then; 0: it has no limit */
    char        http[BT_ADDRESS_BYTES]; /* where its HTTP port is; "" */
    bool        hurried;      /* asked again: the ranks were ended by a signal at our word */
    bool        served;       /* the cell was ready when it stopped */
    char        failure[700]; /* the first one; "" so far */
} supervisor;

/* supervisor.c */
/* Ends everything in order, each when its time has come.  The first reason counts. */
BT_PRINTF(2, 3) void bt_supervisor_fail(supervisor *s, const char *fmt, ...);
/* Asked to end, we end ranks ourselves that still load or for which nobody waits any more; what
 * becomes of them, and what the coordinator then says of them, is no failure. */
bool bt_supervisor_ended_ranks(const supervisor *s);

/* supervisor_hear.c */
/* What never worked is not started again. */
bool bt_supervisor_may_restart(const supervisor *s);
/* A sign of life; what is only to be started has time until then. */
void bt_supervisor_hear(supervisor *s, uint64_t now_ns);
/* Lines of the coordinator, of the ranks' launcher and of the fresh cell's. */
void bt_supervisor_on_announcement(void *supervisor, const char *line);
void bt_supervisor_on_rank_line(void *supervisor, const char *line);
void bt_supervisor_on_fresh_line(void *supervisor, const char *line);

/* supervisor_start.c */
bt_status bt_supervisor_start_coordinator(supervisor *s);
bt_status bt_supervisor_start_ranks(supervisor *s);
bt_status bt_supervisor_start_fresh(supervisor *s);
bt_status bt_supervisor_start_client(supervisor *s);

/* supervisor_renew.c */
void bt_supervisor_renew(supervisor *s); /* the cell lacks ranks: a fresh one, if it may be */
/* `name`, as the coordinator says it, is that of the fresh cell, or of launch's. */
bool bt_supervisor_is_fresh(const supervisor *s, const char *name);
bool bt_supervisor_is_launch(const supervisor *s, const char *name);
void bt_supervisor_fresh_serves(supervisor *s);
void bt_supervisor_watch_fresh(supervisor *s, uint64_t now_ns); /* it may hang before it serves */
/* Or it could not be started; how: its end, borrowed. */
void bt_supervisor_fresh_ended(supervisor *s, const char *how);
/* launch has ended: the fresh cell's ranks take its place.  False: there are none. */
bool bt_supervisor_take_fresh(supervisor *s);

/* supervisor_hosts.c */
bt_status bt_supervisor_find_hosts(supervisor *s);
void      bt_supervisor_forget_hosts(supervisor *s);
/* Ranks are due at *at_ns: *now_out says whether s->cell can be started now.  Else it is not time
 * yet, or the hosts are being asked, or *at_ns is later. */
bt_status bt_supervisor_choose_hosts(supervisor *s, uint64_t *at_ns, uint64_t now_ns,
                                     bool *now_out);
void      bt_supervisor_host_line(void *supervisor, const char *line); /* of the asker */
void      bt_supervisor_hosts_asked(supervisor *s);                    /* the asker has ended */
void      bt_supervisor_watch_hosts(supervisor *s, uint64_t now_ns);
/* Names one that did not answer when it was last asked, and why; false: there is none. */
bool bt_supervisor_silent_host(const supervisor *s, char *buf, size_t capacity);

#endif
