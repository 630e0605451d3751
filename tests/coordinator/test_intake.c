/* Validation: limits to the token, and memory.  Fields by name: test_public.py. */
#include <float.h>
#include <math.h>

#include "coordinator/dialect.h"

#include "core/alloc.h"
#include "proto/vllm_engine.pb-c.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

static const bt_intake_limits LIMITS = {
    .vocab_size = 100, .max_context = 64, .page_tokens = 8, .max_tokens = 48, .max_prompt = 40};

#define CONSTRAINT(name) VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_##name

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
    bt_relay_submission r      = {0};
    bt_intake_answer    answer = {0};

    text[0] = 0;
    if (bt_dialect_vllm.intake(&s->request.base, limits, &r, &answer, text) != BT_OK) return 0;
    bt_free(r.prompt);
    bt_sampling_free(&r.sampling);
    bt_intake_answer_free(&answer);
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
    EXPECT_HAS(text, "40 prompt tokens and max_tokens 9 are more than a rank's KV pages hold (48)");
    s.params.n = 2; /* a page beyond the prompt's for each */
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "max_tokens 9 of each of 2 choices are more");
    sample_init(&s, 40);
    s.params.n = 2;
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "which hold 48, no room for a token of each of 2 choices");
    sample_init(&s, 40);
    s.params.min_tokens = 8;
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 8);
    s.params.min_tokens = 9;
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "min_tokens is 9, more than max_tokens, which is 8 here: what the context "
                     "and a rank's KV pages leave");
    set_max_tokens(&s, 7);
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT(strcmp(text, "min_tokens is 9, more than max_tokens, which is 7") == 0);
    sample_init(&s, 41);
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "(40)");

    EXPECT_EQ(bt_intake_max_prompt(&wide), 40);
    wide.max_tokens = wide.max_prompt = 64;
    EXPECT_EQ(bt_intake_max_prompt(&wide), 63); /* one token must follow */
    wide.max_tokens = 1000;                     /* of which a prompt may have 64 */
    EXPECT_EQ(bt_intake_max_prompt(&wide), 63);
    wide.max_tokens = wide.max_prompt = 1000;
    EXPECT_EQ(bt_intake_max_prompt(&wide), 63);
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

static void intake_checks_stop_ids_names_and_biases(void)
{
    Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry entries[4], *table[4];
    sample                                             s;
    char                                               text[BT_INTAKE_TEXT];

    sample_init(&s, 5);
    s.params.n_stop_token_ids = 2;
    s.params.stop_token_ids   = s.stop;
    s.stop[1]                 = 99;
    EXPECT(try_intake(&s, &LIMITS, text) != 0);
    s.stop[1] = 100;
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "stop_token_ids holds 100");

    sample_init(&s, 5);
    s.name[2] = 0x7f; /* a terminal that shows the log would delete a character */
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "control characters");

    for (int first = 0; first < 3; first++) {
        sample_init(&s, 5);
        for (int i = 0; i < 4; i++) {
            vllm__grpc__engine__sampling_params__logit_bias_entry__init(&entries[i]);
            entries[i].key = i < 3 ? 10 + i : 10 + first;
            table[i]       = &entries[i];
        }
        s.params.n_logit_bias = 4;
        s.params.logit_bias   = table;
        EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
        EXPECT_HAS(text, "twice");
    }
}

/* As in vLLM. */
static void intake_takes_a_tiny_temperature_for_none(void)
{
    static const float T[] = {1e-6f, 9e-6f, 1e-5f, 1};

    for (size_t i = 0; i < sizeof(T) / sizeof(T[0]); i++) {
        bt_relay_submission r      = {0};
        bt_intake_answer    answer = {0};
        char                text[BT_INTAKE_TEXT];
        sample              s;

        sample_init(&s, 5);
        s.params._temperature_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
        s.params.temperature       = T[i];
        EXPECT_EQ(bt_dialect_vllm.intake(&s.request.base, &LIMITS, &r, &answer, text), BT_OK);
        EXPECT(r.sampling.temperature == (i < 2 ? 0 : T[i]));
        bt_free(r.prompt);
        bt_sampling_free(&r.sampling);
        bt_intake_answer_free(&answer);
    }
}

static bt_status intake_in_memory(const sample *s, const bt_intake_limits *limits)
{
    char text[BT_INTAKE_TEXT];

    if (try_intake(s, limits, text) != 0) return BT_OK;
    EXPECT_HAS(text, "out of memory");
    return BT_ERR_NO_MEMORY;
}

static void intake_short_memory_is_refused_without_leak(void)
{
    sample s;

    sample_init(&s, 5);
    s.params.n_stop_token_ids = 2;
    s.params.stop_token_ids   = s.stop;
    EXPECT_EQ(BT_SWEEP(intake_in_memory(&s, &LIMITS), (void)0), 2);
}

/* Edges of the sampling fields; test_sampling.py has them by name. */
static void intake_sampling_fields_have_ranges(void)
{
    static const struct {
        float top_p, min_p, frequency, presence, repetition;
        bool  good;
    } CASES[] = {
        {0,     0,     0,     0,     0,      true },
        {1,     1,     2,     -2,    1000,   true },
        {1e-9f, 1e-9f, -2,    2,     0.001f, true },
        {1.01f, 0,     0,     0,     0,      false},
        {-0.1f, 0,     0,     0,     0,      false},
        {NAN,   0,     0,     0,     0,      false},
        {0,     1.01f, 0,     0,     0,      false},
        {0,     NAN,   0,     0,     0,      false},
        {0,     0,     2.01f, 0,     0,      false},
        {0,     0,     NAN,   0,     0,      false},
        {0,     0,     0,     -2.1f, 0,      false},
        {0,     0,     0,     NAN,   0,      false},
        {0,     0,     0,     0,     -1,     false},
        {0,     0,     0,     0,     1001,   false},
        {0,     0,     0,     0,     NAN,    false},
    };
    char text[BT_INTAKE_TEXT];

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        sample s;

        sample_init(&s, 3);
        s.params.top_p              = CASES[i].top_p;
        s.params.min_p              = CASES[i].min_p;
        s.params.frequency_penalty  = CASES[i].frequency;
        s.params.presence_penalty   = CASES[i].presence;
        s.params.repetition_penalty = CASES[i].repetition;
        EXPECT_EQ(try_intake(&s, &LIMITS, text) != 0, CASES[i].good);
    }
}

/* A rank takes a denormal number for 0, which is off. */
static void intake_tiny_top_p_stays_on(void)
{
    static const float TINY[] = {1e-45f, 1e-39f, FLT_MIN, 1e-30f};

    for (size_t i = 0; i < sizeof(TINY) / sizeof(TINY[0]); i++) {
        sample              s;
        bt_relay_submission r      = {0};
        bt_intake_answer    answer = {0};
        char                text[BT_INTAKE_TEXT];

        sample_init(&s, 3);
        s.params.top_p = TINY[i];
        EXPECT_EQ(bt_dialect_vllm.intake(&s.request.base, &LIMITS, &r, &answer, text), BT_OK);
        EXPECT(r.sampling.top_p == (TINY[i] < FLT_MIN ? FLT_MIN : TINY[i]));
        bt_free(r.prompt);
        bt_sampling_free(&r.sampling);
        bt_intake_answer_free(&answer);
    }
}

/* Refused values do not look like allowed ones, and what is allowed is said, 0 too. */
static void intake_shows_values_just_outside_as_they_are(void)
{
    static const struct {
        float       top_p, frequency, temperature, repetition;
        const char *says;
    } CASES[] = {
        {1.0000001f, 0,           1,          1,       "top_p is 1.00000012, it must be from 0 (off"                },
        {1,          -2.0000002f, 1,          1,       "frequency_penalty is -2.00000024, it"                       },
        {1,          0,           1000000.1f, 1,       "temperature is 1000000.12, it must"                         },
        {1,          0,           -1e-9f,     1,       "temperature is -9.99999972e-10, it"                         },
        {1,          0,           1,          0.0009f, "is 0.000899999985, it must be from 0.001 to 1000, or 0 (off"},
    };
    char text[BT_INTAKE_TEXT];

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        sample s;

        sample_init(&s, 3);
        s.params.top_p              = CASES[i].top_p;
        s.params.frequency_penalty  = CASES[i].frequency;
        s.params._temperature_case  = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
        s.params.temperature        = CASES[i].temperature;
        s.params.repetition_penalty = CASES[i].repetition;
        EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
        EXPECT_HAS(text, CASES[i].says);
    }
}

static void intake_takes_biases_and_stop_strings_whole_or_not_at_all(void)
{
    Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry entries[2],
        *table[2]           = {entries, entries + 1};
    char            *stop[] = {(char *)"one", (char *)"two"}, text[BT_INTAKE_TEXT];
    sample           s;
    long             live = bt_alloc_live();
    bt_intake_limits with = LIMITS;

    with.tokenizer = true;
    sample_init(&s, 3);
    for (int i = 0; i < 2; i++) {
        vllm__grpc__engine__sampling_params__logit_bias_entry__init(&entries[i]);
        entries[i].key   = i == 0 ? 99 : 0;
        entries[i].value = 1e6f;
    }
    s.params.n_logit_bias = 2;
    s.params.logit_bias   = table;
    s.params.n_stop       = 2;
    s.params.stop         = stop;
    EXPECT_EQ(try_intake(&s, &LIMITS, text), 0);
    EXPECT_HAS(text, "stop");
    EXPECT_EQ(BT_SWEEP(intake_in_memory(&s, &with), (void)0), 9);
    entries[1].key = 99;
    EXPECT_EQ(try_intake(&s, &with, text), 0);
    EXPECT_HAS(text, "twice");
    entries[1].key = 100;
    EXPECT_EQ(try_intake(&s, &with, text), 0);
    EXPECT_HAS(text, "token 100");
    entries[1].key = -1;
    EXPECT_EQ(try_intake(&s, &with, text), 0);
    entries[1].key   = 1;
    entries[1].value = NAN;
    EXPECT_EQ(try_intake(&s, &with, text), 0);
    EXPECT_HAS(text, "logit_bias of token 1");
    entries[1].base.n_unknown_fields = 1;
    entries[1].base.unknown_fields   = &(ProtobufCMessageUnknownField){.tag = 3};
    EXPECT_EQ(try_intake(&s, &with, text), 0);
    EXPECT_HAS(text, "field 3 of LogitBiasEntry is not known here");
    s.params.n_logit_bias = 0;
    stop[1]               = (char *)"";
    EXPECT_EQ(try_intake(&s, &with, text), 0);
    EXPECT_HAS(text, "empty string");
    EXPECT_EQ(bt_alloc_live(), live);
}

/* The sampling's constraint, which the caller frees; kind 0: refused, with the text. */
static bt_sampling try_constraint(const sample *s, const bt_intake_limits *limits, char *text)
{
    bt_relay_submission r      = {0};
    bt_intake_answer    answer = {0};

    text[0] = 0;
    if (bt_dialect_vllm.intake(&s->request.base, limits, &r, &answer, text) != BT_OK)
        return (bt_sampling){0};
    bt_free(r.prompt);
    bt_intake_answer_free(&answer);
    return r.sampling;
}

static void intake_reads_constraints_or_refuses_them_with_words(void)
{
    static const struct {
        int         field;
        const char *value, *refusal; /* NULL: it is taken */
    } CASES[] = {
        {CONSTRAINT(REGEX),       "a{2,3}",                  NULL                                    },
        {CONSTRAINT(GRAMMAR),     "root ::= \"x\"",          NULL                                    },
        {CONSTRAINT(JSON_SCHEMA), "{\"type\":\"boolean\"}",  NULL                                    },
        {CONSTRAINT(REGEX),       "",                        "regex: it is empty"                    },
        {CONSTRAINT(REGEX),       "(a",                      "regex: "                               },
        {CONSTRAINT(GRAMMAR),     "root ::= root \"a\" | b", "grammar: "                             },
        {CONSTRAINT(JSON_SCHEMA), "{\"type\":7}",            "json_schema: "                         },
        {CONSTRAINT(REGEX),       "(a?){9999}",              "regex: it can be read in too many ways"},
    };
    bt_intake_limits limits = LIMITS;
    char             text[BT_INTAKE_TEXT];

    limits.tokenizer = true;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        sample      s;
        bt_sampling taken;

        sample_init(&s, 5);
        s.params.constraint_case = (int)CASES[i].field;
        s.params.regex           = (char *)CASES[i].value; /* a member of the union as the others */
        taken                    = try_constraint(&s, &limits, text);
        if (CASES[i].refusal == NULL)
            EXPECT(taken.n_constraint_bytes == strlen(CASES[i].value) &&
                   memcmp(taken.constraint, CASES[i].value, taken.n_constraint_bytes) == 0);
        else
            EXPECT_HAS(text, CASES[i].refusal);
        EXPECT_EQ(taken.constraint_kind != 0, CASES[i].refusal == NULL);
        bt_sampling_free(&taken);
        s.params.ignore_eos = true;
        EXPECT_EQ(try_constraint(&s, &limits, text).constraint_kind, 0);
        EXPECT_HAS(text, "with ignore_eos");
        s.params.ignore_eos = false;
        EXPECT_EQ(try_constraint(&s, &LIMITS, text).constraint_kind, 0);
        EXPECT_HAS(text, "the model has no tokenizer here");
    }
}

static void intake_reads_a_constraint_once(void)
{
    bt_intake_known  known  = {.seed = 7};
    bt_intake_limits limits = LIMITS;
    char             text[BT_INTAKE_TEXT], regex[16];
    sample           s;
    bt_sampling      taken;
    long             n_once;

    limits.tokenizer = true;
    limits.known     = &known;
    sample_init(&s, 5);
    s.params.constraint_case = CONSTRAINT(REGEX);
    s.params.regex           = regex;
    for (int i = 0; i < 2 * BT_INTAKE_KNOWN; i++) {
        snprintf(regex, sizeof(regex), "a{%d}", i / 2);
        taken = try_constraint(&s, &limits, text);
        EXPECT(taken.constraint != NULL && strcmp(taken.constraint, regex) == 0);
        bt_sampling_free(&taken);
        EXPECT_EQ(known.n, i / 2 + 1);
    }
    s.params.constraint_case = CONSTRAINT(GRAMMAR); /* the same text is none */
    EXPECT_EQ(try_constraint(&s, &limits, text).constraint_kind, 0);
    EXPECT_EQ(try_constraint(&s, &limits, text).constraint_kind, 0);
    EXPECT_HAS(text, "grammar: ");
    n_once                   = known.n;
    s.params.constraint_case = CONSTRAINT(REGEX);
    snprintf(regex, sizeof(regex), "b"); /* the oldest one's place */
    taken = try_constraint(&s, &limits, text);
    bt_sampling_free(&taken);
    snprintf(regex, sizeof(regex), "a{0}");
    taken = try_constraint(&s, &limits, text);
    EXPECT(taken.constraint != NULL);
    bt_sampling_free(&taken);
    EXPECT_EQ(known.n, n_once + 2);
}

static void intake_makes_one_text_of_choices(void)
{
    sample                               s;
    char                                 text[BT_INTAKE_TEXT];
    char                                *list[] = {"a\"b", "\xc3\xa4"};
    Vllm__Grpc__Engine__ChoiceConstraint choice = VLLM__GRPC__ENGINE__CHOICE_CONSTRAINT__INIT;
    bt_intake_limits                     limits = LIMITS;
    bt_sampling                          taken;

    limits.tokenizer = true;
    sample_init(&s, 5);
    s.params.constraint_case = CONSTRAINT(CHOICE);
    s.params.choice          = &choice;
    EXPECT_EQ(try_constraint(&s, &limits, text).constraint_kind, 0);
    EXPECT_HAS(text, "choice: ");
    choice.n_choices = 2;
    choice.choices   = list;
    taken            = try_constraint(&s, &limits, text);
    EXPECT_EQ(taken.constraint_kind, BT_CONSTRAINT_CHOICE);
    EXPECT(taken.constraint != NULL && strcmp(taken.constraint, "[\"a\\\"b\",\"\xc3\xa4\"]") == 0);
    bt_sampling_free(&taken);
    list[1] = (char *)"a\xc3";
    EXPECT_EQ(try_constraint(&s, &limits, text).constraint_kind, 0);
    EXPECT_HAS(text, "choice: choice 1 is not UTF-8");
    list[1]                      = (char *)"b";
    choice.base.n_unknown_fields = 1;
    choice.base.unknown_fields   = &(ProtobufCMessageUnknownField){.tag = 9};
    EXPECT_EQ(try_constraint(&s, &limits, text).constraint_kind, 0);
    EXPECT_HAS(text, "field 9 of ChoiceConstraint is not known here");
    s.params.constraint_case = CONSTRAINT(JSON_OBJECT);
    s.params.choice          = NULL;                                 /* the union */
    EXPECT_EQ(try_constraint(&s, &limits, text).constraint_kind, 0); /* false asks for nothing */
    EXPECT_EQ(text[0], 0);
    s.params.json_object = true;
    taken                = try_constraint(&s, &limits, text);
    EXPECT_EQ(taken.constraint_kind, BT_CONSTRAINT_JSON_SCHEMA);
    bt_sampling_free(&taken);
}

static void intake_lets_thoughts_end_before_a_constraint(void)
{
    static const struct {
        uint32_t ids[4];
        bool     from_first;
        uint32_t after;
    } CASES[] = {
        {{1, 2, 3, 4},    false, 0 },
        {{1, 50, 3, 4},   false, 52},
        {{1, 50, 3, 51},  false, 0 },
        {{50, 51, 50, 1}, false, 52},
        {{1, 50, 3, 4},   true,  0 },
    };
    bt_intake_limits limits = LIMITS, without;
    char             text[BT_INTAKE_TEXT];

    limits.tokenizer   = true;
    without            = limits;
    limits.think_begin = 51; /* 1 + the tokens */
    limits.think_end   = 52;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        sample      s;
        bt_sampling taken;

        sample_init(&s, 4);
        memcpy(s.ids, CASES[i].ids, sizeof(CASES[i].ids));
        s.params.constraint_case          = CONSTRAINT(REGEX);
        s.params.regex                    = "a";
        s.params.grammar_from_first_token = CASES[i].from_first;
        taken                             = try_constraint(&s, &limits, text);
        EXPECT_EQ(taken.constraint_after, CASES[i].after);
        bt_sampling_free(&taken);
        for (int k = 0; k < 2; k++) { /* no such tokens; an end that the model lacks */
            without.think_begin = k == 0 ? 0 : 51;
            without.think_end   = k == 0 ? 0 : 101;
            taken               = try_constraint(&s, &without, text);
            EXPECT_EQ(taken.constraint_after, 0);
            bt_sampling_free(&taken);
        }
    }
}

/* Else nothing would ever end them: stop tokens are not drawn among them. */
static void intake_refuses_to_stop_where_thoughts_end(void)
{
    bt_intake_limits limits = LIMITS;
    uint32_t         stop   = 51;
    char             text[BT_INTAKE_TEXT];

    limits.tokenizer   = true;
    limits.think_begin = 51;
    limits.think_end   = 52;
    for (uint32_t first = 50; first <= 51; first++) { /* the prompt begins thoughts; it ends them */
        sample      s;
        bt_sampling taken;

        sample_init(&s, 4);
        s.ids[0]                  = first;
        s.params.constraint_case  = CONSTRAINT(REGEX);
        s.params.regex            = "a";
        s.params.n_stop_token_ids = 1;
        s.params.stop_token_ids   = &stop;
        taken                     = try_constraint(&s, &limits, text);
        EXPECT_EQ(taken.constraint_kind != 0, first == 51);
        if (first == 50) EXPECT_HAS(text, "regex with stop_token_ids that hold 51");
        bt_sampling_free(&taken);
    }
}

static const bt_test tests[] = {
    BT_TEST(intake_takes_all_that_fits_and_no_token_more),
    BT_TEST(intake_checks_every_id),
    BT_TEST(intake_checks_stop_ids_names_and_biases),
    BT_TEST(intake_takes_a_tiny_temperature_for_none),
    BT_TEST(intake_short_memory_is_refused_without_leak),
    BT_TEST(intake_sampling_fields_have_ranges),
    BT_TEST(intake_tiny_top_p_stays_on),
    BT_TEST(intake_shows_values_just_outside_as_they_are),
    BT_TEST(intake_takes_biases_and_stop_strings_whole_or_not_at_all),
    BT_TEST(intake_reads_constraints_or_refuses_them_with_words),
    BT_TEST(intake_reads_a_constraint_once),
    BT_TEST(intake_makes_one_text_of_choices),
    BT_TEST(intake_lets_thoughts_end_before_a_constraint),
    BT_TEST(intake_refuses_to_stop_where_thoughts_end),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
