#include <jansson.h>
#include <pthread.h>

#include "core/alloc.h"
#include "model/jinja/jinja.h"
#include "model/tokenizer.h"
#include "tests/support/scratch.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

#define DEMO      BT_SOURCE_DIR "/models/demo"
#define BAR       "\xef\xbd\x9c"
#define BOS       "<" BAR "begin\xe2\x96\x81of\xe2\x96\x81sentence" BAR ">"
#define EOS       "<" BAR "end\xe2\x96\x81of\xe2\x96\x81sentence" BAR ">"
#define USER      "<" BAR "User" BAR ">"
#define ASSISTANT "<" BAR "Assistant" BAR ">"

#define V2_TEMPLATE                                                                              \
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"       \
    "{% endif %}{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"  \
    "{{ 'User: ' + message['content'] + '\\n\\n' }}{% elif message['role'] == 'assistant' %}"    \
    "{{ 'Assistant: ' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}" \
    "{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"   \
    "{{ 'Assistant:' }}{% endif %}"

static const bt_chat_message TALK[] = {
    {"system",    "Be brief."},
    {"user",      "Hi\n"     },
    {"assistant", " Hello. " },
    {"system",    "Rhyme."   },
    {"user",      "Why?"     },
};

/* The demo's tokenizer with this tokenizer_config.json. */
static void write_model(const char *config)
{
    size_t n    = 0;
    char  *file = scratch_read(DEMO "/tokenizer.json", &n);

    scratch_clear();
    scratch_write("tokenizer.json", file, n);
    if (config != NULL) scratch_write("tokenizer_config.json", config, strlen(config));
    free(file);
}

static void write_template(const char *text)
{
    json_t *config = json_pack("{s:s, s:{s:s}, s:s}", "bos_token", BOS, "eos_token", "content", EOS,
                               "chat_template", text);
    char   *dump   = json_dumps(config, 0);

    write_model(dump);
    free(dump);
    json_decref(config);
}

static bt_status render(const char *dir, size_t n, const bt_chat_message *messages, char **text)
{
    bt_tokenizer *tok = NULL;
    bt_status     st  = bt_tokenizer_open(dir, &tok);

    if (st == BT_OK) st = bt_tokenizer_chat(tok, n, messages, BT_THINK_UNSAID, text);
    bt_tokenizer_close(tok);
    return st;
}

static void expect_text(const char *dir, const char *want)
{
    char *text = NULL;

    EXPECT_EQ(render(dir, 5, TALK, &text), BT_OK);
    EXPECT(text != NULL && strcmp(text, want) == 0);
    if (text != NULL && strcmp(text, want) != 0) fprintf(stderr, "    rendered: %s\n", text);
    bt_free(text);
}

static void chat_of_the_demo(void)
{
    expect_text(DEMO, BOS "Be brief." USER "Hi\n" ASSISTANT " Hello. " EOS "Rhyme." USER
                          "Why?" ASSISTANT);
}

static void chat_of_v2(void)
{
    write_template(V2_TEMPLATE);
    expect_text(g_scratch, BOS "Be brief.\n\nUser: Hi\n\n\nAssistant:  Hello. " EOS
                               "Rhyme.\n\nUser: Why?\n\nAssistant:");
}

/* One line of tests/fixtures/chat.jsonl: a template, a talk, and what Jinja makes of them. */
static void expect_golden(const json_t *golden)
{
    const json_t   *list = json_object_get(golden, "messages"), *said;
    const char     *want = json_string_value(json_object_get(golden, "text"));
    bt_chat_message messages[8];
    bt_jinja_chat   chat = {.name       = "chat.jsonl",
                            .text       = json_string_value(json_object_get(golden, "template")),
                            .messages   = messages,
                            .n_messages = json_array_size(list),
                            .bos        = json_string_value(json_object_get(golden, "bos")),
                            .eos        = json_string_value(json_object_get(golden, "eos"))};
    char           *text = NULL;
    size_t          i;

    json_array_foreach(list, i, said) messages[i] =
        (bt_chat_message){json_string_value(json_object_get(said, "role")),
                          json_string_value(json_object_get(said, "content"))};
    if (bt_jinja_render(&chat, &text) != BT_OK)
        EXPECT(want == NULL);
    else
        EXPECT(want != NULL && strcmp(text, want) == 0);
    if (want == NULL ? text != NULL : text == NULL || strcmp(text, want) != 0)
        fprintf(stderr, "    template: %s\n    rendered: %s\n", chat.text,
                text != NULL ? text : "nothing");
    bt_free(text);
}

static void chat_templates_render_as_jinja_renders_them(void)
{
    FILE  *f    = fopen(BT_SOURCE_DIR "/tests/fixtures/chat.jsonl", "r");
    char  *line = NULL;
    size_t room = 0, n = 0;

    EXPECT(f != NULL);
    while (f != NULL && getline(&line, &room, f) > 0) {
        json_t *golden = json_loads(line, 0, NULL);

        EXPECT(golden != NULL);
        expect_golden(golden);
        json_decref(golden);
        n++;
    }
    EXPECT(n > 300);
    free(line);
    if (f != NULL) fclose(f);
}

/* Each turn of a loop goes without memory of its own. */
static void chat_of_many_messages_fits(void)
{
    enum { MANY = 1000 };
    static bt_chat_message talk[MANY];
    bt_jinja_chat          chat = {.name = "chat",
                                   .text =
                                       "{% for m in messages %}{% for o in messages %}{% set r = o.role %}"
                                                "{% if r == 'tool' %}{{ r }}{% endif %}{% endfor %}"
                                                "{{ m.content[-1] }}{{ m.content|length }}{% endfor %}",
                                   .messages   = talk,
                                   .n_messages = MANY};
    char                  *text = NULL;

    for (int i = 0; i < MANY; i++)
        talk[i] = (bt_chat_message){"user", "Good morrow, cousin."};
    EXPECT_EQ(bt_jinja_render(&chat, &text), BT_OK);
    EXPECT(text != NULL && strlen(text) == 3 * MANY && strncmp(text, ".20.20", 6) == 0);
    bt_free(text);
}

static void chat_may_say_whether_to_think(void)
{
    static const char *const WANT[] = {"as it likes", "True True", "False False"};
    bt_tokenizer            *tok    = NULL;
    char                    *text   = NULL;

    write_template(
        "{{ thinking ~ ' ' ~ enable_thinking if thinking is defined else 'as it likes' }}");
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    for (int think = BT_THINK_UNSAID; think <= BT_THINK_NO; think++) {
        EXPECT_EQ(bt_tokenizer_chat(tok, 2, TALK, think, &text), BT_OK);
        EXPECT(text != NULL && strcmp(text, WANT[think]) == 0);
        bt_free(text);
        text = NULL;
    }
    bt_tokenizer_close(tok);
    EXPECT_EQ(bt_tokenizer_open(DEMO, &tok), BT_OK);
    EXPECT_EQ(bt_tokenizer_chat(tok, 2, TALK, BT_THINK_NO, &text), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "expected a chat template that says when to think");
    bt_tokenizer_close(tok);
}

static void chat_template_may_be_a_list_or_a_file(void)
{
    json_t *config = json_pack("{s:s, s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "bos_token", BOS,
                               "eos_token", EOS, "chat_template", "name", "tool_use", "template",
                               "{{ 'x' }}", "name", "default", "template", V2_TEMPLATE);
    char   *dump = json_dumps(config, 0), *text = NULL;

    write_model(dump);
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_OK);
    EXPECT_HAS(text, "User: Hi");
    bt_free(text);
    write_model("{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}, "
                "{\"name\": \"tool_use\", \"template\": \"b\"}]}");
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_OK);
    EXPECT(strcmp(text, "a") == 0);
    bt_free(text);
    write_model("{\"bos_token\": \"<b>\", \"eos_token\": \"<e>\"}");
    scratch_write("chat_template.jinja", V2_TEMPLATE, strlen(V2_TEMPLATE));
    EXPECT_EQ(render(g_scratch, 3, TALK, &text), BT_OK);
    EXPECT(strcmp(text, "<b>Be brief.\n\nUser: Hi\n\n\nAssistant:  Hello. <e>Assistant:") == 0);
    bt_free(text);
    write_template("{{ 'x' }}"); /* of the two the file counts */
    scratch_write("chat_template.jinja", V2_TEMPLATE, strlen(V2_TEMPLATE));
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_OK);
    EXPECT_HAS(text, "User: Hi");
    bt_free(text);
    free(dump);
    json_decref(config);
}

static void chat_rendered_text_begins_with_one_bos(void)
{
    bt_tokenizer *tok  = NULL;
    char         *text = NULL;
    uint32_t     *ids  = NULL;
    size_t        n    = 0;

    EXPECT_EQ(bt_tokenizer_open(DEMO, &tok), BT_OK);
    EXPECT_EQ(bt_tokenizer_chat(tok, 2, TALK, BT_THINK_UNSAID, &text), BT_OK);
    EXPECT_EQ(bt_tokenizer_encode(tok, text, strlen(text), &ids, &n), BT_OK);
    EXPECT(n > 3 && ids[0] == 0 && ids[1] != 0);
    EXPECT_EQ(ids[n - 1], bt_tokenizer_added_id(tok, ASSISTANT));
    bt_free(ids);
    bt_free(text);
    bt_tokenizer_close(tok);
}

#define TEN(text) text text text text text text text text text text

static void chat_templates_that_cannot_be_rendered_say_where(void)
{
    static const struct {
        const char *text;
        bt_status   st;
        const char *why;
    } CASES[] = {
        {"a\n{{ x|tojson }}",                                                                        BT_ERR_UNSUPPORTED, "line 2: the filter tojson is not supported"            },
        {"{{ 'a'.format() }}",                                                                       BT_ERR_UNSUPPORTED, "a text's method format"                                },
        {"{{ messages[0].pop() }}",                                                                  BT_ERR_UNSUPPORTED, "a map's method pop"                                    },
        {"{{ true is true 1 }}",                                                                     BT_ERR_UNSUPPORTED, "true: expected 0 to 0 arguments, found 1"              },
        {"{{ lipsum() }}",                                                                           BT_ERR_UNSUPPORTED, "the function lipsum is not supported"                  },
        {"{{ 1 is prime }}",                                                                         BT_ERR_UNSUPPORTED, "the test prime is not supported"                       },
        {"{% include 'x' %}",                                                                        BT_ERR_UNSUPPORTED, "found include"                                         },
        {"{{ 1.5 }}",                                                                                BT_ERR_UNSUPPORTED, "expected whole numbers, found 1.5"                     },
        {"{{ 1 / 2 }}",                                                                              BT_ERR_UNSUPPORTED, "expected + - * // or % of whole numbers, found /"      },
        {"{{ messages }}",                                                                           BT_ERR_UNSUPPORTED, "to print, found a list"                                },
        {"{{ pad_token }}",                                                                          BT_ERR_UNSUPPORTED, "expected bos_token or eos_token, found pad_token"      },
        {"{{ 'é'|upper }}",                                                                         BT_ERR_UNSUPPORTED, "upper: expected ASCII"                                 },
        {"{{ 'a' + 1 }}",                                                                            BT_ERR_UNSUPPORTED, "for +, found a text and a number"                      },
        {"{{ 'a' + nothing }}",                                                                      BT_ERR_UNSUPPORTED, "and what is undefined: nothing"                        },
        {"{{ nothing.here }}",                                                                       BT_ERR_FORMAT,      "nothing is undefined and has no here"                  },
        {"{{ 1 // 0 }}",                                                                             BT_ERR_FORMAT,      "a divisor other than 0"                                },
        {"{{ 9223372036854775807 }}",                                                                BT_ERR_UNSUPPORTED, "numbers below"                                         },
        {"{{ 900000000000000000 * 90 }}",                                                            BT_ERR_UNSUPPORTED, "a result below 2^63"                                   },
        {"{% set messages.x = 1 %}",                                                                 BT_ERR_FORMAT,
         "expected a namespace to store in, found a list"                                                                                                                        },
        {"{% for a, b in [[1]] %}{% endfor %}",                                                      BT_ERR_FORMAT,
         "expected 2 values to store, found 1"                                                                                                                                   },
        {"{% for a in 7 %}{% endfor %}",                                                             BT_ERR_FORMAT,
         "expected a list to go through, found a number"                                                                                                                         },
        {"{% for i in [1] %}{{ loop|length }}{% endfor %}",                                          BT_ERR_FORMAT,
         "to go through, found a map"                                                                                                                                            },
        {"{{ [1] + (2,) }}",                                                                         BT_ERR_UNSUPPORTED, "for +, found a list and a tuple"                       },
        {"{{ messages[0].items }}",                                                                  BT_ERR_UNSUPPORTED,
         "the call of items, which is a method of a map"                                                                                                                         },
        {"{{ 'a'['title'] is defined }}",                                                            BT_ERR_UNSUPPORTED,
         "the call of title, which is a method of a text"                                                                                                                        },
        {"{{ strftime_now('%H:%M %Z') }}",                                                           BT_ERR_UNSUPPORTED, "a time of day, found %Z"                               },
        {"{{ strftime_now('%d' * 4000) }}",                                                          BT_ERR_UNSUPPORTED, "less than 4096 bytes"                                  },
        {"{% if 1 %}",                                                                               BT_ERR_FORMAT,      "expected endif, found the end"                         },
        {"{% if 1 %}{% endfor %}",                                                                   BT_ERR_FORMAT,      "expected endif, found endfor %}"                       },
        {"{% for i in [1] %}{% set x %}{% break %}{% endset %}{% endfor %}",                         BT_ERR_FORMAT,
         "break outside a loop"                                                                                                                                                  },
        {"{{ 'a'|default('p', default_value='q') }}",                                                BT_ERR_UNSUPPORTED, "and 1 more by name"                                    },
        {"x{% endif %}",                                                                             BT_ERR_FORMAT,      "expected a tag that belongs to one before, found endif"},
        {"{{ (1 }}",                                                                                 BT_ERR_FORMAT,      "line 1: expected"                                      },
        {"{{ 'a }}",                                                                                 BT_ERR_FORMAT,      "a quote that does not end"                             },
        {"{{ 1",                                                                                     BT_ERR_FORMAT,      "a tag that does not end"                               },
        {"{# a",                                                                                     BT_ERR_FORMAT,      "a comment that does not end"                           },
        {"{{ $ }}",                                                                                  BT_ERR_FORMAT,      "expected an expression, found $"                       },
        {"{{ }}",                                                                                    BT_ERR_FORMAT,      "expected an expression, found }}"                      },
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",                                          BT_ERR_UNSUPPORTED,
         "less than 400 deep"                                                                                                                                                    },
        {"{% set " TEN(TEN("((((((((((")),                                                           BT_ERR_UNSUPPORTED, "nested more than 200 deep"                             },
        {"{{" TEN(TEN("((((((((((")) "1",                                                            BT_ERR_UNSUPPORTED, "nested more than 200 deep"                             },
        {"{% set n = namespace(x=1) %}{% for a in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor "
         "%}"
         "{{ n.x == [n.x[0], [n.x[0][0], n.x[1][1]]] }}{% for a in range(99999) %}"
         "{{ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a }}{% endfor %}", BT_ERR_UNSUPPORTED, "expected "                                             },
        {"{% set n = namespace(x='aaaa') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}"
         "{% endfor %}",                                                                    BT_ERR_NO_MEMORY,   "than it may take"                                      },
        {"{% set x = 'a' * 9000000 %}{% set y = 'a' * 9000000 %}{% for i in range(999) %}"
         "{{ x < y }}{% endfor %}",                                                         BT_ERR_UNSUPPORTED, "expected an end within"                                },
        {"{% set x = 'a' * 30000000 %}{% set d = {x: 1} %}{% for i in range(999) %}"
         "{{ d[x] ~ d.get(x) }}{% endfor %}",                                               BT_ERR_UNSUPPORTED, "expected an end within"                                },
        {"{{ raise_exception('roles\\nmust alternate') }}",                                          BT_ERR_INVALID_ARG,
         "refused by the template: roles?must alternate"                                                                                                                         },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char *text   = NULL;
        int   before = g_failures;

        write_template(CASES[i].text);
        EXPECT_EQ(render(g_scratch, 2, TALK, &text), CASES[i].st);
        EXPECT_HAS(bt_error_text(), CASES[i].why);
        EXPECT(text == NULL);
        if (g_failures != before) fprintf(stderr, "    template: %.80s\n", CASES[i].text);
    }
}

static void *render_in_vain(void *unused)
{
    char *text = NULL;

    EXPECT_EQ(render(g_scratch, 1, TALK, &text), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "less than 400 deep");
    return unused;
}

/* Of the least size that the programs ask for; instrumented code takes more of it. */
static void chat_templates_that_call_themselves_fit_the_stack(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    enum { STACK_BYTES = 8 << 20 };
#else
    enum { STACK_BYTES = 512 << 10 };
#endif
    static const char NESTED[] =
        "{% macro f() %}{% for i in [1] %}{% if 1 %}{% set x = f()|trim %}{% endif %}"
        "{% endfor %}{% endmacro %}{{ f() }}";
    static const char *const TEMPLATES[] = {
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(a=1|default(f())) %}{% endmacro %}{{ f() }}",
        NESTED,
    };
    pthread_attr_t attr;
    pthread_t      thread;

    pthread_attr_init(&attr);
    EXPECT_EQ(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    for (size_t i = 0; i < sizeof(TEMPLATES) / sizeof(TEMPLATES[0]); i++) {
        write_template(TEMPLATES[i]);
        EXPECT_EQ(pthread_create(&thread, &attr, render_in_vain, NULL), 0);
        pthread_join(thread, NULL);
    }
    pthread_attr_destroy(&attr);
}

/* As long as it takes: n keys are searched through each time, which is not one step. */
static void chat_searches_in_large_maps_count(void)
{
    enum { KEYS = 2000, TURNS = 500 };
    static const char *const SEARCHES[] = {"a == b", "'x' in a or 'y' in a or 'z' in a",
                                           "a.get('x') or a.get('y') or a.get('z')"};
    static const int         TIMES[]    = {1, 300, 300};

    for (size_t i = 0; i < sizeof(SEARCHES) / sizeof(SEARCHES[0]); i++) {
        char *template = malloc(2 * KEYS * 16 + 512), *end = template, *text = NULL;

        if (template == NULL) abort();
        for (char name = 'a'; name <= 'b'; name++) {
            end += sprintf(end, "{%% set %c = {", name);
            for (int k = 0; k < KEYS; k++)
                end += sprintf(end, "'%d': 1,", k);
            end += sprintf(end, "} %%}");
        }
        sprintf(end,
                "{%% for i in range(%d) %%}{%% for k in range(%d) %%}{%% if %s %%}{%% endif %%}"
                "{%% endfor %%}{%% endfor %%}",
                TURNS, TIMES[i], SEARCHES[i]);
        write_template(template);
        EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_UNSUPPORTED);
        EXPECT_HAS(bt_error_text(), "expected an end within");
        bt_free(text);
        free(template);
    }
}

static void chat_without_a_template_is_refused(void)
{
    bt_tokenizer *tok  = NULL;
    char         *text = NULL;

    write_model(NULL);
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "expected a chat_template in tokenizer_config.json");
    write_model("{\"chat_template\": \""
                "x"
                "\", \"bos_token\": 7}");
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field bos_token: expected a text, found 7");
    write_model("{\"chat_template\": [1]}"); /* who completes text does without */
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    bt_tokenizer_close(tok);
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field chat_template: expected a text");
    scratch_write("chat_template.jinja", "a\0b", 3);
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "chat_template.jinja: expected a text of at most 1 MiB");
    write_model("[]");
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "tokenizer_config.json: expected an object");
    EXPECT(text == NULL);
}

static void chat_template_file_has_a_largest_size(void)
{
    enum { MOST = 1 << 20 };
    char *large = malloc(MOST + 1), *text = NULL;

    if (large == NULL) abort();
    memset(large, 'x', MOST + 1);
    write_model(NULL);
    scratch_write("chat_template.jinja", large, MOST);
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_OK);
    EXPECT_EQ(strlen(text), MOST);
    bt_free(text);
    scratch_write("chat_template.jinja", large, MOST + 1);
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "chat_template.jinja: expected a text of at most 1 MiB");
    free(large);
}

static void chat_of_unknown_roles_is_refused(void)
{
    const bt_chat_message tool = {"tool", "42"};
    char                 *text = NULL;

    EXPECT_EQ(render(DEMO, 1, &tool, &text), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "expected system, user or assistant, found \"tool\"");
    EXPECT(text == NULL);
}

static void chat_unwinds_at_every_allocation(void)
{
    bt_tokenizer *tok  = NULL;
    char         *text = NULL;

    write_template(
        "{% set ns = namespace(x='') %}{% macro f(a) %}<{{ a }}>{% endmacro %}"
        "{% for m in messages[1:] %}{% set ns.x = ns.x + m.content %}{{ f(m.role) }}"
        "{% endfor %}{{ ns.x.split('l')|join('L') }}{{ 7 }}{{ {'a': [1]}.items()|length }}");
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    EXPECT(BT_SWEEP(bt_tokenizer_chat(tok, 5, TALK, BT_THINK_UNSAID, &text), bt_free(text)) >= 2);
    bt_tokenizer_close(tok);
}

static const bt_test TESTS[] = {
    BT_TEST(chat_of_the_demo),
    BT_TEST(chat_of_v2),
    BT_TEST(chat_templates_render_as_jinja_renders_them),
    BT_TEST(chat_of_many_messages_fits),
    BT_TEST(chat_may_say_whether_to_think),
    BT_TEST(chat_template_may_be_a_list_or_a_file),
    BT_TEST(chat_rendered_text_begins_with_one_bos),
    BT_TEST(chat_templates_that_cannot_be_rendered_say_where),
    BT_TEST(chat_templates_that_call_themselves_fit_the_stack),
    BT_TEST(chat_searches_in_large_maps_count),
    BT_TEST(chat_without_a_template_is_refused),
    BT_TEST(chat_template_file_has_a_largest_size),
    BT_TEST(chat_of_unknown_roles_is_refused),
    BT_TEST(chat_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
