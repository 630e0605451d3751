/* Validation: limits to the token, and memory.  Fields by name: test_public.py. */
#include "coordinator/intake.h"

#include "core/alloc.h"
#include "tests/support/test.h"

static const bt_intake_limits LIMITS = {
    .vocab_size = 100, .max_context = 64, .max_tokens = 48, .max_prompt = 40};

typedef struct {
    Vllm__Grpc__Engine__GenerateRequest request;
    Vllm__Grpc__Engine__SamplingParams  params;
    Vllm__Grpc__Engine__TokenizedInput  input;
    uint32_t                            ids[128], stop[4];
    char                                name[8];
} sample;

static void sample_init(sample *s, size_t n_prompt)
{
    memset(s, 0, sizeof(*s));
    vllm__grpc__engine__generate_request__init(&s->request);
    vllm__grpc__engine__sampling_params__init(&s->params);
    vllm__grpc__engine__tokenized_input__init(&s->input);
    memcpy(s->name, "name", 5);
    s->request.request_id      = s->name;
    s->request.input_case      = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED;
    s->request.tokenized       = &s->input;
    s->request.sampling_params = &s->params;
    s->input.n_input_ids       = n_prompt;
    s->input.input_ids         = s->ids;
}

static void set_max_tokens(sample *s, uint32_t n)
{
    s->params._max_tokens_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
    s->params.max_tokens       = n;
}

/* The request's max_tokens, or 0 with the refusal in text. */
static uint32_t try_intake(const sample *s, const bt_intake_limits *limits, char *text)
{
    bt_relay_request r = {0};
    bt_intake_answer answer;

    text[0] = 0;
    if (bt_intake(&s->request, limits, &r, &answer, text) != BT_OK) return 0;
    bt_free(r.prompt);
    bt_free(r.sampling.stop_tokens);
    return r.sampling.max_tokens;
}

static void intake_takes_all_that_fits_and_no_token_more(void)
{
    sample           s;
    char             text[BT_INTAKE_TEXT];
    bt_intake_limits wide = LIMITS;

    sample_init(&s, 40);
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 8); /* up to what a rank's pages hold */
    set_max_tokens(&s, 8);
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 8);
    set_max_tokens(&s, 9);
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "KV pages");
    sample_init(&s, 41);
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "(40)");

    wide.max_tokens = wide.max_prompt = 1000;
    sample_init(&s, 63);
    EXPECT_EQ(try_intake(&s, &wide, text), 1);
    sample_init(&s, 64);
    EXPECT_EQ(try_intake(&s, &wide, text), 0);
    EXPECT_HAS(text, "context is 64");
    sample_init(&s, 10);
    set_max_tokens(&s, 54);
    EXPECT_EQ(try_intake(&s, &wide, text), 54);
    set_max_tokens(&s, 55);
    EXPECT_EQ(try_intake(&s, &wide, text), 0);
    set_max_tokens(&s, UINT32_MAX);
    EXPECT_EQ(try_intake(&s, &wide, text), 0);
}

static void intake_checks_every_id(void)
{
    sample s;
    char   text[BT_INTAKE_TEXT];

    sample_init(&s, 5);
    s.ids[4] = 99;
    EXPECT(try_intake(&s, &LIMITS, text) != 0);
    s.ids[4] = 100;
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "token 4 of the prompt is 100");
    s.ids[4] = UINT32_MAX;
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
}

static void intake_short_memory_is_refused_without_leak(void)
{
    sample s;
    char   text[BT_INTAKE_TEXT];
    long   live = bt_alloc_live();

    sample_init(&s, 5);
    s.params.n_stop_token_ids = 2;
    s.params.stop_token_ids   = s.stop;
    for (long k = 0; k < 2; k++) {
        bt_alloc_fail_at(k);
        EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
        EXPECT_HAS(text, "out of memory");
        EXPECT_EQ(bt_alloc_live(), live);
    }
    bt_alloc_fail_at(-1);
}

static const bt_test tests[] = {
    BT_TEST(intake_takes_all_that_fits_and_no_token_more),
    BT_TEST(intake_checks_every_id),
    BT_TEST(intake_short_memory_is_refused_without_leak),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
