/* cli/places.h - where the ranks of a cell run, and what is left of it without some hosts. */
#ifndef BT_CLI_PLACES_H
#define BT_CLI_PLACES_H

#include "cli/cell_options.h"
#include "core/rank_map.h"

/* From the cell's rank map, or from its list or file of hosts, whose slots are filled in order;
 * then cores and devices are any.  A cell on this machine, or on a Slurm job's nodes, has no
 * places: n_ranks is 0.  INVALID_ARG or IO names what is wrong with the file. */
bt_status bt_places_read(const bt_cell_options *opt, bt_rank_map *map_out);

/* Takes the ranks away whose host `is_out` names.  Spares take the seats of those that are lost,
 * the emptier role's first.  False: a role has no rank left; the map is as it was then. */
bool bt_places_leave_out(bt_rank_map *map, bool (*is_out)(const void *ctx, const char *host),
                         const void  *ctx);

/* Ends the program, as argp does, when a host of the cell cannot reach the control address because
 * that is each machine's own.  `given` is borrowed; NULL: nobody has said anything.  The addresses
 * of a Slurm job's nodes are not known here: there what was given is taken. */
void bt_places_check_control(struct argp_state *state, const bt_cell_options *opt,
                             const char *given);

/* As a file that bt_rank_map_read() takes. */
bt_status bt_places_write(const bt_rank_map *map, int fd);

#endif
