/* tools/profile/report.h - a measurement as a table, as JSON (which plot.py draws) and as CSV. */
#ifndef BT_TOOLS_PROFILE_REPORT_H
#define BT_TOOLS_PROFILE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "tools/profile/analysis.h"
#include "tools/profile/measure.h"

/* m may be NULL: analysis only. */
void    bt_report_print(const bt_profile_model *model, const bt_measurement *m, FILE *to);
json_t *bt_report_json(const bt_analysis *a, const bt_measurement *m);
/* DEVICE names a variant and a point whose result is not the fused kernel's. */
bt_status bt_report_check(const bt_measurement *m);
void      bt_report_csv(const bt_profile_model *model, const bt_measurement *m, FILE *to);

#endif
