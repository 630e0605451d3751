/* libFuzzer: any bytes are no GenerateRequest of either protocol, are refused with words, or make a
 * request that keeps to every limit. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "coordinator/dialect.h"
#include "core/alloc.h"
#include "proto/message_text.h"
#include "proto/sglang_scheduler.pb-c.h"
#include "proto/text.h"
#include "proto/vllm_engine.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const bt_intake_limits LIMITS = {.vocab_size  = 100,
                                        .max_context = 64,
                                        .page_tokens = 8,
                                        .max_tokens  = 48,
                                        .max_prompt  = 40,
                                        .tokenizer   = true};

static void check(const bt_relay_submission *r, const bt_intake_answer *answer)
{
    BT_ASSERT(answer->prompt_from < r->n_prompt);
    BT_ASSERT(r->n_prompt >= 1 && r->n_prompt <= LIMITS.max_prompt);
    BT_ASSERT(r->sampling.max_tokens >= 1 &&
              r->n_prompt + r->sampling.max_tokens <= LIMITS.max_tokens);
    BT_ASSERT(isfinite(r->sampling.temperature) && r->sampling.temperature >= 0);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        BT_ASSERT(r->prompt[i] < LIMITS.vocab_size);
    for (uint32_t i = 0; i < r->sampling.n_stop; i++)
        BT_ASSERT(r->sampling.stop_tokens[i] < LIMITS.vocab_size);
    BT_ASSERT(r->name[0] != 0 && bt_text_is_utf8(r->name));
}

static void take(const ProtobufCMessageDescriptor *kind, const bt_dialect *dialect,
                 const uint8_t *data, size_t n)
{
    ProtobufCMessage   *pb                  = protobuf_c_message_unpack(kind, NULL, n, data);
    bt_relay_submission r                   = {0};
    bt_intake_answer    answer              = {0};
    char                why[BT_INTAKE_TEXT] = "";
    long                live                = bt_alloc_live();

    if (pb == NULL) return;
    if (!bt_message_text_ok(kind, data, n, UINT64_MAX, why, sizeof(why)))
        BT_ASSERT(why[0] != 0);
    else if (dialect->intake(pb, &LIMITS, &r, &answer, why) == BT_OK)
        check(&r, &answer);
    else
        BT_ASSERT(why[0] != 0);
    bt_free(r.prompt);
    bt_sampling_free(&r.sampling);
    bt_intake_answer_free(&answer);
    protobuf_c_message_free_unpacked(pb, NULL);
    BT_ASSERT(bt_alloc_live() == live);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    take(&vllm__grpc__engine__generate_request__descriptor, &bt_dialect_vllm, data, n);
    take(&sglang__grpc__scheduler__generate_request__descriptor, &bt_dialect_sglang, data, n);
    return 0;
}
