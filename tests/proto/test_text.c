/* UTF-8 checks: every form that Unicode table 3-7 forbids; and those of whole messages. */
#include "proto/text.h"

#include <string.h>

#include "proto/message_text.h"
#include "proto/vllm_engine.pb-c.h"
#include "tests/support/test.h"

static void text_well_formed_is_utf8(void)
{
    EXPECT(bt_text_is_utf8(""));
    EXPECT(bt_text_is_utf8("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82"));
    EXPECT(bt_text_is_utf8("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"));
}

static void text_ill_formed_is_not_utf8(void)
{
    static const char *const bad[] = {
        "\x80",
        "\xc0\x80",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "abc\xe2\x82",
        "\xc3",
        "\xf0\x9f\x99",
        "\xc3(",
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        EXPECT(!bt_text_is_utf8(bad[i]));
}

static void text_clean_replaces_and_cuts_at_characters(void)
{
    char buf[6];

    bt_text_clean("a\xff"
                  "b",
                  buf, sizeof(buf));
    EXPECT(strcmp(buf, "a?b") == 0);
    bt_text_clean("abcd\xe2\x82\xac", buf, sizeof(buf)); /* no room for all three bytes */
    EXPECT(strcmp(buf, "abcd") == 0);
    bt_text_clean("abcdefgh", buf, sizeof(buf));
    EXPECT(strcmp(buf, "abcde") == 0);
}

#define VLLM(name) Vllm__Grpc__Engine__##name
#define INIT(NAME) VLLM__GRPC__ENGINE__##NAME##__INIT

/* Texts alone, repeated, in messages, in a oneof; ids packed, and entries of a map, which hold
 * bytes that no text may. */
static size_t pack_texts(uint8_t bytes_out[512])
{
    VLLM(GenerateRequest) q                           = INIT(GENERATE_REQUEST);
    VLLM(SamplingParams) p                            = INIT(SAMPLING_PARAMS);
    VLLM(TokenizedInput) in                           = INIT(TOKENIZED_INPUT);
    VLLM(SamplingParams__LogitBiasEntry) e            = INIT(SAMPLING_PARAMS__LOGIT_BIAS_ENTRY);
    VLLM(SamplingParams__LogitBiasEntry) * entries[2] = {&e, &e};
    uint32_t ids[]                                    = {0, 255, 70000};
    char    *stop[]                                   = {(char *)"STOP", (char *)"NEXT"};
    uint8_t  raw[]                                    = {0, 0xff};

    e.value           = -1.5f;
    in.input_ids      = ids;
    in.n_input_ids    = 3;
    in.original_text  = (ProtobufCBinaryData){sizeof(raw), raw};
    p.stop            = stop;
    p.n_stop          = 2;
    p.constraint_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_REGEX;
    p.regex           = (char *)"RULE";
    p.logit_bias      = entries;
    p.n_logit_bias    = 2;
    q.request_id      = (char *)"NAME";
    q.input_case      = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED;
    q.tokenized       = &in;
    q.sampling_params = &p;
    EXPECT(protobuf_c_message_get_packed_size(&q.base) <= 512);
    return protobuf_c_message_pack(&q.base, bytes_out);
}

static void message_with_a_byte_that_no_text_has_names_field_and_place(void)
{
    static const struct {
        const char *text, *words[2];
    } cases[] = {
        {"NAME",
         {"GenerateRequest.request_id has a NUL at byte 2 of its 4",
          "GenerateRequest.request_id is not UTF-8 at byte 2 of its 4"}},
        {"STOP",
         {"SamplingParams.stop has a NUL at byte 2 of its 4",
          "SamplingParams.stop is not UTF-8 at byte 2 of its 4"}       },
        {"NEXT",
         {"SamplingParams.stop has a NUL at byte 2 of its 4",
          "SamplingParams.stop is not UTF-8 at byte 2 of its 4"}       },
        {"RULE",
         {"SamplingParams.regex has a NUL at byte 2 of its 4",
          "SamplingParams.regex is not UTF-8 at byte 2 of its 4"}      },
    };
    const ProtobufCMessageDescriptor *type = &vllm__grpc__engine__generate_request__descriptor;
    uint8_t                           bytes[512], *at;
    size_t                            n = pack_texts(bytes);
    char                              why[128];

    EXPECT(bt_message_text_ok(type, bytes, n, UINT64_MAX, why, sizeof(why)));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int bad = 0; bad < 2; bad++) {
            pack_texts(bytes);
            at = memmem(bytes, n, cases[i].text, 4);
            EXPECT(at != NULL);
            at[2] = bad == 0 ? 0 : 0xe2; /* the first byte of three */
            EXPECT(!bt_message_text_ok(type, bytes, n, UINT64_MAX, why, sizeof(why)));
            EXPECT(strcmp(why, cases[i].words[bad]) == 0);
        }
}

/* Legal on the wire, but protobuf-c would make another message of it. */
static void message_that_comes_twice_in_one_field_is_refused(void)
{
    const ProtobufCMessageDescriptor *type = &vllm__grpc__engine__generate_request__descriptor;
    uint8_t                           bytes[1024];
    size_t                            n = pack_texts(bytes), n_more;
    char                              why[128];
    VLLM(GenerateRequest) q = INIT(GENERATE_REQUEST);
    VLLM(TokenizedInput) in = INIT(TOKENIZED_INPUT);
    VLLM(SamplingParams) p  = INIT(SAMPLING_PARAMS);

    q.input_case = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED;
    q.tokenized  = &in;
    n_more       = protobuf_c_message_pack(&q.base, bytes + n);
    EXPECT(!bt_message_text_ok(type, bytes, n + n_more, UINT64_MAX, why, sizeof(why)));
    EXPECT(strcmp(why, "GenerateRequest.tokenized comes twice, expected once") == 0);

    q.input_case      = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT__NOT_SET;
    q.sampling_params = &p;
    n_more            = protobuf_c_message_pack(&q.base, bytes + n);
    EXPECT(!bt_message_text_ok(type, bytes, n + n_more, UINT64_MAX, why, sizeof(why)));
    EXPECT(strcmp(why, "GenerateRequest.sampling_params comes twice, expected once") == 0);

    q.sampling_params = NULL; /* of what is no message the last one counts */
    q.request_id      = (char *)"again";
    q.stream          = 1;
    n_more            = protobuf_c_message_pack(&q.base, bytes + n);
    EXPECT(bt_message_text_ok(type, bytes, n + n_more, UINT64_MAX, why, sizeof(why)));
}

/* Texts, messages and packed lists count, and so do fields that nobody knows. */
static void message_of_too_many_parts_is_refused(void)
{
    static const uint8_t UNKNOWN[] = {0xf8, 0x7f, 1, 0xf8, 0x7f, 1}; /* field 2047 is 1, twice */
    const ProtobufCMessageDescriptor *type = &vllm__grpc__engine__generate_request__descriptor;
    uint8_t                           bytes[512];
    size_t                            n       = pack_texts(bytes);
    uint64_t                          n_parts = 0;
    char                              why[128];

    while (!bt_message_text_ok(type, bytes, n, n_parts, why, sizeof(why))) {
        EXPECT(strstr(why, " has too many parts") != NULL);
        NEED(++n_parts < 100);
    }
    EXPECT(n_parts >= 5);
    memcpy(bytes + n, UNKNOWN, sizeof(UNKNOWN));
    n += sizeof(UNKNOWN);
    EXPECT(!bt_message_text_ok(type, bytes, n, n_parts + 1, why, sizeof(why)));
    EXPECT(bt_message_text_ok(type, bytes, n, n_parts + 2, why, sizeof(why)));
}

/* What protobuf-c would not have taken is no text either, and nothing behind the end is read. */
static void message_cut_anywhere_is_read_to_its_end(void)
{
    const ProtobufCMessageDescriptor *type = &vllm__grpc__engine__generate_request__descriptor;
    uint8_t                           bytes[512];
    size_t                            n = pack_texts(bytes);
    char                              why[128];

    for (size_t cut = 0; cut < n; cut++) {
        uint8_t          *part = malloc(cut); /* of its own, so that sanitizers see its end */
        ProtobufCMessage *pb   = protobuf_c_message_unpack(type, NULL, cut, bytes);
        bool              ok;

        memcpy(part, bytes, cut);
        ok = bt_message_text_ok(type, part, cut, UINT64_MAX, why, sizeof(why));
        if (pb != NULL) EXPECT(ok);
        if (pb != NULL) protobuf_c_message_free_unpacked(pb, NULL);
        free(part);
    }
}

static const bt_test tests[] = {
    BT_TEST(text_well_formed_is_utf8),
    BT_TEST(text_ill_formed_is_not_utf8),
    BT_TEST(text_clean_replaces_and_cuts_at_characters),
    BT_TEST(message_with_a_byte_that_no_text_has_names_field_and_place),
    BT_TEST(message_that_comes_twice_in_one_field_is_refused),
    BT_TEST(message_of_too_many_parts_is_refused),
    BT_TEST(message_cut_anywhere_is_read_to_its_end),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
