/* What both directions share: packing, and checked copies out of protobuf messages. */
#include "proto/control_msg.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "proto/control_pb.h"
#include "proto/message_text.h"

static void *pb_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return bt_calloc(size, 1);
}

static void pb_dealloc(void *ctx, void *ptr)
{
    (void)ctx;
    bt_free(ptr);
}

static ProtobufCAllocator pb_allocator = {.alloc = pb_alloc,
                                          .free  = pb_dealloc}; /* never written */

bt_status bt_pb_pack(const ProtobufCMessage *m, uint8_t **bytes_out, size_t *n_out)
{
    bt_status st    = BT_OK;
    size_t    n     = protobuf_c_message_get_packed_size(m);
    uint8_t  *bytes = bt_calloc(n, 1);

    BT_REQUIRE(bytes != NULL, BT_ERR_NO_MEMORY, "control message of %zu bytes", n);
    *n_out     = protobuf_c_message_pack(m, bytes);
    *bytes_out = bytes;
out:
    return st;
}

bt_status bt_pb_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                       const char *from, ProtobufCMessage **pb_out)
{
    bt_status         st = BT_OK;
    ProtobufCMessage *pb = protobuf_c_message_unpack(type, &pb_allocator, n, bytes);
    char              why[256];

    BT_REQUIRE(pb != NULL, BT_ERR_PROTOCOL, "%zu bytes cannot be parsed as a message of %s", n,
               from);
    BT_REQUIRE(bt_message_text_ok(type, bytes, n, UINT64_MAX, why, sizeof(why)), BT_ERR_PROTOCOL,
               "a message of %s: %s", from, why);
    *pb_out = pb;
    pb      = NULL; /* handed over */
out:
    bt_pb_free(pb);
    return st;
}

void bt_pb_free(ProtobufCMessage *pb)
{
    if (pb != NULL) protobuf_c_message_free_unpacked(pb, &pb_allocator);
}

bt_status bt_pb_take_string(const char *text, char **text_out)
{
    bt_status st = BT_OK;
    char     *copy;

    copy = bt_strdup(text);
    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "a text of %zu bytes", strlen(text));
    *text_out = copy;
out:
    return st;
}

bt_status bt_pb_take_bytes(const ProtobufCBinaryData *data, const char *field, void **bytes_out,
                           size_t *n_out)
{
    bt_status st = BT_OK;
    void     *copy;

    BT_REQUIRE(data->len % 4 == 0, BT_ERR_PROTOCOL, "%s has %zu bytes, expected a multiple of 4",
               field, data->len);
    if (data->len == 0) goto out;
    copy = bt_copy(data->data, data->len, 1);
    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "%s of %zu bytes", field, data->len);
    *bytes_out = copy;
    *n_out     = data->len;
out:
    return st;
}

bt_status bt_pb_take_map(const ProtobufCBinaryData *data, void **bytes_out, size_t *n_out)
{
    bt_status st = BT_OK;

    BT_REQUIRE(data->len % BT_PAGE_MAP_BYTES == 0, BT_ERR_PROTOCOL,
               "a form map of %zu bytes, expected a multiple of %d", data->len, BT_PAGE_MAP_BYTES);
    BT_TRY(bt_pb_take_bytes(data, "form_map", bytes_out, n_out));
out:
    return st;
}

bt_status bt_pb_take_u32s(const uint32_t *values, size_t n, uint32_t **values_out, uint32_t *n_out)
{
    bt_status st = BT_OK;
    uint32_t *copy;

    if (n == 0) goto out;
    copy = bt_copy(values, n, sizeof(*copy));
    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "list of %zu numbers", n);
    *values_out = copy;
    *n_out      = (uint32_t)n;
out:
    return st;
}

bt_status bt_pb_take_floats(const float *values, size_t n, float **values_out)
{
    bt_status st = BT_OK;
    float    *copy;

    if (n == 0) goto out;
    copy = bt_copy(values, n, sizeof(*copy));
    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "list of %zu floats", n);
    *values_out = copy;
out:
    return st;
}

bt_status bt_pb_take_pages(PB(Page) **pages, size_t n, bt_page_ref **pages_out, uint32_t *n_out)
{
    bt_status    st = BT_OK;
    bt_page_ref *refs;

    if (n == 0) goto out;
    refs = bt_calloc(n, sizeof(*refs));
    BT_REQUIRE(refs != NULL, BT_ERR_NO_MEMORY, "ticket of %zu pages", n);
    for (size_t i = 0; i < n; i++)
        refs[i] = (bt_page_ref){pages[i]->id, pages[i]->generation};
    *pages_out = refs;
    *n_out     = (uint32_t)n;
out:
    return st;
}

bt_status bt_pb_make_pages(const bt_page_ref *refs, size_t n, PB(Page) ***pages_out)
{
    bt_status  st = BT_OK;
    PB(Page) **table, *pages;

    table = bt_calloc(n, sizeof(*table) + sizeof(*pages));
    BT_REQUIRE(table != NULL, BT_ERR_NO_MEMORY, "ticket of %zu pages", n);
    pages = (PB(Page) *)(void *)(table + n);
    for (size_t i = 0; i < n; i++) {
        baton__control__v1__page__init(&pages[i]);
        pages[i].id         = refs[i].id;
        pages[i].generation = refs[i].generation;
        table[i]            = &pages[i];
    }
    *pages_out = table;
out:
    return st;
}

static bt_status take_bias(const PB(Sampling) *pb, bt_sampling *s)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->n_bias_ids == pb->n_biases && pb->n_biases <= BT_LOGIT_BIASES_MAX,
               BT_ERR_PROTOCOL, "%zu biases of %zu tokens, expected as many, and at most %d",
               pb->n_biases, pb->n_bias_ids, BT_LOGIT_BIASES_MAX);
    for (size_t i = 0; i < pb->n_biases; i++)
        BT_REQUIRE(isfinite(pb->biases[i]), BT_ERR_PROTOCOL, "the bias of token %u is %.9g",
                   pb->bias_ids[i], (double)pb->biases[i]);
    BT_TRY(bt_pb_take_floats(pb->biases, pb->n_biases, &s->biases));
    BT_TRY(bt_pb_take_u32s(pb->bias_ids, pb->n_bias_ids, &s->bias_ids, &s->n_bias));
out:
    return st;
}

static bt_status check_filters(const PB(Sampling) *pb)
{
    bt_status st = BT_OK;

    BT_REQUIRE(isfinite(pb->top_p) && pb->top_p >= 0 && isfinite(pb->min_p) && pb->min_p >= 0,
               BT_ERR_PROTOCOL, "top_p %.9g and min_p %.9g, expected finite numbers >= 0",
               (double)pb->top_p, (double)pb->min_p);
    BT_REQUIRE(isfinite(pb->frequency_penalty) && isfinite(pb->presence_penalty) &&
                   isfinite(pb->repetition_penalty) && pb->repetition_penalty >= 0,
               BT_ERR_PROTOCOL, "penalties %.9g, %.9g and %.9g (of repetition)",
               (double)pb->frequency_penalty, (double)pb->presence_penalty,
               (double)pb->repetition_penalty);
    BT_REQUIRE(pb->top_logprobs <= BT_TOP_LOGPROBS_MAX &&
                   pb->prompt_logprobs <= BT_TOP_LOGPROBS_MAX + 1,
               BT_ERR_PROTOCOL, "%u top logprobs and prompt_logprobs %u, expected at most %d (+ 1)",
               pb->top_logprobs, pb->prompt_logprobs, BT_TOP_LOGPROBS_MAX);
out:
    return st;
}

static bt_status copy_constraint(const void *text, size_t n, bt_sampling *s)
{
    bt_status st = BT_OK;

    s->constraint = bt_copy(text, n, 1);
    BT_REQUIRE(s->constraint != NULL, BT_ERR_NO_MEMORY, "a constraint of %zu bytes", n);
    s->n_constraint_bytes = (uint32_t)n;
out:
    return st;
}

bt_status bt_pb_take_sampling(const PB(Sampling) *pb, bool eval, bt_sampling *sampling_out)
{
    bt_status   st = BT_OK;
    bt_sampling s  = {0};

    BT_REQUIRE(pb != NULL || eval, BT_ERR_PROTOCOL, "a request without sampling parameters");
    if (pb == NULL) goto out;
    BT_REQUIRE(isfinite(pb->temperature) && pb->temperature >= 0, BT_ERR_PROTOCOL,
               "temperature is %.9g, expected a finite number >= 0", (double)pb->temperature);
    BT_REQUIRE(pb->max_tokens >= 1 || eval, BT_ERR_PROTOCOL, "max_tokens is 0");
    BT_REQUIRE(pb->n_stop_token_ids <= BT_STOP_TOKENS_MAX, BT_ERR_PROTOCOL,
               "%zu stop tokens, expected at most %d", pb->n_stop_token_ids, BT_STOP_TOKENS_MAX);
    BT_TRY(check_filters(pb));
#define TAKE(field) s.field = pb->field;
    BT_PB_SAMPLING(TAKE);
#undef TAKE
    BT_TRY(take_bias(pb, &s));
    BT_TRY(bt_pb_take_u32s(pb->stop_token_ids, pb->n_stop_token_ids, &s.stop_tokens, &s.n_stop));
    if (pb->constraint_kind != 0)
        BT_TRY(copy_constraint(pb->constraint.data, pb->constraint.len, &s));
    *sampling_out = bt_sampling_take(&s);
out:
    bt_sampling_free(&s);
    return st;
}

bt_sampling bt_sampling_take(bt_sampling *from)
{
    bt_sampling taken = *from;

    from->n_stop = from->n_bias = from->n_constraint_bytes = 0;
    from->stop_tokens = from->bias_ids = NULL;
    from->biases                       = NULL;
    from->constraint                   = NULL;
    return taken;
}

void bt_sampling_free(bt_sampling *s)
{
    bt_free(s->stop_tokens);
    bt_free(s->bias_ids);
    bt_free(s->biases);
    bt_free(s->constraint);
    bt_sampling_take(s);
}

bt_status bt_sampling_copy(const bt_sampling *from, bt_sampling *to_out)
{
    bt_status   st = BT_OK;
    bt_sampling s = *from, borrowed = bt_sampling_take(&s);

    BT_TRY(bt_pb_take_u32s(borrowed.stop_tokens, borrowed.n_stop, &s.stop_tokens, &s.n_stop));
    BT_TRY(bt_pb_take_u32s(borrowed.bias_ids, borrowed.n_bias, &s.bias_ids, &s.n_bias));
    BT_TRY(bt_pb_take_floats(borrowed.biases, borrowed.n_bias, &s.biases));
    if (borrowed.constraint != NULL)
        BT_TRY(copy_constraint(borrowed.constraint, borrowed.n_constraint_bytes, &s));
    *to_out = bt_sampling_take(&s);
out:
    bt_sampling_free(&s);
    return st;
}

void bt_pb_make_sampling(const bt_sampling *sampling, PB(Sampling) *pb_out)
{
    baton__control__v1__sampling__init(pb_out);
#define PUT(field) pb_out->field = sampling->field;
    BT_PB_SAMPLING(PUT);
#undef PUT
    pb_out->n_stop_token_ids = sampling->n_stop;
    pb_out->stop_token_ids   = sampling->stop_tokens;
    pb_out->n_bias_ids = pb_out->n_biases = sampling->n_bias;
    pb_out->bias_ids                      = sampling->bias_ids;
    pb_out->biases                        = sampling->biases;
    pb_out->constraint.len                = sampling->n_constraint_bytes;
    pb_out->constraint.data               = (uint8_t *)sampling->constraint;
}
