#include "tools/profile/report.h"

#include <math.h>

#include "tools/profile/study001.h"
#include "tools/profile/text.h"

enum { BATCH_LOST = 32 }; /* where study 001 found A_CC_ME slower than CD */
/* Of a variant's output from the fused kernel's; rounding to bf16 on the way makes 0.006. */
static const double MOST_DISTANCE = 0.05;

/* ---- table ---- */

static void print_cell(const bt_point *p, FILE *to)
{
    char text[48];

    switch (p->state) {
    case BT_POINT_DONE:
        snprintf(text, sizeof(text), "%s %5.1fx", bt_text_time(p->step_s).text,
                 p->step_s / p->roof_s);
        break;
    case BT_POINT_NO_MEMORY:
        snprintf(text, sizeof(text), "needs %s", bt_text_bytes(p->needs).text);
        break;
    case BT_POINT_TOO_LONG:
        snprintf(text, sizeof(text), "~%s a step", bt_text_time(p->needs).text);
        break;
    default: snprintf(text, sizeof(text), "-");
    }
    fprintf(to, " %17s", text);
}

/* Both by their rounds' ratios to the fused kernel. */
static double ratio(const bt_point *above, const bt_point *below)
{
    return above->state == BT_POINT_DONE && below->state == BT_POINT_DONE
               ? above->over_fused.median / below->over_fused.median
               : NAN;
}

static void print_ratio(double v, FILE *to)
{
    if (isnan(v))
        fprintf(to, "  %9s", "-");
    else
        fprintf(to, "  %8.2fx", v);
}

static void print_study001(const bt_measured *p, FILE *to)
{
    static const char *const GPUS[] = {"A100-40GB", "RTX4080"};

    for (int g = 0; g < 2; g++) {
        bool any = false;

        for (int k = 0; k <= BT_VARIANT_AM_CC_ME; k++)
            any = any || bt_study001_us(GPUS[g], p->batch, p->n_keys, (bt_variant_kind)k) > 0;
        if (!any) continue;
        fprintf(to, "  %18s", GPUS[g]);
        for (int k = 0; k <= BT_VARIANT_AM_CC_ME; k++) {
            double us = bt_study001_us(GPUS[g], p->batch, p->n_keys, (bt_variant_kind)k);

            fprintf(to, " %17s", us > 0 ? bt_text_time(us * 1e-6).text : "-");
        }
        fprintf(to, " %17s  (study 001)\n", "");
    }
}

static void print_times(const bt_profile_model *model, const bt_measurement *m, FILE *to)
{
    fprintf(
        to,
        "\nA decode step of one layer, whole: query, compress and append, attend, output.\n"
        "Median of rounds in which the variants take turns; times its own floor on this machine "
        "(1.0x = at the roof).\n  %5s %12s",
        "batch", "context");
    for (int k = 0; k < BT_N_VARIANTS; k++)
        fprintf(to, " %17s", bt_variant_name((bt_variant_kind)k));
    fprintf(to, "  rounds\n");
    for (uint32_t i = 0; i < m->n_points; i++) {
        const bt_measured *p = &m->points[i];

        fprintf(to, "  %5u %12u", p->batch, p->n_keys);
        for (int k = 0; k < BT_N_VARIANTS; k++)
            print_cell(&p->of[k], to);
        fprintf(to, "  %u\n", p->of[BT_VARIANT_FUSED].n_rounds);
        if (bt_study001_fits(&model->mla)) print_study001(p, to);
    }
}

/* "A_CC_ME 1.08x (1.06-1.09)" */
static void print_best(const bt_measured *p, bool by_cpu_time, FILE *to)
{
    int      best = bt_measured_best(p, by_cpu_time);
    bt_ratio r;
    char     lies[48];

    if (best == BT_N_VARIANTS) {
        fprintf(to, "  %32s", "-");
        return;
    }
    r = by_cpu_time ? p->of[best].cpu_over_fused : p->of[best].over_fused;
    if (p->of[best].n_rounds < BT_INTERVAL_ROUNDS)
        snprintf(lies, sizeof(lies), "-");
    else
        snprintf(lies, sizeof(lies), "(%.3f-%.3f)", r.low, r.high);
    fprintf(to, "  %9s %7.3fx %-13s", bt_variant_name((bt_variant_kind)best), r.median, lies);
}

static void print_ratios(const bt_measurement *m, FILE *to)
{
    fprintf(to,
            "\nMedian ratios of this run's rounds (above 1: the one named first is slower), and "
            "where they lie with 95 %%:\n"
            "  an interval with 1 in it is a tie; fewer than %d rounds have none\n"
            "                   best of the five / fused\n"
            "  %5s %9s  %32s  %32s  %9s  %9s  %9s\n",
            BT_INTERVAL_ROUNDS, "batch", "context", "by time", "by CPU time", "CD/fused",
            "CD/A_CC_ME", "the same*");
    for (uint32_t i = 0; i < m->n_points; i++) {
        const bt_measured *p     = &m->points[i];
        const bt_point    *fused = &p->of[BT_VARIANT_FUSED], *cd = &p->of[BT_VARIANT_CD];
        const bt_point    *me = &p->of[BT_VARIANT_A_CC_ME];

        if (fused->state != BT_POINT_DONE) continue;
        fprintf(to, "  %5u %9u", p->batch, p->n_keys);
        print_best(p, false, to);
        print_best(p, true, to);
        print_ratio(ratio(cd, fused), to);
        print_ratio(ratio(cd, me), to);
        print_ratio(isnan(ratio(cd, me)) ? NAN : cd->bare_s / me->bare_s, to);
        fprintf(to, "%s\n",
                p->batch == BATCH_LOST ? "   study 001, A100: CD/A_CC_ME 0.54-0.79x" : "");
    }
    fprintf(to,
            "  *  without compressing and appending the new token, as study 001 timed it\n"
            "  On a machine that others use too, CPU time says more about a variant than time.\n");
}

/* Of the variants that ran beside the fused kernel; returns how many did, over all points. */
static uint32_t worst_distance(const bt_measurement *m, double *worst_out)
{
    uint32_t n = 0;

    *worst_out = 0;
    for (uint32_t i = 0; i < m->n_points; i++)
        for (int k = 0; k < BT_VARIANT_FUSED; k++) {
            const bt_point *at = &m->points[i].of[k];

            if (at->state != BT_POINT_DONE) continue;
            n++;
            if (!(at->distance <= *worst_out)) *worst_out = at->distance;
        }
    return n;
}

static void print_distances(const bt_measurement *m, FILE *to)
{
    double   worst;
    uint32_t n = worst_distance(m, &worst);

    if (n == 0 || !(worst <= MOST_DISTANCE)) return; /* bt_report_check() has the word */
    fprintf(
        to,
        "\nAll variants gave the fused kernel's result, to %.2g of its rms (comparisons: %u).\n",
        worst, n);
}

void bt_report_print(const bt_profile_model *model, const bt_measurement *m, FILE *to)
{
    print_times(model, m, to);
    print_ratios(m, to);
    print_distances(m, to);
}

bt_status bt_report_check(const bt_measurement *m)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < m->n_points; i++)
        for (int k = 0; k < BT_VARIANT_FUSED; k++) {
            const bt_measured *p = &m->points[i];

            BT_REQUIRE(
                p->of[k].state != BT_POINT_DONE || p->of[k].distance <= MOST_DISTANCE,
                BT_ERR_DEVICE,
                "%s at batch %u, context %u: expected the fused kernel's result to %g of its "
                "rms, found %g",
                bt_variant_name((bt_variant_kind)k), p->batch, p->n_keys, MOST_DISTANCE,
                p->of[k].distance);
        }
out:
    return st;
}

/* ---- JSON ---- */

static const char *const STATES[] = {"measured", "not enough memory", "too long", "left out"};

static void set_ratio(json_t *o, const char *name, const bt_ratio *r)
{
    char key[32];

    json_object_set_new(o, name, json_real(r->median));
    snprintf(key, sizeof(key), "%s_low", name);
    json_object_set_new(o, key, json_real(r->low));
    snprintf(key, sizeof(key), "%s_high", name);
    json_object_set_new(o, key, json_real(r->high));
}

static json_t *point_json(const bt_profile_model *model, const bt_measured *p, int k)
{
    static const char *const STAGES[] = {"query_s", "append_s", "attend_s", "output_s"};
    const bt_point          *at       = &p->of[k];
    bt_variant_account       a        = bt_variant_account_of((bt_variant_kind)k, &model->mla);
    json_t                  *o =
        json_pack("{s:s,s:i,s:i,s:s,s:f,s:f,s:f}", "variant", bt_variant_name((bt_variant_kind)k),
                  "batch", (int)p->batch, "context", (int)p->n_keys, "state", STATES[at->state],
                  "flops", bt_account_flops(&a, p->batch, p->n_keys), "bytes",
                  bt_account_bytes(&a, p->batch, p->n_keys), "moved_bytes",
                  (double)p->batch * p->n_keys * (double)a.moved_bytes);

    json_object_set_new(o, "roof_s", json_real(at->roof_s));
    if (at->state == BT_POINT_LEFT_OUT) return o;
    if (at->state != BT_POINT_DONE) {
        json_object_set_new(o, at->state == BT_POINT_NO_MEMORY ? "needs_bytes" : "expected_step_s",
                            json_real(at->needs));
        return o;
    }
    json_object_set_new(o, "step_s", json_real(at->step_s));
    json_object_set_new(o, "fastest_s", json_real(at->fastest_s));
    json_object_set_new(o, "cpu_s", json_real(at->cpu_s));
    set_ratio(o, "over_fused", &at->over_fused);
    set_ratio(o, "cpu_over_fused", &at->cpu_over_fused);
    json_object_set_new(o, "without_append_s", json_real(at->bare_s));
    for (int s = 0; s < BT_N_STAGES; s++)
        json_object_set_new(o, STAGES[s], json_real(at->stage_s[s]));
    json_object_set_new(o, "rounds", json_integer(at->n_rounds));
    json_object_set_new(o, "distance_from_fused", json_real(at->distance));
    return o;
}

static json_t *measurement_json(const bt_profile_model *model, const bt_measurement *m)
{
    json_t *points = json_array();

    for (uint32_t i = 0; i < m->n_points; i++)
        for (int k = 0; k < BT_N_VARIANTS; k++)
            json_array_append_new(points, point_json(model, &m->points[i], k));
    return json_pack("{s:s,s:i,s:f,s:o}", "kernels", m->kernels, "threads", (int)m->n_threads,
                     "wall_s", m->wall_s, "points", points);
}

static json_t *study001_json(void)
{
    json_t *list = json_array();

    for (int i = 0; i < BT_N_STUDY001; i++)
        for (uint32_t r = 0; r < BT_STUDY001[i].n_rows; r++)
            for (int k = 0; k <= BT_VARIANT_AM_CC_ME; k++)
                if (BT_STUDY001[i].rows[r].us[k] > 0)
                    json_array_append_new(
                        list, json_pack("{s:s,s:i,s:i,s:s,s:f}", "gpu", BT_STUDY001[i].gpu, "batch",
                                        (int)BT_STUDY001[i].batch, "context",
                                        (int)BT_STUDY001[i].rows[r].n_keys, "variant",
                                        bt_variant_name((bt_variant_kind)k), "step_s",
                                        (double)BT_STUDY001[i].rows[r].us[k] * 1e-6));
    return list;
}

static json_t *model_json(const bt_profile_model *p)
{
    const bt_mla_config *m = &p->mla;

    return json_pack("{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "name", p->name, "title",
                     p->title, "layers", (int)p->n_layers, "hidden", (int)m->hidden, "heads",
                     (int)m->n_heads, "q_lora_rank", (int)m->q_lora_rank, "kv_lora_rank",
                     (int)m->kv_lora_rank, "qk_nope_dim", (int)m->qk_nope_dim, "qk_rope_dim",
                     (int)m->qk_rope_dim, "v_dim", (int)m->v_dim);
}

json_t *bt_report_json(const bt_analysis *a, const bt_measurement *m)
{
    json_t *o = json_pack("{s:i,s:o,s:{s:s,s:b,s:f,s:f,s:f},s:o}", "format", 1, "model",
                          model_json(a->model), "roof", "name", a->roof->name, "measured",
                          (int)a->roof->measured, "bytes_per_s", a->roof->bytes_per_s, "flop_per_s",
                          a->roof->flop_per_s, "memory_bytes", a->roof->memory_bytes, "analysis",
                          bt_analysis_json(a));

    if (m != NULL) json_object_set_new(o, "measurement", measurement_json(a->model, m));
    if (bt_study001_fits(&a->model->mla)) json_object_set_new(o, "study001", study001_json());
    return o;
}

/* ---- CSV ---- */

void bt_report_csv(const bt_profile_model *model, const bt_measurement *m, FILE *to)
{
    fprintf(
        to,
        "model,variant,batch,context,state,step_us,fastest_us,cpu_us,without_append_us,query_us,"
        "append_us,attend_us,output_us,rounds,roof_us,step_over_roof,flops,bytes,"
        "moved_bytes,distance_from_fused,over_fused,over_fused_low,over_fused_high,"
        "cpu_over_fused,cpu_over_fused_low,cpu_over_fused_high\n");
    for (uint32_t i = 0; i < m->n_points; i++)
        for (int k = 0; k < BT_N_VARIANTS; k++) {
            const bt_measured *p     = &m->points[i];
            const bt_point    *at    = &p->of[k];
            bt_variant_account a     = bt_variant_account_of((bt_variant_kind)k, &model->mla);
            double             flops = bt_account_flops(&a, p->batch, p->n_keys);
            double             bytes = bt_account_bytes(&a, p->batch, p->n_keys);
            double             moved = (double)p->batch * p->n_keys * (double)a.moved_bytes;

            fprintf(to, "%s,%s,%u,%u,%s,", model->name, bt_variant_name((bt_variant_kind)k),
                    p->batch, p->n_keys, STATES[at->state]);
            if (at->state == BT_POINT_DONE)
                fprintf(to,
                        "%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%u,%.1f,%.3f,%.0f,%.0f,%.0f,%.2g,"
                        "%.3f,%.3f,%.3f,%.3f,%.3f,%.3f\n",
                        at->step_s * 1e6, at->fastest_s * 1e6, at->cpu_s * 1e6, at->bare_s * 1e6,
                        at->stage_s[0] * 1e6, at->stage_s[1] * 1e6, at->stage_s[2] * 1e6,
                        at->stage_s[3] * 1e6, at->n_rounds, at->roof_s * 1e6,
                        at->step_s / at->roof_s, flops, bytes, moved, at->distance,
                        at->over_fused.median, at->over_fused.low, at->over_fused.high,
                        at->cpu_over_fused.median, at->cpu_over_fused.low, at->cpu_over_fused.high);
            else
                fprintf(to, ",,,,,,,,,%.1f,,%.0f,%.0f,%.0f,,,,,,,\n", at->roof_s * 1e6, flops,
                        bytes, moved);
        }
}
