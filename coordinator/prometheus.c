#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "coordinator/exposition.h"
#include "core/alloc.h"
#include "proto/rpc.h"

typedef struct {
    FILE *f;
    char *model; /* owned: the label, escaped */
} page;

static void family(page *p, const char *name, const char *type, const char *help)
{
    fprintf(p->f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* One value of the whole server. */
static void one(page *p, const char *name, const char *type, const char *help, double value)
{
    family(p, name, type, help);
    fprintf(p->f, "%s{model_name=\"%s\"} %.17g\n", name, p->model, value);
}

/* A label's value, owned: backslash, quote and newline are escaped.  NULL: no memory. */
static char *escape(const char *text)
{
    size_t n   = 0;
    char  *buf = bt_calloc(2 * strlen(text) + 1, 1);

    for (; buf != NULL && *text != 0; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') buf[n++] = '\\';
        buf[n++] = *text == '\n' ? 'n' : *text;
    }
    return buf;
}

static void histogram(page *p, const char *name, const char *help, const uint64_t *counts,
                      const double *limits, uint32_t n_limits, double sum)
{
    uint64_t seen = 0;

    family(p, name, "histogram", help);
    for (uint32_t i = 0; i < n_limits; i++) {
        seen += counts[i];
        fprintf(p->f, "%s_bucket{model_name=\"%s\",le=\"%g\"} %llu\n", name, p->model, limits[i],
                (unsigned long long)seen);
    }
    seen += counts[n_limits];
    fprintf(p->f, "%s_bucket{model_name=\"%s\",le=\"+Inf\"} %llu\n", name, p->model,
            (unsigned long long)seen);
    fprintf(p->f, "%s_sum{model_name=\"%s\"} %.17g\n%s_count{model_name=\"%s\"} %llu\n", name,
            p->model, sum, name, p->model, (unsigned long long)seen);
}

static void times(page *p, const char *name, const char *help, const bt_time_histogram *h)
{
    histogram(p, name, help, h->counts, bt_time_limits_s, BT_TIME_BUCKETS - 1, h->sum_s);
}

static void sizes(page *p, const char *name, const char *help, const bt_size_histogram *h)
{
    histogram(p, name, help, h->counts, bt_size_limits, BT_SIZE_BUCKETS - 1, h->sum);
}

static void requests(page *p, const bt_snapshot *s)
{
    const bt_metrics *m = &s->metrics;

    one(p, "vllm:num_requests_running", "gauge", "Requests that ranks work on.",
        s->loads.n_running);
    one(p, "vllm:num_requests_waiting", "gauge", "Requests in the queue.", s->loads.n_waiting);
    one(p, "baton_queued_prompt_tokens", "gauge", "Prompt tokens in the queue.",
        (double)s->queued_tokens);
    one(p, "vllm:kv_cache_usage_perc", "gauge",
        "Part of the KV tokens of decode ranks that is in use, 0 to 1; 1 without ranks.",
        s->loads.total_tokens == 0 ? 1
                                   : (double)s->loads.used_tokens / (double)s->loads.total_tokens);
    one(p, "vllm:num_preemptions_total", "counter",
        "Requests that a decode rank gave back for lack of pages; they go on later.",
        (double)s->loads.retracted);
    one(p, "vllm:prompt_tokens_total", "counter", "Prompt tokens of requests with a first token.",
        (double)m->prompt_tokens);
    one(p, "vllm:generation_tokens_total", "counter", "Tokens generated.",
        (double)m->generated_tokens);
    family(p, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    fprintf(p->f, "vllm:request_success_total{model_name=\"%s\",finished_reason=\"stop\"} %llu\n",
            p->model, (unsigned long long)m->n_stop);
    fprintf(p->f, "vllm:request_success_total{model_name=\"%s\",finished_reason=\"length\"} %llu\n",
            p->model, (unsigned long long)m->n_length);
    fprintf(p->f, "vllm:request_success_total{model_name=\"%s\",finished_reason=\"abort\"} %llu\n",
            p->model, (unsigned long long)m->n_status[GRPC_STATUS_CANCELLED]);
    family(p, "baton_requests_total", "counter", "Requests that ended, by gRPC status.");
    for (uint32_t i = 0; i < BT_N_STATUS; i++)
        fprintf(p->f, "baton_requests_total{model_name=\"%s\",status=\"%s\"} %llu\n", p->model,
                bt_rpc_code_name((grpc_status_code)i), (unsigned long long)m->n_status[i]);
    times(p, "vllm:time_to_first_token_seconds", "From arrival to the first token.", &m->ttft);
    times(p, "vllm:inter_token_latency_seconds", "From a token to the next one.", &m->itl);
    times(p, "vllm:e2e_request_latency_seconds",
          "From arrival to the end, for requests that end well.", &m->e2e);
    times(p, "vllm:request_queue_time_seconds",
          "From arrival until a prefill rank has the prompt, or the request gives up.", &m->queue);
    times(p, "vllm:request_prefill_time_seconds",
          "From the first order to a prefill rank until the first token.", &m->prefill);
    times(p, "vllm:request_decode_time_seconds",
          "From the first token to the end, for requests that end well.", &m->decode);
    times(p, "vllm:request_time_per_output_token_seconds",
          "Mean inter-token latency of a request that ends well.", &m->tpot);
    sizes(p, "vllm:request_prompt_tokens", "Prompt tokens of a request.", &m->prompt);
    sizes(p, "vllm:request_generation_tokens", "Generated tokens of a request.", &m->generated);
}

/* ---- ranks */

static void labels(page *p, const bt_snapshot *s, const char *name, uint32_t i, const char *more)
{
    const bt_rank_view *r = &s->ranks[i];

    fprintf(p->f, "%s{model_name=\"%s\",rank=\"%u\",role=\"%s\"", name, p->model, r->rank,
            bt_role_of(s, i));
    if (r->cell[0] != 0) fprintf(p->f, ",cell=\"%s\"", r->cell);
    fprintf(p->f, "%s} ", more);
}

/* A metric with one value a rank. */
typedef struct {
    const char *name, *more, *type; /* more: a label, or "" */
    double (*value)(const bt_rank_view *r);
    const char *help; /* "": the row before has it */
} rank_metric;

#define VALUE(name, expression) \
    static double name(const bt_rank_view *r) { return (double)(expression); }
VALUE(v_up, r->ready)
VALUE(v_slow, r->rates.slowness)
VALUE(v_loaded, r->done_bytes)
VALUE(v_weights, r->weight_bytes)
VALUE(v_requests, r->beat.n_requests)
VALUE(v_free, r->beat.pages_free)
VALUE(v_cached, r->beat.pages_cached)
VALUE(v_quarantined, r->beat.slots_quarantined)
VALUE(v_owned, (double)r->beat.pages_total - r->beat.pages_free - r->beat.pages_cached)
VALUE(v_total, r->n_pages)
VALUE(v_reserved, r->relay.taken_pages)
VALUE(v_sent_bytes, r->beat.handoff_bytes)
VALUE(v_sent_pages, r->beat.handoff_pages)
VALUE(v_steps, r->beat.steps)
VALUE(v_gather, (double)r->beat.gather_ns * 1e-9)
VALUE(v_model, (double)r->beat.model_ns * 1e-9)
VALUE(v_sample, (double)r->beat.sample_ns * 1e-9)
VALUE(v_prompt_rows, r->beat.prompt_rows)
VALUE(v_generated_rows, r->beat.generated_rows)
VALUE(v_asked, r->beat.prefix_asked_tokens)
VALUE(v_hit, r->beat.prefix_hit_tokens)
VALUE(v_drafts, r->beat.drafts)
VALUE(v_draft, r->beat.draft_tokens)
VALUE(v_right, r->beat.draft_right_tokens)

/* Rows with the same name follow each other. */
static const rank_metric RANK_METRICS[] = {
    {"baton_rank_ready",                     "",                    "gauge",   v_up,             "1 once the rank has loaded and takes part, else 0."},
    {"baton_rank_slowness",                  "",                    "gauge",   v_slow,
     "How many times as long the rank computes as others of its group, which wait for it; 0: it "
     "keeps pace."                                                                                                                                   },
    {"baton_rank_loaded_bytes",              "",                    "gauge",   v_loaded,         "Weights read so far."                              },
    {"baton_rank_weight_bytes",              "",                    "gauge",   v_weights,        "Weights that this rank holds."                     },
    {"baton_rank_requests",                  "",                    "gauge",   v_requests,
     "Requests on the rank; one that decodes counts once for each choice."                                                                           },
    {"baton_rank_pages",                     ",state=\"free\"",     "gauge",   v_free,
     "KV pages by state: free, cached, or owned by requests."                                                                                        },
    {"baton_rank_pages",                     ",state=\"cached\"",   "gauge",   v_cached,         ""                                                  },
    {"baton_rank_pages",                     ",state=\"owned\"",    "gauge",   v_owned,          ""                                                  },
    {"baton_rank_pool_pages",                "",                    "gauge",   v_total,          "KV pages of the rank's pool."                      },
    {"baton_rank_pages_reserved",            "",                    "gauge",   v_reserved,       "Pages that placed requests may need."              },
    {"baton_handoff_slots_quarantined",      "",                    "gauge",   v_quarantined,
     "Staging slots that a transfer of an ended request still reads."                                                                                },
    {"baton_handoff_sent_bytes_total",       "",                    "counter", v_sent_bytes,
     "Bytes of pages sent to decode ranks."                                                                                                          },
    {"baton_handoff_sent_pages_total",       "",                    "counter", v_sent_pages,     "Pages sent to decode ranks."                       },
    {"baton_rank_steps_total",               "",                    "counter", v_steps,          "Steps that had rows."                              },
    {"baton_rank_phase_seconds_total",       ",phase=\"gather\"",   "counter", v_gather,
     "Time of the step thread by phase."                                                                                                             },
    {"baton_rank_phase_seconds_total",       ",phase=\"model\"",    "counter", v_model,          ""                                                  },
    {"baton_rank_phase_seconds_total",       ",phase=\"sample\"",   "counter", v_sample,         ""                                                  },
    {"baton_rank_rows_total",                ",kind=\"prompt\"",    "counter", v_prompt_rows,
     "Rows computed for the rank's own requests."                                                                                                    },
    {"baton_rank_rows_total",                ",kind=\"generated\"", "counter", v_generated_rows, ""                                                  },
    {"baton_rank_prefix_asked_tokens_total", "",                    "counter", v_asked,
     "Prompt tokens looked up in the prefix cache."                                                                                                  },
    {"baton_rank_prefix_hit_tokens_total",   "",                    "counter", v_hit,
     "Prompt tokens found in the prefix cache."                                                                                                      },
    {"baton_rank_drafts_total",              "",                    "counter", v_drafts,
     "Drafts of which tokens were computed (--mtp, --speculate)."                                                                                    },
    {"baton_rank_draft_tokens_total",        "",                    "counter", v_draft,
     "Tokens of drafts that were computed."                                                                                                          },
    {"baton_rank_draft_right_tokens_total",  "",                    "counter", v_right,
     "Computed tokens of drafts that were right."                                                                                                    },
};

static void rank_histogram(page *p, const bt_snapshot *s, uint32_t i, const char *name,
                           const uint64_t *counts, uint32_t n, double unit, double sum)
{
    uint64_t seen = 0;
    char     le[64], bucket[128], part[128];

    snprintf(bucket, sizeof(bucket), "%s_bucket", name);
    for (uint32_t k = 0; k < n; k++) {
        seen += counts[k];
        if (k + 1 < n)
            snprintf(le, sizeof(le), ",le=\"%g\"", unit * (double)(1u << k));
        else
            snprintf(le, sizeof(le), ",le=\"+Inf\"");
        labels(p, s, bucket, i, le);
        fprintf(p->f, "%llu\n", (unsigned long long)seen);
    }
    snprintf(part, sizeof(part), "%s_sum", name);
    labels(p, s, part, i, "");
    fprintf(p->f, "%.17g\n", sum);
    snprintf(part, sizeof(part), "%s_count", name);
    labels(p, s, part, i, "");
    fprintf(p->f, "%llu\n", (unsigned long long)seen);
}

/* One series for each expert and group: as many as the model has, however many ranks there are. */
static void experts(page *p, const bt_cell_counts *c)
{
    family(p, "baton_expert_rows_total", "counter", "Rows that an expert ran, over all layers.");
    for (uint32_t group = 0; group < c->n_groups; group++)
        for (uint32_t e = 0; e < c->n_experts; e++)
            fprintf(p->f,
                    "baton_expert_rows_total{model_name=\"%s\",role=\"%s\",expert=\"%u\"} %llu\n",
                    p->model,
                    c->n_groups == 1 ? "both"
                    : group == 0     ? "prefill"
                                     : "decode",
                    e, (unsigned long long)c->expert_rows[group][e]);
}

/* The end of a line of two ranks; cell: "" without a name. */
static void end_of_link(page *p, uint32_t from, uint32_t to, const char *cell, double value)
{
    fprintf(p->f, "from=\"%u\",to=\"%u\"", from, to);
    if (cell[0] != 0) fprintf(p->f, ",cell=\"%s\"", cell);
    fprintf(p->f, "} %.17g\n", value);
}

/* Of the pairs that are named only. */
static void slow_links(page *p, const bt_snapshot *s)
{
    family(p, "baton_link_slowness", "gauge",
           "Slow links between ranks: how many times as slow as the median of pairs.");
    for (uint32_t i = 0; i < s->n_slow_links; i++) {
        const bt_link_view *v = &s->slow_links[i];

        fprintf(p->f, "baton_link_slowness{model_name=\"%s\",plane=\"%s\",", p->model,
                bt_pair_kind_name(v->pair.kind));
        end_of_link(p, v->pair.from, v->pair.to, v->cell, v->pair.slowness);
    }
}

static void avoided_links(page *p, const bt_snapshot *s)
{
    family(p, "baton_handoff_avoided_seconds", "gauge",
           "Pairs of ranks that nothing is handed over between, since a hand-off stood still: for "
           "how long yet.");
    for (uint32_t i = 0; i < s->n_avoided_links; i++) {
        const bt_avoided_link_view *v = &s->avoided_links[i];

        fprintf(p->f, "baton_handoff_avoided_seconds{model_name=\"%s\",", p->model);
        end_of_link(p, v->pair.from, v->pair.to, v->cell, (double)v->pair.left_ns * 1e-9);
    }
}

/* A lost rank has nothing any more: its gauges are 0, what it has counted stays. */
static void ranks(page *p, const bt_snapshot *s)
{
    for (size_t k = 0; k < sizeof(RANK_METRICS) / sizeof(RANK_METRICS[0]); k++) {
        const rank_metric *m     = &RANK_METRICS[k];
        bool               gauge = strcmp(m->type, "gauge") == 0;

        if (m->help[0] != 0) family(p, m->name, m->type, m->help);
        for (uint32_t i = 0; i < s->n_ranks; i++) {
            labels(p, s, m->name, i, m->more);
            fprintf(p->f, "%.17g\n", gauge && s->ranks[i].lost ? 0 : m->value(&s->ranks[i]));
        }
    }
    family(p, "baton_step_seconds", "histogram", "Time of a step in the model's layers.");
    for (uint32_t i = 0; i < s->n_ranks; i++)
        rank_histogram(p, s, i, "baton_step_seconds", s->ranks[i].beat.step_times,
                       BT_BEAT_TIME_BUCKETS, BT_BEAT_TIME_NS * 1e-9,
                       (double)s->ranks[i].beat.model_ns * 1e-9);
    family(p, "baton_handoff_seconds", "histogram",
           "From a prompt's last computed row until its last page message has left.");
    for (uint32_t i = 0; i < s->n_ranks; i++)
        rank_histogram(p, s, i, "baton_handoff_seconds", s->ranks[i].beat.handoff_times,
                       BT_BEAT_TIME_BUCKETS, BT_BEAT_TIME_NS * 1e-9,
                       (double)s->ranks[i].beat.handoff_ns * 1e-9);
    family(p, "baton_batch_rows", "histogram", "Rows of a rank's own requests in a step.");
    for (uint32_t i = 0; i < s->n_ranks; i++)
        rank_histogram(p, s, i, "baton_batch_rows", s->ranks[i].beat.batch_rows,
                       BT_BEAT_BATCH_BUCKETS, 1,
                       (double)(s->ranks[i].beat.prompt_rows + s->ranks[i].beat.generated_rows));
    one(p, "vllm:prefix_cache_queries_total", "counter", "Tokens looked up in prefix caches.",
        (double)s->counts.prefix_asked_tokens);
    one(p, "vllm:prefix_cache_hits_total", "counter", "Tokens found in prefix caches.",
        (double)s->counts.prefix_hit_tokens);
    one(p, "vllm:spec_decode_num_drafts_total", "counter", "Drafts.", (double)s->counts.drafts);
    one(p, "vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens of drafts, computed.",
        (double)s->counts.draft_tokens);
    one(p, "vllm:spec_decode_num_accepted_tokens_total", "counter",
        "Tokens of drafts that were right.", (double)s->counts.draft_right_tokens);
}

/* ---- the coordinator's process: what Prometheus's client libraries tell of any */

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec * 1e-6; }

static double resident_bytes(void)
{
    unsigned long long n_pages = 0;
    FILE              *f       = fopen("/proc/self/statm", "re");

    if (f == NULL) return 0;
    if (fscanf(f, "%*u %llu", &n_pages) != 1) n_pages = 0;
    fclose(f);
    return (double)n_pages * (double)sysconf(_SC_PAGESIZE);
}

static double open_files(void)
{
    DIR   *dir = opendir("/proc/self/fd");
    double n   = -3; /* ".", ".." and the directory itself */

    if (dir == NULL) return 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static void process(page *p, const bt_snapshot *s)
{
    struct rusage used  = {0};
    struct rlimit files = {0};

    getrusage(RUSAGE_SELF, &used);
    getrlimit(RLIMIT_NOFILE, &files);
    one(p, "process_cpu_seconds_total", "counter", "CPU time, user and system.",
        seconds(used.ru_utime) + seconds(used.ru_stime));
    one(p, "process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    one(p, "process_open_fds", "gauge", "Open file descriptors.", open_files());
    one(p, "process_max_fds", "gauge", "How many there may be.", (double)files.rlim_cur);
    one(p, "process_start_time_seconds", "gauge", "When the process started, in Unix time.",
        s->started_unix_s);
}

char *bt_exposition_prometheus(const bt_snapshot *s, size_t *n_out)
{
    char *text = NULL;
    page  p    = {.model = escape(s->served_name)};

    if (p.model != NULL) p.f = open_memstream(&text, n_out);
    if (p.f == NULL) goto out;
    family(&p, "baton_info", "gauge", "The version; always 1.");
    fprintf(p.f, "baton_info{model_name=\"%s\",version=\"" BT_VERSION "\"} 1\n", p.model);
    one(&p, "baton_ready", "gauge", "1 while the public port takes requests, else 0.",
        s->phase == BT_PHASE_SERVING);
    one(&p, "baton_tls_files_refused", "gauge",
        "1 while what the TLS files hold cannot be used and what they held before is, else 0.",
        s->tls_refused);
    one(&p, "baton_uptime_seconds", "gauge", "Time since the coordinator started.",
        (double)(s->at_ns - s->started_ns) * 1e-9);
    process(&p, s);
    requests(&p, s);
    ranks(&p, s);
    slow_links(&p, s);
    avoided_links(&p, s);
    experts(&p, &s->counts);
    if (fclose(p.f) != 0) {
        free(text);
        text = NULL;
    }
out:
    bt_free(p.model);
    return text;
}
