/* baton-tokenize and baton-inspect as a user runs them. */
#include <jansson.h>
#include <sys/wait.h>

#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define FIXTURES BT_SOURCE_DIR "/tests/fixtures"

/* Runs a shell command, output and errors together; the caller frees. */
static char *run(const char *command, int *exit_out)
{
    FILE  *f    = popen(command, "r");
    char  *text = calloc(1 << 20, 1);
    size_t n;
    int    status;

    if (f == NULL || text == NULL) abort();
    n         = fread(text, 1, (1 << 20) - 1, f);
    text[n]   = '\0';
    status    = pclose(f);
    *exit_out = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return text;
}

static void expect_run(const char *command, int exit_code, const char *part)
{
    int   code = -1;
    char *text = run(command, &code);

    EXPECT_EQ(code, exit_code);
    EXPECT_HAS(text, part);
    free(text);
}

/* The texts of a fixture, a JSON string a line, and the ids that they must give. */
static void split_fixture(const char *fixture, const char *field, const char *file)
{
    FILE  *in = fopen(fixture, "r"), *out = fopen(scratch_path(file), "w");
    char  *line = NULL;
    size_t room = 0;

    if (in == NULL || out == NULL) abort();
    while (getline(&line, &room, in) > 0) {
        json_t *c = json_loads(line, JSON_ALLOW_NUL, NULL);

        if (c == NULL || json_dumpf(json_object_get(c, field), out, JSON_ENCODE_ANY) != 0) abort();
        fputc('\n', out);
        json_decref(c);
    }
    free(line);
    fclose(in);
    fclose(out);
}

static void check_fixture(const char *model, const char *fixture)
{
    char command[4096];

    scratch_clear();
    split_fixture(fixture, "text", "texts");
    split_fixture(fixture, "ids", "ids");
    split_fixture(fixture, "decoded", "decoded");
    snprintf(command, sizeof(command),
             "cd %s && " BT_TOKENIZE
             " --model %s < texts > got && cmp got ids 2>&1 && echo same && " BT_TOKENIZE
             " --model %s --decode < ids > back && cmp back decoded 2>&1 && echo decoded",
             g_scratch, model, model);
    expect_run(command, 0, "same\ndecoded\n");
}

static void tokenize_answers_every_fixture(void)
{
    check_fixture(BT_SOURCE_DIR "/models/demo", FIXTURES "/tokenizer-v3.jsonl");
    check_fixture(BT_SOURCE_DIR "/tests/models/v2-lite", FIXTURES "/tokenizer-v2.jsonl");
    check_fixture(FIXTURES "/tokenizer-code.json", FIXTURES "/tokenizer-code.jsonl");
}

static void tokenize_names_the_bad_line(void)
{
#define TOKENIZE " | " BT_TOKENIZE " -m " BT_SOURCE_DIR "/models/demo "
    expect_run("printf '\"a\"\\n7\\n\"b\"\\n'" TOKENIZE "2>&1", 1,
               "stdin line 2: expected a JSON string");
    expect_run("printf '\"a\"\\n\\n'" TOKENIZE "2>&1", 1, "stdin line 2: expected a JSON string");
    expect_run("printf '\"a\\n'" TOKENIZE "2>&1", 1, "stdin line 1: expected a JSON string");
    expect_run("printf '\"a\"\\n7\\n\"b\"\\n'" TOKENIZE "2>/dev/null", 1, "[67]\n");
    expect_run("echo '[1, 99999]'" TOKENIZE "-d 2>&1", 1,
               "stdin line 1, entry 2: expected an id from 0 to 2047");
    expect_run("echo '\"a\"'" TOKENIZE "-d 2>&1", 1, "stdin line 1: expected a JSON list");
    expect_run("echo '\"a\"'" TOKENIZE "2>&1 >/dev/full", 1, "stdout: No space left on device");
    expect_run("echo '\"a\\u0000\\u4e2d\"'" TOKENIZE, 0, "]\n");
}

static void tokenize_teaches_its_usage(void)
{
    expect_run(BT_TOKENIZE " --help", 0, "echo '\"To be, or not to be\"'");
    expect_run(BT_TOKENIZE " 2>&1", 64, "--model is missing");
    expect_run(BT_TOKENIZE " -m x y 2>&1", 64, "\"y\" is not an option");
    expect_run("echo | " BT_TOKENIZE " -m /nonexistent 2>&1", 1, "/nonexistent: No such file");
}

static void inspect_counts_every_model_as_its_config_does(void)
{
    static const struct {
        const char *dir, *part;
    } MODELS[] = {
        {"models/demo",            "all (served)                  7,963,696"                    },
        {"models/demo",            "used by a token               6,194,224"                    },
        {"models/demo",            "  tokenizer   tokenizer.json\n"                             },
        {"tests/models/v2",        "  tokenizer   none: `baton chat`, `generate`"               },
        {"models/demo",            "8192 tokens (YaRN: factor 4 over 2048)\n"                   },
        {"tests/models/v2-lite",   "softmax, 3 of 8 experts, weights x 1"                       },
        {"tests/models/v2",        "softmax limited to groups, 3 of 12 experts, in the best 2"  },
        {"tests/models/v3-fp8",    "FP8 weights in 128x128 blocks"                              },
        {"tests/models/k2-int4",   "weights of 4 bits in groups of 32"                          },
        {"tests/models/kimi-k2",   "in 187 tensors"                                             },
        {"tests/models/moonlight", "full-rank query"                                            },
        {"tests/models/glm-flash", "Glm4MoeLiteForCausalLM"                                     },
        {"tests/models/v3.2",      "3: 1 dense, 2 MoE; and 1 MTP, served with --mtp\n"          },
        {"tests/models/glm-5",     "4: 1 dense, 3 MoE\n"                                        },
        {"tests/models/glm-5",     "to 16 positions, by 12 heads of 24 in 2 layers"             },
        {"tests/models/axk1",      "norms                               960"                    },
        {"tests/models/youtu",     "320, embedding and head tied\n  context     131072 tokens\n"},
        {"tests/models/youtu",     "used by a token                 320,496"                    },
    };

    for (size_t i = 0; i < sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        char  command[1024];
        int   code = -1;
        char *text;

        snprintf(command, sizeof(command), BT_INSPECT " %s/%s 2>&1", BT_SOURCE_DIR, MODELS[i].dir);
        text = run(command, &code);
        EXPECT_EQ(code, 0);
        EXPECT_HAS(text, MODELS[i].part);
        EXPECT_HAS(text, "  2 ranks     room for ");
        EXPECT(strstr(text, "expected") == NULL && strstr(text, "unknown") == NULL);
        free(text);
    }
    expect_run(BT_INSPECT " " BT_SOURCE_DIR "/models/demo", 0,
               "4,608 bytes a token, 288.0 KiB a page of 64 tokens, 36.0 MiB a full context");
}

/* All of it in the files, or nothing. */
static void inspect_says_where_a_layer_that_predicts_is(void)
{
    expect_run(BT_INSPECT " " BT_SOURCE_DIR "/models/demo", 0, "MTP (with --mtp)");
    expect_run("cp " BT_SOURCE_DIR "/tests/models/v2-lite/model.safetensors $D && sed "
               "'s/\"num_nextn_predict_layers\": 0/\"num_nextn_predict_layers\": 1/' " BT_SOURCE_DIR
               "/tests/models/v2-lite/config.json > $D/config.json && " BT_INSPECT " $D",
               0, "2 MoE; and 1 MTP, not in the files\n");
    expect_run(
        "cp " BT_SOURCE_DIR "/tests/models/v3-fp8/* $D && sed -i "
        "s/model.layers.3.eh_proj/model.layers.3.eh_pro_/ $D/model.safetensors && " BT_INSPECT
        " $D 2>&1",
        1, "expected tensor model.layers.3.eh_proj.weight of shape [192, 384], found none");
}

static void inspect_shows_what_is_missing(void)
{
    expect_run("cp " BT_SOURCE_DIR "/tests/models/v2-lite/model.safetensors $D && sed "
               "'s/\"n_routed_experts\": 8/\"n_routed_experts\": 16/' " BT_SOURCE_DIR
               "/tests/models/v2-lite/config.json > $D/config.json && " BT_INSPECT " $D",
               1, "expected 442,368 by config.json");
    expect_run(BT_INSPECT " $D 2>&1", 1, "expected shape [16, 96], found [8, 96]");
}

static void inspect_teaches_its_usage(void)
{
    expect_run(BT_INSPECT " --help", 0, "baton inspect models/demo");
    expect_run(BT_INSPECT " 2>&1", 64, "the model's directory is missing");
    expect_run(BT_INSPECT " a b 2>&1", 64, "expected one directory");
    expect_run(BT_INSPECT " " BT_SOURCE_DIR "/README.md 2>&1", 64,
               "README.md\", expected a directory, found a file (of a GGUF file `baton convert`");
    expect_run(BT_INSPECT " /nonexistent 2>&1 | sed s/^/:/", 0, ":baton inspect: ");
    expect_run(BT_INSPECT " /nonexistent 2>&1", 1, "/nonexistent/config.json: No such file");
    expect_run(BT_INSPECT " " BT_SOURCE_DIR "/models/demo 2>&1 >/dev/full", 1, "No space left");
}

static const bt_test TESTS[] = {
    BT_TEST(tokenize_answers_every_fixture),
    BT_TEST(tokenize_names_the_bad_line),
    BT_TEST(tokenize_teaches_its_usage),
    BT_TEST(inspect_counts_every_model_as_its_config_does),
    BT_TEST(inspect_says_where_a_layer_that_predicts_is),
    BT_TEST(inspect_shows_what_is_missing),
    BT_TEST(inspect_teaches_its_usage),
};

int main(int argc, char **argv)
{
    int rc;

    scratch_make();
    setenv("D", g_scratch, 1);
    rc = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    scratch_remove();
    return rc;
}
