#include <jansson.h>
#include <stdarg.h>

#include "core/alloc.h"
#include "model/tokenizer.h"
#include "tests/model/scratch.h"
#include "tests/support/test.h"

#define DEMO      BT_SOURCE_DIR "/models/demo"
#define BAR       "\xef\xbd\x9c"
#define BOS       "<" BAR "begin\xe2\x96\x81of\xe2\x96\x81sentence" BAR ">"
#define EOS       "<" BAR "end\xe2\x96\x81of\xe2\x96\x81sentence" BAR ">"
#define USER      "<" BAR "User" BAR ">"
#define ASSISTANT "<" BAR "Assistant" BAR ">"

/* The templates' text without tools, in the spelling of the published files. */
#define V2_TEMPLATE                                                                              \
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"       \
    "{% endif %}{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"  \
    "{{ 'User: ' + message['content'] + '\\n\\n' }}{% elif message['role'] == 'assistant' %}"    \
    "{{ 'Assistant: ' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}" \
    "{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"   \
    "{{ 'Assistant:' }}{% endif %}"
#define V3_WITH(system, prompt)                                                              \
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"   \
    "{% endif %}{% set ns = namespace(is_tool=false, is_first_sp=true, system_prompt='') %}" \
    "{%- for message in messages %}{%- if message['role'] == 'system' %}" system             \
    "{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}"                         \
    "{%- for message in messages %}{%- if message['role'] == 'user' %}"                      \
    "{%- set ns.is_tool = false -%}{{'" USER "' + message['content']}}{%- endif %}"          \
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}"            \
    "{{'" ASSISTANT "' + message['content'] + '" EOS "'}}{%- endif %}{%- endfor -%}"         \
    "{% if add_generation_prompt and not ns.is_tool %}{{'" prompt "'}}{% endif %}"
#define LAST_SYSTEM "{% set ns.system_prompt = message['content'] %}"
#define JOINED_SYSTEM                                                                            \
    "{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}" \
    "{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + "   \
    "'\\n\\n' + message['content'] %}{%- endif %}"

/* As the published files go on: with branches for tools. */
#define TOOL_CALLS                                                                        \
    "{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}"              \
    "{%- if not ns.is_first %}{{'<call>' + tool['type'] + '\\n'}}"                        \
    "{%- set ns.is_first = true -%}{%- else %}{{'\\n<call>' + tool['type']}}{%- endif %}" \
    "{%- endfor %}{{'</call>'}}{%- endif %}"
#define TOOL_RESULTS                                                                 \
    "{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}"               \
    "{%- if ns.is_output_first %}{{'<out>' + message['content']}}"                   \
    "{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}" \
    "{%- endif %}{%- endif %}"
#define V3_TOOLS(names, system, calls, no_calls)                                                   \
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"         \
    "{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, " names \
    ") %}{%- for message in messages %}"                                                           \
    "{%- if message['role'] == 'system' %}" system "{%- endif %}{%- endfor %}"                     \
    "{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}"                              \
    "{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"                            \
    "{{'" USER "' + message['content']}}{%- endif %}"                                              \
    "{%- if message['role'] == 'assistant' and " calls " %}" TOOL_CALLS                            \
    "{%- if message['role'] == 'assistant' and " no_calls " %}{%- if ns.is_tool %}"                \
    "{{'</out>' + message['content'] + '" EOS "'}}{%- set ns.is_tool = false -%}"                  \
    "{%- else %}{{'" ASSISTANT "' + message['content'] + '" EOS "'}}{%- endif %}"                  \
    "{%- endif %}" TOOL_RESULTS "{%- endfor -%}{% if ns.is_tool %}{{'</out>'}}{% endif %}"         \
    "{% if add_generation_prompt and not ns.is_tool %}{{'" ASSISTANT "'}}{% endif %}"
#define V3_CALLS(names, system, calls) \
    V3_TOOLS(names, system, calls, "message['content'] is not none")
/* The demo's, with blanks at some places. */
#define DEMO_WITH(bos, blanks)                                                            \
    bos "{% for m in messages %}" blanks "{% if m['role'] == 'system' %}"                 \
        "{{ m['content'] }}{% elif m['role'] == 'user' %}{{ '" USER "' + m['content'] }}" \
        "{% elif m['role'] == 'assistant' %}{{ '" ASSISTANT "' + m['content'] + '" EOS    \
        "' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '" ASSISTANT         \
        "' }}{% endif %}"

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

    if (st == BT_OK) st = bt_tokenizer_chat(tok, n, messages, text);
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

static void chat_of_v3_puts_the_last_system_text_in_front(void)
{
    write_template(V3_WITH(LAST_SYSTEM, ASSISTANT));
    expect_text(g_scratch, BOS "Rhyme." USER "Hi\n" ASSISTANT " Hello. " EOS USER "Why?" ASSISTANT);
}

static void chat_of_later_v3_joins_the_system_texts(void)
{
    write_template(V3_WITH(JOINED_SYSTEM, ASSISTANT));
    expect_text(g_scratch, BOS "Be brief.\n\nRhyme." USER "Hi\n" ASSISTANT " Hello. " EOS USER
                               "Why?" ASSISTANT);
}

static void chat_of_v3_leaves_out_the_branches_for_tools(void)
{
    write_template(V3_CALLS("system_prompt=''", LAST_SYSTEM, "message['content'] is none"));
    expect_text(g_scratch, BOS "Rhyme." USER "Hi\n" ASSISTANT " Hello. " EOS USER "Why?" ASSISTANT);
    write_template(V3_TOOLS("system_prompt='', is_first_sp=true", JOINED_SYSTEM,
                            "'tool_calls' in message", "'tool_calls' not in message"));
    expect_text(g_scratch, BOS "Be brief.\n\nRhyme." USER "Hi\n" ASSISTANT " Hello. " EOS USER
                               "Why?" ASSISTANT);
}

/* As Hugging Face runs Jinja: with trim_blocks and lstrip_blocks. */
static void chat_blanks_count_where_jinja_prints_them(void)
{
    static const struct {
        const char *text;
        bool        printed;
    } CASES[] = {
        {DEMO_WITH("{{ bos_token }}",   "\n"),                          false},
        {DEMO_WITH("{{ bos_token }}",                             "\n \t"),                                 false},
        {DEMO_WITH("{{ bos_token -}} \n ",                        "") "\n",                      false},
        {DEMO_WITH("{{- bos_token -}}","") "\n\n",  false},
        {"\n" DEMO_WITH("\n {{- bos_token }}", "\n"),                        false},
        {"  " V2_TEMPLATE "\n",                             false                       },
        {DEMO_WITH("{{ bos_token }}",                        " "),                               true},
        {DEMO_WITH("{{ bos_token }}","\n\n"),   true},
        {DEMO_WITH("{{ bos_token }}\n",  ""),true},
        {DEMO_WITH("{{ bos_token }}\n  ",   ""),                               true},
        {DEMO_WITH(" {{ bos_token }}",                             ""),                               true},
        {DEMO_WITH("{{ bos_token }}",                         "") " ",                                                          true},
        {DEMO_WITH("{{ bos_token }}",                        "") "\n\n\n",                    true},
        {"\n" V2_TEMPLATE,  true},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char *text   = NULL;
        int   before = g_failures;

        write_template(CASES[i].text);
        EXPECT_EQ(render(g_scratch, 2, TALK, &text), CASES[i].printed ? BT_ERR_UNSUPPORTED : BT_OK);
        if (g_failures != before) fprintf(stderr, "    in case %zu\n", i);
        bt_free(text);
    }
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
    write_model("{\"bos_token\": \"<b>\", \"eos_token\": \"<e>\"}");
    scratch_write("chat_template.jinja", V2_TEMPLATE, strlen(V2_TEMPLATE));
    EXPECT_EQ(render(g_scratch, 3, TALK, &text), BT_OK);
    EXPECT(strcmp(text, "<b>Be brief.\n\nUser: Hi\n\n\nAssistant:  Hello. <e>Assistant:") == 0);
    bt_free(text);
    write_template(V3_WITH(LAST_SYSTEM, ASSISTANT)); /* of the two the file counts */
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
    EXPECT_EQ(bt_tokenizer_chat(tok, 2, TALK, &text), BT_OK);
    EXPECT_EQ(bt_tokenizer_encode(tok, text, strlen(text), &ids, &n), BT_OK);
    EXPECT(n > 3 && ids[0] == 0 && ids[1] != 0);
    EXPECT_EQ(ids[n - 1], bt_tokenizer_added_id(tok, ASSISTANT));
    bt_free(ids);
    bt_free(text);
    bt_tokenizer_close(tok);
}

static void chat_of_other_templates_is_refused_by_name(void)
{
    static const char *const OTHERS[] = {
        "{% for message in messages %}{{'<|im_start|>' + message['role']}}{% endfor %}",
        V3_WITH(LAST_SYSTEM, ASSISTANT "<think>\\n"), /* R1 */
        V3_WITH(LAST_SYSTEM, ASSISTANT) "{# #}",      /* something behind */
        V3_WITH("", ASSISTANT),                       /* no system text */
        "Hello " V2_TEMPLATE,                         /* text outside the tags */
        V2_TEMPLATE "{{ 'x' }}",                      /* another output */
        V3_CALLS("system_prompt='You help.'", LAST_SYSTEM, "message['content'] is none"),
        V3_CALLS("is_first_sp=true", LAST_SYSTEM, "message['content'] is none"),
        V3_CALLS("system_prompt=''", JOINED_SYSTEM,
                 "message['content'] is none"), /* no is_first_sp */
        V3_CALLS("system_prompt='') %}{{ 'Today' }}{% set x = f(1", LAST_SYSTEM,
                 "message['content'] is none"),
        V3_CALLS("system_prompt='') %}{% set messages = messages[-1:] %}{% set x = f(1",
                 LAST_SYSTEM, "message['content'] is none"),
        V3_CALLS("system_prompt=''",
                 LAST_SYSTEM "{% set ns.system_prompt = ns.system_prompt + '!' %}",
                 "message['content'] is none"),
        V3_CALLS("system_prompt=''", LAST_SYSTEM "{{ '\\n' }}", "message['content'] is none"),
        V3_CALLS("system_prompt=''", LAST_SYSTEM,
                 "message['content']"), /* a branch that is entered */
        V3_CALLS("system_prompt=''", LAST_SYSTEM,
                 "message['content'] is none %}{# {% if x %} #}{% endif %}{{ 'x' }}{% if x"),
        V3_CALLS("system_prompt=''", LAST_SYSTEM, "message['content'] is none %}{% elif 1"),
        V3_WITH(LAST_SYSTEM " ", ASSISTANT " "),
        "{{ bos_token }}",
        "{% for",
        "\\",
        "",
    };

    for (size_t i = 0; i < sizeof(OTHERS) / sizeof(OTHERS[0]); i++) {
        char *text = NULL;

        write_template(OTHERS[i]);
        EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_UNSUPPORTED);
        EXPECT_HAS(bt_error_text(), "chat_template: expected DeepSeek-V2's");
        if (i == 0) EXPECT_HAS(bt_error_text(), "begins \"{% for message in messages %}");
        EXPECT(text == NULL);
    }
}

static void chat_without_a_template_is_refused(void)
{
    char *text = NULL;

    write_model(NULL);
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "expected a chat_template in tokenizer_config.json");
    write_model("{\"chat_template\": \""
                "x"
                "\", \"bos_token\": 7}");
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field bos_token: expected a text, found 7");
    write_model("{\"chat_template\": [1]}");
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field chat_template: expected a text");
    write_model("[]");
    EXPECT_EQ(render(g_scratch, 2, TALK, &text), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "tokenizer_config.json: expected an object");
    EXPECT(text == NULL);
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
    long          live, k = -1;
    bt_status     st;

    EXPECT_EQ(bt_tokenizer_open(DEMO, &tok), BT_OK);
    live = bt_alloc_live();
    do {
        bt_alloc_fail_at(++k);
        st = bt_tokenizer_chat(tok, 5, TALK, &text);
        bt_alloc_fail_at(-1);
        if (st == BT_OK) break;
        EXPECT_EQ(st, BT_ERR_NO_MEMORY);
        EXPECT_EQ(bt_alloc_live(), live);
    } while (k < 100);
    EXPECT(k >= 2);
    bt_free(text);
    bt_tokenizer_close(tok);
}

static const bt_test TESTS[] = {
    BT_TEST(chat_of_the_demo),
    BT_TEST(chat_of_v2),
    BT_TEST(chat_of_v3_puts_the_last_system_text_in_front),
    BT_TEST(chat_of_later_v3_joins_the_system_texts),
    BT_TEST(chat_of_v3_leaves_out_the_branches_for_tools),
    BT_TEST(chat_blanks_count_where_jinja_prints_them),
    BT_TEST(chat_template_may_be_a_list_or_a_file),
    BT_TEST(chat_rendered_text_begins_with_one_bos),
    BT_TEST(chat_of_other_templates_is_refused_by_name),
    BT_TEST(chat_without_a_template_is_refused),
    BT_TEST(chat_of_unknown_roles_is_refused),
    BT_TEST(chat_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
