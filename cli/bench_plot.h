/* cli/bench_plot.h - a picture of a run, drawn by a Python script that lies in
 * ../share/baton/bench.
 */
#ifndef BT_CLI_BENCH_PLOT_H
#define BT_CLI_BENCH_PLOT_H

#include "core/status.h"

/* Can FILE be drawn here?  UNSUPPORTED says what to install; asked before a run, so that no long
 * one is in vain. */
bt_status bt_bench_plot_check(const char *file);
/* Draws the run whose JSON lies at `json`. */
bt_status bt_bench_plot(const char *json, const char *file);

#endif
