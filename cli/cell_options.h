/* cli/cell_options.h - the options that say what a cell is, shared by the verbs that start one. */
#ifndef BT_CLI_CELL_OPTIONS_H
#define BT_CLI_CELL_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/passed_on.h"
#include "core/rank_map.h"
#include "core/settings.h"
#include "core/status.h"

typedef struct {
    const char  *model;               /* a directory; strings are borrowed from argv */
    uint32_t     n_prefill, n_decode; /* 0 and 0 with n_both */
    uint32_t     n_both, n_spares;
    bool         replace;          /* a lost rank: the others go on */
    const char  *name;             /* among the coordinator's cells, or NULL */
    const char  *rank_map;         /* a file that says all that, and where; or NULL */
    bool         slurm;            /* on the nodes of this Slurm job */
    const char  *hostfile, *hosts; /* NULL: this machine */
    bt_passed_on worker;           /* what every rank gets as it is */
    bool         verbose;          /* ranks log each step too; the verb's to set */
} bt_cell_options;

/* A child parser: its input is a zeroed bt_cell_options, complete and checked at the end.  Errors
 * end the program, as argp's do. */
extern const struct argp bt_cell_argp;

/* Of these options, for bt_settings_gather(). */
extern const bt_setting_conflict bt_cell_conflicts[];

static inline uint32_t bt_cell_n_ranks(const bt_cell_options *opt)
{
    return (opt->n_both != 0 ? opt->n_both : opt->n_prefill + opt->n_decode) + opt->n_spares;
}

/* The command that starts the ranks, NULL-terminated, owned by the caller (bt_free); its strings
 * live as long as opt.  The last argument is `coordinator`, the address of the control port. */
bt_status bt_cell_launch_argv(const bt_cell_options *opt, const char *coordinator,
                              char ***argv_out);

/* A flag for every rank unless the user has given it; both strings are borrowed. */
void bt_cell_default(bt_cell_options *opt, const char *flag, const char *value);

/* Its name among a coordinator's cells, borrowed. */
void bt_cell_rename(bt_cell_options *opt, const char *name);

/* Its ranks are those of the map, which lies at `path`, since the hosts of the list `left_out` are
 * silent; the strings are borrowed. */
void bt_cell_place(bt_cell_options *opt, const bt_rank_map *map, const char *path,
                   const char *left_out);

#endif
