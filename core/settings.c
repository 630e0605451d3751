#include "core/settings.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/parse.h"
#include "core/spelling.h"

enum { FILE_BYTES = 1 << 20, NAME_BYTES = 128, OPTIONS_MAX = 256, REPORT_BYTES = 480 };

typedef enum { FROM_DEFAULT, FROM_FILE, FROM_ENVIRONMENT, FROM_FLAG, N_PLACES } place;

static const char *const PLACES[] = {"default", "file", "environment", "flag"};

typedef struct {
    const char *name;
    int         key;
    bool        takes_value;
    char       *values[N_PLACES]; /* owned; by file and environment, and by flag for the report */
    bool        dropped;          /* a stronger place set what excludes it */
    bool        idle;             /* it is set, and has no effect */
} setting;

struct bt_settings {
    bt_settings_spec   spec;
    setting            all[OPTIONS_MAX];
    size_t             n;
    struct argp_option flat[OPTIONS_MAX + 1];
    char             **argv;  /* owned, as are the words that are made here */
    char             **words; /* [n_words] */
    size_t             n_words;
    int                argc;
};

/* ---- the options there are */

static bt_status collect(bt_settings *s, const struct argp *parser)
{
    bt_status st = BT_OK;

    for (const struct argp_option *o = parser->options;
         o != NULL && (o->name != NULL || o->key != 0 || o->doc != NULL); o++) {
        if (o->name == NULL || o->key == 0) continue;
        BT_REQUIRE(s->n < OPTIONS_MAX, BT_ERR_INVALID_ARG, "more than %d options", OPTIONS_MAX);
        s->flat[s->n]  = *o;
        s->all[s->n++] = (setting){.name = o->name, .key = o->key, .takes_value = o->arg != NULL};
    }
    for (const struct argp_child *c = parser->children; c != NULL && c->argp != NULL; c++)
        BT_TRY(collect(s, c->argp));
out:
    return st;
}

static setting *find_name(bt_settings *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->all[i].name, name) == 0) return &s->all[i];
    return NULL;
}

static bt_status set(setting *t, place from, const char *value)
{
    bt_status st   = BT_OK;
    char     *copy = bt_strdup(value);

    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "setting %s", t->name);
    bt_free(t->values[from]);
    t->values[from] = copy;
out:
    return st;
}

/* ---- flags: argp itself says which there are, with all its ways of writing them */

static error_t note(int key, char *arg, struct argp_state *state)
{
    bt_settings *s = state->input;

    if (key == ARGP_KEY_ARG) return 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->all[i].key == key)
            return set(&s->all[i], FROM_FLAG, arg != NULL ? arg : "true") == BT_OK ? 0 : ENOMEM;
    return ARGP_ERR_UNKNOWN;
}

static bt_status read_flags(bt_settings *s, int argc, char **argv)
{
    bt_status   st     = BT_OK;
    char      **copy   = bt_calloc((size_t)argc + 1, sizeof(*copy)); /* argp reorders it */
    struct argp parser = {s->flat, note, NULL, NULL, NULL, NULL, NULL};

    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "command line");
    memcpy(copy, argv, (size_t)argc * sizeof(*copy));
    /* What is wrong on the command line is said by the program's own parser. */
    BT_REQUIRE(argp_parse(&parser, argc, copy, ARGP_SILENT, NULL, s) != ENOMEM, BT_ERR_NO_MEMORY,
               "command line");
out:
    bt_free(copy);
    return st;
}

/* ---- values of file and environment */

/* Options without an argument are true or false. */
static bt_status set_checked(setting *t, place from, const char *where, const char *value)
{
    bt_status st = BT_OK;

    BT_REQUIRE(t->takes_value || strcmp(value, "true") == 0 || strcmp(value, "false") == 0,
               BT_ERR_INVALID_ARG, "%s: %s is \"%s\", expected true or false", where, t->name,
               value);
    BT_TRY(set(t, from, value));
out:
    return st;
}

static char *trim(char *text)
{
    char *end = text + strlen(text);

    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

static void variable(const char *name, char variable_out[NAME_BYTES])
{
    int n = snprintf(variable_out, NAME_BYTES, "BATON_%s", name);

    for (int i = 0; i < n && i < NAME_BYTES - 1; i++)
        variable_out[i] =
            variable_out[i] == '-' ? '_' : (char)toupper((unsigned char)variable_out[i]);
}

/* The setting whose variable is the given one or one letter away from it, or two of a longer name;
 * NULL when there is none. */
static const setting *nearest(const bt_settings *s, const char *given)
{
    const setting *found = NULL;
    char           name[NAME_BYTES];
    uint32_t       apart = strlen(given) < sizeof("BATON_") - 1 + 6 ? 2 : 3; /* what is too far */

    for (size_t i = 0; i < s->n; i++) {
        uint32_t d;

        variable(s->all[i].name, name);
        d = bt_letters_apart(given, name);
        if (d >= apart) continue;
        apart = d;
        found = &s->all[i];
    }
    return found;
}

static bt_status refuse_name(const bt_settings *s, const char *where, const char *name)
{
    bt_status      st = BT_OK;
    char           given[NAME_BYTES];
    const setting *meant;

    variable(name, given);
    meant = nearest(s, given);
    BT_REQUIRE(meant == NULL || meant->key == BT_OPT_CONFIG, BT_ERR_INVALID_ARG,
               "%s: there is no setting \"%.60s\": is %s meant?", where, name, meant->name);
    BT_REQUIRE(false, BT_ERR_INVALID_ARG,
               "%s: there is no setting \"%.60s\": expected a long option of --help but --config",
               where, name);
out:
    return st;
}

/* "name = value", "name = "a # b"", "# comment", "". */
static bt_status read_line(bt_settings *s, const char *where, char *line)
{
    bt_status st    = BT_OK;
    char     *text  = trim(line), *value, *name, *rest;
    setting  *found = NULL;

    if (*text == '\0' || *text == '#') return BT_OK;
    value = strchr(text, '=');
    BT_REQUIRE(value != NULL, BT_ERR_INVALID_ARG, "%s: expected \"name = value\"", where);
    *value++ = '\0';
    name     = trim(text);
    value    = trim(value);
    if (*value == '"') {
        rest = strchr(++value, '"');
        BT_REQUIRE(rest != NULL, BT_ERR_INVALID_ARG, "%s: the quote is not closed", where);
        *rest = '\0';
        rest  = trim(rest + 1);
        BT_REQUIRE(*rest == '\0' || *rest == '#', BT_ERR_INVALID_ARG,
                   "%s: unexpected text after the quote", where);
    } else {
        value[strcspn(value, "#")] = '\0';
        value                      = trim(value);
    }
    found = find_name(s, name);
    if (found == NULL || found->key == BT_OPT_CONFIG) return refuse_name(s, where, name);
    BT_REQUIRE(found->values[FROM_FILE] == NULL, BT_ERR_INVALID_ARG, "%s: %s is set twice", where,
               name);
    BT_TRY(set_checked(found, FROM_FILE, where, value));
out:
    return st;
}

static bt_status read_file(bt_settings *s, const char *path)
{
    bt_status   st = BT_OK;
    const char *why;
    FILE       *f    = bt_open_regular(path, &why);
    char       *text = NULL, *next, where[PATH_MAX + 32];
    size_t      n;
    unsigned    number = 1;

    BT_REQUIRE(bt_parse_name(path), BT_ERR_INVALID_ARG, "--config is \"%s\", expected a file",
               path);
    BT_REQUIRE(f != NULL, BT_ERR_IO, "--config %s: %s", path, why);
    text = bt_calloc(FILE_BYTES + 2, 1);
    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "--config %s", path);
    n = fread(text, 1, FILE_BYTES + 1, f);
    BT_REQUIRE(!ferror(f), BT_ERR_IO, "--config %s: %s", path, strerror(errno));
    BT_REQUIRE(n <= FILE_BYTES, BT_ERR_INVALID_ARG,
               "--config %s: expected at most %d bytes, found more", path, FILE_BYTES);
    BT_REQUIRE(strlen(text) == n, BT_ERR_INVALID_ARG,
               "--config %s: expected text, found a zero byte at byte %zu", path, strlen(text));
    BT_REQUIRE(strncmp(text, "\xef\xbb\xbf", 3) != 0, BT_ERR_INVALID_ARG,
               "--config %s: begins with a byte order mark: save it without one", path);
    for (char *line = text; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        snprintf(where, sizeof(where), "%s:%u", path, number++);
        BT_TRY(read_line(s, where, line));
    }
out:
    bt_free(text);
    if (f != NULL) fclose(f);
    return st;
}

/* Whether the entry of the environment is of a variable, given, that is none of these but must be
 * meant for one.  Others may be another program's. */
static bool is_misspelt(const bt_settings *s, const char *entry, char given_out[NAME_BYTES],
                        char meant_out[NAME_BYTES])
{
    size_t         n = strcspn(entry, "=");
    const setting *meant;

    if (n >= NAME_BYTES || entry[n] != '=' || strncmp(entry, "BATON_", 6) != 0) return false;
    memcpy(given_out, entry, n);
    given_out[n] = '\0';
    meant        = nearest(s, given_out);
    if (meant == NULL) return false;
    variable(meant->name, meant_out);
    return strcmp(given_out, meant_out) != 0;
}

static void warn_of_misspelt(const bt_settings *s)
{
    char given[NAME_BYTES], name[NAME_BYTES];

    for (char **e = environ; *e != NULL; e++)
        if (is_misspelt(s, *e, given, name) && (*e)[strlen(given) + 1] != '\0')
            BT_WARN("%s is no setting of this program: is %s meant?", given, name);
}

static bt_status read_environment(bt_settings *s)
{
    bt_status   st = BT_OK;
    char        name[NAME_BYTES];
    const char *value;

    for (size_t i = 0; i < s->n; i++) {
        variable(s->all[i].name, name);
        value = getenv(name);
        if (value == NULL || value[0] == '\0') continue;
        if (strncmp(value, "tcp://", 6) == 0) {
            /* Kubernetes sets BATON_PORT in every pod beside a service of that name. */
            BT_WARN("%s is \"%.80s\", the address of a service: not taken as a setting", name,
                    value);
            continue;
        }
        BT_TRY(set_checked(&s->all[i], FROM_ENVIRONMENT, name, value));
    }
    warn_of_misspelt(s);
out:
    return st;
}

/* ---- the outcome */

static place strongest(const setting *t)
{
    int p = FROM_FLAG;

    while (p > FROM_DEFAULT && t->values[p] == NULL)
        p--;
    return (place)p;
}

/* a is set in a stronger place than b; "false" excludes nothing. */
static bool drops(const setting *a, const setting *b)
{
    place from = strongest(a);

    return from > strongest(b) && (a->takes_value || strcmp(a->values[from], "false") != 0);
}

static void settle_conflicts(bt_settings *s)
{
    for (const bt_setting_conflict *c = s->spec.conflicts; c != NULL && c->a != NULL; c++) {
        setting *a = find_name(s, c->a), *b = find_name(s, c->b);

        if (a == NULL || b == NULL) continue;
        if (drops(a, b)) b->dropped = true;
        if (drops(b, a)) a->dropped = true;
    }
}

/* What BT_OPTION_DEFAULT() put at the end of an option's doc, *n_out bytes; NULL: nothing. */
static const char *default_in(const char *doc, int *n_out)
{
    static const char BEFORE[] = " (default ";
    const char       *at       = strstr(doc, BEFORE);

    if (at == NULL) return NULL;
    at += strlen(BEFORE);
    *n_out = (int)strcspn(at, ")");
    return at[*n_out] == ')' && at[*n_out + 1] == '\0' ? at : NULL;
}

static bool is_set(const setting *t)
{
    place from = strongest(t);

    return from != FROM_DEFAULT && !t->dropped && !t->idle &&
           (t->takes_value || strcmp(t->values[from], "false") != 0);
}

/* It is set to this value, or by default; NULL: it is set. */
static bool has_value(const bt_settings *s, const setting *t, const char *value)
{
    const char *by_default;
    int         n = 0;

    if (value == NULL) return is_set(t);
    if (is_set(t)) return strcmp(t->values[strongest(t)], value) == 0;
    by_default = default_in(s->flat[t - s->all].doc, &n);
    return by_default != NULL && (size_t)n == strlen(value) &&
           memcmp(by_default, value, (size_t)n) == 0;
}

/* The rule's condition holds. */
static bool is_idle(const bt_settings *s, const bt_setting_idle *rule, const setting *other)
{
    return other == NULL || has_value(s, other, rule->value) == (rule->when == BT_WITH);
}

/* " with --other value", and which place says that when no flag does. */
static void tell_when(const bt_setting_idle *rule, const setting *other, char *buf, size_t capacity)
{
    static const char *const SAYS[] = {" (default)", " (file)", " (environment)", ""};
    place from = other != NULL && is_set(other) ? strongest(other) : FROM_DEFAULT;

    buf[0] = '\0';
    if (other != NULL)
        snprintf(buf, capacity, " %s --%s%s%s%s", rule->when == BT_WITH ? "with" : "without",
                 rule->other, rule->value != NULL ? " " : "",
                 rule->value != NULL ? rule->value : "", rule->when == BT_WITH ? SAYS[from] : "");
}

static bt_status settle_idle(bt_settings *s)
{
    bt_status st = BT_OK;
    char      when[2 * NAME_BYTES];

    for (const bt_setting_idle *rule = s->spec.idle; rule != NULL && rule->name != NULL; rule++) {
        setting *t     = find_name(s, rule->name);
        setting *other = rule->other != NULL ? find_name(s, rule->other) : NULL;

        BT_ASSERT(t != NULL && (rule->other == NULL || other != NULL));
        if (t->dropped || strongest(t) == FROM_DEFAULT || !is_idle(s, rule, other)) continue;
        tell_when(rule, other, when, sizeof(when));
        BT_REQUIRE(strongest(t) != FROM_FLAG, BT_ERR_INVALID_ARG,
                   "--%s has no effect%s: leave it out, %s", rule->name, when, rule->more);
        t->idle = true;
    }
out:
    return st;
}

/* argp parses what this place says, weaker than others or not. */
static bool is_passed(const setting *t, place from)
{
    const char *value = t->values[from];

    if (value == NULL || t->dropped || t->idle || t->key == BT_OPT_CONFIG) return false;
    return t->takes_value || (from == strongest(t) && strcmp(value, "false") != 0);
}

/* "--name=value", or "--name". */
static bt_status add_word(bt_settings *s, const setting *t, place from)
{
    bt_status   st    = BT_OK;
    const char *value = t->values[from];
    size_t      n;
    char       *word = NULL;

    if (!is_passed(t, from)) return BT_OK;
    n    = strlen(t->name) + strlen(value) + 4;
    word = bt_calloc(n, 1);
    BT_REQUIRE(word != NULL, BT_ERR_NO_MEMORY, "setting %s", t->name);
    snprintf(word, n, t->takes_value ? "--%s=%s" : "--%s", t->name, value);
    s->words[s->n_words++] = word;
    s->argv[s->argc++]     = word;
out:
    return st;
}

static bt_status make_command_line(bt_settings *s, int argc, char **argv)
{
    bt_status st = BT_OK;

    s->argv  = bt_calloc((size_t)argc + 2 * s->n + 1, sizeof(*s->argv));
    s->words = bt_calloc(2 * s->n + 1, sizeof(*s->words));
    BT_REQUIRE(s->argv != NULL && s->words != NULL, BT_ERR_NO_MEMORY, "command line");
    s->argv[s->argc++] = argv[0];
    for (int from = FROM_FILE; from <= FROM_ENVIRONMENT; from++)
        for (size_t i = 0; i < s->n; i++)
            BT_TRY(add_word(s, &s->all[i], (place)from));
    for (int i = 1; i < argc; i++)
        s->argv[s->argc++] = argv[i];
out:
    return st;
}

static bt_status create(const bt_settings_spec *spec, int argc, char **argv,
                        bt_settings **settings_out)
{
    bt_status    st = BT_OK;
    bt_settings *s  = bt_calloc(1, sizeof(*s));

    BT_REQUIRE(s != NULL, BT_ERR_NO_MEMORY, "settings");
    s->spec = *spec;
    BT_TRY(collect(s, spec->parser));
    BT_TRY(read_flags(s, argc, argv));
    *settings_out = s;
    s             = NULL; /* handed over */
out:
    bt_settings_destroy(s);
    return st;
}

static const bt_settings *g_parsed; /* by argp, which knows flags only */

/* A complaint about a flag that nobody typed. */
static void tell_places(int status, void *unused)
{
    (void)unused;
    if (status != EX_USAGE || g_parsed == NULL) return;
    for (size_t i = 0; i < g_parsed->n; i++) {
        const setting *t = &g_parsed->all[i];

        for (int from = FROM_FILE; from <= FROM_ENVIRONMENT; from++)
            if (is_passed(t, (place)from))
                fprintf(stderr, "%s: --%s is \"%.200s\" by the %s\n", program_invocation_short_name,
                        t->name, t->values[from], PLACES[from]);
    }
}

bt_status bt_settings_gather(const bt_settings_spec *spec, int argc, char **argv,
                             bt_settings **settings_out)
{
    bt_status    st = BT_OK;
    bt_settings *s  = NULL;
    setting     *config;

    BT_TRY(create(spec, argc, argv, &s));
    BT_TRY(read_environment(s));
    config = find_name(s, "config");
    if (config != NULL && strongest(config) != FROM_DEFAULT)
        BT_TRY(read_file(s, config->values[strongest(config)]));
    settle_conflicts(s);
    BT_TRY(settle_idle(s));
    BT_TRY(make_command_line(s, argc, argv));
    g_parsed = s;
    on_exit(tell_places, NULL);
    *settings_out = s;
    s             = NULL; /* handed over */
out:
    bt_settings_destroy(s);
    return st;
}

bt_status bt_settings_check_flags(const bt_settings_spec *spec, int argc, char **argv)
{
    bt_status    st = BT_OK;
    bt_settings *s  = NULL;

    BT_TRY(create(spec, argc, argv, &s));
    BT_TRY(settle_idle(s));
out:
    bt_settings_destroy(s);
    return st;
}

void bt_settings_destroy(bt_settings *settings)
{
    if (settings == NULL) return;
    if (g_parsed == settings) g_parsed = NULL;
    for (size_t i = 0; i < settings->n; i++)
        for (int from = 0; from < N_PLACES; from++)
            bt_free(settings->all[i].values[from]);
    for (size_t i = 0; i < settings->n_words; i++)
        bt_free(settings->words[i]);
    bt_free(settings->words);
    bt_free(settings->argv);
    bt_free(settings);
}

int    bt_settings_argc(const bt_settings *settings) { return settings->argc; }
char **bt_settings_argv(const bt_settings *settings) { return settings->argv; }

/* Words of a report, in lines that the log takes whole. */
typedef struct {
    const char *title;
    char        text[REPORT_BYTES];
    size_t      n;
} report;

static void flush(report *r)
{
    if (r->n > 0) BT_INFO("%s:%s", r->title, r->text);
    r->n = 0;
}

BT_PRINTF(2, 3) static void tell(report *r, const char *fmt, ...)
{
    char    word[REPORT_BYTES];
    va_list ap;
    int     n;

    va_start(ap, fmt);
    n = vsnprintf(word, sizeof(word), fmt, ap);
    va_end(ap);
    if ((size_t)n >= sizeof(word)) n = (int)sizeof(word) - 1;
    if (r->n + (size_t)n >= sizeof(r->text)) flush(r);
    memcpy(r->text + r->n, word, (size_t)n + 1);
    r->n += (size_t)n;
}

void bt_settings_log(const bt_settings *settings)
{
    report r = {.title = "settings"};

    for (size_t i = 0; i < settings->n; i++) {
        const setting *t    = &settings->all[i];
        place          from = strongest(t);

        if (from != FROM_DEFAULT)
            tell(&r, " %s=%s (%s%s)", t->name, t->values[from], PLACES[from],
                 t->dropped ? ", gives way"
                 : t->idle  ? ", no effect here"
                            : "");
    }
    flush(&r);
    r.title = "by default";
    for (size_t i = 0; i < settings->n; i++) {
        int         n          = 0;
        const char *by_default = default_in(settings->flat[i].doc, &n);

        if (strongest(&settings->all[i]) == FROM_DEFAULT && by_default != NULL)
            tell(&r, " %s=%.*s", settings->all[i].name, n, by_default);
    }
    flush(&r);
}

void bt_settings_clear_environment(const bt_settings *settings)
{
    char given[NAME_BYTES], name[NAME_BYTES];

    for (size_t i = 0; i < settings->n; i++) {
        variable(settings->all[i].name, name);
        unsetenv(name);
    }
    for (char **e = environ; *e != NULL;) /* that is said once, not by each child too */
        if (is_misspelt(settings, *e, given, name))
            unsetenv(given); /* the next one moves here */
        else
            e++;
}
