#include "cli/eval_cases.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/file.h"
#include "model/safetensors.h"

enum { MAX_TOKENS = 1 << 24, FOUND_BYTES = 32 + 24 * BT_MAX_TENSOR_DIMS };

/* The suffix after the last dot when it is one of ours, else NULL. */
static const char *suffix_of(const char *name)
{
    static const char *const KNOWN[] = {".ids", ".prompt", ".experts"};
    const char              *dot     = strrchr(name, '.');

    for (size_t i = 0; dot != NULL && dot != name && i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++) {
        if (strcmp(dot, KNOWN[i]) == 0) return dot;
    }
    return NULL;
}

static const bt_tensor *part(const bt_safetensors *st, const char *name, const char *suffix)
{
    char full[BT_EVAL_NAME_BYTES + 16];

    snprintf(full, sizeof(full), "%s%s", name, suffix);
    return bt_safetensors_find(st, full);
}

/* "i32 [3, 4]": what the file holds in a tensor's place. */
static const char *found(const bt_tensor *t, char *buf, size_t capacity)
{
    size_t n;

    if (t == NULL) return "no such tensor";
    n = (size_t)snprintf(buf, capacity, "%s [", bt_st_dtype_name(t->dtype));
    for (char *p = buf; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p); /* as the expected type is written */
    for (uint32_t i = 0; i < t->n_dims && n < capacity; i++) {
        n += (size_t)snprintf(buf + n, capacity - n, "%s%llu", i == 0 ? "" : ", ",
                              (unsigned long long)t->shape[i]);
    }
    if (n < capacity) snprintf(buf + n, capacity - n, "]");
    return buf;
}

static int32_t i32_at(const bt_tensor *t, size_t i)
{
    int32_t v;

    memcpy(&v, (const char *)t->data + i * sizeof(v), sizeof(v)); /* tensors are not aligned */
    return v;
}

/* Once the vocabulary is known. */
static bt_status check_ids(const bt_eval_cases *cases, const bt_eval_case *c)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; cases->vocab != 0 && i < c->n_tokens; i++) {
        BT_REQUIRE(c->ids[i] < cases->vocab, BT_ERR_INVALID_ARG,
                   "%s: %s.ids[%u] is %u, the model's vocabulary has %u ids", cases->path, c->name,
                   i, c->ids[i], cases->vocab);
    }
out:
    return st;
}

static bt_status read_ids(const bt_safetensors *file, const char *path, bt_eval_case *c)
{
    bt_status        st     = BT_OK;
    const bt_tensor *ids    = part(file, c->name, ".ids");
    const bt_tensor *prompt = part(file, c->name, ".prompt");
    char             text[FOUND_BYTES];

    BT_REQUIRE(ids->dtype == BT_ST_I32 && ids->n_dims == 1 && ids->shape[0] >= 1 &&
                   ids->shape[0] <= MAX_TOKENS,
               BT_ERR_FORMAT, "%s: %s.ids: expected i32 [T] with T from 1 to %d, found %s", path,
               c->name, MAX_TOKENS, found(ids, text, sizeof(text)));
    BT_REQUIRE(prompt != NULL && prompt->dtype == BT_ST_I32 && prompt->n_dims == 1 &&
                   prompt->shape[0] == 1,
               BT_ERR_FORMAT, "%s: %s.prompt: expected i32 [1], the length of the prompt, found %s",
               path, c->name, found(prompt, text, sizeof(text)));
    c->n_tokens = (uint32_t)ids->shape[0];
    BT_REQUIRE(i32_at(prompt, 0) >= 1 && i32_at(prompt, 0) <= (int32_t)c->n_tokens,
               BT_ERR_INVALID_ARG, "%s: %s.prompt is %d, expected 1 to %u (the tokens of %s.ids)",
               path, c->name, i32_at(prompt, 0), c->n_tokens, c->name);
    c->n_prompt = (uint32_t)i32_at(prompt, 0);
    c->ids      = bt_calloc(c->n_tokens, sizeof(*c->ids));
    BT_REQUIRE(c->ids != NULL, BT_ERR_NO_MEMORY, "%u ids", c->n_tokens);
    for (uint32_t i = 0; i < c->n_tokens; i++) {
        BT_REQUIRE(i32_at(ids, i) >= 0, BT_ERR_INVALID_ARG,
                   "%s: %s.ids[%u] is %d, expected an id of the vocabulary", path, c->name, i,
                   i32_at(ids, i));
        c->ids[i] = (uint32_t)i32_at(ids, i);
    }
out:
    return st;
}

static bt_status read_forced(const bt_safetensors *file, const char *path, bt_eval_cases *cases,
                             bt_eval_case *c)
{
    bt_status        st = BT_OK;
    const bt_tensor *t  = part(file, c->name, ".experts");
    char             text[FOUND_BYTES];

    if (t == NULL) goto out;
    BT_REQUIRE(cases->top_k != 0, BT_ERR_INVALID_ARG,
               "%s: %s.experts forces a routing, but the model has no experts", path, c->name);
    BT_REQUIRE(t->dtype == BT_ST_I32 && t->n_dims == 3 && t->shape[0] >= 1 &&
                   t->shape[0] <= UINT16_MAX && t->shape[1] == c->n_tokens &&
                   t->shape[2] == cases->top_k,
               BT_ERR_FORMAT, "%s: %s.experts: expected i32 [MoE layers, %u, %u], found %s", path,
               c->name, c->n_tokens, cases->top_k, found(t, text, sizeof(text)));
    BT_REQUIRE(cases->n_moe == 0 || cases->n_moe == t->shape[0], BT_ERR_FORMAT,
               "%s: %s.experts has %u layers, another case has %u", path, c->name,
               (unsigned)t->shape[0], cases->n_moe);
    cases->n_moe = (uint32_t)t->shape[0];
    c->forced    = bt_copy(t->data, t->bytes, 1);
    BT_REQUIRE(c->forced != NULL, BT_ERR_NO_MEMORY, "%zu bytes of experts", t->bytes);
out:
    return st;
}

/* A case for each NAME.ids, and no other tensor without one. */
static bt_status collect_names(const bt_safetensors *file, const char *path, bt_eval_cases *cases)
{
    bt_status st    = BT_OK;
    size_t    count = bt_safetensors_count(file);

    cases->cases = bt_calloc(count, sizeof(*cases->cases));
    BT_REQUIRE(cases->cases != NULL, BT_ERR_NO_MEMORY, "%zu cases", count);
    for (size_t i = 0; i < count; i++) {
        const char *name   = bt_safetensors_at(file, i)->name;
        const char *suffix = suffix_of(name);

        BT_REQUIRE(suffix != NULL, BT_ERR_FORMAT,
                   "%s: tensor %s: expected NAME.ids, NAME.prompt or NAME.experts", path, name);
        BT_REQUIRE((size_t)(suffix - name) < BT_EVAL_NAME_BYTES, BT_ERR_FORMAT,
                   "%s: the name of case %s is longer than %d bytes", path, name,
                   BT_EVAL_NAME_BYTES - 1);
        memcpy(cases->cases[cases->n].name, name, (size_t)(suffix - name));
        cases->cases[cases->n].name[suffix - name] = '\0';
        BT_REQUIRE(part(file, cases->cases[cases->n].name, ".ids") != NULL, BT_ERR_FORMAT,
                   "%s: %s.ids is missing beside the case's other tensors", path,
                   cases->cases[cases->n].name);
        if (strcmp(suffix, ".ids") == 0) cases->n++;
    }
    BT_REQUIRE(cases->n != 0, BT_ERR_FORMAT, "%s holds no case (NAME.ids and NAME.prompt)", path);
out:
    return st;
}

bt_status bt_eval_cases_read(const char *path, uint32_t top_k, uint32_t vocab, bt_eval_cases *cases)
{
    bt_status       st   = BT_OK;
    bt_safetensors *file = NULL;
    struct stat     info;

    cases->path  = path;
    cases->top_k = top_k;
    cases->vocab = vocab;
    BT_REQUIRE(stat(path, &info) == 0, BT_ERR_IO, "--ids %s: %s", path, strerror(errno));
    BT_REQUIRE(S_ISREG(info.st_mode), BT_ERR_IO,
               "--ids %s: expected a safetensors file with the cases, found %s", path,
               bt_file_kind(info.st_mode));
    BT_TRY(bt_safetensors_open(path, &file));
    BT_TRY(collect_names(file, path, cases));
    for (size_t i = 0; i < cases->n; i++) {
        BT_TRY(read_ids(file, path, &cases->cases[i]));
        BT_TRY(check_ids(cases, &cases->cases[i]));
        BT_TRY(read_forced(file, path, cases, &cases->cases[i]));
    }
out:
    bt_safetensors_close(file);
    return st;
}

void bt_eval_cases_free(bt_eval_cases *cases)
{
    for (size_t i = 0; i < cases->n; i++) {
        bt_eval_case *c = &cases->cases[i];

        bt_free(c->ids);
        bt_free(c->forced);
        bt_free(c->logits);
        bt_free(c->experts);
        bt_free(c->seen);
    }
    bt_free(cases->cases);
    memset(cases, 0, sizeof(*cases));
}

bt_status bt_eval_cases_check(bt_eval_cases *cases, uint32_t vocab, uint32_t max_context)
{
    bt_status st = BT_OK;

    cases->vocab = vocab;
    for (size_t i = 0; i < cases->n; i++) {
        const bt_eval_case *c = &cases->cases[i];

        BT_REQUIRE(c->n_tokens <= max_context, BT_ERR_INVALID_ARG,
                   "%s: case %s has %u tokens, the model's context is %u", cases->path, c->name,
                   c->n_tokens, max_context);
        BT_TRY(check_ids(cases, c));
    }
out:
    return st;
}

bt_status bt_eval_case_prepare(const bt_eval_cases *cases, bt_eval_case *c)
{
    bt_status st = BT_OK;

    c->logits = bt_calloc(c->n_tokens, cases->vocab * sizeof(*c->logits));
    c->seen   = bt_calloc(c->n_tokens, sizeof(*c->seen));
    BT_REQUIRE(c->logits != NULL && c->seen != NULL, BT_ERR_NO_MEMORY,
               "%u rows of %u logits for case %s", c->n_tokens, cases->vocab, c->name);
out:
    return st;
}

static void sort_ascending(int32_t *ids, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        int32_t  id = ids[i];
        uint32_t k  = i;

        for (; k > 0 && ids[k - 1] > id; k--)
            ids[k] = ids[k - 1];
        ids[k] = id;
    }
}

/* The first rows tell how many MoE layers there are: bytes = n_moe * n_rows * top_k * 4.  A config
 * may name experts that none of its layers has. */
static bt_status learn_layers(bt_eval_cases *cases, bt_eval_case *c, uint32_t n_rows, size_t bytes)
{
    bt_status st = BT_OK;
    size_t    one;
    uint32_t  n_moe;

    if (bytes == 0 && cases->n_moe == 0) cases->top_k = 0;
    one = (size_t)n_rows * cases->top_k * sizeof(int32_t);
    if (cases->top_k == 0) {
        BT_REQUIRE(bytes == 0, BT_ERR_PROTOCOL,
                   "case %s: %zu bytes of experts from a model that has none", c->name, bytes);
        goto out;
    }
    n_moe = cases->n_moe != 0 ? cases->n_moe : (uint32_t)(bytes / one);
    BT_REQUIRE(n_moe != 0 && bytes == n_moe * one, BT_ERR_PROTOCOL,
               "case %s: %zu bytes of experts for %u rows, expected %u layers of %zu", c->name,
               bytes, n_rows, n_moe, one);
    cases->n_moe = n_moe;
    if (c->experts == NULL) {
        c->experts = bt_calloc((size_t)cases->n_moe * c->n_tokens, cases->top_k * sizeof(int32_t));
        BT_REQUIRE(c->experts != NULL, BT_ERR_NO_MEMORY, "experts of case %s", c->name);
    }
out:
    return st;
}

/* The serving ranks refuse a token that is chosen of such logits. */
static bt_status check_finite(const bt_eval_cases *cases, const bt_eval_case *c, uint32_t position,
                              uint32_t n_rows)
{
    bt_status    st = BT_OK;
    const float *x  = c->logits + (size_t)position * cases->vocab;

    for (size_t i = 0; i < (size_t)n_rows * cases->vocab; i++) {
        BT_REQUIRE(
            isfinite(x[i]), BT_ERR_FORMAT,
            "case %s: the logit of token %zu in row %zu is %g, expected a finite number: the "
            "model may be damaged",
            c->name, i % cases->vocab, position + i / cases->vocab, (double)x[i]);
    }
out:
    return st;
}

bt_status bt_eval_case_rows(bt_eval_cases *cases, bt_eval_case *c, uint32_t position,
                            uint32_t n_rows, const void *logits, size_t n_logit_bytes,
                            const void *experts, size_t n_expert_bytes)
{
    bt_status st        = BT_OK;
    size_t    row_bytes = cases->vocab * sizeof(float);
    size_t    k_bytes   = cases->top_k * sizeof(int32_t);

    BT_REQUIRE(n_rows != 0 && position < c->n_tokens && n_rows <= c->n_tokens - position,
               BT_ERR_PROTOCOL, "case %s: rows %u and %u on, the case has %u", c->name, position,
               n_rows, c->n_tokens);
    BT_REQUIRE(n_logit_bytes == n_rows * row_bytes, BT_ERR_PROTOCOL,
               "case %s: %zu bytes of logits for %u rows, expected %zu", c->name, n_logit_bytes,
               n_rows, n_rows * row_bytes);
    BT_TRY(learn_layers(cases, c, n_rows, n_expert_bytes));
    for (uint32_t i = 0; i < n_rows; i++) {
        BT_REQUIRE(!c->seen[position + i], BT_ERR_PROTOCOL, "case %s: row %u came twice", c->name,
                   position + i);
        c->seen[position + i] = true;
    }
    c->n_seen += n_rows;
    memcpy(c->logits + (size_t)position * cases->vocab, logits, n_logit_bytes);
    BT_TRY(check_finite(cases, c, position, n_rows));
    for (uint32_t layer = 0; cases->top_k != 0 && layer < cases->n_moe; layer++) {
        int32_t *to = c->experts + ((size_t)layer * c->n_tokens + position) * cases->top_k;

        memcpy(to, (const char *)experts + layer * n_rows * k_bytes, n_rows * k_bytes);
        for (uint32_t i = 0; i < n_rows; i++)
            sort_ascending(to + i * cases->top_k, cases->top_k);
    }
out:
    return st;
}

/* One or two tensors per case; returns how many. */
static size_t describe(const bt_eval_cases *cases, const bt_eval_case *c, char (*names)[160],
                       bt_tensor *tensors)
{
    snprintf(names[0], sizeof(names[0]), "%s.logits", c->name);
    tensors[0] = (bt_tensor){
        .name   = names[0],
        .dtype  = BT_ST_F32,
        .n_dims = 2,
        .shape  = {c->n_tokens, cases->vocab},
        .data   = c->logits,
        .bytes  = (size_t)c->n_tokens * cases->vocab * sizeof(float)
    };
    if (c->experts == NULL) return 1;
    snprintf(names[1], sizeof(names[1]), "%s.experts", c->name);
    tensors[1] = (bt_tensor){
        .name   = names[1],
        .dtype  = BT_ST_I32,
        .n_dims = 3,
        .shape  = {cases->n_moe, c->n_tokens, cases->top_k},
        .data   = c->experts,
        .bytes  = (size_t)cases->n_moe * c->n_tokens * cases->top_k * sizeof(int32_t)
    };
    return 2;
}

bt_status bt_eval_cases_write(const bt_eval_cases *cases, const char *path)
{
    bt_status st       = BT_OK;
    char(*names)[160]  = bt_calloc(2 * cases->n, sizeof(*names));
    bt_tensor *tensors = bt_calloc(2 * cases->n, sizeof(*tensors));
    size_t     n       = 0;

    BT_REQUIRE(names != NULL && tensors != NULL, BT_ERR_NO_MEMORY, "the names of %zu tensors",
               2 * cases->n);
    for (size_t i = 0; i < cases->n; i++) {
        n += describe(cases, &cases->cases[i], names + n, tensors + n);
    }
    BT_TRY(bt_safetensors_write(path, n, tensors)); /* whole, or not at all */
out:
    bt_free(tensors);
    bt_free(names);
    return st;
}
